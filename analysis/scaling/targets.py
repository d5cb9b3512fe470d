"""What reaching the target takes: env steps, time and CPUs against batch and scale.

A batch that is processed faster may need more env steps. A target is looked for in evaluations: a run whose time to it
is 50,000 env steps, the evaluation before being at none, got there anywhere in between; `BEFORE` says since when.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analysis.quantity import Part, Row, quantity, rows_of
from analysis.scaling.blocks import BY_DEFINITION, exponential, logarithm, rate_of, scaled, sum_of
from analysis.scaling.fingerprint import BATCH, fields, labels, replaced
from analysis.scaling.selection import as_int, as_text, at_their_scale, select, texts
from study.statistics import BoolArray, Estimate, FloatArray, ratio_of_restricted_means
from study.text import count

LIMIT = "max_iterations"
"""Column that a space can vary too: runs that were given less training are no replicates of the others."""
CLOCK_ONLY = ("execution", "threads", "cpu_model", "smt", "node_type")
"""Fields of the fingerprint that change the clock and not what is learnt: an emulated run learns as a real one does."""
NO_TARGET = "no run of its setting reached the target"
ALONE = "the only run of its setting"
MOST_GROUPS = 50
"""Settings that are resampled, those with the most runs; the runs of the others are counted."""
BEYOND = f"beyond the {MOST_GROUPS} settings with the most runs"
UNKNOWN = "no scale or batch"
SECONDS_PER_HOUR = 3600
HARDWARE = ("cpu_model", "smt", "node_type")
"""Fields of the fingerprint that say on what a run ran."""
ENDED = ("finished", "failed")
BEFORE = "env_steps_before_target"
"""Column that `watched` adds: env steps at which a run was last seen below its target."""
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


@dataclass(kw_only=True)
class Reach:
    """The runs of one setting at one batch and scale.

    Attributes:
        targets: Of those that ended.
        horizon: Env steps at which restricted means are cut.
        timed: Measured runs of the same cell.
        level: Nominal coverage of intervals.
    """

    targets: Targets
    horizon: float
    timed: pd.DataFrame
    level: float

    @cached_property
    def steps(self) -> Estimate | None:
        """Restricted mean of env steps; None when no run reached the target."""
        return restricted(self.targets, self.horizon, level=self.level)

    @cached_property
    def seconds(self) -> Estimate | None:
        """Steps over throughput; None where no clock was measured."""
        if self.steps is None or not len(self.timed):
            return None
        return product_of(self.steps, rate_of(self.timed, level=self.level), power=-1)

    @property
    def num_cpus(self) -> int | None:
        """CPUs of the measured runs, where they share a number."""
        return as_int(self.timed, "num_cpus") if len(self.timed) else None


@quantity("target", "env steps", "steps to the target")
def steps_to_target(at: Reach) -> Estimate | None:
    """Kaplan-Meier restricted mean up to the common horizon."""
    return at.steps


@quantity("target", "s", "time to the target")
def time_to_target_s(at: Reach) -> Estimate | None:
    """Steps to the target over throughput: seconds of training."""
    return at.seconds


@quantity("target", "CPU h", "CPU-hours to the target")
def cpu_hours_to_target(at: Reach) -> Estimate | None:
    """Time to the target times the CPUs allocated."""
    if at.seconds is None or at.num_cpus is None:
        return None
    return scaled(scaled(at.seconds, at.num_cpus), 1 / SECONDS_PER_HOUR)


def targets_of(
    runs: pd.DataFrame,
    *,
    arms: Mapping[int, str] = MappingProxyType({}),
    level: float = 0.95,
    budget: float | None = None,
) -> Part:
    """Return steps, time and cost to target per batch and scale.

    A group learns by one setting: equal `digest` in a hold-up study, else equal fingerprint apart from the batch and
    from what only the clock sees; and its runs were given equally many iterations. Once a hold-up study has confirmed,
    only its confirmation counts: the other stages ran on seeds that settings were chosen by. Steps to target are
    Kaplan-Meier's restricted mean up to a common horizon, over all runs that ended, whatever their timing label; a
    failed run is censored at the horizon, one that finished without the target at its end. Where `watched` has said
    since when, intervals hold the time between two evaluations. Throughput is that of the `measured` runs of the same
    cell alone, total over total; of a group whose runs were measured on several kinds of hardware, of those on the one
    with the most runs. Products take independent intervals together by MOVER on logarithms (`blocks.sum_of`).

    Args:
        runs: One row per trial (`analysis.load`).
        arms: Trial -> name of its setting.
        level: Nominal coverage of the intervals, in (0, 1).
        budget: Env steps that every run was given, where known: no horizon is beyond, although the last batch is.

    Returns:
        Groups of several runs of which at least one reached its target, those with the most rows first. A setting of
        the confirmation is one by a single run: its row has a value and no interval.
    """
    kept = judged(runs)
    num_chosen_by = int(runs["status"].isin(ENDED).sum() - kept["status"].isin(ENDED).sum())
    unconfirmed = bool((kept["stage"].notna() & kept["stage"].ne(CONFIRM)).any())
    runs = kept.reset_index(drop=True)
    keys, status = setting_keys(runs), runs["status"].astype(object)
    measured = select(runs).runs
    runs = at_their_scale(runs)
    over, known = status.isin(ENDED), runs[["num_env_runners", BATCH]].notna().all(axis=1)
    excluded = Counter(str(each) for each in status[~over])
    excluded[NOT_JUDGED] += num_chosen_by
    excluded[UNKNOWN] += int((over & ~known).sum())
    ended = runs[over & known]
    alone = ~keys[ended.index].duplicated(keep=False) & ended["stage"].ne(CONFIRM).fillna(True)
    excluded[ALONE] += int(alone.sum())
    ended = ended[~alone.to_numpy(dtype=bool)]
    sizes = keys[ended.index].value_counts()
    ranked = sorted(sizes.index, key=lambda key: (-int(sizes[key]), str(key)))
    excluded[BEYOND] += int(sizes[ranked[MOST_GROUPS:]].sum())
    ended = ended[keys[ended.index].isin(ranked[:MOST_GROUPS])]
    groups: dict[str, list[tuple[pd.DataFrame, Reach]]] = {}
    num_elsewhere = 0
    for key, part in ended.groupby(keys[ended.index], sort=True):
        clocked = measured[keys[measured.index] == key]
        timed = _on_one_hardware(clocked)
        if group := _group(part, timed, level=level, budget=budget):
            groups[str(key)] = group
            num_elsewhere += len(clocked) - len(timed)
        else:
            excluded[NO_TARGET] += len(part)
    named = list(zip(groups.values(), labels(list(groups)) if groups else (), strict=True))
    named.sort(key=lambda each: (-len(each[0]), each[1]))
    found = [(cell, at, label) for group, label in named for cell, at in group]
    return Part(
        rows=tuple(each for cell, at, label in found for each in rows_of("target", at, _place(cell, at, arms, label))),
        excluded={reason: number for reason, number in sorted(excluded.items()) if number},
        n=sum(at.targets.times.size for _, at, _ in found),
        n_failed=int((status == "failed").sum()),
        notes=(
            *((CHOSEN_BY,) if unconfirmed and groups else ()),
            *((f"Times leave out {count(num_elsewhere, 'measured run')} on other hardware.",) if num_elsewhere else ()),
            *dict.fromkeys(_horizon(group) for group, _ in named),
        ),
    )


def _place(cell: pd.DataFrame, at: Reach, arms: Mapping[int, str], label: str) -> Row:
    names = {arms.get(int(trial), "") for trial in cell["trial"]}
    arm = names.pop() if len(names) == 1 else ""
    return {
        "workload": environment_of(cell) if arm else label,
        "arm": arm,
        "num_env_runners": int(cell["num_env_runners"].iloc[0]),
        "num_cpus": at.num_cpus,
        "train_batch_size": int(cell[BATCH].iloc[0]),
        "basis": "emulated" if emulated(cell) else "measured",
        "engine": as_text(cell, "engine") or "",
        "fingerprint": as_text(cell, "fingerprint") or "",
        "n_failed": int(at.targets.failed.sum()),
        "n_censored": int((~at.targets.reached).sum()),
    }


def _horizon(group: list[tuple[pd.DataFrame, Reach]]) -> str:
    said = f"Steps are counted up to {int(group[0][1].horizon):,} env steps."
    if resolution := max(int(at.targets.resolution) for _, at in group):
        said += f" Evaluations are up to {resolution:,} env steps apart, and the intervals hold that."
    return said


def emulated(runs: pd.DataFrame) -> bool:
    """Return whether the lanes of several runners were stepped in fewer processes in any of the runs."""
    return bool((runs["execution"].eq("emulated") | runs["stands_for_runners"].notna()).any())


def environment_of(runs: pd.DataFrame) -> str:
    """Return the environment that runs learn in; empty where it is not known, or not one."""
    found = {fields(str(each)).get("environment.id") for each in runs["fingerprint"].unique()}
    return str(found.pop()) if len(found) == 1 else ""


def _on_one_hardware(timed: pd.DataFrame) -> pd.DataFrame:
    """Return the measured runs on the hardware that most of them ran on: times of two kinds do not compare."""
    kinds = [repr([fields(str(text)).get(name) for name in HARDWARE]) for text in timed["fingerprint"]]
    most = min(Counter(kinds).items(), key=lambda kind: (-kind[1], kind[0]), default=("", 0))[0]
    return timed[np.array([kind == most for kind in kinds], dtype=bool)]


def restricted(targets: Targets, horizon: float, *, level: float) -> Estimate | None:
    """Return the restricted mean of env steps to target with its bootstrap interval; None where no run reached it.

    The upper end is that of the recorded times, the lower one that of the evaluations before them.

    Args:
        targets: Of the runs of one cell.
        horizon: Where the mean is cut, env steps.
        level: Nominal coverage, in (0, 1).
    """
    if not targets.reached.any():
        return None
    # The ratio to a sample that is the horizon itself has the bootstrap of the mean alone.
    ends = np.full(targets.times.size, horizon)
    whole = replace(targets, times=ends, since=ends, reached=np.ones(ends.size, dtype=bool))
    share = ratio_of_targets(targets, whole, horizon, level=level)
    mean = scaled(share, horizon)
    # Equal runs: rounding must not put the value outside of its interval.
    return replace(mean, low=min(mean.low, mean.value), high=max(mean.high, mean.value), n=targets.times.size)


def setting_keys(runs: pd.DataFrame) -> "pd.Series[Any]":
    """Return, per run, the text that runs share which learn by one setting, equally long."""

    @cache
    def setting(fingerprint: str, digest: str, variant: str, limit: int | None) -> str:
        length = {} if limit is None else {LIMIT: limit}
        if not digest:
            return replaced(fingerprint, (BATCH, *CLOCK_ONLY), length)
        environment = {"id": fields(fingerprint).get("environment.id")}
        return replaced("{}", (), {"digest": digest, "variant": variant, "environment": environment, **length})

    digests, variants = (texts(runs, name) for name in ("digest", "variant"))
    limits = [None if pd.isna(each) else int(each) for each in runs[LIMIT]]
    given = zip(runs["fingerprint"].astype(str), digests, variants, limits, strict=True)
    return pd.Series([setting(*each) for each in given], index=runs.index, dtype=object)


def _group(
    part: pd.DataFrame, measured: pd.DataFrame, *, level: float, budget: float | None
) -> list[tuple[pd.DataFrame, Reach]]:
    """Return the runs of each batch and scale of one setting; none where no run reached its target."""
    cells = {
        (int(cell[BATCH].iloc[0]), int(cell["num_env_runners"].iloc[0])): cell
        for _, cell in part.groupby([BATCH, "num_env_runners"], sort=True)
    }
    horizon = common_horizon(cells.values())
    if horizon is None or not part["env_steps_to_target"].notna().any():
        return []
    horizon = min(horizon, budget or horizon)
    found = []
    for (batch, scale), cell in cells.items():
        same = measured[BATCH].eq(batch).fillna(False) & measured["num_env_runners"].eq(scale).fillna(False)
        at = Reach(targets=to_target(cell, horizon), horizon=horizon, timed=measured[same], level=level)
        found.append((cell, at))
    return found


def product_of(first: Estimate, second: Estimate, *, power: int = 1) -> Estimate:
    """Return first * second ** power of two independent positive estimates, with the interval of `sum_of` on logs."""
    if second.method == BY_DEFINITION:
        return first
    return exponential(sum_of(logarithm(first), logarithm(second, power=power)))


def judged(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the confirmation, all runs where there is none: the other stages ran on seeds chosen by."""
    confirmed = runs["stage"].eq(CONFIRM).fillna(False).astype(bool)
    return runs[confirmed] if confirmed.any() else runs


def watched(runs: pd.DataFrame, evaluations: pd.DataFrame, *, target: float | None) -> pd.DataFrame:
    """Return the runs with `BEFORE`, the last evaluation before the target; 0 where there is none.

    The target is reached at the first of two evaluations in a row that are at or above it. Of a run that never did,
    the last evaluation counts as seen below, unless it is at the target itself: another one would have confirmed it.

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
    before = evaluations[below.fillna(False)].groupby("trial")["env_steps"].max().astype("Float64")
    return runs.assign(**{BEFORE: runs["trial"].map(before).fillna(0.0)})


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
