"""Whether the winner holds up: the rules of the protocol, applied to plain numbers. Pure.

The unit is the run on a test seed. A run that failed, or whose score is not a number, scores 0, is not solved and
never reaches the target: it is counted and never left out.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from study.designs.holdup.known import holdup_of
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
LEAST_MEASURED = 5
"""Runs with a measured clock that an arm needs at the least. Where both arms are alike and times exact, fewer say
"faster" too often: the interval of a ratio of few runs is too narrow."""
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
    wall_time_s: float | None = None
    """Training seconds in all."""
    time_to_target_s: float | None = None
    """None where the target was not reached."""
    env_steps_before_target: float | None = None
    """At the last evaluation below the target, before it was reached or the run ended; 0 where there was none. None
    where the times are exact."""
    time_before_target_s: float | None = None
    """The same in training seconds."""
    timing: str | None = None
    """Label of its times; only `measured` ones say anything about the clock."""

    @property
    def failed(self) -> bool:
        """Whether there is no score that counts."""
        return self.score is None or not math.isfinite(self.score)


def run_of(spec: StudySpec, row: TrialRow) -> Run:
    """Return what a trial that has ended came to, as its summary says."""
    final, summary = row.summary.get("final_return"), row.summary
    same = ("env_steps", "env_steps_to_target", "wall_time_s", "time_to_target_s")
    return Run(
        seed=row.seed,
        score=summary.get("score") if row.status == "finished" else None,
        solved=final is not None and final >= spec.target,
        timing=row.timing,
        **{name: summary.get(name) for name in same},
    )


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

    def times(self, name: str) -> list[float | None]:
        """Return a time of every run, one of `Run`'s fields; None for a failed run, which never gets there."""
        return [None if run.failed else getattr(run, name) for run in self.runs]

    @property
    def num_failed(self) -> int:
        """Runs without a score that counts."""
        return sum(run.failed for run in self.runs)

    @property
    def num_solved(self) -> int:
        """Runs that ended at or above the target."""
        return sum(run.solved and not run.failed for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What the verdict is about."""

    winner: Mapping[int, Arm]
    """Scale -> the winner there: the target and every unseen scale; others are not judged."""
    references: tuple[Arm, ...]
    """At the small scale: the best setting of that scale and the winner, or the one of them that is an arm. The winner
    is held against the better of them: a rule is kept where it is kept against each."""
    naive_growth: Arm | None = None
    """RLlib's defaults with the batch grown, at the target; None where it was no arm."""


def arms_of(found: Mapping[tuple[str, int], Arm], holdup: HoldUpSpec) -> Arms:
    """Return what the verdict is about, of all arms of a confirmation by name and scale."""
    small = ((name, holdup.small_scale) for name in (BEST_SMALL, WINNER))
    return Arms(
        winner={scale: found[WINNER, scale] for scale in (holdup.target_scale, *holdup.unseen_scales)},
        references=tuple(found[place] for place in small if place in found),
        naive_growth=found.get(("naive_growth", holdup.target_scale)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the rules hold the winner to, as the space says it."""

    target: int
    """The target scale."""
    tolerance: float
    """Loss of mean score that is allowed, > 0."""
    solved_share: float
    """Share of runs that must be solved, in (0, 1]."""
    env_steps: int | None
    """Budget of a trial in environment steps; None where something else ends it. The comparison of steps to the target
    then ends with the shortest finished run of the two arms."""
    num_seeds: int
    """Runs that the winner is to have at each judged scale."""


def limits_of(spec: StudySpec) -> Limits:
    """Return the limits of a hold-up study."""
    holdup = holdup_of(spec)
    return Limits(
        target=holdup.target_scale,
        tolerance=holdup.tolerance,
        solved_share=holdup.solved_share,
        env_steps=spec.budget.env_steps,
        num_seeds=holdup.confirm.num_seeds,
    )


# --- the rules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule of the verdict."""

    name: str
    """`score_kept@46`, `solved@46`, `steps_saved@46` or `clock@46`, with the scale that it is about."""
    law: str
    value: Estimate | None
    """What the runs say; None where there is nothing to judge."""
    passed: bool | None
    """None: not decided, and not required."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study may say of its winner."""

    checks: tuple[Check, ...]
    learning: bool
    """Whether every rule of learning is kept."""
    clock: bool | None
    """Whether the target scale is faster; None where nothing was measured, or where the study stopped at half."""
    sentence: str


def judge(arms: Arms, limits: Limits) -> Verdict:
    """Return the verdict.

    Where the winner has fewer runs than `limits.num_seeds`, the confirmation stopped at half: rule 2 is then broken
    where more runs missed the target than it allows of them, and nothing else is judged.

    How often a setting holds up, by simulation, is in `evidence.md` beside this file: what loses 0.05 or more of its
    score is refused, and so is almost everything that fails, with a score of 0, in one run of ten. A setting whose runs
    merely miss the target in one of ten passes in 6 % of studies, and in 37 % without unseen scales; with five seeds
    even one that fails in one run of ten passes in 7 % and 38 %. A sound setting is refused too where seeds lie far
    apart.

    **Rare failures cannot be excluded.** 20 seeds without one come up in 67 % of studies where 2 % of runs fail and in
    36 % where 5 % do; 60 seeds, over three scales, in 30 % and 5 %. A single failure among 20 breaks the rule on the
    mean: it costs 0.05, and as much again in standard error. "19 of 20" forgives a run that missed the target, never
    a lost one.
    """
    target = limits.target
    checks = []
    for scale in [target, *sorted(set(arms.winner) - {target, arms.references[0].scale})]:
        winner = arms.winner[scale]
        checks += [_score_kept_by_all(winner, arms.references, limits.tolerance, LEVEL), _solved(winner, limits, LEVEL)]
    checks.append(_steps_saved(arms.winner[target], arms.naive_growth, limits.env_steps))
    clock = _strictest([_clock(arms.winner[target], small) for small in arms.references], arms.references)
    if any(len(arm.runs) < limits.num_seeds for arm in arms.winner.values()):
        *checks, clock = map(_of_a_half, (*checks, clock))
    learning = all(check.passed is not False for check in checks)
    sentence = "holds up" if learning else "does not hold up"
    if learning and not clock.passed:
        slow = f"clock: not shown to be faster, ratio {clock.value}"
        sentence += f" (learning); {'clock not measured' if clock.value is None else slow}"
    return Verdict(checks=(*checks, clock), learning=learning, clock=clock.passed, sentence=sentence)


def _of_a_half(check: Check) -> Check:
    """Return a check of a confirmation that stopped at half: only a rule that cannot be kept any more is judged."""
    if check.name.startswith("solved") and check.passed is False:
        return check
    return replace(check, passed=None, note="; ".join(part for part in ("stopped at half", check.note) if part))


def _strictest(checks: Sequence[Check], references: Sequence[Arm]) -> Check:
    """Return the check against the reference where the bound is lowest; one that is not decided comes first.

    The reference is the better of the arms in truth, not the one that looks better: the rule is kept where it is kept
    against each of them, which needs no correction (an intersection-union test: Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24, 1982).
    """
    pairs = zip(checks, references, strict=True)
    check, arm = min(pairs, key=lambda pair: -math.inf if pair[0].value is None else pair[0].value.low)
    if len(checks) == 1 or check.value is None:
        return check
    note = "; ".join(part for part in (f"against {arm.name}, where the bound is lowest", check.note) if part)
    return replace(check, note=note)


def _score_kept_by_all(winner: Arm, references: Sequence[Arm], tolerance: float, level: float) -> Check:
    return _strictest([_score_kept(winner, small, tolerance, level) for small in references], references)


def _score_kept(winner: Arm, small: Arm, tolerance: float, level: float) -> Check:
    difference = difference_of_means(winner.scores, small.scores, level=level, side="lower")
    spread = max(np.ptp(winner.scores), np.ptp(small.scores))
    notes = ["no run differs from another: nothing is known of the spread"] if spread == 0 else []
    notes += ["too few runs for a bound"] if not difference.has_interval else []
    return Check(
        name=f"score_kept@{winner.scale}",
        law=f"lower {100 * level:g}% bound of mean score(winner at {winner.scale}) - mean score(best at {small.scale}) "
        f"> -{tolerance:g}",
        value=difference,
        passed=difference.low > -tolerance,
        note="; ".join(notes),
    )


def num_solved_needed(num_runs: int, solved_share: float) -> int:
    """Return how many of `num_runs` must be solved."""
    return math.ceil(solved_share * num_runs - ROUNDING)


def _solved(winner: Arm, limits: Limits, level: float) -> Check:
    """Return whether enough of all runs are solved; not decided where it depends on runs to come."""
    num_seeds, missed = limits.num_seeds, len(winner.runs) - winner.num_solved
    needed = num_solved_needed(num_seeds, limits.solved_share)
    lost = missed > num_seeds - needed
    return Check(
        name=f"solved@{winner.scale}",
        law=f"at least {needed} of {num_seeds} test seeds solved at {winner.scale}",
        value=rate_interval(winner.num_solved, len(winner.runs), level=level),
        passed=False if lost else True if winner.num_solved >= needed else None,
        note=f"{missed} of the first {len(winner.runs)} missed" if lost and len(winner.runs) < num_seeds else "",
    )


def _steps_saved(winner: Arm, naive: Arm | None, env_steps: int | None) -> Check:
    check = Check(
        name=f"steps_saved@{winner.scale}",
        law=f"env_steps_to_target, naive growth over winner at {winner.scale}: the interval lies above 1",
        value=None,
        passed=None,
        note="naive_growth is no arm of this study",
    )
    if naive is None:
        return check
    horizon = horizon_of((winner, naive), env_steps)
    if not horizon:
        return replace(check, passed=False, note="no run of either arm has ended well")
    samples = [(arm.times("env_steps_to_target"), arm.times("env_steps_before_target")) for arm in (naive, winner)]
    value, gap = _ratio(samples, horizon)
    return replace(check, value=value, passed=value.low > 1, note=_of_evaluations(value, gap, "env steps"))


def horizon_of(arms: Sequence[Arm], env_steps: int | None) -> float | None:
    """Return the environment steps that every run of the arms had: the budget, or the shortest finished run."""
    ends = [run.env_steps for arm in arms for run in arm.runs if not run.failed and run.env_steps]
    return min([*ends, *([env_steps] if env_steps else [])], default=None)


_Times = Sequence[float | None]


def censored(times: _Times, horizon: float) -> tuple[FloatArray, BoolArray]:
    """Return times to target and whether each is one; a run that did not get there by `horizon` counts as `horizon`.

    Args:
        times: One per run; None where the target was not reached.
        horizon: End of the comparison, in the unit of `times`.
    """
    reached = np.array([time is not None and time <= horizon for time in times], dtype=np.bool_)
    ends = [time if time is not None and time <= horizon else horizon for time in times]
    return np.array(ends, dtype=np.float64), reached


def _since(befores: _Times, ends: FloatArray) -> FloatArray:
    """Return since when each run may have been at its target: a run whose times are exact, at its end."""
    pairs = zip(befores, ends, strict=True)
    return np.array([end if before is None else min(before, end) for before, end in pairs], dtype=np.float64)


def _ratio(samples: Sequence[tuple[_Times, _Times]], horizon: float) -> tuple[Estimate, float]:
    """Return the ratio of restricted means, first sample over second, and how far apart evaluations were at most.

    The target is looked for in evaluations: the interval holds all the time since the one before, so that a rule that
    rests on its lower end is kept wherever in between the runs got there.

    Args:
        samples: For each of the two arms, the times to the target, and those of the evaluations before.
        horizon: End of the comparison.
    """
    (first, one), (second, two) = (censored(times, horizon) for times, _ in samples)
    since = [_since(befores, ends) for (_, befores), ends in zip(samples, (first, second), strict=True)]
    gaps = np.concatenate([(first - since[0])[one], (second - since[1])[two]])
    exact = bool((since[0] == first).all() and (since[1] == second).all())
    value = ratio_of_restricted_means(
        first,
        one,
        second,
        two,
        horizon=horizon,
        level=LEVEL,
        first_since=None if exact else since[0],
        second_since=None if exact else since[1],
    )
    return value, float(gaps.max(initial=0.0))


def _of_evaluations(value: Estimate, gap: float, unit: str) -> str:
    """Return what the evaluations leave open; empty where the times are exact."""
    if not gap:
        return ""
    note = f"evaluations are up to {gap:,.0f} {unit} apart, and the interval holds the time between two"
    at_least = math.isfinite(value.low) and not math.isfinite(value.high)
    return f"at least {value.low:.2f}: {note}" if at_least else note


def _clock(winner: Arm, small: Arm) -> Check:
    """Compare training seconds to the target, up to the end of the shortest run: after it not all runs were observed.

    A failed run never reaches the target, whatever its label: a failure taints the label, and must not leave the
    sample by it. Runs that ended well with another label than `measured` are left out, and counted.
    """
    check = Check(
        name=f"clock@{winner.scale}",
        law=f"time_to_target_s, best at {small.scale} over winner at {winner.scale}: the interval lies above 1",
        value=None,
        passed=None,
    )
    arms = small, winner
    measured = [[run for run in arm.runs if run.timing == "measured" and not run.failed] for arm in arms]
    if min(len(runs) for runs in measured) < LEAST_MEASURED:
        counts = f"{len(measured[0])} measured runs at {small.scale}, {len(measured[1])} at {winner.scale}"
        counts += f"; {LEAST_MEASURED} of each are needed" if any(measured) else ""
        return replace(check, note=f"clock not measured: {counts}")
    horizon = min((run.wall_time_s for runs in measured for run in runs if run.wall_time_s), default=0.0)
    if horizon <= 0:
        return replace(check, note="clock not measured: no training time")
    samples: list[tuple[_Times, _Times]] = []
    for arm, runs in zip(arms, measured, strict=True):
        lost = [None] * arm.num_failed
        samples.append(
            ([*(run.time_to_target_s for run in runs), *lost], [*(run.time_before_target_s for run in runs), *lost])
        )
    value, gap = _ratio(samples, horizon)
    left_out = len(small.runs) + len(winner.runs) - value.n
    notes = [f"{left_out} runs left out: their times are not measured"] if left_out else []
    if any(time is not None and time > horizon for times, _ in samples for time in times):
        notes.append(f"cut at {horizon:,.0f} s, the end of the shortest run, which understates a difference")
    notes += [note] if (note := _of_evaluations(value, gap, "s")) else []
    return replace(check, value=value, passed=value.low > 1, note="; ".join(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Halfway:
    """What the first half of a confirmation has decided."""

    lost: bool
    """Whether rule 2 is broken at some scale, however the runs end that are still to come."""
    references: bool
    """Whether the score is kept at every scale, so that the references at the small scale need no more runs."""
    naive_growth: bool
    """Whether steps are saved, so that rule 3 needs no more runs of naive growth."""


def halfway(arms: Arms, limits: Limits, *, rng: np.random.Generator) -> Halfway:
    """Return what is decided, at `LEVEL_HALF`.

    Rule 1 by Welch's bound. Rule 3 by a permutation test of the environment steps to the target, of the earliest times
    of naive growth that its evaluations allow against the recorded ones of the winner: a bootstrap of five runs has no
    tail of 0.1 %. The test is exact where all assignments are tried; of 10 runs and 5 the least p-value is 1 in 3,003.

    Args:
        arms: The runs of the first half.
        limits: What the rules hold the winner to.
        rng: Source of the permutations where there are too many assignments to try all.
    """
    winners, naive, p_value = arms.winner.values(), arms.naive_growth, 1.0
    if naive is not None and (horizon := horizon_of((arms.winner[limits.target], naive), limits.env_steps)):
        ends, _ = censored(naive.times("env_steps_to_target"), horizon)
        recorded, _ = censored(arms.winner[limits.target].times("env_steps_to_target"), horizon)
        earliest = _since(naive.times("env_steps_before_target"), ends)
        p_value = better_with_permutation(earliest, recorded, rng=rng, num_resamples=NUM_PERMUTATIONS)
    kept = (_score_kept_by_all(winner, arms.references, limits.tolerance, LEVEL_HALF) for winner in winners)
    return Halfway(
        lost=any(_solved(winner, limits, LEVEL_HALF).passed is False for winner in winners),
        references=all(check.passed for check in kept),
        naive_growth=p_value <= 1 - LEVEL_HALF + ROUNDING,
    )


# --- the baselines ---------------------------------------------------------------------------------------------------


def compare(
    winner: Arm,
    baselines: Sequence[Arm],
    *,
    rng: np.random.Generator,
    num_resamples: int = NUM_PERMUTATIONS,
    level: float = LEVEL,
    stopped: Collection[str] = (),
    screening: str = "",
) -> dict[str, Any]:
    """Return the winner's score against each baseline's at the target scale: information, no part of the verdict.

    `rows` has for each baseline the `difference` of mean scores with a two-sided interval, not corrected; the `p_value`
    of a one-sided permutation test, None with fewer than two runs; `p_adjusted`, corrected by Holm; whether it says
    `better`; a `note` where a reader must know one. `better_than_every` is of the baselines that were confirmed.

    20 runs against 10 of each of three baselines, simulated: where all are alike, the winner is called better than
    some of them in 4.7 % of studies, where at most 5 % are allowed; where it is better by one standard deviation of the
    seeds, than a given one in 73 % and than all three in 59 %; by 1.5 standard deviations, in 98 % and 95 %
    (`tests/unit/test_verdict.py`).

    The test asks whether the runs come from one distribution. It is no test of equal means with unequal spread: read
    the interval beside it, and the share of solved runs.

    Args:
        winner: At the target scale.
        baselines: At the target scale.
        rng: Source of the permutations.
        num_resamples: Permutations.
        level: Of the intervals, and one less the error rate of all comparisons together, in (0, 1).
        stopped: Names of the baselines that stopped after their first half.
        screening: How these baselines were chosen, in brackets behind the sentence; empty for nothing.
    """
    if not baselines:
        return {"rows": {}, "better_than_every": False, "sentence": "no baseline was run"}
    p_values = [
        better_with_permutation(winner.scores, arm.scores, rng=rng, num_resamples=num_resamples)
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
    sentence += f" ({screening})" if screening else ""
    return {"rows": rows, "better_than_every": not open_, "sentence": sentence}
