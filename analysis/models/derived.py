"""What follows from a fitted iteration-time model: ceiling, knee, last runner worth its CPU, splits. Imports NumPy.

All of it is prediction. Intervals are those of the model's resamples; they know the scatter of the runs, not what the
model leaves out. On planted truth with 3 runs per cell and 3 % noise a nominal 90 % covers 89-95 %
(`test_derived_quantities_cover_as_their_docstrings_say`). Times are taken smooth in n here: whole steps and minibatches
would let answers jump.
"""

from dataclasses import dataclass, replace

import numpy as np

from analysis.models.iteration_time import IterationTimeFit
from analysis.models.observations import Cells, IntArray
from analysis.models.phases import INDEX
from study.statistics import Estimate, FloatArray

MOST_RUNNERS = 4096
"""Where a search over runners ends."""
MOST_LIMIT = 512
"""Runners up to which a limit is looked for."""
_POINTS = 600
"""Points of the logarithmic grid on which a crossing is looked for, then interpolated."""
MARGINAL_THRESHOLD = 0.5
"""Marginal efficiency below which a runner counts as not worth its CPU: a tenth more CPUs gives half a tenth more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where sampling and learning take the same time.

    Attributes:
        num_env_runners: n of the crossing, not whole; None where there is none.
        reason: Why there is none; empty otherwise.
        extrapolated: Whether it lies beyond the largest fitted number of runners.
    """

    num_env_runners: Estimate | None
    reason: str
    extrapolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimit:
    """Do not go beyond this number of runners.

    Attributes:
        num_env_runners: The largest n that every runner up to it was worth its CPU for. None where every n that was
            looked at is worth it; without an upper end where that is so in some resamples.
        reason: Why there is none, or that the batch has no env step for a lane more; empty otherwise.
        env_steps_per_s: Throughput there; None where there is no limit.
        extrapolated: Whether it lies beyond the largest fitted number of runners.
    """

    num_env_runners: Estimate | None
    reason: str
    env_steps_per_s: Estimate | None
    extrapolated: bool


def throughput_ceiling(fit: IterationTimeFit, cells: Cells) -> tuple[Estimate | None, ...]:
    """Return 1 / [(E/L)(a/m + b/h) + c1/L + d1], which no number of runners and no batch exceeds, per cell.

    d1 stands here for all that costs main process and runners a fixed time per env step of the batch, gamma included.

    Returns:
        Env steps per second; None where the fit found no such cost.
    """
    per_step_s = _per_step_s(fit.coefficients, cells)
    draws = _per_step_s(fit.draws, cells)
    with np.errstate(divide="ignore"):
        rates = 1 / draws
    return tuple(
        fit.estimate(float(1 / each), rates[:, index]) if each > 0 else None for index, each in enumerate(per_step_s)
    )


def knee(fit: IterationTimeFit, cells: Cells) -> tuple[Knee, ...]:
    """Return the n at which T_sample = T_connect + T_update, for each cell's batch and setting; not its own n."""
    grid = np.geomspace(1, MOST_RUNNERS, _POINTS)
    largest = float(fit.observations.cells.num_env_runners.max())
    found = []
    for index in range(len(cells)):
        along = _along(cells, index, grid)
        value = _crossing(fit.times(along, whole_steps=False), grid)
        if 1 < value < np.inf:
            draws = _crossing(fit.time_draws(along, whole_steps=False), grid)
            estimate = fit.estimate(float(value), draws)
            found.append(Knee(num_env_runners=estimate, reason="", extrapolated=bool(value > largest)))
        else:
            reason = (
                "sampling takes no longer than learning with one runner already"
                if value <= 1
                else f"sampling takes longer than learning at every n up to {MOST_RUNNERS}"
            )
            found.append(Knee(num_env_runners=None, reason=reason, extrapolated=False))
    return tuple(found)


def runner_limit(fit: IterationTimeFit, cells: Cells) -> tuple[RunnerLimit, ...]:
    """Return the n beyond which one more runner is not worth its CPU, for each cell's batch and setting.

    Worth it: d ln X / d ln P between n and n + 1 is at least `MARGINAL_THRESHOLD`, with P = n + 1 CPUs. More lanes than
    env steps of the batch can do nothing: the limit is B / k at most, whatever the model says.

    Args:
        fit: The model.
        cells: Batch and setting; their own n is ignored.
    """
    largest = float(fit.observations.cells.num_env_runners.max())
    found = []
    for index in range(len(cells)):
        lanes = max(int(cells.train_batch_size[index] // cells.num_envs_per_env_runner[index]), 1)
        cap = min(MOST_LIMIT, lanes)
        scales = np.arange(1, cap + 2, dtype=np.float64)
        growth = np.diff(np.log(1 + scales))
        along = _along(cells, index, scales)
        rate = along.train_batch_size / fit.times(along, whole_steps=False)["iteration"]
        rates = along.train_batch_size / fit.time_draws(along, whole_steps=False)["iteration"]
        # Behind the cap: no lane has a step left, or nobody has looked.
        limits = np.append(scales[:cap], cap if cap == lanes else np.inf)
        last = int(_last_worth(rate, growth))
        draws = limits[_last_worth(rates, growth)]
        if not np.isfinite(limits[last]):
            reason = f"every runner up to {cap} is worth its CPU"
            found.append(RunnerLimit(num_env_runners=None, reason=reason, env_steps_per_s=None, extrapolated=False))
            continue
        at = int(limits[last]) - 1
        found.append(
            RunnerLimit(
                num_env_runners=fit.estimate(float(limits[last]), draws),
                reason="every lane has one env step of the batch there" if last == cap else "",
                env_steps_per_s=fit.estimate(float(rate[at]), rates[:, at]),
                extrapolated=bool(limits[last] > largest),
            )
        )
    return tuple(found)


def _along(cells: Cells, index: int, scales: FloatArray) -> Cells:
    one = cells.take(np.full(scales.size, index))
    return replace(one, num_env_runners=scales)


def _per_step_s(coefficients: FloatArray, cells: Cells) -> FloatArray:
    """Return seconds per env step that no runner takes away, shape (…, cells)."""
    a, b, c1, d1, gamma = (coefficients[..., [INDEX[name]]] for name in ("a", "b", "c1", "d1", "gamma"))
    update = cells.num_epochs / cells.num_learners * (a / cells.minibatch_size + b / cells.learner_threads)
    return np.asarray(update + c1 / cells.num_learners + d1 + gamma, dtype=np.float64)


def _crossing(times: dict[str, FloatArray], grid: FloatArray) -> FloatArray:
    """Return where sampling first takes no longer than learning; 1 if at once, inf if never. Shape (…,)."""
    above = np.log(times["sampling"] / times["learning"])
    below = above <= 0
    first = below.argmax(axis=-1)
    logs = np.log(grid)
    before = np.maximum(first - 1, 0)
    high = np.take_along_axis(above, before[..., None], -1)[..., 0]
    low = np.take_along_axis(above, first[..., None], -1)[..., 0]
    share = np.divide(high, high - low, out=np.zeros_like(high), where=high > low)
    crossed = np.exp(logs[before] + share * (logs[first] - logs[before]))
    return np.where(below.any(axis=-1), np.where(first == 0, 1.0, crossed), np.inf)


def _last_worth(rates: FloatArray, growth: FloatArray) -> IntArray:
    """Return the index of the last scale before the first step that is not worth it, that of the last one if none is.

    Shape (…, scales) -> (…,).
    """
    poor = np.diff(np.log(rates), axis=-1) / growth < MARGINAL_THRESHOLD
    return np.asarray(np.where(poor.any(axis=-1), poor.argmax(axis=-1), poor.shape[-1]), dtype=np.int64)
