"""A report as files: the page, the tables and the figures. Touches the folder that it is given and nothing else."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from analysis.figures import FIGURES
from analysis.figures.figure import Form
from analysis.report.content import Report
from analysis.report.pages import CLIP, to_html, to_markdown
from analysis.tables.table import Table
from analysis.tables.writers import frame_to_csv
from study.errors import AnalysisError
from study.harmless import printable
from study.records.files import below, write_below

Format = Literal["html", "md", "csv", "tex"]
PAGE, TEXT = "report.html", "report.md"
WRITERS = {"md": Table.to_markdown, "csv": Table.to_csv, "tex": Table.to_latex}


def parse_formats(text: str) -> tuple[Format, ...]:
    """Return the formats named in "html,md", each once, in the order of `Format`.

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


def write(report: Report, out: Path, formats: Sequence[Format] = ("html", "md", "csv")) -> tuple[Path, ...]:
    """Write a report and return its files, the page first.

    `out/report.html`, `out/report.md`, `out/tables/T2.{md,csv,tex}`, `out/figures/efficiency.{svg,png}`, with their
    numbers as .csv and, for LaTeX, as .pdf. Files of an earlier report whose table or figure is missing are removed.

    Args:
        report: The report.
        out: Folder; it is made if needed.
        formats: Which to write; pictures come with all of them but csv alone.

    Raises:
        AnalysisError: The folder cannot be written.
        RecordError: A link is in the place of one of the files or of a folder of theirs.
    """
    try:
        files = [
            write_below(out, name, printable(content) if isinstance(content, str) else content)
            for name, content in _contents(report, formats)
        ]
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
    if "md" in formats:
        yield TEXT, to_markdown(report)
    if "md" in formats and report.clip is not None and report.clip.film:
        yield f"figures/{CLIP}{report.clip.suffix}", report.clip.film
    for table in report.tables:
        yield from ((f"tables/{table.key}.{form}", WRITERS[form](table)) for form in formats if form in WRITERS)
    for figure in drawn:
        yield from ((f"figures/{figure.key}.{form}", each) for form, each in pictures.get(figure.key, {}).items())
        if "csv" in formats:
            yield f"figures/{figure.key}.csv", frame_to_csv(figure.frame)


def _stale(report: Report) -> Iterator[str]:
    """Yield the files that an earlier report may have left and whose table or figure this one does not have."""
    shown = [f"tables/{each.key}" for each in report.tables]
    shown += [f"figures/{each.key}" for each in report.figures if each.drawn]
    shown += [f"figures/{CLIP}"] if report.clip is not None and report.clip.film else []
    known = ("tables/answer", "tables/prices", f"figures/{CLIP}", *(f"figures/{key}" for key in FIGURES))
    for name in {*known} - {*shown}:
        yield from (f"{name}.{form}" for form in ("md", "csv", "tex", "svg", "png", "pdf", "mp4", "gif"))
