"""What follows from a fitted iteration-time model: ceiling, knee, last runner worth its CPU, splits. Imports NumPy.

All of it is prediction. Intervals are those of the model's resamples; they know the scatter of the runs, not what the
model leaves out. On planted truth with 3 runs per cell and 3 % noise a nominal 90 % covers 89-95 %
(`test_derived_quantities_cover_as_their_docstrings_say`). Times are taken smooth in n here: whole steps and minibatches
would let answers jump.
"""

from dataclasses import replace

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


def throughput_ceiling(fit: IterationTimeFit, cell: Cells) -> Estimate | None:
    """Return 1 / [(E/L)(a/m + b/h) + c1/L + d1], which no number of runners and no batch exceeds, for one cell.

    d1 stands here for all that costs main process and runners a fixed time per env step of the batch, gamma included.

    Returns:
        Env steps per second; None where the fit found no such cost.
    """
    per_step_s = float(_per_step_s(fit.coefficients, cell)[0])
    if per_step_s <= 0:
        return None
    with np.errstate(divide="ignore"):
        return fit.estimate(1 / per_step_s, 1 / _per_step_s(fit.draws, cell)[:, 0])


def knee(fit: IterationTimeFit, cell: Cells) -> Estimate | None:
    """Return the n at which T_sample = T_connect + T_update, for one cell's batch and setting; not its own n.

    Returns:
        Runners, not whole; None where sampling takes no longer than learning with one runner already, or longer at
        every n up to `MOST_RUNNERS`.
    """
    grid = np.geomspace(1, MOST_RUNNERS, _POINTS)
    along = _along(cell, grid)
    value = float(_crossing(fit.times(along, whole_steps=False), grid))
    draws = _crossing(fit.time_draws(along, whole_steps=False), grid)
    return fit.estimate(value, draws) if 1 < value < np.inf else None


def runner_limit(fit: IterationTimeFit, cell: Cells) -> Estimate | None:
    """Return the n beyond which one more runner is not worth its CPU, for one cell's batch and setting.

    Worth it: d ln X / d ln P between n and n + 1 is at least `MARGINAL_THRESHOLD`, with P = n + 1 CPUs. More lanes than
    env steps of the batch can do nothing: the limit is B / k at most, whatever the model says.

    Args:
        fit: The model.
        cell: Batch and setting, one cell; its own n is ignored.

    Returns:
        None where every n up to `MOST_LIMIT` is worth it; without an upper end where that is so in some resamples.
    """
    lanes = max(int(cell.train_batch_size[0] // cell.num_envs_per_env_runner[0]), 1)
    cap = min(MOST_LIMIT, lanes)
    scales = np.arange(1, cap + 2, dtype=np.float64)
    growth = np.diff(np.log(1 + scales))
    along = _along(cell, scales)
    rate = along.train_batch_size / fit.times(along, whole_steps=False)["iteration"]
    rates = along.train_batch_size / fit.time_draws(along, whole_steps=False)["iteration"]
    # Behind the cap: no lane has a step left, or nobody has looked.
    limits = np.append(scales[:cap], cap if cap == lanes else np.inf)
    value, draws = float(limits[int(_last_worth(rate, growth))]), limits[_last_worth(rates, growth)]
    return fit.estimate(value, draws) if np.isfinite(value) else None


def _along(cell: Cells, scales: FloatArray) -> Cells:
    return replace(cell.take(np.zeros(scales.size, dtype=np.int64)), num_env_runners=scales)


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
