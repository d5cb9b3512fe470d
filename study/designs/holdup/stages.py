"""The stages of a hold-up study, one class each: its seeds, its trials, the decisions that ask for them. Pure.

A study passes through phases, one or more for each stage. The trials of a phase are known when it begins; when all of
them have ended, a decision closes the phase and asks for the trials of the next one. A decision is a function of the
records alone, and is itself a record: killed anywhere and resumed, a study takes the same decisions.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from msgspec import structs

from study.designs.holdup.arms import (
    NAIVE_GROWTH,
    NUM_CONFIRMED,
    NUM_SCALED,
    ArmPlan,
    Setting,
    default_setting,
    holdup_of,
    planned_arms,
    rivals_of,
)
from study.designs.search.worth import merit
from study.errors import RecordError
from study.records.ledger import TrialRow
from study.records.records import RESTORE, SettingsFrozen, StageDecided, TrialRequest, digest_of
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, Variant, resolve
from study.space.spec import StudySpec

PROTOCOL = 5
"""Version of the decisions and of the rules of the verdict, kept in every decision. Raise it when the same records
would lead to another decision or verdict: a study of another version is refused."""
BASELINE_SEEDS = 2
"""Rank seeds that each rival runs on; by the means over them rivals are chosen for the confirmation. One seed would
choose by luck."""


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


class Known:
    """The trials of a study up to a decision.

    Attributes:
        rows: The trials that were run, by their numbers.
        settings: Digest -> complete setting, of everything that was run.
    """

    def __init__(self, spec: StudySpec, rows: Mapping[int, TrialRow], decisions: Sequence[StageDecided]) -> None:
        """Take the trials, all of which have ended."""
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

    def ran(self, setting: Setting, seed: int) -> TrialRow | None:
        """Return the trial that ran a setting's numbers at the target scale on a rank seed, under whatever name.

        Training is deterministic: another trial of them would give the same to the last digit.
        """
        target = self.holdup.target_scale
        numbers, here = resolve(setting, target), self.trials("race", "baselines", scale=target)
        return next((row for row in here if row.seed == seed and resolve(row.rule, target) == numbers), None)

    @property
    def chosen(self) -> tuple[Setting, Setting]:
        """The winner and the small scale's best, once they have been chosen."""
        last = next(each for each in self.decisions if BEST_SMALL in each.evidence)
        return self.settings[last.kept[0]], self.settings[last.evidence[BEST_SMALL]]


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


class Stage:
    """A stage of a hold-up study. A new one is a subclass with an entry in `STAGES`, which has the order."""

    name: str
    """In the records, and for `--until`."""
    seeds: Literal["tune_seeds", "rank_seeds", "test_seeds"]
    """The seeds of the space that its trials run on. Test seeds are for settings that are frozen, and each trial on one
    plays evaluation episodes of its own."""

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return the names of its phases."""
        return (self.name,)

    def begin(self, known: Known, phase: str) -> Outcome:
        """Return the trials of a phase, and the choice that they rest on."""
        raise NotImplementedError


class Search(Stage):
    """This project's default setting, then what Optuna proposes: half at the target scale, a quarter at the small one.

    The rest is for the scales between, which take turns.
    """

    name, seeds = "search", "tune_seeds"

    def begin(self, known: Known, phase: str) -> Outcome:
        """Return the trials that every study begins with, the proposals on the seeds of the search in turn."""
        holdup = known.holdup
        default = TrialRequest(
            stage=self.name,
            num_env_runners=holdup.target_scale,
            seed=holdup.tune_seeds.first,
            setting=default_setting(known.spec),
            name="default",
        )
        scales = scales_searched(holdup, known.spec.scales)
        proposals = zip(scales, itertools.cycle(holdup.tune_seeds.seeds), strict=False)
        asked = [TrialRequest(stage=self.name, num_env_runners=scale, seed=seed) for scale, seed in proposals]
        return Outcome(requests=[default, *asked])


def scales_searched(holdup: HoldUpSpec, scales: Sequence[int]) -> list[int]:
    """Return the scale of each proposal of the search."""
    target, small = holdup.target_scale, holdup.small_scale
    turn = itertools.cycle([scale for scale in scales if scale not in (target, small)] or [target])
    four = (lambda: target, lambda: small, lambda: target, lambda: next(turn))
    return [four[index % 4]() for index in range(holdup.num_settings)]


class Race(Stage):
    """The best settings at the target scale, all on the same seeds, in blocks; after each the better half goes on.

    Racing only allocates budget. It makes no claim of significance: with eight paired seeds no corrected test could.
    """

    name, seeds = "race", "rank_seeds"

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return one for each block."""
        return tuple(f"race {number}" for number in range(1, len(holdup.race.blocks) + 1))

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for a block of the race, by those who survived the block before.

        The first block is for the best of the search at whatever scale they ran: their place among the settings of
        their own scale decides, since what a scale makes easy says nothing about a setting. On equal places those that
        ran above the small scale go first, the cheaper before the dearer.
        """
        holdup, blocks = known.holdup, known.holdup.race.blocks
        number = int(phase.rpartition(" ")[2])
        evidence: dict[str, Any]
        if number == 1:
            searched = {scale: known.searched(scale) for scale in known.spec.scales}
            evidence = {"places": (merits := places(searched.values()))}
            evidence["searched"] = {str(scale): each for scale, each in searched.items()}
            ranked = known.best(merits, [scale for scale in known.spec.scales if scale != holdup.small_scale])
            most = holdup.race.num_settings
        else:
            ranked, evidence = standing(known, sum(blocks[: number - 1]))
            most = math.ceil(len(ranked) / 2)
        done = sum(blocks[: number - 1])
        target = holdup.target_scale
        requests = [
            TrialRequest(stage=self.name, num_env_runners=target, seed=seed, setting=known.settings[digest])
            for seed in holdup.rank_seeds.seeds[done : done + blocks[number - 1]]
            for digest in ranked[:most]
        ]
        return Outcome(requests=requests, kept=ranked[:most], dropped=ranked[most:], evidence=evidence)


def places(searched: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return for every setting its place among those that ran at its scale: in (0, 1), and the better the larger.

    The best of four has 7/8, the worst 1/8, one that ran alone 1/2; equal scores share the mean of their places, and a
    setting that ran at several scales has the mean of its places there. A score of 0, as of a failure, has place 0.
    """
    from scipy.stats import rankdata  # takes a while; the plan of a study does without

    found: dict[str, list[float]] = defaultdict(list)
    for scores in searched:
        for setting, rank in zip(scores, rankdata(list(scores.values())), strict=True):
            found[setting].append((float(rank) - 0.5) / len(scores) if scores[setting] > 0 else 0.0)
    return {setting: mean(each) for setting, each in found.items()}


def standing(known: Known, num_seeds: int) -> tuple[list[str], dict[str, Any]]:
    """Return the settings that race by their mean scores on so many rank seeds, best first, and these scores."""
    target, seeds = known.holdup.target_scale, known.holdup.rank_seeds.seeds[:num_seeds]
    scores: dict[str, list[float]] = {}
    for digest in known.decisions[-1].kept:
        rows = (row for row in known.trials("race", scale=target) if row.digest == digest)
        merits = {row.seed: merit(known.spec, row) for row in rows}
        scores[digest] = [merits[seed] for seed in seeds]
    ranked = known.best({digest: mean(each) for digest, each in scores.items()}, [target])
    return ranked, {"scores": scores, "seeds": list(seeds)}


class Baselines(Stage):
    """What the winner of the race has to beat, on few seeds: who is best of them is tested with it."""

    name, seeds = "baselines", "rank_seeds"

    def begin(self, known: Known, phase: str) -> Outcome:
        """Choose the winner and the best of the small scale, then ask for the rivals, but for what has run already."""
        holdup = known.holdup
        (winner, *others), evidence = standing(known, sum(holdup.race.blocks))
        best_small = known.best(known.searched(holdup.small_scale), [holdup.small_scale])[0]
        rivals = rivals_of(holdup, known.settings[winner], known.settings[best_small])
        requests = [
            TrialRequest(stage=self.name, num_env_runners=holdup.target_scale, seed=seed, setting=setting, name=name)
            for seed in holdup.rank_seeds.seeds[:BASELINE_SEEDS]
            for name, setting in rivals.items()
            if known.ran(setting, seed) is None
        ]
        return Outcome(requests=requests, kept=[winner], dropped=others, evidence=evidence | {BEST_SMALL: best_small})


class Confirm(Stage):
    """The frozen settings on test seeds, in two halves; then the winner under RLlib's own runners and learner.

    Every run plays evaluation episodes of its own: its score holds a draw of the training and one of the episodes, so
    that intervals over runs hold both (simulated for `evidence.md`).
    """

    name, seeds = "confirm", "test_seeds"

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return the two halves, and the stock runs where there are any."""
        return ("confirm", "rest", *(["stock"] if holdup.confirm.num_seeds_stock else []))

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for the runs of a half, or for the stock runs, each with a block of episodes that nothing else plays.

        The stages before play the first block; the confirmation takes the blocks behind it, in the order of its trials.
        """
        outcome = {"confirm": self._first, "rest": self._rest, "stock": self._stock}[phase](known)
        before = sum(len(each.requests) for each in known.decisions if each.next_stage == self.name)
        size = known.spec.evaluation.episodes
        requests = [
            structs.replace(request, first_episode=(1 + before + number) * size)
            for number, request in enumerate(outcome.requests)
        ]
        return Outcome(requests=requests, kept=outcome.kept, evidence=outcome.evidence, frozen=outcome.frozen)

    def _first(self, known: Known) -> Outcome:
        """Freeze the settings and ask for the first half of every arm.

        Besides the winner and the small scale's best: the best rival, the best rule that carries the small scale's best
        up, and naive growth.
        """
        winner, best_small = known.chosen
        rivals, seeds = rivals_of(known.holdup, winner, best_small), known.holdup.rank_seeds.seeds[:BASELINE_SEEDS]
        means, costs = dict[str, float](), dict[str, float]()
        for name, setting in rivals.items():
            rows = [row for seed in seeds if (row := known.ran(setting, seed)) is not None]
            means[name] = mean(merit(known.spec, row) for row in rows)
            costs[name] = mean(row.summary.get("cpu_s_spent") or 0.0 for row in rows)
        ranked = sorted(means, key=lambda name: (-means[name], costs[name], name))
        scaled = [name for name in ranked if name.startswith(BEST_SMALL)]
        tested = dict.fromkeys([*ranked[:1], *scaled[:1], *({NAIVE_GROWTH} & means.keys())])
        arms = planned_arms(known.holdup, winner, best_small, {name: rivals[name] for name in tested})
        return Outcome(
            requests=self._runs(known, arms, half=1),
            kept=[digest_of(winner)],
            evidence={"baselines": means, "best_baseline": ranked[0] if ranked else None},
            frozen=SettingsFrozen(
                winner=digest_of(winner),
                settings={digest_of(arm.setting): dict(arm.setting) for arm in arms},
            ),
        )

    def _runs(self, known: Known, arms: Sequence[ArmPlan], *, half: Literal[1, 2]) -> list[TrialRequest]:
        """Return the runs of one half of the arms, in random order, so that no arm has a time of day of its own."""
        seeds = known.holdup.test_seeds.seeds
        requests = [
            TrialRequest(stage=self.name, num_env_runners=arm.scale, seed=seed, setting=arm.setting, name=arm.name)
            for arm in arms
            if arm.variant == "study"
            for seed in (seeds[: arm.first_half] if half == 1 else seeds[arm.first_half : arm.num_seeds])
        ]
        stream = [known.spec.search.sampler_seed, 1, *([2] if half == 2 else [])]
        return [requests[index] for index in np.random.default_rng(stream).permutation(len(requests))]

    def _planned(self, known: Known) -> list[ArmPlan]:
        """Return the arms that were frozen."""
        winner, best_small = known.chosen
        rivals, ran = rivals_of(known.holdup, winner, best_small), (row.anchor for row in known.trials(self.name))
        tested = {name: rivals[name] for name in dict.fromkeys(ran) if name in rivals}
        return planned_arms(known.holdup, winner, best_small, tested)

    def _rest(self, known: Known) -> Outcome:
        """Ask for the second half of the arms that are not decided; for nothing where rule 2 is broken already."""
        from study.designs.holdup.verdict import arms_of, halfway, run_at_half  # with SciPy, which a plan does without

        found = arms_of(known.trials(self.name), lambda row: run_at_half(known.spec, row))
        stopped = halfway(found, known.holdup, known.spec.budget.env_steps, seed=known.spec.search.sampler_seed)
        lost, over = stopped is None, {*found} if stopped is None else stopped
        arms = [] if lost else [arm for arm in self._planned(known) if (arm.name, arm.scale) not in over]
        return Outcome(
            requests=self._runs(known, arms, half=2),
            kept=[digest_of(known.chosen[0])],
            evidence={"lost": lost, "stopped": sorted(f"{name}@{scale}" for name, scale in over)},
        )

    def _stock(self, known: Known) -> Outcome:
        """Ask for the winner under RLlib's own runners and learner; for nothing where its verdict is lost."""
        asked = [
            TrialRequest(stage=self.name, num_env_runners=arm.scale, seed=seed, setting=arm.setting, name=arm.name)
            for arm in self._planned(known)
            if arm.variant == "stock"
            for seed in known.holdup.test_seeds.seeds[: arm.num_seeds]
        ]
        if any(each.evidence.get("lost") for each in known.decisions):
            return Outcome()
        return Outcome(requests=[structs.replace(request, variant="stock") for request in asked])


STAGES: dict[str, Stage] = {each.name: each for each in (Search(), Race(), Baselines(), Confirm())}
"""By name, in their order."""


# --- the course through them -----------------------------------------------------------------------------------------


def phases(holdup: HoldUpSpec) -> list[tuple[Stage, str]]:
    """Return stage and name of every phase of a study, in their order."""
    return [(stage, name) for stage in STAGES.values() for name in stage.phases(holdup)]


def expected_trials(spec: StudySpec) -> Counter[tuple[int, Variant]]:
    """Return how many trials of a scale and variant a study runs at the most; which settings is not known before."""
    holdup, racing = holdup_of(spec), holdup_of(spec).race.num_settings
    at_target = 1 + (len(holdup.baselines) + NUM_SCALED) * BASELINE_SEEDS
    for block in holdup.race.blocks:
        at_target += racing * block
        racing = math.ceil(racing / 2)
    found = Counter[tuple[int, Variant]]({(holdup.target_scale, "study"): at_target})
    found.update((scale, "study") for scale in scales_searched(holdup, spec.scales))
    for arm in planned_arms(holdup, {}, {"lr": 1.0}, {str(number): {} for number in range(NUM_CONFIRMED)}):
        found[arm.scale, arm.variant] += arm.num_seeds
    return +found


def requests_of(spec: StudySpec, decisions: Sequence[StageDecided]) -> list[TrialRequest]:
    """Return every trial asked for so far, in the order of their numbers."""
    (first, name), *_ = phases(holdup_of(spec))
    later = (request for decision in decisions for request in decision.requests)
    return [*first.begin(Known(spec, {}, ()), name).requests, *later]


def decide(
    spec: StudySpec, rows: Mapping[int, TrialRow], decisions: Sequence[StageDecided]
) -> tuple[StageDecided, SettingsFrozen | None]:
    """Return the decision that closes the current phase, and the settings that must be on record before it.

    Args:
        spec: The space.
        rows: Every trial on record.
        decisions: The decisions so far.

    Raises:
        RecordError: A trial of the phase has not ended.
    """
    index, run = len(decisions), range(len(requests_of(spec, decisions)))
    if open_ones := [number for number in run if number not in rows or not rows[number].ended]:
        got = f"{open_ones[:5]} open"
        raise RecordError(where=f"decision {index}", rule="all trials must have ended", got=got, fix=RESTORE)
    known = Known(spec, {number: rows[number] for number in run}, decisions)
    (stage, name), *later = phases(known.holdup)[index:]
    outcome = later[0][0].begin(known, later[0][1]) if later else Outcome()
    decision = StageDecided(
        number=index,
        stage=stage.name,
        phase=name,
        num_looks=len(run),
        kept=list(outcome.kept),
        dropped=list(outcome.dropped),
        evidence=dict(outcome.evidence),
        requests=list(outcome.requests),
        next_stage=later[0][0].name if later else None,
        protocol=PROTOCOL,
    )
    return decision, outcome.frozen


def check_version(decisions: Sequence[StageDecided]) -> None:
    """Refuse decisions of another version of the protocol, or of a stage that it no longer has.

    Raises:
        RecordError: There is one.
    """
    others = {f"version {each.protocol}" for each in decisions if each.protocol != PROTOCOL}
    others |= {f"the stage {each.stage}" for each in decisions if each.stage not in STAGES}
    if others:
        rule = f"this version knows version {PROTOCOL} of the hold-up protocol, with the stages {', '.join(STAGES)}"
        fix = "Use the version of this project that wrote the study."
        raise RecordError(where="decisions", rule=rule, got=", ".join(sorted(others)), fix=fix)
