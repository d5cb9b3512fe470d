"""Other ways of choosing a setting than the protocol, and what chance decides in one replay. Pure.

Every strategy sees the same draw: the order in which the search proposes the settings of the table, and the seeds that
choosing may use. A trial that the strategy cannot pay is not started, and the strategy then decides on what it has.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from study.designs.holdup.replay.table import SMALL, TARGET, ScoreTable
from study.errors import AnalysisError
from study.space.holdup import HoldUpSpec
from study.statistics import FloatArray

REPEATS = 3
"""Seeds of every setting under fixed repeats."""
ETA = 2
"""Successive halving keeps one in so many, and gives it so many times the seeds."""


class Roles(NamedTuple):
    """How many seeds play which role."""

    tune: int
    rank: int
    judge: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One replay: what chance decides in a study, the same for all strategies."""

    table: ScoreTable
    holdup: HoldUpSpec
    """Sizes of our protocol."""
    order: tuple[int, ...]
    """Settings in the order in which a search proposes them, all of the table."""
    tune: tuple[int, ...]
    """Columns of the table that are seeds of the search."""
    rank: tuple[int, ...]
    """Columns that are seeds of race and stress; strategies that know no such difference use `tune + rank`."""
    judge: tuple[int, ...]
    """Columns that judge the pick: none of those above."""
    own_seed: tuple[int, ...]
    """For every setting one of the columns `tune + rank`: the seed of an unseeded trial."""


@dataclass(slots=True, kw_only=True)
class Purse:
    """CPU-seconds that a strategy may spend."""

    limit: float
    spent: float = 0.0

    def pays(self, cost: float) -> bool:
        """Return whether a trial is paid for; one that would exceed the limit is not started."""
        if self.spent + cost > self.limit:
            return False
        self.spent += cost
        return True


Strategy = Callable[[Draw, Purse], int]
"""Returns the index of the setting that it picks; without money for one trial, the first of the random order."""


def roles_of(num_seeds: int, holdup: HoldUpSpec) -> Roles:
    """Return how many seeds play which role: of eight, two tune, four rank and two judge.

    Raises:
        AnalysisError: There are fewer than 3 seeds.
    """
    if num_seeds < 3:
        rule = "a replay needs a seed each to tune, to rank and to judge, 3 in all"
        fix = "Record more seeds."
        raise AnalysisError(where="seeds", rule=rule, got=num_seeds, fix=fix, code="replay-with-too-few-seeds")
    tune = max(min(num_seeds // 4, holdup.tune_seeds.count), 1)
    rank = max(min(num_seeds // 2, holdup.rank_seeds.count), 1)
    return Roles(tune=tune, rank=rank, judge=num_seeds - tune - rank)


def draw_roles(
    columns: npt.NDArray[np.int64], roles: Roles, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places in `columns` that choosing may use (tune first, then rank) and those that judge.

    No seed is on both sides: in a resampled table all places of one seed go to the same side. Where too few are then
    left for choosing, some are used again, which only resampled tables ever need.

    Args:
        columns: Seed of every place, shape (places,); at least two different ones.
        roles: How many of each.
        rng: Source of the draw.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for place, seed in enumerate(columns.tolist()):
        places[seed].append(place)
    groups = [list(places.values())[group] for group in rng.permutation(len(places))]
    judging = groups.pop()
    while len(judging) < roles.judge and len(groups) > 1:
        judging = [*judging, *groups.pop()]
    judge = rng.permutation(judging)[: roles.judge]
    choose = rng.permutation([place for group in groups for place in group])[: roles.tune + roles.rank]
    short = roles.tune + roles.rank - len(choose)
    return np.concatenate([choose, rng.choice(choose, short)]) if short else choose, judge


def draw_study(
    table: ScoreTable, columns: npt.NDArray[np.int64], roles: Roles, holdup: HoldUpSpec, rng: np.random.Generator
) -> Draw:
    """Return what chance decides in one replay.

    Args:
        table: The table, of the given columns.
        columns: Seed of every place in the table, shape (places,); a resampled table repeats some.
        roles: How many seeds play which role.
        holdup: Sizes of our protocol.
        rng: Source of the draw.
    """
    count = len(table.settings)
    choose, judge = draw_roles(columns, roles, rng)
    return Draw(
        table=table,
        holdup=holdup,
        order=tuple(rng.permutation(count).tolist()),
        tune=tuple(choose[: roles.tune].tolist()),
        rank=tuple(choose[roles.tune :].tolist()),
        judge=tuple(judge.tolist()),
        own_seed=tuple(rng.choice(choose, count).tolist()),
    )


def scores_of(
    draw: Draw,
    purse: Purse,
    setting: int,
    seeds: Sequence[int],
    *,
    scale: int = TARGET,
    scores: FloatArray | None = None,
) -> list[float]:
    """Return the scores of a setting on those seeds whose trials are paid for.

    Args:
        draw: The replay.
        purse: Pays for the trials.
        setting: Index of the setting.
        seeds: Columns of the table.
        scale: `TARGET` or `SMALL`.
        scores: What is seen of a trial, shape (2, settings, seeds); the table's scores by default.
    """
    seen = draw.table.score if scores is None else scores
    paid = (seed for seed in seeds if purse.pays(draw.table.cost[scale, setting, seed]))
    return [float(seen[scale, setting, seed]) for seed in paid]


def _best(draw: Draw, scores: Mapping[int, Sequence[float]]) -> int:
    """Return the setting with the best mean of its scores; on equal means the one that ran earlier."""
    return max(scores, key=lambda each: sum(scores[each]) / len(scores[each]), default=draw.order[0])


def _best_run(
    draw: Draw,
    purse: Purse,
    seeds_of: Callable[[int], Sequence[int]],
    *,
    scale: int = TARGET,
    scores: FloatArray | None = None,
) -> int:
    """Run each setting on its seeds until the money ends, and return the best of those that ran on all of them."""
    found: dict[int, list[float]] = {}
    for setting in draw.order:
        seeds = seeds_of(setting)
        own = scores_of(draw, purse, setting, seeds, scale=scale, scores=scores)
        if len(own) < len(seeds):
            break
        found[setting] = own
    return _best(draw, found)


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
    return _best_run(draw, purse, lambda setting: draw.tune[:1])


def last_evaluation(draw: Draw, purse: Purse) -> int:
    """Run every setting once, unseeded, and pick by five episodes of the last evaluation, as RL Zoo does."""
    return _best_run(draw, purse, lambda setting: (draw.own_seed[setting],), scores=draw.table.last_score)


def small_scale(draw: Draw, purse: Purse) -> int:
    """Search at the small scale with one seed, and use the best setting at the target scale, by its rules."""
    return _best_run(draw, purse, lambda setting: draw.tune[:1], scale=SMALL)


def fixed_repeats(draw: Draw, purse: Purse) -> int:
    """Run every setting with the same three seeds and pick the best mean; a setting without all three is out."""
    return _best_run(draw, purse, lambda setting: (*draw.tune, *draw.rank)[:REPEATS])


def halving(draw: Draw, purse: Purse) -> int:
    """Halve the settings as the seeds of each double: 1, 2, 4, … as far as the seeds for choosing reach.

    It begins with as many settings as the money pays for at the table's mean cost. In a rung that runs out of money
    the settings without all seeds are out.
    """
    seeds = (*draw.tune, *draw.rank)
    rungs = [min(ETA**power, len(seeds)) for power in range(math.ceil(math.log(len(seeds), ETA)) + 1)]
    mean_cost = float(draw.table.cost[TARGET].mean())
    count = len(draw.order)
    while count > 1 and _halving_trials(count, rungs) * mean_cost > purse.limit:
        count -= 1
    left: dict[int, list[float]] = {setting: [] for setting in draw.order[:count]}
    done = 0
    for rung in rungs:
        complete: dict[int, list[float]] = {}
        for setting, scores in left.items():
            new = scores_of(draw, purse, setting, seeds[done:rung])
            if len(new) < rung - done:
                break
            complete[setting] = [*scores, *new]
        if not complete:
            break
        done, kept = rung, dict[int, list[float]]()
        while complete and len(kept) < math.ceil(len(left) / ETA):
            best = _best(draw, complete)
            kept[best] = complete.pop(best)
        left = kept
    return next(iter(left))


def _halving_trials(count: int, rungs: Sequence[int]) -> int:
    trials, done = 0, 0
    for rung in rungs:
        trials += count * (rung - done)
        done, count = rung, math.ceil(count / ETA)
    return trials


RIVALS: Mapping[str, Strategy] = MappingProxyType(
    {
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
