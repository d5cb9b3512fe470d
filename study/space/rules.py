"""Rules between the sections of a space: rows of three tables, and functions that yield each fault. Pure."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from study.errors import Fault
from study.space.domains import Domain, Range, as_yaml, fault, largest, smallest, values
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
    overlay,
)
from study.space.sections import (
    AXES,
    FIRST_EVALUATION_SEED,
    LEARNERS,
    MOST_SEEDS,
    EnvironmentSpec,
    has_levels,
    is_procgen,
)
from study.space.settings import batch_domain, cell_of
from study.space.spec import StudySpec
from study.text import listed

Rule = Callable[[StudySpec], Iterator[Fault]]
Faults = Iterator[Fault]
Row = tuple[str, Callable[[StudySpec], object], str, str]
"""Places, separated by blanks; when the rule applies; what must hold, where `{s}` is the space; what to do, where it is
not what the table says."""

MOST_CELLS = 1_000
"""More than anybody can time; the plan looks at each of them."""

# --- tables -----------------------------------------------------------------------------------------------------------

_MADE_BY_SCRIPT = " ".join(
    f"environment.{name}" for name in EnvironmentSpec.model_fields if name not in ("id", "floor", "reference", "target")
)


def _above(floor: float | None, value: float | None) -> bool:
    return floor is None or value is None or floor < value


def _counts_trials(s: StudySpec) -> bool:
    return s.kind == "search" and s.search.sampler != "grid" and s.holdup is None


LEFT_OUT: tuple[Row, ...] = (
    ("learner", lambda s: s.traits.asynchronous and s.learner == "fused", "is PPO's update, not {s.algorithm}'s", ""),
    ("execution", lambda s: s.not_emulated and s.execution == "emulated", "{s.not_emulated}", "Set execution: real."),
    ("parameters.normalize_rewards", lambda s: s.most_learners > 1, "needs one learner, which sees all rewards", ""),
    (" ".join(f"parameters.{name}" for name in RULES), lambda s: not s.traits.is_on_policy,
     "means nothing for {s.algorithm}, which learns from a replay buffer", ""),
    ("model.conv_filters", lambda s: s.model.conv_net, "conv_net takes its place, so that only one may be given", ""),
    ("search.num_trials search.baselines", lambda s: s.search.sampler == "grid",
     "a grid counts its trials itself, and has no baselines", ""),
    ("config_args", lambda s: s.config is None, "needs `config`", ""),
    ("config", lambda s: s.script is None, "the script must be read first", "Start the study by the command."),
    (f"model evaluation.kwargs {_MADE_BY_SCRIPT}", lambda s: s.script, "is the script's", ""),
    ("throughput", lambda s: s.kind != "throughput", "needs kind: throughput", "Add that, or remove it."),
    ("holdup evaluation budget.env_steps budget.iterations budget.time_s search.sampler search.num_trials search.seeds "
     "search.objective search.baselines", lambda s: s.kind == "throughput",
     "a throughput study counts its iterations itself, searches for nothing, and evaluates nothing", ""),
    ("holdup", lambda s: s.algorithm != "PPO", "a hold-up study needs PPO, not {s.algorithm}", ""),
    ("search.seeds search.num_trials search.baselines budget.iterations evaluation.stochastic runner",
     lambda s: s.holdup, "a hold-up study has its own",
     "Use holdup.seed, holdup.num_settings, holdup.published or budget.env_steps."),
    ("evaluation.seed search.sampler_seed",
     lambda s: s.holdup and not {s.evaluation.seed, s.search.sampler_seed} <= {FIRST_EVALUATION_SEED, 0, s.holdup.seed},
     "follows from holdup.seed in a hold-up study", ""),
    ("search.sampler", lambda s: s.holdup and s.search.sampler == "grid", "a hold-up study proposes settings", ""),
    ("resources.num_learners", lambda s: s.holdup, "rivals have batches that learners cannot share evenly", ""),
)  # fmt: skip
"""Keys that must have their defaults."""
NEEDED: tuple[Row, ...] = (
    ("environment.floor", lambda s: s.learns and (s.holdup or s.environment.reference is not None),
     "a score needs it", "Add it: what random actions get, by `python -m study evaluate SPACE --random`."),
    ("environment.reference",  # of a script it is left to the person
     lambda s: s.learns and (s.holdup or (s.environment.floor is not None and s.config is None)),
     "a score needs it", "Add it: what a good policy gets, as published, or the most that is possible."),
    ("environment.target", lambda s: s.learns and (s.holdup or s.search.objective == "env_steps_to_target"),
     "a hold-up study, or a search for the steps to it, needs it",
     "Add it: as the environment's page says, or nine tenths of the way from floor to reference."),
    ("throughput", lambda s: s.kind == "throughput", "must be given with kind: throughput", "Add throughput.grids."),
    *(("budget.env_steps", lambda s, name=name: smallest({**s.fixed, **s.tuned}.get(name, 1)) < 1,
       f"must be given with parameters.{name}, which falls over it", "") for name in (END_FRACTION, CLIP_END_FRACTION)),
    ("search.num_trials", _counts_trials, "must be given with this sampler", "Add for instance num_trials: 40."),
)  # fmt: skip
"""Keys that must be given."""
MUST: tuple[Row, ...] = (
    *((f"environment.{name}", lambda s, name=name: not _above(s.environment.floor, getattr(s.environment, name)),
       "must be above the floor, {s.environment.floor}", "Set floor to what a policy gets that learnt nothing.")
      for name in ("reference", "target")),
    ("environment.target", lambda s: s.environment.target != s.environment.reference
     and not _above(s.environment.target, s.environment.reference),
     "must not be above the reference, {s.environment.reference}", "Lower it, or raise environment.reference."),
    *((f"{section}.kwargs", lambda s, of=section: not has_levels(s.environment.id, getattr(s, of).kwargs),
       "a Procgen game has distribution_mode easy or hard, num_levels and start_level from 0 to 1,000,000,000", "")
      for section in ("environment", "evaluation")),
    ("environment.backend", lambda s: is_procgen(s.environment.id) and s.environment.backend != "envpool",
     "Procgen needs backend: envpool", ""),
    ("environment.backend", lambda s: s.runner == "stock" and s.environment.backend == "envpool",
     "`envpool` needs runner: batched", ""),
    ("algorithm",  # RLlib's learner has another optimizer; a fused one that is asked for, a trial tries
     lambda s: s.algorithm == "A2C" and s.learner != "fused" and s.fused_obstacle,
     "`A2C` needs the fused learner, and {s.fused_obstacle}", "Remove one of the two."),
    ("algorithm", lambda s: s.kind == "throughput" and s.traits.asynchronous,
     "a throughput study times the phases of an iteration, and those of {s.algorithm} overlap",
     "Use kind: search with budget.time_s, or algorithm: PPO."),
    ("algorithm", lambda s: s.script and s.algorithm != s.script.base_algorithm,
     "is the script's, {s.script.base_algorithm}", "Remove it, or change the script."),
    ("environment.id", lambda s: s.script and s.environment.id != s.script.environment,
     "is the script's, {s.script.environment}", "Remove it, or change the script."),
    ("parameters.num_envs_per_env_runner",
     lambda s: s.environment.process == "own" and largest(s.domain("num_envs_per_env_runner")) > 1,
     "must be 1, so that no environments share a process: {s.not_emulated}", ""),
    ("budget", lambda s: s.learns and not (s.budget.env_steps or s.budget.iterations or s.budget.time_s),
     "one of env_steps, iterations, time_s must be given", "Add budget.env_steps."),
    ("parameters.num_minibatches",
     lambda s: s.traits.is_on_policy and "num_minibatches" in s.parameters and s.most_learners > 1,
     "learners cannot share it evenly", "Give minibatch_size instead, or one learner."),
    ("holdup.published", lambda s: s.holdup and SCALE in s.holdup.published, f"has no {SCALE}: all scales run it", ""),
    ("holdup.small_scale", lambda s: s.holdup and s.holdup.small_scale != min(s.scales),
     "must be the smallest of parameters.num_env_runners, {s.scales}", ""),
    ("holdup.target_scale", lambda s: s.holdup and s.holdup.target_scale not in s.scales,
     "must be among parameters.num_env_runners, {s.scales}", "List it there."),
    ("holdup.target_scale", lambda s: s.holdup and s.holdup.target_scale <= s.holdup.small_scale,
     "must be above the small scale", ""),
    ("holdup.unseen_scales", lambda s: s.holdup and {*s.holdup.unseen_scales} & {*s.scales},
     "must be scales that no earlier stage runs, not {s.scales}", ""),
    ("holdup.num_settings", lambda s: s.holdup and s.holdup.num_settings < s.holdup.race.num_settings,
     "must be at least holdup.race.num_settings, {s.holdup.race.num_settings}", ""),
    ("holdup.race.blocks", lambda s: s.holdup and sum(s.holdup.race.blocks) > MOST_SEEDS,
     f"a race has at most {MOST_SEEDS} seeds in all", ""),
    ("parameters", lambda s: s.holdup and not s.tuned, "a hold-up study needs something to tune", "Give lr a range."),
    ("evaluation.num_evaluations", lambda s: s.holdup and s.evaluation.num_evaluations < 2,
     "must be two or more: a target is reached at two consecutive evaluations", ""),
)  # fmt: skip
"""Places where something else must stand."""


def tables(s: StudySpec) -> Faults:
    """Yield the places that break a row of the tables."""
    for table, usual in ((LEFT_OUT, "Remove it."), (NEEDED, "Add it."), (MUST, "Change the value.")):
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
                    yield fault(where, rule.format(s=s), as_yaml(value) if plain else "", fix or usual)


# --- what every study keeps -------------------------------------------------------------------------------------------

_MULTIPLIED = {
    END_FRACTION: ("lr",),
    CLIP_END_FRACTION: ("clip_param",),
    "vf_lr": ("lr",),
    "lr_scaling_exponent": ("lr", "minibatch_size"),
}
"""Parameter or rule -> those that mean nothing without one value of it."""


def names(s: StudySpec) -> Faults:
    """Yield the parameters that the algorithm has not, and rules beside the parameters that they replace."""
    places: dict[str, Iterable[str]] = {"parameters": s.parameters}
    places |= {f"search.baselines.{index}.parameters": each.parameters for index, each in enumerate(s.search.baselines)}
    places |= {"holdup.published": s.holdup.published} if s.holdup else {}
    places |= {f"throughput.grids.{name}": grid for name, grid in (s.throughput.axes() if s.throughput else {}).items()}
    for place, given in places.items():
        for rule in (rule for rule, parameter in REPLACED.items() if {rule, parameter} <= {*given}):
            must = f"takes the place of {REPLACED[rule]}, so that only one may be given"
            yield fault(f"{place}.{rule}", must, "both", "Remove one of the two.")
        for name in (name for name in given if name not in (*s.traits.names, LEARNERS)):
            fix = f"Remove it; {s.algorithm} has: {', '.join(sorted(s.traits.parameters))}."
            yield fault(f"{place}.{name}", f"{s.algorithm} has no such parameter", "", fix)


def of_script(s: StudySpec) -> Faults:
    """Yield the parameters that would have no effect on a script, and those of which it has no one value."""
    if (script := s.script) is None:
        return
    for name in (name for name in script.overridden if name in s.parameters):
        rule = "every module that learns has a value of its own in the script, which a study does not change"
        yield fault(f"parameters.{name}", rule, "", f"Remove it, or take {name} out of the script's modules.")
    needs = {f"parameters.{name}": needed for name, needed in _MULTIPLIED.items() if name in s.parameters}
    if s.holdup is not None:  # its rivals scale the two
        needs["holdup"] = ("lr", "minibatch_size", *script.overridden)
    for where, needed in needs.items():
        if missing := [name for name in dict.fromkeys(needed) if name not in s.parameter_names]:
            rule = f"needs one value of {listed(missing)}, which the script does not give"
            yield fault(where, rule, "", f"Add parameters.{missing[0]}.")


def batches(s: StudySpec) -> Faults:
    """Yield the sizes that cannot run as they are written; what a sampler chooses is rounded (`settings.rounded`)."""
    if not s.traits.is_on_policy:
        return
    key = "steps_per_env_runner" if "steps_per_env_runner" in s.rules else "train_batch_size"
    where, last, learners = f"parameters.{key}", max(s.scales), max(s.resources.num_learners, 1)
    lanes, batch = last * int(largest(s.domain("num_envs_per_env_runner"))), batch_domain(s, last)
    given = "minibatch_size" in s.parameter_names and "num_minibatches" not in s.rules
    minibatch = s.domain("minibatch_size") if given else 1
    if smallest(minibatch) > largest(batch):
        got, fix = f"{smallest(minibatch)} > {largest(batch)}", f"Lower minibatch_size or raise {key}."
        yield fault("parameters.minibatch_size", "`minibatch_size <= train_batch_size` must hold", got, fix)
    # A sampled batch is raised to the number of lanes.
    steps = largest(batch) if isinstance(batch, Range) else smallest(batch)
    if lanes > steps and not s.traits.asynchronous:
        rule = "`num_env_runners * num_envs_per_env_runner <= train_batch_size` must hold at every scale"
        fix = f"Raise it to {lanes if key == 'train_batch_size' else lanes // last} or more, or use fewer lanes."
        yield fault(where, rule, f"{lanes} lanes and {steps} steps", fix)
        return
    units = {learners}
    if s.traits.asynchronous and s.script is None:  # runners deliver whole fragments
        many, fragments = values(s.domain("num_envs_per_env_runner")), values(s.domain(FRAGMENT))
        pairs = ((envs, steps) for envs in many for steps in fragments)  # a range may have a billion: not a product
        units = {int(envs * steps) * learners for envs, steps in itertools.islice(pairs, MOST_CELLS)}
    sizes = {(where, size): units for scale in s.scales for size in _written(batch_domain(s, scale))}
    sizes |= {("parameters.minibatch_size", size): {learners} for size in _written(minibatch) if given}
    for (place, size), multiples in sizes.items():
        if wrong := [unit for unit in sorted(multiples) if size % unit]:
            rule = f"must be a multiple of {wrong[0]}, so that every learner and lane has an equal share"
            yield fault(place, rule, size, f"Use multiples of {wrong[0]}.")
            return


def _written(domain: Domain) -> Sequence[Value]:
    """Return the values that a person wrote; of a range a sampler chooses."""
    return () if isinstance(domain, Range) else values(domain)


# --- studies that search ----------------------------------------------------------------------------------------------


def trials(s: StudySpec) -> Faults:
    """Yield what is wrong with the number of trials, given or that of a grid."""
    runs = sum(1 if SCALE in baseline.parameters else len(s.scales) for baseline in s.search.baselines)
    least, number = max(len(s.scales), runs), s.search.num_trials
    if _counts_trials(s) and number is not None and number < least:
        rule = f"must give a trial to every scale and baseline: {least} in all"
        yield fault("search.num_trials", rule, number, f"Raise it to {least}, or list fewer scales or baselines.")
    if s.search.sampler != "grid":
        return
    for name in (name for name, domain in s.tuned.items() if isinstance(domain, Range)):
        yield fault(f"parameters.{name}", "must be a list with sampler grid", "a range", "List the values.")
    sizes = [len(_written(domain)) for domain in s.tuned.values() if not isinstance(domain, Range)]
    if (total := math.prod([len(s.scales), len(s.search.seeds), *sizes])) > MAX_TRIALS:
        yield fault("search.sampler", f"a grid has at most {MAX_TRIALS} trials", total, "List fewer values.")


def baselines(s: StudySpec) -> Faults:
    """Yield what is wrong with names, scales and batches of the settings that a person names."""
    titles = [baseline.name for baseline in s.search.baselines]
    if len(set(titles)) != len(titles):
        yield fault("search.baselines", "names must be distinct", titles, "Rename one.")
    for index, given in enumerate(baseline.parameters for baseline in s.search.baselines):
        place = f"search.baselines.{index}.parameters"
        if given.get(SCALE, s.scales[0]) not in s.scales:
            yield fault(f"{place}.{SCALE}", f"must be among {s.scales}", given[SCALE], "List it in parameters.")
        for each in batches(s.having(parameters=overlay(s.parameters, given))):
            if (name := each.where.rpartition(".")[2]) in given:
                yield replace(each, where=f"{place}.{name}")


# --- studies of times -------------------------------------------------------------------------------------------------


def cells(s: StudySpec) -> Faults:
    """Yield what is wrong with base cell and grids, and the cells that do not run as they are written."""
    if s.throughput is None or s.traits.asynchronous:
        return
    varied = [*s.tuned, *([SCALE] if len(s.scales) > 1 else [])]
    for name in varied:
        fix = f"Give one value; throughput.grids lists values of: {', '.join(AXES)}."
        yield fault(f"parameters.{name}", "the base cell has one value", "several", fix)
    grids = s.throughput.axes()
    if (total := sum(math.prod(map(len, axes.values())) for axes in grids.values())) > MOST_CELLS:
        yield fault("throughput.grids", f"at most {MOST_CELLS} cells in all", total, "List fewer values.")
    of_base = [] if varied else [*batches(cell_of(s, {})[1])]
    yield from of_base
    for grid, axes in () if varied or of_base or total > MOST_CELLS else grids.items():
        for numbers in itertools.product(*axes.values()):
            name, cell = cell_of(s, dict(zip(axes, numbers, strict=True)))
            for each in batches(cell):
                rule = f"{each.where.rpartition('.')[2]} in cell '{name}': {each.rule}"
                yield replace(each, where=f"throughput.grids.{grid}", rule=rule)


RULES_OF: Mapping[str, tuple[Rule, ...]] = {
    "search": (tables, names, of_script, batches, trials, baselines),
    "throughput": (tables, names, of_script, cells),
}
"""Kind of study -> its rules."""
