"""A report as files: the page, the tables and the figures. Touches the folder that it is given and nothing else."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

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
TABLES, FIGURES = "tables", "figures"
OF_THE_ANSWER = ("answer", "prices")
"""Tables that not every report has."""


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

    `out/report.html`, `out/report.md`, `out/tables/T2.{md,csv,tex}`, `out/figures/throughput.{svg,png}`, with their
    numbers as .csv and, for LaTeX, as .pdf. Files of an earlier report whose table or figure is missing are removed.

    Args:
        report: The report.
        out: Folder; it is made if needed.
        formats: Which to write; pictures come with all of them but csv alone.

    Raises:
        AnalysisError: The folder cannot be written.
        RecordError: A link is in the place of one of the files or of a folder of theirs.
    """
    files: list[Path] = []

    def put(name: str, content: str | bytes) -> None:
        files.append(write_below(out, name, printable(content) if isinstance(content, str) else content))

    try:
        _write(report, formats, put)
        if report.clip is None or not report.clip.film:
            for suffix in (".mp4", ".gif", ".png"):
                below(out, f"{FIGURES}/{CLIP}{suffix}").unlink(missing_ok=True)
        for figure in report.figures:
            for suffix in ("svg", "png", "pdf", "csv") if not figure.drawn else ():
                below(out, f"{FIGURES}/{figure.key}.{suffix}").unlink(missing_ok=True)
        for key in {*OF_THE_ANSWER} - {table.key for table in report.tables}:
            for suffix in ("md", "csv", "tex"):
                below(out, f"{TABLES}/{key}.{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise AnalysisError(
            where=str(out),
            rule="the folder of the report must be writable",
            got=error.strerror or error,
            fix="Choose another one with --out.",
        ) from error
    return tuple(files)


def _write(report: Report, formats: Sequence[Format], put: Callable[[str, str | bytes], None]) -> None:
    forms: list[Form] = ["inline"] if "html" in formats else []
    forms += ["svg", "png"] if {*formats} != {"csv"} else []
    forms += ["pdf"] if "tex" in formats else []
    drawn = [figure for figure in report.figures if figure.drawn]
    pictures = {figure.key: figure.pictures(forms) for figure in drawn if forms}
    if "html" in formats:
        put(PAGE, to_html(report, {key: forms.pop("inline").decode() for key, forms in pictures.items()}))
    if "md" in formats:
        put(TEXT, to_markdown(report, figures=FIGURES))
    if "md" in formats and report.clip is not None and report.clip.film:
        put(f"{FIGURES}/{CLIP}{report.clip.suffix}", report.clip.film)
        if report.clip.poster:
            put(f"{FIGURES}/{CLIP}.png", report.clip.poster)
    writers = {"md": Table.to_markdown, "csv": Table.to_csv, "tex": Table.to_latex}
    for table in report.tables:
        for form in (each for each in formats if each in writers):
            put(f"{TABLES}/{table.key}.{form}", writers[form](table))
    for figure in drawn:
        for name, picture in pictures.get(figure.key, {}).items():
            put(f"{FIGURES}/{figure.key}.{name}", picture.decode() if name == "svg" else picture)
        if "csv" in formats:
            put(f"{FIGURES}/{figure.key}.csv", frame_to_csv(figure.frame))
