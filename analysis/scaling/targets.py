"""Env steps to target of runs, with those that never got there. Imports NumPy, pandas, `study.errors`.

A target is looked for in evaluations. A run whose time to it is 50,000 env steps, the evaluation before being at none,
got there anywhere in between; the columns `BEFORE` and `TIME_BEFORE` say since when.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.statistics import BoolArray, Estimate, FloatArray, ratio_of_restricted_means

ENDED = ("finished", "failed")
BEFORE = "env_steps_before_target"
"""Column that `watched` adds: env steps at which a run was last seen below its target."""
TIME_BEFORE = "time_before_target_s"
"""The same in training seconds."""
CONFIRM = "confirm"
"""Stage of a hold-up study on seeds that nothing was chosen by."""
NOT_JUDGED = "on seeds that settings were chosen by"
CHOSEN_BY = f"Runs {NOT_JUDGED}: the best ones look better than they are."
"""What must be said where there is no confirmation yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Censored steps of runs that ended."""

    times: FloatArray
    """Env steps to target, or those observed without it, shape (runs,), > 0."""
    since: FloatArray
    """Env steps at which each was last seen below the target, shape (runs,), in [0, times]."""
    reached: BoolArray
    """Shape (runs,)."""
    failed: BoolArray
    """Shape (runs,)."""

    @property
    def resolution(self) -> float:
        """Env steps between the evaluation that found a run at the target and the one before, at most; 0 if exact."""
        return float((self.times - self.since)[self.reached].max(initial=0.0))


def judged(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the confirmation, all runs where there is none: the other stages ran on seeds chosen by."""
    confirmed = runs["stage"].eq(CONFIRM).fillna(False).astype(bool)
    return runs[confirmed] if confirmed.any() else runs


def watched(runs: pd.DataFrame, evaluations: pd.DataFrame, *, target: float | None) -> pd.DataFrame:
    """Return the runs with `BEFORE` and `TIME_BEFORE`, the last evaluation before the target; 0 where there is none.

    The target is reached at the first of two evaluations in a row that are at or above it. Of a run that never did,
    the last evaluation counts as seen below, unless it is at the target itself: another one would have confirmed it.
    Where the clock of that evaluation is not known, `TIME_BEFORE` is 0 too: an interval then holds more than it need.

    Args:
        runs: One row per trial (`analysis.load`).
        evaluations: One row per evaluation.
        target: Return that counts as solved; None where it is not known, and the last evaluation then never counts.
    """
    hits = runs.set_index("trial")["env_steps_to_target"].astype("Float64")
    trial, steps = evaluations["trial"], evaluations["env_steps"].astype("Float64")
    hit = trial.map(hits).astype("Float64").fillna(np.inf)
    last = steps == steps.groupby(trial).transform("max")
    at_target = evaluations["eval_return"] >= target if target is not None else last
    below = (steps < hit) & ~(np.isinf(hit) & last & at_target)
    before = evaluations[below.fillna(False)].groupby("trial")[["env_steps", "wall_time_s"]].max().astype("Float64")
    steps_before, time_before = (runs["trial"].map(before[clock]).fillna(0.0) for clock in before)
    return runs.assign(**{BEFORE: steps_before, TIME_BEFORE: time_before})


def to_target(runs: pd.DataFrame, horizon: float) -> Targets:
    """Return when each run that ended reached its target.

    A failed run did not leave by chance: it is written as not reached at the horizon. One that finished without the
    target is censored at the steps that it trained for.

    Args:
        runs: One row per trial; others than finished and failed ones are left out. Without the column `BEFORE` the
            times count as exact.
        horizon: Env steps at which restricted means are cut: at most `common_horizon`.
    """
    ended = runs[runs["status"].isin(ENDED)]
    failed = (ended["status"] == "failed").to_numpy(dtype=bool, na_value=False)
    steps = ended["env_steps_to_target"].to_numpy(dtype=np.float64, na_value=np.nan)
    trained = ended["env_steps"].to_numpy(dtype=np.float64, na_value=horizon)
    reached = ~failed & np.isfinite(steps)
    times = np.where(reached, steps, np.where(failed, horizon, trained))
    since = times
    if BEFORE in ended:
        before = ended[BEFORE].to_numpy(dtype=np.float64, na_value=0.0)
        since = np.where(failed, times, np.minimum(before, times))
    order = np.lexsort((failed, reached, since, times))  # resamples must not depend on the order of the rows
    return Targets(times=times[order], since=since[order], reached=reached[order], failed=failed[order])


def ratio_of_targets(first: Targets, second: Targets, horizon: float, *, level: float) -> Estimate:
    """Return restricted mean steps to target of `first` over those of `second`; the interval holds the resolution."""
    known = all(bool((each.since == each.times).all()) for each in (first, second))
    return ratio_of_restricted_means(
        first.times,
        first.reached,
        second.times,
        second.reached,
        horizon=horizon,
        level=level,
        first_since=None if known else first.since,
        second_since=None if known else second.since,
    )


def common_horizon(parts: Iterable[pd.DataFrame]) -> float | None:
    """Return the env steps up to which all parts were watched: the least of their longest finished runs.

    None where no part has a finished run. A part whose runs all failed does not shorten it.
    """
    longest = []
    for part in parts:
        finished = part[part["status"] == "finished"]
        steps = finished[["env_steps", "env_steps_to_target"]].to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isfinite(steps).any():
            longest.append(float(np.nanmax(steps)))
    return min(longest) if longest else None
