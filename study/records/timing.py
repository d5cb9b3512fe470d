"""What a trial's times are worth: the label of a row, expected, at its start and at its end. Pure.

Every timing is `measured`, `oversubscribed`, `emulated` or `tainted`, with the reason. Only `measured` ones say
anything about scaling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study.planning.needs import num_cpus, num_sampling_processes
from study.planning.shape import LOCAL, ClusterShape
from study.records.records import Timing
from study.space.spec import Execution, StudySpec
from study.text import count

PRESSURE_LIMIT = 0.05
"""Share of the training time in which some task waited for a CPU: from here on, processes that share cores disturb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a trial's times are worth, and how that is known."""

    timing: Timing
    reason: str
    provisional: bool = False
    """Whether the CPU pressure of the whole trial has yet to decide between `measured` and `oversubscribed`."""


def label_at_start(
    spec: StudySpec,
    cluster: ClusterShape,
    *,
    num_env_runners: int,
    execution: Execution,
    processes_per_node: Mapping[str, int] | None = None,
    beside: int = 0,
) -> Label:
    """Return the label that a trial begins with: whether every process has a core of its own.

    Args:
        spec: The space.
        cluster: Where it runs.
        num_env_runners: The scale.
        execution: How it runs.
        processes_per_node: Node address -> processes of this trial there, once they are up; None: any may get some.
        beside: CPUs that other trials of its group reserve at the same time.
    """
    if execution == "emulated":
        inside = count(num_sampling_processes(spec, num_env_runners, execution), "process", "processes")
        return Label(timing="emulated", reason=f"lanes of {count(num_env_runners, 'runner')} stepped in {inside}")
    reserved, capacity = num_cpus(spec, num_env_runners, execution) + beside, cluster.capacity
    shared = _shared_cores(cluster, reserved, processes_per_node)
    if not shared:
        return Label(timing="measured", reason=f"{reserved} CPUs reserved of {capacity} cores")
    if wait := spec.environment.step_wait_ms:
        return Label(timing="measured", reason=f"environments wait {wait:g} ms a step; {shared}", provisional=True)
    return Label(timing="oversubscribed", reason=shared)


def label_of_folded(num_env_runners: int, stands_for: int) -> Label:
    """Return the label of a trial whose few runner processes step the lanes of `stands_for` runners."""
    inside = count(num_env_runners, "stock runner")
    return Label(timing="emulated", reason=f"lanes of {count(stands_for, 'runner')} stepped in {inside}")


def _shared_cores(cluster: ClusterShape, reserved: int, processes_per_node: Mapping[str, int] | None) -> str:
    """Return how it is known that processes share cores; empty when each has its own."""
    if reserved > cluster.capacity:
        return f"{reserved} CPUs reserved, {cluster.capacity} cores"
    nodes = {node.address: node for node in cluster.nodes}
    if LOCAL in nodes:
        return ""  # on a Ray of our own nobody else runs; elsewhere others may hold the CPUs that do not exist
    used = dict.fromkeys(nodes, 1) if processes_per_node is None else processes_per_node
    for address in (address for address, number in used.items() if number):
        node = nodes.get(address)
        if node is None:
            return f"{address} joined after the study began: its cores are not known"
        if node.num_cpus > node.physical_cpus:
            return f"{address}: Ray hands out {node.num_cpus} CPUs, {node.physical_cpus} cores"
    return ""


def label_at_end(
    label: Label,
    *,
    failed: bool,
    num_dropped_samples: int,
    num_lost_runners: int,
    cpu_pressure: float | None,
    lost: str = "",
    num_restarts: int = 0,
    disturbances: Sequence[str] = (),
) -> Label:
    """Return the label that a trial ends with.

    Args:
        label: What it began with. Only `measured` is in question.
        failed: Whether the trial failed, for instance because a runner died or did not answer.
        num_dropped_samples: Samples that were lost or came too late, over the whole trial.
        num_lost_runners: Runners that were missing in the worst iteration.
        cpu_pressure: Mean share of the training time in which some task waited for a CPU; None when unknown.
        lost: `node` or `process`: what died under the trial; empty when nothing did.
        num_restarts: Runner processes that were started anew.
        disturbances: What others did on its nodes beyond the limits, by `study.records.node_load.disturbances`.
    """
    if label.timing != "measured":
        return label
    losses = ["the trial failed"] if failed else []
    losses += [f"a {lost} of the trial died"] if lost else []
    losses += [f"{count(num_lost_runners, 'runner')} lost"] if num_lost_runners > 0 else []
    losses += [f"{count(num_restarts, 'runner')} restarted"] if num_restarts > 0 else []
    losses += [f"{count(num_dropped_samples, 'sample')} dropped"] if num_dropped_samples > 0 else []
    # Where processes share cores because their environments wait, the pressure tells whether any of them had to wait
    # for one, whoever held it.
    calm = label.provisional and cpu_pressure is not None and cpu_pressure < PRESSURE_LIMIT
    losses += [] if calm else disturbances
    if losses:
        return Label(timing="tainted", reason=", ".join(losses))
    if not label.provisional:
        return label
    if cpu_pressure is None:
        return Label(timing="oversubscribed", reason=f"{label.reason}; CPU pressure unknown")
    timing: Timing = "measured" if cpu_pressure < PRESSURE_LIMIT else "oversubscribed"
    return Label(timing=timing, reason=f"{label.reason}; CPU pressure {cpu_pressure:.1%}")
