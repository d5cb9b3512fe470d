"""Rules between the sections of a space. Pure.

Most are a row of one of three tables, a condition and a message. A rule that needs more is a function that yields a
`Fault` for each place that breaks it. What concerns one section alone is a validator of it, in `sections`. `parsing`
runs them.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from pydantic import ValidationError

from study.errors import Fault
from study.space.domains import Choices, Domain, Range, as_yaml, contains, fault, largest, smallest, values
from study.space.parameters import (
    CLIP_END_FRACTION,
    END_FRACTION,
    FRAGMENT,
    MAX_TRIALS,
    NAMES,
    REPLACED,
    RULES,
    SCALE,
    Value,
)
from study.space.sections import AXES, FIRST_EVALUATION_SEED, MOST_SEEDS, EnvironmentSpec, has_levels, is_procgen
from study.space.settings import (
    BASE_CELL,
    batch_domain,
    batch_unit,
    beyond_space,
    cells_of,
    minibatch_bounds,
    overlay,
    spec_of_cell,
)
from study.space.spec import StudySpec
from study.text import listed

Rule = Callable[[StudySpec], Iterator[Fault]]
Faults = Iterator[Fault]
Row = tuple[str, Callable[[StudySpec], object], str, str]
"""Places, separated by blanks; when the rule applies; what must hold, where `{s}` is the space; what to do."""

MAX_UNITS = 1_000
"""Combinations of environments and lengths of fragments that a batch is compared with."""
MAX_CELLS = 1_000
"""More than anybody can time; the plan looks at each of them."""

# --- tables -----------------------------------------------------------------------------------------------------------

_REMOVE = "Remove it."
_MADE_BY_SCRIPT = " ".join(
    f"environment.{name}" for name in EnvironmentSpec.model_fields if name not in ("id", "floor", "reference", "target")
)
_TIMED = "a throughput study counts its iterations itself, searches for nothing, and evaluates nothing"


def _above(floor: float | None, value: float | None) -> bool:
    return floor is None or value is None or floor < value


LEFT_OUT: tuple[Row, ...] = (
    ("holdup", lambda s: s.algorithm != "PPO", "a hold-up study needs PPO, not {s.algorithm}", _REMOVE),
    ("learner", lambda s: s.traits.asynchronous and s.learner == "fused",
     "has the update of PPO, which {s.algorithm} has not", "Remove it, or set learner: rllib."),
    ("execution", lambda s: s.not_emulated and s.execution == "emulated", "{s.not_emulated}", "Set execution: real."),
    ("parameters.normalize_rewards", lambda s: s.most_learners > 1,
     "needs one learner, which sees all rewards", "Remove it, or use one learner."),
    ("config_args", lambda s: s.config is None, "needs `config`", "Add config:, or remove it."),
    ("config", lambda s: s.script is None, "the script must be read first",
     "Start the study by the command, or by study.load_space."),
    (f"model evaluation.kwargs {_MADE_BY_SCRIPT}", lambda s: s.script, "is the script's",
     "Remove it, and say it in the script."),
    (" ".join(f"parameters.{name}" for name in RULES), lambda s: not s.traits.is_on_policy,
     "means nothing for {s.algorithm}, which learns from a replay buffer", _REMOVE),
    ("throughput", lambda s: s.kind != "throughput", "needs kind: throughput", "Add kind: throughput, or remove it."),
    ("holdup evaluation budget.env_steps budget.iterations budget.time_s search.sampler search.num_trials search.seeds "
     "search.objective search.baselines", lambda s: s.kind == "throughput", _TIMED, _REMOVE),
    ("search.num_trials search.baselines", lambda s: s.search.sampler == "grid",
     "a grid counts its trials itself, and has no baselines", "Remove it, or use another sampler."),
    ("search.seeds search.num_trials search.baselines budget.iterations evaluation.stochastic runner",
     lambda s: s.holdup, "a hold-up study has its own",
     "Use holdup.seed, holdup.num_settings, holdup.published or budget.env_steps."),
    ("evaluation.seed search.sampler_seed",
     lambda s: s.holdup and not {s.evaluation.seed, s.search.sampler_seed} <= {FIRST_EVALUATION_SEED, 0, s.holdup.seed},
     "follows from holdup.seed in a hold-up study", "Remove it, or give holdup.seed."),
    ("search.sampler", lambda s: s.holdup and s.search.sampler == "grid", "a hold-up study proposes settings",
     "Use tpe or random."),
    ("model.conv_filters", lambda s: s.model.conv_net, "conv_net takes its place, so that only one may be given",
     "Remove one of the two."),
    ("resources.num_learners", lambda s: s.holdup and s.resources.num_learners > 1,
     "baselines have batches that learners cannot share evenly", "Use one learner, or none of its own."),
)  # fmt: skip
"""Keys that must have their defaults."""
NEEDED: tuple[Row, ...] = (
    ("environment.floor", lambda s: s.learns and (s.holdup or s.environment.reference is not None),
     "a score needs it", "Add it: what random actions get, by `python -m study evaluate SPACE --random`."),
    ("environment.reference",  # of a script it is left to the person
     lambda s: s.learns and (s.holdup or (s.environment.floor is not None and s.config is None)),
     "a score needs it", "Add it: what a good policy gets, as published, or the most that is possible."),
    ("environment.target", lambda s: s.learns and (s.holdup or s.search.objective.endswith("_to_target")),
     "a hold-up study, or a search for a price of reaching it, needs it",
     "Add it: as the environment's page says, or nine tenths of the way from floor to reference."),
    ("throughput", lambda s: s.kind == "throughput", "must be given with kind: throughput", "Add throughput.grids."),
    *(("budget.env_steps", lambda s, name=name: smallest({**s.fixed, **s.tuned}.get(name, 1)) < 1,
       f"must be given with parameters.{name}, as {what} falls over it", "Add it.")
      for name, what in ((END_FRACTION, "the learning rate"), (CLIP_END_FRACTION, "the clip range"))),
    ("search.num_trials", lambda s: s.kind == "search" and _counts_trials(s),
     "must be given with sampler {s.search.sampler}", "Add for instance num_trials: 40."),
)  # fmt: skip
"""Keys that must be given."""
MUST: tuple[Row, ...] = (
    ("environment.reference", lambda s: not _above(s.environment.floor, s.environment.reference),
     "must be above the floor, {s.environment.floor}",
     "Set floor to what a policy gets that learnt nothing, and reference to what a good one gets."),
    ("environment.target", lambda s: not _above(s.environment.floor, s.environment.target),
     "must be above the floor, {s.environment.floor}", "Set target to a return worth reaching."),
    *((f"{section}.kwargs", lambda s, of=section: not has_levels(s.environment.id, getattr(s, of).kwargs),
       "a Procgen game has distribution_mode easy or hard, num_levels and start_level from 0 to 1,000,000,000",
       "Change the value.") for section in ("environment", "evaluation")),
    ("environment.backend", lambda s: is_procgen(s.environment.id) and s.environment.backend != "envpool",
     "Procgen needs backend: envpool", _REMOVE),
    ("environment.backend", lambda s: s.runner == "stock" and s.environment.backend == "envpool",
     "`envpool` needs runner: batched", "Set runner: batched."),
    ("algorithm", lambda s: s.algorithm == "A2C" and s.fused_left_out,  # RLlib's learner has another optimizer
     "`A2C` needs the fused learner, and {s.fused_left_out}", "Remove one of the two."),
    ("algorithm", lambda s: s.kind == "throughput" and s.traits.asynchronous,
     "a throughput study times the phases of an iteration, and those of {s.algorithm} overlap",
     "Use kind: search with budget.time_s, or algorithm: PPO."),
    ("algorithm", lambda s: s.script and s.algorithm != s.script.base_algorithm,
     "is the script's, {s.script.base_algorithm}", "Remove it, or change the script."),
    ("environment.id", lambda s: s.script and s.environment.id != s.script.environment,
     "is the script's, {s.script.environment}", "Remove it, or change the script."),
    ("parameters.num_envs_per_env_runner",
     lambda s: s.environment.process == "own" and largest(s.domain("num_envs_per_env_runner")) > 1,
     "must be 1, so that no environments share a process: {s.not_emulated}", "Set it to 1."),
    ("budget", lambda s: s.learns and not (s.budget.env_steps or s.budget.iterations or s.budget.time_s),
     "one of env_steps, iterations, time_s must be given", "Add budget.env_steps."),
    ("search.objective", lambda s: s.execution == "emulated" and s.search.objective == "time_to_target_s",
     "in emulation only environment steps are a fact", "Use env_steps_to_target, or execution: real."),
    ("parameters.num_minibatches",
     lambda s: s.traits.is_on_policy and "num_minibatches" in s.parameters and s.most_learners > 1,
     "learners cannot share it evenly", "Give minibatch_size instead, or one learner."),
    ("holdup.small_scale", lambda s: s.holdup and s.holdup.small_scale != min(s.scales),
     "must be the smallest of parameters.num_env_runners", "Name that, or list no smaller scale."),
    ("holdup.small_scale", lambda s: s.holdup and not s.holdup.small_scale < s.holdup.target_scale,
     "`small_scale < target_scale` must hold", "Name the scale at which training is known to work."),
    ("holdup.target_scale", lambda s: s.holdup and s.holdup.target_scale not in s.scales,
     "must be among parameters.num_env_runners, {s.scales}", "List it there."),
    ("holdup.unseen_scales", lambda s: s.holdup and {*s.holdup.unseen_scales} & {*s.scales},
     "must be scales that no earlier stage runs", "Remove them here or from parameters.num_env_runners."),
    ("holdup.num_settings", lambda s: s.holdup and s.holdup.num_settings < s.holdup.race.num_settings,
     "the race needs {s.holdup.race.num_settings} settings to choose from",
     "Raise it, or lower holdup.race.num_settings."),
    ("holdup.race.blocks", lambda s: s.holdup and sum(s.holdup.race.blocks) > MOST_SEEDS,
     f"a race has at most {MOST_SEEDS} seeds in all", "Lower them."),
    ("parameters", lambda s: s.holdup and not s.tuned, "a hold-up study needs something to tune", "Give lr a range."),
    ("evaluation.num_evaluations", lambda s: s.holdup and s.evaluation.num_evaluations < 2,
     "a target is reached when two consecutive evaluations are at or above it, so that two are needed",
     "Raise it; 10 gives a tenth of the budget as resolution."),
)  # fmt: skip
"""Places where something else must stand."""


def tables(s: StudySpec) -> Faults:
    """Yield the places that break a row of the tables."""
    for table in (LEFT_OUT, NEEDED, MUST):
        for places, when, rule, fix in table:
            for where in places.split() if when(s) else ():
                *above, name = where.split(".")
                if above == ["parameters"]:
                    value, default = s.domain(name), NAMES[name].default
                else:
                    section = functools.reduce(getattr, above, s)
                    value, default = getattr(section, name), type(section).model_fields[name].get_default()
                if table is MUST or (value != default if table is LEFT_OUT else value is None):
                    plain = isinstance(value, (str, int, float, list, tuple))
                    yield fault(where, rule.format(s=s), as_yaml(value) if plain else "", fix)


# --- what every study keeps -------------------------------------------------------------------------------------------


def of_parameters(s: StudySpec) -> Faults:
    """Yield the parameters that the algorithm or script has not, and rules beside the parameters that they replace."""
    given: dict[str, Iterable[str]] = {"parameters": s.parameters}
    if s.holdup is not None:
        given["holdup.published"] = s.holdup.published
    given |= {f"throughput.grids.{name}": axes for name, axes in (s.throughput.axes() if s.throughput else {}).items()}
    for place, names in given.items():
        for rule in (rule for rule, parameter in REPLACED.items() if {rule, parameter} <= {*names}):
            must = f"takes the place of {REPLACED[rule]}, so that only one may be given"
            yield fault(f"{place}.{rule}", must, "both", "Remove one of the two.")
    for name in (name for name in NAMES if name in s.parameters and name not in s.traits.names):
        fix = f"Remove it; {s.algorithm} has: {', '.join(sorted(s.traits.parameters))}."
        yield fault(f"parameters.{name}", f"{s.algorithm} has no such parameter", "", fix)
    if (script := s.script) is None:
        return
    for name in (name for name in script.overridden if name in s.parameters):
        rule = "every module that learns has a value of its own in the script, which a study does not change"
        fix = f"Remove it, or take {name} out of the script's algorithm_config_overrides_per_module."
        yield fault(f"parameters.{name}", rule, "", fix)
    needs = {
        f"parameters.{name}": needed
        for name, needed in {
            END_FRACTION: ("lr",),
            CLIP_END_FRACTION: ("clip_param",),
            "vf_lr": ("lr",),
            "lr_scaling_exponent": ("lr", "minibatch_size"),
        }.items()  # what each multiplies
        if name in s.parameters
    }
    if s.holdup is not None:  # its baselines scale the two
        needs["holdup"] = ("lr", "minibatch_size", *script.overridden)
    for where, needed in needs.items():
        if missing := [name for name in dict.fromkeys(needed) if name not in s.parameter_names]:
            follows = sorted({*missing} & {*script.schedules})
            got = f"the script's schedule of {listed(follows)}" if follows else "none in the script"
            yield fault(where, f"needs one value of {listed(missing)}", got, f"Add parameters.{missing[0]}.")


# --- batches ----------------------------------------------------------------------------------------------------------


def batches(s: StudySpec) -> Faults:
    """Yield the sizes that cannot run as they are written, and the ranges that hold none that can (`settings`)."""
    if not s.traits.is_on_policy:
        return
    key = "steps_per_env_runner" if "steps_per_env_runner" in s.rules else "train_batch_size"
    where, last, learners = f"parameters.{key}", max(s.scales), max(s.resources.num_learners, 1)
    batch, lanes = batch_domain(s, last), last * int(largest(s.domain("num_envs_per_env_runner")))
    minibatches = s.domain("minibatch_size") if "minibatch_size" in s.parameter_names else None
    if minibatches is not None and (least := minibatch_bounds(s, last)[0]) > largest(batch):
        rule, fix = "`minibatch_size <= train_batch_size` must hold", f"Lower minibatch_size or raise {key}."
        yield fault("parameters.minibatch_size", rule, f"{least} > {largest(batch)}", fix)
    # A sampled batch is raised to the number of lanes; one that a person wrote runs as it is.
    steps = largest(batch) if isinstance(batch, Range) else smallest(batch)
    if lanes > steps and not s.traits.asynchronous:
        rule = "`num_env_runners * num_envs_per_env_runner <= train_batch_size` must hold at every scale"
        fix = f"Raise it to {lanes if key == 'train_batch_size' else lanes // last} or more, or use fewer lanes."
        yield fault(where, rule, f"{lanes} lanes and {steps} steps", fix)
        return
    for scale in s.scales:
        yield from _multiples(where, batch_domain(s, scale), _units(s, scale, sampled=isinstance(batch, Range)))
    if minibatches is not None and "num_minibatches" not in s.rules:
        yield from _multiples("parameters.minibatch_size", minibatches, [learners])


def _units(s: StudySpec, scale: int, *, sampled: bool) -> Iterator[int]:
    """Yield what a batch must be a multiple of."""
    yield max(s.resources.num_learners, 1)
    if not sampled and (not s.traits.asynchronous or s.script is not None):
        return
    fragments = s.domain(FRAGMENT) if s.traits.asynchronous else 1
    pairs = itertools.product(values(s.domain("num_envs_per_env_runner"))[:MAX_UNITS], values(fragments)[:MAX_UNITS])
    for num_envs, fragment in itertools.islice(pairs, MAX_UNITS):
        unit = batch_unit(s, scale, int(num_envs), int(fragment))
        # Steps of each runner are whole numbers too.
        yield math.lcm(unit, scale) if sampled and "steps_per_env_runner" in s.rules else unit


def _multiples(where: str, domain: Domain, units: Iterable[int]) -> Faults:
    """Yield a fault for the first unit that a size is no multiple of, or that a range, which is sampled, holds none."""
    for unit in units:
        if isinstance(domain, Range):
            got = f"{domain.low} to {domain.high}" if domain.high // unit * unit < domain.low else ""
        else:
            got = next((str(value) for value in values(domain) if value % unit), "")
        if got:
            rule = f"must be, or hold, a multiple of {unit}, so that every learner and lane has an equal share"
            yield fault(where, rule, got, f"Use multiples of {unit}, or a wider range.")
            return


# --- studies that search ----------------------------------------------------------------------------------------------


def _counts_trials(s: StudySpec) -> bool:
    return s.search.sampler != "grid" and s.holdup is None


def trials(s: StudySpec) -> Faults:
    """Yield what is wrong with the number of trials, given or that of a grid."""
    runs = sum(1 if SCALE in baseline.parameters else len(s.scales) for baseline in s.search.baselines)
    least, number = max(len(s.scales), runs), s.search.num_trials
    if _counts_trials(s) and number is not None and number < least:
        rule = f"must give a trial to every scale and baseline: {least} in all"
        yield fault("search.num_trials", rule, number, f"Raise it to {least}, or list fewer scales or baselines.")
    if s.search.sampler != "grid":
        return
    for name, domain in s.tuned.items():
        if isinstance(domain, Range):
            got = f"{domain.low} to {domain.high}"
            yield fault(f"parameters.{name}", "must be a list with sampler grid", got, "List the values.")
    sizes = [len(domain.choices) for domain in s.tuned.values() if isinstance(domain, Choices)]
    if (total := math.prod([len(s.scales), len(s.search.seeds), *sizes])) > MAX_TRIALS:
        yield fault("search.sampler", f"a grid has at most {MAX_TRIALS} trials", total, "List fewer values.")


def baselines(s: StudySpec) -> Faults:
    """Yield what is wrong with the settings that a person names: their names, values and batches."""
    names = [baseline.name for baseline in s.search.baselines]
    if len(set(names)) != len(names):
        yield fault("search.baselines", "names must be distinct", names, "Rename one.")
    for index, baseline in enumerate(s.search.baselines):
        place, given = f"search.baselines.{index}.parameters", baseline.parameters
        free = beyond_space(s, given) is not None
        wrong = [*_wrong_values(s, place, given, free=free)]
        yield from wrong
        if not wrong:  # a space with these values must have batches that run
            for each in batches(s.model_copy(update={"parameters": overlay(s.parameters, given)})):
                if (name := each.where.rpartition(".")[2]) in given:
                    yield replace(each, where=f"{place}.{name}")
    if s.holdup is not None:
        yield from _wrong_values(s, "holdup.published", s.holdup.published, free=True)


def _wrong_values(s: StudySpec, place: str, given: Mapping[str, Value], *, free: bool) -> Faults:
    """Yield the values of a named setting that a parameter may not have; unless it is `free`, those outside the space.

    A baseline that gives every tuned parameter a value is free: the sampler has no part in it.
    """
    replaced = [REPLACED.get(rule) for rule in s.rules]
    for name, value in given.items():
        where = f"{place}.{name}"
        if name not in s.traits.names or (name == SCALE and place == "holdup.published"):
            yield fault(where, "no such parameter here", "", _REMOVE)
        elif free and name != SCALE:
            continue
        elif name in replaced or name not in {*s.parameter_names, *s.rules}:
            fix = f"Use one of: {', '.join([SCALE, *s.tuned])}; or give each of them a value."
            yield fault(where, "is not varied here", "", fix)
        elif not contains(s.domain(name), value):
            fix = f"Widen parameters.{name}, change the baseline, or give a value to each of {', '.join(s.tuned)}."
            yield fault(where, f"must lie in what parameters.{name} allows", value, fix)


# --- studies that a person starts now ---------------------------------------------------------------------------------


def worth_starting(s: StudySpec) -> Faults:
    """Yield a target above the reference, and batches that use up the budget of a trial: it would learn nothing.

    For a study that a person starts now: one on record is read whatever its budget.
    """
    if not _above(s.environment.target, s.environment.reference) and s.environment.target != s.environment.reference:
        rule, fix = "must not be above the reference, {:g}", "Lower it, or raise environment.reference."
        yield fault("environment.target", rule.format(s.environment.reference), s.environment.target, fix)
    if (steps := s.budget.env_steps) is None or not s.traits.is_on_policy or not s.learns:
        return
    scales = [*s.scales, *(s.holdup.unseen_scales if s.holdup else ())]
    sizes = {f"{n} runners": int(largest(batch_domain(s, n))) for n in sorted(scales, reverse=True)}
    if s.holdup is not None:
        target, published = s.holdup.target_scale, s.holdup.published
        grown = published.get("steps_per_env_runner", 0) * target
        sizes["naive_growth"] = s.holdup.naive_steps_per_env_runner * target
        sizes["published"] = int(published.get("train_batch_size", grown))
    name, batch = max(sizes.items(), key=lambda item: item[1])
    if batch > steps:
        rule = "the largest train batch must fit into it, or a trial ends after one batch"
        got = f"{steps:,} steps and a batch of {batch:,} of {name}"
        yield fault("budget.env_steps", rule, got, f"Raise it to {batch} or more, or lower the batch.")


# --- studies of times -------------------------------------------------------------------------------------------------


def cells(s: StudySpec) -> Faults:
    """Yield what is wrong with base cell and grids, and the cells that do not run as they are written.

    A rounded or clipped cell would be another workload.
    """
    if s.throughput is None or s.traits.asynchronous:
        return
    varied = [*s.tuned, *([SCALE] if len(s.scales) > 1 else [])]
    for name in varied:
        more = f" here and list others in throughput.grids.*.{name}" if name in AXES else ": no time depends on it"
        yield fault(f"parameters.{name}", "the base cell has one value", "several", f"Give one value{more}.")
    grids = s.throughput.axes()
    empty = [name for name, axes in grids.items() if not axes]
    for name in empty:
        rule, got = "must vary something", f"no axis of {', '.join(AXES)}"
        yield fault(f"throughput.grids.{name}", rule, got, "Add one, or remove the grid.")
    sizes = {name: math.prod(map(len, axes.values())) for name, axes in grids.items()}
    if (total := sum(sizes.values())) > MAX_CELLS:
        where = f"throughput.grids.{max(sizes, key=lambda name: sizes[name])}"
        yield fault(where, f"at most {MAX_CELLS} cells in all", total, "List fewer values.")
    for cell in () if varied or empty or total > MAX_CELLS else cells_of(s):
        own = cell.name == BASE_CELL
        where, name = "throughput.grids" if own else f"throughput.grids.{cell.grids[0]}", f"in cell '{cell.name}'"
        try:
            alone = spec_of_cell(s, cell)
        except ValidationError as error:  # a rule can lead to a value that a parameter may not have
            key, given = str(error.errors()[0]["loc"][0]), {**cell.setting, SCALE: cell.num_env_runners}
            rule = f"{key} {name}: must be a value that the parameter may have"
            yield fault(where, rule, given[key], "Change the rule, or list other values.")
            return
        for each in batches(alone):
            rule = each.rule if own else f"{each.where.rpartition('.')[2]} {name}: {each.rule}"
            yield replace(each, where=each.where if own else where, rule=rule)


COMMON: tuple[Rule, ...] = (tables, of_parameters)
"""For every kind of study."""
OF_KIND: dict[str, tuple[Rule, ...]] = {
    "search": (*COMMON, batches, trials, baselines),
    "throughput": (*COMMON, cells),
}
"""Kind of study -> its rules."""
ASKED: tuple[Rule, ...] = (worth_starting,)
"""For a study that a person starts now."""
