"""A proposal -> a setting that can run: rounded to whole lanes, its rules resolved. Pure."""

import math
from collections.abc import Collection, Mapping

from study.space.domains import Range
from study.space.laws import batch_unit, largest, smallest
from study.space.parameters import SCALE, Value
from study.space.rules import fitted, is_complete, overlay
from study.space.spec import StudySpec

ITERATIONS = "iterations"
"""The second stratified axis, where `budget.iterations` is a list."""


def runnable(spec: StudySpec, proposed: Mapping[str, Value], *, written: Collection[str] = ()) -> dict[str, Value]:
    """Return all of RLlib's parameters that run for `proposed`: rounded as in `rounded`, then resolved and `fitted`."""
    setting = rounded(spec, proposed, written=written)
    scale = int(setting.pop(SCALE))
    return fitted(spec, setting, scale)


def rounded(spec: StudySpec, proposed: Mapping[str, Value], *, written: Collection[str] = ()) -> dict[str, Value]:
    """Return the complete setting for `proposed`, rules and the scale included.

    A batch that was *sampled* becomes the nearest multiple of the lanes (and learners) inside its range, so that every
    lane delivers the same number of steps, and RLlib's own runner, which can only step all lanes at once, does not
    overshoot the batch. A batch that a person wrote down stays as it is.

    Args:
        spec: The space.
        proposed: The stratified axes and the tuned parameters; a rule in place of a parameter, or the reverse, too.
        written: Parameters that an anchor gave.
    """
    # A complete setting stands for itself: where it has no rule, the space's own does not apply to it either.
    setting = dict(proposed) if is_complete(spec, proposed) else overlay(spec.fixed, proposed)
    setting.pop(ITERATIONS, None)
    scale = int(setting[SCALE])
    fragment = int(setting.get("rollout_fragment_length", 1))
    unit = batch_unit(spec, scale, int(setting["num_envs_per_env_runner"]), fragment)
    units = {
        "train_batch_size": unit,
        "steps_per_env_runner": unit // math.gcd(unit, scale),
        "minibatch_size": max(spec.resources.num_learners, 1),
    }
    for name, multiple in units.items():
        domain = spec.tuned.get(name)
        if name in setting and isinstance(domain, Range) and domain.step is None and name not in written:
            setting[name] = _nearest_multiple(int(setting[name]), domain, multiple)
    return setting


def _nearest_multiple(value: int, domain: Range[int] | Range[float], unit: int) -> int:
    lowest, highest = math.ceil(smallest(domain) / unit), max(math.floor(largest(domain) / unit), 1)
    return unit * min(max(round(value / unit), lowest), highest)
