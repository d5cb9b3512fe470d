"""What a reader of a certificate has to know beside its figures, in sentences. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from study.designs.holdup.arms import Arm
from study.designs.holdup.choosing import REUSED
from study.designs.holdup.phases import PROTOCOL, holdup_of
from study.designs.holdup.verdict import LEVEL, LEVEL_HALF, Verdict
from study.records.ledger import Ledger
from study.records.records import StudyOpened
from study.space.settings import BEST_SMALL, STAGES, WINNER, WINNER_STOCK
from study.space.spec import StudySpec
from study.statistics import rate_interval
from study.text import listed


def notes(
    spec: StudySpec,
    ledger: Ledger,
    openings: Sequence[StudyOpened],
    arms: Mapping[tuple[str, int], Arm],
    verdict: Verdict,
    cpu_hours: Mapping[str, float],
) -> Iterator[str]:
    """Yield what a reader has to know beside the figures.

    Args:
        spec: Of a hold-up study.
        ledger: What its records add up to.
        openings: The start of every session.
        arms: (name, scale) -> the runs of an arm on test seeds.
        verdict: The verdict.
        cpu_hours: Stage -> CPU-hours of training.
    """
    target, small = holdup_of(spec).target_scale, holdup_of(spec).small_scale
    count = len(arms[WINNER, target].runs)
    most = 1 - rate_interval(count, count).low
    yield f"Even where all {count} test seeds reach the target, up to {most:.0%} of runs may miss it (95 %)."
    judged = [scale for name, scale in arms if name == WINNER and scale != small]
    if half_decided(ledger).get("lost") is False:
        num_runs = sum(len(arms[WINNER, scale].runs) for scale in judged)
        solved = sum(arms[WINNER, scale].num_solved for scale in judged)
        most = 1 - rate_interval(solved, num_runs).low
        yield (
            f"{solved} of the winner's {num_runs} runs at {listed(judged)} runners reached the target: if runs miss "
            f"it equally often at all of them, at most {most:.1%} do (95 %, two-sided)."
        )
    if (BEST_SMALL, small) not in arms:
        yield f"The winner is also the best setting at {small} runners: it is its own reference there, in one arm."
    if any(row.execution == "emulated" for row in ledger.rows.values()):
        yield (
            "Emulated trials step the lanes of all runners in few processes: they learn the same, and their times "
            "are no facts about real runners. What these would reserve (`cpu_s_reserved`) is then not known."
        )
    if any(row.stage == "confirm" and row.scale is not None for row in ledger.rows.values()):
        yield (
            f"`{WINNER_STOCK}` is one of RLlib's own runners with the environments of all: not as many of its runners, "
            "which append more rows to a batch and take more gradient steps. Its clock is not that of the scale either."
        )
    if ("naive_growth", target) not in arms:
        yield "naive_growth is no arm of this study: its rule is not required."
    yield from _of_the_course(spec, ledger, openings, cpu_hours)
    if holdup_of(spec).measure is None:
        yield "The space has no `measure` stage: there are no trials for the clock alone."
    if not verdict.clock_measured:
        yield "No time to target was measured: nothing here says that more runners get there sooner."
    yield (
        "Environment steps and wall clock answer different questions; the table of evaluations is at equal "
        "environment steps."
    )


def _of_the_course(
    spec: StudySpec, ledger: Ledger, openings: Sequence[StudyOpened], cpu_hours: Mapping[str, float]
) -> Iterator[str]:
    yield f"The study follows version {PROTOCOL} of the protocol."
    yield (
        f"Every run of the confirmation plays {spec.evaluation.episodes} evaluation episodes of its own, which no "
        "other trial plays: intervals over runs hold the spread between runs and between episodes."
    )
    yield (
        f"The confirmation ran in two halves. Bounds of the verdict have the level {LEVEL:.1%}, what stops an arm "
        f"after its first half {LEVEL_HALF:.1%}: for rules 1 and 3 both errors together are at most 5 %. At half "
        "rule 3 is judged by a permutation test, which has its level exactly, rule 1 by Welch's bound, which has "
        "it for normal scores; at the end rule 3 rests on a bootstrap, whose level is approximate. "
        "Intervals of single arms are of the runs that there are, at 95 %."
    )
    for each in ledger.decisions:
        for name, trials in each.evidence.get(REUSED, {}).items():
            numbers = ", ".join(map(str, trials))
            yield f"`{name}` was not run again on {len(trials)} seeds: trials {numbers} ran the same before."
    halfway = half_decided(ledger)
    if halfway.get("lost"):
        yield (
            "No arm ran on after the first half: too many runs of the winner missed the target to keep rule 2. The "
            f"rest is not judged where more runs could change it, and baselines are compared at {LEVEL_HALF:.1%}."
        )
    elif halfway.get("stopped"):
        stopped = halfway["stopped"]
        worse = (
            " A baseline stops early because it is clearly worse: its difference from the winner is overstated."
            if any(name.partition("@")[0] not in (WINNER, BEST_SMALL) for name in stopped)
            else ""
        )
        yield f"Decided after the first half, and not run on: {', '.join(stopped)}.{worse}"
    commits = [
        f"{(git.get('commit') or 'unknown')[:12]}{' with changes' if git.get('dirty') else ''}"
        for opened in openings
        for git in (opened.provenance.get("git") or {},)
    ]
    if len(different := dict.fromkeys(commits)) > 1:
        yield f"The study ran under {len(different)} commits, not under one: {', '.join(different)}."
    budget = holdup_of(spec).cpu_hours
    spent = sum(cpu_hours[stage] for stage in STAGES if stage != "measure")
    if budget is not None and spent > budget:
        raised = ", or more where a resume raised it" if len(openings) > 1 else ""
        yield f"{spent:.2f} CPU-hours were spent up to the confirmation; the budget was {budget:g}{raised}."
    for each in ledger.decisions:
        if each.cancelled:
            reason = each.evidence.get("cancelled", "no reason is on record")
            yield f"{len(each.cancelled)} trials of `{each.phase}` were not run: {reason}."


def half_decided(ledger: Ledger) -> Mapping[str, Any]:
    """Return the evidence of the decision after the first half of the confirmation; empty where there was none."""
    return next((each.evidence for each in ledger.decisions if "stopped" in each.evidence), {})
