"""The fitting that all models share: non-negative least squares on relative errors. Imports NumPy, SciPy.

Every law here is linear in its unknowns for the *time* of a step or of a phase (the reciprocal of a throughput), and
its unknowns are not negative. Errors are relative: a run that is 5 % off counts the same at 1 runner and at 46.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize

from study.errors import AnalysisError
from study.statistics import Estimate, FloatArray, t_quantile

_ROUNDS = 4
"""Reweightings. The weights settle to 1e-4 within three where errors are below 30 %."""
_FLOOR = 0.1
"""Least weight denominator, as a share of the median target: a phase that takes next to no time must not rule."""
_MOST_ROUNDS = 50
"""Rounds of fitting the law and the blocks in turn; two or three suffice where every block holds every scale."""
_SETTLED = 1e-10
"""Change of the blocks' logarithms at which they have settled."""
_MOST_CONDITION = 1e10
"""Condition of normal equations up to which they keep six digits."""


def nonnegative(
    features: FloatArray,
    target: FloatArray,
    *,
    offset: FloatArray | float = 0.0,
    weights: FloatArray | None = None,
    rounds: int = _ROUNDS,
) -> FloatArray:
    """Return theta >= 0 that minimises sum w ((offset + features @ theta - target) / fitted)^2.

    Dividing by the fitted value and not by the observed one keeps the fit at the mean: with lognormal noise of
    coefficient of variation v the latter lies 1.5 v^2 too low.

    Args:
        features: Shape (runs, unknowns), >= 0.
        target: Times, shape (runs,).
        offset: What is known of the target, shape (runs,) or one number.
        weights: Weight of each run, shape (runs,), >= 0; None for 1.
        rounds: Reweightings, >= 1.

    Returns:
        Shape (unknowns,).
    """
    known = np.broadcast_to(np.asarray(offset, dtype=np.float64), target.shape)
    root = np.ones_like(target) if weights is None else np.sqrt(weights)
    size = np.linalg.norm(features, axis=0)
    size[size == 0] = 1.0
    scaled = features / size
    floor = _floor(target)
    fitted, theta = target, np.zeros(features.shape[1])
    for _ in range(rounds):
        weight = root / np.maximum(fitted, floor)
        theta = optimize.nnls(scaled * weight[:, None], (target - known) * weight)[0]
        fitted = known + scaled @ theta
    return np.asarray(theta / size, dtype=np.float64)


def nonnegative_of_resamples(
    features: FloatArray,
    target: FloatArray,
    weights: FloatArray,
    *,
    fitted: FloatArray,
    offset: FloatArray | float = 0.0,
) -> FloatArray:
    """Return theta >= 0 of many resamples at once: least sum w ((offset + features @ theta - target) / fitted)^2.

    Errors are relative to a given fit, that to all runs, which saves the reweighting. Most resamples need no bound and
    are solved together by their normal equations; the others one by one.

    Args:
        features: Shape (runs, unknowns), >= 0.
        target: Shape (runs,) or (resamples, runs).
        weights: Shape (resamples, runs), >= 0.
        fitted: What errors are relative to, shape (runs,) or (resamples, runs).
        offset: What is known of the target, shape (runs,) or one number.

    Returns:
        Shape (resamples, unknowns).
    """
    size = np.linalg.norm(features, axis=0)
    used = size > 0
    scaled = features[:, used] / size[used]
    floor = _floor(target)
    precision = weights / np.maximum(fitted, floor) ** 2
    wanted = np.broadcast_to(target - offset, precision.shape)
    runs, unknowns = scaled.shape
    products = (scaled[:, :, None] * scaled[:, None, :]).reshape(runs, unknowns**2)
    gram = (precision @ products).reshape(-1, unknowns, unknowns)
    moments = (precision * wanted) @ scaled
    solved = np.full_like(moments, -1.0)
    told = np.linalg.cond(gram) < _MOST_CONDITION
    if told.any():
        solved[told] = np.linalg.solve(gram[told], moments[told][..., None])[..., 0]
    for index in np.flatnonzero((solved < 0).any(axis=1)):
        root = np.sqrt(precision[index])
        solved[index] = optimize.nnls(scaled * root[:, None], wanted[index] * root)[0]
    theta = np.zeros((len(solved), features.shape[1]))
    theta[:, used] = solved / size[used]
    return theta


def _floor(target: FloatArray) -> float:
    """Return the least weight denominator; the mean, and at last any number, where most or all of the times are 0."""
    size = np.abs(target)
    return _FLOOR * (float(np.median(size)) or float(size.mean()) or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Fitted unknowns with their asymptotic covariance.

    Attributes:
        theta: Unknowns, shape (unknowns,).
        covariance: Shape (unknowns, unknowns), within blocks; NaN where the runs do not tell the unknowns apart.
        n: Runs behind them.
        degrees: Runs beyond the unknowns and the blocks.
    """

    theta: FloatArray
    covariance: FloatArray
    n: int
    degrees: int

    def estimate(
        self,
        of: Callable[[FloatArray], float],
        *,
        level: float,
        log: bool = False,
        low: float = float("-inf"),
        high: float = float("inf"),
    ) -> Estimate:
        """Return a function of the unknowns with the interval of the delta method, by Student's t.

        For what does not move with the machine's speed, such as a serial fraction or the place of a peak: the interval
        knows how runs scatter within blocks, and nothing of what the blocks differ by.

        Args:
            of: theta, shape (unknowns,) -> number.
            level: Nominal coverage, in (0, 1).
            log: Whether the interval is made on the logarithm: for what is positive by nature.
            low: Least possible value; the interval is cut there.
            high: Largest possible value.

        Returns:
            No interval where there are no more runs than unknowns and blocks, or where the runs do not tell the
            unknowns apart.
        """
        value = of(self.theta)
        method = "asymptotic, Student's t" + (" of the logarithm" if log else "")
        unknown = Estimate(value=value, low=float("-inf"), high=float("inf"), n=self.n, level=level, method=method)
        if self.degrees < 1 or not np.isfinite(self.covariance).all():
            return unknown
        slope = _gradient(of, self.theta, np.sqrt(np.diag(self.covariance))) / (value if log else 1.0)
        spread = float(np.sqrt(max(float(slope @ self.covariance @ slope), 0.0)))
        half = t_quantile((1 + level) / 2, self.degrees) * spread
        if not np.isfinite(half):
            return unknown
        ends = (value * float(np.exp(-half)), value * float(np.exp(half))) if log else (value - half, value + half)
        return Estimate(
            value=value,
            low=float(min(max(ends[0], low), value)),
            high=float(max(min(ends[1], high), value)),
            n=self.n,
            level=level,
            method=method,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A law fitted to runs without regard to their blocks.

    Attributes:
        theta: Unknowns, shape (unknowns,).
        throughput: The law at each run, shape (runs,).
        jacobian: What a change of the unknowns does to `residuals`, shape (runs, unknowns).
        residuals: Errors that the fit makes least, shape (runs,).
    """

    theta: FloatArray
    throughput: FloatArray
    jacobian: FloatArray
    residuals: FloatArray


def fit_curve(
    solve: Callable[[FloatArray], Fitted],
    throughput: FloatArray,
    scales: FloatArray,
    blocks: npt.ArrayLike | None,
) -> Curve:
    """Return a law's curve, with what a block of runs has in common as a factor.

    Every run of a block is faster or slower by one factor, whose geometric mean over the blocks is 1. It is fitted
    together with the law. Blocks that hold one scale each cannot be told from the law: their runs then count as
    independent.

    Args:
        solve: Throughputs of the runs, shape (runs,) -> the law fitted to them.
        throughput: Shape (runs,), > 0.
        scales: Number of runners of each run, shape (runs,).
        blocks: Number of each run's block, shape (runs,); None where each run is a block of its own.
    """
    numbers = np.arange(scales.size) if blocks is None else np.unique(np.asarray(blocks), return_inverse=True)[1]
    count = int(numbers.max()) + 1
    crossed = any(np.unique(scales[numbers == number]).size > 1 for number in range(count))
    logs = np.zeros(count)
    fitted = solve(throughput)
    if crossed and count > 1:
        sizes = np.bincount(numbers)
        for _ in range(_MOST_ROUNDS):
            found = np.bincount(numbers, weights=np.log(throughput / fitted.throughput)) / sizes
            moved, logs = np.abs(found - found.mean() - logs).max(), found - found.mean()
            fitted = solve(throughput / np.exp(logs[numbers]))
            if moved < _SETTLED:
                break
    jacobian, unknowns = fitted.jacobian, fitted.theta.size
    if crossed and count > 1:
        # Effects that add up to 0: the unknowns are those of the mean block.
        effects = np.vstack([np.eye(count - 1), -np.ones(count - 1)])[numbers]
        jacobian = np.column_stack([jacobian, effects])
    return Curve(
        theta=fitted.theta,
        covariance=covariance(jacobian, fitted.residuals)[:unknowns, :unknowns],
        n=throughput.size,
        degrees=throughput.size - jacobian.shape[1],
    )


def covariance(jacobian: FloatArray, residuals: FloatArray) -> FloatArray:
    """Return s^2 (J'J)^-1 with s^2 the residual variance; NaN where it does not exist.

    Args:
        jacobian: Shape (runs, unknowns).
        residuals: Shape (runs,).
    """
    runs, unknowns = jacobian.shape
    size = np.linalg.norm(jacobian, axis=0)
    unknown = np.full((unknowns, unknowns), np.nan)
    if runs <= unknowns or (size == 0).any():
        return unknown
    scaled = jacobian / size
    if np.linalg.matrix_rank(scaled, tol=1e-8) < unknowns:
        return unknown
    variance = float(residuals @ residuals) / (runs - unknowns)
    return np.asarray(np.linalg.inv(scaled.T @ scaled) * variance / np.outer(size, size), dtype=np.float64)


def as_curve_data(
    num_env_runners: npt.ArrayLike, env_steps_per_s: npt.ArrayLike, *, least: int = 2
) -> tuple[FloatArray, FloatArray]:
    """Return runners and throughputs as arrays, shape (runs,) each, all > 0.

    Raises:
        AnalysisError: There are fewer than `least` distinct scales.
    """
    scales = np.asarray(num_env_runners, dtype=np.float64)
    rates = np.asarray(env_steps_per_s, dtype=np.float64)
    assert scales.ndim == 1 and scales.shape == rates.shape
    assert ((scales > 0) & (rates > 0) & np.isfinite(rates)).all()
    distinct = np.unique(scales).size
    if distinct < least:
        raise AnalysisError(
            where="num_env_runners",
            rule=f"needs at least {least} different numbers of runners",
            got=distinct,
            fix="Measure more scales.",
        )
    return scales, rates


def _gradient(of: Callable[[FloatArray], float], at: FloatArray, errors: FloatArray) -> FloatArray:
    slope = np.zeros_like(at)
    for index in range(at.size):
        step = 1e-5 * max(abs(at[index]), float(errors[index]), 1e-300)
        above, below = at.copy(), at.copy()
        above[index] += step
        below[index] -= step
        slope[index] = (of(above) - of(below)) / (2 * step)
    return slope
