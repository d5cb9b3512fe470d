"""What a person should know of a plan before it runs: what is emulated or shares cores, how to change it. Pure."""

from collections.abc import Iterator

from study.planning.needs import num_cpus
from study.planning.plan import Plan
from study.planning.shape import LOCAL, NodeShape
from study.space.settings import larger_batches
from study.space.spec import StudySpec
from study.text import count, listed

CROWDED = 4
"""Processes for each core from which on a trial is told to be slow, not only not measured."""


def remarks(spec: StudySpec, plan: Plan) -> Iterator[str]:
    """Yield a line for each thing that the times, or the learning, of the planned trials will suffer from."""
    cores = count(plan.cluster.capacity, "core")
    needed = {scale.num_env_runners: scale for scale in (*plan.scales, *(cell.needs for cell in plan.cells.values()))}
    emulated = sorted(scale for scale, needs in needed.items() if needs.execution == "emulated")
    if emulated and spec.execution == "auto":
        reserved = num_cpus(spec, emulated[-1], "real")
        yield (
            f"Emulated: trials of {listed(emulated)} runners. Real runners would need up to {reserved} CPUs, there "
            f"are {cores}. They learn as with real runners; their times say nothing about real runners. "
            "To change it: run where the CPUs are (--address, or the command `launch`), or --set execution=real."
        )
    crowded = {scale: needs for scale, needs in needed.items() if _is_crowded(needs.execution, needs.label.timing)}
    crowded = {scale: needs for scale, needs in crowded.items() if needs.num_cpus > plan.cluster.capacity}
    if crowded:
        most = max(needs.num_cpus for needs in crowded.values())
        slow = f"; {most // plan.cluster.capacity} share a core, so that they start and run slowly"
        ways = "--set execution=emulated, " if spec.runner != "stock" and not spec.traits.asynchronous else ""
        yield (
            f"Oversubscribed: trials of {listed(sorted(crowded))} runners. They have up to {most} processes on {cores}"
            f"{slow if most >= CROWDED * plan.cluster.capacity else ''}. Their times say nothing about scaling. "
            f"To change it: {ways}fewer runners, or run where the CPUs are (--address, or the command `launch`)."
        )
    for node in plan.cluster.nodes:
        yield from _of_node(node)
    if batches := larger_batches(spec):
        scale, batch = max(batches.items())
        yield (
            f"Larger than the budget: a train batch of up to {batch:,} steps at {scale} runners, of "
            f"{spec.budget.env_steps:,} steps in all. Such a trial trains once, on data of random actions. "
            "To change it: raise budget.env_steps, or lower the batch."
        )


def _is_crowded(execution: str, timing: str) -> bool:
    return execution == "real" and timing == "oversubscribed"


def _of_node(node: NodeShape) -> Iterator[str]:
    if node.address != LOCAL and node.num_cpus > node.physical_cpus:
        yield (
            f"{node.address}: Ray hands out {node.num_cpus} CPUs, there are {node.physical_cpus} cores. The study "
            "plans with the cores; the times of real runners there say nothing about scaling. "
            f"To change it: start Ray there with --num-cpus={node.physical_cpus}."
        )
    if node.niceness > 0:
        ray = "start Ray there with RAY_worker_niceness=0"
        yield (
            f"{node.address}: trials run at nice {node.niceness}, so that every other program goes before them and "
            f"their times suffer. To change it: {'start the study without `nice`' if node.address == LOCAL else ray}."
        )
