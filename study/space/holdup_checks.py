"""Rules of the `holdup` section: sizes that fit each other, and seeds that never mix. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from study.errors import Fault
from study.space.checks import one_of_two
from study.space.holdup import HoldUpSpec
from study.space.parameters import PARAMETERS, REPLACED, RULES, SCALE, Value
from study.space.settings import overlay, resolve
from study.space.spec import StudySpec

MAX_SEED = 2**31 - 1
"""The largest that every random number generator takes."""


def holdup(spec: StudySpec) -> Iterator[Fault]:
    """Check a hold-up study; other studies have no `holdup` section."""
    if spec.holdup is None:
        return
    for check in (_scales, _seeds, _sizes, _evaluation, _search, _stock, _published):
        yield from check(spec, spec.holdup)


def _scales(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    searched, target, small = list(spec.scales), section.target_scale, section.small_scale
    at_target, at_small = "holdup.target_scale", "holdup.small_scale"
    among = f"must be among parameters.num_env_runners ({searched})"
    if target < min(searched):
        rule = f"must not lie below every searched scale ({searched})"
        fix = f"List {target} in parameters.num_env_runners, or raise it."
        yield Fault(where=at_target, rule=rule, got=str(target), fix=fix)
    elif target not in searched:
        fix = f"List {target} there; other scales belong in holdup.unseen_scales."
        yield Fault(where=at_target, rule=among, got=str(target), fix=fix)
    if small not in searched:
        yield Fault(where=at_small, rule=among, got=str(small), fix=f"List {small} there.")
    if not small < target:
        rule, got = "`small_scale < target_scale` must hold", f"{small} and {target}"
        yield Fault(where=at_small, rule=rule, got=got, fix="Name the scale at which training is known to work.")
    if smaller := [scale for scale in searched if scale < small]:
        rule, got = "must be the smallest searched scale", f"{small} with {smaller} below it"
        yield Fault(where=at_small, rule=rule, got=got, fix=f"Set it to {min(smaller)}, or list no smaller scale.")
    lists: dict[str, Sequence[object]] = {"unseen_scales": section.unseen_scales, "baselines": section.baselines}
    if section.measure is not None:
        lists["measure.scales"] = section.measure.scales
    for name, each in lists.items():
        if len(set(each)) != len(each):
            yield Fault(where=f"holdup.{name}", rule="must be distinct", got=str(each), fix="Name each once.")
    if seen := sorted(set(section.unseen_scales) & set(searched)):
        rule, fix = "must be scales that no earlier stage runs", "Remove them here or from parameters.num_env_runners."
        yield Fault(where="holdup.unseen_scales", rule=rule, got=str(seen), fix=fix)


def _seeds(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    sets = {"tune_seeds": section.tune_seeds, "rank_seeds": section.rank_seeds, "test_seeds": section.test_seeds}
    for (first, ours), (second, theirs) in itertools.combinations(sets.items(), 2):
        least, end = max(ours.first, theirs.first), min(ours.first + ours.count, theirs.first + theirs.count)
        if least < end:
            got = f"{least}{f' to {end - 1}' if end - least > 1 else ''}"
            rule, fix = f"must share no seed with {first}", f"Begin at {ours.first + ours.count} or later."
            yield Fault(where=f"holdup.{second}", rule=rule, got=got, fix=fix)
    for name, each in sets.items():
        if (last := each.first + each.count - 1) > MAX_SEED:
            yield Fault(where=f"holdup.{name}", rule=f"seeds go up to {MAX_SEED}", got=str(last), fix="Lower count.")
    confirm = section.confirm
    needs = {
        "rank_seeds": (max(sum(section.race.blocks), section.stress.num_seeds), "race and stress"),
        "test_seeds": (
            max(confirm.num_seeds, confirm.num_seeds_others, confirm.num_seeds_stock),
            "the confirmation",
        ),
    }
    for name, (least, purpose) in needs.items():
        if sets[name].count < least:
            where, rule, got = f"holdup.{name}", f"{purpose} needs {least}", str(sets[name].count)
            yield Fault(where=where, rule=rule, got=got, fix=f"Set count: {least}.")
    if spec.search.seeds != [1]:
        yield Fault(where="search.seeds", rule="a hold-up study has seeds of its own", fix="Use holdup.tune_seeds.")


def _sizes(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    where, got = "holdup.num_settings", str(section.num_settings)
    race, stress = section.race, section.stress
    if section.num_settings < race.num_settings:
        rule = f"the race needs {race.num_settings} settings to choose from"
        fix = f"Raise it to {race.num_settings}, or lower holdup.race.num_settings."
        yield Fault(where=where, rule=rule, got=got, fix=fix)
    if stress.num_settings > race.num_settings:
        rule, compared = "must not exceed race.num_settings", f"{stress.num_settings} > {race.num_settings}"
        yield Fault(where="holdup.stress.num_settings", rule=rule, got=compared, fix="Lower it.")


def _evaluation(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    evaluations = spec.evaluation.num_evaluations
    if evaluations < 2:
        rule = "a target is reached when two consecutive evaluations are at or above it, so that two are needed"
        fix = "Raise it; 10 gives a tenth of the budget as resolution."
        yield Fault(where="evaluation.num_evaluations", rule=rule, got=str(evaluations), fix=fix)
    if spec.evaluation.stochastic:
        where, rule = "evaluation.stochastic", "a hold-up study judges greedy policies"
        yield Fault(where=where, rule=rule, got="true", fix="Remove it.")


def _search(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    """Check that nothing is given which a hold-up study decides itself."""
    search = spec.search
    if search.sampler == "grid":
        rule, fix = "a hold-up study proposes settings", "Use tpe, gp, qmc or random."
        yield Fault(where="search.sampler", rule=rule, got="grid", fix=fix)
    if search.num_trials is not None:
        rule, fix = "a hold-up study counts its trials itself", "Use holdup.num_settings."
        yield Fault(where="search.num_trials", rule=rule, fix=fix)
    if search.baselines:
        rule, fix = "a hold-up study has baselines of its own", "Use holdup.baselines and holdup.published."
        yield Fault(where="search.baselines", rule=rule, fix=fix)
    if not spec.tuned:
        rule, fix = "a hold-up study needs something to tune", "Give lr a range."
        yield Fault(where="parameters", rule=rule, got="one setting", fix=fix)
    if spec.budget.iterations is not None:
        rule, fix = "iterations of settings differ in their batches", "Give budget.env_steps instead."
        yield Fault(where="budget.iterations", rule=rule, fix=fix)
    if (learners := spec.resources.num_learners) > 1:
        rule, fix = "baselines have batches that learners cannot share evenly", "Use one learner, or none of its own."
        yield Fault(where="resources.num_learners", rule=rule, got=f"{learners} learners", fix=fix)
    if spec.algorithm == "PPO" and spec.runner == "stock":
        rule = "a hold-up study confirms with RLlib's own runner at the end, and searches with the batched one"
        yield Fault(where="runner", rule=rule, got="stock", fix="Remove it.")


def _stock(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    """Check that RLlib's own runner and learner, which do not normalise, train on the same values as ours."""
    seeds = section.confirm.num_seeds_stock
    for name in ("normalize_observations", "normalize_rewards"):
        if seeds and getattr(spec.environment, name):
            rule = "must be left out where RLlib's own runner and learner confirm the winner"
            got, fix = f"true and {seeds} seeds of theirs", "Remove it, or set holdup.confirm.num_seeds_stock: 0."
            yield Fault(where=f"environment.{name}", rule=rule, got=got, fix=fix)


def _published(spec: StudySpec, section: HoldUpSpec) -> Iterator[Fault]:
    if ("published" in section.baselines) != bool(section.published):
        rule, fix = "holdup.published and the baseline `published` belong together", "Give both, or neither."
        yield Fault(where="holdup.published", rule=rule, got="one of the two", fix=fix)
    known = {name: parameter for name, parameter in {**PARAMETERS, **RULES}.items() if name != SCALE}
    for name, value in section.published.items():
        where, got = f"holdup.published.{name}", str(value)
        if name not in known:
            yield Fault(where=where, rule="unknown parameter", fix=f"Use one of: {', '.join(known)}.")
        elif known[name].kind is int and not isinstance(value, int):
            yield Fault(where=where, rule="must be a whole number", got=got, fix="Write a whole number.")
        elif not known[name].allows(value):
            yield Fault(where=where, rule=f"must be {known[name].bounds}", got=got, fix="Change the value.")
        elif REPLACED.get(name) in section.published:
            yield one_of_two(where, REPLACED[name])


def baselines_fit(spec: StudySpec) -> Iterator[Fault]:
    """Check that no baseline uses up its budget by one batch: it would learn from random actions alone, and lose."""
    section, steps = spec.holdup, spec.budget.env_steps
    if section is None or steps is None or spec.budget.allow_larger_batch:
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
            yield Fault(
                where="budget.env_steps",
                rule="the train batch of every baseline must fit into it, or a baseline trains once and loses",
                got=f"{steps:,} steps and a batch of {batch:,} of {name}",
                fix=f"Raise it to {batch} or more, change the baseline, or set allow_larger_batch: true.",
            )
