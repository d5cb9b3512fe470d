"""What a report says, apart from how it looks: the answer, evidence in the order of its question, limits. No engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.answers import Answer, answer_of
from analysis.answers.progress import complete, progress
from analysis.estimates.results import Results
from analysis.figures import Importance, all_figures
from analysis.figures.figure import Figure
from analysis.load.study_data import StudyData
from analysis.report.clip import Clip
from analysis.report.limits import Limit, acknowledgement, limits
from analysis.scaling.selection import at_their_scale
from analysis.tables.catalogue import all_tables
from analysis.tables.cells import TableColumn
from analysis.tables.table import Table
from study.engine import engines_in_words

if TYPE_CHECKING:
    from analysis.opened import Study

SHEET = "T1"
LEARNING = "learning"
"""Key of the part with the learning curves, where the film stands."""
MOST_REFUSALS = 4
"""Refused comparisons that are named; T2 has them all."""
KINDS: Mapping[str, str] = {
    "search": "search",
    "throughput": "throughput study",
    "holdup": "hold-up study",
}
PARTS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "throughput": (
        "How speed grows with the runners",
        ("T2", "T3", "T4"),
        ("efficiency", "weak_efficiency"),
    ),
    "time": ("Where the time of an iteration goes", ("T5",), ("phases",)),
    "workload": ("When the batch changed with the runners", ("T7",), ()),
    "holdup": ("Does the setting hold up?", ("T11",), ("score",)),
    LEARNING: (
        "What was learnt, and what it cost",
        ("T8",),
        ("score", "return_steps", "return_wall_clock", "steps_to_target", "front", "importance"),
    ),
    "models": ("What the models predict", ("T9",), ()),
    "trials": ("Every trial", ("trials",), ()),
}
"""Key -> title, tables and figures of each part, in the order of a throughput study; what is in none comes last."""
FIRST: Mapping[str, tuple[str, ...]] = {
    "holdup": ("holdup", LEARNING, "trials"),
    "search": (LEARNING, "trials"),
}
"""Kind of study -> the parts that its question is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One question of the evidence, with the tables and figures that answer it."""

    key: str
    title: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Tables and figures that are not shown for one reason, or that one command would make."""

    reasons: Mapping[str, tuple[str, ...]]
    """Reason -> what is not shown for it."""
    command: str = ""
    """What would make all of them; empty where no command of this project helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report as a value: every writer prints the same one.

    Attributes:
        name: Of the study.
        source: Where it was read.
        summary: What the study is, in a sentence.
        answer: What it says.
        figure: The figure beside the answer; None where none helps.
        parts: The evidence: only tables with rows and figures that are drawn, each once.
        missing: What is not shown, by the command that would make it or else by its reason.
        refusals: Comparisons that are refused, with what to do instead.
        limits: What the numbers do not mean.
        definitions: Of every quantity in the tables, each once.
        columns: Heading -> what every column of a table means, each once.
        sheet: T1; None where there is none.
        acknowledgement: What a testbed asks to be said; empty where there is none.
        tables: Every table, the empty ones and those of the answer too.
        figures: Every figure, those that are not drawn too.
        clip: The film of the best policy, which stands beside its learning curve; None where nobody made one.
    """

    name: str
    source: str
    summary: str
    answer: Answer
    figure: Figure | None
    parts: tuple[Part, ...]
    missing: tuple[Missing, ...]
    refusals: tuple[str, ...]
    limits: tuple[Limit, ...]
    definitions: tuple[str, ...]
    columns: Mapping[str, str]
    sheet: Table | None
    acknowledgement: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    clip: Clip | None = None


def make_report(
    study: "Study",
    *,
    importance: Importance | str = "",
    clip: Clip | None = None,
    price_per_cpu_hour: float | None = None,
) -> Report:
    """Return the report of a study.

    Args:
        study: As `analysis.open` returns it.
        importance: Which parameters mattered, from whoever may import Optuna; or why that is not known.
        clip: The film of the study's best policy, if somebody made one.
        price_per_cpu_hour: What a CPU-hour costs, in any currency.
    """
    data, results = study.data, study.results
    tables = all_tables(results)
    figures = all_figures(study, importance=importance)
    answer = answer_of(study, price_per_cpu_hour)
    return build(data, tables, figures, answer=answer, refusals=tuple(_refusals(results)), clip=clip)


def build(
    data: StudyData,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    *,
    answer: Answer | None = None,
    refusals: Sequence[str] = (),
    clip: Clip | None = None,
) -> Report:
    """Return the report of a study from what it consists of."""
    answer = answer or Answer(kind=data.kind, sentence="No answer was asked for.")
    sheet = next((table for table in tables if table.key == SHEET), None)
    beside = next((each for each in figures if each.drawn and each.key == answer.figure), None)
    more = len(refusals) - MOST_REFUSALS
    told = [*refusals[:MOST_REFUSALS], *([f"{more} more comparisons are refused; T2 lists them."] if more > 0 else [])]
    shown = [table for table in (*answer.tables, *tables) if not table.empty]
    return Report(
        name=data.name,
        source=data.source,
        summary=_summary(data),
        answer=answer,
        figure=beside,
        parts=tuple(_parts(tables, figures, beside, FIRST.get(data.kind, ()))),
        missing=tuple(_missing(tables, figures)),
        refusals=tuple(told),
        limits=tuple(limits(data, tables)),
        definitions=tuple(dict.fromkeys(each for table in shown for each in table.definitions)),
        columns=_columns(column for table in shown for column in table.columns),
        sheet=sheet,
        acknowledgement=acknowledgement(data),
        tables=(*answer.tables, *tables),
        figures=tuple(figures),
        clip=clip,
    )


def _summary(data: StudyData) -> str:
    """Return `Hold-up study on Acrobot-v1: 259 trials with 10 to 64 runners.`, or how many trials have ended."""
    runs = at_their_scale(data.runs)
    environment = data.sheet.get("environment")
    where = f" on {environment['id']}" if isinstance(environment, Mapping) and environment.get("id") else ""
    trials = "1 trial" if len(runs) == 1 else f"{len(runs):,} trials"
    scales = sorted({int(each) for each in runs["num_env_runners"].dropna()})
    span = "" if not scales else f" with {scales[0]}" + (f" to {scales[-1]}" if len(scales) > 1 else "")
    unit = "" if not scales else " runner" if scales == [1] else " runners"
    engine = engines_in_words(runs["engine"].dropna())
    ended = "" if complete(data) else f"; {progress(data)}"
    return f"{KINDS.get(data.kind, data.kind).capitalize()}{where}: {trials}{span}{unit}{ended}; engine: {engine}."


def _parts(
    tables: Sequence[Table], figures: Sequence[Figure], beside: Figure | None, first: Sequence[str]
) -> Iterator[Part]:
    left_tables = {table.key: table for table in tables if table.key != SHEET and not table.empty}
    left_figures = {figure.key: figure for figure in figures if figure.drawn and figure is not beside}
    for key in dict.fromkeys((*first, *PARTS)):
        title, table_keys, figure_keys = PARTS[key]
        some = tuple(left_tables.pop(each) for each in table_keys if each in left_tables)
        pictures = tuple(left_figures.pop(each) for each in figure_keys if each in left_figures)
        if some or pictures:
            yield Part(key=key, title=title, tables=some, figures=pictures)
    if left_tables or left_figures:
        rest, pictures = tuple(left_tables.values()), tuple(left_figures.values())
        yield Part(key="more", title="More", tables=rest, figures=pictures)


def _missing(tables: Sequence[Table], figures: Sequence[Figure]) -> Iterator[Missing]:
    """Yield what is not shown, each reason and each command once."""
    absent = [(each.command, each.conclusion, each.heading) for each in tables if each.empty]
    absent += [(each.command, each.missing, f"figure “{each.title}”") for each in figures if not each.drawn]
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for command, why, name in absent:
        reasons = groups.setdefault(command or why, {})
        reasons[why] = (*reasons.get(why, ()), name)
    commands = {command for command, *_ in absent}
    for key, reasons in groups.items():
        yield Missing(reasons=reasons, command=key if key in commands else "")


def _columns(columns: Iterator[TableColumn]) -> Mapping[str, str]:
    """Return heading -> meaning; a heading with several meanings has them all."""
    found: dict[str, list[str]] = {}
    for column in columns:
        meanings = found.setdefault(column.heading, [])
        if column.meaning and column.meaning not in meanings:
            meanings.append(column.meaning)
    return {heading: " Or: ".join(meanings) for heading, meanings in sorted(found.items()) if meanings}


def _refusals(results: Results) -> Iterator[str]:
    """Yield every refused comparison between two cells, with what helps: the parts of the ratio, or the command."""
    for refusal in results.strong.refusals:
        if refusal.second is None:
            continue  # nothing to compare is no refusal of a comparison
        if refusal.decomposition is not None and refusal.decomposition.sentence:
            yield f"{refusal.reason} {refusal.decomposition.sentence}"
        else:
            yield f"{refusal.reason} Run: `{refusal.command}`" if refusal.command else refusal.reason
