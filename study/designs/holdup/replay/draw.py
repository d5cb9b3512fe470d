"""One replay of a study on a table: which seed plays which role, what the search proposes, and the money. Pure."""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from study.designs.holdup.replay.table import TARGET, ScoreTable
from study.errors import AnalysisError
from study.space.holdup import HoldUpSpec


class Roles(NamedTuple):
    """How many seeds play which role."""

    tune: int
    rank: int
    judge: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One replay: what chance decides in a study, the same for all rules."""

    table: ScoreTable
    holdup: HoldUpSpec
    """Sizes of our protocol."""
    order: tuple[int, ...]
    """Settings in the order in which a search at the target scale proposes them, all of the table."""
    order_small: tuple[int, ...]
    """The same for the small scale."""
    tune: tuple[int, ...]
    """Columns of the table that are seeds of the search."""
    rank: tuple[int, ...]
    """Columns that are seeds of race and stress; rules that know no such difference use `tune + rank`."""
    judge: tuple[int, ...]
    """Columns that judge the pick: none of those above."""
    own_seed: tuple[int, ...]
    """For every setting one of the columns `tune + rank`: the seed of an unseeded trial."""


@dataclass(slots=True, kw_only=True)
class Purse:
    """CPU-seconds that a rule may spend."""

    limit: float
    spent: float = 0.0

    def pays(self, cost: float) -> bool:
        """Return whether a trial is paid for; one that would exceed the limit is not started."""
        if self.spent + cost > self.limit:
            return False
        self.spent += cost
        return True


def roles_of(num_seeds: int, holdup: HoldUpSpec) -> Roles:
    """Return how many seeds play which role: of eight, two tune, four rank and two judge.

    Raises:
        AnalysisError: There are fewer than 3 seeds.
    """
    if num_seeds < 3:
        law = "a replay needs a seed each to tune, to rank and to judge, 3 in all"
        raise AnalysisError(
            where="seeds", rule=law, got=num_seeds, fix="Record more seeds.", code="replay-with-too-few-seeds"
        )
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
        order_small=tuple(rng.permutation(count).tolist()),
        tune=tuple(choose[: roles.tune].tolist()),
        rank=tuple(choose[roles.tune :].tolist()),
        judge=tuple(judge.tolist()),
        own_seed=tuple(rng.choice(choose, count).tolist()),
    )


def look(draw: Draw, purse: Purse, setting: int, seed: int, scale: int = TARGET) -> float | None:
    """Return the score of one trial; None where it is not paid for."""
    table = draw.table
    return float(table.score[scale, setting, seed]) if purse.pays(table.cost[scale, setting, seed]) else None
