"""Whether the winner holds up: the rules of the protocol, applied to plain numbers. Pure.

The unit is the run on a test seed. A run that failed, or whose score is not a number, scores 0, is not solved and
never reaches the target: it is counted and never left out.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from study.designs.holdup.arms import NAIVE_GROWTH
from study.records.ledger import TrialRow
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, WINNER
from study.space.spec import StudySpec
from study.statistics import (
    BoolArray,
    Estimate,
    FloatArray,
    better_with_permutation,
    difference_of_means,
    holm,
    rate_interval,
    ratio_of_restricted_means,
)

LEVEL_HALF, LEVEL = 0.999, 0.951
"""Levels after the first half of the confirmation, and at its end. An arm that the winner is compared with stops after
its first half only where what it is there for is shown at the first level; the verdict holds at the second one. So both
errors together are at most 5 % for rule 1, for rule 3, and for the comparison with all baselines (Bonferroni), as far
as each method has its level: Welch's bound for normal scores, a permutation test exactly."""
NUM_PERMUTATIONS = 9_999
"""Permutations of a comparison: the least p-value is then 1 in 10,000."""
ROUNDING = 1e-9
"""Tolerance for the error of floats before a comparison or `ceil`: 0.55 * 20 is a little more than 11."""
STOPPED_EARLY = "stopped early because clearly worse: the difference is overstated"


# --- what runs came to -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one trial of an arm came to."""

    seed: int
    score: float | None
    """As the space scales it; None, or not a number, where the run failed."""
    solved: bool
    """Whether `final_return` reached the target."""
    env_steps: float | None = None
    """Environment steps trained on; None where the run failed before the first."""
    env_steps_to_target: float | None = None
    """None where the target was not reached."""
    env_steps_before_target: float | None = None
    """At the last evaluation below the target, before it was reached or the run ended; 0 where there was none. None
    where the steps are exact."""

    @property
    def failed(self) -> bool:
        """Whether there is no score that counts."""
        return self.score is None or not math.isfinite(self.score)


def run_of(spec: StudySpec, row: TrialRow, before: float | None = None) -> Run:
    """Return what a trial that has ended came to, as its summary says; `before` is `Run.env_steps_before_target`."""
    final, summary = row.summary.get("final_return"), row.summary
    return Run(
        seed=row.seed,
        score=summary.get("score") if row.status == "finished" else None,
        solved=final is not None and final >= spec.target,
        env_steps=summary.get("env_steps"),
        env_steps_to_target=summary.get("env_steps_to_target"),
        env_steps_before_target=before,
    )


def run_at_half(spec: StudySpec, row: TrialRow) -> Run:
    """Return what a trial came to; its steps to the target are known to two evaluations, which is never too well."""
    run, between = run_of(spec, row), math.inf
    if spec.budget.env_steps is not None:
        between = spec.budget.env_steps / spec.evaluation.num_evaluations + row.setting["train_batch_size"]
    end = run.env_steps_to_target or run.env_steps or 0.0
    return replace(run, env_steps_before_target=max(end - 2 * between, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The runs of one setting at one scale, each on a test seed of its own."""

    name: str
    scale: int
    runs: tuple[Run, ...]

    @property
    def scores(self) -> FloatArray:
        """One score per run, shape (runs,); 0 for a failed one."""
        return np.array([0.0 if run.failed else run.score for run in self.runs], dtype=np.float64)

    def steps(self, name: str) -> list[float | None]:
        """Return one of `Run`'s fields of every run; None for a failed run, which never gets there."""
        return [None if run.failed else getattr(run, name) for run in self.runs]

    @property
    def num_failed(self) -> int:
        """Runs without a score that counts."""
        return sum(run.failed for run in self.runs)

    @property
    def num_solved(self) -> int:
        """Runs that ended at or above the target."""
        return sum(run.solved and not run.failed for run in self.runs)


Arms = Mapping[tuple[str, int], Arm]
"""(name, scale) -> arm."""


def arms_of(rows: Iterable[TrialRow], to_run: Callable[[TrialRow], Run]) -> dict[tuple[str, int], Arm]:
    """Return the arms of the trials of a confirmation, their runs by seed, in the order of the first trials."""
    groups: dict[tuple[str, int], list[TrialRow]] = {}
    for row in rows:
        groups.setdefault((row.anchor or "", row.num_env_runners), []).append(row)
    return {
        (name, scale): Arm(
            name=name, scale=scale, runs=tuple(to_run(row) for row in sorted(here, key=lambda row: row.seed))
        )
        for (name, scale), here in groups.items()
    }


# --- the rules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule of the verdict at one scale."""

    name: str
    """`score_kept@46`, `solved@46` or `steps_saved@46`, with the scale that it is about."""
    law: str
    value: Estimate | None
    """What the runs say; None where there is nothing to judge."""
    passed: bool | None
    """None: not decided, and not required."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study may say of its winner; `learning`: whether every rule is kept, all of which are about learning."""

    checks: tuple[Check, ...]
    learning: bool
    sentence: str


def _judged(arms: Arms, holdup: HoldUpSpec) -> list[Arm]:
    return [arms[WINNER, scale] for scale in (holdup.target_scale, *sorted(holdup.unseen_scales))]


def _references(arms: Arms, holdup: HoldUpSpec) -> list[Arm]:
    """Return the arms at the small scale: its best setting and the winner, or the one of them that is an arm."""
    return [arms[name, holdup.small_scale] for name in (BEST_SMALL, WINNER) if (name, holdup.small_scale) in arms]


def score_kept(arms: Arms, holdup: HoldUpSpec, env_steps: int | None, level: float) -> Iterator[Check]:
    """Rule 1: the winner's mean score is hardly below that of the better arm at the small scale, at every scale.

    The better arm is so in truth, it is not the one that looks better: the rule is kept where it is kept against each
    of them, which needs no correction (an intersection-union test: Berger, "Multiparameter hypothesis testing and
    acceptance sampling", Technometrics 24, 1982). The check is the one where the bound is lowest.
    """
    for winner in _judged(arms, holdup):
        references = _references(arms, holdup)
        found = [difference_of_means(winner.scores, small.scores, level=level, side="lower") for small in references]
        value, small = min(zip(found, references, strict=True), key=lambda pair: pair[0].low)
        notes = [f"against {small.name}, where the bound is lowest"] if len(found) > 1 else []
        if max(np.ptp(winner.scores), np.ptp(small.scores)) == 0:
            notes.append("no run differs from another: nothing is known of the spread")
        notes += [] if value.has_interval else ["too few runs for a bound"]
        yield Check(
            name=f"score_kept@{winner.scale}",
            law=f"lower {100 * level:g}% bound of mean score(winner at {winner.scale}) - mean score(best at "
            f"{small.scale}) > -{holdup.tolerance:g}",
            value=value,
            passed=value.low > -holdup.tolerance,
            note="; ".join(notes),
        )


def num_solved_needed(num_runs: int, solved_share: float) -> int:
    """Return how many of `num_runs` must be solved."""
    return math.ceil(solved_share * num_runs - ROUNDING)


def solved(arms: Arms, holdup: HoldUpSpec, env_steps: int | None, level: float) -> Iterator[Check]:
    """Rule 2: enough of all runs are solved, at every scale; not decided where it depends on runs to come."""
    for winner in _judged(arms, holdup):
        num_seeds, missed = holdup.confirm.num_seeds, len(winner.runs) - winner.num_solved
        needed = num_solved_needed(num_seeds, holdup.solved_share)
        lost = missed > num_seeds - needed
        yield Check(
            name=f"solved@{winner.scale}",
            law=f"at least {needed} of {num_seeds} test seeds solved at {winner.scale}",
            value=rate_interval(winner.num_solved, len(winner.runs), level=level),
            passed=False if lost else True if winner.num_solved >= needed else None,
            note=f"{missed} of the first {len(winner.runs)} missed" if lost and len(winner.runs) < num_seeds else "",
        )


def steps_saved(arms: Arms, holdup: HoldUpSpec, env_steps: int | None, level: float) -> Iterator[Check]:
    """Rule 3: naive growth needs more steps to the target, at the target scale; not required where it is no arm.

    The target is looked for in evaluations: the interval holds all the steps since the one before, so that the rule is
    kept wherever in between the runs got there.
    """
    target = holdup.target_scale
    winner, naive = arms[WINNER, target], arms.get((NAIVE_GROWTH, target))
    check = Check(
        name=f"steps_saved@{target}",
        law=f"env_steps_to_target, naive growth over winner at {target}: the interval lies above 1",
        value=None,
        passed=None,
        note="naive_growth is no arm of this study",
    )
    if naive is None:
        yield check
        return
    horizon = horizon_of((winner, naive), env_steps)
    if not horizon:
        yield replace(check, passed=False, note="no run of either arm has ended well")
        return
    (first, one), (second, two) = (censored(arm, horizon) for arm in (naive, winner))
    since = [_since(arm, ends) for arm, ends in ((naive, first), (winner, second))]
    exact = bool((since[0] == first).all() and (since[1] == second).all())
    between: dict[str, Any] = {} if exact else {"first_since": since[0], "second_since": since[1]}
    value = ratio_of_restricted_means(first, one, second, two, horizon=horizon, level=level, **between)
    note = ""
    if gap := float(np.concatenate([(first - since[0])[one], (second - since[1])[two]]).max(initial=0.0)):
        note = f"evaluations are up to {gap:,.0f} env steps apart, and the interval holds the time between two"
        if math.isfinite(value.low) and not math.isfinite(value.high):
            note = f"at least {value.low:.2f}: {note}"
    yield replace(check, value=value, passed=value.low > 1, note=note)


RULES = (score_kept, solved, steps_saved)
"""What it is to hold up. A rule takes the arms, the section `holdup`, the budget of a trial in environment steps (None
where something else ends it) and a level, and yields a check for every scale that it is about."""


def horizon_of(arms: Iterable[Arm], env_steps: int | None) -> float | None:
    """Return the environment steps that every run of the arms had: the budget, or the shortest finished run."""
    ends = [run.env_steps for arm in arms for run in arm.runs if not run.failed and run.env_steps]
    return min([*ends, *([env_steps] if env_steps else [])], default=None)


def censored(arm: Arm, horizon: float) -> tuple[FloatArray, BoolArray]:
    """Return each run's steps to the target and whether it got there; one that did not by `horizon` counts as that."""
    steps = arm.steps("env_steps_to_target")
    reached = np.array([each is not None and each <= horizon for each in steps], dtype=np.bool_)
    ends = [each if each is not None and each <= horizon else horizon for each in steps]
    return np.array(ends, dtype=np.float64), reached


def _since(arm: Arm, ends: FloatArray) -> FloatArray:
    """Return since when each run may have been at its target: a run whose steps are exact, at its end."""
    pairs = zip(arm.steps("env_steps_before_target"), ends, strict=True)
    return np.array([end if before is None else min(before, end) for before, end in pairs], dtype=np.float64)


def judge(arms: Arms, holdup: HoldUpSpec, env_steps: int | None) -> Verdict:
    """Return the verdict.

    Where the winner has fewer runs than `holdup.confirm.num_seeds`, the confirmation stopped at half: rule 2 is then
    broken where more runs missed the target than it allows of them, and nothing else is judged.

    How often a setting holds up, by simulation, is in `evidence.md` beside this file.
    """
    checks = [check for rule in RULES for check in rule(arms, holdup, env_steps, LEVEL)]
    if any(len(arm.runs) < holdup.confirm.num_seeds for arm in _judged(arms, holdup)):
        note = "stopped at half"
        checks = [
            each if _is_lost(each) else replace(each, passed=None, note="; ".join(filter(None, (note, each.note))))
            for each in checks
        ]
    learning = all(check.passed is not False for check in checks)
    return Verdict(checks=tuple(checks), learning=learning, sentence="holds up" if learning else "does not hold up")


def _is_lost(check: Check) -> bool:
    return check.name.startswith("solved@") and check.passed is False


# --- after the first half --------------------------------------------------------------------------------------------


def halfway(arms: Arms, holdup: HoldUpSpec, env_steps: int | None, *, seed: int) -> set[tuple[str, int]] | None:
    """Return name and scale of the arms that run no more, at `LEVEL_HALF`; None where rule 2 cannot be kept any more.

    The winner runs on at every judged scale: only all runs together can refuse a setting that fails in one run of
    twenty. The arms that it is compared with stop where all that they are there for is shown: the references at the
    small scale where rule 1 is kept at every scale by Welch's bound, a baseline where the winner's score is better.
    Naive growth stops where steps are saved besides, by a permutation test of the earliest steps that its evaluations
    allow against the recorded ones of the winner: a bootstrap of five runs has no tail of 0.1 %. The test is exact
    where all assignments are tried; of 10 runs and 5 the least p-value is 1 in 3,003.

    Args:
        arms: The runs of the first half.
        holdup: The section of the space.
        env_steps: Budget of a trial.
        seed: Of the permutations where there are too many assignments to try all.
    """
    if any(map(_is_lost, solved(arms, holdup, env_steps, LEVEL_HALF))):
        return None
    target, small = holdup.target_scale, holdup.small_scale
    baselines = [arm for (name, _), arm in arms.items() if name not in (WINNER, BEST_SMALL)]
    rng = np.random.default_rng([seed, 3])
    compared = compare(arms[WINNER, target], baselines, rng=rng, level=LEVEL_HALF)
    stopped = {(name, target) for name, row in compared["rows"].items() if row["better"]}
    if (NAIVE_GROWTH, target) in stopped:
        winner, naive, p_value = arms[WINNER, target], arms[NAIVE_GROWTH, target], 1.0
        if horizon := horizon_of((winner, naive), env_steps):
            earliest = _since(naive, censored(naive, horizon)[0])
            rng, recorded = np.random.default_rng([seed, 4]), censored(winner, horizon)[0]
            p_value = better_with_permutation(earliest, recorded, rng=rng, num_resamples=NUM_PERMUTATIONS)
        if p_value > 1 - LEVEL_HALF + ROUNDING:
            stopped.remove((NAIVE_GROWTH, target))
    if all(check.passed for check in score_kept(arms, holdup, env_steps, LEVEL_HALF)):
        stopped |= {(arm.name, small) for arm in _references(arms, holdup)}
    return stopped


# --- the baselines ---------------------------------------------------------------------------------------------------


def compare(
    winner: Arm,
    baselines: Sequence[Arm],
    *,
    rng: np.random.Generator,
    level: float = LEVEL,
    stopped: Collection[str] = (),
) -> dict[str, Any]:
    """Return the winner's score against each baseline's at the target scale: information, no part of the verdict.

    `rows` has for each baseline the `difference` of mean scores with a two-sided interval, not corrected; the `p_value`
    of a one-sided permutation test, None with fewer than two runs; `p_adjusted`, corrected by Holm; whether it says
    `better`. The test asks whether the runs come from one distribution, not whether means of unequal spread are equal.

    Args:
        winner: At the target scale, as the baselines are.
        baselines: Which it is compared with.
        rng: Source of the permutations.
        level: Of the intervals, and one less the error rate of all comparisons together.
        stopped: Names of the baselines that stopped after their first half.
    """
    if not baselines:
        return {"rows": {}, "sentence": "no baseline was run"}
    p_values = [
        better_with_permutation(winner.scores, arm.scores, rng=rng, num_resamples=NUM_PERMUTATIONS)
        if min(len(winner.runs), len(arm.runs)) > 1
        else None
        for arm in baselines
    ]
    adjusted, rows = holm([1.0 if p_value is None else p_value for p_value in p_values]), dict[str, dict[str, Any]]()
    for arm, p_value, corrected in zip(baselines, p_values, adjusted, strict=True):
        rows[arm.name] = {
            "baseline": arm.name,
            "difference": difference_of_means(winner.scores, arm.scores, level=level),
            "p_value": p_value,
            "p_adjusted": None if p_value is None else float(corrected),
            "better": p_value is not None and bool(corrected <= 1 - level + ROUNDING),
        } | ({"note": STOPPED_EARLY} if arm.name in stopped else {})
    won, open_ = ([name for name, row in rows.items() if row["better"] is better] for better in (True, False))
    sentence = "not shown to be better than any baseline that was confirmed"
    if won:
        both = f"better than {', '.join(won)}; not shown to be better than {', '.join(open_)}"
        sentence = both if open_ else "better than each baseline that was confirmed"
    return {"rows": rows, "sentence": sentence}
