"""Whether the trials of a space fit here, and what their times will be worth."""

from study.doctor.finding import Check, Verdict, fail, ok, warn
from study.doctor.surroundings import NodeReport, Surroundings, on_every_node, plural
from study.planning.plan import make_plan


def plan(around: Surroundings) -> Verdict | None:
    """Whether every trial finds a place, and what its times will be worth."""
    if around.spec is None:
        return None
    made = make_plan(around.spec, around.shape())  # raises what is then said
    needs = [*made.scales, *made.variants.values(), *(cell.needs for cell in made.cells.values())]
    largest = max(needs, key=lambda each: (each.num_cpus, each.memory_mb))
    worth: dict[str, list[int]] = {}
    for each in sorted(needs, key=lambda each: each.num_env_runners):
        runners = worth.setdefault(each.label.timing, [])
        runners += [each.num_env_runners] if each.num_env_runners not in runners else []
    times = "; ".join(f"{timing} at {_listed(runners)} runners" for timing, runners in worth.items())
    found = (
        f"it fits with {plural(largest.num_cpus, 'CPU')} and {largest.memory_mb / 1024:.1f} GB "
        f"({plural(largest.num_env_runners, 'runner')}, {largest.execution}). Times will be {times}"
    )
    if "oversubscribed" in worth:
        return warn(
            found, "Oversubscribed times are no word on scaling: run where the cores are, or list smaller scales."
        )
    return ok(found)


def _listed(numbers: list[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


@on_every_node
def environment(node: NodeReport, around: Surroundings) -> Verdict | None:
    """Whether the space's environment can be made."""
    if around.spec is None or node.environment is None:
        return None
    name = around.spec.environment.id
    if node.environment:
        return fail(f"{name} cannot be made: {node.environment}", "Install it on every node, in Ray's environment.")
    return ok(f"{name} can be made and stepped")


CHECKS = (
    Check("space", "largest trial", plan),
    Check("space", "environment", environment),
)
