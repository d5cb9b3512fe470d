"""Whether the winner holds up: the rules of the protocol, applied to plain numbers. Pure.

The unit is the run on a test seed. A run that failed, or whose score is not a number, scores 0, is not solved and
never reaches the target: it is counted and never left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from study.designs.holdup.arms import Arm, Arms
from study.designs.holdup.phases import holdup_of
from study.space.spec import StudySpec
from study.statistics import (
    BoolArray,
    Estimate,
    FloatArray,
    better_with_permutation,
    difference_of_means,
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

    @property
    def clock_measured(self) -> bool:
        """Whether times of the target and of the small scale can be compared."""
        return any(check.name.startswith("clock") and check.value is not None for check in self.checks)


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
        kept = _score_kept_by_all(winner, arms.references, limits.tolerance, LEVEL)
        checks += [kept, _solved(winner, limits, LEVEL)]
    checks.append(_steps_saved(arms.winner[target], arms.naive_growth, limits.env_steps))
    clocks = [_clock(arms.winner[target], small) for small in arms.references]
    clock = _strictest(clocks, arms.references)
    if any(len(arm.runs) < limits.num_seeds for arm in arms.winner.values()):
        *checks, clock = map(_of_a_half, (*checks, clock))
    learning = all(check.passed is not False for check in checks)
    return Verdict(
        checks=(*checks, clock),
        learning=learning,
        clock=clock.passed,
        sentence=_sentence(learning=learning, clock=clock),
    )


def _of_a_half(check: Check) -> Check:
    """Return a check of a confirmation that stopped at half: only a rule that cannot be kept any more is judged."""
    if check.name.startswith("solved") and check.passed is False:
        return check
    return replace(check, passed=None, note="; ".join(part for part in ("stopped at half", check.note) if part))


def _sentence(*, learning: bool, clock: Check) -> str:
    if not learning:
        return "does not hold up"
    if clock.passed:
        return "holds up"
    if clock.value is None:
        return "holds up (learning); clock not measured"
    return f"holds up (learning); clock: not shown to be faster, ratio {clock.value}"


def _strictest(checks: Sequence[Check], references: Sequence[Arm]) -> Check:
    """Return the check against the reference where the bound is lowest; one that is not decided comes first.

    The reference is the better of the arms in truth, not the one that looks better: the rule is kept where it is kept
    against each of them, which needs no correction (an intersection-union test: Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24, 1982).
    """
    place = min(range(len(checks)), key=lambda index: -math.inf if (v := checks[index].value) is None else v.low)
    check, name = checks[place], references[place].name
    if len(checks) == 1 or check.value is None:
        return check
    note = "; ".join(part for part in (f"against {name}, where the bound is lowest", check.note) if part)
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
    name = f"steps_saved@{winner.scale}"
    law = f"env_steps_to_target, naive growth over winner at {winner.scale}: the interval lies above 1"
    if naive is None:
        return Check(name=name, law=law, value=None, passed=None, note="naive_growth is no arm of this study")
    horizon = horizon_of((winner, naive), env_steps)
    if not horizon:
        return Check(name=name, law=law, value=None, passed=False, note="no run of either arm has ended well")
    times, befores = (
        [arm.times(field) for arm in (naive, winner)] for field in ("env_steps_to_target", "env_steps_before_target")
    )
    value, gap = _ratio(times, befores, horizon)
    return Check(name=name, law=law, value=value, passed=value.low > 1, note=_of_evaluations(value, gap, "env steps"))


def horizon_of(arms: Sequence[Arm], env_steps: int | None) -> float | None:
    """Return the environment steps that every run of the arms had: the budget, or the shortest finished run."""
    ends = [run.env_steps for arm in arms for run in arm.runs if not run.failed and run.env_steps]
    return min([*ends, *([env_steps] if env_steps else [])], default=None)


def _ratio(
    times: Sequence[Sequence[float | None]], befores: Sequence[Sequence[float | None]], horizon: float
) -> tuple[Estimate, float]:
    """Return the ratio of restricted means, first sample over second, and how far apart evaluations were at most.

    The target is looked for in evaluations: the interval holds all the time since the one before, so that a rule that
    rests on its lower end is kept wherever in between the runs got there.
    """
    (first, one), (second, two) = (censored(sample, horizon) for sample in times)
    since = [
        np.array([end if before is None else min(before, end) for before, end in zip(each, ends, strict=True)])
        for each, ends in zip(befores, (first, second), strict=True)
    ]
    gaps = np.concatenate([(first - since[0])[one], (second - since[1])[two]])
    exact = all(bool((seen == ends).all()) for seen, ends in zip(since, (first, second), strict=True))
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


def censored(times: Sequence[float | None], horizon: float) -> tuple[FloatArray, BoolArray]:
    """Return times to target and whether each is one; a run that did not get there by `horizon` counts as `horizon`.

    Args:
        times: One per run; None where the target was not reached.
        horizon: End of the comparison, in the unit of `times`.
    """
    reached = np.array([time is not None and time <= horizon for time in times], dtype=np.bool_)
    ends = [time if time is not None and time <= horizon else horizon for time in times]
    return np.array(ends, dtype=np.float64), reached


def _clock(winner: Arm, small: Arm) -> Check:
    """Compare training seconds to the target, up to the end of the shortest run: after it not all runs were observed.

    A failed run never reaches the target, whatever its label: a failure taints the label, and must not leave the
    sample by it. Runs that ended well with another label than `measured` are left out, and counted.
    """
    name = f"clock@{winner.scale}"
    law = f"time_to_target_s, best at {small.scale} over winner at {winner.scale}: the interval lies above 1"
    measured = [[run for run in arm.runs if run.timing == "measured" and not run.failed] for arm in (small, winner)]
    if min(len(runs) for runs in measured) < LEAST_MEASURED:
        counts = f"{len(measured[0])} measured runs at {small.scale}, {len(measured[1])} at {winner.scale}"
        counts += f"; {LEAST_MEASURED} of each are needed" if any(measured) else ""
        return Check(name=name, law=law, value=None, passed=None, note=f"clock not measured: {counts}")
    horizon = min((run.wall_time_s for runs in measured for run in runs if run.wall_time_s), default=0.0)
    if horizon <= 0:
        return Check(name=name, law=law, value=None, passed=None, note="clock not measured: no training time")
    times, befores = (
        [
            [*(getattr(run, field) for run in runs), *[None] * arm.num_failed]
            for arm, runs in zip((small, winner), measured, strict=True)
        ]
        for field in ("time_to_target_s", "time_before_target_s")
    )
    value, gap = _ratio(times, befores, horizon)
    left_out = len(small.runs) + len(winner.runs) - value.n
    notes = [f"{left_out} runs left out: their times are not measured"] if left_out else []
    if any(time is not None and time > horizon for sample in times for time in sample):
        notes.append(f"cut at {horizon:,.0f} s, the end of the shortest run, which understates a difference")
    notes += [note] if (note := _of_evaluations(value, gap, "s")) else []
    return Check(name=name, law=law, value=value, passed=value.low > 1, note="; ".join(notes))


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
    winners, naive = arms.winner.values(), arms.naive_growth
    p_value = 1.0 if naive is None else _steps_saved_p(arms.winner[limits.target], naive, limits.env_steps, rng)
    kept = (_score_kept_by_all(winner, arms.references, limits.tolerance, LEVEL_HALF) for winner in winners)
    return Halfway(
        lost=any(_solved(winner, limits, LEVEL_HALF).passed is False for winner in winners),
        references=all(check.passed for check in kept),
        naive_growth=p_value <= 1 - LEVEL_HALF + ROUNDING,
    )


def _steps_saved_p(winner: Arm, naive: Arm, env_steps: int | None, rng: np.random.Generator) -> float:
    """Return the p-value that naive growth needs more steps to the target, wherever between two evaluations it came."""
    horizon = horizon_of((winner, naive), env_steps)
    if not horizon:
        return 1.0
    ends, _ = censored(naive.times("env_steps_to_target"), horizon)
    befores = naive.times("env_steps_before_target")
    earliest = [end if before is None else min(before, end) for before, end in zip(befores, ends, strict=True)]
    recorded, _ = censored(winner.times("env_steps_to_target"), horizon)
    return better_with_permutation(earliest, recorded, rng=rng, num_resamples=NUM_PERMUTATIONS)
