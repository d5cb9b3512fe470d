"""From a space to what runs: settings, the sizes of their batches, and the variants of a trial. Pure.

A setting may hold rules (`steps_per_env_runner`) in place of parameters, so that it can be run at any scale. It has
three forms: what a space or a sampler proposes, the complete one (`rounded`), and RLlib's parameters at a number of
runners (`runnable`).

A batch that is a multiple of the lanes and learners (`batch_unit`) gives every one of them the same share. What a
sampler chooses is rounded to such a multiple (`rounded`). What a person wrote runs as it is, or is refused by the
rules: learners must share it evenly, and asynchronous runners deliver whole fragments only.
"""

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from study.space.domains import Choices, Domain, ParametersSpec, Range, bounds, contains
from study.space.parameters import FRAGMENT, PARAMETERS, REFERENCE_MINIBATCH, REPLACED, RULES, SCALE, Value
from study.space.sections import LEARNERS
from study.space.spec import StudySpec

PARTNERS: Mapping[str, str] = {**REPLACED, **{parameter: rule for rule, parameter in REPLACED.items()}}
"""Rule -> the parameter that it stands in for, and the other way round: a setting has one of the two."""


def overlay(setting: Mapping[str, Value], changes: Mapping[str, Value]) -> dict[str, Value]:
    """Return `setting` with `changes`; a rule takes the place of its parameter, and the other way round."""
    gone = {PARTNERS.get(name) for name in changes}
    return {name: value for name, value in setting.items() if name not in gone} | dict(changes)


def beyond_space(spec: StudySpec, given: Mapping[str, Value]) -> dict[str, Value] | None:
    """Return the complete setting of a baseline that the sampler could not have proposed; None of any other.

    It gives every tuned parameter a value, or its partner among the rules, and one of its values the space rules out.
    Its learning rate is that which runs.
    """
    values = {name: value for name, value in given.items() if name != SCALE}
    left_open = overlay(dict.fromkeys(spec.tuned, 0), values).keys() - values.keys()
    known = {**spec.fixed, **spec.tuned}
    inside = all(name in known and contains(known[name], value) for name, value in values.items())
    fixed = {name: value for name, value in spec.fixed.items() if name != "lr_scaling_exponent" or "lr" not in values}
    return None if left_open or inside else overlay(fixed, values)


def resolve(setting: Mapping[str, Value], num_env_runners: int) -> dict[str, Value]:
    """Return all of RLlib's parameters for a setting, which may hold rules, at a scale.

    Args:
        setting: A value for every parameter except the scale, or for the rule in its place.
        num_env_runners: The scale.
    """
    numbers = {name: value for name, value in setting.items() if name not in RULES} | {SCALE: num_env_runners}
    if "steps_per_env_runner" in setting:
        numbers["train_batch_size"] = int(setting["steps_per_env_runner"]) * num_env_runners
    if "num_minibatches" in setting:
        numbers["minibatch_size"] = max(int(numbers["train_batch_size"]) // int(setting["num_minibatches"]), 1)
    if "minibatch_size" in numbers:
        numbers["minibatch_size"] = min(int(numbers["minibatch_size"]), int(numbers["train_batch_size"]))
    if exponent := setting.get("lr_scaling_exponent", 0):
        numbers["lr"] = numbers["lr"] * (numbers["minibatch_size"] / REFERENCE_MINIBATCH) ** exponent
    return {name: PARAMETERS[name].kind(numbers[name]) for name in PARAMETERS if name in numbers}


def runnable(spec: StudySpec, proposed: Mapping[str, Value], *, written: Collection[str] = ()) -> dict[str, Value]:
    """Return all of RLlib's parameters that run for `proposed`: rounded as in `rounded`, then resolved and `fitted`."""
    setting = rounded(spec, proposed, written=written)
    scale = int(setting.pop(SCALE))
    return fitted(spec, setting, scale)


def rounded(spec: StudySpec, proposed: Mapping[str, Value], *, written: Collection[str] = ()) -> dict[str, Value]:
    """Return the complete setting for `proposed`, rules and the scale included.

    A size that was sampled becomes the nearest multiple inside its range, so that every lane delivers the same number
    of steps, and RLlib's own runner, which can only step all lanes at once, does not overshoot the batch.

    Args:
        spec: The space.
        proposed: The scale and the tuned parameters; a rule in place of a parameter, or the reverse, too.
        written: Parameters that a baseline gave: these stay as they are.
    """
    # A complete setting stands for itself: where it has no rule, and nothing optional, the space's own does not apply
    # to it either.
    given = proposed.keys() | {REPLACED[name] for name in proposed if name in REPLACED}
    needed = {name for name in spec.parameter_names if spec.algorithm not in PARAMETERS[name].optional} - {SCALE}
    is_complete = needed <= given and not proposed.keys() <= {SCALE, *spec.tuned}
    setting = dict(proposed) if is_complete or not spec.fixed else overlay(spec.fixed, proposed)
    scale = int(setting[SCALE])
    unit = batch_unit(spec, scale, int(setting["num_envs_per_env_runner"]), int(setting.get(FRAGMENT, 1)))
    units = {
        "train_batch_size": unit,
        "steps_per_env_runner": unit // math.gcd(unit, scale),
        "minibatch_size": max(spec.resources.num_learners, 1),
    }
    for name, multiple in units.items():
        domain = spec.tuned.get(name)
        if name in setting and isinstance(domain, Range) and name not in written:
            lowest, highest = math.ceil(domain.low / multiple), max(math.floor(domain.high / multiple), 1)
            setting[name] = multiple * min(max(round(setting[name] / multiple), lowest), highest)
    return setting


def fitted(spec: StudySpec, setting: Mapping[str, Value], num_env_runners: int) -> dict[str, Value]:
    """Return all of RLlib's parameters that run for a complete setting: its numbers, with a batch that can be stepped.

    A batch is never smaller than the lanes; else a baseline's runs as it is written.
    """
    resolved = resolve(setting, num_env_runners)
    lanes = num_env_runners * int(setting["num_envs_per_env_runner"])
    if spec.traits.asynchronous or not spec.traits.is_on_policy or resolved["train_batch_size"] >= lanes:
        return resolved
    batch = math.lcm(lanes, max(spec.resources.num_learners, 1))
    return resolve(overlay(setting, {"train_batch_size": batch}), num_env_runners)


def batch_unit(spec: StudySpec, num_env_runners: int, num_envs: int, fragment: int) -> int:
    """Return what a batch is a multiple of, so that every lane and every learner has the same share of it.

    Args:
        spec: The space.
        num_env_runners: The scale.
        num_envs: Environments of each runner.
        fragment: Steps that each environment takes before an asynchronous runner sends them; else without meaning.
    """
    learners = max(spec.resources.num_learners, 1)
    if not spec.traits.is_on_policy:
        return learners
    if spec.traits.asynchronous:
        return num_envs * fragment * learners
    return math.lcm(num_env_runners * num_envs, learners)


def batch_domain(spec: StudySpec, num_env_runners: int) -> Domain:
    """Return the train batches that a space allows at a scale."""
    steps = spec.rules.get("steps_per_env_runner")
    if steps is None:
        return spec.domain("train_batch_size")
    if isinstance(steps, Choices):
        return Choices(choices=[value * num_env_runners for value in steps.choices])
    if isinstance(steps, Range):
        return Range(low=steps.low * num_env_runners, high=steps.high * num_env_runners, log=steps.log)
    return steps * num_env_runners


def minibatch_bounds(spec: StudySpec, num_env_runners: int) -> tuple[int, int]:
    """Return the smallest and the largest minibatch that a space allows at a scale."""
    if (number := spec.rules.get("num_minibatches")) is None:
        low, high = bounds(spec.domain("minibatch_size"))
        return int(low), int(high)
    (smallest, largest), (fewest, most) = bounds(batch_domain(spec, num_env_runners)), bounds(number)
    return max(int(smallest) // int(most), 1), max(int(largest) // int(fewest), 1)


# --- what a trial is asked and what runs ------------------------------------------------------------------------------


def to_be_built(spec: StudySpec, setting: Mapping[str, Value]) -> dict[str, Value]:
    """Return what of a trial's setting must be found in what was built: of a script's what the study sets."""
    script = {} if spec.script is None else spec.script.defaults
    always = (SCALE, "num_envs_per_env_runner", "train_batch_size")
    return {name: value for name, value in setting.items() if name in always or script.get(name) != value}


def differences(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> list[str]:
    """Return one line for every value that was asked and is not what runs.

    Floats that went through a 32-bit tensor may differ in the eighth digit.
    """
    lines = []
    for name, value in asked.items():
        got = effective.get(name)
        number = isinstance(got, (int, float)) and not isinstance(got, bool)
        if not (number and abs(got - value) <= 1e-6 * abs(value)):
            lines.append(f"{name}: asked {value}, got {got}")
    return lines


# --- variants of a trial ---

THROUGHPUT = "throughput"
"""What the trials of a throughput study have in place of a stage."""
Variant = Literal["study", "stock"]
"""`study`: as the space says. `stock`: RLlib's own runners and learner."""

WINNER, BEST_SMALL = "winner", "best_small"
"""Names of a hold-up study's arms that are no rivals: the chosen setting, and the best one of few runners."""
WINNER_RLLIB, BEST_SMALL_RLLIB = "winner_rllib", "best_small_rllib"
"""The same two under RLlib's own runners and learner, where the study's engine is another one."""


def spec_of(spec: StudySpec, variant: str, *, num_learners: int | None = None) -> StudySpec:
    """Return the spec that a trial of this variant runs under, with so many learners where they are varied."""
    if num_learners is not None:
        return spec.model_copy(update={"resources": spec.resources.model_copy(update={LEARNERS: num_learners})})
    if variant == "stock":
        environment = spec.environment.model_copy(update={"backend": "gymnasium"})
        stock = {"runner": "stock", "learner": "rllib", "execution": "auto"}
        return spec.model_copy(update={"environment": environment, **stock})
    return spec


# --- the cells of a throughput study ----------------------------------------------------------------------------------

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
