"""The winner against the baselines, by score at the target scale: information, no part of the verdict. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from study.designs.holdup.arms import Arm
from study.designs.holdup.verdict import LEVEL, NUM_PERMUTATIONS, ROUNDING
from study.statistics import Estimate, better_with_permutation, difference_of_means, holm

STOPPED_EARLY = "stopped early because clearly worse: the difference is overstated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The winner against one baseline, both at the target scale."""

    baseline: str
    difference: Estimate
    """Mean score of the winner less that of the baseline, two-sided interval, not corrected."""
    p_value: float | None
    """One-sided, by permutation; None with fewer than two runs."""
    p_adjusted: float | None
    """The same, corrected by Holm for all baselines."""
    better: bool
    """Whether the corrected test says so."""
    note: str = ""
    """What a reader must know of the difference; empty where there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """The winner against every baseline. Information: the verdict does not rest on it."""

    rows: tuple[Comparison, ...]
    better_than_every: bool
    """Of those that were confirmed."""
    sentence: str


def compare(
    winner: Arm,
    baselines: Sequence[Arm],
    *,
    rng: np.random.Generator,
    num_resamples: int = NUM_PERMUTATIONS,
    level: float = LEVEL,
    stopped: Collection[str] = (),
    screening: str = "",
) -> Comparisons:
    """Return the winner's score against each baseline's, corrected by Holm.

    20 runs against 10 of each of three baselines, simulated: where all are alike, the winner is called better than
    some of them in 4.7 % of studies, where at most 5 % are allowed; where it is better by one standard deviation of the
    seeds, than a given one in 73 % and than all three in 59 %; by 1.5 standard deviations, in 98 % and 95 %
    (`test_a_difference_that_is_none_is_declared_in_at_most_five_percent_of_studies`,
    `test_power_is_that_of_the_docstring`).

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
        return Comparisons(rows=(), better_than_every=False, sentence="no baseline was run")
    p_values = [
        better_with_permutation(winner.scores, arm.scores, rng=rng, num_resamples=num_resamples)
        if min(len(winner.runs), len(arm.runs)) > 1
        else None
        for arm in baselines
    ]
    adjusted = holm([1.0 if p_value is None else p_value for p_value in p_values])
    rows = tuple(
        Comparison(
            baseline=arm.name,
            difference=difference_of_means(winner.scores, arm.scores, level=level),
            p_value=p_value,
            p_adjusted=None if p_value is None else float(corrected),
            better=p_value is not None and bool(corrected <= 1 - level + ROUNDING),
            note=STOPPED_EARLY if arm.name in stopped else "",
        )
        for arm, p_value, corrected in zip(baselines, p_values, adjusted, strict=True)
    )
    won, open_ = [row.baseline for row in rows if row.better], [row.baseline for row in rows if not row.better]
    if not open_:
        sentence = "better than each baseline that was confirmed"
    elif won:
        sentence = f"better than {', '.join(won)}; not shown to be better than {', '.join(open_)}"
    else:
        sentence = "not shown to be better than any baseline that was confirmed"
    sentence += f" ({screening})" if screening else ""
    return Comparisons(rows=rows, better_than_every=not open_, sentence=sentence)
