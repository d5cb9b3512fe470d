"""Is one sample better, and what remains of many claims? Imports NumPy, SciPy, `study.errors`."""

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.errors import AnalysisError
from study.statistics.estimate import FloatArray, as_sample


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
