"""The report of a study: its answer, at most five tables and five figures, limits; the rest as files beside it."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.answers import Answer
from analysis.answers.answer import complete, progress
from analysis.figures import FIGURES, Figure
from analysis.figures.figure import Form
from analysis.load import StudyData
from analysis.tables.table import Table, frame_to_csv, prose
from analysis.tables.table import to_html as table_to_html
from study.engine import engines_in_words
from study.errors import AnalysisError
from study.text import count, printable

if TYPE_CHECKING:
    from analysis.opened import Study

__all__ = ["PAGE", "Format", "Report", "make_report", "parse_formats", "to_html", "write"]

MOST = 5
"""Tables and figures of a page, those of the answer included; the rest are files beside it."""
MOST_TRIALS = 12
"""Rows of the table of trials on the page."""
KINDS: Mapping[str, str] = {"search": "search", "throughput": "throughput study", "holdup": "hold-up study"}
TABLES: Mapping[str, tuple[str, ...]] = {
    "throughput": ("T2", "T3", "T5"),
    "holdup": ("T11", "T8"),
    "search": ("T8", "T2", "T5", "trials"),
}
"""Kind of study -> the tables that its question is about, in order."""
SOFTWARE = ("ray", "torch", "jax", "gymnasium", "python")
"""Versions that a page names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report as a value: every writer prints the same one.

    `summary` says what the study is, `ran_on` the machine, versions and commit of its last session where known. Every
    table is a file, the empty ones and those of the answer too, and every figure that is drawn.
    """

    name: str
    source: str
    summary: str
    ran_on: str = ""
    answer: Answer
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]

    @property
    def beside(self) -> Figure | None:
        """The figure beside the answer; None where none helps."""
        return next((each for each in self.figures if each.drawn and each.key == self.answer.figure), None)

    @property
    def shown_figures(self) -> tuple[Figure, ...]:
        """The figures of the page below the answer."""
        rest = [each for each in self.figures if each.drawn and each is not self.beside]
        return tuple(rest[: MOST - (self.beside is not None)])

    @property
    def shown_tables(self) -> tuple[Table, ...]:
        """The tables of the page below the answer: of the study's question, those that have rows."""
        above = [each.key for each in self.answer.tables]
        found = {each.key: each for each in self.tables if not each.empty and each.key not in above}
        keys = [key for key in TABLES.get(self.answer.kind, TABLES["search"]) if key in found][: MOST - len(above)]
        return tuple(replace(found[key], most_rows=MOST_TRIALS) if key == "trials" else found[key] for key in keys)

    @property
    def definitions(self) -> tuple[str, ...]:
        """Of the quantities in the tables of the page, each once."""
        return tuple(dict.fromkeys(text for table in self.shown_tables for text in table.definitions))

    @property
    def files(self) -> tuple[str, ...]:
        """What the study ran on, and what stands beside the page, in sentences."""
        tables = ", ".join(f"`{table.key}` ({table.title})" for table in self.tables if not table.empty)
        figures = ", ".join(f"`{figure.key}`" for figure in self.figures if figure.drawn)
        return (
            *([self.ran_on] if self.ran_on else []),
            f"`tables/` has every table as CSV with all its columns: {tables}.",
            f"`figures/` has every figure as picture and as CSV: {figures or 'none'}.",
        )


def make_report(study: "Study", *, price_per_cpu_hour: float | None = None) -> Report:
    """Return the report of a study, with what a CPU-hour costs, in any currency."""
    answer = study.answer(price_per_cpu_hour)
    keys = [each.key for each in answer.tables]
    return Report(
        name=study.name,
        source=study.data.source,
        summary=_summary(study.data),
        ran_on=_ran_on(study.data.sheet),
        answer=answer,
        tables=(*answer.tables, *(table for table in study.tables.values() if table.key not in keys)),
        figures=tuple(study.figures.values()),
    )


def _summary(data: StudyData) -> str:
    """Return `Hold-up study on Acrobot-v1: 259 trials with 10 to 64 runners.`, or how many trials have ended."""
    environment = data.sheet.get("environment")
    where = f" on {environment['id']}" if isinstance(environment, Mapping) and environment.get("id") else ""
    lanes = data.runs["stands_for_runners"].fillna(data.runs["num_env_runners"])
    scales = sorted({int(each) for each in lanes.dropna()})
    span = f" with {scales[0]} to {scales[-1]} runners" if len(scales) > 1 else ""
    span = f" with {count(scales[0], 'runner')}" if len(scales) == 1 else span
    ended = "" if complete(data) else f"; {progress(data)}"
    kind, engine = KINDS.get(data.kind, data.kind).capitalize(), engines_in_words(data.runs["engine"].dropna())
    return f"{kind}{where}: {count(len(data.runs), 'trial')}{span}{ended}; engine: {engine}."


def _ran_on(sheet: Mapping[str, Any]) -> str:
    hardware, versions = (sheet.get(name) or {} for name in ("hardware", "versions"))
    cores = hardware.get("physical_cpus")
    said = [f"{count(cores, 'core')} of {hardware.get('cpu_model') or 'an unknown CPU'}"] if cores else []
    said += [f"{name} {versions[name]}" for name in SOFTWARE if versions.get(name)]
    said += [f"commit {str(sheet['commit'])[:10]}"] if sheet.get("commit") else []
    return f"Its last session ran on {', '.join(said)}." if said else ""


# --- as files ---------------------------------------------------------------------------------------------------------

Format = Literal["html", "csv", "tex"]
PAGE = "report.html"
WRITERS = {"csv": Table.to_csv, "tex": Table.to_latex}
_SVG = "data:image/svg+xml;base64,"


def parse_formats(text: str) -> tuple[Format, ...]:
    """Return the formats named in "html,csv", each once; raises `AnalysisError` for an unknown one or none."""
    known: tuple[Format, ...] = get_args(Format)
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words or not {*words} <= {*known}:
        rule = f"must be some of {', '.join(known)}"
        raise AnalysisError(where="--format", rule=rule, got=f"{text!r}", fix="Name one, or drop it.")
    return tuple(each for each in known if each in words)


def to_html(report: Report, pictures: Mapping[str, bytes] | None = None) -> str:
    """Return one self-contained page: no script, no request, figures inside. Names and reasons may hold anything.

    `pictures` is key of a figure -> its SVG; without it they are drawn now.
    """
    if pictures is None:
        pictures = {each.key: each.pictures(["svg"])["svg"] for each in report.figures if each.drawn}
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    environment = Environment(loader=PackageLoader("analysis.report", "templates"), autoescape=True, **blocks)
    environment.filters["prose"] = lambda text: Markup(prose(text))
    environment.filters["table"] = lambda table: Markup(table_to_html(table, alone=False))
    environment.filters["uri"] = lambda figure: f"{_SVG}{base64.b64encode(pictures[figure.key]).decode()}"
    environment.filters["answer"] = lambda answer, figure: Markup(answer.to_html(str(figure)))
    return environment.get_template("page.html.j2").render(report=report)


def write(report: Report, out: Path, formats: Sequence[Format] = ("html", "csv")) -> tuple[Path, ...]:
    """Write a report and return its files, the page first.

    `out/report.html`, `out/tables/T2.{csv,tex}`, `out/figures/efficiency.{svg,png}`, with their numbers as .csv and,
    for LaTeX, as .pdf. Files of an earlier report whose table or figure is missing are removed.

    Raises:
        AnalysisError: The folder cannot be written.
    """
    try:
        files = list[Path]()
        for name, content in _contents(report, formats):
            files.append(file := out / name)
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():  # which may lead to any file of this user
                file.unlink()
            file.write_bytes(printable(content).encode() if isinstance(content, str) else content)
        for name in _stale(report):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        rule, got = "the folder of the report must be writable", error.strerror or error
        raise AnalysisError(where=str(out), rule=rule, got=got, fix="Choose another one with --out.") from error
    return tuple(files)


def _contents(report: Report, formats: Sequence[Format]) -> Iterator[tuple[str, str | bytes]]:
    forms: list[Form] = ["svg", "png"] if {*formats} != {"csv"} else []
    forms += ["pdf"] if "tex" in formats else []
    drawn = [each for each in report.figures if each.drawn]
    pictures = {figure.key: figure.pictures(forms) for figure in drawn if forms}
    if "html" in formats:
        yield PAGE, to_html(report, {key: forms["svg"] for key, forms in pictures.items()})
    for table in report.tables:
        yield from ((f"tables/{table.key}.{form}", WRITERS[form](table)) for form in formats if form in WRITERS)
    for figure in drawn:
        yield from ((f"figures/{figure.key}.{form}", each) for form, each in pictures.get(figure.key, {}).items())
        if "csv" in formats:
            yield f"figures/{figure.key}.csv", frame_to_csv(figure.frame)


def _stale(report: Report) -> Iterator[str]:
    shown = {f"tables/{each.key}" for each in report.tables}
    shown |= {f"figures/{each.key}" for each in report.figures if each.drawn}
    for name in {"tables/answer", "tables/prices", *(f"figures/{key}" for key in FIGURES)} - shown:
        yield from (f"{name}.{form}" for form in ("csv", "tex", "svg", "png", "pdf"))
