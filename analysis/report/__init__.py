"""The report of a study: its answer first, then evidence, limits, definitions, sheet. Views of tables and figures."""

from analysis.report.clip import Clip, find_clip
from analysis.report.content import Part, Report, build, make_report
from analysis.report.limits import Limit
from analysis.report.pages import to_html, to_markdown
from analysis.report.writing import Format, parse_formats, write

__all__ = [
    "Clip",
    "Format",
    "Limit",
    "Part",
    "Report",
    "build",
    "find_clip",
    "make_report",
    "parse_formats",
    "to_html",
    "to_markdown",
    "write",
]
