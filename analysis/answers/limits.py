"""What the numbers of a study do not mean: failed runs, clocks, single seeds, predictions. Selects; pandas."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.answers.facts import Fact, clocks
from analysis.estimates.settings import runs_per_setting
from study.text import count

if TYPE_CHECKING:
    from analysis.opened import Study

MOST_REASONS = 5
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


def limits(study: "Study") -> Iterator[Fact]:
    """Yield what limits a study, what is unfinished first."""
    yield from (Fact(role="limit", text=text) for text in _texts(study))


def _texts(study: "Study") -> Iterator[str]:
    data, runs = study.data, study.data.runs
    yield from data.problems
    failed = runs.loc[runs["status"].eq("failed").fillna(False), "reason"].fillna("no reason recorded")
    counts_as = "a score of 0 and a target not reached" if runs["score"].notna().any() else "a target not reached"
    for reason, n in (
        failed.map(lambda text: " ".join(str(text).split())[:200]).value_counts().head(MOST_REASONS).items()
    ):
        yield f"{count(int(n), 'failed run')}, counted as {counts_as}: {reason}"
    yield f"Clocks: {clocks(runs)}. Only runs with a measured clock are in tables of times."
    found = runs_per_setting(runs) if study.kind != "throughput" else []
    if single := found.count(1):
        were = "was" if single == 1 else "were"
        yield (
            f"{single:,} of {count(len(found), 'setting')} at a number of runners {were} run once: no "
            "interval. The best of many single runs is luck."
        )
    if few := sum(2 <= each < 5 for each in found):
        yield (
            f"{count(few, 'setting')} with 2 to 4 seeds: intervals of means are wide, steps to target have none, and "
            "rare failures go unseen."
        )
    if study.estimates(basis=["predicted", "extrapolated"]).size:
        yield PREDICTION
    if runs["timing"].eq("measured").fillna(False).any():
        yield MEASURED
    if study.kind != "throughput":
        yield GREEDY
