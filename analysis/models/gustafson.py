"""Gustafson's law: what a run gains when its batch grows with its runners. Imports NumPy, `study.errors`."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.models.regression import Curve, as_curve_data, covariance, nonnegative
from analysis.statistics import Estimate, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GustafsonFit:
    """X(n) = X1 (s + (1 - s) n), fitted with the steps per runner fixed.

    s is the share of an iteration that grows with the batch however many runners there are; where the learner's
    work grows with the batch the law does not hold, and the residual says so. Intervals are asymptotic (Student's t):
    a nominal 90 % covers 89 % for s = 0.07, six scales of three runs and 3 % noise.

    Attributes:
        serial_fraction: s, in [0, 1], of the scaled iteration.
        single_runner_throughput: X1, env steps per second.
        num_scales: Distinct numbers of runners.
        residual: Median absolute relative residual.
    """

    serial_fraction: Estimate
    single_runner_throughput: Estimate
    num_scales: int
    residual: float
    curve: Curve

    def throughput(self, num_env_runners: npt.ArrayLike) -> FloatArray:
        """Return env steps per second, in the shape of `num_env_runners`."""
        return _throughput(self.curve.theta, num_env_runners)

    def predict(self, num_env_runners: npt.ArrayLike) -> tuple[Estimate, ...]:
        """Return env steps per second with the interval of the fitted curve, one per entry."""
        return self.curve.along(_throughput, num_env_runners, level=self.serial_fraction.level)


def fit_gustafson(
    num_env_runners: npt.ArrayLike, env_steps_per_s: npt.ArrayLike, *, level: float = 0.95
) -> GustafsonFit:
    """Fit Gustafson's law by least relative error; the fraction cannot leave [0, 1].

    Args:
        num_env_runners: n of each run, shape (runs,).
        env_steps_per_s: Throughput of each run, shape (runs,), with the steps per runner fixed.
        level: Nominal coverage of the intervals.

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Gustafson, Communications of the ACM 31 (1988).
    """
    scales, rates = as_curve_data(num_env_runners, env_steps_per_s)
    features = np.column_stack([np.ones_like(scales), scales])
    theta = nonnegative(features, rates)
    fitted = features @ theta
    curve = Curve(
        theta=theta,
        covariance=covariance(features / fitted[:, None], 1 - rates / fitted),
        n=rates.size,
        relative=rates / fitted - 1,
    )
    return GustafsonFit(
        serial_fraction=curve.estimate(lambda each: float(each[0] / each.sum()), level=level, low=0.0, high=1.0),
        single_runner_throughput=curve.estimate(lambda each: float(each.sum()), level=level, log=True),
        num_scales=np.unique(scales).size,
        residual=curve.residual,
        curve=curve,
    )


def scaled_speed_up(serial_fraction: npt.ArrayLike, processors: npt.ArrayLike) -> FloatArray:
    """Return p + (1 - p) s, broadcast over both."""
    fraction, count = np.asarray(serial_fraction, dtype=np.float64), np.asarray(processors, dtype=np.float64)
    return np.asarray(count + (1 - count) * fraction, dtype=np.float64)


def _throughput(theta: FloatArray, num_env_runners: npt.ArrayLike) -> FloatArray:
    return np.asarray(theta[0] + theta[1] * np.asarray(num_env_runners, dtype=np.float64), dtype=np.float64)
