"""Bounds of a setting's mean score, by which the search and the race rank it. Imports NumPy, `study.errors`."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from study.statistics.samples import FloatArray, as_numbers, as_sample, variance

BOUND_WIDTH = 0.5
"""Standard errors between the mean and the bound that is reported to the sampler (the protocol's choice)."""


def pooled_sd(groups: Sequence[npt.ArrayLike]) -> float | None:
    """Return the standard deviation within groups, pooled over the groups of two or more.

    Args:
        groups: Each the scores of one setting, shape (runs of the setting,).

    Returns:
        In the unit of the scores, >= 0; None where no group has two runs.

    Raises:
        AnalysisError: A group is empty or not finite.
    """
    samples = [as_sample(f"groups[{index}]", group) for index, group in enumerate(groups)]
    weights = [sample.size - 1 for sample in samples if sample.size > 1]
    if not weights:
        return None
    variances = [variance(sample) for sample in samples if sample.size > 1]
    return float(np.sqrt(np.average(variances, weights=weights)))


def lower_bound(scores: npt.ArrayLike, pooled_sd: float | None) -> float:
    """Return mean - 0.5 * max(sd, pooled sd) / sqrt(n): what the sampler is reported of a setting.

    One run has no standard deviation: the pooled one stands alone, and where that is missing too the bound is the
    score itself. It is no confidence bound of a known level.

    Args:
        scores: One score per run of the setting, shape (runs,).
        pooled_sd: `pooled_sd` over the settings, >= 0, in the unit of the scores.

    Raises:
        AnalysisError: `scores` is empty or not finite.
    """
    sample = as_sample("scores", scores)
    own = float(np.sqrt(variance(sample)))
    return float(sample.mean() - BOUND_WIDTH * max(own, pooled_sd or 0.0) / np.sqrt(sample.size))


def paired_lower_bounds(scores: npt.ArrayLike, pooled_sd: float | None = None) -> FloatArray:
    """Return, per setting, `lower_bound` of its differences from each seed's mean over the settings.

    So a block of the race, in which not every setting has run with every seed, is judged on the same seeds for all. It
    makes the comparison narrower only as far as the seed explains what the setting leaves. From two seeds on, the
    standard deviation is at least that of the differences pooled over the settings, so that luck at two seeds does not
    look like precision.

    Args:
        scores: Shape (settings, seeds); every setting ran with every seed.
        pooled_sd: Stands in at one seed, and is not used at more; >= 0, in the unit of the scores.

    Returns:
        Bounds on the advantage over the mean setting, shape (settings,), in the unit of the scores.

    Raises:
        AnalysisError: `scores` is empty, not a matrix or not finite.
    """
    matrix = as_numbers("scores", scores, dimensions=2)
    differences = matrix - matrix.mean(axis=0)
    if matrix.shape[1] > 1:
        pooled_sd = float(np.sqrt(differences.var(axis=1, ddof=1).mean()))
    return np.array([lower_bound(row, pooled_sd) for row in differences])
