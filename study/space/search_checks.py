"""Rules of a study that searches: its budget, its sampler, its baselines. Pure."""

import math
from collections.abc import Iterator, Mapping

from study.errors import Fault
from study.space.checks import made_of_fragments, shared_by_learners
from study.space.domains import Choices, Range, contains, largest, smallest
from study.space.parameters import END_FRACTION, PARAMETERS, REPLACED, RULES, SCALE, Value
from study.space.plain import MAX_TRIALS, shown
from study.space.settings import larger_batches
from study.space.spec import StudySpec


def search(spec: StudySpec) -> Iterator[Fault]:
    """Check what a study must say that trains policies; a hold-up study is one of them."""
    yield from _budget(spec)
    if spec.execution == "emulated" and spec.search.objective == "time_to_target_s":
        rule, got = "in emulation only environment steps are a fact", "time_to_target_s"
        yield Fault(where="search.objective", rule=rule, got=got, fix="Use env_steps_to_target, or execution: real.")
    seeds, names = spec.search.seeds, [baseline.name for baseline in spec.search.baselines]
    if len(set(seeds)) != len(seeds):
        yield Fault(where="search.seeds", rule="must be distinct", got=str(seeds), fix="Name each seed once.")
    if len(set(names)) != len(names):
        yield Fault(where="search.baselines", rule="names must be distinct", got=str(names), fix="Rename one.")
    for index, baseline in enumerate(spec.search.baselines):
        yield from _baseline(spec, f"search.baselines.{index}.parameters", baseline.parameters)
    if spec.search.sampler == "grid":
        yield from _grid(spec)
    elif spec.holdup is None:
        yield from _num_trials(spec)


def larger_batch(spec: StudySpec) -> Iterator[Fault]:
    """Check that a trial's first batch does not use up its budget: it would learn from random actions alone."""
    found = larger_batches(spec)
    if found and not spec.budget.allow_larger_batch:
        scale, batch = max(found.items())
        yield Fault(
            where="budget.env_steps",
            rule="the largest train batch must fit into it, or a trial ends after one batch",
            got=f"{spec.budget.env_steps:,} steps and a batch of {batch:,} at {scale} runners",
            fix=f"Raise it to {batch} or more, lower the batch, or set allow_larger_batch: true.",
        )


def foreign_values(spec: StudySpec) -> Iterator[Fault]:
    """Check that no baseline has a parameter of another algorithm: each of its trials would fail."""
    given = {
        f"search.baselines.{index}.parameters": each.parameters for index, each in enumerate(spec.search.baselines)
    }
    if spec.holdup is not None:
        given["holdup.published"] = spec.holdup.published
    own = {*spec.traits.parameters, *spec.parameter_names, *RULES}
    for place, name in ((place, name) for place, values in given.items() for name in values if name not in own):
        yield Fault(where=f"{place}.{name}", rule=f"{spec.algorithm} has no such parameter", fix="Remove it.")


def baseline_fragments(spec: StudySpec) -> Iterator[Fault]:
    """Check that the batch of a baseline holds whole fragments, as that of a space must."""
    for index, each in enumerate(spec.search.baselines):
        if (batch := each.parameters.get("train_batch_size")) is not None:
            where = f"search.baselines.{index}.parameters.train_batch_size"
            yield from made_of_fragments(spec, where, batch, max(spec.scales), each.parameters)


def _budget(spec: StudySpec) -> Iterator[Fault]:
    budget = spec.budget
    if budget.env_steps is None and budget.iterations is None and budget.time_s is None:
        rule, fix = "one of env_steps, iterations, time_s must be given", "Add budget.env_steps."
        yield Fault(where="budget", rule=rule, got="none", fix=fix)
    iterations = [value for value in spec.iterations_axis if value is not None]
    if isinstance(budget.iterations, list) and not iterations:
        yield Fault(where="budget.iterations", rule="the list must not be empty", fix="Add a number of iterations.")
    if any(value < 1 for value in iterations) or len(set(iterations)) != len(iterations):
        where, rule, got = "budget.iterations", "must be distinct and at least 1", str(iterations)
        yield Fault(where=where, rule=rule, got=got, fix="Change the values.")
    fraction = {**spec.fixed, **spec.tuned}.get(END_FRACTION, 1.0)
    if smallest(fraction) < 1 and budget.env_steps is None:
        rule, fix = "a learning rate falls over budget.env_steps", "Add budget.env_steps, or remove it."
        yield Fault(where=f"parameters.{END_FRACTION}", rule=rule, got="none", fix=fix)


def _baseline(spec: StudySpec, place: str, given: Mapping[str, Value]) -> Iterator[Fault]:
    found = [fault for name, value in given.items() for fault in _baseline_value(spec, f"{place}.{name}", name, value)]
    if found:
        yield from found
        return  # what follows divides by the values
    for name in given.keys() & {"train_batch_size", "minibatch_size"}:
        yield from shared_by_learners(spec, f"{place}.{name}", given[name])
    if "train_batch_size" not in given or not spec.is_on_policy:
        return
    where, batch = f"{place}.train_batch_size", given["train_batch_size"]
    scales = (int(given[SCALE]),) if SCALE in given else spec.scales
    envs = given.get("num_envs_per_env_runner", spec.domain("num_envs_per_env_runner"))
    lanes = max(scales) * int(largest(envs))
    if batch < lanes and not spec.traits.asynchronous:
        rule = f"must be at least the {lanes} lanes of the largest scale that it is run at"
        fix = "Raise it, or name a smaller num_env_runners in the baseline."
        yield Fault(where=where, rule=rule, got=str(batch), fix=fix)


def _baseline_value(spec: StudySpec, where: str, name: str, value: Value) -> Iterator[Fault]:
    known = {**PARAMETERS, **RULES}
    fix = f"Use one of: {', '.join([SCALE, *spec.tuned])}."
    if name not in known:
        yield Fault(where=where, rule="unknown parameter", fix=fix)
        return
    domain = spec.rule(name) if name in RULES else spec.domain(name)
    replaced = next((rule for rule, parameter in REPLACED.items() if parameter == name and spec.rule(rule)), None)
    if domain is None or replaced is not None:
        rule = f"is not varied here{f': {replaced} is' if replaced else ''}"
        yield Fault(where=where, rule=rule, fix=fix)
    elif not contains(domain, value):
        rule, fix = f"must lie in what parameters.{name} allows", f"Widen parameters.{name} or change the baseline."
        yield Fault(where=where, rule=rule, got=str(value), fix=fix)
    elif known[name].kind is int and not isinstance(value, int):
        rule, fix = "must be a whole number", "Write a whole number."
        yield Fault(where=where, rule=rule, got=str(value), fix=fix)


def _num_trials(spec: StudySpec) -> Iterator[Fault]:
    section, where, num_iterations = spec.search, "search.num_trials", len(spec.iterations_axis)
    if section.num_trials is None:
        rule, fix = f"must be given with sampler {section.sampler}", "Add for instance num_trials: 40."
        yield Fault(where=where, rule=rule, fix=fix)
        return
    got, least = str(section.num_trials), len(spec.scales) * num_iterations
    runs_of = (1 if SCALE in baseline.parameters else len(spec.scales) for baseline in section.baselines)
    if (needed := num_iterations * sum(runs_of)) > section.num_trials:
        rule = f"must cover the baselines ({needed} trials, one for each scale where they name none)"
        yield Fault(where=where, rule=rule, got=got, fix=f"Raise it to {needed} or drop baselines.")
    elif section.num_trials < least:
        times = f" with each of {num_iterations} numbers of iterations" if num_iterations > 1 else ""
        rule = f"must give every scale a trial ({least}: {shown(list(spec.scales))} runners{times})"
        yield Fault(where=where, rule=rule, got=got, fix=f"Raise it to {least} or list fewer scales.")


def _grid(spec: StudySpec) -> Iterator[Fault]:
    for name, domain in spec.tuned.items():
        if isinstance(domain, Range) and domain.step is None:
            rule, got = (
                "must be a list, or a range with a step, with sampler grid",
                f"low={domain.low}, high={domain.high}",
            )
            yield Fault(where=f"parameters.{name}", rule=rule, got=got, fix="List the values.")
    sizes = [_size(domain) for domain in spec.tuned.values()]
    total = math.prod([len(spec.scales), len(spec.iterations_axis), len(spec.search.seeds), *sizes])
    if total > MAX_TRIALS:
        where, rule, fix = "search.sampler", f"a grid has at most {MAX_TRIALS} trials", "List fewer values."
        yield Fault(where=where, rule=rule, got=str(total), fix=fix)
    if spec.search.num_trials is not None:
        rule, fix = "a grid counts its trials itself", "Remove it, or use another sampler."
        yield Fault(where="search.num_trials", rule=rule, fix=fix)
    if spec.search.baselines:
        rule, fix = "a grid has no baselines", "Remove them, or use another sampler."
        yield Fault(where="search.baselines", rule=rule, fix=fix)


def _size(domain: Choices[int] | Choices[float] | Range[int] | Range[float]) -> int:
    """Return how many values a grid takes of a domain; 1 where it takes none."""
    if isinstance(domain, Choices):
        return len(domain.choices)
    return 1 if domain.step is None else round((domain.high - domain.low) / domain.step) + 1
