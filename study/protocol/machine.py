"""The stages of a hold-up study as a state machine: records in, next trials out. Pure; knows no clock and no engine.

A study passes through phases, in order. The trials of a phase are known when it begins; when all of them have ended, a
decision closes the phase and asks for the trials of the next one. A decision is a function of the records alone, and
is itself a record: killed anywhere and resumed, a study takes the same decisions.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.statistics import pooled_sd
from study.errors import RecordError
from study.protocol import cost, selection
from study.protocol.baselines import (
    BEST_SMALL,
    WINNER,
    WINNER_STOCK,
    default_setting,
    fixed_baselines,
    scaled_baselines,
)
from study.protocol.stages import STAGES, Request, Stage, Variant, digest_of
from study.search.merit import merit
from study.space.holdup import HoldUpSpec
from study.space.parameters import SCALE, Value
from study.space.rules import batch_domain, bounds, minibatch_bounds, overlay, resolve
from study.space.spec import StudySpec
from study.tracking.ledger import TrialRow
from study.tracking.records import SettingsFrozen, StageDecided

PROTOCOL = 1
"""Raise it when the same records would lead to another decision: older studies are then not checked by replaying."""
SECOND_LOOKS = 1 / 3
"""Share of a round's settings that get a second look."""
_NUM_SCALED = 3
"""Baselines that are made of the small scale's best setting."""
_NUM_RIVALS = 3
"""Baselines that are confirmed at the most: the best, the best scaled one, naive growth."""
CALIBRATION_ITERATIONS = 3
"""Iterations of a short trial: one of warm-up and two that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a stage: its trials are known when it begins."""

    stage: Stage
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A decision, and what has to be on record before it."""

    decision: StageDecided
    frozen: SettingsFrozen | None = None


def phases(holdup: HoldUpSpec) -> tuple[Phase, ...]:
    """Return the phases of a study, in their order."""

    def names() -> Iterator[tuple[Stage, str]]:
        yield "calibrate", "calibrate"
        for number in range(1, holdup.num_rounds + 1):
            yield "search", f"search {number}"
            yield "search", f"second looks {number}"
        for number in range(1, len(holdup.race.blocks) + 1):
            yield "race", f"race {number}"
        yield "stress", "stress"
        yield "stress", "baselines"
        yield "confirm", "confirm"
        if holdup.confirm.num_seeds_stock:
            yield "confirm", "stock"
        if holdup.measure is not None:
            yield "measure", "measure"

    return tuple(Phase(stage=stage, name=name) for stage, name in names())


def opening(spec: StudySpec) -> tuple[Request, ...]:
    """Return the trials of the first phase: what trials cost, and how far seeds lie apart."""
    holdup = _holdup(spec)
    target, seeds = holdup.target_scale, holdup.tune_seeds.seeds
    default = default_setting(spec)
    points = [
        Request(
            stage="calibrate",
            num_env_runners=target,
            seed=seeds[0],
            setting=overlay(default, point),
            name="cost point",
            iterations=CALIBRATION_ITERATIONS,
        )
        for point in _cost_points(spec, holdup.calibrate.num_points)
    ]
    noise = [
        Request(stage="calibrate", num_env_runners=target, seed=seed, setting=default, name="default")
        for seed in itertools.islice(itertools.cycle(seeds), holdup.calibrate.num_seeds)
    ]
    return (*points, *noise)


def _cost_points(spec: StudySpec, count: int) -> list[dict[str, Value]]:
    """Return settings at the corners of what costs: batch, minibatch and epochs; the most different ones first."""
    target = _holdup(spec).target_scale
    batches = [int(value) for value in bounds(batch_domain(spec, target))]
    minibatches, epochs = minibatch_bounds(spec, target), [int(value) for value in bounds(spec.domain("num_epochs"))]
    corners = list(itertools.product((0, 1), repeat=3))
    order = sorted(range(8), key=lambda index: (sum(corners[index]) % 2, index))  # a half fraction, then the other
    points: list[dict[str, Value]] = []
    for index in itertools.islice(itertools.cycle(order), count):
        first, second, third = corners[index]
        batch = batches[first]
        points.append(
            {
                "train_batch_size": batch,
                "minibatch_size": min(minibatches[second], batch),
                "num_epochs": epochs[third],
            }
        )
    return points


def requests_of(spec: StudySpec, decisions: Sequence[StageDecided]) -> list[Request]:
    """Return every trial asked for so far, in the order of their numbers."""
    later = (Request.from_json(content) for decision in decisions for content in decision.requests)
    return [*opening(spec), *later]


def cancelled_by(decisions: Sequence[StageDecided]) -> set[int]:
    """Return the trials that were asked for and are not run."""
    return {trial for decision in decisions for trial in decision.cancelled}


def current(holdup: HoldUpSpec, decisions: Sequence[StageDecided]) -> Phase | None:
    """Return the phase whose trials run now; None at the end of the protocol."""
    every = phases(holdup)
    return every[len(decisions)] if len(decisions) < len(every) else None


def expected_trials(spec: StudySpec) -> dict[tuple[Stage, int, Variant], int]:
    """Return (stage, scale, variant) -> the most trials that a study runs; which settings is not known beforehand."""
    holdup = _holdup(spec)
    target, small, scales, sizes = holdup.target_scale, holdup.small_scale, spec.scales, holdup.confirm
    count: Counter[tuple[Stage, int, Variant]] = Counter()
    count["calibrate", target, "study"] += holdup.calibrate.num_points + holdup.calibrate.num_seeds
    count["search", target, "study"] += len(holdup.baselines)
    for scale in _search_scales(spec):
        count["search", scale, "study"] += 1
    for scale in {target, small}:
        dealt = sum((each == small) == (scale == small) for each in _search_scales(spec))
        count["search", scale, "study"] += math.ceil(dealt * SECOND_LOOKS)
    entering, finalists, seeds = holdup.race.num_settings, holdup.stress.num_settings, holdup.stress.num_seeds
    for block in holdup.race.blocks:
        count["race", target, "study"] += entering * block
        entering = max(math.ceil(entering / 2), finalists)
    for scale in scales:
        run_already = min(seeds, sum(holdup.race.blocks)) if scale == target else 0
        count["stress", scale, "study"] += finalists * (seeds - run_already)
    count["stress", small, "study"] += finalists * seeds
    count["stress", target, "study"] += (len(holdup.baselines) + _NUM_SCALED) * seeds
    for scale in (target, small, *holdup.unseen_scales):
        count["confirm", scale, "study"] += sizes.num_seeds
    count["confirm", small, "study"] += sizes.num_seeds
    count["confirm", target, "study"] += _NUM_RIVALS * sizes.num_seeds_others
    if sizes.num_seeds_stock:
        count["confirm", target, "stock"] += sizes.num_seeds_stock
    if holdup.measure is not None:
        largest, repeats = max(holdup.measure.scales), holdup.measure.repeats
        for scale in holdup.measure.scales:
            count["measure", scale, "measured"] += 3 * repeats
        for scale, trials in _shares(largest):
            count["measure", scale, "measured"] += trials * repeats
        count["measure", min(holdup.measure.scales), "measured"] += 2 * repeats
    return dict(count)


def num_later(spec: StudySpec) -> int:
    """Return how many whole trials race, stress and confirmation need: what a budget has to keep back."""
    return sum(
        count for (stage, _, _), count in expected_trials(spec).items() if stage in ("race", "stress", "confirm")
    )


def fewest_looks(holdup: HoldUpSpec) -> int:
    """Return the looks of the smallest search that leaves the race and the small scale something to choose from."""
    return len(holdup.baselines) + math.ceil(holdup.race.num_settings * 4 / 3)


def _search_scales(spec: StudySpec) -> list[int]:
    """Return the scale of each proposal; those between the small and the target scale take turns."""
    holdup = _holdup(spec)
    target, small = holdup.target_scale, holdup.small_scale
    between = [scale for scale in spec.scales if scale not in (target, small)] or [target]
    turn = itertools.cycle(between)
    by_role = {"target": lambda: target, "small": lambda: small, "between": lambda: next(turn)}
    return [by_role[holdup.role_of(index)]() for index in range(holdup.num_settings)]


def decide(
    spec: StudySpec,
    rows: Mapping[int, TrialRow],
    decisions: Sequence[StageDecided],
    *,
    cancelled: Sequence[int] = (),
    reason: str = "",
) -> Step:
    """Return the decision that closes the current phase, all of whose trials have ended.

    Args:
        spec: The space.
        rows: Every trial on record.
        decisions: The decisions so far.
        cancelled: Trials of this phase that are not run.
        reason: Why they are not.

    Raises:
        RecordError: A trial of the phase has not ended.
    """
    return _Deciding(spec, rows, decisions, cancelled).step(reason)


class _Deciding:
    """One decision in the making."""

    def __init__(
        self,
        spec: StudySpec,
        rows: Mapping[int, TrialRow],
        decisions: Sequence[StageDecided],
        cancelled: Sequence[int],
    ) -> None:
        self._spec, self._holdup = spec, _holdup(spec)
        self._decisions, self._cancelled = decisions, sorted(cancelled)
        asked = requests_of(spec, decisions)
        gone = cancelled_by(decisions) | set(cancelled)
        missing = [trial for trial in range(len(asked)) if trial not in gone and not _ended(rows.get(trial))]
        if missing:
            raise RecordError(f"decision {len(decisions)}: all trials must have ended, got {missing[:5]} open.")
        self._rows = {trial: rows[trial] for trial in range(len(asked)) if trial not in gone}
        self._settings = {row.digest: row.rule for row in self._rows.values()}
        self._target, self._small = self._holdup.target_scale, self._holdup.small_scale
        self._large = [scale for scale in spec.scales if scale != self._small]
        self._pooled = pooled_sd([np.array(group) for group in self._groups()])
        self._frozen: SettingsFrozen | None = None
        self._kept: list[str] = []
        self._dropped: list[str] = []
        self._evidence: dict[str, Any] = {}

    def step(self, reason: str) -> Step:
        """Return the decision of the current phase."""
        every = phases(self._holdup)
        index = len(self._decisions)
        following = every[index + 1] if index + 1 < len(every) else None
        requests = list(self._requests(following))
        decision = StageDecided(
            number=index,
            stage=every[index].stage,
            phase=every[index].name,
            num_looks=len(self._rows),
            kept=self._kept,
            dropped=self._dropped,
            evidence={"pooled_sd": self._pooled, **self._evidence, **({"cancelled": reason} if reason else {})},
            cancelled=self._cancelled,
            requests=[request.to_json() for request in requests],
            next_stage=following.stage if following else None,
            protocol=PROTOCOL,
        )
        return Step(decision=decision, frozen=self._frozen)

    def _requests(self, following: Phase | None) -> Iterator[Request]:
        """Yield the trials of the phase that follows, and note kept, dropped and evidence on the way."""
        if following is None:
            return
        kind, _, number = following.name.rpartition(" ")
        match kind or following.name:
            case "search":
                self._note_costs()
                yield from self._search(int(number))
            case "second looks":
                yield from self._second_looks(int(number))
            case "race":
                yield from self._race(int(number))
            case "stress":
                yield from self._stress()
            case "baselines":
                yield from self._baselines()
            case "confirm":
                yield from self._confirm()
            case "stock":
                yield from self._stock()
            case "measure":
                yield from self._measure()

    # --- what is known -----------------------------------------------------------------------------------------

    def _whole(self, stages: Sequence[str] = STAGES) -> Iterator[TrialRow]:
        """Yield the trials of the whole budget as the space says, in their order."""
        for trial in sorted(self._rows):
            row = self._rows[trial]
            if row.variant == "study" and row.iterations is None and row.stage in stages:
                yield row

    def _looks(
        self, scales: Sequence[int], stages: Sequence[str], *, names: Sequence[str | None] = (None, "default")
    ) -> dict[str, list[float]]:
        """Return setting -> merits of its trials at the given scales and stages."""
        looks: dict[str, list[float]] = defaultdict(list)
        for row in self._whole(stages):
            if row.num_env_runners in scales and row.anchor in names:
                looks[row.digest].append(merit(self._spec, row))
        return dict(looks)

    def _groups(self) -> list[list[float]]:
        """Return the merits of every setting at every scale: what the spread between seeds is taken from."""
        groups: dict[tuple[str, int], list[float]] = defaultdict(list)
        for row in self._whole(("calibrate", "search")):
            groups[row.digest, row.num_env_runners].append(merit(self._spec, row))
        return [group for group in groups.values() if len(group) > 1]

    def _costs(self, scales: Sequence[int]) -> dict[str, float]:
        """Return setting -> mean CPU-seconds of its trials at the given scales."""
        spent: dict[str, list[float]] = defaultdict(list)
        for row in self._whole():
            if row.num_env_runners in scales and (seconds := row.summary.get("cpu_s_spent")) is not None:
                spent[row.digest].append(seconds)
        return {digest: sum(seconds) / len(seconds) for digest, seconds in spent.items()}

    def _on_rank_seeds(self, digest: str, scale: int) -> dict[int, float]:
        """Return rank seed -> merit of a setting at a scale."""
        return {
            row.seed: merit(self._spec, row)
            for row in self._whole(("race", "stress"))
            if row.digest == digest and row.num_env_runners == scale
        }

    # --- calibrate and search ----------------------------------------------------------------------------------

    def _note_costs(self) -> None:
        if len(self._decisions) > 0:
            return
        model = cost_model(self._rows.values())
        self._evidence["cost_model"] = None if model is None else asdict(model)

    def _search(self, number: int) -> Iterator[Request]:
        holdup, seeds = self._holdup, self._holdup.tune_seeds.seeds
        if number == 1:
            for name, setting in fixed_baselines(holdup).items():
                yield Request(stage="search", num_env_runners=self._target, seed=seeds[0], setting=setting, name=name)
        first, last = (holdup.num_settings * part // holdup.num_rounds for part in (number - 1, number))
        for index, scale in list(enumerate(_search_scales(self._spec)))[first:last]:
            yield Request(stage="search", num_env_runners=scale, seed=seeds[index % len(seeds)], told=True)

    def _second_looks(self, number: int) -> Iterator[Request]:
        seeds = self._holdup.tune_seeds.seeds
        fresh = self._trials_of(f"search {number}")
        for scales in (self._large, [self._small]):
            rows = [row for row in fresh if row.anchor is None and row.num_env_runners in scales]
            looks = {row.digest: [merit(self._spec, row)] for row in rows}
            ranked = self._ranked(looks, scales)
            chosen = ranked[: math.ceil(len(ranked) * SECOND_LOOKS)]
            self._kept += chosen
            self._dropped += ranked[len(chosen) :]
            for row in (next(row for row in rows if row.digest == digest) for digest in chosen):
                yield Request(
                    stage="search",
                    num_env_runners=row.num_env_runners,
                    seed=seeds[(seeds.index(row.seed) + 1) % len(seeds)],
                    setting=row.rule,
                    told=True,
                )

    def _trials_of(self, phase: str) -> list[TrialRow]:
        """Return the trials of the phase that is being closed, by its name."""
        every = [each.name for each in phases(self._holdup)]
        index = every.index(phase)
        before = len(requests_of(self._spec, self._decisions[: index - 1]))
        count = len(self._decisions[index - 1].requests)
        return [self._rows[trial] for trial in range(before, before + count) if trial in self._rows]

    def _ranked(self, looks: Mapping[str, Sequence[float]], scales: Sequence[int]) -> list[str]:
        """Return settings by their lower bounds, best first, and note the bounds."""
        merits = selection.bounds_of(looks, self._pooled)
        self._evidence.setdefault("bounds", {}).update(
            {digest: {"bound": merits[digest], "looks": list(looks[digest])} for digest in merits}
        )
        return selection.best(merits, self._costs(scales), len(merits))

    # --- race and stress ---------------------------------------------------------------------------------------

    def _race(self, number: int) -> Iterator[Request]:
        holdup = self._holdup
        if number == 1:
            ranked = self._ranked(self._looks(self._large, ("calibrate", "search")), self._large)
            self._split(ranked, holdup.race.num_settings)
        else:
            self._close_block(holdup.race.blocks[: number - 1])
        done = sum(holdup.race.blocks[: number - 1])
        seeds = holdup.rank_seeds.seeds[done : done + holdup.race.blocks[number - 1]]
        for seed, digest in itertools.product(seeds, self._kept):
            yield self._ranking("race", digest, self._target, seed)

    def _split(self, ranked: Sequence[str], count: int) -> None:
        self._kept, self._dropped = list(ranked[:count]), list(ranked[count:])

    def _close_block(self, blocks: Sequence[int]) -> None:
        """Keep the better half of the settings in the race."""
        seeds = self._holdup.rank_seeds.seeds[: sum(blocks)]
        racing = self._decisions[-1].kept
        table = {digest: self._on_rank_seeds(digest, self._target) for digest in racing}
        scores = {digest: [table[digest][seed] for seed in seeds] for digest in racing}
        least = self._holdup.stress.num_settings
        self._kept = selection.race(scores, self._costs([self._target]), pooled_sd=self._pooled, least=least)
        self._dropped = [digest for digest in racing if digest not in self._kept]
        self._evidence["scores"] = scores
        self._evidence["seeds"] = list(seeds)

    def _ranking(self, stage: Stage, digest: str, scale: int, seed: int) -> Request:
        return Request(stage=stage, num_env_runners=scale, seed=seed, setting=self._settings[digest])

    def _stress(self) -> Iterator[Request]:
        holdup = self._holdup
        self._close_block(holdup.race.blocks)
        racing, count = self._kept + self._dropped, holdup.stress.num_settings
        self._split(racing, count)
        at_small = self._looks([self._small], ("calibrate", "search"))
        small = selection.best(selection.bounds_of(at_small, self._pooled), self._costs([self._small]), count)
        self._evidence["small"] = small
        seeds = holdup.rank_seeds.seeds[: holdup.stress.num_seeds]
        wanted = [(digest, scale) for digest in self._kept for scale in self._spec.scales]
        wanted += [(digest, self._small) for digest in small if digest not in self._kept]
        for seed, (digest, scale) in itertools.product(seeds, wanted):
            if seed not in self._on_rank_seeds(digest, scale):
                yield self._ranking("stress", digest, scale, seed)

    def _baselines(self) -> Iterator[Request]:
        """Choose winner and small-scale best, then ask for what the winner has to beat."""
        holdup = self._holdup
        finalists = self._decisions[-1].kept
        means = {
            digest: {scale: _mean(self._on_rank_seeds(digest, scale).values()) for scale in self._spec.scales}
            for digest in finalists
        }
        holds = {digest: selection.hold({scale: means[digest][scale] for scale in self._large}) for digest in finalists}
        winner = selection.winner(holds, self._costs([self._target]))
        candidates = dict.fromkeys([*self._decisions[-1].evidence["small"], *finalists])
        at_small = {digest: _mean(self._on_rank_seeds(digest, self._small).values()) for digest in candidates}
        best_small = selection.best(at_small, self._costs([self._small]), 1)[0]
        self._kept = [winner]
        self._dropped = [digest for digest in finalists if digest != winner]
        self._evidence |= {
            "means": {digest: {str(scale): value for scale, value in each.items()} for digest, each in means.items()},
            "holds": holds,
            "at_small": at_small,
            BEST_SMALL: best_small,
        }
        for seed, (name, setting) in itertools.product(
            holdup.rank_seeds.seeds[: holdup.stress.num_seeds], self._rivals(winner, best_small).items()
        ):
            yield Request(stage="stress", num_env_runners=self._target, seed=seed, setting=setting, name=name)

    def _rivals(self, winner: str, best_small: str) -> dict[str, dict[str, Value]]:
        """Return the baselines by name, without those that are the winner itself at the target scale."""
        every = fixed_baselines(self._holdup) | scaled_baselines(self._settings[best_small], self._small)
        own = resolve(self._settings[winner], self._target)
        seen = [own]
        rivals = {}
        for name, setting in every.items():
            numbers = resolve(setting, self._target)
            if numbers not in seen:
                rivals[name] = setting
                seen.append(numbers)
        return rivals

    # --- confirm and measure -----------------------------------------------------------------------------------

    def _confirm(self) -> Iterator[Request]:
        """Freeze the settings and ask for every arm, in random order.

        Besides the winner and the small scale's best: the best baseline, the best rule that carries the small scale's
        best up, and naive growth.
        """
        holdup, sizes = self._holdup, self._holdup.confirm
        chosen = self._decisions[-1]
        winner, best_small = chosen.kept[0], chosen.evidence[BEST_SMALL]
        merits: dict[str, list[float]] = defaultdict(list)
        settings: dict[str, dict[str, Value]] = {}
        spent: dict[str, list[float]] = defaultdict(list)
        for row in self._whole(("stress",)):
            if row.anchor is not None:
                merits[row.anchor].append(merit(self._spec, row))
                spent[row.anchor].append(row.summary.get("cpu_s_spent") or 0.0)
                settings[row.anchor] = row.rule
        means = {name: _mean(values) for name, values in merits.items()}
        costs = {name: _mean(values) for name, values in spent.items()}
        ranked = selection.best(means, costs, len(means))
        scaled = [name for name in ranked if name.startswith(BEST_SMALL)]
        rivals = list(dict.fromkeys([*ranked[:1], *scaled[:1], *(["naive_growth"] if "naive_growth" in means else [])]))
        self._kept, self._evidence = [winner], {"baselines": means, "best_baseline": ranked[0] if ranked else None}
        arms = [(WINNER, self._settings[winner], scale, sizes.num_seeds) for scale in self._judged_scales()]
        # As many seeds as the winner: the verdict rests on the difference of these two arms.
        arms.append((BEST_SMALL, self._settings[best_small], self._small, sizes.num_seeds))
        arms += [(name, settings[name], self._target, sizes.num_seeds_others) for name in rivals]
        self._frozen = SettingsFrozen(
            winner=winner, settings={digest_of(setting): dict(setting) for _, setting, _, _ in arms}
        )
        requests = [
            Request(stage="confirm", num_env_runners=scale, seed=seed, setting=setting, name=name)
            for name, setting, scale, count in arms
            for seed in holdup.test_seeds.seeds[:count]
        ]
        # In random order, so that no arm has a time of day of its own.
        for index in np.random.default_rng([self._spec.search.sampler_seed, 1]).permutation(len(requests)):
            yield requests[index]

    def _judged_scales(self) -> list[int]:
        return [self._target, self._small, *self._holdup.unseen_scales]

    def _frozen_before(self) -> tuple[str, str]:
        """Return the digests of the winner and of the small scale's best."""
        chosen = next(each for each in self._decisions if BEST_SMALL in each.evidence)
        return chosen.kept[0], chosen.evidence[BEST_SMALL]

    def _stock(self) -> Iterator[Request]:
        winner, _ = self._frozen_before()
        for seed in self._holdup.test_seeds.seeds[: self._holdup.confirm.num_seeds_stock]:
            yield Request(
                stage="confirm",
                num_env_runners=self._target,
                seed=seed,
                setting=self._settings[winner],
                name=WINNER_STOCK,
                variant="stock",
            )

    def _measure(self) -> Iterator[Request]:
        """Ask for blocks of short real trials: batch fixed, batch per runner fixed, the same CPUs for more trials."""
        measure = self._holdup.measure
        assert measure is not None  # the phase exists
        winner, best_small = (self._settings[digest] for digest in self._frozen_before())
        strong, weak = self._of_one_batch(winner), self._of_one_share(winner)
        reference = self._of_one_batch(best_small)
        points = [("strong", strong, n, 1) for n in measure.scales] + [("weak", weak, n, 1) for n in measure.scales]
        points += [("reference", reference, n, 1) for n in measure.scales]
        points += [("shared", strong, n, trials) for n, trials in _shares(max(measure.scales))]
        anchor = ("anchor", strong, min(measure.scales), 1)
        seeds = self._holdup.test_seeds.seeds
        group = itertools.count()
        for block in range(measure.repeats):
            rng = np.random.default_rng([self._spec.search.sampler_seed, 2, block])
            ordered = [anchor, *(points[index] for index in rng.permutation(len(points))), anchor]
            for name, setting, scale, trials in ordered:
                together = next(group)
                for _ in range(trials):
                    yield Request(
                        stage="measure",
                        num_env_runners=scale,
                        seed=seeds[block % len(seeds)],
                        setting=setting,
                        name=name,
                        variant="measured",
                        iterations=measure.iterations,
                        group=together,
                    )

    def _of_one_batch(self, setting: Mapping[str, Value]) -> dict[str, Value]:
        """Return the setting with the numbers of the target scale at every scale."""
        return {name: value for name, value in resolve(setting, self._target).items() if name != SCALE}

    def _of_one_share(self, setting: Mapping[str, Value]) -> dict[str, Value]:
        """Return the setting with the target scale's steps per runner at every scale, minibatch and lr fixed."""
        numbers = self._of_one_batch(setting)
        return overlay(numbers, {"steps_per_env_runner": int(numbers["train_batch_size"]) // self._target})


def _shares(largest: int) -> list[tuple[int, int]]:
    """Return (runners, trials) that take the CPUs of one trial of `largest` runners, as two and as four trials."""
    cpus = largest + 1  # and a main process
    return [((cpus - trials) // trials, trials) for trials in (2, 4) if cpus >= 2 * trials]


def cost_model(rows: Iterable[TrialRow]) -> cost.CostModel | None:
    """Return the cost model of the calibration trials; None when none of them cost anything."""
    samples = [
        cost.Sample(
            setting=row.setting,
            env_steps=row.summary.get("env_steps") or 0,
            cpu_s=row.summary.get("cpu_s_spent") or 0.0,
        )
        for row in rows
        if row.stage == "calibrate" and row.status == "finished"
    ]
    usable = [sample for sample in samples if sample.cpu_s > 0 and sample.env_steps > 0]
    return cost.fit(usable) if usable else None


def _holdup(spec: StudySpec) -> HoldUpSpec:
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no stages")  # a mistake of ours, not of a person's
    return spec.holdup


def _ended(row: TrialRow | None) -> bool:
    return row is not None and row.ended


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
