"""The report of a study: conclusion first, then evidence, limits, definitions, sheet. Views of tables and figures."""

from analysis.report.clip import Clip, find_clip
from analysis.report.content import Part, Report, Statement, build
from analysis.report.formats import Format, parse_formats
from analysis.report.limits import Limit
from analysis.report.making import make_report
from analysis.report.pages import to_html, to_markdown
from analysis.report.writing import write

__all__ = [
    "Clip",
    "Format",
    "Limit",
    "Part",
    "Report",
    "Statement",
    "build",
    "find_clip",
    "make_report",
    "parse_formats",
    "to_html",
    "to_markdown",
    "write",
]
