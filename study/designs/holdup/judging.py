"""Confirmation and measurement: the frozen settings on test seeds, and the clock. Pure; an outcome for every phase."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from study.designs.holdup import selection
from study.designs.holdup.arms import Arm, Run, arms_of, run_of
from study.designs.holdup.baselines import Setting
from study.designs.holdup.choosing import REUSED, rivals
from study.designs.holdup.comparison import compare
from study.designs.holdup.evidence import Evidence, Outcome, mean
from study.designs.holdup.phases import first_half, shares
from study.designs.holdup.verdict import LEVEL_HALF, halfway, limits_of
from study.designs.search.worth import merit
from study.designs.throughput.design import in_block
from study.records.ledger import TrialRow
from study.records.records import SettingsFrozen
from study.records.request import TrialRequest, digest_of
from study.space.parameters import SCALE, Value
from study.space.settings import BEST_SMALL, SHARED, WINNER, WINNER_STOCK, overlay, resolve
from study.space.spec import StudySpec


def confirm(known: Evidence) -> Outcome:
    """Freeze the settings and ask for the first half of every arm, in random order.

    Besides the winner and the small scale's best: the best baseline, the best rule that carries the small scale's best
    up, and naive growth. Where the winner is the small scale's best too, it is its own reference there, and one arm.

    **Every run plays evaluation episodes of its own**, which no other trial has played or will play. A run's score then
    holds a draw of both, of the training and of the episodes, and the runs of an arm are independent: Student's and
    Welch's intervals over runs hold both components. The other design, in which all runs play the same episodes, needs
    a crossed model (Judd, Westfall & Kenny, "Treating stimuli as a random factor in social psychology", Journal of
    Personality and Social Psychology 103, 2012), and its number of episodes never grows with the number of runs: see
    `tests/unit/test_confirmation_episodes.py` for both, simulated with the components of the recorded example.
    """
    last = known.decisions[-1]
    winner, best_small = last.kept[0], last.evidence[BEST_SMALL]
    settings = rivals(known, winner, best_small)
    reused: Mapping[str, list[int]] = last.evidence.get(REUSED, {})
    runs: dict[str, list[TrialRow]] = {name: known.rows(reused.get(name, [])) for name in settings}
    for row in known.whole(("stress",)):
        if row.anchor is not None:
            runs[row.anchor].append(row)
    means = {name: mean(merit(known.spec, row) for row in rows) for name, rows in runs.items()}
    costs = {name: mean(row.summary.get("cpu_s_spent") or 0.0 for row in rows) for name, rows in runs.items()}
    ranked = selection.best(means, costs, len(means))
    scaled = [name for name in ranked if name.startswith(BEST_SMALL)]
    judged_baselines = dict.fromkeys([*ranked[:1], *scaled[:1], *(name for name in means if name == "naive_growth")])
    arms = _arms(known, winner, best_small, {name: settings[name] for name in judged_baselines})
    return Outcome(
        requests=_with_own_episodes(known, _of_arms(known, arms, second=False)),
        kept=[winner],
        evidence={"baselines": means, "best_baseline": ranked[0] if ranked else None},
        frozen=SettingsFrozen(winner=winner, settings={digest_of(setting): dict(setting) for _, setting, _, _ in arms}),
    )


_ArmPlan = tuple[str, Setting, int, int]
"""Name, setting, scale and most seeds of an arm of the confirmation."""


def _arms(known: Evidence, winner: str, best_small: str, baselines: Mapping[str, Setting]) -> list[_ArmPlan]:
    """Return the arms of the confirmation."""
    holdup, sizes, settings = known.holdup, known.holdup.confirm, known.settings
    judged = [holdup.target_scale, holdup.small_scale, *holdup.unseen_scales]
    arms = [(WINNER, settings[winner], scale, sizes.num_seeds) for scale in judged]
    # As many seeds as the winner: the verdict rests on the difference of these two arms.
    if resolve(settings[best_small], holdup.small_scale) != resolve(settings[winner], holdup.small_scale):
        arms.append((BEST_SMALL, settings[best_small], holdup.small_scale, sizes.num_seeds))
    return arms + [(name, each, holdup.target_scale, sizes.num_seeds_others) for name, each in baselines.items()]


def _of_arms(known: Evidence, arms: Sequence[_ArmPlan], *, second: bool) -> list[TrialRequest]:
    """Return the runs of one half of the arms, in random order, so that no arm has a time of day of its own."""
    requests = []
    for name, setting, scale, count in arms:
        half = first_half(count)
        for seed in known.holdup.test_seeds.seeds[half if second else 0 : count if second else half]:
            requests.append(TrialRequest(stage="confirm", num_env_runners=scale, seed=seed, setting=setting, name=name))
    stream = [known.spec.search.sampler_seed, 1, *([2] if second else [])]
    order = np.random.default_rng(stream).permutation(len(requests))
    return [requests[index] for index in order]


def rest(known: Evidence) -> Outcome:
    """Ask for the second half of the arms that are not decided.

    Where rule 2 is broken already, nothing runs any more. Else the winner runs on at every judged scale: only all runs
    together can refuse a setting that fails in one run of twenty. The arms that it is compared with stop where all
    that they are there for is shown at `LEVEL_HALF`: the references at the small scale where the score is kept at every
    scale, a baseline where the winner's score is better, naive growth where steps are saved besides.
    """
    holdup, (winner, best_small) = known.holdup, _chosen_digests(known)
    target, small = holdup.target_scale, holdup.small_scale
    found = _arms_so_far(known)
    baselines = {name: arm for (name, scale), arm in found.items() if name not in (WINNER, BEST_SMALL)}
    arms = arms_of(found, holdup)
    half = halfway(arms, limits_of(known.spec), rng=np.random.default_rng([known.spec.search.sampler_seed, 4]))
    if half.lost:
        return Outcome(kept=[winner], evidence={"lost": True, "stopped": sorted(f"{n}@{scale}" for n, scale in found)})
    rng = np.random.default_rng([known.spec.search.sampler_seed, 3])
    compared = compare(arms.winner[target], list(baselines.values()), rng=rng, level=LEVEL_HALF)
    stopped = {(row.baseline, target) for row in compared.rows if row.better}
    stopped -= set() if half.naive_growth else {("naive_growth", target)}
    stopped |= {(arm.name, small) for arm in arms.references} if half.references else set()
    settings = {row.anchor: row.rule for row in known.whole(("confirm",)) if row.anchor in baselines}
    left = [arm for arm in _arms(known, winner, best_small, settings) if (arm[0], arm[2]) not in stopped]
    requests = _of_arms(known, left, second=True)
    return Outcome(
        requests=_with_own_episodes(known, requests),
        kept=[winner],
        evidence={"lost": False, "stopped": sorted(f"{name}@{scale}" for name, scale in stopped)},
    )


def _arms_so_far(known: Evidence) -> dict[tuple[str, int], Arm]:
    """Return the arms of the confirmation by name and scale."""
    rows: dict[tuple[str, int], list[TrialRow]] = defaultdict(list)
    for row in known.whole(("confirm",)):
        rows[row.anchor or "", row.num_env_runners].append(row)
    return {
        (name, scale): Arm(
            name=name,
            scale=scale,
            runs=tuple(_coarse(known.spec, row) for row in sorted(each, key=lambda row: row.seed)),
        )
        for (name, scale), each in rows.items()
    }


def _coarse(spec: StudySpec, row: TrialRow) -> Run:
    """Return what a trial came to; its time to the target is known to two evaluations, which is never too well."""
    run, between = run_of(spec, row), math.inf
    if spec.budget.env_steps is not None:
        between = spec.budget.env_steps / spec.evaluation.num_evaluations + row.setting["train_batch_size"]
    end = run.env_steps_to_target or run.env_steps or 0.0
    return replace(run, env_steps_before_target=max(end - 2 * between, 0.0))


def _with_own_episodes(known: Evidence, requests: Sequence[TrialRequest]) -> list[TrialRequest]:
    """Return the requests of the confirmation, each with a block of evaluation episodes that nothing else plays.

    The stages before play the first block; the confirmation takes the blocks behind it, in the order of its trials.
    """
    after = sum(len(each.requests) for each in known.decisions if each.next_stage == "confirm")
    size = known.spec.evaluation.episodes
    first = ((1 + after + number) * size for number in range(len(requests)))
    return [structs.replace(request, first_episode=each) for request, each in zip(requests, first, strict=True)]


def _chosen_digests(known: Evidence) -> tuple[str, str]:
    """Return the digests of the winner and of the small scale's best."""
    last = next(each for each in known.decisions if BEST_SMALL in each.evidence)
    return last.kept[0], last.evidence[BEST_SMALL]


def _lost(known: Evidence) -> bool:
    """Return whether the confirmation stopped at half, since rule 2 cannot be kept any more."""
    return any(each.evidence.get("lost") for each in known.decisions)


def stock(known: Evidence) -> Outcome:
    """Ask for the winner under RLlib's own runner and learner; for nothing where its verdict is lost."""
    holdup, (winner, _) = known.holdup, _chosen_digests(known)
    if _lost(known):
        return Outcome()
    requests = [
        TrialRequest(
            stage="confirm",
            num_env_runners=holdup.target_scale,
            seed=seed,
            setting=known.settings[winner],
            name=WINNER_STOCK,
            variant="stock",
        )
        for seed in holdup.test_seeds.seeds[: holdup.confirm.num_seeds_stock]
    ]
    return Outcome(requests=_with_own_episodes(known, requests))


def measure(known: Evidence) -> Outcome:
    """Ask for blocks of short real trials: batch fixed, batch per runner fixed, the same CPUs for more trials.

    For nothing where the verdict is lost.
    """
    holdup, sizes = known.holdup, known.holdup.measure
    assert sizes is not None  # the phase exists
    if _lost(known):
        return Outcome()
    strong, reference = (
        _of_one_batch(known.settings[digest], holdup.target_scale) for digest in _chosen_digests(known)
    )
    weak = _of_one_share(strong, holdup.target_scale)
    points = [("strong", strong, n, 1) for n in sizes.scales] + [("weak", weak, n, 1) for n in sizes.scales]
    points += [("reference", reference, n, 1) for n in sizes.scales]
    points += [(SHARED, strong, n, trials) for n, trials in shares(max(sizes.scales))]
    base = ("anchor", strong, min(sizes.scales), 1)
    seeds, group = holdup.test_seeds.seeds, itertools.count()
    requests = []
    for block in range(sizes.repeats):
        rng = np.random.default_rng([known.spec.search.sampler_seed, 2, block])
        for name, setting, scale, trials in in_block(points, base, rng):
            request = TrialRequest(
                stage="measure",
                num_env_runners=scale,
                seed=seeds[block % len(seeds)],
                setting=setting,
                name=name,
                variant="measured",
                iterations=sizes.iterations,
                group=next(group),
            )
            requests += [request] * trials
    return Outcome(requests=requests)


def _of_one_batch(setting: Mapping[str, Value], target: int) -> Setting:
    """Return the setting with the numbers of the target scale at every scale."""
    return {name: value for name, value in resolve(setting, target).items() if name != SCALE}


def _of_one_share(numbers: Mapping[str, Value], target: int) -> Setting:
    """Return the setting with the target scale's steps per runner at every scale, minibatch and lr fixed."""
    return overlay(numbers, {"steps_per_env_runner": int(numbers["train_batch_size"]) // target})
