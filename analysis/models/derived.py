"""What follows from a fitted iteration-time model: the last runner that is worth its CPU. Imports NumPy.

It is a prediction. Intervals are those of the model's resamples; they know the scatter of the runs, not what the
model leaves out. On planted truth with 3 runs per cell and 3 % noise a nominal 90 % covers 85 % or more
(`test_derived_quantities_cover_as_their_docstrings_say`). Times are taken smooth in n here: whole steps and minibatches
would let answers jump.
"""

from dataclasses import replace

import numpy as np

from analysis.models.iteration_time import IterationTimeFit
from analysis.models.observations import Cells, IntArray
from study.statistics import Estimate, FloatArray

MOST_LIMIT = 512
"""Runners up to which a limit is looked for."""
MARGINAL_THRESHOLD = 0.5
"""Marginal efficiency below which a runner counts as not worth its CPU: a tenth more CPUs gives half a tenth more."""


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


def _last_worth(rates: FloatArray, growth: FloatArray) -> IntArray:
    """Return the index of the last scale before the first step that is not worth it, that of the last one if none is.

    Shape (…, scales) -> (…,).
    """
    poor = np.diff(np.log(rates), axis=-1) / growth < MARGINAL_THRESHOLD
    return np.asarray(np.where(poor.any(axis=-1), poor.argmax(axis=-1), poor.shape[-1]), dtype=np.int64)
