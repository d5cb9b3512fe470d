"""A throughput study: its cells, which are settings to time, and the rules that they keep. Pure."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from study.errors import Fault
from study.space.domains import ParametersSpec
from study.space.faults import fault
from study.space.parameters import SCALE, Value
from study.space.rules import batches
from study.space.sections import AXES, LEARNERS
from study.space.settings import overlay, resolve, spec_of
from study.space.spec import StudySpec

MAX_CELLS = 1_000
"""More than anybody can time; the plan looks at each of them."""
_PARAMETERS = TypeAdapter(ParametersSpec)
BASE_CELL = "anchor"
"""Name of the base cell in records; it begins and ends every block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a trial is to time: numbers, no rules."""

    name: str
    """Distinct within a study; the base cell's is `BASE_CELL`."""
    num_env_runners: int
    num_learners: int
    setting: Mapping[str, Value]
    """Every other parameter of PPO."""
    grids: tuple[str, ...] = ()
    """The grids that the cell belongs to."""


def cells_of(spec: StudySpec) -> tuple[Cell, ...]:
    """Return the distinct cells of a throughput study, the base cell first; one that several grids name is one cell."""
    assert spec.throughput is not None  # only a throughput study has cells
    base = _cell(spec, {}, "")
    cells = {_identity(base): replace(base, name=BASE_CELL)}
    for grid, axes in spec.throughput.axes().items():
        for numbers in itertools.product(*axes.values()):
            cell = _cell(spec, dict(zip(axes, numbers, strict=True)), grid)
            known = cells.get(_identity(cell), replace(cell, grids=()))
            cells[_identity(cell)] = replace(known, grids=tuple(dict.fromkeys((*known.grids, grid))))
    return tuple(cells.values())


def spec_of_cell(spec: StudySpec, cell: Cell) -> StudySpec:
    """Return a spec fixed to this cell's values; `execution: auto` is real, since emulated trials have no clock."""
    parameters = _PARAMETERS.validate_python({**cell.setting, SCALE: cell.num_env_runners})
    execution = "real" if spec.execution == "auto" else spec.execution
    fixed = spec.model_copy(update={"parameters": parameters, "execution": execution})
    return spec_of(fixed, "study", num_learners=cell.num_learners)


def _cell(spec: StudySpec, changes: Mapping[str, Value], grid: str) -> Cell:
    """Return the base cell with changes; a minibatch larger than its batch stays, to be refused."""
    scale = int(changes.get(SCALE, spec.scales[0]))
    learners = int(changes.get(LEARNERS, spec.resources.num_learners))
    setting = overlay(spec.fixed, {name: changes[name] for name in changes if name not in (SCALE, LEARNERS)})
    numbers = {name: value for name, value in resolve(setting, scale).items() if name != SCALE}
    if "num_minibatches" not in setting:
        numbers["minibatch_size"] = setting["minibatch_size"]
    short = {"k": "num_envs_per_env_runner", "B": "train_batch_size", "m": "minibatch_size", "E": "num_epochs"}
    words = [f"n={scale}", *(f"{letter}={numbers[name]}" for letter, name in short.items())]
    name = " ".join([*words, *([f"L={learners}"] if learners else [])])
    return Cell(name=name, num_env_runners=scale, num_learners=learners, setting=numbers, grids=(grid,) if grid else ())


def _identity(cell: Cell) -> tuple[object, ...]:
    return cell.num_env_runners, cell.num_learners, *sorted(cell.setting.items())


def cells(s: StudySpec) -> Iterator[Fault]:
    """Yield what is wrong with base cell and grids, and the cells that do not run as they are written.

    A rounded or clipped cell would be another workload.
    """
    if s.throughput is None or s.traits.asynchronous:
        return
    faults = [*_not_cells(s)]
    yield from faults
    for cell in cells_of(s) if not faults else ():
        own = cell.name == BASE_CELL
        where, name = "throughput.grids" if own else f"throughput.grids.{cell.grids[0]}", f"in cell '{cell.name}'"
        try:
            alone = spec_of_cell(s, cell)
        except ValidationError as error:  # a rule can lead to a value that a parameter may not have
            key, given = str(error.errors()[0]["loc"][0]), {**cell.setting, SCALE: cell.num_env_runners}
            rule = f"{key} {name}: must be a value that the parameter may have"
            yield fault(where, rule, given[key], "Change the rule, or list other values.")
            return
        for each in batches(alone):
            rule = each.rule if own else f"{each.where.rpartition('.')[2]} {name}: {each.rule}"
            yield replace(each, where=each.where if own else where, rule=rule)


def _not_cells(s: StudySpec) -> Iterator[Fault]:
    """Yield what is wrong with the base cell and the grids."""
    assert s.throughput is not None
    varied = [*s.tuned, *([SCALE] if len(s.scales) > 1 else [])]
    for name in varied:
        more = f" here and list others in throughput.grids.*.{name}" if name in AXES else ": no time depends on it"
        yield fault(f"parameters.{name}", "the base cell has one value", "several", f"Give one value{more}.")
    grids = s.throughput.axes()
    for name, axes in grids.items():
        if not axes:
            rule, got = "must vary something", f"no axis of {', '.join(AXES)}"
            yield fault(f"throughput.grids.{name}", rule, got, "Add one, or remove the grid.")
    sizes = {name: math.prod(map(len, axes.values())) for name, axes in grids.items()}
    if (total := sum(sizes.values())) > MAX_CELLS:
        where = f"throughput.grids.{max(sizes, key=lambda name: sizes[name])}"
        yield fault(where, f"at most {MAX_CELLS} cells in all", total, "List fewer values.")
