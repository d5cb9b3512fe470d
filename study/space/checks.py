"""Rules between the keys of a space that every kind of study keeps. Pure.

A check takes a spec and yields a `Fault` for every rule that the spec breaks. Those of one kind are in `search_checks`,
`throughput_checks` and `holdup_checks`; `parsing` runs them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from study.errors import Fault
from study.space.domains import Domain, Range, largest, smallest, values
from study.space.parameters import FRAGMENT, PARAMETERS, REPLACED, RULES, Value, attribute
from study.space.procgen import faults_of_game, faults_of_levels, is_procgen
from study.space.settings import batch_domain, batch_unit, minibatch_bounds
from study.space.spec import StudySpec

_BY_SCHEMA = {
    "environment": "env env_config observation_space action_space",
    "env_runners": "num_env_runners num_envs_per_env_runner num_cpus_per_env_runner sample_timeout_s env_runner_cls "
    "rollout_fragment_length gym_env_vectorize_mode",
    "learners": "num_learners num_cpus_per_learner num_gpus_per_learner learner_class",
    "training": "train_batch_size train_batch_size_per_learner minibatch_size use_kl_loss learner_class "
    + " ".join(attribute(name) for name, parameter in PARAMETERS.items() if parameter.is_argument),
    "resources": "num_cpus_for_main_process placement_strategy",
    "debugging": "seed",
    "rl_module": "model_config",
}
"""What `rllib:` may not set, since the schema names it: otherwise the recorded spec could disagree with what ran."""

_REFUSED = {
    ("env_runners", "num_gpus_per_env_runner"): "the study reserves no GPU for a runner",
    ("env_runners", "custom_resources_per_env_runner"): "the study reserves CPUs and GPUs only",
    ("learners", "custom_resources_per_learner"): "the study reserves CPUs and GPUs only",
    ("environment", "clip_rewards"): "RLlib's new API stack ignores it",
    ("env_runners", "observation_filter"): "RLlib's new API stack ignores it",
    ("env_runners", "compress_observations"): "RLlib's new API stack ignores it",
    ("training", "model"): "RLlib's new API stack ignores it; the space has `model`",
    ("rl_module", "algorithm_config_overrides_per_module"): "what the schema names must be what runs",
}
"""What `rllib:` may not set for another reason."""

_MEANING = {
    "floor": ("the return that scores 0", "what random actions get, by `python -m study evaluate SPACE --random`"),
    "reference": ("the return that scores 1", "what a good policy gets, as published, or the most that is possible"),
    "target": (
        "the return from which it counts as solved",
        "as the environment's page says, or nine tenths of the way from floor to reference",
    ),
}
"""What the returns of a space mean, and how to choose them."""


def common(spec: StudySpec) -> Iterator[Fault]:
    """Check what holds for studies of every kind."""
    for check in (_algorithm, _procgen, _returns, _engine, _layers, _exclusive, _rules, _rllib, _finite):
        yield from check(spec)


def _algorithm(spec: StudySpec) -> Iterator[Fault]:
    """Check what the algorithm does not have, and what it needs."""
    name, traits = spec.algorithm, spec.traits
    taken = {*traits.parameters, *(RULES.keys() - traits.rules.keys())}
    for parameter in (each for each in (*PARAMETERS, *RULES) if each in spec.given_parameters and each not in taken):
        rule = f"{name} has no such parameter{_own_value(spec, parameter)}"
        fix = f"Remove it; {name} has: {', '.join(sorted(traits.parameters))}."
        yield Fault(where=f"parameters.{parameter}", rule=rule, fix=fix)
    if spec.holdup is not None and name != "PPO":
        rule, fix = "a hold-up study needs PPO", "Remove holdup:, or set algorithm: PPO."
        yield Fault(where="holdup", rule=rule, got=f"algorithm: {name}", fix=fix)
    if name != "PPO" and spec.standardization not in (None, "none"):
        rule, got = f"{name} standardises no advantages", str(spec.standardization)
        yield Fault(where="standardization", rule=rule, got=got, fix="Remove it.")
    if traits.asynchronous and spec.learner == "fused":
        rule, fix = "learner: fused has the update of PPO", "Remove it, or set learner: rllib."
        yield Fault(where="learner", rule=rule, got=f"algorithm: {name}", fix=fix)
    if spec.not_emulated and spec.execution == "emulated":
        fix = "Set execution: real, or algorithm: PPO." if spec.script is None else "Set execution: real."
        yield Fault(where="execution", rule=spec.not_emulated, fix=fix)


def _own_value(spec: StudySpec, parameter: str) -> str:
    if parameter in ("minibatch_size", "num_minibatches"):
        return " (every batch is one minibatch)"
    fixed = spec.traits.given.get(parameter)
    return "" if fixed is None else f" (it is always {fixed:g})"


def _procgen(spec: StudySpec) -> Iterator[Fault]:
    environment = spec.environment
    if not is_procgen(environment.id):
        return
    yield from faults_of_game(environment.id)
    yield from faults_of_levels(environment.kwargs, "environment.kwargs")
    yield from faults_of_levels(spec.evaluation.kwargs, "evaluation.kwargs")
    if environment.backend != "envpool":
        rule, got = "Procgen needs backend: envpool", environment.backend
        yield Fault(where="environment.backend", rule=rule, got=got, fix="Remove it.")


def _returns(spec: StudySpec) -> Iterator[Fault]:
    """Check the returns that give a score its meaning."""
    floor, reference, target = spec.environment.floor, spec.environment.reference, spec.environment.target
    for name, value in {"floor": floor, "reference": reference, "target": target}.items():
        if value is None and (what := _needs_return(spec, name)):
            rule, fix = f"{what} needs it: {_MEANING[name][0]}", f"Add it: {_MEANING[name][1]}."
            yield Fault(where=f"environment.{name}", rule=rule, fix=fix)
    if floor is not None and reference is not None and not floor < reference:
        rule, got = "`floor < reference` must hold", f"floor={floor}, reference={reference}"
        fix = "Set floor to what a policy gets that learnt nothing."
        yield Fault(where="environment.reference", rule=rule, got=got, fix=fix)
    elif floor is not None and target is not None and not floor < target:
        rule, got = "`floor < target` must hold", f"floor={floor}, target={target}"
        yield Fault(where="environment.target", rule=rule, got=got, fix="Set target to a return worth reaching.")


def _needs_return(spec: StudySpec, name: str) -> str:
    """Return what needs one of the returns that give a score its meaning; empty where nothing does."""
    if not spec.learns:
        return ""
    if spec.holdup is not None:
        return "a hold-up study"
    if name == "target" and spec.search.objective.endswith("_to_target"):
        return f"search.objective {spec.search.objective}"
    if name == "reference" and spec.config is not None:
        return ""  # `adopt` measures the floor, and leaves the reference to the person
    other = {"floor": spec.environment.reference, "reference": spec.environment.floor}.get(name)
    return "" if other is None else f"a score, which {'floor' if name == 'reference' else 'reference'} is given for,"


def _engine(spec: StudySpec) -> Iterator[Fault]:
    """Check that this combination of runner, learner and execution exists."""
    if spec.runner == "stock" and spec.environment.backend == "envpool":
        rule, fix = "`envpool` needs runner: batched", "Set runner: batched."
        yield Fault(where="environment.backend", rule=rule, got="stock", fix=fix)
    # Where `fused` is asked for and cannot serve, a trial finds that.
    own = "learner: rllib is set" if spec.learner == "rllib" else spec.learner == "auto" and spec.fused_obstacle
    for where, what in fused_alone(spec) if own else ():
        yield Fault(where=where, rule=f"{what}needs the fused learner, and {own}", fix="Remove one of the two.")
    gpus = spec.resources.num_gpus_per_learner
    if gpus > 1 and not gpus.is_integer():
        where, rule = "resources.num_gpus_per_learner", "must be a whole number, or a share of one GPU"
        yield Fault(where=where, rule=rule, got=f"{gpus:g}", fix=f"Write {math.ceil(gpus)}.")


def fused_alone(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Yield what a space asks for and RLlib's own learner would leave undone without a word: place, and value."""
    if spec.algorithm == "A2C":
        yield "algorithm", "`A2C` "  # RLlib's learner has another optimizer, and standardises
    if spec.algorithm == "PPO" and spec.standardization in ("steps", "none"):
        yield "standardization", f"`{spec.standardization}` "
    if spec.environment.normalize_observations and not spec.traits.asynchronous:
        yield "environment.normalize_observations", ""


def _layers(spec: StudySpec) -> Iterator[Fault]:
    """Check that a part of the program applies each layer around the environment."""
    environment = spec.environment
    for name in ("normalize_observations", "normalize_rewards"):
        if getattr(environment, name) and spec.traits.asynchronous:
            fix = "Remove it, or set algorithm: PPO or A2C."
            yield Fault(where=f"environment.{name}", rule=f"{spec.algorithm} does not normalise", fix=fix)
    if environment.normalize_rewards and spec.most_learners > 1:
        rule, got = "needs one learner, which sees all rewards", f"{spec.most_learners} learners"
        yield Fault(where="environment.normalize_rewards", rule=rule, got=got, fix="Remove it, or use one learner.")
    if environment.normalize_rewards and spec.runner != "batched":
        where, rule = "environment.normalize_rewards", "needs runner: batched"
        yield Fault(where=where, rule=rule, got=spec.runner, fix="Set runner: batched.")
    for name, own in {"action_repeat": "frame_skip", "frame_stack": "stack_num"}.items():
        if getattr(environment, name) > 1 and environment.backend == "envpool":
            rule, fix = "needs backend: gymnasium", f"Remove it; EnvPool's Atari has {own} in environment.kwargs."
            yield Fault(where=f"environment.{name}", rule=rule, got="envpool", fix=fix)
    if spec.model.conv_net is not None and spec.model.conv_filters is not None:
        yield one_of_two("model.conv_net", "conv_filters")


def _exclusive(spec: StudySpec) -> Iterator[Fault]:
    measures = spec.holdup is not None and spec.holdup.measure is not None
    if spec.exclusive and spec.execution == "emulated" and not measures:
        rule, fix = "protects a clock, and emulated trials have none", "Remove it, or set execution: real."
        yield Fault(where="exclusive", rule=rule, fix=fix)


def _rules(spec: StudySpec) -> Iterator[Fault]:
    given = spec.given_parameters
    for rule, parameter in REPLACED.items():
        if rule in given and parameter in given:
            yield one_of_two(f"parameters.{rule}", parameter)


def _rllib(spec: StudySpec) -> Iterator[Fault]:
    for section, arguments in spec.rllib.items():
        for name in sorted(set(_BY_SCHEMA.get(section, "").split()) & set(arguments)):
            where, rule, fix = f"rllib.{section}.{name}", "the schema names this value already", "Set it there."
            yield Fault(where=where, rule=rule, fix=fix)
        for name in arguments:
            if reason := _REFUSED.get((section, name)):
                yield Fault(where=f"rllib.{section}.{name}", rule=f"cannot be set: {reason}", fix="Remove it.")


def _finite(spec: StudySpec) -> Iterator[Fault]:
    """Check what is handed on as it is: the records, and what a trial is sent, are JSON, without infinity and NaN."""
    free = {
        "environment.kwargs": spec.environment.kwargs,
        "evaluation.kwargs": spec.evaluation.kwargs,
        "rllib": spec.rllib,
        "config_kwargs": spec.config_kwargs,
    }
    for where, value in (each for place, content in free.items() for each in _numbers(place, content)):
        if not math.isfinite(value):
            yield Fault(where=where, rule="must be a finite number", got=str(value), fix="Write a finite number.")


def _numbers(where: str, content: Any) -> Iterator[tuple[str, float]]:
    """Yield the decimal numbers in nested mappings and lists, with their places."""
    if isinstance(content, float):
        yield where, content
    inner = content.items() if isinstance(content, Mapping) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from _numbers(f"{where}.{key}", value)


def one_of_two(where: str, other: str) -> Fault:
    """Return the fault of a key that stands for another one which is given too."""
    rule = f"takes the place of {other}, so that only one may be given"
    return Fault(where=where, rule=rule, got="both", fix="Remove one of the two.")


def batches(spec: StudySpec) -> Iterator[Fault]:
    """Check that batches hold a minibatch and a step of every lane, and can be shared by learners and lanes."""
    if not spec.is_on_policy:
        return
    yield from _sizes(spec)
    yield from _shares(spec)


def _batch_key(spec: StudySpec) -> str:
    return "steps_per_env_runner" if spec.rule("steps_per_env_runner") is not None else "train_batch_size"


def _sizes(spec: StudySpec) -> Iterator[Fault]:
    key, last = _batch_key(spec), max(spec.scales)
    batch, minibatch = batch_domain(spec, last), minibatch_bounds(spec, last)[0]
    if minibatch > largest(batch) and "minibatch_size" in spec.parameter_names:
        rule, got = "`minibatch_size <= train_batch_size` must hold", f"{minibatch} > {largest(batch)}"
        yield Fault(where="parameters.minibatch_size", rule=rule, got=got, fix=f"Lower minibatch_size or raise {key}.")
    # Asynchronous runners fill a batch with fragments as they come; others step all lanes for each batch.
    lanes = 0 if spec.traits.asynchronous else last * int(largest(spec.domain("num_envs_per_env_runner")))
    # A sampled batch is raised to the number of lanes; one that a person wrote runs as it is, or is refused.
    steps = largest(batch) if isinstance(batch, Range) else smallest(batch)
    if lanes > steps:
        least = lanes if key == "train_batch_size" else lanes // last
        rule = "`num_env_runners * num_envs_per_env_runner <= train_batch_size` must hold at every scale"
        got, fix = f"{lanes} lanes and {steps} steps", f"Raise it to {least} or more, or use fewer lanes."
        yield Fault(where=f"parameters.{key}", rule=rule, got=got, fix=fix)
        return
    for scale in spec.scales:
        batch = batch_domain(spec, scale)
        if not isinstance(batch, Range) or batch.step is not None:
            return
        # Steps of each runner are whole numbers too, wherever fragments are no multiple of the runners.
        units = (math.lcm(unit, scale if key != "train_batch_size" else 1) for unit in _batch_units(spec, scale))
        if unit := next((unit for unit in units if _holds_no_multiple(batch, unit)), None):
            also = ", and the runners" if spec.traits.asynchronous and key != "train_batch_size" else ""
            rule = f"the range must hold a multiple of {unit} ({_unit_is(spec, scale)}{also})"
            where, got = f"parameters.{key}", f"{batch.low} to {batch.high}"
            yield Fault(where=where, rule=rule, got=got, fix="Widen the range.")
            return


def _batch_units(spec: StudySpec, scale: int, given: Mapping[str, Value] = MappingProxyType({})) -> Iterator[int]:
    """Yield what a batch must be a multiple of, for every number of environments and length of a fragment."""
    envs, fragments = (given.get(name, spec.domain(name)) for name in ("num_envs_per_env_runner", FRAGMENT))
    for num_envs in values(envs):
        for fragment in values(fragments) if spec.traits.asynchronous else (1,):
            yield batch_unit(spec, scale, int(num_envs), int(fragment))


def _unit_is(spec: StudySpec, scale: int) -> str:
    if spec.traits.asynchronous:
        return "num_envs_per_env_runner x rollout_fragment_length x learners"
    return f"the lanes at {scale} runners, and the learners"


def _shares(spec: StudySpec) -> Iterator[Fault]:
    """Check that batches which a person wrote can be divided where they must be: they are never rounded."""
    where = f"parameters.{_batch_key(spec)}"
    yield from _first(shared_by_learners(spec, where, batch_domain(spec, scale)) for scale in spec.scales)
    if spec.rule("num_minibatches") is None and "minibatch_size" not in spec.parameter_names:
        pass  # a batch is one minibatch
    elif spec.rule("num_minibatches") is None:
        yield from shared_by_learners(spec, "parameters.minibatch_size", spec.domain("minibatch_size"))
    elif spec.resources.num_learners > 1 and not spec.traits.rules:
        rule, fix = "learners cannot share it evenly", "Give minibatch_size instead, or one learner."
        got = f"{spec.resources.num_learners} learners"
        yield Fault(where="parameters.num_minibatches", rule=rule, got=got, fix=fix)
    yield from _first(made_of_fragments(spec, where, batch_domain(spec, scale), scale) for scale in spec.scales)


def _first(found: Iterable[Iterable[Fault]]) -> Iterator[Fault]:
    """Yield the faults of the first scale that has any."""
    yield from next((faults for each in found if (faults := list(each))), [])


def shared_by_learners(spec: StudySpec, where: str, sizes: Domain) -> Iterator[Fault]:
    """Check that every learner can take an equal share of a batch."""
    learners = max(spec.resources.num_learners, 1)
    if (size := _not_divisible(sizes, learners)) is not None:
        rule, got, fix = "every learner takes an equal share", f"{size} for {learners}", f"Use multiples of {learners}."
        yield Fault(where=where, rule=rule, got=got, fix=fix)
    elif isinstance(sizes, Range) and _holds_no_multiple(sizes, learners):
        rule, got = f"the range must hold a multiple of the {learners} learners", f"{sizes.low} to {sizes.high}"
        yield Fault(where=where, rule=rule, got=got, fix="Widen the range.")


def made_of_fragments(
    spec: StudySpec, where: str, batch: Domain, scale: int, given: Mapping[str, Value] = MappingProxyType({})
) -> Iterator[Fault]:
    """Check that a batch holds whole fragments, which asynchronous runners send; `given` are values of a baseline."""
    if not spec.traits.asynchronous or spec.script is not None:
        return
    for unit in _batch_units(spec, scale, given):
        if (size := _not_divisible(batch, unit)) is not None:
            rule = f"a batch holds whole fragments ({_unit_is(spec, scale)} = {unit} steps)"
            fix = f"Use multiples of {unit}, or a range without a step: it is rounded to them."
            yield Fault(where=where, rule=rule, got=str(size), fix=fix)
            return


def _holds_no_multiple(domain: Range[int] | Range[float], unit: int) -> bool:
    return domain.high // unit * unit < domain.low


def _not_divisible(domain: Domain, unit: int) -> int | float | None:
    """Return the first value of a whole-number domain that is no multiple of `unit`; a sampled range is rounded."""
    if isinstance(domain, Range):
        # All are multiples where the first and the step are: there may be too many to look at each.
        first = () if domain.step is None else (domain.low, domain.low + domain.step)
        return next((value for value in first if value % unit), None)
    return next((value for value in values(domain) if value % unit), None)
