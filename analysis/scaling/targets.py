"""Env steps to target of runs, with those that never got there. Imports NumPy, pandas, `study.errors`."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.scaling.selection import check_columns
from analysis.statistics import BoolArray, FloatArray

ENDED = ("finished", "failed")
NEEDED = ("status", "env_steps", "env_steps_to_target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Censored steps of runs that ended."""

    times: FloatArray
    """Env steps to target, or those observed without it, shape (runs,), > 0."""
    reached: BoolArray
    """Shape (runs,)."""
    failed: BoolArray
    """Shape (runs,)."""


def to_target(runs: pd.DataFrame, horizon: float) -> Targets:
    """Return when each run that ended reached its target.

    A failed run did not leave by chance: it is written as not reached at the horizon. One that finished without the
    target is censored at the steps that it trained for.

    Args:
        runs: One row per trial; others than finished and failed ones are left out.
        horizon: Env steps at which restricted means are cut: at most `common_horizon`.

    Raises:
        AnalysisError: A column is missing.
    """
    check_columns(runs, NEEDED)
    ended = runs[runs["status"].isin(ENDED)]
    failed = (ended["status"] == "failed").to_numpy(dtype=bool, na_value=False)
    steps = ended["env_steps_to_target"].to_numpy(dtype=np.float64, na_value=np.nan)
    trained = ended["env_steps"].to_numpy(dtype=np.float64, na_value=horizon)
    reached = ~failed & np.isfinite(steps)
    times = np.where(reached, steps, np.where(failed, horizon, trained))
    order = np.lexsort((failed, reached, times))  # resamples must not depend on the order of the rows
    return Targets(times=times[order], reached=reached[order], failed=failed[order])


def common_horizon(parts: Iterable[pd.DataFrame]) -> float | None:
    """Return the env steps up to which all parts were watched: the least of their longest finished runs.

    None where no part has a finished run. A part whose runs all failed does not shorten it.
    """
    longest = []
    for part in parts:
        check_columns(part, NEEDED)
        finished = part[part["status"] == "finished"]
        steps = finished[["env_steps", "env_steps_to_target"]].to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isfinite(steps).any():
            longest.append(float(np.nanmax(steps)))
    return min(longest) if longest else None
