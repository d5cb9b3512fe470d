"""Means, shares of runs, their differences, and what remains of many claims. Imports NumPy, SciPy, `study.errors`."""

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.errors import AnalysisError
from study.statistics.estimate import (
    FEWEST_RUNS,
    NUM_RESAMPLES,
    Estimate,
    FloatArray,
    Side,
    as_sample,
    bootstrap,
    t_estimate,
    variance,
)

TRIMMED_SHARE = 0.25
"""Share of the runs cut from each end: the interquartile mean (rliable)."""


def mean_interval(values: npt.ArrayLike, *, level: float = 0.95) -> Estimate:
    """Return the mean of independent runs with Student's t interval; none with one run.

    **Not to be trusted for rare failures** (`README.md`): print `rate_interval` of the solved runs beside such a mean.

    Args:
        values: One number per run, shape (runs,).
        level: Nominal coverage, in (0, 1).

    Raises:
        AnalysisError: `values` is empty or not finite.
    """
    sample = as_sample("values", values)
    error, n = variance(sample) / sample.size, sample.size
    return t_estimate(float(sample.mean()), error, n - 1, n=n, level=level, method="Student t")


def difference_of_means(
    first: npt.ArrayLike, second: npt.ArrayLike, *, level: float = 0.95, side: Side = "both"
) -> Estimate:
    """Return mean(first) - mean(second) of independent runs with Welch's t interval; none where a sample has one run.

    **Not to be trusted for rare failures**, like `mean_interval`: a bound above -0.05 with 20 runs against 10 is found
    in 24 % of samples, not in 5 %, when failures in 5.2 % of the first sample's runs are all that separates the two
    (`test_a_margin_of_five_hundredths_is_passed_too_often`). 20 runs without a failure only exclude rates above 14 %.

    Args:
        first: One number per run, shape (runs of the first,).
        second: One number per run, shape (runs of the second,).
        level: Nominal coverage, in (0, 1).
        side: "both", or "lower" for a one-sided lower bound at `level`; `high` is then inf.

    Raises:
        AnalysisError: A sample is empty or not finite.

    Source:
        Welch, Biometrika 34 (1947), with Satterthwaite's degrees of freedom. SciPy's `ttest_ind` agrees (tested);
        it is not called because it warns, rightly, where a sample does not vary.
    """
    one, two = as_sample("first", first), as_sample("second", second)
    errors = variance(one) / one.size, variance(two) / two.size
    squared, degrees = sum(errors), 0.0
    if min(one.size, two.size) > 1:
        share = errors[0] / squared if squared > 0 else 0.5
        degrees = 1 / (share**2 / (one.size - 1) + (1 - share) ** 2 / (two.size - 1))
    value, n = float(one.mean() - two.mean()), one.size + two.size
    return t_estimate(value, squared, degrees, n=n, level=level, side=side, method="Welch t")


def iqm(values: npt.ArrayLike) -> float:
    """Return the interquartile mean: the mean after floor(n / 4) runs are cut from each end.

    It does not see failures of fewer than a quarter of the runs: where these matter, use the mean.

    Args:
        values: One number per run, shape (runs,).

    Raises:
        AnalysisError: `values` is empty or not finite.

    Source:
        Agarwal et al., NeurIPS 2021 (rliable's `aggregate_iqm`): whole runs are cut, there are no fractional weights.
    """
    return float(stats.trim_mean(as_sample("values", values), TRIMMED_SHARE))


def iqm_interval(values: npt.ArrayLike, *, level: float = 0.95, num_resamples: int = NUM_RESAMPLES) -> Estimate:
    """Return the interquartile mean with an interval: bootstrap from five runs on, Student's t below.

    Below five runs it is the trimmed Student's t, which for two and three runs, of which none is cut, is Student's t of
    the mean. From five runs on it is the expanded percentile bootstrap, see `estimate.bootstrap`: of those that were
    simulated (`README.md`) the only one that is not below 95 % where a study has its runs.

    Args:
        values: One number per run, shape (runs,), in any order.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.

    Raises:
        AnalysisError: `values` is empty or not finite.

    Source:
        Yuen, Biometrika 61 (1974), for the trimmed t.
    """
    sample = np.sort(as_sample("values", values))
    if sample.size < FEWEST_RUNS:
        n, cut = sample.size, int(TRIMMED_SHARE * sample.size)
        kept, winsorised = n - 2 * cut, np.clip(sample, sample[cut], sample[n - cut - 1])
        squared = variance(winsorised) * (n - 1) / (kept * (kept - 1)) if kept > 1 else 0.0
        method = "trimmed t" if cut else "Student t"
        return t_estimate(iqm(sample), squared, kept - 1, n=n, level=level, method=method)

    def statistic(resample: FloatArray, axis: int) -> FloatArray:
        return np.asarray(stats.trim_mean(resample, TRIMMED_SHARE, axis=axis), dtype=np.float64)

    return bootstrap(iqm(sample), (sample,), statistic, level=level, num_resamples=num_resamples)


def rate_interval(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """Return a share of runs with the Clopper-Pearson interval.

    It never covers less than `level`, at any true share. Wilson's is narrower, but a nominal 95 % falls to 83 % at
    n = 5 near 0 and 1, where solve rates live (`test_clopper_pearson_never_covers_less_and_wilson_does`).

    Args:
        successes: Runs that succeeded, in [0, n].
        n: Runs, >= 1.
        level: Least coverage, in (0, 1).

    Raises:
        AnalysisError: `n` is 0, `successes` is not in [0, n].

    Source:
        Clopper and Pearson, Biometrika 26 (1934).
    """
    if not 0 <= successes <= n or n < 1:
        rule, got = "`0 <= successes <= n` and `n >= 1` must hold", f"{successes} of {n}"
        raise AnalysisError(where="successes", rule=rule, got=got, fix="Count the runs again.")
    found = stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="exact")
    low, high = float(found.low), float(found.high)
    return Estimate(value=successes / n, low=low, high=high, n=n, level=level, method="Clopper-Pearson")


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
        AnalysisError: A sample has fewer than two runs or is not finite.

    Source:
        Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 9:39 (2010), on counting the observed assignment.
    """
    one, two = as_sample("first", first), as_sample("second", second)
    if min(one.size, two.size) < 2:
        got = f"{one.size} and {two.size}"
        raise AnalysisError(where="first, second", rule="each must hold two runs", got=got, fix="Run more seeds.")
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
        AnalysisError: `p_values` is empty or not finite.

    Source:
        Holm, Scand. J. Statist. 6 (1979); R's `p.adjust(method = "holm")`.
    """
    given = as_sample("p_values", p_values)
    order = np.argsort(given, kind="stable")
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1)), 1)
    return adjusted
