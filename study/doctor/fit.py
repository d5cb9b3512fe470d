"""Whether the trials of a space fit here, and what their times will be worth."""

from study.designs.registry import make_plan
from study.doctor.results import CheckResult, fail, ok, on_every_node, warn
from study.doctor.surroundings import NodeReport, Surroundings
from study.text import count, gigabytes, listed


def plan(around: Surroundings) -> CheckResult | None:
    """Whether every trial finds a place, and what its times will be worth."""
    if around.spec is None:
        return None
    made = make_plan(around.spec, around.shape())  # its errors become the result
    needs = [*made.scales, *made.variants.values(), *(cell.needs for cell in made.cells.values())]
    largest = max(needs, key=lambda each: (each.num_cpus, each.memory_mb))
    worth: dict[str, list[int]] = {}
    for each in sorted(needs, key=lambda each: each.num_env_runners):
        runners = worth.setdefault(each.label.timing, [])
        runners += [each.num_env_runners] if each.num_env_runners not in runners else []
    times = "; ".join(f"{timing} at {listed(runners)} runners" for timing, runners in worth.items())
    found = (
        f"it fits with {count(largest.num_cpus, 'CPU')} and {gigabytes(largest.memory_mb)} "
        f"({count(largest.num_env_runners, 'runner')}, {largest.execution}). Times will be {times}"
    )
    if "oversubscribed" in worth:
        return warn(
            found, "Oversubscribed times say nothing about scaling: run where the cores are, or list smaller scales."
        )
    return ok(found)


@on_every_node
def environment(node: NodeReport, around: Surroundings) -> CheckResult | None:
    """Whether the space's environment can be made."""
    if around.spec is None or node.environment is None:
        return None
    name = around.spec.environment.id
    if node.environment:
        return fail(f"{name} cannot be made: {node.environment}", "Install it on every node, in Ray's environment.")
    return ok(f"{name} can be made and stepped")
