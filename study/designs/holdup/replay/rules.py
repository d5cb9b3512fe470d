"""Ways of choosing a setting, each as a function of what it may see and pay. Pure.

Every rule sees the same draw: the order in which the search proposes the settings of the table, and the seeds that
choosing may use. A trial that the rule cannot pay is not started, and the rule then decides on what it has.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from study.designs.holdup.replay.draw import Draw, Purse, look
from study.designs.holdup.replay.protocol import protocol
from study.designs.holdup.replay.table import SMALL, TARGET

REPEATS = 3
"""Seeds of every setting under fixed repeats."""
ETA = 2
"""Successive halving keeps one in so many, and gives it so many times the seeds."""


Rule = Callable[[Draw, Purse], int]
"""Returns the index of the setting that it picks; without money for one trial, the first of the random order."""


def _best(draw: Draw, looks: Mapping[int, Sequence[float]]) -> int:
    """Return the setting with the best mean of its scores; on equal means the one that was looked at earlier."""
    return max(looks, key=lambda each: sum(looks[each]) / len(looks[each]), default=draw.order[0])


def random_pick(draw: Draw, purse: Purse) -> int:
    """Pick a setting blindly: what choosing is worth is seen against this."""
    return draw.order[0]


def oracle(draw: Draw, purse: Purse) -> int:
    """Pick the setting with the best mean over all seeds of the table at the target scale: the best there is."""
    return int(draw.table.score[TARGET].mean(axis=-1).argmax())


def single_seed(draw: Draw, purse: Purse) -> int:
    """Run as many settings as the money pays, each once with one fixed seed, and pick the best.

    It stands in for single-seed TPE. TPE proposes the promising settings earlier; where the money pays for the whole
    table the order does not matter, since the best score that was seen is the same.
    """
    looks: dict[int, list[float]] = {}
    for setting in draw.order:
        score = look(draw, purse, setting, draw.tune[0])
        if score is None:
            break
        looks[setting] = [score]
    return _best(draw, looks)


def last_evaluation(draw: Draw, purse: Purse) -> int:
    """Run every setting once, unseeded, and pick by five episodes of the last evaluation, as RL Zoo does."""
    looks: dict[int, list[float]] = {}
    for setting in draw.order:
        seed = draw.own_seed[setting]
        if not purse.pays(draw.table.cost[TARGET, setting, seed]):
            break
        looks[setting] = [float(draw.table.last_score[TARGET, setting, seed])]
    return _best(draw, looks)


def small_scale(draw: Draw, purse: Purse) -> int:
    """Search at the small scale with one seed, and use the best setting at the target scale, by its rules."""
    looks: dict[int, list[float]] = {}
    for setting in draw.order_small:
        score = look(draw, purse, setting, draw.tune[0], SMALL)
        if score is None:
            break
        looks[setting] = [score]
    return _best(draw, looks)


def fixed_repeats(draw: Draw, purse: Purse) -> int:
    """Run every setting with the same three seeds and pick the best mean; a setting without all three is out."""
    seeds = (*draw.tune, *draw.rank)[:REPEATS]
    looks: dict[int, list[float]] = {}
    for setting in draw.order:
        scores = [score for seed in seeds if (score := look(draw, purse, setting, seed)) is not None]
        if len(scores) < len(seeds):
            break
        looks[setting] = scores
    return _best(draw, looks)


def halving(draw: Draw, purse: Purse) -> int:
    """Halve the settings as the seeds of each double: 1, 2, 4, … as far as the seeds for choosing reach.

    It begins with as many settings as the money pays for at the table's mean cost. In a rung that runs out of money
    the settings without all looks are out.
    """
    seeds = (*draw.tune, *draw.rank)
    rungs = [min(ETA**power, len(seeds)) for power in range(math.ceil(math.log(len(seeds), ETA)) + 1)]
    mean_cost = float(draw.table.cost[TARGET].mean())
    count = len(draw.order)
    while count > 1 and _halving_trials(count, rungs) * mean_cost > purse.limit:
        count -= 1
    looks: dict[int, list[float]] = {setting: [] for setting in draw.order[:count]}
    done = 0
    for rung in rungs:
        complete: dict[int, list[float]] = {}
        for setting, scores in looks.items():
            new = [score for seed in seeds[done:rung] if (score := look(draw, purse, setting, seed)) is not None]
            if len(new) < rung - done:
                break
            complete[setting] = [*scores, *new]
        if not complete:
            break
        done = rung
        ranked: list[int] = []
        while complete and len(ranked) < math.ceil(len(looks) / ETA):
            ranked.append(_best(draw, complete))
            looks[ranked[-1]] = complete.pop(ranked[-1])
        looks = {setting: looks[setting] for setting in ranked}
    return next(iter(looks))


def _halving_trials(count: int, rungs: Sequence[int]) -> int:
    trials, done = 0, 0
    for rung in rungs:
        trials += count * (rung - done)
        done, count = rung, math.ceil(count / ETA)
    return trials


OURS = "our protocol"
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        OURS: protocol,
        "one seed, best score": single_seed,
        "one seed, last evaluation": last_evaluation,
        "one seed, at the small scale": small_scale,
        "three seeds, best mean": fixed_repeats,
        "successive halving": halving,
        "random pick": random_pick,
        "oracle": oracle,
    }
)
"""In the order of the report."""
FREE = ("random pick", "oracle")
"""Reference lines: they run no trial."""
