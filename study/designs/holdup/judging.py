"""Confirmation and measurement: the frozen settings on test seeds, and the clock. Pure; an outcome for every phase."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from study.designs.holdup import selection
from study.designs.holdup.baselines import BEST_SMALL, WINNER, WINNER_STOCK, Setting
from study.designs.holdup.choosing import REUSED, rivals
from study.designs.holdup.evidence import Evidence, Outcome, mean
from study.designs.holdup.phases import shares
from study.designs.search.worth import merit
from study.designs.throughput.blocks import in_block
from study.records.ledger import TrialRow
from study.records.records import SettingsFrozen
from study.records.request import TrialRequest, digest_of
from study.space.parameters import SCALE, Value
from study.space.settings import overlay, resolve
from study.space.variants import SHARED


def confirm(known: Evidence) -> Outcome:
    """Freeze the settings and ask for every arm, in random order.

    Besides the winner and the small scale's best: the best baseline, the best rule that carries the small scale's best
    up, and naive growth. Where the winner is the small scale's best too, it is its own reference there, and one arm.

    **Every run plays evaluation episodes of its own**, which no other trial has played or will play. A run's score then
    holds a draw of both, of the training and of the episodes, and the runs of an arm are independent: Student's and
    Welch's intervals over runs hold both components. The other design, in which all runs play the same episodes, needs
    a crossed model (Judd, Westfall & Kenny, "Treating stimuli as a random factor in social psychology", Journal of
    Personality and Social Psychology 103, 2012), and its number of episodes never grows with the number of runs: see
    `tests/unit/test_confirmation_episodes.py` for both, simulated with the components of the recorded example.
    """
    holdup, sizes, last = known.holdup, known.holdup.confirm, known.decisions[-1]
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
    judged = [holdup.target_scale, holdup.small_scale, *holdup.unseen_scales]
    arms = [(WINNER, known.settings[winner], scale, sizes.num_seeds) for scale in judged]
    # As many seeds as the winner: the verdict rests on the difference of these two arms.
    if known.protocol < 3 or not _alike(known.settings[best_small], known.settings[winner], holdup.small_scale):
        arms.append((BEST_SMALL, known.settings[best_small], holdup.small_scale, sizes.num_seeds))
    arms += [(name, settings[name], holdup.target_scale, sizes.num_seeds_others) for name in judged_baselines]
    requests = [
        TrialRequest(stage="confirm", num_env_runners=scale, seed=seed, setting=setting, name=name)
        for name, setting, scale, count in arms
        for seed in holdup.test_seeds.seeds[:count]
    ]
    # In random order, so that no arm has a time of day of its own.
    order = np.random.default_rng([known.spec.search.sampler_seed, 1]).permutation(len(requests))
    return Outcome(
        requests=_with_own_episodes(known, [requests[index] for index in order]),
        kept=[winner],
        evidence={"baselines": means, "best_baseline": ranked[0] if ranked else None},
        frozen=SettingsFrozen(winner=winner, settings={digest_of(setting): dict(setting) for _, setting, _, _ in arms}),
    )


def _alike(first: Setting, second: Setting, scale: int) -> bool:
    """Return whether two settings are the same numbers at a scale."""
    return resolve(first, scale) == resolve(second, scale)


def _with_own_episodes(known: Evidence, requests: Sequence[TrialRequest], *, after: int = 0) -> list[TrialRequest]:
    """Return the requests, each with a block of evaluation episodes that nothing else plays.

    The stages before play the first block; the confirmation takes the blocks behind it, in the order of its trials.

    Args:
        known: What is known.
        requests: Of the confirmation.
        after: Trials that the confirmation has asked for before.
    """
    if known.protocol < 3:
        return list(requests)
    size = known.spec.evaluation.episodes
    return [replace(request, first_episode=(1 + after + number) * size) for number, request in enumerate(requests)]


def _chosen(known: Evidence) -> tuple[Setting, Setting]:
    """Return the winner and the small scale's best."""
    last = next(each for each in known.decisions if BEST_SMALL in each.evidence)
    return known.settings[last.kept[0]], known.settings[last.evidence[BEST_SMALL]]


def stock(known: Evidence) -> Outcome:
    """Ask for the winner under RLlib's own runner and learner."""
    holdup, (winner, _) = known.holdup, _chosen(known)
    requests = [
        TrialRequest(
            stage="confirm",
            num_env_runners=holdup.target_scale,
            seed=seed,
            setting=winner,
            name=WINNER_STOCK,
            variant="stock",
        )
        for seed in holdup.test_seeds.seeds[: holdup.confirm.num_seeds_stock]
    ]
    return Outcome(requests=_with_own_episodes(known, requests, after=len(known.decisions[-1].requests)))


def measure(known: Evidence) -> Outcome:
    """Ask for blocks of short real trials: batch fixed, batch per runner fixed, the same CPUs for more trials."""
    holdup, sizes = known.holdup, known.holdup.measure
    assert sizes is not None  # the phase exists
    winner, best_small = _chosen(known)
    strong, reference = (_of_one_batch(setting, holdup.target_scale) for setting in (winner, best_small))
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
