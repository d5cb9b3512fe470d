"""Ernest's model of an iteration: a constant, work shared, a tree of messages, a message each. Imports NumPy."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from analysis.models.regression import Curve, as_curve_data, fit_reciprocal
from analysis.statistics import Estimate, FloatArray
from study.errors import AnalysisError

TERMS = ("constant", "shared", "tree", "each")
"""Unknowns, in seconds: of 1, B / n (per env step), ln n and n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErnestFit:
    """T = t0 + t1 B / n + t2 ln n + t3 n, all >= 0, for one workload at any batch.

    Intervals are asymptotic (delta method, Student's t, cut at 0) and take unknowns that the fit put to 0 for free: a
    nominal 90 % covers 99 % of the predictions from 32 to 46 runners where one of the four is truly 0.

    Attributes:
        terms: t0 to t3 by name, in seconds (t1 in seconds per env step).
        residual: Median absolute relative residual.
    """

    terms: dict[str, Estimate]
    residual: float
    curve: Curve
    level: float

    def iteration_time_s(self, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
        """Return seconds per iteration, shape (cells,)."""
        return np.asarray(_features(num_env_runners, train_batch_size) @ self.curve.theta, dtype=np.float64)

    def predict(self, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> tuple[Estimate, ...]:
        """Return seconds per iteration with the interval of the fitted curve, one per cell."""
        rows = _features(num_env_runners, train_batch_size)
        return tuple(self.curve.estimate(partial(_dot, row), level=self.level, log=True) for row in rows)


def fit_ernest(
    num_env_runners: npt.ArrayLike,
    train_batch_size: npt.ArrayLike,
    iteration_time_s: npt.ArrayLike,
    *,
    level: float = 0.95,
) -> ErnestFit:
    """Fit Ernest's model by non-negative least squares on relative error.

    Args:
        num_env_runners: n of each run, shape (runs,).
        train_batch_size: B of each run in env steps, shape (runs,).
        iteration_time_s: Time of each run's iterations, shape (runs,).
        level: Nominal coverage of the intervals.

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Venkataraman et al., Ernest, NSDI 2016, section 3.
    """
    times_s = np.asarray(iteration_time_s, dtype=np.float64)
    if not (times_s > 0).all():
        raise AnalysisError("iteration_time_s: must be > 0. Fix: leave out runs without times.")
    scales, rates = as_curve_data(num_env_runners, 1 / times_s)
    curve = fit_reciprocal(_features(scales, train_batch_size), rates)
    terms = {
        name: curve.estimate(partial(_dot, unit), level=level, low=0.0)
        for name, unit in zip(TERMS, np.eye(len(TERMS)), strict=True)
    }
    return ErnestFit(terms=terms, residual=curve.residual, curve=curve, level=level)


def _dot(row: FloatArray, theta: FloatArray) -> float:
    return float(row @ theta)


def _features(num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
    n, batch = np.broadcast_arrays(
        np.atleast_1d(np.asarray(num_env_runners, dtype=np.float64)),
        np.atleast_1d(np.asarray(train_batch_size, dtype=np.float64)),
    )
    return np.column_stack([np.ones_like(n), batch / n, np.log(n), n])
