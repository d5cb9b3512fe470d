"""Times of measured runs: throughput, speed-up, efficiency and phases, each a quantity of a `Place`.

Only finished runs with a `measured` clock enter; every other run is counted by reason. Ratios are paired by block (runs
with the same seed); rates are totals over totals. Strong scaling compares runs with equal workload fingerprints, weak
scaling those with equal env steps per runner and equal fingerprints but for the batch.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.fingerprint import BATCH, ENGINE, fields, labels, without_batch
from analysis.quantity import Part, Row, declare, quantity, rows_of
from analysis.scaling import guard
from analysis.scaling.blocks import (
    Logs,
    Selection,
    as_int,
    block_means,
    contrast,
    exact,
    exponential,
    falling,
    ratio_of_totals,
    scaled,
)
from study.statistics import Estimate, FloatArray
from study.text import count

Kind = Literal["strong", "weak"]
MILLION_STEPS_IN_HOURS = 1_000_000 / 3600
ALONE = "no run of equal workload at another scale"
NO_PHASES = "no phase times"
PLACE = ["num_env_runners", "num_cpus", "num_nodes"]


@dataclass(kw_only=True, eq=False)
class Place:
    """The measured runs of one workload at one number of runners, CPUs and nodes.

    Attributes:
        runs: One row per run, as `selection.select` returns them.
        base: The place that ratios are relative to: the first one at the smallest scale; itself where there is none.
        before: The next smaller scale, on as many nodes if it ran so, else on the nearest number of nodes.
        first: Whether it is the first place of its scale: that on the fewest CPUs and nodes.
    """

    runs: pd.DataFrame = field(repr=False)
    base: "Place | None" = None
    before: "Place | None" = None
    first: bool = True

    def __post_init__(self) -> None:
        self.num_env_runners = int(self.runs["num_env_runners"].iloc[0])
        self.num_cpus, self.num_nodes = as_int(self.runs, "num_cpus"), as_int(self.runs, "num_nodes")
        self.fingerprint = str(self.runs["fingerprint"].iloc[0])
        self.blocks = self.runs["block"].tolist()

    @property
    def reference(self) -> "Place":
        """The place that ratios are relative to."""
        return self.base or self

    @cached_property
    def times(self) -> Logs:
        """Mean ln of seconds per iteration by block."""
        return block_means(self.runs["log_time"], self.blocks)

    @cached_property
    def gain(self) -> Estimate | None:
        """Logarithm of the throughput over that at the scale before; None at the smallest scale."""
        if self.before is None:
            return None
        rates = [block_means(each.runs["log_rate"], each.blocks) for each in (self, self.before)]
        return contrast(rates, (1.0, -1.0))

    @cached_property
    def waits(self) -> bool:
        """Whether environments wait: their processes may share cores, and CPUs reserved are then not CPUs used."""
        return any(fields(str(each)).get("environment.step_wait_ms") for each in self.runs["fingerprint"].unique())

    @cached_property
    def time_ratio(self) -> Estimate:
        """T(n_ref) / T(n), paired by block."""
        if self.reference is self:
            return exact(1.0)
        return exponential(contrast((self.reference.times, self.times), (1.0, -1.0)))

    @property
    def steps(self) -> float:
        """Env steps of an iteration, on average."""
        steps, iterations = (self.runs[name].astype(float).sum() for name in ("timed_env_steps", "timed_iterations"))
        return float(steps / iterations)

    def over(self, above: str, below: str) -> Estimate:
        """Return total over total of two times, each a column or a difference such as `sampling_time_s - sync_time_s`.

        A column holds the mean of a run's timed iterations; `timed_iterations` is their number.
        """

        def total(terms: str) -> FloatArray:
            counts = self.runs["timed_iterations"].to_numpy(dtype=np.float64)
            first, *others = (
                counts if each == "timed_iterations" else self.runs[each].to_numpy(dtype=np.float64) * counts
                for each in terms.split(" - ")
            )
            return first - sum(others) if others else first

        return ratio_of_totals(total(above), total(below), self.blocks)

    @property
    def in_words(self) -> str:
        """Such as `4 runners on 2 nodes`."""
        nodes = "" if self.num_nodes is None else f" on {count(self.num_nodes, 'node')}"
        return f"{count(self.num_env_runners, 'runner')}{nodes}"

    def row(self, workload: str, n_failed: int | None = None) -> Row:
        """Return the columns of its rows in the long frame."""
        return {
            "workload": workload,
            **{name: getattr(self, name) for name in (*PLACE, "fingerprint")},
            "train_batch_size": as_int(self.runs, BATCH),
            "engine": engine_in(self.fingerprint),
            "n_failed": n_failed,
        }


@cache
def engine_in(fingerprint: str) -> str:
    """Return the engine that a fingerprint names; empty where it names none."""
    return str(fields(fingerprint).get(ENGINE) or "")


# --- throughput and prices ----------------------------------------------------------------------------------------


def rate_of(runs: pd.DataFrame) -> Estimate:
    """Return the env steps per second of some measured runs (`selection.select`), total over total."""
    steps, seconds = runs["timed_env_steps"].astype(float), runs["timed_s"].astype(float)
    return ratio_of_totals(steps, seconds, runs["block"].tolist())


@quantity("cell", "env steps/s", "throughput")
def env_steps_per_s(at: Place) -> Estimate:
    """Env steps over wall seconds after the warm-up, total over total."""
    return rate_of(at.runs)


@quantity("cell", "s", "iteration time")
def iteration_time_s(at: Place) -> Estimate:
    """Seconds per training iteration, total over total."""
    seconds, iterations = (at.runs[name].astype(float) for name in ("timed_s", "timed_iterations"))
    return ratio_of_totals(seconds, iterations, at.blocks)


@quantity("price", "h", "hours per million steps")
def hours_per_million_steps(priced: Row) -> Estimate:
    """Wall hours of training for a million env steps."""
    return falling(priced["estimate"], lambda rate: MILLION_STEPS_IN_HOURS / rate)


@quantity("price", "CPU h", "CPU-hours per million steps")
def cpu_hours_per_million_steps(priced: Row) -> Estimate | None:
    """Those hours times the CPUs allocated."""
    return None if priced["num_cpus"] is None else scaled(hours_per_million_steps(priced), priced["num_cpus"])


def prices_of(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield hours and CPU-hours for a million steps of every throughput among some rows."""
    for each in rows:
        if each["quantity"] == "env_steps_per_s":
            yield from rows_of("price", each, each)


# --- strong scaling -----------------------------------------------------------------------------------------------


@quantity("strong", "1", "speed-up", to="base")
def speed_up(at: Place) -> Estimate:
    """T(n_ref) / T(n) of equal work; n_ref is the smallest scale of the workload."""
    return at.time_ratio


@quantity("strong", "1", "efficiency", to="base")
def efficiency_per_runner(at: Place) -> Estimate | None:
    """Speed-up over the growth of the runners: 1 is ideal."""
    return scaled(at.time_ratio, at.reference.num_env_runners / at.num_env_runners)


@quantity("strong", "1", "efficiency per CPU", to="base")
def efficiency_per_cpu(at: Place) -> Estimate | None:
    """Speed-up over the growth of the CPUs allocated; none where environments wait and processes share cores."""
    if at.waits or at.num_cpus is None or at.reference.num_cpus is None:
        return None
    return scaled(at.time_ratio, at.reference.num_cpus / at.num_cpus)


@quantity("strong", "1", "marginal efficiency", to="before")
def marginal_efficiency(at: Place) -> Estimate | None:
    """Growth d ln X / d ln P from the next smaller scale: 1 where a CPU more gives its full share, 0 for nothing."""
    cpus = (at.num_cpus or 0, at.before.num_cpus or 0) if at.before else (0, 0)
    if at.gain is None or at.waits or not 0 < cpus[1] < cpus[0]:
        return None
    return scaled(at.gain, 1 / math.log(cpus[0] / cpus[1]))


@quantity("strong", "1", "work of an iteration", to="base")
def work_ratio(at: Place) -> Estimate:
    """Env steps of an iteration over those at the reference: a runner that cannot divide the batch oversteps it."""
    return exact(at.steps / at.reference.steps)


@quantity("weak", "1", "weak efficiency", to="base")
def weak_efficiency(at: Place) -> Estimate | None:
    """T(n_ref) / T(n) with the env steps per runner fixed."""
    return at.time_ratio


# --- phases of an iteration ---------------------------------------------------------------------------------------

PHASES = {
    "runners": ("mean_runner_time_s", "sampling of the mean runner", "that the mean runner samples"),
    "imbalance": (
        "slowest_runner_time_s - mean_runner_time_s",
        "waiting for the slowest",
        "from the mean to the slowest",
    ),
    "transfer": ("sampling_time_s - slowest_runner_time_s", "collecting samples", "from the slowest to its samples"),
    "learning": ("learning_time_s", "learning", "of the update: connectors, advantages, all epochs"),
    "sync": ("sync_time_s", "synchronisation", "that the weights take to the runners"),
    "rest": (
        "iteration_time_s - sampling_time_s - learning_time_s - sync_time_s",
        "the rest",
        "that no other phase has",
    ),
}
"""Phase -> the times that it is the difference of, its label and its definition. They add up to the iteration."""
SHARES = {name: "share_learn" if name == "learning" else f"share_{name}" for name in PHASES}
"""Phase -> the quantity that is its share of the iteration."""
TIMES = [f"{name}_time_s" for name in ("iteration", "sampling", "slowest_runner", "mean_runner", "learning", "sync")]


for _name, (_terms, _label, _what) in PHASES.items():
    _seconds = partial(Place.over, above=_terms, below="timed_iterations")
    declare("phases", f"seconds_{_name}", "s", _label, f"Seconds per iteration {_what}.", _seconds)
for _name, (_terms, _label, _what) in PHASES.items():
    _share = partial(Place.over, above=_terms, below="iteration_time_s")
    declare("phases", SHARES[_name], "1", _label, f"Share of the iteration {_what}.", _share)


def _at_most_one(estimate: Estimate) -> Estimate:
    """Cut the interval of a share at 1, which it cannot pass; the value stays as measured."""
    if not estimate.has_interval or estimate.high <= 1:
        return estimate
    return replace(estimate, high=max(1.0, estimate.value))


@quantity("phases", "1", "sampling")
def share_sample(at: Place) -> Estimate:
    """Share of the iteration from its start until all samples are there."""
    return _at_most_one(at.over("sampling_time_s", "iteration_time_s"))


@quantity("phases", "1", "share that no runner shortens")
def fixed_share(at: Place) -> Estimate:
    """Share of the iteration that more runners do not shorten: all but the sampling of the slowest runner."""
    return _at_most_one(at.over("iteration_time_s - slowest_runner_time_s", "iteration_time_s"))


@quantity("bound", "1", "most that runners can give")
def most_speed_up(at: Place) -> Estimate | None:
    """Bound of the throughput over the measured one, at this batch, if runners took no time."""
    share = fixed_share(at)
    return falling(share, lambda fixed: 1 / fixed) if share.value > 0 else None


# --- families of rows ---------------------------------------------------------------------------------------------


def cells(selection: Selection) -> Iterator[Row]:
    """Yield throughput and iteration time of every place."""
    for at in _all_places(selection.runs, selection.names):
        yield from rows_of("cell", at, at.row(selection.names[at.fingerprint]))


def phases(selection: Selection) -> Part:
    """Return the phases of an iteration of every place."""
    complete = selection.runs[TIMES].notna().all(axis=1).to_numpy(dtype=bool)
    places = _all_places(selection.runs[complete], selection.names)
    failed = Counter(zip(selection.failed["fingerprint"].astype(str), selection.failed["num_env_runners"], strict=True))
    rows = list[Row]()
    for at in places:
        place = at.row(selection.names[at.fingerprint], failed[at.fingerprint, at.num_env_runners])
        rows += [*rows_of("phases", at, place), *rows_of("bound", at, {**place, "basis": "extrapolated"})]
    excluded = Counter(selection.excluded)
    excluded[NO_PHASES] += int((~complete).sum())
    return Part(
        rows=tuple(rows),
        excluded={reason: number for reason, number in excluded.items() if number},
        n=sum(len(at.times) for at in places),
        n_failed=len(selection.failed),
    )


def _all_places(measured: pd.DataFrame, names: dict[str, str]) -> list[Place]:
    """Return the places of all workloads, by name and scale."""
    measured = measured.assign(fingerprint=measured["fingerprint"].astype(object))
    found = measured.groupby(["fingerprint", *PLACE], dropna=False, sort=True)

    def order(cell: tuple[Any, pd.DataFrame]) -> tuple[Any, ...]:
        text, *place = cell[0]
        return names[str(text)], *(math.inf if pd.isna(each) else float(each) for each in place)

    return [Place(runs=runs) for _, runs in sorted(found, key=order)]


def scaling(selection: Selection, kind: Kind) -> Part:
    """Return speed-up and efficiency of every workload that ran at several scales, those with most scales first.

    `strong` compares equal fingerprints, `weak` equal env steps per runner in place of the batch.
    """
    measured, failed = (runs.assign(key=_workloads(runs, kind)) for runs in (selection.runs, selection.failed))
    excluded = dict(selection.excluded)
    several = measured["key"].map(measured.groupby("key", sort=False)["num_env_runners"].nunique()) > 1
    if num_alone := int((~several).sum()):
        excluded[ALONE] = num_alone
    groups = {str(key): _places(part) for key, part in measured[several.astype(bool)].groupby("key", sort=True)}
    called = dict(zip(groups, labels(list(groups)), strict=True)) if groups else {}
    rows: list[Row] = []
    for key in sorted(
        groups, key=lambda key: (-len(groups[key]), -sum(len(at.runs) for at in groups[key]), called[key])
    ):
        mine = failed[failed["key"] == key]
        for at in groups[key]:
            n_failed = int((mine["num_env_runners"] == at.num_env_runners).sum()) if at.first else 0
            place = at.row(called[key] if kind == "weak" else selection.names[at.fingerprint], n_failed)
            bases = {"base": at.reference.in_words} | ({"before": at.before.in_words} if at.before else {})
            rows += rows_of(kind, at, place, bases)
    return Part(
        rows=tuple(rows),
        refusals=guard.refusals(measured, kind=kind, excluded=selection.excluded),
        excluded=excluded,
        n=sum(len(at.times) for places in groups.values() for at in places),
        n_failed=len(selection.failed),
    )


def _workloads(runs: pd.DataFrame, kind: Kind) -> "pd.Series[Any]":
    """Return, per run, the JSON text that runs of equal workload share; in weak scaling NA without a batch."""
    fingerprints = runs["fingerprint"].astype(object)
    if kind == "strong" or not len(runs):
        return fingerprints

    @cache
    def key(fingerprint: str, batch: int, scale: int) -> str:
        return without_batch(fingerprint, env_steps_per_runner=round(batch / scale, 6))

    known = runs[[BATCH, "num_env_runners"]].notna().all(axis=1)
    result = pd.Series(pd.NA, index=runs.index, dtype=object)
    parts = (fingerprints[known], runs.loc[known, BATCH], runs.loc[known, "num_env_runners"])
    result[known] = [key(str(text), int(b), int(n)) for text, b, n in zip(*parts, strict=True)]
    return result


def _places(part: pd.DataFrame) -> list[Place]:
    """Return the places of one workload, by scale, each with its base and the place before it."""
    places = [Place(runs=runs) for _, runs in part.groupby(PLACE, dropna=False, sort=True)]
    for at in places:

        def nearness(other: Place, nodes: int = at.num_nodes or 0) -> tuple[int, int]:
            return other.num_env_runners, -abs((other.num_nodes or 0) - nodes)

        smaller = [each for each in places if each.num_env_runners < at.num_env_runners]
        at.base, at.before = places[0], max(smaller, key=nearness, default=None)
        at.first = at is next(each for each in places if each.num_env_runners == at.num_env_runners)
    return places
