"""Laws of a throughput study: one base cell, cells that run as they are written, nothing about learning. Pure."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from study.space.cells import ANCHOR, Cell, cells_of, shares, spec_of_cell
from study.space.domains import Choices, Range
from study.space.parameters import PARAMETERS, REPLACED, RULES, SCALE
from study.space.plain import MAX_TRIALS
from study.space.throughput import AXES, LEARNERS, ThroughputSpec

if TYPE_CHECKING:
    from study.space.spec import StudySpec

Broken = Iterator[tuple[str, str, str]]

MAX_CELLS = 1_000
"""More than anybody can time; the plan looks at each of them."""


def throughput_laws(spec: "StudySpec", laws_of_batches: Sequence[Callable[["StudySpec"], Broken]]) -> Broken:
    """Yield place, law and fix for every law that a throughput study breaks.

    Args:
        spec: The space.
        laws_of_batches: Laws that every cell must keep, as spaces keep them.
    """
    if spec.kind != "throughput":
        if spec.throughput is not None:
            yield "throughput", f"needs kind: throughput, got kind: {spec.kind}.", "Add kind: throughput, or remove it."
        return
    if spec.traits.asynchronous:
        got = f"times the phases of an iteration, and those of {spec.algorithm} overlap."
        yield "algorithm", f"a throughput study {got}", "Use kind: search with budget.time_s, or algorithm: PPO."
        return
    section = spec.throughput
    if section is None:
        yield "throughput", "must be given with kind: throughput.", "Add throughput.grids."
        return
    yield from _foreign(spec)
    broken = [*_base(spec), *_grids(section), *_allocation(spec, section), *_number(section)]
    yield from broken
    if not broken:
        yield from _cells(spec, laws_of_batches)


def _foreign(spec: "StudySpec") -> Broken:
    """What belongs to studies that learn."""
    if spec.holdup is not None:
        yield "holdup", "a throughput study has no stages.", "Remove it, or remove kind: throughput."
    if any(limit is not None for limit in (spec.budget.env_steps, spec.budget.iterations, spec.budget.time_s)):
        yield "budget", "a throughput study counts its iterations itself.", "Use throughput.iterations."
    for name in type(spec.search).model_fields:
        if name != "sampler_seed" and getattr(spec.search, name) != type(spec.search).model_fields[name].default:
            yield f"search.{name}", "a throughput study searches for nothing.", "Remove it."
    if spec.evaluation != type(spec).model_fields["evaluation"].default:
        yield "evaluation", "a throughput study evaluates nothing.", "Remove it."


def _base(spec: "StudySpec") -> Broken:
    for name in (*spec.parameter_names, *RULES):
        domain = spec.domain(name) if name in PARAMETERS else spec.rule(name)
        if isinstance(domain, (Choices, Range)):
            got = f"the base cell has one value, got {'a list' if isinstance(domain, Choices) else 'a range'}."
            fix = f"Give one value here and list others in throughput.grids.*.{name}."
            yield f"parameters.{name}", got, fix if name in AXES else "Give one value: no time depends on it."


def _grids(section: ThroughputSpec) -> Broken:
    if not section.grids and section.allocation is None:
        yield "throughput.grids", "there must be something to compare, got no grid and no allocation.", "Add a grid."
    for name, axes in section.axes().items():
        place = f"throughput.grids.{name}"
        if not axes:
            yield place, f"must vary something, got no axis of {', '.join(AXES)}.", "Add one, or remove the grid."
        for rule, parameter in REPLACED.items():
            if rule in axes and parameter in axes:
                yield f"{place}.{rule}", f"takes the place of {parameter}, got both.", "Remove one of the two."


def _number(section: ThroughputSpec) -> Broken:
    sizes = {f"throughput.grids.{name}": math.prod(map(len, axes.values())) for name, axes in section.axes().items()}
    if section.allocation is not None:
        sizes["throughput.allocation.trials"] = len(section.allocation.trials)
    if (total := sum(sizes.values())) > MAX_CELLS:
        got = f"at most {MAX_CELLS} cells in all, got {total}."
        yield max(sizes, key=lambda place: sizes[place]), got, "List fewer values."
    elif total * section.blocks > MAX_TRIALS:
        got = f"at most {MAX_TRIALS} trials in all, got {section.blocks} blocks of {total} cells."
        yield "throughput.blocks", got, "Lower it."


def _allocation(spec: "StudySpec", section: ThroughputSpec) -> Broken:
    allocation, place = section.allocation, "throughput.allocation"
    if allocation is None:
        return
    if len(set(allocation.trials)) != len(allocation.trials):
        yield f"{place}.trials", f"must be distinct, got {allocation.trials}.", "Name each number once."
    for name, value in allocation.parameters.items():
        if name not in AXES or name == SCALE:
            allowed = [axis for axis in AXES if axis != SCALE]
            yield f"{place}.parameters.{name}", "is not varied here.", f"Use one of: {', '.join(allowed)}."
        elif not AXES[name].allows(value):
            yield f"{place}.parameters.{name}", f"must be {AXES[name].bounds}, got {value}.", "Change the value."
        elif REPLACED.get(name) in allocation.parameters:
            yield f"{place}.parameters.{name}", f"takes the place of {REPLACED[name]}, got both.", "Remove one of them."
    resources = spec.resources
    learners = allocation.parameters.get(LEARNERS, resources.num_learners)
    overhead = resources.num_cpus_for_main_process + learners * resources.num_cpus_per_learner
    cpus = overhead + allocation.num_env_runners * resources.num_cpus_per_env_runner
    for trials in sorted(set(allocation.trials)):
        if shares(cpus, trials, overhead=overhead, each=resources.num_cpus_per_env_runner) < 1:
            got = (
                f"every trial needs {overhead} CPUs and those of a runner, got {trials} trials for the {cpus} CPUs of "
                f"{allocation.num_env_runners} runners."
            )
            yield f"{place}.trials", got, "Name fewer trials, or raise num_env_runners."
            return


def _cells(spec: "StudySpec", laws_of_batches: Sequence[Callable[["StudySpec"], Broken]]) -> Broken:
    """Every cell runs as it is written: nothing is rounded or clipped, or it would be another workload."""
    told: set[tuple[str, str]] = set()
    for cell in cells_of(spec):
        try:
            alone = spec_of_cell(spec, cell)
        except ValidationError as error:  # a rule can lead beyond what a parameter may be
            name, values = str(error.errors()[0]["loc"][0]), {**cell.setting, SCALE: cell.num_env_runners}
            got = f"{name} in cell {_name(cell)}: must be one that the parameter may have, got {values[name]}."
            yield cell.places[0], got, "Change the rule, or list other values."
            return
        for place, law, fix in (broken for law_of in laws_of_batches for broken in law_of(alone)):
            where = cell.places[0]
            if (where, place) in told:
                continue  # once for each grid
            told.add((where, place))
            if where == "parameters":
                yield place, law, fix
            else:
                yield where, f"{place.rpartition('.')[2]} in cell {_name(cell)}: {law}", fix


def _name(cell: Cell) -> str:
    return "of the base" if cell.name == ANCHOR else f"'{cell.name}'"
