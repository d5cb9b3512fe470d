"""Times of measured runs: throughput, speed-up, efficiency and phases, each a quantity of a `Place`.

Only finished runs with a `measured` clock enter; every other run is counted by reason. Ratios are paired by block (runs
with the same seed); rates are totals over totals. Strong scaling compares runs with equal workload fingerprints, weak
scaling those with equal env steps per runner and equal fingerprints but for the batch.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.quantity import Compute, Part, Row, declare, quantity, rows_of
from analysis.scaling import guard
from analysis.scaling.blocks import (
    Logs,
    block_means,
    contrast,
    exact,
    exponential,
    mean_of,
    rate_of,
    ratio_of_totals,
    scaled,
    transformed,
)
from analysis.scaling.fingerprint import BATCH, ENGINE, fields, labels, replaced
from analysis.scaling.selection import as_int, select
from study.statistics import Estimate
from study.text import count

Kind = Literal["strong", "weak"]
LEVEL = 0.95
MILLION_STEPS_IN_HOURS = 1_000_000 / 3600
ALONE = "no run of equal workload at another scale"
MOST_CELLS = 500
"""More rows than that are no table: the cells with the most runs are kept, the other runs counted."""
BEYOND = f"beyond the {MOST_CELLS} cells with the most runs"
NO_PHASES = "no phase times"
PLACED_WIDER = "on more CPUs or nodes than others of their number of runners"
CELL = ["fingerprint", "num_env_runners"]
PLACED = ["num_cpus", "num_nodes"]


@dataclass(kw_only=True, eq=False)
class Place:
    """The measured runs of one workload at one number of runners, CPUs and nodes.

    Attributes:
        runs: One row per run, as `selection.select` returns them.
        base: The place that ratios are relative to: the first one at the smallest scale of the workload.
        before: The next smaller scale, on as many nodes if it ran so, else on the nearest number of nodes.
        first: Whether it is the first place of its scale: that on the fewest CPUs and nodes.
        level: Nominal coverage of intervals, in (0, 1).
    """

    runs: pd.DataFrame = field(repr=False)
    base: "Place | None" = None
    before: "Place | None" = None
    first: bool = True
    level: float = LEVEL

    def __post_init__(self) -> None:
        self.num_env_runners = int(self.runs["num_env_runners"].iloc[0])
        self.num_cpus, self.num_nodes = as_int(self.runs, "num_cpus"), as_int(self.runs, "num_nodes")
        self.fingerprint = str(self.runs["fingerprint"].iloc[0])
        self.blocks = self.runs["block"].tolist()

    @cached_property
    def times(self) -> Logs:
        """Mean ln of seconds per iteration by block."""
        return block_means(self.runs["log_time"], self.blocks)

    @cached_property
    def rates(self) -> Logs:
        """Mean ln of env steps per second by block."""
        return block_means(self.runs["log_rate"], self.blocks)

    @cached_property
    def waits(self) -> bool:
        """Whether environments wait: their processes may share cores, and CPUs reserved are then not CPUs used."""
        return any(fields(str(each)).get("environment.step_wait_ms") for each in self.runs["fingerprint"].unique())

    @cached_property
    def time_ratio(self) -> Estimate:
        """T(n_ref) / T(n), paired by block."""
        if self.base is None or self.base is self:
            return exact(1.0, n=len(self.runs), level=self.level)
        return exponential(contrast((self.base.times, self.times), (1.0, -1.0), level=self.level))

    def totals(self, name: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return a time of each run summed over its timed iterations, shape (runs,), in seconds."""
        counts = self.runs["timed_iterations"].to_numpy(dtype=np.float64)
        return counts if name == "timed_iterations" else self.runs[name].to_numpy(dtype=np.float64) * counts

    def over(self, above: str, below: str) -> Estimate:
        """Return total over total of two columns, each a sum of columns such as `sampling_time_s - sync_time_s`."""
        return ratio_of_totals(self._sum(above), self._sum(below), self.blocks, level=self.level)

    def _sum(self, terms: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
        first, *others = (self.totals(each) for each in terms.split(" - "))
        return first - sum(others) if others else first

    @property
    def in_words(self) -> str:
        """Such as `4 runners on 2 nodes`."""
        nodes = "" if self.num_nodes is None else f" on {count(self.num_nodes, 'node')}"
        return f"{count(self.num_env_runners, 'runner')}{nodes}"

    def row(self, workload: str, n_failed: int | None = None) -> Row:
        """Return the columns of its rows in the long frame."""
        return {
            "workload": workload,
            "num_env_runners": self.num_env_runners,
            "num_cpus": self.num_cpus,
            "num_nodes": self.num_nodes,
            "train_batch_size": as_int(self.runs, BATCH),
            "engine": engine_in(self.fingerprint),
            "fingerprint": self.fingerprint,
            "n_failed": n_failed,
        }


@cache
def engine_in(fingerprint: str) -> str:
    """Return the engine that a fingerprint names; empty where it names none."""
    return str(fields(fingerprint).get(ENGINE) or "")


class Names:
    """The workloads of a study and what they are called: equal workloads have equal names in every quantity."""

    def __init__(self, runs: pd.DataFrame) -> None:
        """Take one row per measured run."""
        known = sorted({str(each) for each in runs["fingerprint"].unique()})
        self._names = dict(zip(known, labels(known), strict=True)) if known else {}

    def __getitem__(self, fingerprint: str) -> str:
        """Return the name of a workload."""
        return self._names.get(fingerprint) or labels([fingerprint])[0]


# --- throughput and prices ----------------------------------------------------------------------------------------


@quantity("cell", "env steps/s", "throughput")
def env_steps_per_s(at: Place) -> Estimate:
    """Env steps over wall seconds after the warm-up, total over total."""
    return rate_of(at.runs, level=at.level)


@quantity("cell", "s", "iteration time")
def iteration_time_s(at: Place) -> Estimate:
    """Seconds per training iteration, total over total."""
    seconds, iterations = (at.runs[name].astype(float) for name in ("timed_s", "timed_iterations"))
    return ratio_of_totals(seconds, iterations, at.blocks, level=at.level)


# --- strong scaling -----------------------------------------------------------------------------------------------


@quantity("strong", "1", "speed-up", to="base")
def speed_up(at: Place) -> Estimate:
    """T(n_ref) / T(n) of equal work; n_ref is the smallest scale of the workload."""
    return at.time_ratio


def over_growth(ratio: Estimate, resources: float | None, reference: float | None) -> Estimate | None:
    """Return S b / r: a speed-up over the growth of the resources; may exceed 1; None where these are not known."""
    return None if resources is None or reference is None else scaled(ratio, reference / resources)


@quantity("strong", "1", "efficiency", to="base")
def efficiency_per_runner(at: Place) -> Estimate | None:
    """Speed-up over the growth of the runners: 1 is ideal."""
    return over_growth(at.time_ratio, at.num_env_runners, _base(at).num_env_runners)


@quantity("strong", "1", "efficiency per CPU", to="base")
def efficiency_per_cpu(at: Place) -> Estimate | None:
    """Speed-up over the growth of the CPUs allocated; none where environments wait and processes share cores."""
    return None if at.waits else over_growth(at.time_ratio, at.num_cpus, _base(at).num_cpus)


@quantity("strong", "1", "marginal efficiency", to="before")
def marginal_efficiency(at: Place) -> Estimate | None:
    """Growth d ln X / d ln P from the next smaller scale: 1 where a CPU more gives its full share, 0 for nothing."""
    cpus = (at.num_cpus or 0, at.before.num_cpus or 0) if at.before else (0, 0)
    if at.before is None or at.waits or not 0 < cpus[1] < cpus[0]:
        return None
    return scaled(
        contrast((at.rates, at.before.rates), (1.0, -1.0), level=at.level), 1 / float(np.log(cpus[0] / cpus[1]))
    )


def serial_fraction(ratio: float, p: float) -> float:
    """Return (1/S - 1/p) / (1 - 1/p) for a speed-up S > 0 on p > 1 times the resources."""
    return (1 / ratio - 1 / p) / (1 - 1 / p)


@quantity("strong", "1", "Karp-Flatt fraction", to="base")
def karp_flatt(at: Place) -> Estimate | None:
    """(1/S - 1/p) / (1 - 1/p), p = n / n_ref: the serial share implied.

    Constant over p it is a serial part, rising an overhead; negative says that S > p, which more runners alone cannot
    give: something else changed with them.

    Source:
        Karp and Flatt, Communications of the ACM 33 (1990), equation 1.
    """
    p = at.num_env_runners / _base(at).num_env_runners
    if p <= 1:
        return None
    ratio = at.time_ratio
    return transformed(ratio, lambda value: serial_fraction(value, p), method=f"Karp-Flatt of {ratio.method}")


@quantity("strong", "1", "gain", to="before")
def gain(at: Place) -> Estimate | None:
    """Throughput over that at the next smaller scale of the workload, on as many nodes if it ran so."""
    if at.before is None:
        return None
    return exponential(contrast((at.rates, at.before.rates), (1.0, -1.0), level=at.level))


@quantity("strong", "CPU h/h", "CPU-hours per hour saved", to="before")
def cpu_hours_per_hour_saved(at: Place) -> Estimate | None:
    """CPU-hours more over hours less than at the next smaller scale; negative where both fall.

    Of several placements of a scale that of the first one.
    """
    if at.before is None or not at.first or at.num_cpus is None or at.before.num_cpus is None:
        return None
    faster = gain(at)
    return None if faster is None else price_of_an_hour(faster, at.before.num_cpus, at.num_cpus)


@quantity("strong", "1", "work of an iteration", to="base")
def work_ratio(at: Place) -> Estimate:
    """Env steps of an iteration over those at the reference: a runner that cannot divide the batch oversteps it."""
    return exact(_steps(at) / _steps(_base(at)), n=len(at.runs), level=at.level)


def price_of_an_hour(faster: Estimate, cpus_before: int, cpus: int) -> Estimate | None:
    """Return (P2 - P1 r) / (r - 1), r the gain in throughput from P1 to P2 CPUs; None where no hour is saved.

    The same steps take t1 = r t2 hours on P1 and t2 on P2: the CPU-hours P2 t2 - P1 t1 more over the hours t1 - t2
    less. It falls with r, so that the interval is that of r; below 0 both fall. Where r may be 1, its upper end is
    open.
    """
    if faster.value <= 1 or cpus < cpus_before:
        return None

    def price(ratio: float) -> float:
        return (cpus - cpus_before * ratio) / (ratio - 1)

    low = price(faster.high) if math.isfinite(faster.high) and faster.high > 1 else -math.inf
    high = price(faster.low) if faster.low > 1 else math.inf
    return replace(faster, value=price(faster.value), low=low, high=high)


def _base(at: Place) -> Place:
    return at.base or at


def _steps(at: Place) -> float:
    return float(at.runs["timed_env_steps"].astype(float).sum() / at.runs["timed_iterations"].astype(float).sum())


def karp_flatt_change(places: Sequence[Place], *, level: float = LEVEL) -> Estimate | None:
    """Return the serial fraction at the largest scale less that at the smallest above the reference.

    Taken within each block that has all three cells; None below three distinct scales or without such a block.

    Args:
        places: Of one workload, by scale, ascending.
        level: Nominal coverage of the interval.
    """
    base, *above = [places[0], *(each for each in places if each.num_env_runners > places[0].num_env_runners)]
    if len(above) < 2 or above[0].num_env_runners == above[-1].num_env_runners:
        return None
    small, large = above[0], above[-1]
    common = [block for block in base.times if block in small.times and block in large.times]
    if not common:
        return None

    def fraction(at: Place, block: object) -> float:
        ratio = float(np.exp(base.times[block] - at.times[block]))
        return serial_fraction(ratio, at.num_env_runners / base.num_env_runners)

    differences = np.array([fraction(large, block) - fraction(small, block) for block in common])
    return mean_of(differences, level=level, method="paired t")


# --- weak scaling -------------------------------------------------------------------------------------------------


@quantity("weak", "1", "scaled speed-up", to="base")
def weak_speed_up(at: Place) -> Estimate:
    """X(n) / X(n_ref) with the env steps per runner fixed."""
    return (
        at.time_ratio
        if at.base in (None, at)
        else scaled(at.time_ratio, at.num_env_runners / _base(at).num_env_runners)
    )


@quantity("weak", "1", "weak efficiency", to="base")
def weak_efficiency(at: Place) -> Estimate | None:
    """T(n_ref) / T(n) with the env steps per runner fixed."""
    return over_growth(weak_speed_up(at), at.num_env_runners, _base(at).num_env_runners)


@quantity("weak", "1", "weak efficiency per CPU", to="base")
def weak_efficiency_per_cpu(at: Place) -> Estimate | None:
    """Scaled speed-up over the growth of the CPUs."""
    return None if at.waits else over_growth(weak_speed_up(at), at.num_cpus, _base(at).num_cpus)


@quantity("weak", "1", "marginal efficiency", to="before")
def weak_marginal_efficiency(at: Place) -> Estimate | None:
    """Growth d ln X / d ln P, the env steps per runner fixed."""
    return marginal_efficiency(at)


@quantity("weak", "1", "work of a runner", to="base")
def weak_work_ratio(at: Place) -> Estimate:
    """Env steps of an iteration and runner over those at the reference."""
    return scaled(work_ratio(at), _base(at).num_env_runners / at.num_env_runners)


# --- prices of throughput -----------------------------------------------------------------------------------------


@quantity("price", "h", "hours per million steps")
def hours_per_million_steps(priced: tuple[Estimate, int | None]) -> Estimate:
    """Wall hours of training for a million env steps."""
    rate, _ = priced
    low = MILLION_STEPS_IN_HOURS / rate.high if rate.high > 0 and math.isfinite(rate.high) else -math.inf
    high = MILLION_STEPS_IN_HOURS / rate.low if rate.low > 0 and math.isfinite(rate.low) else math.inf
    return replace(rate, value=MILLION_STEPS_IN_HOURS / rate.value, low=low, high=high)


@quantity("price", "CPU h", "CPU-hours per million steps")
def cpu_hours_per_million_steps(priced: tuple[Estimate, int | None]) -> Estimate | None:
    """Those hours times the CPUs allocated."""
    return None if priced[1] is None else scaled(hours_per_million_steps(priced), priced[1])


def prices_of(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield hours and CPU-hours for a million steps of every throughput among some rows."""
    for each in rows:
        if each["quantity"] == "env_steps_per_s":
            yield from rows_of("price", (each["estimate"], each["num_cpus"]), each)


# --- phases of an iteration ---------------------------------------------------------------------------------------

PHASES = {
    "runners": ("mean_runner_time_s", "sampling of the mean runner", "that the mean runner samples"),
    "imbalance": (
        "slowest_runner_time_s - mean_runner_time_s",
        "waiting for the slowest",
        "from the mean runner to the slowest",
    ),
    "transfer": (
        "sampling_time_s - slowest_runner_time_s",
        "collecting samples",
        "from the slowest runner to its samples",
    ),
    "learning": ("learning_time_s", "learning", "of the update: connectors, advantages, all epochs"),
    "sync": ("sync_time_s", "synchronisation", "that the weights take to the runners"),
    "rest": (
        "iteration_time_s - sampling_time_s - learning_time_s - sync_time_s",
        "the rest",
        "that no other phase has",
    ),
}
"""Phase -> the times that it is the difference of, its label and its definition. They add up to the iteration."""
SHARES = {"learning": "share_learn"}
TIMES = [
    "iteration_time_s",
    "sampling_time_s",
    "slowest_runner_time_s",
    "mean_runner_time_s",
    "learning_time_s",
    "sync_time_s",
]


def _at_most_one(estimate: Estimate) -> Estimate:
    """Cut the interval of a share at 1, which it cannot pass; the value stays as measured."""
    if not estimate.has_interval or estimate.high <= 1:
        return estimate
    return replace(estimate, high=max(1.0, estimate.value))


def _declare_phases() -> None:
    def over(terms: str, below: str) -> Compute:
        return lambda at: at.over(terms, below)

    for name, (terms, label, what) in PHASES.items():
        declare(
            "phases", f"seconds_{name}", "s", label, f"Seconds per iteration {what}.", over(terms, "timed_iterations")
        )
    for name, (terms, label, what) in PHASES.items():
        share = SHARES.get(name, f"share_{name}")
        declare("phases", share, "1", label, f"Share of the iteration {what}.", over(terms, "iteration_time_s"))


_declare_phases()


@quantity("phases", "1", "sampling")
def share_sample(at: Place) -> Estimate:
    """Share of the iteration from its start until all samples are there."""
    return _at_most_one(at.over("sampling_time_s", "iteration_time_s"))


@quantity("phases", "1", "load balance")
def load_balance(at: Place) -> Estimate:
    """Mean runner time / slowest runner time."""
    return _at_most_one(at.over("mean_runner_time_s", "slowest_runner_time_s"))


def phases(runs: pd.DataFrame, names: Names | None = None, *, level: float = LEVEL) -> Part:
    """Return, per workload and scale, the phases of an iteration.

    Of several placements of a scale only the runs on the fewest CPUs and nodes enter: transfers differ between them.

    Args:
        runs: One row per trial (`analysis.load`).
        names: What the workloads are called.
        level: Nominal coverage of the intervals, in (0, 1).
    """
    selection = select(runs)
    names = names or Names(selection.runs)
    complete = selection.runs[TIMES].notna().all(axis=1).to_numpy(dtype=bool)
    excluded = dict(selection.excluded)
    if not complete.all():
        excluded[NO_PHASES] = int((~complete).sum())
    kept = selection.runs[complete]
    kept = kept.assign(fingerprint=kept["fingerprint"].astype(object))
    for reason, choose in ((PLACED_WIDER, _on_fewest), (BEYOND, _largest_cells)):
        before, kept = len(kept), choose(kept)
        if len(kept) < before:
            excluded[reason] = before - len(kept)
    places = [Place(runs=cell, level=level) for _, cell in kept.groupby(CELL, sort=True)]
    rows = [
        each
        for at in places
        for each in rows_of("phases", at, at.row(names[at.fingerprint], _failed(selection.failed, at)))
    ]
    return Part(rows=tuple(rows), excluded=excluded, n=len(kept), n_failed=selection.n_failed)


def _failed(failed: pd.DataFrame, at: Place) -> int:
    same = failed["fingerprint"].astype(object).eq(at.fingerprint) & failed["num_env_runners"].eq(at.num_env_runners)
    return int(same.sum())


def _on_fewest(runs: pd.DataFrame) -> pd.DataFrame:
    """Return of each cell the runs on the fewest CPUs, of these the ones on the fewest nodes; unknown is most."""
    for name in PLACED:
        least = runs.groupby(CELL)[name].transform("min")
        runs = runs[runs[name].eq(least).fillna(False) | least.isna()]
    return runs


def _largest_cells(runs: pd.DataFrame) -> pd.DataFrame:
    sizes = runs.groupby(CELL).size().sort_values(ascending=False, kind="stable")
    if len(sizes) <= MOST_CELLS:
        return runs
    return runs[pd.MultiIndex.from_frame(runs[CELL]).isin(sizes.index[:MOST_CELLS])]


# --- families of rows ---------------------------------------------------------------------------------------------


def cells(measured: pd.DataFrame, names: Names) -> Iterator[Row]:
    """Yield throughput and iteration time of cells: of workloads at most scales, and of these with most runs.

    Args:
        measured: Runs whose times may be used (`selection.select`).
        names: What the workloads are called.
    """
    if measured.empty:
        return
    measured = measured.assign(fingerprint=measured["fingerprint"].astype(object))
    scales = measured.groupby("fingerprint")["num_env_runners"].nunique()
    found = measured.groupby([*CELL, *PLACED], dropna=False, sort=True)
    chosen = sorted(found, key=lambda cell: (-scales[str(cell[0][0])], -len(cell[1])))[:MOST_CELLS]

    def order(cell: tuple[Any, pd.DataFrame]) -> tuple[Any, ...]:
        text, *place = cell[0]
        return names[str(text)], *(math.inf if pd.isna(each) else float(each) for each in place)

    for _, runs in sorted(chosen, key=order):
        at = Place(runs=runs)
        yield from rows_of("cell", at, at.row(names[at.fingerprint]))


def scaling(
    runs: pd.DataFrame, kind: Kind, names: Names | None = None, *, level: float = LEVEL, space: str | None = None
) -> Part:
    """Return speed-up and efficiency of every workload that ran at several scales with everything else equal.

    In weak scaling the workload of an iteration grows with n: the learner makes n times the updates. Sampling could
    stay at weak efficiency 1, learning on one learner cannot.

    Args:
        runs: One row per trial (`analysis.load`).
        kind: `strong`: equal fingerprints; `weak`: equal env steps per runner in place of the batch.
        names: What the workloads are called.
        level: Nominal coverage of the intervals, in (0, 1).
        space: Space file for commands that would run missing cells; None: no commands.

    Returns:
        The workloads with most scales first; refusals where scales have no workload in common, where the extremes of a
        complete 2x2 invite a naive comparison, or where there is nothing to compare.
    """
    selection = select(runs)
    names = names or Names(selection.runs)
    measured = selection.runs.assign(key=_workloads(selection.runs, kind))
    failed = selection.failed.assign(key=_workloads(selection.failed, kind))
    excluded = dict(selection.excluded)
    several = measured["key"].map(measured.groupby("key", sort=False)["num_env_runners"].nunique()) > 1
    if num_alone := int((~several).sum()):
        excluded[ALONE] = num_alone
    inside = measured[several.astype(bool)]
    groups = [(str(key), _places(part, level)) for key, part in inside.groupby("key", sort=True)]
    keys = [key for key, _ in groups]
    called = dict(zip(keys, labels(keys), strict=True)) if keys else {}
    groups.sort(key=lambda group: (-len(group[1]), -sum(len(at.runs) for at in group[1]), called[group[0]]))
    rows: list[Row] = []
    for key, places in groups:
        mine = failed[failed["key"] == key]
        for at in places:
            n_failed = int((mine["num_env_runners"] == at.num_env_runners).sum()) if at.first else 0
            place = at.row(called[key] if kind == "weak" else names[at.fingerprint], n_failed)
            bases = {"base": _base(at).in_words} | ({"before": at.before.in_words} if at.before else {})
            rows += rows_of(kind, at, place, bases)
        if kind == "strong" and (change := karp_flatt_change(places, level=level)) is not None:
            last = places[-1]
            rows.append({**last.row(names[last.fingerprint]), "quantity": "karp_flatt_change", "estimate": change})
    return Part(
        rows=tuple(rows),
        refusals=guard.refusals(measured, kind=kind, excluded=selection.excluded, level=level, space=space),
        excluded=excluded,
        n=len(inside),
        n_failed=selection.n_failed,
    )


declare(
    "group", "karp_flatt_change", "1", "change of the Karp-Flatt fraction",
    "The fraction at the largest scale less that at the smallest above the reference, within blocks.",
)  # fmt: skip


def _workloads(runs: pd.DataFrame, kind: Kind) -> "pd.Series[Any]":
    """Return, per run, the JSON text that runs of equal workload share; in weak scaling NA without a batch."""
    fingerprints = runs["fingerprint"].astype(object)
    if kind == "strong" or not len(runs):
        return fingerprints

    @cache
    def key(fingerprint: str, batch: int, scale: int) -> str:
        return replaced(fingerprint, (BATCH,), {"env_steps_per_runner": round(batch / scale, 6)})

    known = runs[[BATCH, "num_env_runners"]].notna().all(axis=1)
    result = pd.Series(pd.NA, index=runs.index, dtype=object)
    parts = (fingerprints[known], runs.loc[known, BATCH], runs.loc[known, "num_env_runners"])
    result[known] = [key(str(text), int(b), int(n)) for text, b, n in zip(*parts, strict=True)]
    return result


def _places(part: pd.DataFrame, level: float) -> list[Place]:
    """Return the places of one workload, by scale, each with its base and the place before it."""
    found = part.groupby(["num_env_runners", *PLACED], dropna=False, sort=True)
    places = [Place(runs=runs, level=level) for _, runs in found]
    for at in places:
        smaller = [each for each in places if each.num_env_runners < at.num_env_runners]
        at.base = places[0]
        at.before = max(smaller, key=lambda other: _nearness(other, at), default=None)
        at.first = at is next(each for each in places if each.num_env_runners == at.num_env_runners)
    return places


def _nearness(other: Place, at: Place) -> tuple[int, int]:
    return other.num_env_runners, -abs((other.num_nodes or 0) - (at.num_nodes or 0))
