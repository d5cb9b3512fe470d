"""The stages of a hold-up study, one function each: the trials of a stage, and the choice that they rest on. Pure.

A study passes through phases, one or more for each stage. The trials of a phase are known when it begins; when all of
them have ended, a decision closes the phase and asks for the trials of the next one. A decision is a function of the
records alone, and is itself a record: killed anywhere and resumed, a study takes the same decisions.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from study.designs.search import default_setting, merit
from study.engine import OWN, engine_of_space
from study.errors import RecordError
from study.records.ledger import TrialRow
from study.records.records import RESTORE, SettingsFrozen, StageDecided, TrialRequest, digest_of
from study.space.parameters import PARAMETERS, REFERENCE_MINIBATCH, SCALE, Value, overlay
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, BEST_SMALL_RLLIB, WINNER, WINNER_RLLIB, Variant, resolve
from study.space.spec import StudySpec

STAGES = SEARCH, RACE, CONFIRM = "search", "race", "confirm"
"""In their order; names in the records, and for `--until`."""
PROTOCOL = 6
"""Version of the decisions and of the rules of the verdict, kept in every decision. Raise it when the same records
would lead to another decision or verdict: a study of another version is refused."""


# --- arms: the chosen setting, and the settings that it is compared with ----------------------------------------------
# An arm is one setting at one scale with all its test runs. A setting that needs no search at the target scale is a
# rival.

Setting = dict[str, Value]
"""A value for every parameter except the scale, or for the rule in its place."""
NAIVE_GROWTH = "naive_growth"
RLLIB_DEFAULTS: Mapping[str, Value] = MappingProxyType(
    {name: value.rllib for name, value in PARAMETERS.items() if value.rllib is not None and not value.optional}
)
"""`PPOConfig()` of RLlib; what is optional is RLlib's own where a setting does not hold it."""
UNCHANGED, BATCH_GROWN, MINIBATCH_GROWN = (
    f"{BEST_SMALL}_unchanged",
    f"{BEST_SMALL}_batch_grown",
    f"{BEST_SMALL}_minibatch_grown",
)


def holdup_of(spec: StudySpec) -> HoldUpSpec:
    """Return the `holdup` section of a hold-up study."""
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no stages")
    return spec.holdup


def confirmations(
    spec: StudySpec, winner: Setting, best_small: Setting, rivals: Mapping[str, Setting]
) -> list[TrialRequest]:
    """Return the runs of the arms of a confirmation, arm by arm in the order of the certificate.

    All have as many test seeds as the winner, but for the winner and the small scale's best under RLlib's own parts,
    which run unless these are the study's engine. Where both have the same numbers at the small scale, the winner is
    its own reference there.
    """
    holdup = holdup_of(spec)
    target, small, sizes = holdup.target_scale, holdup.small_scale, holdup.confirm
    arms: list[tuple[Variant, str, Setting, int]]
    arms = [("study", WINNER, winner, scale) for scale in (target, small, *holdup.unseen_scales)]
    if resolve(best_small, small) != resolve(winner, small):
        arms.append(("study", BEST_SMALL, best_small, small))
    arms += [("study", name, setting, target) for name, setting in rivals.items()]
    if engine_of_space(spec) != OWN:
        arms += [("stock", WINNER_RLLIB, winner, target), ("stock", BEST_SMALL_RLLIB, best_small, small)]
    num_seeds = {"study": sizes.num_seeds, "stock": sizes.num_seeds_rllib}
    return [
        TrialRequest(stage=CONFIRM, num_env_runners=scale, seed=seed, setting=setting, name=name, variant=variant)
        for variant, name, setting, scale in arms
        for seed in holdup.test_seeds[: num_seeds[variant]]
    ]


def rival_names(holdup: HoldUpSpec) -> list[str]:
    """Return the names of the rivals that a study can have: what needs no search at the target scale."""
    return [UNCHANGED, BATCH_GROWN, MINIBATCH_GROWN, *(["published"] if holdup.published else []), NAIVE_GROWTH]


def rivals_of(holdup: HoldUpSpec, winner: Setting, best_small: Setting) -> dict[str, Setting]:
    """Return the rivals by name, without those that are the winner, or each other, at the target scale."""
    settings: dict[str, Setting] = scaled_rivals(best_small, holdup.small_scale) | {
        "published": overlay(RLLIB_DEFAULTS, holdup.published),
        NAIVE_GROWTH: overlay(RLLIB_DEFAULTS, {"steps_per_env_runner": holdup.naive_steps_per_env_runner}),
    }
    seen, different = [resolve(winner, holdup.target_scale)], dict[str, Setting]()
    for name in rival_names(holdup):
        if (numbers := resolve(settings[name], holdup.target_scale)) not in seen:
            different[name] = settings[name]
            seen.append(numbers)
    return different


def scaled_rivals(best_small: Mapping[str, Value], small_scale: int) -> dict[str, Setting]:
    """Return the best setting of the small scale as it would be carried to a larger one.

    `best_small_unchanged`: the same numbers. `best_small_batch_grown`: the batch grows with the runners, minibatch and
    lr stay (Beukman 2026). `best_small_minibatch_grown`: the minibatch grows with the batch, and lr with its square
    root (Hilton 2022).
    """
    numbers: Setting = {name: value for name, value in resolve(best_small, small_scale).items() if name != SCALE}
    batch, minibatch = int(numbers["train_batch_size"]), int(numbers["minibatch_size"])
    grown = overlay(numbers, {"steps_per_env_runner": max(round(batch / small_scale), 1)})
    square_root = {
        "num_minibatches": max(round(batch / minibatch), 1),
        "lr": numbers["lr"] * (REFERENCE_MINIBATCH / minibatch) ** 0.5,
        "lr_scaling_exponent": 0.5,
    }
    return {
        UNCHANGED: numbers,
        BATCH_GROWN: grown,
        MINIBATCH_GROWN: overlay(grown, square_root),
    }


# --- stages ----------------------------------------------------------------------------------------------------------


def mean(values: Collection[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


class Known:
    """The trials of a study up to a decision, all of which have ended.

    `rows`: by their numbers. `settings`: digest -> complete setting, of everything that was run.
    """

    def __init__(self, spec: StudySpec, rows: Mapping[int, TrialRow], decisions: Sequence[StageDecided]) -> None:
        self.spec, self.holdup, self.decisions, self.rows = spec, holdup_of(spec), decisions, dict(sorted(rows.items()))
        self.settings: dict[str, Setting] = {row.digest: row.rule for row in rows.values()}

    def trials(self, *stages: str, scale: int | None = None) -> Iterator[TrialRow]:
        """Yield the trials that ran as the space says, in their order; by default all of them."""
        for row in self.rows.values():
            if row.variant == "study" and (not stages or row.stage in stages) and scale in (None, row.num_env_runners):
                yield row

    def searched(self, scale: int) -> dict[str, float]:
        """Return setting -> mean merit of what was searched at a scale.

        A setting that was proposed again on a seed on which it had run says nothing new: one run of them counts.
        """
        merits: dict[str, dict[int, float]] = defaultdict(dict)
        for row in self.trials("search", scale=scale):
            merits[row.digest].setdefault(row.seed, merit(self.spec, row))
        return {digest: mean(each.values()) for digest, each in merits.items()}

    def best(self, merits: Mapping[str, float], scales: Sequence[int]) -> list[str]:
        """Return the settings, the best first; on equal merits the one whose trials at `scales` took less CPU time."""
        spent: dict[str, list[float]] = defaultdict(list)
        for row in self.trials():
            if row.num_env_runners in scales and (seconds := row.summary.get("cpu_s_spent")) is not None:
                spent[row.digest].append(seconds)
        costs = {digest: mean(seconds) for digest, seconds in spent.items()}
        return sorted(merits, key=lambda setting: (-merits[setting], costs.get(setting, math.inf), setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What leads to the next phase: settings kept, trials to run."""

    requests: Sequence[TrialRequest] = ()
    kept: Sequence[str] = ()
    """Digests of the settings that go on, best first."""
    dropped: Sequence[str] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind it, JSON values."""
    frozen: SettingsFrozen | None = None


def search(known: Known) -> Outcome:
    """Ask for this project's default setting, then for what Optuna proposes, on the seeds of the search in turn."""
    holdup = known.holdup
    default = TrialRequest(
        stage=SEARCH,
        num_env_runners=holdup.target_scale,
        seed=holdup.search_seeds[0],
        setting=default_setting(known.spec),
        name="default",
    )
    proposals = zip(scales_searched(holdup, known.spec.scales), itertools.cycle(holdup.search_seeds), strict=False)
    asked = [TrialRequest(stage=SEARCH, num_env_runners=scale, seed=seed) for scale, seed in proposals]
    return Outcome(requests=[default, *asked])


def scales_searched(holdup: HoldUpSpec, scales: Sequence[int]) -> list[int]:
    """Return the scale of each proposal: half have the target scale, a quarter the small one, others take turns."""
    target, small = holdup.target_scale, holdup.small_scale
    turn = itertools.cycle([scale for scale in scales if scale not in (target, small)] or [target])
    four = (lambda: target, lambda: small, lambda: target, lambda: next(turn))
    return [four[index % 4]() for index in range(holdup.num_settings)]


def race(known: Known, block: int) -> Outcome:
    """Ask for a block of the race, from 0: the best settings at the target scale, all on the same seeds.

    The first block is for the best of the search: their place among the settings of their own scale decides, since
    what a scale makes easy says nothing about a setting; on equal places the cheaper above the small scale. After each
    block the better half goes on. Racing only allocates budget. It makes no claim of significance: with eight paired
    seeds no corrected test could.
    """
    holdup, blocks = known.holdup, known.holdup.race.blocks
    done = sum(blocks[:block])
    if block:
        ranked, evidence = standing(known, done)
        most = math.ceil(len(ranked) / 2)
    else:
        searched = {scale: known.searched(scale) for scale in known.spec.scales}
        merits = places(searched.values())
        evidence = {"places": merits, "searched": {str(scale): each for scale, each in searched.items()}}
        ranked = known.best(merits, [scale for scale in known.spec.scales if scale != holdup.small_scale])
        most = holdup.race.num_settings
    requests = [
        TrialRequest(stage=RACE, num_env_runners=holdup.target_scale, seed=seed, setting=known.settings[digest])
        for seed in holdup.race_seeds[done : done + blocks[block]]
        for digest in ranked[:most]
    ]
    return Outcome(requests=requests, kept=ranked[:most], dropped=ranked[most:], evidence=evidence)


def places(searched: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return for every setting its place among those that ran at its scale, in (0, 1): 7/8 of the best of four.

    Equal scores share the mean of their places, as a setting has that ran at several scales. A score of 0 has place 0.
    """
    from scipy.stats import rankdata  # takes a while; the plan of a study does without

    found: dict[str, list[float]] = defaultdict(list)
    for scores in searched:
        for setting, rank in zip(scores, rankdata(list(scores.values())), strict=True):
            found[setting].append((float(rank) - 0.5) / len(scores) if scores[setting] > 0 else 0.0)
    return {setting: mean(each) for setting, each in found.items()}


def standing(known: Known, num_seeds: int) -> tuple[list[str], dict[str, Any]]:
    """Return the settings that race by their mean scores on so many seeds of the race, best first, and these scores."""
    target, seeds = known.holdup.target_scale, known.holdup.race_seeds[:num_seeds]
    scores: dict[str, list[float]] = {}
    for digest in known.decisions[-1].kept:
        rows = (row for row in known.trials("race", scale=target) if row.digest == digest)
        merits = {row.seed: merit(known.spec, row) for row in rows}
        scores[digest] = [merits[seed] for seed in seeds]
    ranked = known.best({digest: mean(each) for digest, each in scores.items()}, [target])
    return ranked, {"scores": scores, "seeds": list(seeds)}


def confirm(known: Known) -> Outcome:
    """Freeze the settings, and ask for the runs of every arm in random order, those under RLlib's own parts last.

    Every run plays evaluation episodes of its own: its score holds a draw of the training and one of the episodes, so
    that intervals over runs hold both (simulated for `evidence.md`). The stages before play the first block of
    episodes, the confirmation the blocks behind it. Nothing stops early: that saved 0 to 2 %.
    """
    spec, holdup = known.spec, known.holdup
    (digest, *others), evidence = standing(known, sum(holdup.race.blocks))
    small = known.best(known.searched(holdup.small_scale), [holdup.small_scale])[0]
    winner, best_small = known.settings[digest], known.settings[small]
    requests = confirmations(spec, winner, best_small, rivals_of(holdup, winner, best_small))
    shuffled = np.random.default_rng([spec.search.sampler_seed, 1]).permutation(len(requests))
    ordered = sorted((requests[index] for index in shuffled), key=lambda request: request.variant != "study")
    size, settings = spec.evaluation.episodes, [each.setting or {} for each in requests]
    return Outcome(
        requests=[
            structs.replace(request, first_episode=(1 + number) * size) for number, request in enumerate(ordered)
        ],
        kept=[digest],
        dropped=others,
        evidence=evidence | {BEST_SMALL: small},
        frozen=SettingsFrozen(winner=digest, settings={digest_of(each): dict(each) for each in settings}),
    )


# --- the course through them -----------------------------------------------------------------------------------------


class Phase(NamedTuple):
    """A part of a stage whose trials are known when it begins."""

    stage: str
    name: str
    begin: Callable[[Known], Outcome]
    """Returns its trials, and the choice that they rest on."""


def phases(holdup: HoldUpSpec) -> list[Phase]:
    """Return every phase of a study, in their order: the race has one for each block."""
    blocks = range(len(holdup.race.blocks))
    races = [Phase(RACE, f"race {block + 1}", partial(race, block=block)) for block in blocks]
    return [Phase(SEARCH, SEARCH, search), *races, Phase(CONFIRM, CONFIRM, confirm)]


def expected_trials(spec: StudySpec) -> Counter[tuple[int, Variant]]:
    """Return how many trials of a scale and variant a study runs at the most; which settings is not known before."""
    holdup, racing = holdup_of(spec), holdup_of(spec).race.num_settings
    at_target = 1
    for block in holdup.race.blocks:
        at_target += racing * block
        racing = math.ceil(racing / 2)
    found = Counter[tuple[int, Variant]]({(holdup.target_scale, "study"): at_target})
    found.update((scale, "study") for scale in scales_searched(holdup, spec.scales))
    asked = confirmations(spec, {}, {"lr": 1.0}, {name: {} for name in rival_names(holdup)})
    found.update((request.num_env_runners, request.variant) for request in asked)
    return found


def requests_of(spec: StudySpec, decisions: Sequence[StageDecided]) -> list[TrialRequest]:
    """Return every trial asked for so far, in the order of their numbers."""
    later = (request for decision in decisions for request in decision.requests)
    return [*search(Known(spec, {}, ())).requests, *later]


def decide(
    spec: StudySpec, rows: Mapping[int, TrialRow], decisions: Sequence[StageDecided]
) -> tuple[StageDecided, SettingsFrozen | None]:
    """Return the decision that closes the current phase, and the settings that must be on record before it.

    Raises:
        RecordError: A trial of the phase has not ended.
    """
    index, run = len(decisions), range(len(requests_of(spec, decisions)))
    if open_ones := [number for number in run if number not in rows or not rows[number].ended]:
        got = f"{open_ones[:5]} open"
        raise RecordError(where=f"decision {index}", rule="all trials must have ended", got=got, fix=RESTORE)
    known = Known(spec, {number: rows[number] for number in run}, decisions)
    closed, *later = phases(known.holdup)[index:]
    following = later[0] if later else None
    outcome = following.begin(known) if following else Outcome()
    decision = StageDecided(
        number=index,
        stage=closed.stage,
        phase=closed.name,
        num_looks=len(run),
        kept=list(outcome.kept),
        dropped=list(outcome.dropped),
        evidence=dict(outcome.evidence),
        requests=list(outcome.requests),
        next_stage=following.stage if following else None,
        protocol=PROTOCOL,
    )
    return decision, outcome.frozen


def check_version(decisions: Sequence[StageDecided]) -> None:
    """Refuse decisions of another version of the protocol.

    Raises:
        RecordError: There is one.
    """
    if others := {each.protocol for each in decisions} - {PROTOCOL}:
        rule, got = f"must be of version {PROTOCOL} of the hold-up protocol", f"version {min(others)}"
        fix = "Use the version of this project that wrote the study."
        raise RecordError(where="decisions", rule=rule, got=got, fix=fix)
