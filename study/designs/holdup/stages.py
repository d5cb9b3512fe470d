"""The stages of a hold-up study, one class each: its seeds, its trials, the decisions that ask for them. Pure.

A study passes through phases, one or more for each stage. The trials of a phase are known when it begins; when all of
them have ended, a decision closes the phase and asks for the trials of the next one. A decision is a function of the
records alone, and is itself a record: killed anywhere and resumed, a study takes the same decisions.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import replace as changed
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import structs

from study.designs.holdup.known import (
    NUM_SCALED,
    Known,
    Setting,
    cost_model,
    cost_points,
    default_setting,
    fixed_baselines,
    holdup_of,
    mean,
    places,
    scaled_baselines,
    winner_of,
)
from study.designs.search.worth import merit
from study.designs.throughput.design import in_block
from study.errors import RecordError
from study.records.ledger import TrialRow
from study.records.records import RESTORE, SettingsFrozen, StageDecided
from study.records.request import TrialRequest, digest_of
from study.space.parameters import SCALE
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, WINNER, WINNER_STOCK, Variant, overlay, resolve
from study.space.spec import StudySpec

if TYPE_CHECKING:
    from study.designs.holdup.verdict import Run

PROTOCOL = 5
"""Version of the decisions and of the rules of the verdict, kept in every decision. Raise it when the same records
would lead to another decision or verdict: a study of another version is refused."""
BASELINE_SEEDS = 2
"""Rank seeds that each baseline runs on; by the means over them baselines are chosen for the confirmation. One seed
would choose by luck, and the four of the stress would cost as much as the race."""
NUM_RIVALS = 3
"""Baselines that are confirmed at the most: the best, the best scaled one, naive growth."""
CALIBRATION_ITERATIONS = 3
"""Iterations of a short trial: one of warm-up and two that count."""
REUSED = "reused"
"""In the evidence of a decision: baseline -> finished trials that stand for it, since they ran what it would run."""

Sizes = Counter[tuple[int, Variant]]
"""(scale, variant) -> trials."""


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
    """A stage of a hold-up study. A new one is a subclass with an entry in `STAGES`, which has the order.

    What it lets a person choose is a section of `study.space.sections`, if it has any.
    """

    name: str
    """In the records, and for `--until`."""
    seeds: Literal["tune_seeds", "rank_seeds", "test_seeds"]
    """The seeds of the space that its trials run on. Test seeds are for settings that are frozen."""
    judges: bool = False
    """Whether its trials judge the frozen settings, and no others, each on evaluation episodes of its own."""
    is_shortened: bool = False
    """Whether the budget leaves out trials of it, so that those of the stages with `is_kept_for` can be paid for."""
    is_kept_for: bool = False

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return the names of its phases; none where the space leaves the stage out."""
        return (self.name,)

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return the most trials that it runs; which settings is not known beforehand."""
        raise NotImplementedError

    def begin(self, known: Known, phase: str) -> Outcome:
        """Return the trials of a phase, and the choice that they rest on."""
        raise NotImplementedError


class Calibrate(Stage):
    """What trials cost here, before the search: short trials, and this project's default setting once."""

    name, seeds = "calibrate", "tune_seeds"

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return the cost points and the default setting."""
        return Counter({(holdup_of(spec).target_scale, "study"): holdup_of(spec).calibrate.num_points + 1})

    def begin(self, known: Known, phase: str) -> Outcome:
        """Return the trials that every study begins with."""
        holdup, default = known.holdup, default_setting(known.spec)
        whole = TrialRequest(
            stage=self.name,
            num_env_runners=holdup.target_scale,
            seed=holdup.tune_seeds.first,
            setting=default,
            name="default",
        )
        short = structs.replace(whole, name="cost point", iterations=CALIBRATION_ITERATIONS)
        points = cost_points(known.spec, holdup.calibrate.num_points)
        return Outcome(requests=[*(structs.replace(short, setting=overlay(default, point)) for point in points), whole])


class Search(Stage):
    """Settings that Optuna proposes: half at the target scale, a quarter at the small one, the rest between."""

    name, seeds, is_shortened = "search", "tune_seeds", True

    def scales(self, spec: StudySpec) -> list[int]:
        """Return the scale of each proposal; those between the small and the target scale take turns."""
        holdup = holdup_of(spec)
        target, small = holdup.target_scale, holdup.small_scale
        turn = itertools.cycle([scale for scale in spec.scales if scale not in (target, small)] or [target])
        four = (lambda: target, lambda: small, lambda: target, lambda: next(turn))
        return [four[index % 4]() for index in range(holdup.num_settings)]

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return one trial of each proposal."""
        return Counter((scale, "study") for scale in self.scales(spec))

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for the proposals, each once, on the seeds of the search in turn."""
        seeds = itertools.cycle(known.holdup.tune_seeds.seeds)
        requests = [
            TrialRequest(stage=self.name, num_env_runners=scale, seed=next(seeds)) for scale in self.scales(known.spec)
        ]
        model = cost_model(known.rows.values())
        return Outcome(requests=requests, evidence={"cost_model": None if model is None else asdict(model)})


class Race(Stage):
    """The best settings at the target scale, all on the same seeds, in blocks; after each the better half goes on.

    Racing only allocates budget. It makes no claim of significance: with eight paired seeds no corrected test could.
    """

    name, seeds, is_kept_for = "race", "rank_seeds", True

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return one for each block."""
        return tuple(f"race {number}" for number in range(1, len(holdup.race.blocks) + 1))

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return the trials of the blocks."""
        holdup = holdup_of(spec)
        entering, count = holdup.race.num_settings, 0
        for block in holdup.race.blocks:
            count += entering * block
            entering = max(math.ceil(entering / 2), holdup.stress.num_settings)
        return Counter({(holdup.target_scale, "study"): count})

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for a block of the race, by those who survived the block before.

        The first block is for the best of the search at whatever scale they ran: their place among the settings of
        their own scale decides, since what a scale makes easy says nothing about a setting. On equal places those that
        ran above the small scale go first, the cheaper before the dearer.
        """
        number, sizes = int(phase.rpartition(" ")[2]), known.holdup.race
        evidence: dict[str, Any]
        if number == 1:
            searched = {scale: known.searched(scale) for scale in known.spec.scales}
            merits = places(searched.values())
            ranked = known.best(merits, known.large)
            kept, dropped = ranked[: sizes.num_settings], ranked[sizes.num_settings :]
            evidence = {"places": merits, "searched": {str(scale): each for scale, each in searched.items()}}
        else:
            kept, dropped, evidence = survivors(known, sizes.blocks[: number - 1])
        done = sum(sizes.blocks[: number - 1])
        seeds = known.holdup.rank_seeds.seeds[done : done + sizes.blocks[number - 1]]
        requests = [
            _ranking(known, self.name, digest, known.holdup.target_scale, seed) for seed in seeds for digest in kept
        ]
        return Outcome(requests=requests, kept=kept, dropped=dropped, evidence=evidence)


def survivors(known: Known, blocks: Sequence[int]) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return who stays in the race after its blocks so far, who does not, and the scores behind it."""
    target, racing = known.holdup.target_scale, known.decisions[-1].kept
    seeds = known.holdup.rank_seeds.seeds[: sum(blocks)]
    scores = {}
    for digest in racing:
        found = known.on_rank_seeds(digest, target)
        scores[digest] = [found[seed] for seed in seeds]
    most = max(math.ceil(len(scores) / 2), known.holdup.stress.num_settings)
    kept = known.best({digest: sum(each) / len(each) for digest, each in scores.items()}, [target])[:most]
    return kept, [digest for digest in racing if digest not in kept], {"scores": scores, "seeds": list(seeds)}


def _ranking(known: Known, stage: str, digest: str, scale: int, seed: int) -> TrialRequest:
    return TrialRequest(stage=stage, num_env_runners=scale, seed=seed, setting=known.settings[digest])


class Stress(Stage):
    """The finalists at every searched scale, which choose the winner; then what the winner has to beat."""

    name, seeds, is_kept_for = "stress", "rank_seeds", True

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return one for the finalists and one for the baselines."""
        return ("stress", "baselines")

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return the trials of the finalists, of as many settings of the small scale, and of the baselines."""
        holdup, count = holdup_of(spec), Sizes()
        finalists, seeds = holdup.stress.num_settings, holdup.stress.num_seeds
        for scale in spec.scales:
            run_already = min(seeds, sum(holdup.race.blocks)) if scale == holdup.target_scale else 0
            count[scale, "study"] += finalists * (seeds - run_already)
        count[holdup.small_scale, "study"] += finalists * seeds
        count[holdup.target_scale, "study"] += (len(holdup.baselines) + NUM_SCALED) * BASELINE_SEEDS
        return count

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for the finalists, or for the baselines."""
        return self._finalists(known) if phase == "stress" else self._baselines(known)

    def _finalists(self, known: Known) -> Outcome:
        """Ask for the finalists at every searched scale, and for the best of the small scale there."""
        holdup, small_scale, count = known.holdup, known.holdup.small_scale, known.holdup.stress.num_settings
        best, fallen, evidence = survivors(known, holdup.race.blocks)
        ranked = best + fallen
        kept, dropped = ranked[:count], ranked[count:]
        small = known.best(known.searched(small_scale), [small_scale])[:count]
        wanted = [(digest, scale) for digest in kept for scale in known.spec.scales]
        wanted += [(digest, small_scale) for digest in small if digest not in kept]
        requests = [
            _ranking(known, self.name, digest, scale, seed)
            for seed in holdup.rank_seeds.seeds[: holdup.stress.num_seeds]
            for digest, scale in wanted
            if seed not in known.on_rank_seeds(digest, scale)
        ]
        return Outcome(requests=requests, kept=kept, dropped=dropped, evidence=evidence | {"small": small})

    def _baselines(self, known: Known) -> Outcome:
        """Choose the winner and the best of the small scale, then ask for what the winner has to beat.

        A baseline takes over a trial of race or stress that ran its numbers on the seed at the target scale: training
        is deterministic, so that it would give the same run to the last digit.
        """
        holdup, last, spec = known.holdup, known.decisions[-1], known.spec
        target, small_scale = holdup.target_scale, holdup.small_scale
        means = {
            digest: {scale: mean(known.on_rank_seeds(digest, scale).values()) for scale in spec.scales}
            for digest in last.kept
        }
        holds = {digest: min(means[digest][scale] for scale in known.large) for digest in last.kept}
        winner = winner_of(holds, known.costs([target]))
        candidates = dict.fromkeys([*last.evidence["small"], *last.kept])
        at_small = {digest: mean(known.on_rank_seeds(digest, small_scale).values()) for digest in candidates}
        best_small = known.best(at_small, [small_scale])[0]
        requests: list[TrialRequest] = []
        reused: dict[str, list[int]] = {}
        ran = [(row, resolve(row.rule, target)) for row in known.whole("race", "stress", scale=target)]
        for seed in holdup.rank_seeds.seeds[:BASELINE_SEEDS]:
            for name, setting in rivals(known, winner, best_small).items():
                numbers = resolve(setting, target)
                alike = [row.trial for row, others in ran if row.seed == seed and others == numbers]
                if alike:
                    reused.setdefault(name, []).append(alike[0])
                else:
                    asked = TrialRequest(stage=self.name, num_env_runners=target, seed=seed, setting=setting, name=name)
                    requests.append(asked)
        evidence = {
            "means": {digest: {str(scale): value for scale, value in each.items()} for digest, each in means.items()},
            "holds": holds,
            "at_small": at_small,
            BEST_SMALL: best_small,
        } | ({REUSED: reused} if reused else {})
        dropped = [digest for digest in last.kept if digest != winner]
        return Outcome(requests=requests, kept=[winner], dropped=dropped, evidence=evidence)


def rivals(known: Known, winner: str, best_small: str) -> dict[str, Setting]:
    """Return the baselines by name, without those that are the winner, or each other, at the target scale."""
    holdup = known.holdup
    seen = [resolve(known.settings[winner], holdup.target_scale)]
    different = {}
    for name, setting in (
        fixed_baselines(holdup) | scaled_baselines(known.settings[best_small], holdup.small_scale)
    ).items():
        numbers = resolve(setting, holdup.target_scale)
        if numbers not in seen:
            different[name] = setting
            seen.append(numbers)
    return different


def _chosen(known: Known) -> tuple[str, str]:
    """Return the digests of the winner and of the small scale's best."""
    last = next(each for each in known.decisions if BEST_SMALL in each.evidence)
    return last.kept[0], last.evidence[BEST_SMALL]


def _is_lost(known: Known) -> bool:
    """Return whether the confirmation stopped at half, since rule 2 cannot be kept any more."""
    return any(each.evidence.get("lost") for each in known.decisions)


ArmPlan = tuple[str, Setting, int, int]
"""Name, setting, scale and most seeds of an arm of the confirmation."""


class Confirm(Stage):
    """The frozen settings on test seeds, in two halves; then the winner under RLlib's own runners and learner.

    **Every run plays evaluation episodes of its own**, which no other trial has played or will play. A run's score then
    holds a draw of both, of the training and of the episodes, and the runs of an arm are independent: Student's and
    Welch's intervals over runs hold both components. The other design, in which all runs play the same episodes, needs
    a crossed model (Judd, Westfall & Kenny, "Treating stimuli as a random factor in social psychology", Journal of
    Personality and Social Psychology 103, 2012), and its number of episodes never grows with the number of runs: see
    `tests/unit/test_confirmation_episodes.py` for both, simulated with the components of the recorded example.
    """

    name, seeds, judges, is_kept_for = "confirm", "test_seeds", True, True

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return the two halves, and the stock runs where there are any."""
        return ("confirm", "rest", *(["stock"] if holdup.confirm.num_seeds_stock else []))

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return the runs of all arms: the winner, the small scale's best, baselines, and the stock runs."""
        holdup, count = holdup_of(spec), Sizes()
        sizes, target, small = holdup.confirm, holdup.target_scale, holdup.small_scale
        for scale in (target, small, *holdup.unseen_scales, small):
            count[scale, "study"] += sizes.num_seeds
        count[target, "study"] += NUM_RIVALS * sizes.num_seeds_others
        count[target, "stock"] += sizes.num_seeds_stock
        return +count

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for the runs of a half, or for the stock runs, each with a block of episodes that nothing else plays.

        The stages before play the first block; the confirmation takes the blocks behind it, in the order of its trials.
        """
        outcome = {"confirm": self._first, "rest": self._rest, "stock": self._stock}[phase](known)
        after = sum(len(each.requests) for each in known.decisions if each.next_stage == self.name)
        size = known.spec.evaluation.episodes
        requests = [
            structs.replace(request, first_episode=(1 + after + number) * size)
            for number, request in enumerate(outcome.requests)
        ]
        return changed(outcome, requests=requests)

    def _first(self, known: Known) -> Outcome:
        """Freeze the settings and ask for the first half of every arm, in random order.

        Besides the winner and the small scale's best: the best baseline, the best rule that carries the small scale's
        best up, and naive growth. Where the winner is the small scale's best too, it is its own reference there, and
        one arm.
        """
        last, (winner, best_small) = known.decisions[-1], _chosen(known)
        settings = rivals(known, winner, best_small)
        reused: Mapping[str, list[int]] = last.evidence.get(REUSED, {})
        runs: dict[str, list[TrialRow]] = {
            name: [known.rows[trial] for trial in reused.get(name, []) if trial in known.rows] for name in settings
        }
        for row in known.whole("stress"):
            if row.anchor is not None:
                runs[row.anchor].append(row)
        means = {name: mean(merit(known.spec, row) for row in rows) for name, rows in runs.items()}
        costs = {name: mean(row.summary.get("cpu_s_spent") or 0.0 for row in rows) for name, rows in runs.items()}
        ranked = sorted(means, key=lambda name: (-means[name], costs[name], name))
        scaled = [name for name in ranked if name.startswith(BEST_SMALL)]
        judged = dict.fromkeys([*ranked[:1], *scaled[:1], *(name for name in means if name == "naive_growth")])
        arms = self._arms(known, {name: settings[name] for name in judged})
        frozen = {digest_of(setting): dict(setting) for _, setting, _, _ in arms}
        return Outcome(
            requests=self._half(known, arms, second=False),
            kept=[winner],
            evidence={"baselines": means, "best_baseline": ranked[0] if ranked else None},
            frozen=SettingsFrozen(winner=winner, settings=frozen),
        )

    def _arms(self, known: Known, baselines: Mapping[str, Setting]) -> list[ArmPlan]:
        """Return the arms; the reference at the small scale has as many seeds as the winner, whose rival it is."""
        holdup, sizes, (winner, best_small) = known.holdup, known.holdup.confirm, _chosen(known)
        own, other = known.settings[winner], known.settings[best_small]
        judged = [holdup.target_scale, holdup.small_scale, *holdup.unseen_scales]
        arms = [(WINNER, own, scale, sizes.num_seeds) for scale in judged]
        if resolve(other, holdup.small_scale) != resolve(own, holdup.small_scale):
            arms.append((BEST_SMALL, other, holdup.small_scale, sizes.num_seeds))
        return arms + [(name, each, holdup.target_scale, sizes.num_seeds_others) for name, each in baselines.items()]

    def _half(self, known: Known, arms: Sequence[ArmPlan], *, second: bool) -> list[TrialRequest]:
        """Return the runs of one half of the arms, in random order, so that no arm has a time of day of its own."""
        requests = []
        for name, setting, scale, count in arms:
            half = first_half(count)
            for seed in known.holdup.test_seeds.seeds[half if second else 0 : count if second else half]:
                asked = TrialRequest(stage=self.name, num_env_runners=scale, seed=seed, setting=setting, name=name)
                requests.append(asked)
        stream = [known.spec.search.sampler_seed, 1, *([2] if second else [])]
        return [requests[index] for index in np.random.default_rng(stream).permutation(len(requests))]

    def _rest(self, known: Known) -> Outcome:
        """Ask for the second half of the arms that are not decided.

        Where rule 2 is broken already, nothing runs any more. Else the winner runs on at every judged scale: only all
        runs together can refuse a setting that fails in one run of twenty. The arms that it is compared with stop where
        all that they are there for is shown at `LEVEL_HALF`: the references at the small scale where the score is kept
        at every scale, a baseline where the winner's score is better, naive growth where steps are saved besides.
        """
        from study.designs.holdup.verdict import LEVEL_HALF, Arm, arms_of, compare, halfway, limits_of  # with SciPy

        holdup, (winner, _), seed = known.holdup, _chosen(known), known.spec.search.sampler_seed
        target, rows = holdup.target_scale, defaultdict[tuple[str, int], list[TrialRow]](list)
        for row in known.whole(self.name):
            rows[row.anchor or "", row.num_env_runners].append(row)
        found = {}
        for (name, scale), each in rows.items():
            runs = tuple(_coarse(known.spec, row) for row in sorted(each, key=lambda row: row.seed))
            found[name, scale] = Arm(name=name, scale=scale, runs=runs)
        arms = arms_of(found, holdup)
        half = halfway(arms, limits_of(known.spec), rng=np.random.default_rng([seed, 4]))
        if half.lost:
            names = sorted(f"{name}@{scale}" for name, scale in found)
            return Outcome(kept=[winner], evidence={"lost": True, "stopped": names})
        baselines = {name: arm for (name, _), arm in found.items() if name not in (WINNER, BEST_SMALL)}
        rng = np.random.default_rng([seed, 3])
        compared = compare(arms.winner[target], list(baselines.values()), rng=rng, level=LEVEL_HALF)
        stopped = {(name, target) for name, row in compared["rows"].items() if row["better"]}
        stopped -= set() if half.naive_growth else {("naive_growth", target)}
        stopped |= {(arm.name, holdup.small_scale) for arm in arms.references} if half.references else set()
        left = self._arms(known, {name: rows[name, target][0].rule for name in baselines})
        return Outcome(
            requests=self._half(known, [arm for arm in left if (arm[0], arm[2]) not in stopped], second=True),
            kept=[winner],
            evidence={"lost": False, "stopped": sorted(f"{name}@{scale}" for name, scale in stopped)},
        )

    def _stock(self, known: Known) -> Outcome:
        """Ask for the winner under RLlib's own runners and learner; for nothing where its verdict is lost."""
        holdup, (winner, _) = known.holdup, _chosen(known)
        asked = TrialRequest(
            stage=self.name,
            num_env_runners=holdup.target_scale,
            seed=0,
            setting=known.settings[winner],
            name=WINNER_STOCK,
            variant="stock",
        )
        seeds = [] if _is_lost(known) else holdup.test_seeds.seeds[: holdup.confirm.num_seeds_stock]
        return Outcome(requests=[structs.replace(asked, seed=seed) for seed in seeds])


def _coarse(spec: StudySpec, row: TrialRow) -> "Run":
    """Return what a trial came to; its time to the target is known to two evaluations, which is never too well."""
    from study.designs.holdup.verdict import run_of

    run, between = run_of(spec, row), math.inf
    if spec.budget.env_steps is not None:
        between = spec.budget.env_steps / spec.evaluation.num_evaluations + row.setting["train_batch_size"]
    end = run.env_steps_to_target or run.env_steps or 0.0
    return changed(run, env_steps_before_target=max(end - 2 * between, 0.0))


def first_half(num_seeds: int) -> int:
    """Return how many seeds of an arm run in the first half of the confirmation: five at the least, for an interval."""
    return min(max(math.ceil(num_seeds / 2), 5), num_seeds)


class Measure(Stage):
    """The clock: short trials with real runners, in blocks, alone on the machine."""

    name, seeds = "measure", "test_seeds"

    def phases(self, holdup: HoldUpSpec) -> tuple[str, ...]:
        """Return none where the space does not ask for the clock."""
        return () if holdup.measure is None else (self.name,)

    def sizes(self, spec: StudySpec) -> Sizes:
        """Return the trials of all blocks."""
        sizes, count = holdup_of(spec).measure, Sizes()
        if sizes is not None:
            for scale, number in [*((n, 3) for n in sizes.scales), (min(sizes.scales), 2)]:
                count[scale, "measured"] += number * sizes.repeats
        return count

    def begin(self, known: Known, phase: str) -> Outcome:
        """Ask for blocks of short real trials: batch fixed, or batch per runner fixed.

        For nothing where the verdict is lost.
        """
        target, sizes = known.holdup.target_scale, known.holdup.measure
        assert sizes is not None  # the phase exists
        if _is_lost(known):
            return Outcome()
        # The numbers of the target scale at every scale; and its steps per runner, minibatch and lr fixed.
        strong, reference = (
            {name: value for name, value in resolve(known.settings[digest], target).items() if name != SCALE}
            for digest in _chosen(known)
        )
        weak = overlay(strong, {"steps_per_env_runner": int(strong["train_batch_size"]) // target})
        kinds = {"strong": strong, "weak": weak, "reference": reference}
        points = [(name, setting, n) for name, setting in kinds.items() for n in sizes.scales]
        base = ("anchor", strong, min(sizes.scales))
        seeds, group = known.holdup.test_seeds.seeds, itertools.count()
        requests = []
        for block in range(sizes.repeats):
            rng = np.random.default_rng([known.spec.search.sampler_seed, 2, block])
            for name, setting, scale in in_block(points, base, rng):
                request = TrialRequest(
                    stage=self.name,
                    num_env_runners=scale,
                    seed=seeds[block % len(seeds)],
                    setting=setting,
                    name=name,
                    variant="measured",
                    iterations=sizes.iterations,
                    group=next(group),
                )
                requests.append(request)
        return Outcome(requests=requests)


STAGES: dict[str, Stage] = {each.name: each for each in (Calibrate(), Search(), Race(), Stress(), Confirm(), Measure())}
"""By name, in their order."""


def stage_of(name: str | None) -> Stage:
    """Return the stage of a trial, by its name in the records.

    Raises:
        RecordError: There is no such stage.
    """
    if name not in STAGES:
        rule = f"a trial of a hold-up study is of one of the stages {', '.join(STAGES)}"
        raise RecordError(where="records", rule=rule, got=str(name), fix=RESTORE)
    return STAGES[name]


# --- the course through them -----------------------------------------------------------------------------------------


def phases(holdup: HoldUpSpec) -> tuple[tuple[Stage, str], ...]:
    """Return stage and name of every phase of a study, in their order."""
    return tuple((stage, name) for stage in STAGES.values() for name in stage.phases(holdup))


def current(holdup: HoldUpSpec, decisions: Sequence[StageDecided]) -> tuple[Stage, str] | None:
    """Return stage and name of the phase whose trials run now; None at the end of the protocol."""
    return next(itertools.islice(phases(holdup), len(decisions), None), None)


def expected_trials(spec: StudySpec) -> Iterator[tuple[Stage, int, Variant, int]]:
    """Yield stage, scale, variant and number of the most trials that a study runs."""
    for stage in STAGES.values():
        for (scale, variant), count in stage.sizes(spec).items():
            yield stage, scale, variant, count


def num_later(spec: StudySpec) -> int:
    """Return how many whole trials race, stress and confirmation need: what a budget has to keep back."""
    return sum(count for stage, _, _, count in expected_trials(spec) if stage.is_kept_for)


def requests_of(spec: StudySpec, decisions: Sequence[StageDecided]) -> list[TrialRequest]:
    """Return every trial asked for so far, in the order of their numbers."""
    (first, name), *_ = phases(holdup_of(spec))
    later = (TrialRequest.from_json(content) for decision in decisions for content in decision.requests)
    return [*first.begin(Known(spec, {}, ()), name).requests, *later]


def cancelled_by(decisions: Sequence[StageDecided]) -> set[int]:
    """Return the trials that were asked for and are not run."""
    return {trial for decision in decisions for trial in decision.cancelled}


def decide(
    spec: StudySpec,
    rows: Mapping[int, TrialRow],
    decisions: Sequence[StageDecided],
    *,
    cancelled: Sequence[int] = (),
    reason: str = "",
) -> tuple[StageDecided, SettingsFrozen | None]:
    """Return the decision that closes the current phase, and the settings that must be on record before it.

    Args:
        spec: The space.
        rows: Every trial on record.
        decisions: The decisions so far.
        cancelled: Trials of this phase that are not run.
        reason: Why they are not.

    Raises:
        RecordError: A trial of the phase has not ended.
    """
    skipped = cancelled_by(decisions) | set(cancelled)
    run = [number for number in range(len(requests_of(spec, decisions))) if number not in skipped]
    if open_ones := [number for number in run if number not in rows or not rows[number].ended]:
        raise RecordError(
            where=f"decision {len(decisions)}",
            rule="all trials must have ended",
            got=f"{open_ones[:5]} open",
            fix="Restore the records from a backup.",
        )
    known, index = Known(spec, {number: rows[number] for number in run}, decisions), len(decisions)
    (stage, name), *later = phases(known.holdup)[index:]
    outcome = later[0][0].begin(known, later[0][1]) if later else Outcome()
    decision = StageDecided(
        number=index,
        stage=stage.name,
        phase=name,
        num_looks=len(run),
        kept=list(outcome.kept),
        dropped=list(outcome.dropped),
        evidence={**outcome.evidence, **({"cancelled": reason} if reason else {})},
        cancelled=sorted(cancelled),
        requests=[request.to_json() for request in outcome.requests],
        next_stage=later[0][0].name if later else None,
        protocol=PROTOCOL,
    )
    return decision, outcome.frozen


def check_version(decisions: Sequence[StageDecided]) -> None:
    """Refuse decisions of another version of the protocol.

    Raises:
        RecordError: There is one.
    """
    if others := sorted({each.protocol for each in decisions} - {PROTOCOL}):
        raise RecordError(
            where="decisions",
            rule=f"this version knows version {PROTOCOL} of the hold-up protocol",
            got=", ".join(map(str, others)),
            fix="Use the version of this project that wrote the study.",
        )
