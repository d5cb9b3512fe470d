"""Rules between the sections of a space: a table for each subject, a row for each rule. Pure.

A row says where a fault is, when the rule is broken, what must hold and what to do. What concerns one section alone is
a validator of it, in `sections`. `OF_KIND` has the rules of each kind of study; `parsing` runs them.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from study.space.domains import Choices, Domain, Range, Rule, contains, largest, smallest, values
from study.space.parameters import (
    END_FRACTION,
    FRAGMENT,
    MAX_TRIALS,
    NAMES,
    PARAMETERS,
    REPLACED,
    RULES,
    SCALE,
    Value,
    attribute,
)
from study.space.procgen import is_procgen, wrong_levels
from study.space.sections import EnvironmentSpec
from study.space.settings import (
    batch_domain,
    batch_unit,
    larger_batches,
    minibatch_bounds,
    overlay,
    resolve,
)
from study.space.space_file import as_yaml
from study.space.spec import StudySpec
from study.text import listed

Found = Iterator[Mapping[str, object]]

_NAMED = "the schema names this value already: set it there"
_IGNORED = "RLlib's new API stack ignores it"
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
_NOT_IN_RLLIB = {
    **{(section, name): _NAMED for section, names in _BY_SCHEMA.items() for name in names.split()},
    ("env_runners", "num_gpus_per_env_runner"): "the study reserves no GPU for a runner",
    ("env_runners", "custom_resources_per_env_runner"): "the study reserves CPUs and GPUs only",
    ("learners", "custom_resources_per_learner"): "the study reserves CPUs and GPUs only",
    ("environment", "clip_rewards"): _IGNORED,
    ("env_runners", "observation_filter"): _IGNORED,
    ("env_runners", "compress_observations"): _IGNORED,
    ("training", "model"): f"{_IGNORED}; the space has `model`",
    ("rl_module", "algorithm_config_overrides_per_module"): "what the schema names must be what runs",
}
"""What `rllib:` may not set, and why: otherwise the recorded spec could disagree with what ran."""
_RETURNS = {
    "floor": "what random actions get, by `python -m study evaluate SPACE --random`",
    "reference": "what a good policy gets, as published, or the most that is possible",
    "target": "as the environment's page says, or nine tenths of the way from floor to reference",
}
"""The returns that give a score its meaning, and how to choose them."""


def _value(spec: Any, place: str) -> tuple[Any, Any]:
    """Return the value at a place of a space, and its default."""
    *above, name = place.split(".")
    section = functools.reduce(getattr, above, spec)
    return getattr(section, name), type(section).model_fields[name].get_default()


def left_out(places: str, when: Callable[[StudySpec], object], must: str, fix: str = "Remove it.") -> Rule:
    """Return the rule that some keys have their defaults wherever `when` holds."""

    def given(spec: StudySpec) -> Found:
        for where in places.split() if when(spec) else ():
            value, default = _value(spec, where)
            if value != default:
                yield {"where": where, "value": as_yaml(value) if isinstance(value, (str, int, float)) else ""}

    return Rule("{where}", given, must, fix, "{value}")


# --- what every study keeps -------------------------------------------------------------------------------------------


def _foreign_parameters(spec: StudySpec) -> Found:
    for name in NAMES:
        if name in spec.given_parameters and name not in spec.traits.names:
            yield {"name": name, "has": ", ".join(sorted(spec.traits.parameters))}


def _wrong_levels(spec: StudySpec) -> Found:
    sections = {"environment": spec.environment.kwargs, "evaluation": spec.evaluation.kwargs}
    for section, kwargs in sections.items() if is_procgen(spec.environment.id) else ():
        for name, rule in wrong_levels(kwargs):
            yield {"where": f"{section}.kwargs.{name}", "rule": rule, "value": repr(kwargs[name])}


def _missing_returns(spec: StudySpec) -> Found:
    for name, how in _RETURNS.items():
        if getattr(spec.environment, name) is None and (what := _needs_return(spec, name)):
            yield {"name": name, "what": what, "how": how}


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
    other = {"floor": "reference", "reference": "floor"}.get(name, "")
    given = other and getattr(spec.environment, other) is not None
    return f"a score, which {other} is given for," if given else ""


def _not_above_floor(spec: StudySpec) -> Found:
    floor = spec.environment.floor
    for name in ("reference", "target"):
        value = getattr(spec.environment, name)
        if floor is not None and value is not None and not floor < value:
            yield {"name": name, "got": f"floor={floor}, {name}={value}"}
            return


def fused_alone(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Yield what a space asks for and RLlib's own learner would leave undone without a word: place, and value."""
    if spec.algorithm == "A2C":
        yield "algorithm", "`A2C` "  # RLlib's learner has another optimizer, and standardises
    if spec.algorithm == "PPO" and spec.standardization in ("steps", "none"):
        yield "standardization", f"`{spec.standardization}` "


def _without_fused(spec: StudySpec) -> Found:
    # Where `fused` is asked for and cannot serve, a trial finds that.
    own = "learner: rllib is set" if spec.learner == "rllib" else spec.learner == "auto" and spec.fused_obstacle
    for where, what in fused_alone(spec) if own else ():
        yield {"where": where, "what": what, "own": own}


def both(spec: StudySpec) -> Found:
    """Yield the rules that are given beside the parameters whose place they take."""
    given: dict[str, Iterable[str]] = {"parameters": spec.given_parameters}
    if spec.holdup is not None:
        given["holdup.published"] = spec.holdup.published
    for name, axes in (spec.throughput.axes() if spec.throughput else {}).items():
        given[f"throughput.grids.{name}"] = axes
    for place, names in given.items():
        for rule, parameter in REPLACED.items():
            if rule in names and parameter in names:
                yield {"where": f"{place}.{rule}", "other": parameter}


def _not_in_rllib(spec: StudySpec) -> Found:
    for section, arguments in spec.rllib.items():
        for name in arguments:
            if (section, name) in _NOT_IN_RLLIB:
                yield {"place": f"{section}.{name}", "reason": _NOT_IN_RLLIB[section, name]}


COMMON = (
    Rule("parameters.{name}", _foreign_parameters, "{s.algorithm} has no such parameter",
         "Remove it; {s.algorithm} has: {has}."),
    Rule("{where}", both, "takes the place of {other}, so that only one may be given", "Remove one of the two.",
         "both"),
    left_out("holdup", lambda s: s.algorithm != "PPO", "a hold-up study needs PPO, not {s.algorithm}"),
    left_out("standardization", lambda s: s.algorithm != "PPO" and s.standardization != "none",
             "{s.algorithm} standardises no advantages"),
    left_out("learner", lambda s: s.traits.asynchronous and s.learner == "fused",
             "learner: fused has the update of PPO, which {s.algorithm} has not", "Remove it, or set learner: rllib."),
    left_out("execution", lambda s: s.not_emulated and s.execution == "emulated", "{s.not_emulated}",
             "Set execution: real."),
    left_out("exclusive", lambda s: s.execution == "emulated" and not (s.holdup and s.holdup.measure),
             "protects a clock, and emulated trials have none", "Remove it, or set execution: real."),
    Rule("{where}", _wrong_levels, "must be {rule}", "Change the value.", "{value}"),
    Rule("environment.backend", lambda s: is_procgen(s.environment.id) and s.environment.backend != "envpool",
         "Procgen needs backend: envpool", "Remove it.", "{s.environment.backend}"),
    Rule("environment.backend", lambda s: s.runner == "stock" and s.environment.backend == "envpool",
         "`envpool` needs runner: batched", "Set runner: batched.", "stock"),
    left_out("environment.action_repeat environment.frame_stack", lambda s: s.environment.backend == "envpool",
             "needs backend: gymnasium", "Remove it; EnvPool's Atari has frame_skip and stack_num as arguments."),
    left_out("environment.normalize_rewards", lambda s: s.traits.asynchronous,
             "{s.algorithm} does not normalise", "Remove it, or set algorithm: PPO or A2C."),
    left_out("environment.normalize_rewards", lambda s: s.most_learners > 1,
             "needs one learner, which sees all rewards, not {s.most_learners}", "Remove it, or use one learner."),
    Rule("environment.{name}", _missing_returns, "{what} needs it", "Add it: {how}."),
    Rule("environment.{name}", _not_above_floor, "`floor < {name}` must hold",
         "Set floor to what a policy gets that learnt nothing, and {name} to a return worth reaching.", "{got}"),
    Rule("{where}", _without_fused, "{what}needs the fused learner, and {own}", "Remove one of the two."),
    Rule("rllib.{place}", _not_in_rllib, "cannot be set: {reason}", "Remove it."),
)  # fmt: skip


# --- spaces with a script ---------------------------------------------------------------------------------------------

_NEEDS = {END_FRACTION: ("lr",), "lr_scaling_exponent": ("lr", "minibatch_size")}
"""Parameter or rule -> the parameters that it multiplies."""
_MADE_BY_SCRIPT = " ".join(
    f"environment.{name}" for name in EnvironmentSpec.model_fields if name not in ("id", "floor", "reference", "target")
)


def _of_the_script(spec: StudySpec) -> Found:
    if spec.script is not None:
        own = {"algorithm": spec.script.base_algorithm, "environment.id": spec.script.environment}
        said = {"algorithm": spec.algorithm, "environment.id": spec.environment.id}
        yield from (
            {"where": where, "own": own[where], "got": said[where]} for where in own if own[where] != said[where]
        )


def _overridden(spec: StudySpec) -> Found:
    for name in spec.script.overridden if spec.script else ():
        if name in spec.given_parameters:
            yield {"name": name}


def _without_value(spec: StudySpec) -> Found:
    if spec.script is None:
        return
    needs = {f"parameters.{name}": needed for name, needed in _NEEDS.items() if name in spec.given_parameters}
    if spec.holdup is not None:  # its baselines scale the two
        needs["holdup"] = ("lr", "minibatch_size", *spec.script.overridden)
    for where, needed in needs.items():
        if missing := [name for name in dict.fromkeys(needed) if name not in spec.parameter_names]:
            follows = sorted({*missing} & {*spec.script.schedules})
            got = f"the script's schedule of {listed(follows)}" if follows else "none in the script"
            yield {"where": where, "names": listed(missing), "got": got, "first": missing[0]}


SCRIPT = (
    left_out("config_kwargs config_args", lambda s: s.config is None, "needs `config`", "Add config:, or remove it."),
    left_out("evaluation.agent", lambda s: not (s.script and s.script.is_multi_agent),
             "needs a script with several agents"),
    left_out("evaluation.agent", lambda s: s.script and s.script.acting and s.evaluation.agent not in s.script.acting,
             "must be one of {s.script.acting}", "Name one, or remove it for the sum over all."),
    left_out("config", lambda s: s.script is None, "the script must be read first",
             "Start the study by the command, or by study.load_space."),
    left_out(f"model rllib evaluation.kwargs {_MADE_BY_SCRIPT}", lambda s: s.script,
             "is the script's", "Remove it, and say it in the script."),
    Rule("{where}", _of_the_script, "is the script's, {own}", "Remove it, or change the script.", "{got}"),
    Rule("parameters.{name}", _overridden,
         "every module that learns has a value of its own in the script, which a study does not change",
         "Remove it, or take {name} out of the script's algorithm_config_overrides_per_module."),
    Rule("{where}", _without_value, "needs one value of {names}", "Add parameters.{first}.", "{got}"),
    left_out(" ".join(f"parameters.{name}" for name in RULES), lambda s: not s.is_on_policy,
             "means nothing for {s.algorithm}, which learns from a replay buffer"),
)  # fmt: skip


# --- batches ----------------------------------------------------------------------------------------------------------


def _batch_key(spec: StudySpec) -> str:
    return "steps_per_env_runner" if spec.rule("steps_per_env_runner") is not None else "train_batch_size"


def _large_minibatch(spec: StudySpec) -> Found:
    last = max(spec.scales)
    batch, minibatch = largest(batch_domain(spec, last)), minibatch_bounds(spec, last)[0]
    if spec.is_on_policy and "minibatch_size" in spec.parameter_names and minibatch > batch:
        yield {"key": _batch_key(spec), "minibatch": minibatch, "batch": batch}


def _many_lanes(spec: StudySpec) -> Found:
    # Asynchronous runners fill a batch with fragments as they come; others step all lanes for each batch.
    if spec.traits.asynchronous or not spec.is_on_policy:
        return
    key, last = _batch_key(spec), max(spec.scales)
    batch, lanes = batch_domain(spec, last), last * int(largest(spec.domain("num_envs_per_env_runner")))
    # A sampled batch is raised to the number of lanes; one that a person wrote runs as it is, or is refused.
    steps = largest(batch) if isinstance(batch, Range) else smallest(batch)
    if lanes > steps:
        least = lanes if key == "train_batch_size" else lanes // last
        yield {"key": key, "lanes": lanes, "steps": steps, "least": least}


_LEARNERS = "an equal share for every learner"
_FRAGMENTS = "num_envs_per_env_runner x rollout_fragment_length x learners"


def _fragments(spec: StudySpec, scale: int, given: Mapping[str, Value] = MappingProxyType({})) -> Iterator[int]:
    """Yield the unit of a batch for every number of environments and length of a fragment; `given` by a baseline."""
    envs, fragments = (given.get(name, spec.domain(name)) for name in ("num_envs_per_env_runner", FRAGMENT))
    for num_envs in values(envs):
        for fragment in values(fragments) if spec.traits.asynchronous else (1,):
            yield batch_unit(spec, scale, int(num_envs), int(fragment))


Size = tuple[str, Domain, Iterable[int], str]
"""Where a size is given, its values, the units that each must be a multiple of, and why."""


def _sizes(spec: StudySpec) -> Iterator[Size]:
    """Yield the sizes that a space has.

    A sampled range is rounded to multiples, and must hold one; what a person wrote runs as it is, or is refused.
    """
    key, learners, asynchronous = _batch_key(spec), [max(spec.resources.num_learners, 1)], spec.traits.asynchronous
    if not spec.is_on_policy:
        return
    few_lanes = not any(_many_lanes(spec))
    for scale in spec.scales:
        batch = batch_domain(spec, scale)
        yield f"parameters.{key}", batch, learners, _LEARNERS
        if isinstance(batch, Range) and batch.step is None and few_lanes:
            # Steps of each runner are whole numbers too, wherever fragments are no multiple of the runners.
            of_runners = scale if key != "train_batch_size" else 1
            units = (math.lcm(unit, of_runners) for unit in _fragments(spec, scale))
            why = _FRAGMENTS if asynchronous else f"the lanes at {scale} runners, and the learners"
            yield f"parameters.{key}", batch, units, why
        elif asynchronous and spec.script is None:
            yield f"parameters.{key}", batch, _fragments(spec, scale), _FRAGMENTS
    if spec.rule("num_minibatches") is None and "minibatch_size" in spec.parameter_names:
        yield "parameters.minibatch_size", spec.domain("minibatch_size"), learners, _LEARNERS
    for place, given in _sound_baselines(spec) if spec.learns else ():
        for name in given.keys() & {"train_batch_size", "minibatch_size"}:
            yield f"{place}.{name}", given[name], learners, _LEARNERS


def _sizes_of_baselines(spec: StudySpec) -> Iterator[Size]:
    for place, given in _baselines(spec):
        if "train_batch_size" in given and spec.traits.asynchronous and spec.script is None:
            units = _fragments(spec, max(spec.scales), given)
            yield f"{place}.train_batch_size", given["train_batch_size"], units, _FRAGMENTS


def _misfit(domain: Domain, unit: int) -> str:
    """Return what of a size is no multiple of a unit; empty where all fits."""
    if isinstance(domain, Range) and domain.step is None:
        return f"{domain.low} to {domain.high}" if domain.high // unit * unit < domain.low else ""
    # All of a range are multiples where the first and the step are: there may be too many to look at each.
    some = (domain.low, domain.low + (domain.step or 0)) if isinstance(domain, Range) else values(domain)
    return next((str(value) for value in some if value % unit), "")


def _multiples(sizes: Callable[[StudySpec], Iterator[Size]]) -> Rule:
    """Return the rule that sizes are multiples of their units."""

    def misfits(spec: StudySpec) -> Found:
        for where, domain, units, why in sizes(spec):
            found = ({"unit": unit, "got": got} for unit in units if (got := _misfit(domain, unit)))
            if (first := next(found, None)) is not None:  # of units there may be a thousand million
                yield {"where": where, "why": why, **first}

    return Rule("{where}", misfits, "must be, or hold, a multiple of {unit} ({why})",
                "Use multiples of {unit}, or a wider range.", "{got}")  # fmt: skip


BATCHES = (
    Rule("parameters.minibatch_size", _large_minibatch, "`minibatch_size <= train_batch_size` must hold",
         "Lower minibatch_size or raise {key}.", "{minibatch} > {batch}"),
    Rule("parameters.{key}", _many_lanes,
         "`num_env_runners * num_envs_per_env_runner <= train_batch_size` must hold at every scale",
         "Raise it to {least} or more, or use fewer lanes.", "{lanes} lanes and {steps} steps"),
    _multiples(_sizes),
    Rule("parameters.num_minibatches",
         lambda s: s.is_on_policy and s.parameters.num_minibatches is not None and s.resources.num_learners > 1,
         "learners cannot share it evenly", "Give minibatch_size instead, or one learner.",
         "{s.resources.num_learners} learners"),
)  # fmt: skip


# --- studies that search ----------------------------------------------------------------------------------------------


def _baselines(spec: StudySpec) -> Iterator[tuple[str, Mapping[str, Value]]]:
    for index, baseline in enumerate(spec.search.baselines):
        yield f"search.baselines.{index}.parameters", baseline.parameters


def _sound_baselines(spec: StudySpec) -> Iterator[tuple[str, Mapping[str, Value]]]:
    """Yield the baselines whose values are ones of the space: the others cannot be reckoned with."""
    wrong = {str(each["place"]) for found in (_not_varied(spec), _outside(spec)) for each in found}
    yield from ((place, given) for place, given in _baselines(spec) if place not in wrong)


def _varied(spec: StudySpec, name: str) -> Domain | None:
    """Return what a baseline may say about a parameter or rule; None where another stands in its place."""
    if any(parameter == name and spec.rule(rule) is not None for rule, parameter in REPLACED.items()):
        return None
    return spec.rule(name) if name in RULES else spec.domain(name)


def _not_varied(spec: StudySpec) -> Found:
    for place, given in _baselines(spec):
        for name in given:
            if _varied(spec, name) is None:
                yield {"place": place, "name": name, "known": ", ".join([SCALE, *spec.tuned])}


def _outside(spec: StudySpec) -> Found:
    for place, given in _baselines(spec):
        for name, value in given.items():
            if (domain := _varied(spec, name)) is not None and not contains(domain, value):
                yield {"place": place, "name": name, "value": value}


def _baseline_lanes(spec: StudySpec) -> Found:
    for place, given in _sound_baselines(spec):
        if "train_batch_size" not in given or not spec.is_on_policy or spec.traits.asynchronous:
            continue
        scale = int(given[SCALE]) if SCALE in given else max(spec.scales)
        envs = given.get("num_envs_per_env_runner", spec.domain("num_envs_per_env_runner"))
        if (batch := given["train_batch_size"]) < (lanes := scale * int(largest(envs))):
            yield {"where": f"{place}.train_batch_size", "lanes": lanes, "batch": batch}


def _counts_trials(spec: StudySpec) -> bool:
    return spec.search.sampler != "grid" and spec.holdup is None


def _few_trials(spec: StudySpec) -> Found:
    runs = sum(1 if SCALE in baseline.parameters else len(spec.scales) for baseline in spec.search.baselines)
    least = max(len(spec.scales), runs)
    if _counts_trials(spec) and spec.search.num_trials is not None and spec.search.num_trials < least:
        yield {"least": least}


def _endless(spec: StudySpec) -> Found:
    for name, domain in spec.tuned.items():
        if spec.search.sampler == "grid" and isinstance(domain, Range) and domain.step is None:
            yield {"name": name, "low": domain.low, "high": domain.high}


def _large_grid(spec: StudySpec) -> Found:
    sizes = [len(spec.scales), len(spec.search.seeds)]
    for domain in spec.tuned.values():
        if isinstance(domain, Choices):
            sizes.append(len(domain.choices))
        elif domain.step is not None:
            sizes.append(round((domain.high - domain.low) / domain.step) + 1)
    if spec.search.sampler == "grid" and math.prod(sizes) > MAX_TRIALS:
        yield {"total": math.prod(sizes)}


SEARCH = (
    Rule("budget", lambda s: s.budget.env_steps is None and s.budget.iterations is None and s.budget.time_s is None,
         "one of env_steps, iterations, time_s must be given", "Add budget.env_steps.", "none"),
    Rule(f"parameters.{END_FRACTION}",
         lambda s: smallest({**s.fixed, **s.tuned}.get(END_FRACTION, 1.0)) < 1 and s.budget.env_steps is None,
         "a learning rate falls over budget.env_steps", "Add budget.env_steps, or remove it.", "none"),
    Rule("search.objective", lambda s: s.execution == "emulated" and s.search.objective == "time_to_target_s",
         "in emulation only environment steps are a fact", "Use env_steps_to_target, or execution: real.",
         "time_to_target_s"),
    Rule("{place}.{name}", _not_varied, "is not varied here", "Use one of: {known}."),
    Rule("{place}.{name}", _outside, "must lie in what parameters.{name} allows",
         "Widen parameters.{name} or change the baseline.", "{value}"),
    Rule("{where}", _baseline_lanes, "must be at least the {lanes} lanes of the largest scale that it is run at",
         "Raise it, or name a smaller num_env_runners in the baseline.", "{batch}"),
    Rule("search.num_trials", lambda s: s.search.num_trials is None and _counts_trials(s),
         "must be given with sampler {s.search.sampler}", "Add for instance num_trials: 40."),
    Rule("search.num_trials", _few_trials,
         "must give a trial to every scale and baseline: {least} in all",
         "Raise it to {least}, or list fewer scales or baselines.", "{s.search.num_trials}"),
    Rule("parameters.{name}", _endless, "must be a list, or a range with a step, with sampler grid",
         "List the values.", "low={low}, high={high}"),
    Rule("search.sampler", _large_grid, f"a grid has at most {MAX_TRIALS} trials", "List fewer values.", "{total}"),
    left_out("search.num_trials search.baselines", lambda s: s.search.sampler == "grid",
             "a grid counts its trials itself, and has no baselines", "Remove it, or use another sampler."),
)  # fmt: skip


# --- hold-up studies --------------------------------------------------------------------------------------------------


def _unsearched(spec: StudySpec) -> Found:
    for name in ("target_scale", "small_scale") if spec.holdup else ():
        if (scale := getattr(spec.holdup, name)) not in spec.scales:
            yield {"name": name, "scale": scale}


def _smaller(spec: StudySpec) -> Found:
    if spec.holdup and (smaller := [scale for scale in spec.scales if scale < spec.holdup.small_scale]):
        yield {"smaller": smaller}


def _seeds(spec: StudySpec) -> dict[str, range]:
    names = ("tune_seeds", "rank_seeds", "test_seeds") if spec.holdup else ()
    return {name: getattr(spec.holdup, name).seeds for name in names}


def _shared_seeds(spec: StudySpec) -> Found:
    for (first, ours), (second, theirs) in itertools.combinations(_seeds(spec).items(), 2):
        least, end = max(ours.start, theirs.start), min(ours.stop, theirs.stop)
        if least < end:
            got = f"{least} to {end - 1}" if end - least > 1 else least
            yield {"name": second, "other": first, "got": got, "free": ours.stop}


def _few_seeds(spec: StudySpec) -> Found:
    if (section := spec.holdup) is None:
        return
    each, race = section.confirm, max(sum(section.race.blocks), section.stress.num_seeds)
    confirm = max(each.num_seeds, each.num_seeds_others, each.num_seeds_stock)
    for name, least, what in (("rank_seeds", race, "race and stress"), ("test_seeds", confirm, "the confirmation")):
        if (count := len(_seeds(spec)[name])) < least:
            yield {"name": name, "what": what, "least": least, "count": count}


def _one_of_few_batches(spec: StudySpec) -> Found:
    """Yield the baselines that use up their budget by one batch: they learn from random actions alone, and lose."""
    section, steps = spec.holdup, spec.budget.env_steps
    if section is None or steps is None:
        return
    changes: dict[str, Mapping[str, Value]] = {
        "naive_growth": {"steps_per_env_runner": section.naive_steps_per_env_runner},
        "published": section.published,
    }
    plain = {"train_batch_size": PARAMETERS["train_batch_size"].rllib or 0}
    for name in section.baselines:
        sizes = {key: value for key, value in changes.get(name, {}).items() if key in (*plain, "steps_per_env_runner")}
        batch = resolve(overlay(plain, sizes), section.target_scale)["train_batch_size"]
        if batch > steps:
            yield {"steps": steps, "batch": batch, "name": name}


def _one_batch(spec: StudySpec) -> Found:
    """Yield the largest batch where it uses up a budget: its trial learns from random actions alone."""
    if found := larger_batches(spec):
        scale, batch = max(found.items())
        yield {"scale": scale, "batch": batch}


def _of_other_algorithms(spec: StudySpec) -> Found:
    given = dict(_baselines(spec))
    if spec.holdup is not None:
        given["holdup.published"] = spec.holdup.published
    own = {*spec.traits.parameters, *spec.parameter_names, *RULES}
    for place, values_of in given.items():
        yield from ({"where": f"{place}.{name}"} for name in values_of if name not in own)


HOLDUP = (
    Rule("holdup.{name}", _unsearched, "must be among parameters.num_env_runners, {s.scales}", "List {scale} there.",
         "{scale}"),
    Rule("holdup.small_scale", lambda s: s.holdup and not s.holdup.small_scale < s.holdup.target_scale,
         "`small_scale < target_scale` must hold", "Name the scale at which training is known to work.",
         "{s.holdup.small_scale} and {s.holdup.target_scale}"),
    Rule("holdup.small_scale", _smaller, "must be the smallest searched scale", "Name that, or list no smaller scale.",
         "{s.holdup.small_scale} with {smaller} below it"),
    Rule("holdup.unseen_scales", lambda s: s.holdup and {*s.holdup.unseen_scales} & {*s.scales},
         "must be scales that no earlier stage runs", "Remove them here or from parameters.num_env_runners.",
         "{s.holdup.unseen_scales}"),
    Rule("holdup.{name}", _shared_seeds, "must share no seed with {other}", "Begin at {free} or later.", "{got}"),
    Rule("holdup.{name}", _few_seeds, "{what} needs {least}", "Set count: {least}.", "{count}"),
    Rule("holdup.num_settings", lambda s: s.holdup and s.holdup.num_settings < s.holdup.race.num_settings,
         "the race needs {s.holdup.race.num_settings} settings to choose from",
         "Raise it, or lower holdup.race.num_settings.", "{s.holdup.num_settings}"),
    Rule("holdup.stress.num_settings", lambda s: s.holdup and s.holdup.stress.num_settings > s.holdup.race.num_settings,
         "must not exceed race.num_settings", "Lower it.",
         "{s.holdup.stress.num_settings} > {s.holdup.race.num_settings}"),
    Rule("holdup.published", lambda s: s.holdup and ("published" in s.holdup.baselines) != bool(s.holdup.published),
         "holdup.published and the baseline `published` belong together", "Give both, or neither.", "one of the two"),
    Rule("parameters", lambda s: s.holdup and not s.tuned, "a hold-up study needs something to tune",
         "Give lr a range.", "one setting"),
    Rule("evaluation.num_evaluations", lambda s: s.holdup and s.evaluation.num_evaluations < 2,
         "a target is reached when two consecutive evaluations are at or above it, so that two are needed",
         "Raise it; 10 gives a tenth of the budget as resolution.", "{s.evaluation.num_evaluations}"),
    left_out("evaluation.stochastic", lambda s: s.holdup, "a hold-up study judges greedy policies"),
    left_out("search.seeds", lambda s: s.holdup, "a hold-up study has seeds of its own", "Use holdup.tune_seeds."),
    left_out("search.sampler", lambda s: s.holdup and s.search.sampler == "grid", "a hold-up study proposes settings",
             "Use tpe, gp, qmc or random."),
    left_out("search.num_trials", lambda s: s.holdup, "a hold-up study counts its trials itself",
             "Use holdup.num_settings."),
    left_out("search.baselines", lambda s: s.holdup, "a hold-up study has baselines of its own",
             "Use holdup.baselines and holdup.published."),
    left_out("budget.iterations", lambda s: s.holdup, "iterations of settings differ in their batches",
             "Give budget.env_steps instead."),
    left_out("resources.num_learners", lambda s: s.holdup and s.resources.num_learners > 1,
             "baselines have batches that learners cannot share evenly", "Use one learner, or none of its own."),
    left_out("runner", lambda s: s.holdup and s.algorithm == "PPO",
             "a hold-up study confirms with RLlib's own runner at the end, and searches with the batched one"),
)  # fmt: skip

ASKED = (
    Rule("budget.env_steps", _one_batch, "the largest train batch must fit into it, or a trial ends after one batch",
         "Raise it to {batch} or more, or lower the batch.",
         "{s.budget.env_steps:,} steps and a batch of {batch:,} at {scale} runners"),
)  # fmt: skip
"""For a study that a person starts now: one on record is read whatever its budget."""
YOUNGER = (
    _multiples(_sizes_of_baselines),
    Rule("budget.env_steps", _one_of_few_batches,
         "the train batch of every baseline must fit into it, or a baseline trains once and loses",
         "Raise it to {batch} or more, or change the baseline.",
         "{steps:,} steps and a batch of {batch:,} of {name}"),
    Rule("{where}", _of_other_algorithms, "{s.algorithm} has no such parameter", "Remove it."),
)  # fmt: skip
"""The same, of values that break no other rule: studies on record are older than these rules, and may break them."""
