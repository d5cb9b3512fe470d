"""The cells of a throughput study: base cell, grids and allocation as settings to time. Pure."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from study.space.domains import ParametersSpec
from study.space.parameters import PARAMETERS, SCALE, Value
from study.space.settings import overlay, resolve
from study.space.spec import StudySpec
from study.space.throughput import LEARNERS

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
    num_trials: int = 1
    """Trials that run side by side: more than one only where an allocation is split."""

    @property
    def grids(self) -> str:
        """The grids that the cell belongs to, for people."""
        return ", ".join(place.rpartition(".")[2] for place in self.places if place.startswith("throughput."))


def cells_of(spec: StudySpec) -> tuple[Cell, ...]:
    """Return the distinct cells of a throughput study, the base cell first.

    A cell that several grids name is one cell. The undivided trial of an allocation stays apart from the base cell, so
    that its parts are compared with a trial at a random place of the block, as they are.
    """
    cells: dict[tuple[object, ...], Cell] = {}
    for cell in (_base(spec), *_of_grids(spec), *_of_allocation(spec)):
        key = _identity(cell)
        known = cells.get(key)
        if known is None or (cell.places == ("throughput.allocation",) and known.name == BASE_CELL):
            cells[key if known is None else (*key, cell.name)] = cell
            continue
        name = cell.name if cell.places == ("throughput.allocation",) else known.name
        cells[key] = replace(known, name=name, places=tuple(dict.fromkeys((*known.places, *cell.places))))
    return tuple(cells.values())


def spec_of_cell(spec: StudySpec, cell: Cell) -> StudySpec:
    """Return a spec fixed to this cell's values; `execution: auto` is real, since emulated trials have no clock."""
    fixed = {
        "parameters": ParametersSpec.model_validate({**cell.setting, SCALE: cell.num_env_runners}),
        "resources": spec.resources.model_copy(update={LEARNERS: cell.num_learners}),
        "execution": "real" if spec.execution == "auto" else spec.execution,
    }
    return spec.model_copy(update=fixed)


def shares(num_cpus: int, num_trials: int, *, overhead: int, each: int) -> int:
    """Return the runners that each of several trials gets out of the CPUs of one; below 1 where they do not suffice.

    Args:
        num_cpus: CPUs of the one.
        num_trials: Trials that share them.
        overhead: CPUs of a trial besides its runners.
        each: CPUs of a runner.
    """
    return (num_cpus // num_trials - overhead) // each


def _base(spec: StudySpec) -> Cell:
    return _cell(spec, spec.fixed, spec.scales[0], spec.resources.num_learners, "parameters", name=BASE_CELL)


def _of_grids(spec: StudySpec) -> Iterator[Cell]:
    assert spec.throughput is not None  # only a throughput study has cells
    for name, axes in spec.throughput.axes().items():
        for values in itertools.product(*axes.values()):
            yield _changed(spec, dict(zip(axes, values, strict=True)), f"throughput.grids.{name}")


def _of_allocation(spec: StudySpec) -> Iterator[Cell]:
    assert spec.throughput is not None  # only a throughput study has cells
    allocation = spec.throughput.allocation
    if allocation is None:
        return
    whole = _changed(spec, {**allocation.parameters, SCALE: allocation.num_env_runners}, "throughput.allocation")
    resources = spec.resources
    overhead = resources.num_cpus_for_main_process + whole.num_learners * resources.num_cpus_per_learner
    each = resources.num_cpus_per_env_runner
    for trials in allocation.trials:
        runners = shares(overhead + whole.num_env_runners * each, trials, overhead=overhead, each=each)
        yield replace(whole, num_env_runners=runners, num_trials=trials, name=f"allocation {trials} x {runners}")


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
    return cell.num_env_runners, cell.num_learners, cell.num_trials, *sorted(cell.setting.items())
