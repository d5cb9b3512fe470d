"""What a report says, apart from how it looks: conclusion, evidence, limits, sheet. Pure views, no engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.figures.figure import Figure
from analysis.load.study_data import StudyData
from analysis.report.acknowledgement import acknowledgement
from analysis.report.clip import Clip
from analysis.report.limits import Limit, limits
from analysis.tables.table import Table

SHEET = "T1"
LEARNING = "learning"
"""Key of the part with the learning curves, where the film stands."""
FIRST = ("T10", "T2", "T11")
"""Tables whose conclusions are that of the report, in this order: what to do, what was measured, what holds."""
MOST_REFUSALS = 3
"""Refusals at the head of a report; T2 has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One question of the evidence, with the tables and figures that answer it."""

    key: str
    title: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A sentence of the conclusion and the table that it comes from."""

    table: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report as a value: every writer prints the same one.

    Attributes:
        name: Of the study.
        source: Where it was read.
        summary: What the study is, in a sentence.
        refusals: Efficiencies that are refused and what to do instead; read before any other number.
        conclusions: The findings in plain words, with intervals.
        parts: The evidence.
        limits: What the numbers do not mean, and what is missing.
        definitions: Of every quantity in the tables, each once.
        sheet: T1; None where there is none.
        acknowledgement: What a testbed asks to be said; empty where there is none.
        clip: The film of the best policy, which stands beside its learning curve; None where nobody made one.
    """

    name: str
    source: str
    summary: str
    refusals: tuple[str, ...]
    conclusions: tuple[Statement, ...]
    parts: tuple[Part, ...]
    limits: tuple[Limit, ...]
    definitions: tuple[str, ...]
    sheet: Table | None
    acknowledgement: str
    clip: Clip | None = None

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"Scaling report: {self.name}"

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table, in the order of the report."""
        return (*(table for part in self.parts for table in part.tables), *((self.sheet,) if self.sheet else ()))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in the order of the report; some only say why they are missing."""
        return tuple(figure for part in self.parts for figure in part.figures)


PARTS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "throughput": (
        "Throughput and efficiency",
        ("T2", "T2b", "T3", "T4"),
        ("throughput", "efficiency", "weak_efficiency"),
    ),
    "time": ("Where the time of an iteration goes", ("T5", "T6"), ("phases",)),
    "workload": ("When the batch changed with the runners", ("T7",), ()),
    LEARNING: (
        "What was learnt, and what it cost",
        ("T8",),
        (
            "score",
            "return_steps",
            "return_wall_clock",
            "steps_to_target",
            "time_to_target",
            "front",
            "importance",
        ),
    ),
    "models": ("What the models predict", ("T9",), ()),
    "recommendation": ("How many runners", ("T10",), ()),
    "holdup": ("Does the setting hold up?", ("T11",), ()),
}
"""Key -> title, tables and figures of each part, in the order of the report; what is in none comes last."""


def build(
    data: StudyData,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    *,
    refusals: Sequence[str] = (),
    clip: Clip | None = None,
) -> Report:
    """Return the report of a study.

    Args:
        data: The study.
        tables: Its tables, in any order; those that are empty say why.
        figures: Its figures, in any order; those that are not drawn say why.
        refusals: Efficiencies that were refused, as sentences with the command that would help.
        clip: The film of the best policy.
    """
    by_key = {table.key: table for table in tables}
    sheet = by_key.get(SHEET)
    told = list(refusals[:MOST_REFUSALS])
    if len(refusals) > MOST_REFUSALS:
        told.append(f"{len(refusals) - MOST_REFUSALS} more comparisons are refused; T2 lists them.")
    definitions = dict.fromkeys(each for table in tables for each in table.definitions)
    return Report(
        name=data.name,
        source=data.source,
        summary=sheet.conclusion if sheet is not None else data.name,
        refusals=tuple(told),
        conclusions=tuple(_conclusions(by_key, kind=data.kind, refused=bool(refusals))),
        parts=tuple(_parts(tables, figures, asked=_asked(by_key, data.kind)[1])),
        limits=tuple(limits(data, tables, figures)),
        definitions=tuple(definitions),
        sheet=sheet,
        acknowledgement=acknowledgement(data),
        clip=clip,
    )


def _asked(tables: Mapping[str, Table], kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the table and the parts that answer what a study was run for, which come before all others.

    A search without a measured clock was run for what it learnt; if it has one, for the times too: in their order.
    """
    if kind == "holdup":
        return "T11", ("holdup", LEARNING)
    unmeasured = (table := tables.get("T2")) is None or table.empty
    learnt = (table := tables.get("T8")) is not None and not table.empty
    return ("T8", (LEARNING,)) if kind == "search" and unmeasured and learnt else ("", ())


def _conclusions(tables: Mapping[str, Table], *, kind: str, refused: bool) -> Iterator[Statement]:
    """Yield the conclusion of each leading table.

    A refusal that heads the report is not said twice, and that a study without hold-up stages has no certificate is
    no finding.
    """
    asked, _ = _asked(tables, kind)
    for key in dict.fromkeys((*([asked] if asked else []), *FIRST)):
        table = tables.get(key)
        if table is None or (table.empty and ((key == "T2" and refused) or (key == "T11" and kind != "holdup"))):
            continue
        yield Statement(table=key, text=table.conclusion)


def _parts(tables: Sequence[Table], figures: Sequence[Figure], *, asked: Sequence[str]) -> Iterator[Part]:
    left_tables = {table.key: table for table in tables if table.key != SHEET}
    left_figures = {figure.key: figure for figure in figures}
    for key in dict.fromkeys((*asked, *PARTS)):
        title, table_keys, figure_keys = PARTS[key]
        some = tuple(left_tables.pop(each) for each in table_keys if each in left_tables)
        pictures = tuple(left_figures.pop(each) for each in figure_keys if each in left_figures)
        if some or pictures:
            yield Part(key=key, title=title, tables=some, figures=pictures)
    if left_tables or left_figures:
        rest, pictures = tuple(left_tables.values()), tuple(left_figures.values())
        yield Part(key="more", title="More", tables=rest, figures=pictures)
