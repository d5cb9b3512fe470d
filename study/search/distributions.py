"""Parameters -> Optuna distributions, and a proposal -> a setting that can run. May import Optuna."""

import math
from collections.abc import Collection, Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from study.planning.plan import Slot
from study.space.domains import Choices, Range
from study.space.laws import batch_unit, largest, smallest
from study.space.parameters import PARAMETERS, SCALE, Value
from study.space.spec import StudySpec

ITERATIONS = "iterations"
"""The second stratified axis, where `budget.iterations` is a list."""


def distributions(spec: StudySpec) -> dict[str, BaseDistribution]:
    """Return what Optuna knows of the space: the stratified axes and the tuned parameters."""
    known: dict[str, BaseDistribution] = {SCALE: _integers(spec.scales)}
    limits = [value for value in spec.iterations_axis if value is not None]
    if len(limits) > 1:
        known[ITERATIONS] = _integers(limits)
    return known | {name: _distribution(domain) for name, domain in spec.tuned.items()}


def _integers(values: tuple[int, ...] | list[int]) -> IntDistribution:
    return IntDistribution(min(values), max(values), log=True)


def _distribution(domain: Choices[int] | Choices[float] | Range[int] | Range[float]) -> BaseDistribution:
    if isinstance(domain, Choices):
        return CategoricalDistribution(domain.choices)
    low, high, step = domain.low, domain.high, domain.step
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=domain.log, step=int(step or 1))
    return FloatDistribution(float(low), float(high), log=domain.log, step=None if step is None else float(step))


def fixed_by(slot: Slot, spec: StudySpec) -> dict[str, Value]:
    """Return what the sampler is not asked for: the stratified axes and the anchor's values."""
    fixed: dict[str, Value] = {SCALE: slot.num_env_runners, **slot.given}
    if len(spec.iterations_axis) > 1 and slot.iterations is not None:
        fixed[ITERATIONS] = slot.iterations
    return fixed


def runnable(spec: StudySpec, proposed: Mapping[str, Value], *, written: Collection[str] = ()) -> dict[str, Value]:
    """Return the complete setting that runs for `proposed`.

    A batch that was *sampled* becomes the nearest multiple of the lanes (and learners) inside its range, so that every
    lane delivers the same number of steps, and RLlib's own runner, which can only step all lanes at once, does not
    overshoot the batch. A batch that a person wrote down stays as it is. A minibatch is never larger than the batch,
    nor a batch smaller than the lanes.

    Args:
        spec: The space.
        proposed: The stratified axes and the tuned parameters.
        written: Parameters that an anchor gave.
    """
    setting: dict[str, Value] = {**spec.fixed, **proposed}
    setting.pop(ITERATIONS, None)
    setting = {name: PARAMETERS[name].kind(setting[name]) for name in PARAMETERS}
    lanes = int(setting[SCALE] * setting["num_envs_per_env_runner"])
    unit = batch_unit(spec, lanes)
    for name, multiple in (("train_batch_size", unit), ("minibatch_size", max(spec.resources.num_learners, 1))):
        domain = spec.domain(name)
        if isinstance(domain, Range) and domain.step is None and name not in written:
            setting[name] = _nearest_multiple(int(setting[name]), domain, multiple)
    if setting["train_batch_size"] < lanes:
        setting["train_batch_size"] = unit
    setting["minibatch_size"] = min(int(setting["minibatch_size"]), int(setting["train_batch_size"]))
    return setting


def _nearest_multiple(value: int, domain: Range[int] | Range[float], unit: int) -> int:
    lowest, highest = math.ceil(smallest(domain) / unit), max(math.floor(largest(domain) / unit), 1)
    return unit * min(max(round(value / unit), lowest), highest)
