"""Rules of a throughput study: one base cell, cells that run as they are written, nothing about learning. Pure."""

import math
from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from study.errors import Fault
from study.space.cells import BASE_CELL, Cell, cells_of, shares, spec_of_cell
from study.space.checks import batches, one_of_two
from study.space.domains import Choices, Range
from study.space.parameters import PARAMETERS, REPLACED, RULES, SCALE
from study.space.plain import MAX_TRIALS
from study.space.spec import StudySpec
from study.space.throughput import AXES, LEARNERS, ThroughputSpec

MAX_CELLS = 1_000
"""More than anybody can time; the plan looks at each of them."""


def throughput(spec: StudySpec) -> Iterator[Fault]:
    """Check a throughput study, and that no other study has its section."""
    section, where = spec.throughput, "throughput"
    if spec.kind != "throughput":
        if section is not None:
            rule, fix = "needs kind: throughput", "Add kind: throughput, or remove it."
            yield Fault(where=where, rule=rule, got=f"kind: {spec.kind}", fix=fix)
    elif spec.traits.asynchronous:
        rule = f"a throughput study times the phases of an iteration, and those of {spec.algorithm} overlap"
        yield Fault(where="algorithm", rule=rule, fix="Use kind: search with budget.time_s, or algorithm: PPO.")
    elif section is None:
        yield Fault(where=where, rule="must be given with kind: throughput", fix="Add throughput.grids.")
    else:
        yield from _foreign(spec)
        found = [*_base(spec), *_grids(section), *_allocation(spec, section), *_number(section)]
        yield from found or _cells(spec)


def _foreign(spec: StudySpec) -> Iterator[Fault]:
    """Check that nothing is given which only studies that learn have."""
    if spec.holdup is not None:
        rule, fix = "a throughput study has no stages", "Remove it, or remove kind: throughput."
        yield Fault(where="holdup", rule=rule, fix=fix)
    if any(limit is not None for limit in (spec.budget.env_steps, spec.budget.iterations, spec.budget.time_s)):
        rule, fix = "a throughput study counts its iterations itself", "Use throughput.iterations."
        yield Fault(where="budget", rule=rule, fix=fix)
    for name, info in type(spec.search).model_fields.items():
        if name != "sampler_seed" and getattr(spec.search, name) != info.default:
            yield Fault(where=f"search.{name}", rule="a throughput study searches for nothing", fix="Remove it.")
    if spec.evaluation != type(spec).model_fields["evaluation"].default:
        yield Fault(where="evaluation", rule="a throughput study evaluates nothing", fix="Remove it.")


def _base(spec: StudySpec) -> Iterator[Fault]:
    for name in (*spec.parameter_names, *RULES):
        domain = spec.domain(name) if name in PARAMETERS else spec.rule(name)
        if isinstance(domain, (Choices, Range)):
            where, got = f"parameters.{name}", "a list" if isinstance(domain, Choices) else "a range"
            listed = f"Give one value here and list others in throughput.grids.*.{name}."
            fix = listed if name in AXES else "Give one value: no time depends on it."
            yield Fault(where=where, rule="the base cell has one value", got=got, fix=fix)


def _grids(section: ThroughputSpec) -> Iterator[Fault]:
    if not section.grids and section.allocation is None:
        rule, got = "there must be something to compare", "no grid and no allocation"
        yield Fault(where="throughput.grids", rule=rule, got=got, fix="Add a grid.")
    for name, axes in section.axes().items():
        where = f"throughput.grids.{name}"
        if not axes:
            rule, got, fix = "must vary something", f"no axis of {', '.join(AXES)}", "Add one, or remove the grid."
            yield Fault(where=where, rule=rule, got=got, fix=fix)
        yield from (
            one_of_two(f"{where}.{rule}", parameter)
            for rule, parameter in REPLACED.items()
            if rule in axes and parameter in axes
        )


def _number(section: ThroughputSpec) -> Iterator[Fault]:
    sizes = {f"throughput.grids.{name}": math.prod(map(len, axes.values())) for name, axes in section.axes().items()}
    if section.allocation is not None:
        sizes["throughput.allocation.trials"] = len(section.allocation.trials)
    if (total := sum(sizes.values())) > MAX_CELLS:
        where, rule = max(sizes, key=lambda place: sizes[place]), f"at most {MAX_CELLS} cells in all"
        yield Fault(where=where, rule=rule, got=str(total), fix="List fewer values.")
    elif total * section.blocks > MAX_TRIALS:
        rule, got = f"at most {MAX_TRIALS} trials in all", f"{section.blocks} blocks of {total} cells"
        yield Fault(where="throughput.blocks", rule=rule, got=got, fix="Lower it.")


def _allocation(spec: StudySpec, section: ThroughputSpec) -> Iterator[Fault]:
    allocation, where = section.allocation, "throughput.allocation.trials"
    if allocation is None:
        return
    if len(set(allocation.trials)) != len(allocation.trials):
        yield Fault(where=where, rule="must be distinct", got=str(allocation.trials), fix="Name each number once.")
    for name, value in allocation.parameters.items():
        place = f"throughput.allocation.parameters.{name}"
        if name not in AXES or name == SCALE:
            fix = f"Use one of: {', '.join(axis for axis in AXES if axis != SCALE)}."
            yield Fault(where=place, rule="is not varied here", fix=fix)
        elif not AXES[name].allows(value):
            yield Fault(where=place, rule=f"must be {AXES[name].bounds}", got=str(value), fix="Change the value.")
        elif REPLACED.get(name) in allocation.parameters:
            yield one_of_two(place, REPLACED[name])
    resources = spec.resources
    learners = allocation.parameters.get(LEARNERS, resources.num_learners)
    overhead = resources.num_cpus_for_main_process + learners * resources.num_cpus_per_learner
    cpus = overhead + allocation.num_env_runners * resources.num_cpus_per_env_runner
    for trials in sorted(set(allocation.trials)):
        if shares(cpus, trials, overhead=overhead, each=resources.num_cpus_per_env_runner) < 1:
            rule = f"every trial needs {overhead} CPUs and those of a runner"
            got = f"{trials} trials for the {cpus} CPUs of {allocation.num_env_runners} runners"
            yield Fault(where=where, rule=rule, got=got, fix="Name fewer trials, or raise num_env_runners.")
            return


def _cells(spec: StudySpec) -> Iterator[Fault]:
    """Check that every cell runs as it is written: a rounded or clipped one would be another workload."""
    reported: set[tuple[str, str]] = set()
    for cell in cells_of(spec):
        grid = cell.places[0]
        try:
            alone = spec_of_cell(spec, cell)
        except ValidationError as error:  # a rule can lead to a value that a parameter may not have
            name, given = str(error.errors()[0]["loc"][0]), {**cell.setting, SCALE: cell.num_env_runners}
            rule = f"{name} in cell {_name(cell)}: must be a value that the parameter may have"
            yield Fault(where=grid, rule=rule, got=str(given[name]), fix="Change the rule, or list other values.")
            return
        for fault in batches(alone):
            if (grid, fault.where) in reported:
                continue  # once for each grid
            reported.add((grid, fault.where))
            if grid == "parameters":
                yield fault
            else:
                key = fault.where.rpartition(".")[2]
                yield replace(fault, where=grid, rule=f"{key} in cell {_name(cell)}: {fault.rule}")


def _name(cell: Cell) -> str:
    return "of the base" if cell.name == BASE_CELL else f"'{cell.name}'"
