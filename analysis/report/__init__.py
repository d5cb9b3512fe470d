"""The report of a study: its answer, at most five tables and five figures, limits; the rest as files beside it."""

from analysis.report.clip import Clip, find_clip
from analysis.report.content import Report, make_report
from analysis.report.pages import to_html, to_markdown
from analysis.report.writing import Format, parse_formats, write

__all__ = ["Clip", "Format", "Report", "find_clip", "make_report", "parse_formats", "to_html", "to_markdown", "write"]
