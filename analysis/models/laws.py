"""Laws of n runners: Amdahl's, Gustafson's, and Ernest's of an iteration. Imports NumPy, `study.errors`."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from analysis.models.regression import Curve, Fitted, as_cells, as_curve_data, fit_curve, nonnegative
from study.statistics import Estimate, FloatArray

TERMS = ("constant", "shared", "tree", "each")
"""Unknowns, in seconds: of 1, B / n (per env step), ln n and n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdahlFit:
    """X(n) = X1 / (f + (1 - f) / n), fitted at a fixed batch.

    Intervals are asymptotic (delta method, Student's t). With six scales of three runs, f = 0.1 and lognormal noise
    of 3 % a nominal 90 % covers 88-91 % (`test_amdahl_and_usl_cover_as_their_docstrings_say`).

    Attributes:
        serial_fraction: f, in [0, 1], of the time with one runner.
        curve: 1 / X as a function of 1 and 1 / n.
    """

    serial_fraction: Estimate
    curve: Curve

    def throughput(self, num_env_runners: npt.ArrayLike) -> FloatArray:
        """Return env steps per second, in the shape of `num_env_runners`."""
        scales = np.asarray(num_env_runners, dtype=np.float64)
        fixed, of_runners = self.curve.theta
        return np.asarray(1 / (fixed + of_runners / scales), dtype=np.float64)


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
    curve = fit_curve(partial(_fit_amdahl, scales), rates, scales, blocks)
    return AmdahlFit(
        serial_fraction=curve.estimate(lambda theta: float(theta[0] / theta.sum()), level=level, low=0.0, high=1.0),
        curve=curve,
    )


def _fit_amdahl(scales: FloatArray, rates: FloatArray) -> Fitted:
    features = np.column_stack([np.ones_like(scales), 1 / scales])
    theta = nonnegative(features, 1 / rates)
    time_s = features @ theta
    return Fitted(
        theta=theta,
        throughput=1 / time_s,
        jacobian=features / time_s[:, None],
        residuals=1 - 1 / (rates * time_s),
    )


def fit_gustafson(num_env_runners: npt.ArrayLike, env_steps_per_s: npt.ArrayLike) -> FloatArray:
    """Fit Gustafson's law X(n) = a + b n, a, b >= 0, with the steps per runner fixed, by least relative error.

    a / (a + b) is the serial fraction: the share of an iteration that grows with the batch however many runners there
    are; where the learner's work grows with the batch the law does not hold. A rival in the comparison of models.

    Args:
        num_env_runners: n of each run, shape (runs,).
        env_steps_per_s: Throughput of each run, shape (runs,), with the steps per runner fixed.

    Returns:
        a and b, env steps per second.

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Gustafson, Communications of the ACM 31 (1988).
    """
    scales, rates = as_curve_data(num_env_runners, env_steps_per_s)
    return nonnegative(np.column_stack([np.ones_like(scales), scales]), rates)


def fit_ernest(
    num_env_runners: npt.ArrayLike,
    train_batch_size: npt.ArrayLike,
    iteration_time_s: npt.ArrayLike,
) -> FloatArray:
    """Fit Ernest's model T = t0 + t1 B / n + t2 ln n + t3 n of one workload by least relative error, all >= 0.

    A rival in the comparison of models.

    Args:
        num_env_runners: n of each run, shape (runs,).
        train_batch_size: B of each run in env steps, shape (runs,).
        iteration_time_s: Time of each run's iterations, shape (runs,).

    Returns:
        t0 to t3, in the order of `TERMS`, shape (4,).

    Raises:
        AnalysisError: Fewer than two distinct scales, or a number that is not positive.

    Source:
        Venkataraman et al., Ernest, NSDI 2016, section 3.
    """
    times_s = np.asarray(iteration_time_s, dtype=np.float64)
    as_curve_data(num_env_runners, 1 / times_s)
    return nonnegative(_features(num_env_runners, train_batch_size), times_s)


def ernest_time_s(theta: npt.ArrayLike, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
    """Return seconds per iteration, shape (cells,), for theta = (t0, t1, t2, t3)."""
    return np.asarray(_features(num_env_runners, train_batch_size) @ np.asarray(theta), dtype=np.float64)


def _features(num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
    n, batch = as_cells(num_env_runners, train_batch_size)
    return np.column_stack([np.ones_like(n), batch / n, np.log(n), n])
