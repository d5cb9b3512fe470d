"""What a study will run and what it needs: StudySpec x cluster shape -> Plan. Pure.

A trial's place in the plan (its *slot*) is fixed before anything runs: scale, seed and anchor are dealt here, evenly,
so that the sampler can never drift to the scale that learns most easily. Only the tuned parameters are left open.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from study.domains import Choices, Range
from study.errors import ClusterError
from study.laws import largest, smallest
from study.parameters import PARAMETERS, SCALE, Value
from study.spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One planned trial: everything about it that no sampler may choose."""

    trial: int
    """Number in the plan, from 0."""
    num_env_runners: int
    iterations: int | None
    seed: int
    anchor: str | None = None
    index_at_scale: int = 0
    """Number among the trials of its scale, from 0."""
    given: Mapping[str, Value] = field(default_factory=dict)
    """Tuned parameters that an anchor or the grid fixes; the sampler fills in the rest."""


def deal_slots(spec: StudySpec) -> tuple[Slot, ...]:
    """Return the planned trials in their order.

    Anchors come first. Then come blocks with one trial of every scale (and every length), shuffled within the block,
    all on the same seed, so that neither seed nor time of day is confounded with scale. A longer plan begins with the
    shorter one, whatever `num_trials` is.
    """
    if spec.search.sampler == "grid":
        unnumbered: Iterator[Slot] = _grid(spec)
    else:
        unnumbered = itertools.islice(itertools.chain(_anchors(spec), _blocks(spec)), spec.search.num_trials)
    at_scale: Counter[int] = Counter()
    slots = []
    for trial, slot in enumerate(unnumbered):
        slots.append(replace(slot, trial=trial, index_at_scale=at_scale[slot.num_env_runners]))
        at_scale[slot.num_env_runners] += 1
    return tuple(slots)


def _cells(spec: StudySpec) -> list[tuple[int, int | None]]:
    return list(itertools.product(spec.scales, spec.iterations_axis))


def _anchors(spec: StudySpec) -> Iterator[Slot]:
    for anchor in spec.search.anchors:
        given = {name: value for name, value in anchor.parameters.items() if name in spec.tuned}
        scale = anchor.parameters.get(SCALE)
        for num_env_runners, iterations in _cells(spec):
            if scale in (None, num_env_runners):
                yield Slot(
                    trial=-1,
                    num_env_runners=num_env_runners,
                    iterations=iterations,
                    seed=spec.search.seeds[0],
                    anchor=anchor.name,
                    given=given,
                )


def _blocks(spec: StudySpec) -> Iterator[Slot]:
    cells, seeds = _cells(spec), spec.search.seeds
    for block in itertools.count():
        rng = np.random.default_rng([spec.search.sampler_seed, block])
        for cell in rng.permutation(len(cells)):
            num_env_runners, iterations = cells[cell]
            yield Slot(trial=-1, num_env_runners=num_env_runners, iterations=iterations, seed=seeds[block % len(seeds)])


def _grid(spec: StudySpec) -> Iterator[Slot]:
    names = list(spec.tuned)
    values = [grid_values(spec.tuned[name]) for name in names]
    cells = list(itertools.product(_cells(spec), itertools.product(*values)))
    for block, seed in enumerate(spec.search.seeds):
        rng = np.random.default_rng([spec.search.sampler_seed, block])
        for index in rng.permutation(len(cells)):
            (num_env_runners, iterations), point = cells[index]
            given = dict(zip(names, point, strict=True))
            yield Slot(trial=-1, num_env_runners=num_env_runners, iterations=iterations, seed=seed, given=given)


def grid_values(domain: Choices[int] | Choices[float] | Range[int] | Range[float]) -> list[Value]:
    """Return every value of a list, or of a range with a step."""
    if isinstance(domain, Choices):
        return list(domain.choices)
    step = domain.step
    if step is None:
        raise ValueError("a range without a step has no grid")  # a law of the space: refused when it was read
    count = round((domain.high - domain.low) / step) + 1  # a law of the space: the step divides the range
    return [min(domain.low + index * step, domain.high) for index in range(count)]


LOCAL = "local"
"""Address of the node of a private Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One machine, as far as a plan cares."""

    address: str
    num_cpus: int
    """CPUs that Ray hands out there."""
    physical_cpus: int
    """Cores that processes there can really have."""
    memory_mb: int
    """Memory of the machine, or of its container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """The machines of a Ray cluster."""

    nodes: tuple[NodeShape, ...]

    @property
    def num_cpus(self) -> int:
        """CPUs that Ray hands out."""
        return sum(node.num_cpus for node in self.nodes)

    @property
    def capacity(self) -> int:
        """CPUs that trials may occupy side by side without sharing a core."""
        return max(sum(min(node.num_cpus, node.physical_cpus) for node in self.nodes), 1)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the records."""
        return {"num_cpus": self.num_cpus, "nodes": [asdict(node) for node in self.nodes]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """What the trials of one scale need."""

    num_env_runners: int
    num_trials: int
    num_cpus: int
    """CPUs that one trial reserves."""
    memory_mb: int
    """Memory that one trial needs, over all nodes."""
    hours: float
    """Guess of one trial's duration, from figures of stock RLlib on one machine."""
    shares_cores: bool
    """Whether its processes outnumber the cores, so that its timings will say `oversubscribed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the study will run on this cluster."""

    slots: tuple[Slot, ...]
    scales: tuple[ScalePlan, ...]
    cluster: ClusterShape
    hours: float
    """Guess of the whole study's duration."""


def num_cpus(spec: StudySpec, num_env_runners: int) -> int:
    """Return the CPUs that a trial of this scale reserves."""
    return spec.resources.num_cpus_for_main_process + num_env_runners * spec.resources.num_cpus_per_env_runner


def memory_mb(spec: StudySpec, num_env_runners: int) -> int:
    """Return the memory that a trial of this scale is reckoned to need."""
    return spec.resources.memory_main_mb + num_env_runners * spec.resources.memory_per_env_runner_mb


def make_plan(spec: StudySpec, cluster: ClusterShape) -> Plan:
    """Return the plan of `spec` on `cluster`.

    Raises:
        ClusterError: A trial can never fit; names the scale, what it needs, what there is, and the ways out.
    """
    slots = deal_slots(spec)
    for num_env_runners in spec.scales:
        _check_fit(spec, num_env_runners, cluster)
    scales = tuple(
        ScalePlan(
            num_env_runners=num_env_runners,
            num_trials=sum(slot.num_env_runners == num_env_runners for slot in slots),
            num_cpus=num_cpus(spec, num_env_runners),
            memory_mb=memory_mb(spec, num_env_runners),
            hours=guess_seconds(spec, num_env_runners, cluster) / 3600,
            shares_cores=num_cpus(spec, num_env_runners) > cluster.capacity,
        )
        for num_env_runners in spec.scales
    )
    work = sum(min(scale.num_cpus, cluster.capacity) * scale.hours * scale.num_trials for scale in scales)
    return Plan(slots=slots, scales=scales, cluster=cluster, hours=work / cluster.capacity)


def _check_fit(spec: StudySpec, num_env_runners: int, cluster: ClusterShape) -> None:
    """Place the trial's bundles as Ray would, fullest node last, and refuse what cannot be placed."""
    resources, need = spec.resources, num_cpus(spec, num_env_runners)
    where, ways = (
        f"parameters.{SCALE}: {num_env_runners} runners",
        (
            f"Fix: list smaller scales, add nodes, or lower resources.* (this trial: {need} CPUs, "
            f"{memory_mb(spec, num_env_runners)} MB)."
        ),
    )
    shape = ", ".join(f"{node.address}: {node.num_cpus} CPUs, {node.memory_mb} MB" for node in cluster.nodes)
    if need > cluster.num_cpus:
        raise ClusterError(f"{where} need {need} CPUs at once, the cluster has {cluster.num_cpus} ({shape}). {ways}")
    if memory_mb(spec, num_env_runners) > sum(node.memory_mb for node in cluster.nodes):
        raise ClusterError(f"{where} need {memory_mb(spec, num_env_runners)} MB, the cluster has ({shape}). {ways}")
    if num_env_runners > max(_runners_that_fit(spec, cluster, main=node) for node in cluster.nodes):
        raise ClusterError(
            f"{where} do not fit on the nodes ({shape}): the main process needs {resources.num_cpus_for_main_process} "
            f"CPUs and {resources.memory_main_mb} MB on one node, each runner {resources.num_cpus_per_env_runner} CPUs "
            f"and {resources.memory_per_env_runner_mb} MB. {ways}"
        )


def _runners_that_fit(spec: StudySpec, cluster: ClusterShape, *, main: NodeShape) -> int:
    """Return how many runners fit beside a main process on node `main`; -1 when that does not fit either."""
    resources, runners = spec.resources, 0
    for node in cluster.nodes:
        cpus, memory = node.num_cpus, node.memory_mb
        if node is main:
            cpus, memory = cpus - resources.num_cpus_for_main_process, memory - resources.memory_main_mb
            if cpus < 0 or memory < 0:
                return -1
        runners += min(cpus // resources.num_cpus_per_env_runner, memory // resources.memory_per_env_runner_mb)
    return runners


# Stock RLlib on one core of a 2-core machine, Acrobot-v1: about 500 us a step with one environment and 100 us with
# eight per runner; a gradient update of 128 rows 3 ms; 2.5 CPU seconds to import a process. Good to a factor of three.
_STEP_S, _CALL_S, _UPDATE_S, _ROW_S, _PROCESS_S, _TRIAL_S = 41e-6, 460e-6, 2e-3, 8e-6, 2.5, 6.0


def guess_seconds(
    spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, iterations: int | None = None
) -> float:
    """Return a guess, good to a factor of three, of the duration of one trial in seconds.

    Args:
        spec: The space.
        num_env_runners: The scale.
        cluster: Where it runs.
        iterations: Limit of the trial; None for the mean of those in the space.
    """
    middle = {name: (smallest(spec.domain(name)) + largest(spec.domain(name))) / 2 for name in PARAMETERS}
    lanes, cores = middle["num_envs_per_env_runner"], min(num_env_runners, cluster.capacity)
    batch = middle["train_batch_size"]
    sampling = batch * (_STEP_S + _CALL_S / lanes) / cores
    updates = middle["num_epochs"] * batch / middle["minibatch_size"]
    learning = updates * (_UPDATE_S + _ROW_S * middle["minibatch_size"])
    iteration = sampling + learning
    limits = [value for value in spec.iterations_axis if value is not None] if iterations is None else [iterations]
    durations = [spec.budget.time_s] if spec.budget.time_s is not None else []
    if limits:
        durations.append(iteration * sum(limits) / len(limits))
    if spec.budget.env_steps is not None:
        durations.append(iteration * max(spec.budget.env_steps / batch, 1))
    startup = _TRIAL_S + _PROCESS_S * num_env_runners / cluster.capacity
    return startup + min(durations)
