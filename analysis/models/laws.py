"""Laws of n runners at a fixed batch: Amdahl's, and Gunther's with its peak. Imports NumPy."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from analysis.models.regression import Curve, Fitted, as_curve_data, fit_curve, nonnegative
from study.statistics import Estimate, FloatArray

LEAST_SCALES = 6
"""Distinct scales below which the three unknowns count as unidentified (the definition in the tables)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdahlFit:
    """X(n) = X1 / (f + (1 - f) / n), fitted at a fixed batch.

    Intervals are asymptotic (delta method, Student's t); how often they hold the truth: `study/statistics/README.md`.

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
        AnalysisError: Fewer than two distinct scales.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class USLFit:
    """X(n) = g n / (1 + a (n - 1) + b n (n - 1)), a >= 0, b >= 0, fitted at a fixed batch.

    Intervals are asymptotic (Student's t; of the peak by the delta method on its logarithm); how often they hold the
    truth: `study/statistics/README.md`.

    Attributes:
        contention: a, dimensionless.
        coherency: b, dimensionless.
        peak: The n of the highest throughput, sqrt((1 - a) / b); None while unidentified, and where a >= 1.
        unidentified: Why no peak can be told; empty when one can.
        curve: The fit of g in env steps per second, a and b.
    """

    contention: Estimate
    coherency: Estimate
    peak: Estimate | None
    unidentified: str
    curve: Curve

    def throughput(self, num_env_runners: npt.ArrayLike) -> FloatArray:
        """Return env steps per second, in the shape of `num_env_runners`."""
        return usl_throughput(self.curve.theta, num_env_runners)


def fit_usl(
    num_env_runners: npt.ArrayLike,
    env_steps_per_s: npt.ArrayLike,
    *,
    blocks: npt.ArrayLike | None = None,
    level: float = 0.95,
) -> USLFit:
    """Fit the law by least squares of relative errors under a, b >= 0; arguments as those of `fit_amdahl`.

    Raises:
        AnalysisError: Fewer than three distinct scales.

    Source:
        Gunther, Guerrilla Capacity Planning (2007); the R package usl (Moeding) for the published coefficients.
    """
    scales, rates = as_curve_data(num_env_runners, env_steps_per_s, least=3)
    curve = fit_curve(partial(_fit_usl, scales), rates, scales, blocks)
    coherency = curve.estimate(lambda theta: float(theta[2]), level=level, low=0.0)
    num_scales = np.unique(scales).size
    unidentified = ""
    if num_scales < LEAST_SCALES:
        unidentified = f"{num_scales} distinct numbers of runners, fewer than {LEAST_SCALES}"
    elif coherency.low <= 0:
        unidentified = "the interval of b holds 0: the runs show no retrograde part"
    shown = not unidentified and curve.theta[1] < 1
    return USLFit(
        contention=curve.estimate(lambda theta: float(theta[1]), level=level, low=0.0),
        coherency=coherency,
        peak=curve.estimate(usl_peak, level=level, log=True) if shown else None,
        unidentified=unidentified,
        curve=curve,
    )


def usl_throughput(theta: npt.ArrayLike, num_env_runners: npt.ArrayLike) -> FloatArray:
    """Return g n / (1 + a (n - 1) + b n (n - 1)) for theta = (g, a, b)."""
    single, contention, coherency = np.asarray(theta, dtype=np.float64)
    n = np.asarray(num_env_runners, dtype=np.float64)
    return np.asarray(single * n / (1 + contention * (n - 1) + coherency * n * (n - 1)), dtype=np.float64)


def usl_peak(theta: npt.ArrayLike) -> float:
    """Return sqrt((1 - a) / b) for theta = (g, a, b); nan where a > 1 or b is not positive."""
    _, contention, coherency = np.asarray(theta, dtype=np.float64)
    return float(np.sqrt((1 - contention) / coherency)) if contention <= 1 and coherency > 0 else float("nan")


def _fit_usl(scales: FloatArray, rates: FloatArray) -> Fitted:
    # n / X is linear in (1, a, b) / g, and relative errors of n / X are those of X.
    features = np.column_stack([np.ones_like(scales), scales - 1, scales * (scales - 1)])
    line = nonnegative(features, scales / rates)
    # At g = infinity the line says nothing of a and b; the throughput with one runner is then that of the best rate.
    single = 1 / line[0] if line[0] > 0 else float((rates / scales).max())
    theta = np.array([single, line[1] * single, line[2] * single])
    fitted = usl_throughput(theta, scales)
    return Fitted(
        theta=theta,
        throughput=fitted,
        jacobian=_usl_jacobian(theta, scales) / fitted[:, None],
        residuals=(rates - fitted) / fitted,
    )


def _usl_jacobian(theta: FloatArray, scales: FloatArray) -> FloatArray:
    """Return dX / d(g, a, b), shape (runs, 3)."""
    fitted = usl_throughput(theta, scales)
    below = theta[0] * scales / fitted
    return np.column_stack([fitted / theta[0], -fitted * (scales - 1) / below, -fitted * scales * (scales - 1) / below])
