"""A report as one HTML page and as Markdown. Jinja2 with autoescape: names and reasons may hold anything."""

from collections.abc import Iterator, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures.figure import Figure
from analysis.report.clip import Clip
from analysis.report.content import LEARNING, Missing, Report
from analysis.tables.table import Table, with_command
from analysis.tables.writers import prose
from analysis.tables.writers import to_html as table_to_html
from analysis.tables.writers import to_markdown as table_to_markdown
from study.harmless import markdown

CLIP = "clip"
"""Name of the film, and of its picture, beside the figures."""


def to_html(report: Report, pictures: Mapping[str, str] | None = None) -> str:
    """Return one self-contained page: no script, no request, figures inline.

    Args:
        report: The report.
        pictures: Key of a figure -> its SVG without the title; None: they are drawn now.
    """
    if pictures is None:
        pictures = {each.key: each.to_svg(titled=False) for each in report.figures if each.drawn}
    template = _environment(pictures).get_template("page.html.j2")
    return template.render(report=report, learning=LEARNING)


def to_markdown(report: Report, *, figures: str = "figures") -> str:
    """Return the report as Markdown, its pictures as files beside it."""
    return "\n\n".join(_markdown(report, figures)) + "\n"


def _environment(pictures: Mapping[str, str]) -> Environment:
    environment = Environment(
        loader=PackageLoader("analysis.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = lambda text: Markup(prose(text))
    environment.filters["table"] = lambda table: Markup(table_to_html(table, alone=False))
    environment.filters["svg"] = lambda figure: Markup(pictures[figure.key])
    environment.filters["answer"] = lambda answer, figure: Markup(answer.to_html(str(figure)))
    return environment


def _markdown(report: Report, folder: str) -> Iterator[str]:
    yield f"# {_line(report.name)}"
    yield _line(report.summary)
    yield report.answer.to_markdown().rstrip()
    yield from _pictures([report.figure] if report.figure else [], folder)
    for part in report.parts:
        yield f"## {part.title}"
        yield from _clip(report.clip if part.key == LEARNING else None, folder)
        yield from _pictures(part.figures, folder)
        yield from (_table(table).removeprefix(f"### {part.title}\n\n") for table in part.tables)
    if report.refusals:
        yield "## Comparisons that are refused"
        yield "\n".join(f"- {_line(text)}" for text in report.refusals)
    yield "## Limits"
    for limit in report.limits:
        yield f"### {limit.title}"
        yield "\n".join(f"- {_line(item)}" for item in limit.items)
    if report.missing:
        yield "## What is not shown, and why"
        yield "\n".join(_missing(each) for each in report.missing)
    yield "## Definitions"
    yield "\n".join(f"- {_line(text)}" for text in report.definitions)
    yield "\n".join(f"- **{_line(heading)}**: {_line(text)}" for heading, text in report.columns.items())
    if report.sheet is not None:
        yield "## Study sheet"
        yield _table(report.sheet)
    if report.acknowledgement:
        yield "## Acknowledgement"
        yield report.acknowledgement


def _missing(group: Missing) -> str:
    reasons = [f"{_line(', '.join(names))}: {_line(why)}" for why, names in group.reasons.items()]
    if len(reasons) == 1:
        return f"- {with_command(reasons[0], _line(group.command))}"
    return "\n".join([f"- Run: {_line(group.command)}", *(f"  - {reason}" for reason in reasons)])


def _pictures(figures: "list[Figure] | tuple[Figure, ...]", folder: str) -> Iterator[str]:
    for figure in figures:
        yield f"![{_alt(figure.alt)}]({folder}/{figure.key}.png)"
        yield f"*{_line(figure.title)}.* {_line(figure.caption)}"


def _table(table: Table) -> str:
    return table_to_markdown(table, alone=False).rstrip()


def _clip(clip: Clip | None, folder: str) -> Iterator[str]:
    if clip is None:
        return
    if clip.missing:
        yield f"*The best policy at work*: not shown. {_line(clip.missing)}"
        return
    film = f"{folder}/{CLIP}{clip.suffix}"
    if clip.moves_by_itself:
        yield f"![{_alt(clip.caption)}]({film})"
    else:
        yield f"[![{_alt(clip.caption)}]({folder}/{CLIP}.png)]({film})" if clip.poster else f"[Film]({film})"
    yield f"*The best policy at work.* {_line(clip.caption)}"


def _line(text: str) -> str:
    """Return `text` on one line; what Markdown would take for HTML or a link stays text."""
    return markdown(" ".join(text.split()))


def _alt(text: str) -> str:
    return _line(text).replace("[", "(").replace("]", ")")
