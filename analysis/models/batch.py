"""The batch that reaches the target soonest: steps to target against batch, and the clock. Imports NumPy, SciPy.

Steps to target grow with the batch as N(B) = N_min (1 + B / B_crit), and an iteration takes c(n) + d(n) B, so that the
time to target N(B) (c / B + d) is least at B* = sqrt(c B_crit / d), where it is N_min (sqrt(d) + sqrt(c / B_crit))^2.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import special

from analysis.models.iteration_time import IterationTimeFit
from analysis.models.observations import Cells
from analysis.models.regression import nonnegative, nonnegative_of_resamples
from analysis.models.resampling import NUM_RESAMPLES, degrees_of_freedom, percentile_estimate, run_weights
from study.errors import AnalysisError
from study.statistics import BoolArray, Estimate, FloatArray

_ROUNDS = 12
"""Rounds of filling in what censored runs would have taken; it settles to 1e-3 within ten at half of them censored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalBatch:
    """Steps to target against the batch.

    Intervals resample runs within batches. Runs that did not reach the target count as lognormal times known to be
    longer than their budget. With five batches of six runs and noise of 15 % a nominal 90 % covers 88-92 %, 91 % for
    the critical batch with a fifth of the runs censored (`test_derived_quantities_cover_as_their_docstrings_say`).

    Attributes:
        least_steps: N_min, env steps that the smallest batches need.
        critical_batch: B_crit, at which steps have doubled; None while the steps do not grow with the batch.
        reason: Why there is none; empty otherwise.
        n: Runs.
        draws: N_min and 1 / B_crit of each resample, shape (resamples, 2).
        degrees: Degrees of freedom of the intervals.
    """

    least_steps: Estimate
    critical_batch: Estimate | None
    reason: str
    n: int
    draws: FloatArray
    degrees: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BestBatch:
    """The batch that reaches the target soonest at one n.

    Attributes:
        num_env_runners: n.
        train_batch_size: B*, env steps.
        time_to_target_s: Training seconds to the target with it.
        extrapolated: Whether B* lies outside the fitted batches.
    """

    num_env_runners: int
    train_batch_size: Estimate
    time_to_target_s: Estimate
    extrapolated: bool


def fit_critical_batch(
    train_batch_size: npt.ArrayLike,
    env_steps_to_target: npt.ArrayLike,
    reached: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.9,
    num_resamples: int = NUM_RESAMPLES,
) -> CriticalBatch:
    """Fit N(B) = N_min (1 + B / B_crit) by non-negative least squares on relative error.

    Args:
        train_batch_size: B of each run, shape (runs,).
        env_steps_to_target: Steps to the target, or the budget of a run that did not reach it, shape (runs,), > 0.
        reached: Whether each reached it, shape (runs,), boolean.
        rng: Source of the resamples.
        level: Nominal coverage of the intervals.
        num_resamples: Resamples, >= 1.

    Raises:
        AnalysisError: Fewer than two batches have a run that reached the target.

    Source:
        McCandlish et al., An Empirical Model of Large-Batch Training (2018), equation 2.11 and its reciprocal.
    """
    batch = np.asarray(train_batch_size, dtype=np.float64)
    steps = np.asarray(env_steps_to_target, dtype=np.float64)
    done = np.asarray(reached)
    assert batch.ndim == 1 and batch.shape == steps.shape == done.shape and done.dtype == np.bool_
    assert (batch > 0).all() and (steps > 0).all() and np.isfinite(steps).all()
    if np.unique(batch[done]).size < 2:
        rule = "needs runs of two different batches that reached the target"
        raise AnalysisError(
            where="critical batch",
            rule=rule,
            got=np.unique(batch[done]).size,
            fix="Run more batches.",
            code="critical-batch-too-few",
        )
    numbers = np.unique(batch, return_inverse=True)[1].astype(np.int64)
    weights = run_weights(numbers, num_resamples=num_resamples, rng=rng)
    theta = _steps_line(batch, steps, done)
    lines = _steps_lines(batch, steps, done, weights, theta)
    degrees = degrees_of_freedom(numbers)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(lines[:, 0] > 0, lines[:, 1] / lines[:, 0], np.inf)
    reason = ""
    if theta[1] <= 0:
        reason = "the steps to target do not grow with the batch over the batches that were run"
    elif theta[0] <= 0:
        reason = (
            "the steps to target grow in proportion to the batch: the critical batch lies below those that were run"
        )
    estimate = partial(percentile_estimate, n=batch.size, degrees=degrees, level=level)
    with np.errstate(divide="ignore"):
        critical = None if reason else estimate(float(theta[0] / theta[1]), 1 / slopes)
    return CriticalBatch(
        least_steps=estimate(float(theta[0]), lines[:, 0]),
        critical_batch=critical,
        reason=reason,
        n=batch.size,
        draws=np.column_stack([lines[:, 0], slopes]),
        degrees=degrees,
    )


def best_batch(fit: IterationTimeFit, cells: Cells, critical: CriticalBatch) -> tuple[BestBatch, ...]:
    """Return B* and the time to target with it, for each cell's n and setting (its own batch is ignored).

    The minibatch and the epochs stay as they are: whether the steps to target do so too is the critical batch's matter.

    Raises:
        AnalysisError: The steps to target show no critical batch.
    """
    if critical.critical_batch is None:
        raise AnalysisError(
            where="best batch",
            rule=f"needs a critical batch: {critical.reason}",
            fix="Run larger batches.",
            code="no-critical-batch",
        )
    fixed_s, per_step_s = _linear(fit, cells, draws=False)
    fixed_draws, per_step_draws = _linear(fit, cells, draws=True)
    degrees = min(fit.degrees, critical.degrees)
    estimate = partial(percentile_estimate, n=fit.n + critical.n, degrees=degrees, level=fit.level)
    count = min(len(fixed_draws), len(critical.draws))
    least, slope = critical.draws[:count].T
    batches = fit.observations.cells.train_batch_size
    found = []
    for index in range(len(cells)):
        c, d = float(fixed_s[index]), float(per_step_s[index])
        cs, ds = fixed_draws[:count, index], per_step_draws[:count, index]
        best = float(np.sqrt(c * critical.critical_batch.value / d))
        with np.errstate(divide="ignore", invalid="ignore"):
            bests = np.nan_to_num(np.sqrt(cs / (slope * ds)), nan=np.inf, posinf=np.inf)
            times = least * (np.sqrt(ds) + np.sqrt(cs * slope)) ** 2
        time_s = critical.least_steps.value * (np.sqrt(d) + np.sqrt(c / critical.critical_batch.value)) ** 2
        found.append(
            BestBatch(
                num_env_runners=int(cells.num_env_runners[index]),
                train_batch_size=estimate(best, bests),
                time_to_target_s=estimate(float(time_s), times),
                extrapolated=not batches.min() <= best <= batches.max(),
            )
        )
    return tuple(found)


def _linear(fit: IterationTimeFit, cells: Cells, *, draws: bool) -> tuple[FloatArray, FloatArray]:
    """Return c(n) and d(n) of T = c + d B, shape (…, cells): without whole steps the time is linear in the batch."""
    times = fit.time_draws if draws else fit.times
    ends = cells.train_batch_size, 2 * cells.train_batch_size
    low, high = (times(replace(cells, train_batch_size=end), whole_steps=False)["iteration"] for end in ends)
    slope = (high - low) / (ends[1] - ends[0])
    return low - slope * ends[0], slope


def _steps_line(batch: FloatArray, steps: FloatArray, reached: BoolArray) -> FloatArray:
    """Return N_min and N_min / B_crit, both >= 0, shape (2,)."""
    features = np.column_stack([np.ones_like(batch), batch])
    theta = nonnegative(features, steps)
    return (
        theta if reached.all() else _with_censored(features, steps, reached, np.ones((1, batch.size)), theta[None])[0]
    )


def _steps_lines(
    batch: FloatArray, steps: FloatArray, reached: BoolArray, weights: FloatArray, theta: FloatArray
) -> FloatArray:
    """Return the same of each resample, shape (resamples, 2), errors relative to the fit to all runs."""
    features = np.column_stack([np.ones_like(batch), batch])
    lines = nonnegative_of_resamples(features, steps, weights, fitted=features @ theta)
    return lines if reached.all() else _with_censored(features, steps, reached, weights, lines)


def _with_censored(
    features: FloatArray, steps: FloatArray, reached: BoolArray, weights: FloatArray, lines: FloatArray
) -> FloatArray:
    """Fit again and again with what censored runs would have taken filled in; shape (resamples, 2)."""
    spread = np.full((len(lines), 1), 0.3)
    for _ in range(_ROUNDS):
        fitted = np.maximum(lines @ features.T, 1e-300)
        z = (np.log(steps) - np.log(fitted) + spread**2 / 2) / spread
        # log_ndtr(-z) is the logarithm of a normal number's chance to exceed z.
        beyond = special.log_ndtr(-z)
        filled = fitted * np.exp(special.log_ndtr(spread - z) - beyond)
        # The second moment of a normal number known to exceed z.
        square = np.where(reached, z**2, 1 + z * np.exp(-(z**2) / 2 - beyond) / np.sqrt(2 * np.pi))
        mean = np.sum(weights * square, axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
        spread = np.clip(spread * np.sqrt(mean), 1e-3, 2.0)
        target = np.where(reached, steps, filled)
        lines = nonnegative_of_resamples(features, target, weights, fitted=fitted)
    return lines
