"""Laws between the keys of a space that one field alone cannot check. Pure."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from study.errors import Fault
from study.space.domains import MAX_LISTED, Choices, Domain, Range, is_multiple
from study.space.holdup_laws import holdup_laws
from study.space.parameters import PARAMETERS, REPLACED, RULES, SCALE, Value
from study.space.plain import MAX_TRIALS, shown
from study.space.procgen import fault_of, faults_of_levels, is_procgen
from study.space.rules import batch_domain, bounds, minibatch_bounds
from study.space.throughput_laws import throughput_laws

if TYPE_CHECKING:
    from study.space.spec import StudySpec

OVERRIDES_CLASHING_WITH_SCHEMA = {
    "environment": {"env", "env_config", "observation_space", "action_space"},
    "env_runners": {
        "num_env_runners",
        "num_envs_per_env_runner",
        "num_cpus_per_env_runner",
        "sample_timeout_s",
        "env_runner_cls",
        "rollout_fragment_length",
        "gym_env_vectorize_mode",
    },
    "learners": {"num_learners", "num_cpus_per_learner", "num_gpus_per_learner", "learner_class"},
    "training": {
        "train_batch_size",
        "train_batch_size_per_learner",
        "minibatch_size",
        "num_epochs",
        "lr",
        "gamma",
        "lambda_",
        "clip_param",
        "entropy_coeff",
        "grad_clip",
        "vf_clip_param",
        "vf_loss_coeff",
        "kl_coeff",
        "kl_target",
        "use_kl_loss",
        "vtrace_clip_rho_threshold",
        "vtrace_clip_pg_rho_threshold",
        "circular_buffer_num_batches",
        "circular_buffer_iterations_per_batch",
        "target_network_update_freq",
        "learner_class",
    },
    "resources": {"num_cpus_for_main_process", "placement_strategy"},
    "debugging": {"seed"},
    "rl_module": {"model_config"},
}
"""What `rllib:` may not set, since the schema names it: two places for one value would lie in the records."""

OVERRIDES_REFUSED = {
    ("env_runners", "num_gpus_per_env_runner"): "the study reserves no GPU for a runner",
    ("env_runners", "custom_resources_per_env_runner"): "the study reserves CPUs and GPUs only",
    ("learners", "custom_resources_per_learner"): "the study reserves CPUs and GPUs only",
    ("environment", "clip_rewards"): "RLlib's new API stack ignores it",
    ("env_runners", "observation_filter"): "RLlib's new API stack ignores it",
    ("env_runners", "compress_observations"): "RLlib's new API stack ignores it",
    ("training", "model"): "RLlib's new API stack ignores it; the space has `model`",
    (
        "rl_module",
        "algorithm_config_overrides_per_module",
    ): "what the schema names must be what runs",
}
"""What `rllib:` may not set for another reason."""

FRAGMENT = "rollout_fragment_length"
END_FRACTION = "lr_end_fraction"
MAX_SCALES = MAX_LISTED
"""The other laws look at every scale with every number of environments."""


def smallest(domain: Domain) -> Value:
    """Return the least value that `domain` can take."""
    return bounds(domain)[0]


def largest(domain: Domain) -> Value:
    """Return the greatest value that `domain` can take."""
    return bounds(domain)[1]


def contains(domain: Domain, value: Value) -> bool:
    """Return whether `value` is one that `domain` can take."""
    if isinstance(domain, Choices):
        return value in domain.choices
    if isinstance(domain, Range):
        on_step = domain.step is None or is_multiple(value - domain.low, domain.step)
        return on_step and domain.low <= value <= domain.high
    return value == domain


def broken_laws(spec: "StudySpec", line_of: Callable[[str], int | None], *, asked: bool = False) -> Iterator[Fault]:
    """Yield a fault for every law between keys that `spec` breaks.

    Args:
        spec: The space.
        line_of: Place -> its line in the file.
        asked: Whether a person asks for this study now; False for studies on record.
    """
    if len(spec.scales) > MAX_SCALES:
        law, place = f"at most {MAX_SCALES} scales, got {len(spec.scales)}.", f"parameters.{SCALE}"
        yield Fault(where=place, rule=law, fix="List fewer.", line=line_of(place))
        return
    laws = _THROUGHPUT_LAWS if spec.kind == "throughput" else _LAWS
    if asked:
        laws = (*laws, _larger_batch)
    for place, law, fix in (broken for law_of in laws for broken in law_of(spec)):
        yield Fault(where=place, rule=law, fix=fix, line=line_of(place))


Broken = Iterator[tuple[str, str, str]]


def _procgen(spec: "StudySpec") -> Broken:
    environment = spec.environment
    if not is_procgen(environment.id):
        return
    if fault := fault_of(environment.id):
        yield "environment.id", *fault
    for place, kwargs in {"environment": environment.kwargs, "evaluation": spec.evaluation.kwargs}.items():
        for name, law, fix in faults_of_levels(kwargs):
            yield f"{place}.kwargs.{name}", law, fix
    if environment.backend != "envpool":
        got = f"Procgen is EnvPool's, got {environment.backend}."
        yield "environment.backend", got, "Remove it."


_MEANING = {
    "floor": ("the return that scores 0", "what random actions get, by `python -m study evaluate SPACE --random`"),
    "reference": ("the return that scores 1", "what a good policy gets, as published, or the most that is possible"),
    "target": (
        "the return from which it counts as solved",
        "as the environment's page says, or nine tenths of the way from floor to reference",
    ),
}
"""What the returns of a space mean, and how to choose them."""


def _environment(spec: "StudySpec") -> Broken:
    floor, reference, target = spec.environment.floor, spec.environment.reference, spec.environment.target
    for name, value in {"floor": floor, "reference": reference, "target": target}.items():
        if value is None and spec.kind == "search":
            yield f"environment.{name}", f"must be given: {_MEANING[name][0]}.", f"Add it: {_MEANING[name][1]}."
    if floor is None or reference is None or target is None:
        return
    if not floor < reference:
        got = f"`floor < reference` must hold, got floor={floor}, reference={reference}."
        yield "environment.reference", got, "A floor is what a policy that learnt nothing gets."
    elif not floor < target:
        got = f"`floor < target` must hold, got floor={floor}, target={target}."
        yield "environment.target", got, "A target is a return worth reaching."


def _algorithm(spec: "StudySpec") -> Broken:
    """What an algorithm does not have, and what it needs."""
    name, traits = spec.algorithm, spec.traits
    taken = {*traits.parameters, *(RULES.keys() - traits.rules.keys())}
    for parameter in (each for each in (*PARAMETERS, *RULES) if each in spec.given_parameters and each not in taken):
        got = f"{name} has no such parameter{_own_value(spec, parameter)}."
        yield f"parameters.{parameter}", got, f"Remove it; {name} has: {', '.join(sorted(traits.parameters))}."
    if spec.holdup is not None and name != "PPO":
        yield "holdup", f"a hold-up study is of PPO, got algorithm: {name}.", "Remove holdup:, or set algorithm: PPO."
    if name == "A2C" and spec.learner != "lean":
        yield "learner", f"A2C needs `lean`, got {spec.learner}, which always uses Adam.", "Set learner: lean."
    if name != "PPO" and spec.standardization not in (None, "none"):
        got = f"{name} standardises no advantages, got {spec.standardization}."
        yield "standardization", got, "Remove it."
    if traits.asynchronous and spec.learner != "rllib":
        yield "learner", f"`lean` is PPO's update, got algorithm: {name}.", "Remove it, or set learner: rllib."
    if traits.asynchronous and spec.execution == "emulated":
        got = f"how old a policy {name} learns from depends on the clock, and emulation has none."
        yield "execution", got, "Set execution: real, or algorithm: PPO."


def _own_value(spec: "StudySpec", parameter: str) -> str:
    if parameter in ("minibatch_size", "num_minibatches"):
        return " (every batch is one minibatch)"
    said = spec.traits.given.get(parameter)
    return "" if said is None else f" (it is always {said:g})"


def _rules(spec: "StudySpec") -> Broken:
    given = spec.given_parameters
    for rule, parameter in REPLACED.items():
        if rule in given and parameter in given:
            got = f"takes the place of {parameter}, got both."
            yield f"parameters.{rule}", got, "Remove one of the two."


def _batches(spec: "StudySpec") -> Broken:
    rule = "steps_per_env_runner" if spec.rule("steps_per_env_runner") is not None else "train_batch_size"
    last = max(spec.scales)
    batch, minibatch = batch_domain(spec, last), minibatch_bounds(spec, last)[0]
    if minibatch > largest(batch):
        got = f"`minibatch_size <= train_batch_size` must hold, got {minibatch} > {largest(batch)}."
        yield "parameters.minibatch_size", got, f"Lower minibatch_size or raise {rule}."
    # Fragments make up the batches of asynchronous runners as they come; others step all lanes for each batch.
    lanes = 0 if spec.traits.asynchronous else last * int(largest(spec.domain("num_envs_per_env_runner")))
    # A sampled batch is moved up to the number of lanes; one that a person wrote down is run as it is, or refused.
    steps = largest(batch) if isinstance(batch, Range) else smallest(batch)
    if lanes > steps:
        got = (
            "`num_env_runners * num_envs_per_env_runner <= train_batch_size` must hold at every scale, "
            f"got {lanes} lanes and {steps} steps."
        )
        least = lanes if rule == "train_batch_size" else lanes // last
        yield f"parameters.{rule}", got, f"Raise it to {least} or more, or use fewer lanes."
        return
    for scale in spec.scales:
        batch = batch_domain(spec, scale)
        if not isinstance(batch, Range) or batch.step is not None:
            return
        # Steps of each runner are whole numbers too, wherever fragments are no multiple of the runners.
        units = (math.lcm(unit, scale if rule != "train_batch_size" else 1) for unit in _batch_units(spec, scale))
        if unit := next((unit for unit in units if _holds_no_multiple(batch, unit)), None):
            also = ", and the runners" if spec.traits.asynchronous and rule != "train_batch_size" else ""
            got = f"a multiple of {unit} ({_unit_is(spec, scale)}{also}) must lie in {batch.low} to {batch.high}."
            yield f"parameters.{rule}", got, "Widen the range."
            return


def batch_unit(spec: "StudySpec", num_env_runners: int, num_envs: int, fragment: int) -> int:
    """Return what a batch is a multiple of, so that every lane and every learner has the same share of it.

    Args:
        spec: The space.
        num_env_runners: The scale.
        num_envs: Environments of each runner.
        fragment: Steps that each environment takes before an asynchronous runner sends them; else without meaning.
    """
    learners = max(spec.resources.num_learners, 1)
    if spec.traits.asynchronous:
        return num_envs * fragment * learners
    return math.lcm(num_env_runners * num_envs, learners)


def _batch_units(spec: "StudySpec", scale: int) -> Iterator[int]:
    fragments = values(spec.domain(FRAGMENT)) if spec.traits.asynchronous else (1,)
    for envs, fragment in itertools.product(values(spec.domain("num_envs_per_env_runner")), fragments):
        yield batch_unit(spec, scale, int(envs), int(fragment))


def _unit_is(spec: "StudySpec", scale: int) -> str:
    if spec.traits.asynchronous:
        return "num_envs_per_env_runner x rollout_fragment_length x learners"
    return f"the lanes at {scale} runners, and the learners"


def _engine(spec: "StudySpec") -> Broken:
    """Who samples, who learns, and how: not every combination exists."""
    if spec.runner == "stock" and spec.execution == "emulated":
        got = "`emulated` needs lanes that any process can step, got runner: stock."
        yield "execution", got, "Set runner: batched, or execution: real."
    if spec.runner == "stock" and spec.environment.backend == "envpool":
        yield "environment.backend", "`envpool` needs runner: batched, got stock.", "Set runner: batched."
    if spec.algorithm == "PPO" and spec.learner == "rllib" and spec.standardization in ("steps", "none"):
        got = f"`{spec.standardization}` needs learner: lean, got rllib, which standardises over phantom rows too."
        yield "standardization", got, "Remove it, or set learner: lean."
    yield from _layers(spec)
    gpus = spec.resources.num_gpus_per_learner
    if gpus > 1 and not gpus.is_integer():
        got = f"must be a whole number, or a share of one GPU, got {gpus:g}."
        yield "resources.num_gpus_per_learner", got, f"Write {math.ceil(gpus)}."


def _layers(spec: "StudySpec") -> Broken:
    """What is put around an environment needs somebody who does it."""
    environment = spec.environment
    for name in ("normalize_observations", "normalize_rewards"):
        if getattr(environment, name) and spec.traits.asynchronous:
            got = f"needs the lean learner, which {spec.algorithm} has not."
            yield f"environment.{name}", got, "Remove it, or set algorithm: PPO or A2C."
        elif getattr(environment, name) and spec.learner != "lean":
            got = f"needs learner: lean, got {spec.learner}."
            yield f"environment.{name}", got, "Set learner: lean with PPO or A2C, or remove it."
    if environment.normalize_rewards and spec.runner != "batched":
        yield "environment.normalize_rewards", f"needs runner: batched, got {spec.runner}.", "Set runner: batched."
    for name in ("action_repeat", "frame_stack"):
        if getattr(environment, name) > 1 and environment.backend == "envpool":
            got = "needs backend: gymnasium, got envpool."
            own = {"action_repeat": "frame_skip", "frame_stack": "stack_num"}[name]
            fix = f"Remove it; EnvPool's Atari has {own} in environment.kwargs."
            yield f"environment.{name}", got, fix
    if spec.model.conv_net is not None and spec.model.conv_filters is not None:
        yield "model.conv_net", "takes the place of conv_filters, got both.", "Remove one of the two."


def _shares(spec: "StudySpec") -> Broken:
    """Batches that a person wrote down are never rounded; where they must be divisible, they are."""
    rule = "steps_per_env_runner" if spec.rule("steps_per_env_runner") is not None else "train_batch_size"
    for scale in spec.scales:
        broken = list(_shared_by_learners(spec, f"parameters.{rule}", batch_domain(spec, scale)))
        yield from broken
        if broken:
            break
    if spec.rule("num_minibatches") is None:
        yield from _shared_by_learners(spec, "parameters.minibatch_size", spec.domain("minibatch_size"))
    elif spec.resources.num_learners > 1 and not spec.traits.rules:
        got = f"cannot be shared evenly by learners, got {spec.resources.num_learners}."
        yield "parameters.num_minibatches", got, "Give minibatch_size instead, or one learner."
    yield from _made_of_fragments(spec, f"parameters.{rule}")
    envs = spec.domain("num_envs_per_env_runner")
    for scale in spec.scales:
        broken = list(_stepped_whole(spec, f"parameters.{rule}", batch_domain(spec, scale), (scale,), envs))
        yield from broken
        if broken:
            break
    for index, anchor in enumerate(spec.search.anchors):
        given, place = anchor.parameters, f"search.anchors.{index}.parameters"
        for name in given.keys() & {"train_batch_size", "minibatch_size"}:
            yield from _shared_by_learners(spec, f"{place}.{name}", given[name])
        if "train_batch_size" in given:
            scales = (int(given[SCALE]),) if SCALE in given else spec.scales
            here = given.get("num_envs_per_env_runner", envs)
            yield from _stepped_whole(spec, f"{place}.train_batch_size", given["train_batch_size"], scales, here)


def _shared_by_learners(spec: "StudySpec", place: str, sizes: Domain) -> Broken:
    learners = max(spec.resources.num_learners, 1)
    if (size := _not_divisible(sizes, learners)) is not None:
        yield place, f"every learner takes an equal share, got {size} for {learners}.", f"Use multiples of {learners}."
    elif isinstance(sizes, Range) and _holds_no_multiple(sizes, learners):
        yield (
            place,
            f"a multiple of the {learners} learners must lie in {sizes.low} to {sizes.high}.",
            "Widen the range.",
        )


def _made_of_fragments(spec: "StudySpec", place: str) -> Broken:
    """Asynchronous runners send fragments, and a batch holds whole ones."""
    for scale in spec.scales if spec.traits.asynchronous else ():
        batch = batch_domain(spec, scale)
        for unit in _batch_units(spec, scale):
            if (size := _not_divisible(batch, unit)) is not None:
                got = f"a batch holds whole fragments ({_unit_is(spec, scale)} = {unit} steps), got {size}."
                yield place, got, f"Use multiples of {unit}, or a range without a step: it is rounded to them."
                return


def _stepped_whole(spec: "StudySpec", place: str, batch: Domain, scales: Iterable[int], envs: Domain) -> Broken:
    if spec.environment.backend != "envpool" or spec.traits.asynchronous:
        return
    for scale, num_envs in itertools.product(scales, values(envs)):
        lanes = scale * int(num_envs)
        if (size := _not_divisible(batch, lanes)) is not None:
            got = f"with EnvPool all lanes step at once, got {size} steps for the {lanes} lanes of {scale} runners."
            yield place, got, "Use multiples of the lanes, or a range without a step: it is rounded to them."
            return


def values(domain: Domain) -> Iterable[Value]:
    """Return every value of a whole-number domain."""
    if isinstance(domain, Choices):
        return domain.choices
    if isinstance(domain, Range):
        return range(int(domain.low), int(domain.high) + 1, int(domain.step or 1))
    return (domain,)


def _holds_no_multiple(domain: Range[int] | Range[float], unit: int) -> bool:
    return domain.high // unit * unit < domain.low


def _not_divisible(domain: Domain, unit: int) -> Value | None:
    """Return the first value of a whole-number domain that is no multiple of `unit`; a sampled range is rounded."""
    if isinstance(domain, Range):
        # All are multiples where the first and the step are: there may be too many to look at each.
        first = () if domain.step is None else (domain.low, domain.low + domain.step)
        return next((value for value in first if value % unit), None)
    return next((value for value in values(domain) if value % unit), None)


def _budget(spec: "StudySpec") -> Broken:
    budget = spec.budget
    if budget.env_steps is None and budget.iterations is None and budget.time_s is None:
        yield "budget", "one of env_steps, iterations, time_s must be given, got none.", "Add budget.env_steps."
    iterations = [value for value in spec.iterations_axis if value is not None]
    if isinstance(budget.iterations, list) and not iterations:
        yield "budget.iterations", "the list must not be empty.", "Add a number of iterations."
    if any(value < 1 for value in iterations) or len(set(iterations)) != len(iterations):
        yield "budget.iterations", f"must be distinct and at least 1, got {iterations}.", "Change the values."
    fraction = {**spec.fixed, **spec.tuned}.get(END_FRACTION, 1.0)
    if smallest(fraction) < 1 and budget.env_steps is None:
        law = "a learning rate falls over budget.env_steps, got none."
        yield f"parameters.{END_FRACTION}", law, "Add budget.env_steps, or remove it."


def larger_batches(spec: "StudySpec") -> dict[int, int]:
    """Return scale -> its largest train batch, where that has more steps than the whole budget of a trial."""
    steps, scales = spec.budget.env_steps, (*spec.scales, *(spec.holdup.unseen_scales if spec.holdup else ()))
    batches = {scale: int(largest(batch_domain(spec, scale))) for scale in scales}
    return {scale: batch for scale, batch in batches.items() if steps is not None and batch > steps}


def _larger_batch(spec: "StudySpec") -> Broken:
    """A trial whose first batch uses up its budget learns from random actions alone."""
    batches = larger_batches(spec)
    if batches and not spec.budget.allow_larger_batch:
        scale, batch = max(batches.items())
        got = (
            "the largest train batch must fit into it, or a trial ends after one batch: "
            f"got {spec.budget.env_steps:,} steps and a batch of {batch:,} at {scale} runners."
        )
        yield "budget.env_steps", got, f"Raise it to {batch} or more, lower the batch, or set allow_larger_batch: true."


def _objective(spec: "StudySpec") -> Broken:
    if spec.execution == "emulated" and spec.search.objective == "time_to_target_s":
        got = "in emulation only environment steps are a fact, got time_to_target_s."
        yield "search.objective", got, "Use env_steps_to_target, or execution: real."


def _exclusive(spec: "StudySpec") -> Broken:
    measures = spec.holdup is not None and spec.holdup.measure is not None
    if spec.exclusive and spec.execution == "emulated" and not measures:
        yield "exclusive", "protects a clock, and emulated trials have none.", "Remove it, or set execution: real."


def _search(spec: "StudySpec") -> Broken:
    search = spec.search
    if len(set(search.seeds)) != len(search.seeds):
        yield "search.seeds", f"must be distinct, got {search.seeds}.", "Name each seed once."
    names = [anchor.name for anchor in search.anchors]
    if len(set(names)) != len(names):
        yield "search.anchors", f"names must be distinct, got {names}.", "Rename one."
    for index, anchor in enumerate(search.anchors):
        for name, value in anchor.parameters.items():
            yield from _anchor(spec, f"search.anchors.{index}", name, value)
    if search.sampler == "grid":
        yield from _grid(spec)
    elif spec.holdup is not None:
        return
    else:
        yield from _num_trials(spec)


def _num_trials(spec: "StudySpec") -> Broken:
    search = spec.search
    if search.num_trials is None:
        yield "search.num_trials", f"must be given with sampler {search.sampler}.", "Add for instance num_trials: 40."
    elif (needed := _num_anchored(spec)) > search.num_trials:
        got = f"must cover the anchors ({needed} trials, one per scale where they name none), got {search.num_trials}."
        yield "search.num_trials", got, f"Raise it to {needed} or drop anchors."
    elif search.num_trials < len(spec.scales) * len(spec.iterations_axis):
        cells = len(spec.scales) * len(spec.iterations_axis)
        times = f" with each of {len(spec.iterations_axis)} numbers of iterations" if cells > len(spec.scales) else ""
        scales = f"{shown(list(spec.scales))} runners{times}"
        got = f"must give every scale a trial ({cells}: {scales}), got {search.num_trials}."
        yield "search.num_trials", got, f"Raise it to {cells} or list fewer scales."
    elif search.num_trials > MAX_TRIALS:
        yield "search.num_trials", f"at most {MAX_TRIALS}, got {search.num_trials}.", "Lower it."


def _anchor(spec: "StudySpec", place: str, name: str, value: Value) -> Broken:
    known = {**PARAMETERS, **RULES}
    domain = None if name not in known else spec.rule(name) if name in RULES else spec.domain(name)
    rule = next((rule for rule, parameter in REPLACED.items() if parameter == name and spec.rule(rule)), None)
    if domain is None or rule is not None:
        got = "unknown parameter." if name not in known else f"is not varied here{f': {rule} is' if rule else ''}."
        yield f"{place}.parameters.{name}", got, f"Use one of: {', '.join([SCALE, *spec.tuned])}."
    elif not contains(domain, value):
        got = f"must lie in what parameters.{name} allows, got {value}."
        yield f"{place}.parameters.{name}", got, f"Widen parameters.{name} or change the anchor."
    elif name == "train_batch_size" and value < (lanes := _lanes_of_anchor(spec, place)):
        got = f"must be at least the {lanes} lanes of the largest scale that it is run at, got {value}."
        yield f"{place}.parameters.{name}", got, "Raise it, or name a smaller num_env_runners in the anchor."
    elif known[name].kind is int and not isinstance(value, int):
        yield f"{place}.parameters.{name}", f"must be a whole number, got {value}.", "Write a whole number."


def _lanes_of_anchor(spec: "StudySpec", place: str) -> int:
    parameters = spec.search.anchors[int(place.rpartition(".")[2])].parameters
    lanes = parameters.get("num_envs_per_env_runner", largest(spec.domain("num_envs_per_env_runner")))
    return int(parameters.get(SCALE, max(spec.scales)) * lanes)


def _num_anchored(spec: "StudySpec") -> int:
    cells = len(spec.iterations_axis)
    return sum(cells * (1 if SCALE in anchor.parameters else len(spec.scales)) for anchor in spec.search.anchors)


def _grid(spec: "StudySpec") -> Broken:
    for name, domain in spec.tuned.items():
        if isinstance(domain, Range) and domain.step is None:
            got = (
                f"must be a list, or a range with a step, with sampler grid, got low={domain.low}, high={domain.high}."
            )
            yield f"parameters.{name}", got, "List the values."
    sizes = [_size(domain) for domain in spec.tuned.values()]
    total = math.prod([len(spec.scales), len(spec.iterations_axis), len(spec.search.seeds), *sizes])
    if total > MAX_TRIALS:
        yield "search.sampler", f"a grid has at most {MAX_TRIALS} trials, got {total}.", "List fewer values."
    if spec.search.num_trials is not None:
        yield "search.num_trials", "a grid counts itself.", "Remove it, or use another sampler."
    if spec.search.anchors:
        yield "search.anchors", "a grid has no anchors.", "Remove them, or use another sampler."


def _size(domain: Choices[int] | Choices[float] | Range[int] | Range[float]) -> int:
    """Return how many values a grid takes of a domain; 1 where it takes none."""
    if isinstance(domain, Choices):
        return len(domain.choices)
    return 1 if domain.step is None else round((domain.high - domain.low) / domain.step) + 1


def _rllib(spec: "StudySpec") -> Broken:
    for section, arguments in spec.rllib.items():
        for name in sorted(OVERRIDES_CLASHING_WITH_SCHEMA.get(section, set()) & set(arguments)):
            yield f"rllib.{section}.{name}", "the schema names this value already.", "Set it there."
        for name in arguments:
            if reason := OVERRIDES_REFUSED.get((section, name)):
                yield f"rllib.{section}.{name}", f"cannot be set: {reason}.", "Remove it."


def _throughput(spec: "StudySpec") -> Broken:
    yield from throughput_laws(spec, (_batches, _shares))


_COMMON = (_algorithm, _procgen, _environment, _engine, _exclusive, _rules, _throughput)
_LAWS = (*_COMMON, _batches, _shares, _budget, _objective, _search, holdup_laws, _rllib)
_THROUGHPUT_LAWS = (*_COMMON, _rllib)
