"""Laws of the `holdup` section: sizes that fit each other, and seeds that never mix. Pure."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from study.space.holdup import HoldUpSpec
from study.space.parameters import PARAMETERS, REPLACED, RULES, SCALE
from study.space.plain import MAX_TRIALS

if TYPE_CHECKING:
    from study.space.spec import StudySpec

Broken = Iterator[tuple[str, str, str]]

ROLES = 4
"""Settings after which the kinds of scale repeat (`HoldUpSpec.role_of`)."""
MAX_SEED = 2**31 - 1
"""The largest that every random number generator takes."""


def holdup_laws(spec: "StudySpec") -> Broken:
    """Yield place, law and fix for every law that a hold-up study breaks."""
    if spec.holdup is None:
        return
    for law_of in (_scales, _seeds, _sizes, _search, _stock, _published):
        yield from law_of(spec, spec.holdup)


def num_proposed(holdup: HoldUpSpec, *, small: bool) -> int:
    """Return how many settings the search proposes at the small scale, or at all the others."""
    rounds, rest = divmod(holdup.num_settings, ROLES)
    per_round, more = (
        sum((holdup.role_of(index) == "small") == small for index in range(number)) for number in (ROLES, rest)
    )
    return rounds * per_round + more


def _scales(spec: "StudySpec", holdup: HoldUpSpec) -> Broken:
    searched, target, small = list(spec.scales), holdup.target_scale, holdup.small_scale
    if target < min(searched):
        got = f"must not lie below every searched scale ({searched}), got {target}."
        yield "holdup.target_scale", got, f"List {target} in parameters.num_env_runners, or raise it."
    elif target not in searched:
        got = f"must be among parameters.num_env_runners ({searched}), got {target}."
        yield "holdup.target_scale", got, f"List {target} there; other scales belong in holdup.unseen_scales."
    if small not in searched:
        got = f"must be among parameters.num_env_runners ({searched}), got {small}."
        yield "holdup.small_scale", got, f"List {small} there."
    if not small < target:
        got = f"`small_scale < target_scale` must hold, got {small} and {target}."
        yield "holdup.small_scale", got, "Name the scale at which training is known to work."
    if smaller := [scale for scale in searched if scale < small]:
        got = f"must be the smallest searched scale, got {small} with {smaller} below it."
        yield "holdup.small_scale", got, "The scales above it are those at which a setting has to hold up."
    lists: dict[str, Sequence[object]] = {"unseen_scales": holdup.unseen_scales, "baselines": holdup.baselines}
    if holdup.measure is not None:
        lists["measure.scales"] = holdup.measure.scales
    for name, values in lists.items():
        if len(set(values)) != len(values):
            yield f"holdup.{name}", f"must be distinct, got {values}.", "Name each once."
    if seen := sorted(set(holdup.unseen_scales) & set(searched)):
        got = f"must be scales that no earlier stage runs, got {seen}."
        yield "holdup.unseen_scales", got, "Remove them here or from parameters.num_env_runners."


def _seeds(spec: "StudySpec", holdup: HoldUpSpec) -> Broken:
    sets = {"tune_seeds": holdup.tune_seeds, "rank_seeds": holdup.rank_seeds, "test_seeds": holdup.test_seeds}
    for (first, ours), (second, theirs) in itertools.combinations(sets.items(), 2):
        least, end = max(ours.first, theirs.first), min(ours.first + ours.count, theirs.first + theirs.count)
        if least < end:
            got = f"must share no seed with {first}, got {least}{f' to {end - 1}' if end - least > 1 else ''}."
            yield f"holdup.{second}", got, f"Begin at {ours.first + ours.count} or later."
    for name, each in sets.items():
        if each.first + each.count - 1 > MAX_SEED:
            yield f"holdup.{name}", f"seeds go up to {MAX_SEED}, got {each.first + each.count - 1}.", "Lower count."
    needs = {
        "tune_seeds": (max(holdup.calibrate.num_seeds, 2), "calibration"),
        "rank_seeds": (max(sum(holdup.race.blocks), holdup.stress.num_seeds), "race and stress"),
        "test_seeds": (
            max(holdup.confirm.num_seeds, holdup.confirm.num_seeds_others, holdup.confirm.num_seeds_stock),
            "the confirmation",
        ),
    }
    for name, (least, purpose) in needs.items():
        if sets[name].count < least:
            yield f"holdup.{name}", f"{purpose} needs {least}, got {sets[name].count}.", f"Set count: {least}."
    if spec.search.seeds != [1]:
        yield "search.seeds", "a hold-up study has seeds of its own.", "Use holdup.tune_seeds."


def _sizes(spec: "StudySpec", holdup: HoldUpSpec) -> Broken:
    if holdup.num_settings > MAX_TRIALS:
        yield "holdup.num_settings", f"at most {MAX_TRIALS}, got {holdup.num_settings}.", "Lower it."
    proposed = num_proposed(holdup, small=False)
    if proposed < holdup.race.num_settings:
        enough = math.ceil(holdup.race.num_settings * 4 / 3)
        got = (
            f"the race needs {holdup.race.num_settings} settings at {spec.scales[-1]} runners and its neighbours, got "
            f"{proposed} of {holdup.num_settings}."
        )
        yield "holdup.num_settings", got, f"Raise it to {enough}, or lower holdup.race.num_settings."
    if holdup.stress.num_settings > holdup.race.num_settings:
        got = f"must not exceed race.num_settings, got {holdup.stress.num_settings} > {holdup.race.num_settings}."
        yield "holdup.stress.num_settings", got, "Lower it."
    if holdup.num_rounds > holdup.num_settings // 4:
        got = f"every round needs 4 settings, got {holdup.num_settings} in {holdup.num_rounds} rounds."
        yield "holdup.num_rounds", got, f"Lower it to {holdup.num_settings // 4} or less."
    if spec.evaluation.num_evaluations < 2:
        got = f"two consecutive evaluations tell that a target is reached, got {spec.evaluation.num_evaluations}."
        yield "evaluation.num_evaluations", got, "Raise it; 10 gives a tenth of the budget as resolution."
    if spec.evaluation.stochastic:
        yield "evaluation.stochastic", "a hold-up study judges greedy policies, got true.", "Remove it."


def _search(spec: "StudySpec", holdup: HoldUpSpec) -> Broken:
    search = spec.search
    if search.sampler == "grid":
        yield "search.sampler", "a hold-up study proposes settings, got grid.", "Use tpe, gp, qmc or random."
    if search.num_trials is not None:
        yield "search.num_trials", "a hold-up study counts itself.", "Use holdup.num_settings."
    if search.anchors:
        yield "search.anchors", "a hold-up study has baselines instead.", "Use holdup.baselines and holdup.published."
    if not spec.tuned:
        yield "parameters", "a hold-up study needs something to tune, got one setting.", "Give lr a range."
    if spec.budget.iterations is not None:
        got = "batches differ between settings, and so would what iterations teach."
        yield "budget.iterations", got, "Give budget.env_steps instead."
    if spec.resources.num_learners > 1:
        got = f"baselines have batches that learners cannot share evenly, got {spec.resources.num_learners} learners."
        yield "resources.num_learners", got, "Use one learner, or none of its own."
    if spec.algorithm == "PPO" and (spec.runner == "stock" or spec.learner == "rllib"):
        got = f"a hold-up study confirms with RLlib's own parts at the end, got {spec.runner} and {spec.learner}."
        yield "runner", got, "Remove runner and learner."


def _stock(spec: "StudySpec", holdup: HoldUpSpec) -> Broken:
    """RLlib's own runner and learner do not normalise: their arm would have trained on something else."""
    seeds = holdup.confirm.num_seeds_stock
    for name in ("normalize_observations", "normalize_rewards"):
        if seeds and getattr(spec.environment, name):
            got = f"must be left out where RLlib's own parts confirm the winner, got true and {seeds} seeds of theirs."
            yield f"environment.{name}", got, "Remove it, or set holdup.confirm.num_seeds_stock: 0."


def _published(spec: "StudySpec", holdup: HoldUpSpec) -> Broken:
    if ("published" in holdup.baselines) != bool(holdup.published):
        got = "holdup.published and the baseline `published` belong together, got one of the two."
        yield "holdup.published", got, "Give both, or neither."
    known = {name: parameter for name, parameter in {**PARAMETERS, **RULES}.items() if name != SCALE}
    for name, value in holdup.published.items():
        place = f"holdup.published.{name}"
        if name not in known:
            yield place, "unknown parameter.", f"Use one of: {', '.join(known)}."
        elif known[name].kind is int and not isinstance(value, int):
            yield place, f"must be a whole number, got {value}.", "Write a whole number."
        elif not known[name].allows(value):
            yield place, f"must be {known[name].bounds}, got {value}.", "Change the value."
        elif REPLACED.get(name) in holdup.published:
            yield place, f"takes the place of {REPLACED[name]}, got both.", "Remove one of the two."
