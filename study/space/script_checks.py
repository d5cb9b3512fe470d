"""Rules of a space whose configuration is a person's own script. Pure."""

from collections.abc import Iterator

from study.errors import Fault
from study.space.parameters import END_FRACTION, RULES
from study.space.script import ScriptFacts
from study.space.sections import EnvironmentSpec, NetworkSpec
from study.space.spec import StudySpec
from study.text import listed

_SCORES = ("floor", "reference", "target")
"""What a space says of a script's environment."""
_OF_BASELINES = ("lr", "minibatch_size")
"""Parameters that the baselines of a hold-up study scale."""
_NEEDS = {END_FRACTION: ("lr",), "lr_scaling_exponent": _OF_BASELINES}
"""Parameter or rule -> the parameters that it multiplies."""


def script(spec: StudySpec) -> Iterator[Fault]:
    """Check what a space with `config` says beside its script."""
    if spec.evaluation.agent is not None and (spec.script is None or not spec.script.is_multi_agent):
        rule, fix = "needs a script with several agents", "Remove it."
        yield Fault(where="evaluation.agent", rule=rule, got=spec.evaluation.agent, fix=fix)
    if spec.config is None:
        for name in ("config_kwargs", "config_args"):
            if getattr(spec, name):
                yield Fault(where=name, rule="needs `config`", fix="Add config:, or remove it.")
        return
    if spec.script is None:
        rule, fix = "the script must be read first", "Start the study by the command, or by study.load_space."
        yield Fault(where="config", rule=rule, fix=fix)
        return
    yield from _of_the_script(spec, spec.script)
    yield from _without_effect(spec, spec.script)
    yield from _needs(spec, spec.script)


def _of_the_script(spec: StudySpec, facts: ScriptFacts) -> Iterator[Fault]:
    """Check that the space leaves to the script what is the script's, and names what there is."""
    if facts.acting and (agent := spec.evaluation.agent) is not None and agent not in facts.acting:
        rule, fix = f"must be one of {listed(facts.acting)}", "Name one, or remove it for the sum over all."
        yield Fault(where="evaluation.agent", rule=rule, got=agent, fix=fix)
    own = {
        "algorithm": (spec.algorithm, facts.base_algorithm),
        "environment.id": (spec.environment.id, facts.environment),
    }
    for where, (got, said) in own.items():
        if got != said:
            yield Fault(where=where, rule=f"is the script's, {said}", got=got, fix="Remove it, or change the script.")
    plain = EnvironmentSpec.model_validate({"id": spec.environment.id})
    for name in EnvironmentSpec.model_fields:
        if name not in ("id", *_SCORES) and getattr(spec.environment, name) != getattr(plain, name):
            rule, fix = "the script makes the environment", "Remove it, and say it in the script."
            yield Fault(where=f"environment.{name}", rule=rule, fix=fix)
    if spec.model != NetworkSpec.model_validate({}):
        yield Fault(where="model", rule="the script has the network", fix="Remove it.")
    if spec.rllib:
        yield Fault(where="rllib", rule="is the script's", fix="Remove it, and say it there.")
    if spec.evaluation.kwargs:
        rule, fix = "the script makes the environment", "Remove it, and say it in the script."
        yield Fault(where="evaluation.kwargs", rule=rule, fix=fix)


def _without_effect(spec: StudySpec, facts: ScriptFacts) -> Iterator[Fault]:
    """Check that what the space gives reaches a learner."""
    for name in facts.overridden:
        if name in spec.given_parameters:
            rule = "every module that learns has a value of its own in the script, which a study does not change"
            fix = f"Remove it, or take {name} out of the script's algorithm_config_overrides_per_module."
            yield Fault(where=f"parameters.{name}", rule=rule, fix=fix)
    needs = {f"parameters.{name}": needed for name, needed in _NEEDS.items() if name in spec.given_parameters}
    if spec.holdup is not None:
        needs["holdup"] = (*_OF_BASELINES, *facts.overridden)
    for where, needed in needs.items():
        if missing := [name for name in dict.fromkeys(needed) if name not in spec.parameter_names]:
            rule, got = f"needs one value of {listed(missing)}", "none in the script"
            if follows := sorted(set(missing) & set(facts.schedules)):
                got = f"the script's schedule of {listed(follows)}"
            yield Fault(where=where, rule=rule, got=got, fix=f"Add parameters.{missing[0]}.")


def _needs(spec: StudySpec, facts: ScriptFacts) -> Iterator[Fault]:
    """Check that what the space asks for can be done with the parts that the script has."""
    if not facts.is_on_policy:
        for rule_name in RULES:
            if spec.rule(rule_name) is not None:
                rule = f"means nothing for {facts.base_algorithm}, which learns from a replay buffer"
                yield Fault(where=f"parameters.{rule_name}", rule=rule, fix="Remove it.")
