"""Amdahl's law: a part of each step that runners share, and a part that they do not. Imports NumPy, `study.errors`."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.models.regression import Curve, as_curve_data, fit_reciprocal
from study.statistics import Estimate, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdahlFit:
    """X(n) = X1 / (f + (1 - f) / n), fitted at a fixed batch.

    Intervals are asymptotic (delta method, Student's t). With six scales of three runs, f = 0.1 and lognormal noise
    of 3 % a nominal 90 % covers 88-91 % (`test_amdahl_and_usl_cover_as_their_docstrings_say`).

    Attributes:
        serial_fraction: f, in [0, 1], of the time with one runner.
        single_runner_throughput: X1, env steps per second.
        residual: Median absolute relative residual.
    """

    serial_fraction: Estimate
    single_runner_throughput: Estimate
    residual: float
    curve: Curve

    def throughput(self, num_env_runners: npt.ArrayLike) -> FloatArray:
        """Return env steps per second, in the shape of `num_env_runners`."""
        return _throughput(self.curve.theta, num_env_runners)


def fit_amdahl(
    num_env_runners: npt.ArrayLike,
    env_steps_per_s: npt.ArrayLike,
    *,
    blocks: npt.ArrayLike | None = None,
    level: float = 0.95,
) -> AmdahlFit:
    """Fit Amdahl's law by least relative error; the fraction cannot leave [0, 1].

    Args:
        num_env_runners: n of each run, shape (runs,).
        env_steps_per_s: Throughput of each run, shape (runs,), at one batch.
        blocks: Number of each run's block, shape (runs,), see `regression.fit_curve`; None: each is a block of its own.
        level: Nominal coverage of the intervals.

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Amdahl, AFIPS Spring Joint Computer Conference 30 (1967).
    """
    scales, rates = as_curve_data(num_env_runners, env_steps_per_s)
    curve = fit_reciprocal(np.column_stack([np.ones_like(scales), 1 / scales]), rates, scales, blocks)
    return AmdahlFit(
        serial_fraction=curve.estimate(lambda theta: float(theta[0] / theta.sum()), level=level, low=0.0, high=1.0),
        single_runner_throughput=curve.estimate(lambda theta: float(1 / theta.sum()), level=level, log=True),
        residual=curve.residual,
        curve=curve,
    )


def _throughput(theta: FloatArray, num_env_runners: npt.ArrayLike) -> FloatArray:
    scales = np.asarray(num_env_runners, dtype=np.float64)
    return np.asarray(1 / (theta[0] + theta[1] / scales), dtype=np.float64)
