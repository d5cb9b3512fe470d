"""Laws of n runners at a fixed batch: Amdahl's, and Gunther's with its peak, fitted by scipy's `curve_fit`.

Errors are relative: the logarithm of the throughput is fitted. What the runs of a block have in common is a factor
whose geometric mean over the blocks is 1, fitted with the law. Intervals are asymptotic (Student's t); how often they
hold the truth: `study/statistics/README.md`.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize

from study.errors import AnalysisError
from study.statistics import Estimate, FloatArray, t_quantile

LEAST_SCALES = 6
"""Distinct scales below which the three unknowns of the USL count as unidentified."""
MOST_OFF = 0.1
"""Median relative error on its own runs above which a model does not describe them."""
_MOST_CONDITION = 1e8
"""Condition of the standard errors' matrix above which the runs do not tell the unknowns apart."""
Law = Callable[..., FloatArray]


def amdahl(n: FloatArray, log_single: float, serial: float) -> FloatArray:
    """Return X1 / (f + (1 - f) / n), env steps per second.

    Source: Amdahl, AFIPS Spring Joint Computer Conference 30 (1967).
    """
    return np.asarray(np.exp(log_single) / (serial + (1 - serial) / n), dtype=np.float64)


def usl(n: FloatArray, log_single: float, contention: float, coherency: float) -> FloatArray:
    """Return g n / (1 + a (n - 1) + b n (n - 1)), env steps per second.

    Source: Gunther, Guerrilla Capacity Planning (2007); the R package usl (Moeding) for the published coefficients.
    """
    below = 1 + contention * (n - 1) + coherency * n * (n - 1)
    return np.asarray(np.exp(log_single) * n / below, dtype=np.float64)


def usl_peak(contention: float, coherency: float) -> float:
    """Return the n of the highest throughput, sqrt((1 - a) / b); nan where there is none."""
    return float(np.sqrt((1 - contention) / coherency)) if contention < 1 and coherency > 0 else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """A law fitted to runs at a fixed batch.

    Attributes:
        law: What was fitted.
        theta: Its unknowns, shape (unknowns,).
        covariance: Of the unknowns, within blocks, shape (unknowns, unknowns); infinite where the runs do not tell.
        n: Runs behind them.
        num_scales: Distinct numbers of runners.
        degrees: Runs beyond the unknowns and the blocks.
        off: Median over the runs of |predicted - observed| / observed throughput.
        level: Nominal coverage of the intervals.
    """

    law: Law
    theta: FloatArray
    covariance: FloatArray
    n: int
    num_scales: int
    degrees: int
    off: float
    level: float

    def throughput(self, num_env_runners: npt.ArrayLike) -> FloatArray:
        """Return env steps per second, in the shape of `num_env_runners`."""
        return self.law(np.asarray(num_env_runners, dtype=np.float64), *self.theta)

    def unknown(self, place: int, *, most: float = np.inf) -> Estimate:
        """Return one of the unknowns that lie in [0, most]."""
        half = self._half(np.eye(self.theta.size)[place])
        return self._estimate(float(self.theta[place]), half, low=0.0, high=most)

    @property
    def peak(self) -> Estimate | None:
        """Of the USL, the n of the highest throughput, by the delta method on its logarithm; None where `no_peak`."""
        if self.no_peak:
            return None
        _, contention, coherency = self.theta
        value = usl_peak(contention, coherency)
        half = self._half(np.array([0.0, -0.5 / (1 - contention), -0.5 / coherency]))
        return self._estimate(value, value * (np.exp(half) - 1), below=value * (1 - np.exp(-half)))

    @property
    def no_peak(self) -> str:
        """Why no peak can be told; empty where one can."""
        if self.num_scales < LEAST_SCALES:
            return f"{self.num_scales} distinct numbers of runners, fewer than {LEAST_SCALES}"
        if self.off > MOST_OFF:
            return f"the law does not describe these runs, off by {self.off:.0%} at their median"
        if self.theta[1] >= 1:
            return "the contention leaves no growth"
        return "" if self.unknown(2).low > 0 else "the interval of b holds 0: the runs show no retrograde part"

    def _half(self, slope: FloatArray) -> float:
        """Return half the width of the interval of a combination of the unknowns; infinite where nothing tells it."""
        if self.degrees < 1 or not np.isfinite(self.covariance).all():
            return float("inf")
        spread = float(np.sqrt(max(float(slope @ self.covariance @ slope), 0.0)))
        return t_quantile((1 + self.level) / 2, self.degrees) * spread

    def _estimate(
        self, value: float, above: float, *, below: float | None = None, low: float = -np.inf, high: float = np.inf
    ) -> Estimate:
        below = above if below is None else below
        ends = (-np.inf, np.inf)
        if np.isfinite(above):
            ends = min(max(value - below, low), value), max(min(value + above, high), value)
        method = "asymptotic, Student's t"
        return Estimate(value=value, low=ends[0], high=ends[1], n=self.n, level=self.level, method=method)


def fit_law(
    law: Law,
    num_env_runners: npt.ArrayLike,
    env_steps_per_s: npt.ArrayLike,
    *,
    blocks: npt.ArrayLike | None = None,
    level: float = 0.95,
) -> LawFit:
    """Fit a law by least squares of relative errors; its unknowns stay in their bounds.

    Args:
        law: `amdahl` or `usl`.
        num_env_runners: n of each run, shape (runs,).
        env_steps_per_s: Throughput of each run, shape (runs,), > 0, at one batch.
        blocks: Number of each run's block, shape (runs,); None: each is a block of its own. Blocks that hold one scale
            each cannot be told from the law: their runs then count as independent.
        level: Nominal coverage of the intervals.

    Raises:
        AnalysisError: There are fewer distinct scales than unknowns.
    """
    scales, logs = np.asarray(num_env_runners, dtype=np.float64), np.log(np.asarray(env_steps_per_s, dtype=np.float64))
    distinct = np.unique(scales).size
    start, most = ((0.1,), (1.0,)) if law is amdahl else ((0.05, 1e-4), (np.inf, np.inf))
    if distinct < len(start) + 1:
        rule = f"needs at least {len(start) + 1} different numbers of runners"
        raise AnalysisError(where="num_env_runners", rule=rule, got=distinct, fix="Measure more scales.")
    effects = _effects(scales, blocks)
    unknowns = len(start) + 1

    def predicted(n: FloatArray, *theta: float) -> FloatArray:
        return np.asarray(np.log(law(n, *theta[:unknowns])) + effects @ np.array(theta[unknowns:]))

    def slopes(n: FloatArray, *theta: float) -> FloatArray:
        return np.column_stack([_slopes(law, n, theta[:unknowns]), effects])

    zeros, open_ = np.zeros(effects.shape[1]), np.full(effects.shape[1], np.inf)
    first = float(np.max(logs - np.log(scales))) if law is usl else float(logs[scales.argmin()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optimize.OptimizeWarning)  # no covariance: the interval is open
        theta, covariance = optimize.curve_fit(
            predicted,
            scales,
            logs,
            p0=[first, *start, *zeros],
            bounds=([-np.inf, *np.zeros(len(start)), *-open_], [np.inf, *most, *open_]),
            jac=slopes,
            x_scale="jac",
            ftol=1e-12,
            xtol=1e-12,
            gtol=1e-12,
            max_nfev=2_000,
        )
    found = np.asarray(theta[:unknowns], dtype=np.float64)
    own = covariance[:unknowns, :unknowns]
    if np.linalg.cond(_scaled(slopes(scales, *theta))) > _MOST_CONDITION:
        own = np.full_like(own, np.inf)
    off = np.median(np.abs(np.exp(np.log(law(scales, *found)) - logs) - 1))
    return LawFit(
        law=law,
        theta=found,
        covariance=own,
        n=scales.size,
        num_scales=distinct,
        degrees=scales.size - unknowns - effects.shape[1],
        off=float(off),
        level=level,
    )


def _slopes(law: Law, n: FloatArray, theta: tuple[float, ...]) -> FloatArray:
    """Return d ln X / d theta, shape (runs, unknowns)."""
    if law is amdahl:
        return np.column_stack([np.ones_like(n), -(1 - 1 / n) / (theta[1] + (1 - theta[1]) / n)])
    below = 1 + theta[1] * (n - 1) + theta[2] * n * (n - 1)
    return np.column_stack([np.ones_like(n), -(n - 1) / below, -n * (n - 1) / below])


def _scaled(jacobian: FloatArray) -> FloatArray:
    size = np.linalg.norm(jacobian, axis=0)
    return jacobian / np.where(size > 0, size, 1.0)


def _effects(scales: FloatArray, blocks: npt.ArrayLike | None) -> FloatArray:
    """Return what the logarithms of the blocks' factors multiply, shape (runs, blocks - 1): they add up to 0."""
    if blocks is None:
        return np.zeros((scales.size, 0))
    numbers = np.unique(np.asarray(blocks), return_inverse=True)[1]
    count = int(numbers.max()) + 1
    if count < 2 or not any(np.unique(scales[numbers == number]).size > 1 for number in range(count)):
        return np.zeros((scales.size, 0))
    return np.vstack([np.eye(count - 1), -np.ones(count - 1)])[numbers]
