"""The report of a study: its answer, at most five tables and five figures, limits; the rest as files beside it."""

from analysis.report.content import Report, make_report
from analysis.report.writing import PAGE, Format, parse_formats, to_html, write

__all__ = ["PAGE", "Format", "Report", "make_report", "parse_formats", "to_html", "write"]
