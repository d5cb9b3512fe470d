"""What a planned trial is to run: by its slot, by an earlier proposal, or by the sampler. May import Optuna."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from study.designs.search.optuna_study import OptunaStudy
from study.planning.plan import Slot
from study.space.parameters import SCALE, Value
from study.space.settings import rounded, runnable
from study.space.spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a trial is to run, and whose proposal it is."""

    setting: dict[str, Value]
    """RLlib's parameters."""
    proposed: dict[str, Value]
    """The tuned ones as the sampler proposed them."""
    optuna_number: int | None
    """None for a trial that Optuna does not know of."""
    rule: dict[str, Value]
    """In a hold-up study the complete setting, rules included."""


def ask(spec: StudySpec, optuna_study: OptunaStudy, slot: Slot) -> Asked:
    """Return what the trial of a slot runs; the same when it is asked again after a kill."""
    scale = {SCALE: slot.num_env_runners}
    if slot.rule is not None and not slot.told:
        setting = runnable(spec, {**slot.rule, **scale}, written=tuple(slot.rule))
        return Asked(setting=setting, proposed={}, optuna_number=None, rule=dict(slot.rule))
    if slot.rule is not None:  # a further look at a setting that was proposed before
        slot = replace(slot, given={name: slot.rule[name] for name in spec.tuned})
        return _proposed(spec, optuna_study, slot, scale, written=())
    return _proposed(spec, optuna_study, slot, scale, written=tuple(slot.given))


def _proposed(
    spec: StudySpec, optuna_study: OptunaStudy, slot: Slot, scale: Mapping[str, Value], *, written: tuple[str, ...]
) -> Asked:
    number, values = optuna_study.propose(slot)
    tuned = {name: value for name, value in values.items() if name in spec.tuned}
    rule: dict[str, Value] = {}
    if slot.stage is not None:
        rule = rounded(spec, {**tuned, **scale}, written=written)
        rule.pop(SCALE)
    setting = runnable(spec, {**(rule or tuned), **scale}, written=written)
    return Asked(setting=setting, proposed=tuned, optuna_number=number, rule=rule)
