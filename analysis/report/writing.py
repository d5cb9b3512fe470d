"""A report as files: the page, the tables and the figures. Touches the folder that it is given and nothing else."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures import FIGURES
from analysis.figures.figure import Form
from analysis.report.content import Report
from analysis.tables.table import Table
from analysis.tables.writers import frame_to_csv, prose
from analysis.tables.writers import to_html as table_to_html
from study.errors import AnalysisError
from study.harmless import printable
from study.records.files import below

Format = Literal["html", "csv", "tex"]
PAGE = "report.html"
WRITERS = {"csv": Table.to_csv, "tex": Table.to_latex}
_SVG = "data:image/svg+xml;base64,"


def parse_formats(text: str) -> tuple[Format, ...]:
    """Return the formats named in "html,csv", each once, in the order of `Format`.

    Raises:
        AnalysisError: One is unknown, or none is named.
    """
    known: tuple[Format, ...] = get_args(Format)
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words or not {*words} <= {*known}:
        raise AnalysisError(
            where="--format", rule=f"must be some of {', '.join(known)}", got=f"{text!r}", fix="Name one, or drop it."
        )
    return tuple(each for each in known if each in words)


def to_html(report: Report, pictures: Mapping[str, bytes] | None = None) -> str:
    """Return one self-contained page: no script, no request, figures inside. Names and reasons may hold anything.

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


def write(report: Report, out: Path, formats: Sequence[Format] = ("html", "csv")) -> tuple[Path, ...]:
    """Write a report and return its files, the page first.

    `out/report.html`, `out/tables/T2.{csv,tex}`, `out/figures/efficiency.{svg,png}`, with their numbers as .csv and,
    for LaTeX, as .pdf. Files of an earlier report whose table or figure is missing are removed.

    Args:
        report: The report.
        out: Folder; it is made if needed.
        formats: Which to write; pictures come with all of them but csv alone.

    Raises:
        AnalysisError: The folder cannot be written.
        RecordError: A link is in the place of one of the files or of a folder of theirs.
    """
    try:
        files = list[Path]()
        for name, content in _contents(report, formats):
            files.append(file := below(out, name))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(printable(content).encode() if isinstance(content, str) else content)
        for name in _stale(report):
            below(out, name).unlink(missing_ok=True)
    except OSError as error:
        raise AnalysisError(
            where=str(out),
            rule="the folder of the report must be writable",
            got=error.strerror or error,
            fix="Choose another one with --out.",
        ) from error
    return tuple(files)


def _contents(report: Report, formats: Sequence[Format]) -> Iterator[tuple[str, str | bytes]]:
    """Yield name and content of every file."""
    forms: list[Form] = ["inline"] if "html" in formats else []
    forms += ["svg", "png"] if {*formats} != {"csv"} else []
    forms += ["pdf"] if "tex" in formats else []
    drawn = [each for each in report.figures if each.drawn]
    pictures = {figure.key: figure.pictures(forms) for figure in drawn if forms}
    if "html" in formats:
        yield PAGE, to_html(report, {key: forms.pop("inline") for key, forms in pictures.items()})
    for table in report.tables:
        yield from ((f"tables/{table.key}.{form}", WRITERS[form](table)) for form in formats if form in WRITERS)
    for figure in drawn:
        yield from ((f"figures/{figure.key}.{form}", each) for form, each in pictures.get(figure.key, {}).items())
        if "csv" in formats:
            yield f"figures/{figure.key}.csv", frame_to_csv(figure.frame)


def _stale(report: Report) -> Iterator[str]:
    """Yield the files that an earlier report may have left and whose table or figure this one does not have."""
    shown = {f"tables/{each.key}" for each in report.tables}
    shown |= {f"figures/{each.key}" for each in report.figures if each.drawn}
    for name in {"tables/answer", "tables/prices", *(f"figures/{key}" for key in FIGURES)} - shown:
        yield from (f"{name}.{form}" for form in ("csv", "tex", "svg", "png", "pdf"))
