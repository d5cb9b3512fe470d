"""Whether the winner holds up, and whether it was worth its search: rules applied to plain numbers. Pure.

The unit is the run on a test seed. A run that failed, or whose score is not a number, scores 0, is not solved and
never reaches the target: it is counted and never left out.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from study.designs.holdup.stages import NAIVE_GROWTH
from study.records.ledger import TrialRow
from study.records.records import Evaluation
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, BEST_SMALL_RLLIB, WINNER, WINNER_RLLIB
from study.space.spec import StudySpec
from study.statistics import (
    BoolArray,
    Estimate,
    FloatArray,
    Side,
    better_with_permutation,
    difference_of_means,
    holm,
    rate_interval,
    ratio_of_means,
)

LEVEL = 0.95
"""Of the bounds of the rules, each one-sided where it judges one side."""
NUM_JUDGED = 3
"""Last evaluations at each of which the share of solved runs must be enough: one alone may be a lucky one."""
ROUNDING = 1e-9
"""Tolerance for the error of floats before a comparison or `ceil`: 0.55 * 20 is a little more than 11."""
OURS, RLLIBS = (WINNER, BEST_SMALL), (WINNER_RLLIB, BEST_SMALL_RLLIB)
"""The chosen setting and the small scale's best, under the study's engine and under RLlib's own."""


# --- what runs came to -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one trial of an arm came to."""

    score: float | None
    """As the space scales it; None, or not a number, where the run failed."""
    solved_at: tuple[bool, ...]
    """Whether the mean return was at the target, at each of the last `NUM_JUDGED` evaluations."""
    env_steps: float | None = None
    """Environment steps trained on; None where the run failed before the first."""
    env_steps_to_target: float | None = None
    """None where the target was not reached."""
    env_steps_before_target: float = 0.0
    """At the last evaluation below the target, before it was reached or the run ended; 0 where there was none."""

    @property
    def failed(self) -> bool:
        """Whether there is no score that counts."""
        return self.score is None or not math.isfinite(self.score)


def run_of(spec: StudySpec, row: TrialRow, evaluations: Sequence[Evaluation]) -> Run:
    """Return what a trial came to, by its summary and the evaluations of its last attempt.

    An evaluation at the target that is the last of all says nothing of when: another one would have confirmed it.
    """
    means, hit = [sum(each.returns) / len(each.returns) for each in evaluations], row.summary.get("env_steps_to_target")
    before = [each.env_steps for each in evaluations if hit is None or each.env_steps < hit]
    if hit is None and means and means[-1] >= spec.target:
        before.pop()
    return Run(
        score=row.summary.get("score") if row.status == "finished" else None,
        solved_at=tuple(mean >= spec.target for mean in means[-NUM_JUDGED:]),
        env_steps=row.summary.get("env_steps"),
        env_steps_to_target=hit,
        env_steps_before_target=before[-1] if before else 0.0,
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

    def times(self, horizon: float) -> tuple[FloatArray, BoolArray, FloatArray]:
        """Return each run's steps to the target, whether it got there, and since when it may have been there.

        One that did not get there by the horizon, or failed, counts as the horizon. Shapes (runs,).
        """
        never = math.inf, horizon
        hits = [
            never if run.failed else (run.env_steps_to_target or math.inf, run.env_steps_before_target)
            for run in self.runs
        ]
        found, since = np.array(hits, dtype=np.float64).T
        ends = np.minimum(found, horizon)
        return ends, found <= horizon, np.minimum(since, ends)

    @property
    def num_failed(self) -> int:
        """Runs without a score that counts."""
        return sum(run.failed for run in self.runs)

    @property
    def solved_at(self) -> list[int]:
        """Runs at the target at each of the last evaluations that all of them had, the last one last."""
        ended = [run.solved_at for run in self.runs if not run.failed]
        length = min((len(each) for each in ended), default=1)
        return [sum(each[-length:][place] for each in ended) for place in range(length)]

    @property
    def learnt(self) -> BoolArray:
        """Which runs were at the target at each of their last evaluations, shape (runs,)."""
        return np.array([bool(run.solved_at) and all(run.solved_at) and not run.failed for run in self.runs])

    @property
    def num_solved(self) -> int:
        """The fewest of them."""
        return min(self.solved_at, default=0)


def lead(first: Arm, second: Arm, *, level: float = LEVEL, side: Side = "both") -> Estimate:
    """Return the mean score of one arm less that of another."""
    return difference_of_means(
        first.scores, second.scores, level=level, side=side, solved=(first.learnt, second.learnt)
    )


Arms = Mapping[tuple[str, int], Arm]
"""(name, scale) -> arm."""


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
    """Whether it is shown to be kept; None: not required."""
    lost: bool = False
    """Whether it is shown to be broken; neither is shown where runs are too few or too unlike."""
    note: str = ""


HOLDS_UP = "holds up"


def in_words(checks: Iterable[Check]) -> str:
    """Return what rules say together: a setting does not hold up only where one of them is shown to be broken."""
    if not (open_ones := [check for check in checks if check.passed is False]):
        return HOLDS_UP
    return "does not hold up" if any(check.lost for check in open_ones) else "is not shown to hold up"


def score_kept(arms: Arms, holdup: HoldUpSpec, names: tuple[str, str]) -> Iterator[Check]:
    """Rule 1: the winner's mean score is hardly below that of the better arm at the small scale, at every scale.

    The better arm is so in truth, it is not the one that looks better: the rule is kept where it is kept against each
    of them, which needs no correction (an intersection-union test: Berger, "Multiparameter hypothesis testing and
    acceptance sampling", Technometrics 24, 1982). The check is the one where the bound is lowest.
    """
    references = [arms[name, holdup.small_scale] for name in names[::-1] if (name, holdup.small_scale) in arms]
    for winner in _judged(arms, holdup, names):
        found = [lead(winner, small, side="lower") for small in references]
        value, small = min(zip(found, references, strict=True), key=lambda pair: pair[0].low)
        notes = [f"against {small.name}, where the bound is lowest"] if len(found) > 1 else []
        if max(np.ptp(winner.scores), np.ptp(small.scores)) == 0:
            notes.append("no run differs from another: nothing is known of the spread")
        notes += [] if value.has_interval else ["too few runs for a bound"]
        yield Check(
            name=f"score_kept@{winner.scale}",
            law=f"lower {100 * LEVEL:g}% bound of mean score(winner at {winner.scale}) - mean score(best at "
            f"{holdup.small_scale}) > -{holdup.tolerance:g}",
            value=value,
            passed=value.low > -holdup.tolerance,
            lost=lead(winner, small, level=2 * LEVEL - 1).high < -holdup.tolerance,
            note="; ".join(notes),
        )


def solved(arms: Arms, holdup: HoldUpSpec, names: tuple[str, str]) -> Iterator[Check]:
    """Rule 2: enough of all runs are solved at each of the last evaluations, at every scale."""
    for winner in _judged(arms, holdup, names):
        number = len(winner.runs)
        needed = math.ceil(holdup.solved_share * number - ROUNDING)
        yield Check(
            name=f"solved@{winner.scale}",
            law=f"at least {needed} of {number} test seeds solved at {winner.scale}, at each of the last evaluations",
            value=rate_interval(winner.num_solved, number),
            passed=winner.num_solved >= needed,
            lost=winner.num_solved < needed,
            note=f"{', '.join(map(str, winner.solved_at))} of {number}, the last evaluation last",
        )


def _judged(arms: Arms, holdup: HoldUpSpec, names: tuple[str, str]) -> list[Arm]:
    scales = (holdup.target_scale, *sorted(holdup.unseen_scales))
    return [arms[names[0], scale] for scale in scales if (names[0], scale) in arms]


def steps_saved(arms: Arms, holdup: HoldUpSpec, env_steps: int | None) -> Check:
    """Rule 3: naive growth needs more steps to the target, at the target scale; not required where it is no arm.

    The target is looked for in evaluations: the interval holds all the steps since the one before, so that the rule is
    kept wherever in between the runs got there.
    """
    target = holdup.target_scale
    naive, note = arms.get((NAIVE_GROWTH, target)), ""
    value, gap = (None, 0.0) if naive is None else steps_ratio(naive, arms[WINNER, target], env_steps)
    if value is None:
        note = "naive_growth is the chosen setting" if naive is None else "no run of either arm has ended well"
    elif gap:
        least = f"at least {value.low:.2f}: " if math.isfinite(value.low) and not math.isfinite(value.high) else ""
        note = f"{least}evaluations are up to {gap:,.0f} env steps apart, and the interval holds the time between two"
    return Check(
        name=f"steps_saved@{target}",
        law=f"env_steps_to_target, naive growth over winner at {target}: the interval lies above 1",
        value=value,
        passed=None if naive is None else value is not None and value.low > 1,
        lost=value is not None and value.high < 1,
        note=note,
    )


def judge(arms: Arms, holdup: HoldUpSpec, env_steps: int | None) -> list[Check]:
    """Return the rules about the study's engine. How often a setting holds up, by simulation, is in `evidence.md`."""
    return [*judge_learning(arms, holdup, OURS), steps_saved(arms, holdup, env_steps)]


def judge_learning(arms: Arms, holdup: HoldUpSpec, names: tuple[str, str]) -> list[Check]:
    """Return rules 1 and 2 about the winner and the small scale's best of these names."""
    return [*score_kept(arms, holdup, names), *solved(arms, holdup, names)]


# --- steps to the target ---------------------------------------------------------------------------------------------


def steps_ratio(
    first: Arm, second: Arm, env_steps: int | None, *, level: float = LEVEL
) -> tuple[Estimate | None, float]:
    """Return the mean steps to the target of one arm over those of another, and how far evaluations are apart.

    None where no run of either has ended well.
    """
    if not (horizon := horizon_of((first, second), env_steps)):
        return None, 0.0
    (ends, one, since), (others, two, from_then) = (arm.times(horizon) for arm in (first, second))
    value = ratio_of_means(ends, others, level=level, since=(since, from_then))
    return value, float(np.concatenate([(ends - since)[one], (others - from_then)[two]]).max(initial=0.0))


def horizon_of(arms: Iterable[Arm], env_steps: int | None) -> float | None:
    """Return the environment steps that every run of the arms had: the budget, or the shortest finished run."""
    ends = [run.env_steps for arm in arms for run in arm.runs if not run.failed and run.env_steps]
    return min([*ends, *([env_steps] if env_steps else [])], default=None)


# --- whether the search at the target scale paid ---------------------------------------------------------------------

Standing = Literal["better", "as good", "open"]
"""Of the winner against a rival: better than it; the rival does as well; or neither is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The winner against one rival at the target scale, by the score, the steps to the target, and the share solved."""

    rival: str
    difference: Estimate
    """Mean score of the winner less the rival's, with a two-sided interval that is not corrected."""
    p_value: float
    """One-sided, of a studentised permutation test that the winner scores better."""
    p_adjusted: float
    """Corrected for the number of rivals, by Holm."""
    steps_ratio: Estimate | None
    """Steps to the target, the rival's over the winner's, with an interval corrected for the number of rivals."""
    solved: tuple[int, int]
    """Runs solved of the winner and of the rival, as many of each."""
    standing: Standing


def compare(
    winner: Arm,
    rivals: Sequence[Arm],
    *,
    rng: np.random.Generator,
    tolerance: float,
    env_steps: int | None = None,
) -> list[Comparison]:
    """Return the winner against each rival at the target scale: no part of the verdict, and what the search is worth.

    The winner is better where its score is, or where it takes fewer steps to the target and its score is no more than
    the tolerance lower; each at 2.5 % over all rivals, together 5 %. A rival does as well where its score is no more
    than the tolerance lower (upper 95 % bound) and it is not shown to need more steps. `env_steps`: budget of a trial.
    """
    half, rows = (1 - LEVEL) / 2, list[Comparison]()
    p_values = [better_with_permutation(winner.scores, arm.scores, rng=rng) for arm in rivals]
    corrected = holm(p_values) if rivals else ()
    for arm, p_value, p_adjusted in zip(rivals, p_values, corrected, strict=True):
        bounds = lead(winner, arm, level=2 * LEVEL - 1)  # one-sided at LEVEL, each end
        ratio, _ = steps_ratio(arm, winner, env_steps, level=1 - half / len(rivals))
        higher = bool(p_adjusted <= half + ROUNDING)
        sooner = ratio is not None and ratio.low > 1
        standing: Standing = "open"
        if higher or (sooner and bounds.low > -tolerance):
            standing = "better"
        elif bounds.high < tolerance and not sooner:
            standing = "as good"
        rows.append(
            Comparison(
                rival=arm.name,
                difference=lead(winner, arm),
                p_value=p_value,
                p_adjusted=float(p_adjusted),
                steps_ratio=ratio,
                solved=(winner.num_solved, arm.num_solved),
                standing=standing,
            )
        )
    return rows


def search_paid(comparisons: Sequence[Comparison]) -> tuple[Literal["paid", "not paid", "open"], str | None]:
    """Return whether the search at the target scale paid, and the rival that decides it.

    Not where a rival does as well: of several the one of the best score. It paid where the winner is better than each:
    the closest one is named. None where there is no rival: each of them is the winner.
    """
    closest = sorted(comparisons, key=lambda each: (each.difference.value, each.rival))
    if not comparisons or (equal := [each for each in closest if each.standing == "as good"]):
        return "not paid", equal[0].rival if comparisons else None
    if all(each.standing == "better" for each in comparisons):
        return "paid", closest[0].rival
    return "open", next(each.rival for each in closest if each.standing == "open")
