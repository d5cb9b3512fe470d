"""What a study says: facts in one order, the setting to copy, the price list, and what is not known. No engine.

Nothing else in `analysis` decides what is best or phrases a finding: who shows one prints a `Fact`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.answers.answer import Answer, Fact, clocks, cpu_hours
from analysis.answers.holdup import holdup_answer
from analysis.answers.search import search_answer
from analysis.answers.throughput import main_workload, price_list, throughput_answer
from analysis.estimates.settings import runs_per_setting
from analysis.tables.table import number, percent
from study.text import count, one_line

if TYPE_CHECKING:
    from analysis.opened import Study

__all__ = ["Answer", "Fact", "answer_of"]

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


def answer_of(study: "Study", price_per_cpu_hour: float | None = None) -> Answer:
    """Return what a study says, whatever its kind, and whether it is finished, running or empty.

    With what a CPU-hour costs, in any currency, the study has a cost too, and so has each number of runners whose clock
    was measured. Without it costs are CPU-hours.
    """
    make = {"throughput": throughput_answer, "holdup": holdup_answer}.get(study.data.kind, search_answer)
    answer, workload = make(study), main_workload(study.estimates())
    prices = None if workload is None else price_list(workload, price_per_cpu_hour)
    findings = [*answer.findings, *(Fact(role="limit", text=text) for text in _limits(study))]
    if price_per_cpu_hour and (hours := cpu_hours(study.data)):
        text = f"At {price_per_cpu_hour:g} for a CPU-hour its trials cost {number(hours * price_per_cpu_hour)}."
        findings.append(Fact(role="support", text=text))
    return replace(answer, findings=tuple(findings), rows=answer.rows or prices, prices=prices)


def _limits(study: "Study") -> Iterator[str]:
    """Yield what the numbers of a study do not mean, what is unfinished first."""
    data, runs = study.data, study.data.runs
    yield from data.problems
    failed = runs.loc[runs["status"].eq("failed").fillna(False), "reason"].fillna("no reason recorded")
    counts_as = "a score of 0 and a target not reached" if runs["score"].notna().any() else "a target not reached"
    reasons = failed.map(lambda text: one_line(str(text), 200)).value_counts().head(MOST_REASONS)
    for reason, n in reasons.items():
        yield f"{count(int(n), 'failed run')}, counted as {counts_as}: {reason}"
    yield f"Clocks: {clocks(runs)}. Only runs with a measured clock are in tables of times."
    found = runs_per_setting(runs) if study.kind != "throughput" else []
    if single := found.count(1):
        were = f"{single:,} of {count(len(found), 'setting')} at a number of runners {'was' if single == 1 else 'were'}"
        yield f"{were} run once: no interval. The best of many single runs is luck."
    if few := sum(2 <= each < 5 for each in found):
        wide = "intervals of means are wide, steps to target have none, and rare failures go unseen"
        yield f"{count(few, 'setting')} with 2 to 4 seeds: {wide}."
    if len(predicted := study.estimates(basis=["predicted", "extrapolated"])):
        error = predicted.loc[predicted["quantity"] == "prediction_error", "value"]
        held_out = " Where a number of runners was held out, it was off by {} at the median."
        yield PREDICTION + (held_out.format(percent(error.iloc[0])) if len(error) else "")
    if runs["timing"].eq("measured").fillna(False).any():
        yield MEASURED
    if study.kind != "throughput":
        yield GREEDY
