"""Gustafson's law: what a run gains when its batch grows with its runners. Imports NumPy, `study.errors`."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.models.regression import as_curve_data, nonnegative
from study.statistics import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GustafsonFit:
    """X(n) = X1 (s + (1 - s) n), fitted with the steps per runner fixed.

    s is the share of an iteration that grows with the batch however many runners there are; where the learner's
    work grows with the batch the law does not hold. A rival in the comparison of models: no interval.

    Attributes:
        serial_fraction: s, in [0, 1], of the scaled iteration.
        theta: X = theta[0] + theta[1] n, env steps per second, shape (2,).
    """

    serial_fraction: float
    theta: FloatArray

    def throughput(self, num_env_runners: npt.ArrayLike) -> FloatArray:
        """Return env steps per second, in the shape of `num_env_runners`."""
        return np.asarray(self.theta[0] + self.theta[1] * np.asarray(num_env_runners, dtype=np.float64))


def fit_gustafson(num_env_runners: npt.ArrayLike, env_steps_per_s: npt.ArrayLike) -> GustafsonFit:
    """Fit Gustafson's law by least relative error; the fraction cannot leave [0, 1].

    Args:
        num_env_runners: n of each run, shape (runs,).
        env_steps_per_s: Throughput of each run, shape (runs,), with the steps per runner fixed.

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Gustafson, Communications of the ACM 31 (1988).
    """
    scales, rates = as_curve_data(num_env_runners, env_steps_per_s)
    features = np.column_stack([np.ones_like(scales), scales])
    theta = nonnegative(features, rates)
    return GustafsonFit(serial_fraction=float(theta[0] / theta.sum()), theta=theta)


def scaled_speed_up(serial_fraction: npt.ArrayLike, processors: npt.ArrayLike) -> FloatArray:
    """Return p + (1 - p) s, broadcast over both."""
    fraction, count = np.asarray(serial_fraction, dtype=np.float64), np.asarray(processors, dtype=np.float64)
    return np.asarray(count + (1 - count) * fraction, dtype=np.float64)
