"""Every estimate with its interval, so that no table does statistics itself. Imports NumPy, SciPy, `study.errors`.

The unit of replication is the run: one number per run, and a failed run is a score of 0 (or a time that is not
reached) that the caller wrote. Intervals have the level that is asked for only as far as `README.md`, or a docstring,
says; tests simulate it.
"""

from study.statistics.estimate import (
    FEWEST_RUNS,
    NUM_RESAMPLES,
    TOO_FEW,
    BoolArray,
    Estimate,
    FloatArray,
    resamples,
    t_estimate,
    t_quantile,
    variance,
    without_interval,
)
from study.statistics.means import (
    better_with_permutation,
    difference_of_means,
    holm,
    iqm,
    iqm_interval,
    mean_interval,
    rate_interval,
)
from study.statistics.times import ratio_of_restricted_means, restricted_mean

__all__ = [
    "FEWEST_RUNS",
    "NUM_RESAMPLES",
    "TOO_FEW",
    "BoolArray",
    "Estimate",
    "FloatArray",
    "better_with_permutation",
    "difference_of_means",
    "holm",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "rate_interval",
    "ratio_of_restricted_means",
    "resamples",
    "restricted_mean",
    "t_estimate",
    "t_quantile",
    "variance",
    "without_interval",
]
