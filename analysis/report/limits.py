"""What the numbers of a report do not mean, and what it lacks: plain sentences from the data. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.figures.figure import Figure
from analysis.figures.settings import arms
from analysis.figures.words import counted
from analysis.load.study_data import StudyData
from analysis.tables.table import Table

CLOCKS = {
    "oversubscribed": "more processes than cores",
    "emulated": "the lanes of all runners stepped in few processes: the learning is theirs, the clock is not",
    "tainted": "the trial failed, a runner was lost, a sample dropped, or others worked on its nodes",
}
PREDICTION = (
    "What a model says of numbers of runners that nobody ran is a prediction, and labelled so. It holds for this "
    "machine, this network and this environment."
)
MEASURED = (
    "`measured` means that the study gave every process a core of its own, or that its environments wait, and that "
    "nobody else used those cores (studies before 0.5.0 did not look). Who shares memory, caches or the network is not "
    "seen."
)
GREEDY = (
    "Returns are those of greedy evaluations on fixed seeds. A study compares the settings that it ran; it does not "
    "say that there is no better one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One kind of limit, with its sentences."""

    title: str
    items: tuple[str, ...]


def limits(data: StudyData, tables: Sequence[Table], figures: Sequence[Figure]) -> Iterator[Limit]:
    """Yield the limits of a study, what is missing first; a kind without a sentence is left out."""
    kinds = (
        ("Missing or unfinished", data.problems),
        ("Failed runs: they count as score 0 and as target not reached", tuple(_failed(data.runs))),
        ("Clocks", tuple(_clocks(data.runs))),
        ("Seeds", tuple(_seeds(data))),
        ("Rows left out of tables", tuple(_left_out(tables))),
        ("Not shown, and why", tuple(_missing(tables, figures))),
        ("What the numbers do not mean", tuple(_meaning(data, tables))),
    )
    for title, items in kinds:
        if items:
            yield Limit(title=title, items=tuple(items))


def _failed(runs: pd.DataFrame) -> Iterator[str]:
    failed = runs[runs["status"].eq("failed").fillna(False)]
    reasons = failed["reason"].fillna("no reason recorded").astype(str).map(lambda text: " ".join(text.split())[:200])
    for reason, count in reasons.value_counts().head(5).items():
        yield f"{counted(int(count), 'run')}: {reason}"


def _clocks(runs: pd.DataFrame) -> Iterator[str]:
    counts = runs["timing"].value_counts()
    measured = int(counts.get("measured", 0))
    yield f"{measured:,} of {counted(len(runs), 'run')} with a measured clock: only these are in tables of times."
    for name, meaning in CLOCKS.items():
        if count := int(counts.get(name, 0)):
            yield f"{counted(count, 'run')} {name}: {meaning}. Their times and rates say nothing about scaling."


def _seeds(data: StudyData) -> Iterator[str]:
    found = arms(data.runs) if data.kind != "throughput" else []
    single = sum(len(arm.trials) == 1 for arm in found)
    if single:
        yield (
            f"{single:,} of {counted(len(found), 'cell')} (one setting at one number of runners) with a single "
            "seed: n=1, no interval. The best of many single runs is luck."
        )
    small = sum(2 <= len(arm.trials) < 5 for arm in found)
    if small:
        wide = "intervals of means are wide, steps to target have none, and rare failures go unseen"
        yield f"{counted(small, 'cell')} with 2 to 4 seeds: {wide}."


def _left_out(tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        reasons = [f"{count:,} {reason}" for reason, count in table.excluded.items() if count]
        if reasons:
            yield f"{table.key}: {'; '.join(reasons)}."


def _missing(tables: Sequence[Table], figures: Sequence[Figure]) -> Iterator[str]:
    for table in tables:
        if table.empty:
            yield f"{table.key}, {table.title}: {table.conclusion}"
    for figure in figures:
        if not figure.drawn:
            yield f"Figure “{figure.title}”: {figure.missing}"


def _meaning(data: StudyData, tables: Sequence[Table]) -> Iterator[str]:
    if any(table.key in ("T9", "T10") and not table.empty for table in tables):
        yield PREDICTION
    if bool(data.runs["timing"].eq("measured").fillna(False).any()):
        yield MEASURED
    if data.kind != "throughput":
        yield GREEDY
