"""What the numbers of a report do not mean, and what a testbed asks to be said: sentences from the data. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.estimates.settings import runs_per_setting
from analysis.load.study_data import StudyData
from analysis.scaling.selection import CLOCKS
from analysis.tables.table import Table
from study.text import count

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


def limits(data: StudyData, tables: Sequence[Table]) -> Iterator[Limit]:
    """Yield the limits of a study, what is unfinished first; a kind without a sentence is left out."""
    scores = "score 0 and as " if data.runs["score"].notna().any() else ""
    kinds = (
        ("Missing or unfinished", data.problems),
        (f"Failed runs: they count as {scores}target not reached", tuple(_failed(data.runs))),
        ("Clocks", tuple(_clocks(data.runs))),
        ("Seeds", tuple(_seeds(data))),
        ("What the numbers do not mean", tuple(_meaning(data, tables))),
    )
    for title, items in kinds:
        if items:
            yield Limit(title=title, items=tuple(items))


def _failed(runs: pd.DataFrame) -> Iterator[str]:
    failed = runs[runs["status"].eq("failed").fillna(False)]
    reasons = failed["reason"].fillna("no reason recorded").astype(str).map(lambda text: " ".join(text.split())[:200])
    for reason, many in reasons.value_counts().head(5).items():
        yield f"{count(int(many), 'run')}: {reason}"


def _clocks(runs: pd.DataFrame) -> Iterator[str]:
    counts = runs["timing"].value_counts()
    measured = int(counts.get("measured", 0))
    yield f"{measured:,} of {count(len(runs), 'run')} with a measured clock: only these are in tables of times."
    for name, meaning in CLOCKS.items():
        if many := int(counts.get(name, 0)):
            yield f"{count(many, 'run')} {name}: {meaning}. Their times and rates say nothing about scaling."


def _seeds(data: StudyData) -> Iterator[str]:
    found = runs_per_setting(data.runs) if data.kind != "throughput" else []
    if single := found.count(1):
        yield (
            f"{single:,} of {count(len(found), 'cell')} (one setting at one number of runners) with a single "
            "seed: n=1, no interval. The best of many single runs is luck."
        )
    if small := sum(2 <= runs < 5 for runs in found):
        wide = "intervals of means are wide, steps to target have none, and rare failures go unseen"
        yield f"{count(small, 'cell')} with 2 to 4 seeds: {wide}."


def _meaning(data: StudyData, tables: Sequence[Table]) -> Iterator[str]:
    if any(table.key == "T9" and not table.empty for table in tables):
        yield PREDICTION
    if bool(data.runs["timing"].eq("measured").fillna(False).any()):
        yield MEASURED
    if data.kind != "throughput":
        yield GREEDY


def acknowledgement(data: StudyData) -> str:
    """Return the testbed's sentence if a driver or a node of the study was there, else an empty text."""
    return GRID5000 if any(_NODE.search(text) for text in _machines(data)) else ""


def _machines(data: StudyData) -> Iterator[str]:
    for place in _PLACES:
        yield from _texts(data.sheet.get(place))
    yield from (str(nodes) for nodes in data.runs["nodes"].dropna().unique())


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
