"""A throughput study: its cells, which are settings to time, and the rules that they keep. Pure."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from study.space.domains import Choices, ParametersSpec, Range, Rule
from study.space.parameters import MAX_TRIALS, PARAMETERS, RULES, SCALE, Value
from study.space.rules import BATCHES, Found, both, left_out
from study.space.sections import AXES, LEARNERS
from study.space.settings import overlay, resolve
from study.space.spec import StudySpec

MAX_CELLS = 1_000
"""More than anybody can time; the plan looks at each of them."""
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
    places: tuple[str, ...]
    """Places of the space that name this cell, such as `throughput.grids.strong`."""

    @property
    def grids(self) -> str:
        """The grids that the cell belongs to, for people."""
        return ", ".join(place.rpartition(".")[2] for place in self.places if place.startswith("throughput."))


def cells_of(spec: StudySpec) -> tuple[Cell, ...]:
    """Return the distinct cells of a throughput study, the base cell first; one that several grids name is one cell."""
    cells: dict[tuple[object, ...], Cell] = {}
    for cell in (_base(spec), *_of_grids(spec)):
        key = _identity(cell)
        known = cells.get(key, cell)
        cells[key] = replace(known, places=tuple(dict.fromkeys((*known.places, *cell.places))))
    return tuple(cells.values())


def spec_of_cell(spec: StudySpec, cell: Cell) -> StudySpec:
    """Return a spec fixed to this cell's values; `execution: auto` is real, since emulated trials have no clock."""
    fixed = {
        "parameters": ParametersSpec.model_validate({**cell.setting, SCALE: cell.num_env_runners}),
        "resources": spec.resources.model_copy(update={LEARNERS: cell.num_learners}),
        "execution": "real" if spec.execution == "auto" else spec.execution,
    }
    return spec.model_copy(update=fixed)


def _base(spec: StudySpec) -> Cell:
    return _cell(spec, spec.fixed, spec.scales[0], spec.resources.num_learners, "parameters", name=BASE_CELL)


def _of_grids(spec: StudySpec) -> Iterator[Cell]:
    assert spec.throughput is not None  # only a throughput study has cells
    for name, axes in spec.throughput.axes().items():
        for values in itertools.product(*axes.values()):
            yield _changed(spec, dict(zip(axes, values, strict=True)), f"throughput.grids.{name}")


def _changed(spec: StudySpec, changes: Mapping[str, Value], place: str) -> Cell:
    scale = int(changes.get(SCALE, spec.scales[0]))
    learners = int(changes.get(LEARNERS, spec.resources.num_learners))
    setting = overlay(spec.fixed, {name: changes[name] for name in changes if name not in (SCALE, LEARNERS)})
    return _cell(spec, setting, scale, learners, place)


def _cell(
    spec: StudySpec, setting: Mapping[str, Value], scale: int, learners: int, place: str, *, name: str = ""
) -> Cell:
    values = _numbers(setting, scale)
    short = {"n": scale, "k": "num_envs_per_env_runner", "B": "train_batch_size", "m": "minibatch_size"}
    words = [f"{letter}={values[at] if isinstance(at, str) else at}" for letter, at in short.items()]
    words += [f"E={values['num_epochs']}", *([f"L={learners}"] if learners else [])]
    return Cell(
        name=name or " ".join(words), num_env_runners=scale, num_learners=learners, setting=values, places=(place,)
    )


def _numbers(setting: Mapping[str, Value], scale: int) -> dict[str, Value]:
    """Return the setting's numbers at a scale; a minibatch larger than its batch stays, to be refused."""
    values = {name: value for name, value in resolve(setting, scale).items() if name != SCALE}
    if "num_minibatches" not in setting:
        values["minibatch_size"] = PARAMETERS["minibatch_size"].kind(setting["minibatch_size"])
    return values


def _identity(cell: Cell) -> tuple[object, ...]:
    return cell.num_env_runners, cell.num_learners, *sorted(cell.setting.items())


# --- rules ---


def _times(spec: StudySpec) -> bool:
    """Return whether the cells of a throughput study are given, of an algorithm whose phases can be timed."""
    return spec.kind == "throughput" and spec.throughput is not None and not spec.traits.asynchronous


def _varied_base(spec: StudySpec) -> Found:
    for name in (*spec.parameter_names, *RULES) if _times(spec) else ():
        domain = spec.domain(name) if name in PARAMETERS else spec.rule(name)
        if isinstance(domain, (Choices, Range)):
            got = "a list" if isinstance(domain, Choices) else "a range"
            more = f" here and list others in throughput.grids.*.{name}" if name in AXES else ": no time depends on it"
            yield {"name": name, "got": got, "more": more}


def _axes(spec: StudySpec) -> dict[str, dict[str, list[int]]]:
    return spec.throughput.axes() if spec.throughput and _times(spec) else {}


def _many_cells(spec: StudySpec) -> Found:
    sizes = {f"throughput.grids.{name}": math.prod(map(len, axes.values())) for name, axes in _axes(spec).items()}
    blocks, total = spec.throughput.blocks if spec.throughput else 1, sum(sizes.values())
    if total > MAX_CELLS:
        yield {"where": max(sizes, key=lambda place: sizes[place]), "most": f"{MAX_CELLS} cells", "got": total}
    elif total * blocks > MAX_TRIALS:
        got = f"{blocks} blocks of {total} cells"
        yield {"where": "throughput.blocks", "most": f"{MAX_TRIALS} trials", "got": got}


def _broken_cells(spec: StudySpec) -> Found:
    """Yield the cells that do not run as they are written: a rounded or clipped one would be another workload."""
    if not _times(spec) or any(both(spec)) or any(fault for rule in _BEFORE_CELLS for fault in rule.faults(spec)):
        return
    for cell in cells_of(spec):
        name, grid = "of the base" if cell.name == BASE_CELL else f"'{cell.name}'", cell.places[0]
        try:
            alone = spec_of_cell(spec, cell)
        except ValidationError as error:  # a rule can lead to a value that a parameter may not have
            key, given = str(error.errors()[0]["loc"][0]), {**cell.setting, SCALE: cell.num_env_runners}
            rule = f"{key} in cell {name}: must be a value that the parameter may have"
            yield {"where": grid, "rule": rule, "got": given[key], "fix": "Change the rule, or list other values."}
            return
        for fault in (fault for rule in BATCHES for fault in rule.faults(alone)):
            own = grid == "parameters"
            rule = fault.rule if own else f"{fault.where.rpartition('.')[2]} in cell {name}: {fault.rule}"
            yield {"where": fault.where if own else grid, "rule": rule, "got": fault.got, "fix": fault.fix}


_BEFORE_CELLS = (
    Rule("parameters.{name}", _varied_base, "the base cell has one value", "Give one value{more}.", "{got}"),
    Rule("throughput.grids", lambda s: _times(s) and not s.throughput.grids,
         "there must be something to compare", "Add a grid.", "no grid"),
    Rule("throughput.grids.{name}", lambda s: ({"name": name} for name, axes in _axes(s).items() if not axes),
         "must vary something", "Add one, or remove the grid.", f"no axis of {', '.join(AXES)}"),
    Rule("{where}", _many_cells, "at most {most} in all", "List fewer values, or lower it.", "{got}"),
)  # fmt: skip
TIMED = (
    Rule("throughput", lambda s: s.kind != "throughput" and s.throughput is not None, "needs kind: throughput",
         "Add kind: throughput, or remove it.", "kind: {s.kind}"),
    Rule("algorithm", lambda s: s.kind == "throughput" and s.traits.asynchronous,
         "a throughput study times the phases of an iteration, and those of {s.algorithm} overlap",
         "Use kind: search with budget.time_s, or algorithm: PPO."),
    Rule("throughput", lambda s: s.kind == "throughput" and s.throughput is None,
         "must be given with kind: throughput", "Add throughput.grids."),
    left_out("holdup evaluation budget.env_steps budget.iterations budget.time_s search.sampler search.num_trials "
             "search.seeds search.objective search.min_env_steps_per_s search.baselines", _times,
             "a throughput study counts its iterations itself, searches for nothing, and evaluates nothing"),
    *_BEFORE_CELLS,
    Rule("{where}", _broken_cells, "{rule}", "{fix}", "{got}"),
)  # fmt: skip
