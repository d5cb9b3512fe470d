"""Ernest's model of an iteration: a constant, work shared, a tree of messages, a message each. Imports NumPy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.models.regression import as_curve_data, nonnegative
from study.errors import AnalysisError
from study.statistics import FloatArray

TERMS = ("constant", "shared", "tree", "each")
"""Unknowns, in seconds: of 1, B / n (per env step), ln n and n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErnestFit:
    """T = t0 + t1 B / n + t2 ln n + t3 n, all >= 0, for one workload at any batch.

    A rival in the comparison of models: no interval.

    Attributes:
        theta: t0 to t3, in the order of `TERMS`, shape (4,).
    """

    theta: FloatArray

    def iteration_time_s(self, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
        """Return seconds per iteration, shape (cells,)."""
        return np.asarray(_features(num_env_runners, train_batch_size) @ self.theta, dtype=np.float64)


def fit_ernest(
    num_env_runners: npt.ArrayLike,
    train_batch_size: npt.ArrayLike,
    iteration_time_s: npt.ArrayLike,
) -> ErnestFit:
    """Fit Ernest's model by non-negative least squares on relative error.

    Args:
        num_env_runners: n of each run, shape (runs,).
        train_batch_size: B of each run in env steps, shape (runs,).
        iteration_time_s: Time of each run's iterations, shape (runs,).

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Venkataraman et al., Ernest, NSDI 2016, section 3.
    """
    times_s = np.asarray(iteration_time_s, dtype=np.float64)
    if not (times_s > 0).all():
        raise AnalysisError(
            where="iteration_time_s",
            rule="must be > 0",
            fix="Leave out runs without times.",
            code="iteration-time-not-positive",
        )
    as_curve_data(num_env_runners, 1 / times_s)
    return ErnestFit(theta=nonnegative(_features(num_env_runners, train_batch_size), times_s))


def _features(num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
    n, batch = np.broadcast_arrays(
        np.atleast_1d(np.asarray(num_env_runners, dtype=np.float64)),
        np.atleast_1d(np.asarray(train_batch_size, dtype=np.float64)),
    )
    return np.column_stack([np.ones_like(n), batch / n, np.log(n), n])
