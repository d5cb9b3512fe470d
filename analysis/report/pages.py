"""A report as one HTML page and as Markdown. Jinja2 with autoescape: names and reasons may hold anything."""

import base64
from collections.abc import Iterator, Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures import Figure
from analysis.report.content import Report
from analysis.tables.writers import prose
from analysis.tables.writers import to_html as table_to_html
from analysis.tables.writers import to_markdown as table_to_markdown
from study.harmless import markdown, one_line

CLIP = "clip"
"""Name of the film beside the figures."""
_SVG = "data:image/svg+xml;base64,"


def to_html(report: Report, pictures: Mapping[str, bytes] | None = None) -> str:
    """Return one self-contained page: no script, no request, figures inside.

    Args:
        report: The report.
        pictures: Key of a figure -> its SVG without the title; None: they are drawn now.
    """
    if pictures is None:
        pictures = {each.key: each.pictures(["inline"])["inline"] for each in report.figures if each.drawn}
    environment = Environment(
        loader=PackageLoader("analysis.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = lambda text: Markup(prose(text))
    environment.filters["table"] = lambda table: Markup(table_to_html(table, alone=False))
    environment.filters["uri"] = lambda figure: f"{_SVG}{base64.b64encode(pictures[figure.key]).decode()}"
    environment.filters["answer"] = lambda answer, figure: Markup(answer.to_html(str(figure)))
    return environment.get_template("page.html.j2").render(report=report)


def to_markdown(report: Report, *, figures: str = "figures") -> str:
    """Return the report as Markdown, its pictures as files beside it."""
    return "\n\n".join(_markdown(report, figures)) + "\n"


def _markdown(report: Report, folder: str) -> Iterator[str]:
    yield f"# {_line(report.name)}"
    yield _line(report.summary)
    yield report.answer.to_markdown().rstrip()
    yield from _figures([report.beside] if report.beside else [], folder)
    yield "## Evidence"
    if (clip := report.clip) is not None and clip.missing:
        yield f"*The best policy at work*: not shown. {_line(clip.missing)}"
    elif clip is not None:
        film = f"{folder}/{CLIP}{clip.suffix}"
        yield f"![{_alt(clip.caption)}]({film})" if clip.suffix == ".gif" else f"[Film]({film})"
        yield f"*The best policy at work.* {_line(clip.caption)}"
    yield from _figures(report.shown_figures, folder)
    yield from (table_to_markdown(table, alone=False).rstrip() for table in report.shown_tables)
    for title, texts in (
        ("Limits", report.answer.limits),
        ("Definitions", report.definitions),
        ("Machine, software and files", report.files),
        ("Acknowledgement", (report.acknowledgement,) if report.acknowledgement else ()),
    ):
        if texts:
            yield f"## {title}"
            yield "\n".join(f"- {_line(text)}" for text in texts)


def _figures(figures: Sequence[Figure], folder: str) -> Iterator[str]:
    for figure in figures:
        yield f"![{_alt(figure.alt)}]({folder}/{figure.key}.png)"
        yield f"*{_line(figure.title)}* {_line(figure.caption)}"


def _line(text: str) -> str:
    return markdown(one_line(text))


def _alt(text: str) -> str:
    return _line(text).replace("[", "(").replace("]", ")")
