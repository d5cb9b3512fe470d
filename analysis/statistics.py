"""Every estimate with its interval, so that no table does statistics itself. Imports NumPy, SciPy, `study.errors`.

The unit of replication is the run: one number per run, and a failed run is a score of 0 (or a time that is not
reached) that the caller wrote. Intervals have the level that is asked for only as far as the coverage that each
docstring quotes; `tests/unit/test_statistics.py` measures it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.errors import AnalysisError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Side = Literal["both", "lower"]

NUM_RESAMPLES = 2_000
"""Resamples of a bootstrap: the ends of a 95 % interval then move by about 2 % of its width between two seeds."""
TRIMMED_SHARE = 0.25
"""Share of the runs cut from each end: the interquartile mean (rliable)."""
BOUND_WIDTH = 0.5
"""Standard errors between the mean and the bound that the search is told (the protocol's choice)."""
BOOTSTRAP = "expanded percentile bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with the interval that goes with it.

    `low` is -inf and `high` is inf where the data allow no interval, as with one run; a one-sided lower bound has
    only `high` infinite. An interval of width 0 says that the runs did not differ, not that the value is certain.
    """

    value: float
    low: float
    high: float
    n: int
    """Runs behind the value, those of both samples together; pairs where runs are paired."""
    level: float
    """Nominal coverage of the interval, in (0, 1)."""
    method: str

    def __post_init__(self) -> None:
        if not (self.low <= self.high and np.isfinite(self.value) and self.n >= 1):
            law = "`low <= high`, a finite value and `n >= 1` must hold"
            got = f"{self.value} [{self.low}, {self.high}], n={self.n}"
            raise AnalysisError(f"estimate: {law}, got {got}. Fix: check the values that it was computed from.")

    @property
    def has_interval(self) -> bool:
        """Whether at least one end is known."""
        return bool(np.isfinite(self.low) or np.isfinite(self.high))

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if not self.has_interval:
            return f"{self.value:{spec}} (n={self.n}, no interval)"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}] (n={self.n})"

    def __str__(self) -> str:
        return format(self)


# Means and their differences


def mean_interval(values: npt.ArrayLike, *, level: float = 0.95) -> Estimate:
    """Return the mean of independent runs with Student's t interval.

    **Not to be trusted for rare failures.** A sample without a failed run looks certain, whatever the share of
    failures is. With scores near 1 and a share of failed runs at 0, a nominal 95 % covers, in %
    (`test_mean_interval_covers_as_its_docstring_says`):

        failed    0 %    5 %   10 %   20 %
        n = 5     95     78     53     68
        n = 10    95     61     66     88
        n = 20    95     66     88     92

    Print `rate_interval` of the solved runs beside such a mean.

    Args:
        values: One number per run, shape (runs,).
        level: Nominal coverage, in (0, 1).

    Returns:
        The mean, in the unit of `values`. No interval with one run; width 0 where all runs are equal.

    Raises:
        AnalysisError: `values` is empty or not finite, or `level` is out of range.
    """
    sample = _sample("values", values)
    return _t_estimate(
        float(sample.mean()),
        _squared_error(sample),
        sample.size - 1,
        n=sample.size,
        level=level,
        side="both",
        method="Student t",
    )


def difference_of_means(
    first: npt.ArrayLike, second: npt.ArrayLike, *, level: float = 0.95, side: Side = "both"
) -> Estimate:
    """Return mean(first) - mean(second) of independent runs with Welch's t interval.

    **Not to be trusted for rare failures**, like `mean_interval`. Where both samples fail equally
    often a nominal 95 % covers 94-99 % (n = 5 to 20 each). Where only the first fails, its one-sided 95 % lower bound
    against 10 sound runs covers, in % (`test_welch_covers_as_its_docstring_says`):

        failed    0 %    5 %   10 %   20 %
        n = 5     96     72     51     68
        n = 10    95     68     66     90
        n = 20    95     77     87     92

    So a bound above -0.05 with 20 runs against 10 is found in 24 % of samples, not in 5 %, when failures in 5.2 % of
    runs make the true difference exactly -0.05, and in 7 % when 10 % of runs fail; "19 of 20 solved" changes neither
    (`test_a_margin_of_five_hundredths_is_passed_too_often`). 20 runs without a failure only exclude rates above
    14 % (17 % two-sided).

    Args:
        first: One number per run, shape (runs of the first,).
        second: One number per run, shape (runs of the second,).
        level: Nominal coverage, in (0, 1).
        side: "both", or "lower" for a one-sided lower bound at `level`; `high` is then inf.

    Returns:
        The difference, in the unit of the samples. No interval when a sample has one run: its spread is unknown.
        Width 0 where neither sample varies: the point itself, which is the absence of evidence on the spread.

    Raises:
        AnalysisError: A sample is empty or not finite, or `level` or `side` is out of range.

    Source:
        Welch, Biometrika 34 (1947), with Satterthwaite's degrees of freedom. SciPy's `ttest_ind` agrees (tested);
        it is not called because it warns, rightly, where a sample does not vary.
    """
    one, two = _sample("first", first), _sample("second", second)
    error_one, error_two = _squared_error(one), _squared_error(two)
    squared = error_one + error_two
    degrees = 0.0
    if min(one.size, two.size) > 1:
        share = error_one / squared if squared > 0 else 0.5
        degrees = 1 / (share**2 / (one.size - 1) + (1 - share) ** 2 / (two.size - 1))
    return _t_estimate(
        float(one.mean() - two.mean()),
        squared,
        degrees,
        n=one.size + two.size,
        level=level,
        side=side,
        method="Welch t",
    )


def paired_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, *, level: float = 0.95, side: Side = "both"
) -> Estimate:
    """Return the mean of first - second over pairs (the same seed, the same block) with Student's t interval.

    Args:
        first: One number per pair, shape (pairs,).
        second: Its partner, shape (pairs,).
        level: Nominal coverage, in (0, 1). Rare failures spoil it as they do in `mean_interval`.
        side: "both", or "lower" for a one-sided lower bound at `level`; `high` is then inf.

    Returns:
        The difference, in the unit of the samples; `n` counts pairs. No interval with one pair; width 0 where all
        pairs differ equally.

    Raises:
        AnalysisError: The samples differ in length, are empty or not finite, or `level` or `side` is out of range.
    """
    one, two = _pairs(first, second)
    differences = one - two
    return _t_estimate(
        float(differences.mean()),
        _squared_error(differences),
        differences.size - 1,
        n=differences.size,
        level=level,
        side=side,
        method="paired Student t",
    )


def iqm(values: npt.ArrayLike) -> float:
    """Return the interquartile mean: the mean after floor(n / 4) runs are cut from each end.

    It does not see failures of fewer than a quarter of the runs: where these matter, use the mean.

    Args:
        values: One number per run, shape (runs,).

    Raises:
        AnalysisError: `values` is empty or not finite.

    Source:
        Agarwal et al., NeurIPS 2021 (rliable's `aggregate_iqm`): `scipy.stats.trim_mean(values, 0.25)`; whole runs
        are cut, there are no fractional weights.
    """
    return float(stats.trim_mean(_sample("values", values), TRIMMED_SHARE))


def iqm_interval(
    values: npt.ArrayLike, *, rng: np.random.Generator, level: float = 0.95, num_resamples: int = NUM_RESAMPLES
) -> Estimate:
    """Return the interquartile mean with a bootstrap interval (expanded percentile, see `_bootstrap`).

    With scores near 1 and 0 to 20 % of zeros a nominal 95 % covers 95.5-97.5 % at n = 10 and 20, and 92-95 % at n = 5
    (`test_iqm_interval_covers_as_its_docstring_says`). In the same simulation plain percentiles covered 93-95 %
    (88-90 % at n = 5), BCa 91-95 % (86-90 %), the basic bootstrap 89-94 % (82-87 %): the expanded one is the only one
    that is not below 95 % where a study has its runs, at 10 to 20 % more width.

    Args:
        values: One number per run, shape (runs,).
        rng: Source of the resamples.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.

    Returns:
        The interquartile mean, in the unit of `values`. No interval with one run; width 0 where all are equal.

    Raises:
        AnalysisError: `values` is empty or not finite, or `level` or `num_resamples` is out of range.
    """
    sample = _sample("values", values)

    def statistic(resample: FloatArray, axis: int) -> FloatArray:
        return np.asarray(stats.trim_mean(resample, TRIMMED_SHARE, axis=axis), dtype=np.float64)

    return _bootstrap(iqm(sample), (sample,), statistic, rng=rng, level=level, num_resamples=num_resamples)


# Shares


def rate_interval(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """Return a share of runs with the Clopper-Pearson interval.

    It never covers less than `level`, at any true share. Wilson's is narrower, but a nominal 95 % falls to 83 % at
    n = 5, 84 % at n = 10 and 85 % at n = 20 (`test_clopper_pearson_never_covers_less_and_wilson_does`), and it does
    so near 0 and 1, where solve rates live.

    Args:
        successes: Runs that succeeded, in [0, n].
        n: Runs, >= 1.
        level: Least coverage, in (0, 1).

    Raises:
        AnalysisError: `n` is 0, `successes` is not in [0, n], or `level` is out of range.

    Source:
        Clopper and Pearson, Biometrika 26 (1934).
    """
    _check_level(level)
    if not 0 <= successes <= n or n < 1:
        law = "`0 <= successes <= n` and `n >= 1` must hold"
        raise AnalysisError(f"successes: {law}, got {successes} of {n}. Fix: count the runs again.")
    interval = stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="exact")
    return Estimate(
        value=successes / n,
        low=float(interval.low),
        high=float(interval.high),
        n=n,
        level=level,
        method="Clopper-Pearson",
    )


def probability_of_improvement(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """Return the probability that a run of `first` beats a run of `second`, a tie counting one half.

    The interval is the expanded percentile bootstrap; where every run of one sample beats every run of the other,
    no resample differs, and the interval is Clopper-Pearson's for as many pairs as the smaller sample has runs.
    With 0 to 20 % of zeros in one sample it covers 95-98 % at n = 10 and
    20, and 98-100 % at n = 5 (`test_probability_of_improvement_covers_as_its_docstring_says`).

    Args:
        first: One number per run, shape (runs of the first,).
        second: One number per run, shape (runs of the second,).
        rng: Source of the resamples.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.

    Returns:
        A probability, in [0, 1]. No interval when a sample has one run.

    Raises:
        AnalysisError: A sample is empty or not finite, or `level` or `num_resamples` is out of range.

    Source:
        Agarwal et al., NeurIPS 2021 (rliable's `probability_of_improvement`); the Mann-Whitney U over n1 * n2.
    """
    one, two = _sample("first", first), _sample("second", second)

    def statistic(ours: FloatArray, theirs: FloatArray, axis: int) -> FloatArray:
        ours, theirs = ours[..., :, np.newaxis], theirs[..., np.newaxis, :]
        return np.asarray(((ours > theirs) + 0.5 * (ours == theirs)).mean(axis=(-2, -1)), dtype=np.float64)

    value = float(statistic(one, two, -1))
    pairs = min(one.size, two.size)
    if value in (0.0, 1.0) and pairs > 1:
        separated = rate_interval(round(value * pairs), pairs, level=level)
        low, high = separated.low, separated.high
        return Estimate(
            value=value, low=low, high=high, n=one.size + two.size, level=level, method="Clopper-Pearson of pairs"
        )
    return _bootstrap(value, (one, two), statistic, rng=rng, level=level, num_resamples=num_resamples)


def performance_profile(scores: npt.ArrayLike, thresholds: npt.ArrayLike) -> FloatArray:
    """Return the share of runs whose score is above each threshold.

    Args:
        scores: One score per run, shape (runs,).
        thresholds: Shape (thresholds,), in the unit of the scores.

    Returns:
        Shares in [0, 1], shape (thresholds,); a score equal to the threshold is not above it.

    Raises:
        AnalysisError: `scores` or `thresholds` is empty or not finite.

    Source:
        Agarwal et al., NeurIPS 2021 (rliable's score distributions).
    """
    survival = stats.ecdf(_sample("scores", scores)).sf
    return np.asarray(survival.evaluate(_sample("thresholds", thresholds)), dtype=np.float64)


# Times to target, right-censored


def restricted_mean(times: npt.ArrayLike, reached: npt.ArrayLike, *, horizon: float) -> float:
    """Return the mean of min(time to target, horizon) under right-censoring: the area under Kaplan-Meier's curve.

    A run that failed did not leave the study by chance: the caller writes its time as the budget, not reached.

    Args:
        times: Time to target, or the time observed without reaching it, shape (runs,), > 0, any unit.
        reached: Whether the target was reached at that time, shape (runs,), boolean.
        horizon: Where the mean is cut, > 0, in the unit of `times`.

    Returns:
        The restricted mean, in the unit of `times`, in (0, horizon].

    Raises:
        AnalysisError: The samples are empty, not finite, not positive or of different length, `horizon` is not
            positive, or it lies behind the last run's end while some run was still without the target.

    Source:
        Kaplan and Meier, JASA 53 (1958); Royston and Parmar, BMC Med. Res. Methodol. 13:152 (2013).
    """
    ends, events = _censored("times", times, "reached", reached)
    _check_horizon("times", ends, events, horizon)
    return float(_restricted_means(ends, events, horizon))


def median_time(times: npt.ArrayLike, reached: npt.ArrayLike) -> float:
    """Return the first time by which half of the runs have reached the target, by Kaplan-Meier.

    Args:
        times: Time to target, or the time observed without reaching it, shape (runs,), > 0, any unit.
        reached: Whether the target was reached at that time, shape (runs,), boolean.

    Returns:
        A time in the unit of `times`: one of those observed, and inf when fewer than half ever reached it.

    Raises:
        AnalysisError: The samples are empty, not finite, not positive or of different length.
    """
    ends, events = _censored("times", times, "reached", reached)
    if not events.any():
        return float("inf")
    curve = stats.ecdf(stats.CensoredData(ends[events], right=ends[~events])).sf
    # The product of survivals may miss one half by rounding.
    below = curve.probabilities <= 0.5 + 1e-9
    return float(curve.quantiles[below][0]) if below.any() else float("inf")


def ratio_of_restricted_means(
    first: npt.ArrayLike,
    first_reached: npt.ArrayLike,
    second: npt.ArrayLike,
    second_reached: npt.ArrayLike,
    *,
    horizon: float,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """Return the restricted mean of `first` over that of `second`: above 1 says that `second` is faster.

    With censoring the ratio understates: when the times of `first` are distributed as c times those of `second`,
    c > 1, the ratio lies in [1, c], since the horizon cuts more off the slower. It is then a bound, not the
    speed-up. The interval is for this ratio, by the expanded percentile bootstrap; percentiles of the ratio and of
    its logarithm are the same. With a coefficient of variation of 0.35 and 0 to 20 %
    of runs that never reach the target, a nominal 95 % covers 93-95 % at n = 5 and 20 and 90-95 % at n = 10, least
    where such runs are rare (`test_ratio_covers_as_its_docstring_says`).

    Args:
        first: Times, shape (runs of the first,), > 0, any unit.
        first_reached: Whether each is a time to target, shape (runs of the first,), boolean.
        second: Times, shape (runs of the second,), > 0, in the same unit.
        second_reached: Whether each is a time to target, shape (runs of the second,), boolean.
        horizon: Where both means are cut, > 0, in the same unit. A resample whose last run ends before it without
            the target keeps its survival up to the horizon.
        rng: Source of the resamples.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.

    Returns:
        A ratio, > 0. No interval when a sample has one run, or when no run of either reached the target by the
        horizon: the ratio is then 1 and says nothing.

    Raises:
        AnalysisError: As `restricted_mean` for each sample; `level` or `num_resamples` is out of range.
    """
    one, one_events = _censored("first", first, "first_reached", first_reached)
    two, two_events = _censored("second", second, "second_reached", second_reached)
    _check_horizon("first", one, one_events, horizon)
    _check_horizon("second", two, two_events, horizon)

    def statistic(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64], axis: int) -> FloatArray:
        above = _restricted_means(one[ours], one_events[ours], horizon)
        return above / _restricted_means(two[theirs], two_events[theirs], horizon)

    indices = (np.arange(one.size), np.arange(two.size))
    value = float(statistic(*indices, -1))
    if not ((one_events & (one <= horizon)).any() or (two_events & (two <= horizon)).any()):
        _check_level(level)
        return _without_interval(value, n=one.size + two.size, level=level, method=BOOTSTRAP)
    return _bootstrap(value, indices, statistic, rng=rng, level=level, num_resamples=num_resamples)


# What the search and the race are told


def pooled_sd(groups: Sequence[npt.ArrayLike]) -> float | None:
    """Return the standard deviation within groups, pooled over the groups of two or more.

    Args:
        groups: Each the scores of one setting, shape (runs of the setting,).

    Returns:
        In the unit of the scores, >= 0; None where no group has two runs.

    Raises:
        AnalysisError: A group is empty or not finite.
    """
    samples = [_sample(f"groups[{index}]", group) for index, group in enumerate(groups)]
    weights = [sample.size - 1 for sample in samples if sample.size > 1]
    if not weights:
        return None
    variances = [_variance(sample) for sample in samples if sample.size > 1]
    return float(np.sqrt(np.average(variances, weights=weights)))


def lower_bound(scores: npt.ArrayLike, pooled_sd: float | None) -> float:
    """Return mean - 0.5 * max(sd, pooled sd) / sqrt(n): what the sampler is told of a setting.

    One run has no standard deviation: the pooled one stands alone, and where that is missing too the bound is the
    score itself. It is no confidence bound of a known level.

    Args:
        scores: One score per run of the setting, shape (runs,).
        pooled_sd: `pooled_sd` over the settings, >= 0, in the unit of the scores.

    Raises:
        AnalysisError: `scores` is empty or not finite, or `pooled_sd` is negative or not finite.
    """
    sample = _sample("scores", scores)
    shared = _shared_sd(pooled_sd)
    own = float(np.sqrt(_variance(sample)))
    return float(sample.mean() - BOUND_WIDTH * max(own, shared) / np.sqrt(sample.size))


def paired_lower_bounds(scores: npt.ArrayLike, pooled_sd: float | None = None) -> FloatArray:
    """Return, per setting, `lower_bound` of its differences from each seed's mean over the settings.

    What a seed does to all settings alike cancels. From two seeds on, the standard deviation is at least that of
    the differences pooled over the settings, so that luck at two seeds does not look like precision.

    Args:
        scores: Shape (settings, seeds); every setting ran with every seed.
        pooled_sd: Stands in at one seed, and is not used at more; >= 0, in the unit of the scores.

    Returns:
        Bounds on the advantage over the mean setting, shape (settings,), in the unit of the scores.

    Raises:
        AnalysisError: `scores` is empty, not a matrix or not finite, or `pooled_sd` is negative or not finite.
    """
    matrix = _numbers("scores", scores, dimensions=2)
    shared = _shared_sd(pooled_sd)
    differences = matrix - matrix.mean(axis=0)
    if matrix.shape[1] > 1:
        shared = float(np.sqrt(differences.var(axis=1, ddof=1).mean()))
    return np.array([lower_bound(row, shared) for row in differences])


# Comparisons


def rank_correlation(first: npt.ArrayLike, second: npt.ArrayLike, *, level: float = 0.95) -> Estimate:
    """Return Spearman's rank correlation with an interval by Fisher's z.

    The standard error is Bonett and Wright's, sqrt((1 + r^2 / 2) / (n - 3)). At r of exactly 1 (or -1) it would
    claim certainty; the inner end is then that of one swap of neighbours, r = 1 - 12 / (n^3 - n). For normal
    pairs a nominal 95 % covers 95-98 % from 8 items on, and 99-100 % at 5
    (`test_rank_correlation_covers_as_its_docstring_says`).

    Args:
        first: One number per item (a setting at a third of the budget), shape (items,).
        second: Its partner (the same setting at the full budget), shape (items,).
        level: Nominal coverage, in (0, 1).

    Returns:
        A correlation, in [-1, 1]; `n` counts items. No interval below 4 items.

    Raises:
        AnalysisError: The samples differ in length, have fewer than 2 items, are constant or not finite, or
            `level` is out of range.

    Source:
        Bonett and Wright, Psychometrika 65 (2000).
    """
    _check_level(level)
    one, two = _pairs(first, second)
    for name, sample in (("first", one), ("second", two)):
        if np.ptp(sample) == 0:
            law = "a rank correlation needs at least two different values"
            raise AnalysisError(f"{name}: {law}, got {sample.size} times {sample[0]}. Fix: add items that differ.")
    n, method = one.size, "Fisher z"
    value = float(np.clip(stats.spearmanr(one, two).statistic, -1, 1))
    if n < 4:
        return _without_interval(value, n=n, level=level, method=method)
    most = 1 - 12 / (n**3 - n)
    inner = float(np.clip(value, -most, most))
    half = float(stats.norm.ppf((1 + level) / 2)) * np.sqrt((1 + inner**2 / 2) / (n - 3))
    low, high = np.tanh(np.arctanh(inner) + np.array([-half, half]))
    return Estimate(
        value=value, low=min(float(low), value), high=max(float(high), value), n=n, level=level, method=method
    )


def better_with_permutation(
    first: npt.ArrayLike, second: npt.ArrayLike, *, rng: np.random.Generator, num_resamples: int = 9_999
) -> float:
    """Return the one-sided p-value that mean(first) > mean(second), by permutation of the runs.

    Exact under "both samples come from one distribution", with any ties and any share of zeros; all assignments are
    tried where there are no more than `num_resamples`. It is **no** test of equal means
    with unequal spread: where `first` fails in 5 to 10 % of runs and a steady `second` has the same mean, p <= 0.05
    comes up in 10-48 % of samples of 5 to 20 runs (`test_permutation_is_no_test_of_equal_means_with_unequal_spread`).

    Args:
        first: One number per run, shape (runs of the first,).
        second: One number per run, shape (runs of the second,).
        rng: Source of the permutations.
        num_resamples: Permutations, >= 1; the least p-value is 1 / (num_resamples + 1).

    Returns:
        A p-value, in (0, 1].

    Raises:
        AnalysisError: A sample has fewer than two runs or is not finite, or `num_resamples` is out of range.

    Source:
        Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 9:39 (2010), on counting the observed assignment.
    """
    one, two = _sample("first", first), _sample("second", second)
    _check_resamples(num_resamples)
    if min(one.size, two.size) < 2:
        got = f"{one.size} and {two.size}"
        raise AnalysisError(f"first, second: each must hold two runs, got {got}. Fix: run more seeds.")
    # The mean of the first orders the assignments as the difference does (the total is fixed). From the least value
    # on, it is a sum of no negative terms, so that SciPy's relative tolerance recognises equal assignments.
    least = min(one.min(), two.min())

    def statistic(ours: FloatArray, theirs: FloatArray, axis: int) -> FloatArray:
        return np.asarray(ours.mean(axis=axis), dtype=np.float64)

    test = stats.permutation_test(
        (one - least, two - least), statistic, alternative="greater", n_resamples=num_resamples, rng=rng
    )
    return float(test.pvalue)


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Return p-values adjusted so that the chance of any false claim among them stays below the level.

    Args:
        p_values: Shape (tests,), each in [0, 1].

    Returns:
        Adjusted p-values in the same order, shape (tests,), in [0, 1].

    Raises:
        AnalysisError: `p_values` is empty or leaves [0, 1].

    Source:
        Holm, Scand. J. Statist. 6 (1979); R's `p.adjust(method = "holm")`.
    """
    given = _sample("p_values", p_values)
    if given.min() < 0 or given.max() > 1:
        outside = given[(given < 0) | (given > 1)][0]
        raise AnalysisError(f"p_values: must lie in [0, 1], got {outside}. Fix: pass p-values, not statistics.")
    order = np.argsort(given, kind="stable")
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1)), 1)
    return adjusted


# Shared parts


def _t_estimate(
    value: float, squared_error: float, degrees: float, *, n: int, level: float, side: Side, method: str
) -> Estimate:
    """Return value +- t * sqrt(squared_error); `degrees` below 1 says that the error is unknown."""
    _check_level(level)
    if side not in get_args(Side):
        raise AnalysisError(f"side: must be one of {get_args(Side)}, got {side!r}. Fix: name one of these.")
    if degrees < 1:
        return _without_interval(value, n=n, level=level, method=method)
    quantile = (1 + level) / 2 if side == "both" else level
    half = float(stats.t.ppf(quantile, degrees) * np.sqrt(squared_error))
    high = value + half if side == "both" else float("inf")
    return Estimate(value=value, low=value - half, high=high, n=n, level=level, method=method)


def _bootstrap(
    value: float,
    samples: tuple[npt.NDArray[Any], ...],
    statistic: Callable[..., FloatArray],
    *,
    rng: np.random.Generator,
    level: float,
    num_resamples: int,
) -> Estimate:
    """Return `value` with percentiles of resamples within each sample, spread as Student's t would be.

    The percentile bootstrap ignores that a resample varies less than the sample's source (by (n - 1) / n) and that
    the spread is itself estimated. Its tails are therefore taken at the normal probability of
    sqrt(n / (n - 1)) * t(level, n - 1), n being the runs of the smallest sample. Figures for plain percentiles and
    BCa stand at `iqm_interval`.

    Source:
        Hesterberg, The American Statistician 69 (2015), section 4.3 (expanded percentile).
    """
    _check_level(level)
    _check_resamples(num_resamples)
    sizes = [sample.size for sample in samples]
    n, least = sum(sizes), min(sizes)
    if least < 2:
        return _without_interval(value, n=n, level=level, method=BOOTSTRAP)
    quantile = np.sqrt(least / (least - 1)) * stats.t.ppf((1 + level) / 2, least - 1)
    interval = stats.bootstrap(
        samples,
        statistic,
        vectorized=True,
        n_resamples=num_resamples,
        confidence_level=float(1 - 2 * stats.norm.sf(quantile)),
        method="percentile",
        rng=rng,
    ).confidence_interval
    return Estimate(value=value, low=float(interval.low), high=float(interval.high), n=n, level=level, method=BOOTSTRAP)


def _without_interval(value: float, *, n: int, level: float, method: str) -> Estimate:
    return Estimate(value=value, low=float("-inf"), high=float("inf"), n=n, level=level, method=method)


def _restricted_means(times: FloatArray, reached: BoolArray, horizon: float) -> FloatArray:
    """Return areas under Kaplan-Meier's curves up to the horizon: shape (…, runs) -> (…).

    For thousands of resamples at once; SciPy's `ecdf`, one sample at a time, agrees (tested). Behind the last run
    the survival stays as it is.
    """
    # At equal times those that reached go first: the others were still under observation.
    order = np.lexsort((~reached, times), axis=-1)
    ends = np.minimum(np.take_along_axis(times, order, axis=-1), horizon)
    events = np.take_along_axis(reached, order, axis=-1)
    at_risk = np.arange(times.shape[-1], 0, -1)
    after = np.cumprod(1 - events / at_risk, axis=-1)
    before = np.concatenate([np.ones_like(after[..., :1]), after[..., :-1]], axis=-1)
    area = (before * np.diff(ends, prepend=0.0, axis=-1)).sum(axis=-1)
    return np.asarray(area + after[..., -1] * (horizon - ends[..., -1]), dtype=np.float64)


def _variance(sample: FloatArray) -> float:
    """Return the unbiased variance; exactly 0 where all values are equal, and for one run."""
    return float(sample.var(ddof=1)) if np.ptp(sample) > 0 else 0.0


def _squared_error(sample: FloatArray) -> float:
    return _variance(sample) / sample.size


def _shared_sd(pooled: float | None) -> float:
    if pooled is None:
        return 0.0
    if not (np.isfinite(pooled) and pooled >= 0):
        raise AnalysisError(f"pooled_sd: must be finite and >= 0, got {pooled}. Fix: pass `pooled_sd` of the settings.")
    return float(pooled)


def _numbers(where: str, values: npt.ArrayLike, *, dimensions: int) -> FloatArray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != dimensions or numbers.size == 0:
        law = f"must hold at least one number in {dimensions} dimension{'s'[: dimensions - 1]}"
        raise AnalysisError(f"{where}: {law}, got shape {numbers.shape}. Fix: pass one number per run.")
    finite = np.isfinite(numbers)
    if not finite.all():
        fix = "write a failed run as score 0, or as a time that is not reached"
        raise AnalysisError(f"{where}: every value must be finite, got {numbers[~finite][0]}. Fix: {fix}.")
    return numbers


def _sample(where: str, values: npt.ArrayLike) -> FloatArray:
    return _numbers(where, values, dimensions=1)


def _pairs(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    one, two = _sample("first", first), _sample("second", second)
    if one.size != two.size:
        law = "must be as long as `first`, pair by pair"
        raise AnalysisError(f"second: {law}, got {two.size} for {one.size}. Fix: leave out what has no partner.")
    return one, two


def _censored(where: str, times: npt.ArrayLike, flag: str, reached: npt.ArrayLike) -> tuple[FloatArray, BoolArray]:
    ends, events = _sample(where, times), np.asarray(reached)
    if ends.min() <= 0:
        raise AnalysisError(f"{where}: every time must be > 0, got {ends.min()}. Fix: measure from the run's start.")
    if events.dtype != np.bool_ or events.shape != ends.shape:
        law = f"must be one boolean for each of {where}"
        got = f"{events.dtype} of shape {events.shape} for {ends.size}"
        raise AnalysisError(f"{flag}: {law}, got {got}. Fix: pass whether each run reached the target.")
    return ends, events


def _check_horizon(where: str, times: FloatArray, reached: BoolArray, horizon: float) -> None:
    if not (np.isfinite(horizon) and horizon > 0):
        raise AnalysisError(f"horizon: must be finite and > 0, got {horizon}. Fix: pass the budget of the runs.")
    last = times.max()
    if last < horizon and not reached[times == last].all():
        law = f"must not lie behind the end of {where} ({last}) while a run is still without the target"
        raise AnalysisError(f"horizon: {law}, got {horizon}. Fix: pass at most {last}.")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise AnalysisError(f"level: must lie between 0 and 1, got {level}. Fix: pass 0.95 for 95 %.")


def _check_resamples(num_resamples: int) -> None:
    if num_resamples < 1:
        raise AnalysisError(f"num_resamples: must be >= 1, got {num_resamples}. Fix: pass {NUM_RESAMPLES}.")
