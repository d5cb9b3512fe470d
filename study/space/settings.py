"""From a space to what runs: settings, the sizes of their batches, the variants of a trial, cells to be timed. Pure.

A setting may hold rules (`steps_per_env_runner`) in place of parameters, so that it can be run at any scale. It has
three forms: what a sampler proposes, the complete one (`rounded`), and RLlib's parameters at a scale (`fitted`).

A batch that is a multiple of the lanes and learners gives every one of them the same share. What a sampler chooses is
rounded to such a multiple. What a person wrote runs as it is, or is refused by the rules.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Literal

from study.space.domains import Choices, Domain, Range
from study.space.parameters import FRAGMENT, PARAMETERS, REFERENCE_MINIBATCH, RULES, SCALE, Value, overlay
from study.space.sections import LEARNERS
from study.space.spec import StudySpec


def resolve(setting: Mapping[str, Value], num_env_runners: int) -> dict[str, Value]:
    """Return all of RLlib's parameters for a setting at a scale: its rules, where it has some, become numbers."""
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


def rounded(spec: StudySpec, proposed: Mapping[str, Value], num_env_runners: int) -> dict[str, Value]:
    """Return the complete setting, rules included, for the tuned parameters that are proposed at a scale.

    A size that was sampled becomes the nearest multiple inside its range, so that every lane delivers the same number
    of steps, and RLlib's own runner, which can only step all lanes at once, does not overshoot the batch.
    """
    setting = overlay(spec.fixed, proposed)
    num_envs, learners = int(setting["num_envs_per_env_runner"]), max(spec.resources.num_learners, 1)
    unit = learners  # of a batch: every lane and every learner has the same share of it
    if spec.traits.asynchronous:
        unit = num_envs * int(setting.get(FRAGMENT, 1)) * learners
    elif spec.traits.is_on_policy:
        unit = math.lcm(num_env_runners * num_envs, learners)
    units = {
        "train_batch_size": unit,
        "steps_per_env_runner": unit // math.gcd(unit, num_env_runners),
        "minibatch_size": learners,
    }
    for name, multiple in units.items():
        domain = spec.tuned.get(name)
        if name in setting and isinstance(domain, Range):
            lowest, highest = math.ceil(domain.low / multiple), max(math.floor(domain.high / multiple), 1)
            setting[name] = multiple * min(max(round(setting[name] / multiple), lowest), highest)
    return setting


def fitted(spec: StudySpec, setting: Mapping[str, Value], num_env_runners: int) -> dict[str, Value]:
    """Return all of RLlib's parameters that run for a complete setting; its batch is at least one step of each lane."""
    resolved = resolve(setting, num_env_runners)
    lanes = num_env_runners * int(setting["num_envs_per_env_runner"])
    if spec.traits.asynchronous or not spec.traits.is_on_policy or resolved["train_batch_size"] >= lanes:
        return resolved
    batch = math.lcm(lanes, max(spec.resources.num_learners, 1))
    return resolve(overlay(setting, {"train_batch_size": batch}), num_env_runners)


def runnable(spec: StudySpec, proposed: Mapping[str, Value]) -> dict[str, Value]:
    """Return all of RLlib's parameters that run for a scale and tuned parameters: `rounded`, then `fitted`."""
    tuned, scale = {name: value for name, value in proposed.items() if name != SCALE}, int(proposed[SCALE])
    return fitted(spec, rounded(spec, tuned, scale), scale)


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


# --- variants of a trial ----------------------------------------------------------------------------------------------

THROUGHPUT = "throughput"
"""What the trials of a throughput study have in place of a stage."""
Variant = Literal["study", "stock"]
"""`study`: as the space says. `stock`: RLlib's own runners and learner."""

WINNER, BEST_SMALL = "winner", "best_small"
"""Names of a hold-up study's arms that are no rivals: the chosen setting, and the best one of few runners."""
WINNER_RLLIB, BEST_SMALL_RLLIB = "winner_rllib", "best_small_rllib"
"""The same two under RLlib's own runners and learner, where the study's engine is another one."""


def spec_of(spec: StudySpec, variant: str) -> StudySpec:
    """Return the spec that a trial of this variant runs under."""
    if variant == "stock":
        return spec.having(environment={"backend": "gymnasium"}, runner="stock", learner="rllib", execution="auto")
    return spec


# --- the cells of a throughput study ----------------------------------------------------------------------------------

BASE_CELL = "anchor"
"""Name of the base cell in records; it begins and ends every block."""


def cells_of(spec: StudySpec) -> dict[str, StudySpec]:
    """Return name -> space of the distinct cells of a throughput study, the base cell first, each of one value."""
    assert spec.throughput is not None  # only a throughput study has cells
    cells = dict([cell_of(spec, {})])
    for axes in spec.throughput.axes().values():
        cells |= (cell_of(spec, dict(zip(axes, each, strict=True))) for each in itertools.product(*axes.values()))
    base, *others = cells.items()
    return {BASE_CELL: base[1], **dict(others)}


def cell_of(spec: StudySpec, changes: Mapping[str, int]) -> tuple[str, StudySpec]:
    """Return name and space of the base cell with changes; a minibatch larger than its batch stays, to be refused.

    `execution: auto` is real, since emulated trials have no clock.
    """
    scale, learners = changes.get(SCALE, spec.scales[0]), changes.get(LEARNERS, spec.resources.num_learners)
    setting = overlay(spec.fixed, {name: changes[name] for name in changes if name not in (SCALE, LEARNERS)})
    numbers = resolve(setting, scale)
    numbers |= {name: setting[name] for name in ("minibatch_size",) if name in setting}
    short = {"k": "num_envs_per_env_runner", "B": "train_batch_size", "m": "minibatch_size", "E": "num_epochs"}
    words = [f"n={scale}", *(f"{letter}={numbers[name]}" for letter, name in short.items() if name in numbers)]
    execution = "real" if spec.execution == "auto" else spec.execution
    cell = spec.having(parameters=numbers, execution=execution, resources={LEARNERS: learners})
    return " ".join([*words, *([f"L={learners}"] if learners else [])]), cell
