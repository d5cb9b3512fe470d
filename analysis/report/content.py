"""What a report says, apart from how it looks: the answer, at most five tables and five figures, limits. No engine."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.answers import Answer
from analysis.answers.facts import complete, progress
from analysis.figures import Figure
from analysis.load.study_data import StudyData
from analysis.report.clip import Clip
from analysis.tables.table import Table
from study.engine import engines_in_words
from study.text import count

if TYPE_CHECKING:
    from analysis.opened import Study

MOST = 5
"""Tables and figures of a page, those of the answer included; the rest are files beside it."""
MOST_TRIALS = 12
"""Rows of the table of trials on the page."""
KINDS: Mapping[str, str] = {"search": "search", "throughput": "throughput study", "holdup": "hold-up study"}
TABLES: Mapping[str, tuple[str, ...]] = {
    "throughput": ("T2", "T3", "T7", "T5"),
    "holdup": ("T11", "T8"),
    "search": ("T8", "T2", "T5", "trials"),
}
"""Kind of study -> the tables that its question is about, in order."""
GRID5000 = (
    "Experiments presented in this paper were carried out using the Grid'5000 testbed, supported by a scientific "
    "interest group hosted by Inria and including CNRS, RENATER and several Universities as well as other "
    "organizations (see https://www.grid5000.fr)."
)
"""Source: Grid'5000's usage policy."""
_NODE = re.compile(r"(?:^|[^A-Za-z0-9.-])(?:[A-Za-z0-9-]+\.)+grid5000\.fr(?![A-Za-z0-9.-]*[A-Za-z0-9])", re.IGNORECASE)
"""A host name of the testbed, such as gros-12.nancy.grid5000.fr, and not of a name that merely begins so."""
_PLACES = ("hardware", "cluster", "sessions", "hostname", "nodes")
"""Entries of the sheet that name machines; a description may name any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report as a value: every writer prints the same one.

    Attributes:
        name: Of the study.
        source: Where it was read.
        summary: What the study is, in a sentence.
        answer: What it says, with its limits.
        tables: Every table, the empty ones and those of the answer too; each is a file.
        figures: Every figure, those that are not drawn too; each that is drawn is a file.
        acknowledgement: What a testbed asks to be said; empty where there is none.
        clip: The film of the best policy; None where nobody made one.
    """

    name: str
    source: str
    summary: str
    answer: Answer
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    acknowledgement: str = ""
    clip: Clip | None = None

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
        wanted = TABLES.get(self.answer.kind, TABLES["search"])
        found = {each.key: each for each in self.tables if not each.empty}
        chosen = [found[key] for key in wanted if key in found][: MOST - len(self.answer.tables)]
        return tuple(replace(each, most_rows=MOST_TRIALS) if each.key == "trials" else each for each in chosen)

    @property
    def definitions(self) -> tuple[str, ...]:
        """Of the quantities in the tables of the page, each once."""
        return tuple(dict.fromkeys(text for table in self.shown_tables for text in table.definitions))

    @property
    def files(self) -> tuple[str, ...]:
        """What stands beside the page, in sentences."""
        tables = ", ".join(f"`{table.key}` ({table.title})" for table in self.tables if not table.empty)
        figures = ", ".join(f"`{figure.key}`" for figure in self.figures if figure.drawn)
        return (
            f"`tables/` has every table as CSV with all its columns: {tables}.",
            f"`figures/` has every figure as picture and as CSV: {figures or 'none'}.",
        )


def make_report(study: "Study", *, clip: Clip | None = None, price_per_cpu_hour: float | None = None) -> Report:
    """Return the report of a study.

    Args:
        study: As `analysis.open` returns it.
        clip: The film of the study's best policy, if somebody made one.
        price_per_cpu_hour: What a CPU-hour costs, in any currency.
    """
    answer = study.answer(price_per_cpu_hour)
    return Report(
        name=study.name,
        source=study.data.source,
        summary=_summary(study.data),
        answer=answer,
        tables=(*answer.tables, *study.tables.values()),
        figures=tuple(study.figures.values()),
        acknowledgement=acknowledgement(study.data),
        clip=clip,
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


def acknowledgement(data: StudyData) -> str:
    """Return the testbed's sentence if a driver or a node of the study was there, else an empty text."""
    machines = [text for place in _PLACES for text in _texts(data.sheet.get(place))]
    machines += [str(nodes) for nodes in data.runs["nodes"].dropna().unique()]
    return GRID5000 if any(_NODE.search(text) for text in machines) else ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            if key != "command":
                yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
