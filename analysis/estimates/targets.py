"""What reaching the target takes: env steps, time and CPUs of each setting.

A batch that is processed faster may need more env steps. A target is looked for in evaluations: a run whose time to it
is 50,000 env steps, the evaluation before being at none, got there anywhere in between; `BEFORE` says since when.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.estimates.settings import CHOSEN_BY, Setting
from analysis.quantity import Part, Row, quantity, rows_of
from analysis.scaling.blocks import as_int, quotient_of, scaled
from analysis.scaling.clock import rate_of
from study.statistics import BoolArray, Estimate, FloatArray, ratio_of_means

SECONDS_PER_HOUR = 3600
BEFORE = "env_steps_before_target"
"""Column that `watched` adds: env steps at which a run was last seen below its target."""
NO_TARGET = "of a setting that no run of which reached the target"
ALONE = "the only run of its setting"
NOT_JUDGED = "not ended, on seeds that settings were chosen by, or once more with one seed"
MOST_RESAMPLED = 50
"""Settings that are resampled, those with the most runs."""
BEYOND = f"beyond the {MOST_RESAMPLED} settings with the most runs"


class Reach(NamedTuple):
    """The runs of one setting on their way to the target.

    Attributes:
        steps: Mean env steps to the target, up to the horizon.
        timed: Those of its runs whose clock was measured, on equal hardware.
    """

    steps: Estimate
    timed: pd.DataFrame


def times_of(setting: Setting, horizon: float) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return env steps to the target, those when last seen below, both up to the horizon, and who ever got there.

    Each of shape (runs,). A run that did not get there, or failed, counts as the horizon.
    """
    failed, steps = setting.failed.to_numpy(dtype=bool), setting.numbers("env_steps_to_target")
    before = setting.numbers(BEFORE) if BEFORE in setting.runs else np.full(failed.size, np.nan)
    reached = ~failed & np.isfinite(steps)
    times = np.where(reached, np.minimum(steps, horizon), horizon)
    since = np.where(failed | np.isnan(before), times, np.minimum(before, times))
    return times, since, reached


def restricted(times: FloatArray, since: FloatArray, *, horizon: float) -> Estimate:
    """Return the mean of env steps to the target with its bootstrap interval, of what `times_of` returns.

    The upper end is that of the recorded times, the lower one that of the evaluations before them.
    """
    # The ratio to a sample that is the horizon itself has the bootstrap of the mean alone.
    whole = np.full(times.size, horizon)
    exact = bool((since == times).all())
    share = ratio_of_means(times, whole, since=None if exact else (since, whole))
    mean = scaled(share, horizon)
    # Equal runs: rounding must not put the value outside of its interval.
    return replace(mean, low=min(mean.low, mean.value), high=max(mean.high, mean.value), n=times.size)


@quantity("target", "env steps", "steps to the target")
def steps_to_target(at: Reach) -> Estimate:
    """Mean up to the common horizon."""
    return at.steps


@quantity("target", "s", "time to the target")
def time_to_target_s(at: Reach) -> Estimate | None:
    """Steps to the target over throughput: seconds of training; of settings with a measured clock."""
    return quotient_of(at.steps, rate_of(at.timed)) if len(at.timed) else None


@quantity("target", "CPU h", "CPU-hours to the target")
def cpu_hours_to_target(at: Reach) -> Estimate | None:
    """Time to the target times the CPUs allocated."""
    seconds, cpus = time_to_target_s(at), as_int(at.timed, "num_cpus")
    return None if seconds is None or cpus is None else scaled(seconds, cpus / SECONDS_PER_HOUR)


def targets_of(
    settings: Sequence[Setting], measured: pd.DataFrame, *, num_trials: int = 0, budget: float | None = None
) -> Part:
    """Return steps, time and CPUs to the target of each setting with several seeds, or of the confirmation.

    Steps are the mean up to a horizon that every run had, and that is not beyond the budget of env steps, over all runs
    that ended, whatever their timing label. Throughput is that of the setting's own runs
    with a measured clock, in the workload with the most of them. Settings with the most runs come first.
    """
    excluded = dict.fromkeys((ALONE, NO_TARGET, BEYOND), 0)
    excluded[NOT_JUDGED] = max(num_trials - sum(len(each.runs) for each in settings), 0)
    chosen: list[Setting] = []
    for each in settings:
        stages = each.runs["stage"]
        if len(each.runs) < 2 and not stages.eq("confirm").any():
            excluded[ALONE] += 1
        elif each.runs.loc[~each.failed, "env_steps_to_target"].isna().all():
            excluded[NO_TARGET] += len(each.runs)
        elif len(chosen) == MOST_RESAMPLED:
            excluded[BEYOND] += len(each.runs)
        else:
            chosen.append(each)
    excluded = {reason: number for reason, number in excluded.items() if number}
    if not chosen or (horizon := _common_horizon(chosen)) is None:
        return Part(excluded=excluded)
    horizon = min(horizon, budget or horizon)
    rows, apart = list[Row](), 0.0
    for each in chosen:
        mine = measured[measured["trial"].isin(each.runs["trial"])]
        common = mine["fingerprint"].astype(str).mode()
        times, since, reached = times_of(each, horizon)
        at = Reach(restricted(times, since, horizon=horizon), mine[mine["fingerprint"].isin(common.head(1))])
        place = each.row() | {"num_cpus": as_int(at.timed, "num_cpus"), "n_censored": int((~reached).sum())}
        rows += rows_of("target", at, place)
        apart = max(apart, float((times - since)[reached].max(initial=0.0)))
    said = f"Steps are counted up to {int(horizon):,} env steps."
    if apart:
        said += f" Evaluations are up to {int(apart):,} env steps apart, and the intervals hold that."
    unconfirmed = any(each.runs["stage"].dropna().ne("confirm").any() for each in chosen)
    return Part(
        rows=tuple(rows),
        excluded=excluded,
        n=sum(len(each.runs) for each in chosen),
        notes=(*((CHOSEN_BY,) if unconfirmed else ()), said),
    )


def _common_horizon(settings: Iterable[Setting]) -> float | None:
    """Return the env steps that every finished run had, if any: up to there it is known who got to the target."""
    trained = np.concatenate([each.numbers("env_steps")[~each.failed] for each in settings])
    return float(np.nanmin(trained)) if np.isfinite(trained).any() else None


def watched(runs: pd.DataFrame, evaluations: pd.DataFrame, *, target: float | None) -> pd.DataFrame:
    """Return the runs with `BEFORE`, the last evaluation before the target; 0 where there is none.

    The target is reached at the first of two evaluations in a row that are at or above it. Of a run that never did, the
    last evaluation counts as seen below, unless it is at the target itself, which another one would have confirmed, or
    the target is not known.
    """
    hits = runs.set_index("trial")["env_steps_to_target"].astype("Float64")
    trial, steps = evaluations["trial"], evaluations["env_steps"].astype("Float64")
    hit = trial.map(hits).astype("Float64").fillna(np.inf)
    last = steps == steps.groupby(trial).transform("max")
    at_target = evaluations["eval_return"] >= target if target is not None else last
    below = (steps < hit) & ~(np.isinf(hit) & last & at_target)
    before = evaluations[below.fillna(False)].groupby("trial")["env_steps"].max().astype("Float64")
    return runs.assign(**{BEFORE: runs["trial"].map(before).fillna(0.0)})
