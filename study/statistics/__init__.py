"""Every estimate with its interval, so that no table does statistics itself.

The unit of replication is the run: one number per run, and a failed run is a score of 0 (or a time that is not
reached) that the caller wrote. Intervals have the level that is asked for only as far as `README.md`, or a docstring,
says; tests simulate it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.errors import AnalysisError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Side = Literal["both", "lower"]

LEVEL = 0.95
"""Nominal coverage of an interval, unless another is asked for."""
NUM_RESAMPLES = 2_000
"""Resamples of a bootstrap: the ends of a 95 % interval then move by about 2 % of its width between two seeds."""
NUM_PERMUTATIONS = 9_999
"""Permutations of a comparison: the least p-value is then 1 in 10,000."""
BOOTSTRAP = "expanded percentile bootstrap"
SEED = 20_251_121
"""Of all resamples: the same runs, sorted, have the same interval everywhere."""
FEWEST_RUNS = 5
"""Runs of the smallest sample below which no bootstrap interval is given.
The resamples of fewer runs cannot leave their range: a nominal 95 % would cover 49 / 74 / 87 % at 2 / 3 / 4 runs."""
TOO_FEW = f"none: a bootstrap needs {FEWEST_RUNS} runs of each sample"
"""Method of an estimate that has no interval for that reason."""
MIXED = f"none: solved and unsolved runs mix, and there are fewer than {FEWEST_RUNS}"
"""Method of a mean that has no interval for that reason: two kinds of runs, and too few to know their shares."""


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
        rule = "`low <= high`, a finite value and `n >= 1` must hold"
        got = f"{self.value} [{self.low}, {self.high}], n={self.n}, level={self.level}"
        holds = self.low <= self.high and math.isfinite(self.value) and self.n >= 1
        _check(holds, "estimate", rule, got, "Check the values and the level that it was computed from.")

    @property
    def has_interval(self) -> bool:
        """Whether at least one end is known."""
        return bool(np.isfinite(self.low) or np.isfinite(self.high))


def as_sample(where: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as a checked sample: not empty, finite, shape (runs,)."""
    numbers = np.asarray(values, dtype=np.float64)
    rule, shape = "must hold at least one number in 1 dimension", f"shape {numbers.shape}"
    _check(numbers.ndim == 1 and numbers.size > 0, where, rule, shape, "Pass one number per run.")
    odd, fix = numbers[~np.isfinite(numbers)], "Write a failed run as score 0, or as a time that is not reached."
    _check(odd.size == 0, where, "every value must be finite", odd[:1], fix)
    return numbers


def _check(holds: bool, where: str, rule: str, got: object, fix: str) -> None:
    if not holds:
        raise AnalysisError(where=where, rule=rule, got=got, fix=fix)


def variance(sample: FloatArray) -> float:
    """Return the unbiased variance; exactly 0 where all values are equal, and for one run."""
    return float(sample.var(ddof=1)) if np.ptp(sample) > 0 else 0.0


def without_interval(value: float, *, n: int, level: float, method: str) -> Estimate:
    """Return `value` with nothing known about it, as from one run."""
    return Estimate(value=value, low=float("-inf"), high=float("inf"), n=n, level=level, method=method)


@lru_cache
def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t. SciPy takes a tenth of a millisecond for it, and the same ones come again."""
    return float(stats.t.ppf(probability, degrees))


def t_estimate(
    value: float, squared_error: float, degrees: float, *, n: int, level: float, method: str, side: Side = "both"
) -> Estimate:
    """Return value +- t * sqrt(squared_error); `degrees` below 1 says that the error is unknown."""
    if degrees < 1:
        return without_interval(value, n=n, level=level, method=method)
    half = t_quantile((1 + level) / 2 if side == "both" else level, degrees) * float(np.sqrt(squared_error))
    high = value + half if side == "both" else float("inf")
    return Estimate(value=value, low=value - half, high=high, n=n, level=level, method=method)


def bootstrap(
    value: float,
    samples: tuple[npt.NDArray[Any], ...],
    statistic: Callable[..., FloatArray],
    *,
    level: float,
) -> Estimate:
    """Return `value` with percentiles of resamples within each sample, spread as Student's t would be.

    A resample varies less than the sample's source (by (n - 1) / n), and the spread is itself estimated. The tails are
    therefore taken at the normal probability of sqrt(n / (n - 1)) * t(level, n - 1), n being the runs of the smallest
    sample. Callers sort the samples, so that the order of runs does not matter. With fewer than `FEWEST_RUNS` runs in
    a sample there is no interval.

    Source:
        Hesterberg, The American Statistician 69 (2015), section 4.3 (expanded percentile).
    """
    sizes = [sample.size for sample in samples]
    n, least = sum(sizes), min(sizes)
    if least < FEWEST_RUNS:
        return without_interval(value, n=n, level=level, method=TOO_FEW)
    quantile = np.sqrt(least / (least - 1)) * stats.t.ppf((1 + level) / 2, least - 1)
    interval = stats.bootstrap(
        samples,
        statistic,
        vectorized=True,
        n_resamples=NUM_RESAMPLES,
        confidence_level=float(1 - 2 * stats.norm.sf(quantile)),
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    # Of equal runs the two ends may differ by a rounding error, in either order.
    low, high = sorted((float(interval.low), float(interval.high)))
    return Estimate(value=value, low=low, high=high, n=n, level=level, method=BOOTSTRAP)


# --- means, shares of runs, their differences, and what remains of many claims ----------------------------------------

TRIMMED_SHARE = 0.25
"""Share of the runs cut from each end: the interquartile mean (rliable)."""
EQUAL_DIGITS = 12
"""Digits to which two assignments of a permutation test must agree to count as equal, in spite of rounding."""


def few_and_mixed(solved: npt.ArrayLike | None, n: int) -> bool:
    """Return whether fewer than `FEWEST_RUNS` runs are partly solved; False where nobody says which are."""
    return solved is not None and n < FEWEST_RUNS and 0 < int(np.count_nonzero(solved)) < n


def mean_interval(values: npt.ArrayLike, *, solved: npt.ArrayLike | None = None) -> Estimate:
    """Return the mean of independent runs with Student's t interval.

    There is none with one run, and none where fewer than `FEWEST_RUNS` runs are partly solved. **Not to be trusted for
    rare failures** (`README.md`): print `rate_interval` of the solved runs beside such a mean.

    Args:
        values: One number per run, shape (runs,).
        solved: Which runs learnt the task, shape (runs,), boolean; None where there is no such thing.
    """
    sample = as_sample("values", values)
    n, value = sample.size, float(sample.mean())
    if few_and_mixed(solved, n):
        return without_interval(value, n=n, level=LEVEL, method=MIXED)
    return t_estimate(value, variance(sample) / n, n - 1, n=n, level=LEVEL, method="Student t")


def difference_of_means(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    level: float = LEVEL,
    side: Side = "both",
    solved: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Estimate:
    """Return mean(first) - mean(second) of independent runs with Welch's t interval.

    There is none where there would be none of one of the means. **Not to be trusted for rare failures**, like
    `mean_interval`: where failures in 5 % of the first sample's runs are all that separates the two, a lower bound at
    95 % lies above the truth in a quarter to a third of samples of 5 to 20 runs (`README.md`).

    Args:
        first: One number per run, shape (runs of the first,).
        second: One number per run, shape (runs of the second,).
        level: Nominal coverage, in (0, 1).
        side: "both", or "lower" for a one-sided lower bound at `level`; `high` is then inf.
        solved: Which runs of each learnt the task, boolean; None where there is no such thing.

    Source:
        Welch, Biometrika 34 (1947), with Satterthwaite's degrees of freedom. SciPy's `ttest_ind` agrees (tested).
    """
    one, two = as_sample("first", first), as_sample("second", second)
    errors = variance(one) / one.size, variance(two) / two.size
    squared, degrees = sum(errors), 0.0
    if min(one.size, two.size) > 1:
        share = errors[0] / squared if squared > 0 else 0.5
        degrees = 1 / (share**2 / (one.size - 1) + (1 - share) ** 2 / (two.size - 1))
    value, n = float(one.mean() - two.mean()), one.size + two.size
    if any(few_and_mixed(kinds, each.size) for kinds, each in zip(solved or (), (one, two), strict=False)):
        return without_interval(value, n=n, level=level, method=MIXED)
    return t_estimate(value, squared, degrees, n=n, level=level, side=side, method="Welch t")


def _iqm(runs: FloatArray, axis: int) -> FloatArray:
    return np.asarray(stats.trim_mean(runs, TRIMMED_SHARE, axis=axis), dtype=np.float64)


def iqm_interval(values: npt.ArrayLike, *, solved: npt.ArrayLike | None = None) -> Estimate:
    """Return the interquartile mean with an interval; for the arguments see `mean_interval`.

    Floor(n / 4) runs are cut from each end, as rliable's `aggregate_iqm` does. It does not see failures of fewer than
    a quarter of the runs: where these matter, use the mean. The interval is the trimmed Student's t below five runs.
    From five on it is the expanded percentile `bootstrap`: of those that were simulated (`README.md`) the only one that
    is not below 95 % where a study has its runs.

    Source:
        Agarwal et al., NeurIPS 2021. Yuen, Biometrika 61 (1974), for the trimmed t.
    """
    sample = np.sort(as_sample("values", values))
    n, value = sample.size, float(_iqm(sample, axis=0))
    if few_and_mixed(solved, n):
        return without_interval(value, n=n, level=LEVEL, method=MIXED)
    if n >= FEWEST_RUNS:
        return bootstrap(value, (sample,), _iqm, level=LEVEL)
    cut = int(TRIMMED_SHARE * n)
    kept, winsorised = n - 2 * cut, np.clip(sample, sample[cut], sample[n - cut - 1])
    squared = variance(winsorised) * (n - 1) / (kept * (kept - 1)) if kept > 1 else 0.0
    return t_estimate(value, squared, kept - 1, n=n, level=LEVEL, method="trimmed t" if cut else "Student t")


def rate_interval(successes: int, n: int) -> Estimate:
    """Return a share of runs with the Clopper-Pearson interval.

    It never covers less than `LEVEL`, at any true share (`test_clopper_pearson_never_covers_less`). Wilson's is
    narrower, but a nominal 95 % falls to 83 % at n = 5 near 0 and 1, where solve rates live.

    Source:
        Clopper and Pearson, Biometrika 26 (1934).
    """
    rule, got = "`0 <= successes <= n` and `n >= 1` must hold", f"{successes} of {n}"
    _check(0 <= successes <= n and n >= 1, "successes", rule, got, "Count the runs again.")
    found = stats.binomtest(successes, n).proportion_ci(confidence_level=LEVEL, method="exact")
    low, high = float(found.low), float(found.high)
    return Estimate(value=successes / n, low=low, high=high, n=n, level=LEVEL, method="Clopper-Pearson")


def better_with_permutation(first: npt.ArrayLike, second: npt.ArrayLike, *, rng: np.random.Generator) -> float:
    """Return the one-sided p-value that mean(first) > mean(second), by a studentised permutation test of the runs.

    The statistic is Welch's t. So the test is exact under "both samples come from one distribution", with any ties and
    any share of zeros, and tends to its level under "equal means" where spreads differ, as a permutation of plain means
    does not. All assignments are tried where there are no more than `NUM_PERMUTATIONS`. **Not to be trusted for rare
    failures**: where `first` fails in 5 to 10 % of runs and a steady `second` has the same mean, p <= 0.05 comes up in
    15 to 45 % of samples of 5 to 20 runs, at 30 % in 8 to 17 % (tested).

    Args:
        first: One number per run, shape (runs of the first,).
        second: One number per run, shape (runs of the second,).
        rng: Source of the permutations.

    Source:
        Janssen, Statistics & Probability Letters 36 (1997); Chung and Romano, Annals of Statistics 41 (2013).
        Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 9:39 (2010), on counting the observed assignment.
    """
    one, two = as_sample("first", first), as_sample("second", second)
    enough, got = min(one.size, two.size) >= 2, f"{one.size} and {two.size}"
    _check(enough, "first, second", "each must hold two runs", got, "Run more seeds.")
    least = min(one.min(), two.min())  # so that runs that are all equal are all exactly 0

    def statistic(ours: FloatArray, theirs: FloatArray, axis: int) -> FloatArray:
        lead = ours.mean(axis=axis) - theirs.mean(axis=axis)
        squared = sum(each.var(axis=axis, ddof=1) / each.shape[axis] for each in (ours, theirs))
        # t / sqrt(1 + t^2) has the order of t, and is 1 or -1 where neither sample varies.
        length = np.sqrt(lead**2 + squared)
        bounded = np.divide(lead, length, out=np.zeros_like(length), where=length > 0)
        return np.asarray(np.round(bounded, EQUAL_DIGITS), dtype=np.float64)

    test = stats.permutation_test(
        (one - least, two - least), statistic, alternative="greater", n_resamples=NUM_PERMUTATIONS, rng=rng
    )
    return float(test.pvalue)


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Return p-values, shape (tests,), so adjusted that the chance of any false claim among them is below the level.

    Source:
        Holm, Scand. J. Statist. 6 (1979); R's `p.adjust(method = "holm")`.
    """
    given = as_sample("p_values", p_values)
    order = np.argsort(given, kind="stable")
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1)), 1)
    return adjusted


# --- ratios of mean times ---------------------------------------------------------------------------------------------

RESOLVED = f"{BOOTSTRAP}, with the time between two looks"


def ratio_of_means(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    level: float = LEVEL,
    since: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Estimate:
    """Return mean(first) / mean(second) of times, with the expanded percentile bootstrap: above 1, `second` is faster.

    Times to a target are cut at a horizon up to which every run was watched. A run that did not get there, or failed,
    counts as the horizon: the ratio is then a bound, not the speed-up. Equal runs have equal intervals.

    Where evaluations are apart, the target is reached at some time since the evaluation before, which resamples do not
    know. With `since` the lower end is that of the earliest times of `first` over the recorded
    ones of `second`, the upper end that of the recorded ones over the earliest: the interval holds wherever in between
    the truth lies (`test_the_ends_of_a_ratio_hold_the_time_between_two_looks`).

    Args:
        first: Times, shape (runs of the first,), > 0, any unit.
        second: Times, shape (runs of the second,), in the same unit.
        level: Nominal coverage, in (0, 1).
        since: When each run of `first`, and of `second`, was last seen without the target; None where the times are
            exact.

    Returns:
        A ratio, > 0, of the recorded times. No interval when a sample has fewer than `FEWEST_RUNS` runs, or when all
        times are the same one: they are the horizon, and say nothing. No upper end where the earliest times of `second`
        are 0, and no interval where those of `first` are 0 as well.
    """
    one, two = np.sort(as_sample("first", first)), np.sort(as_sample("second", second))
    value, few = float(one.mean() / two.mean()), min(one.size, two.size) < FEWEST_RUNS
    nothing = without_interval(value, n=one.size + two.size, level=level, method=TOO_FEW if few else BOOTSTRAP)
    if np.ptp(np.concatenate([one, two])) == 0:
        return nothing

    def resampled(above: FloatArray, below: FloatArray) -> Estimate:
        return bootstrap(value, (above, below), _ratio, level=level)

    if since is None:
        return resampled(one, two)
    earliest, others = (np.sort(as_sample("since", each)) for each in since)
    # The upper end by the inverse ratio: its denominator is never 0.
    low, inverse = resampled(earliest, two).low, resampled(others, one).low
    if not np.isfinite(low) or (low <= 0 and inverse <= 0):
        return nothing
    high = 1 / inverse if inverse > 0 else float("inf")
    return replace(nothing, low=min(low, value), high=max(high, value), method=RESOLVED)


def _ratio(first: FloatArray, second: FloatArray, axis: int) -> FloatArray:
    return np.asarray(first.mean(axis=axis) / second.mean(axis=axis), dtype=np.float64)
