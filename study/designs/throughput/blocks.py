"""Short timed trials in randomised blocks that begin and end with the base cell. Pure.

A drift of the machine (heat, neighbours) then hits every point alike, and the runs of the base cell show it (a note of
T2, by `analysis.scaling.drift`).
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from study.metrics import WARMUP_ITERATIONS
from study.records.request import TrialRequest
from study.space.cells import Cell, cells_of
from study.space.spec import StudySpec
from study.space.variants import THROUGHPUT

Point = TypeVar("Point")


def in_block(
    points: Sequence[Point],
    base: Point,
    rng: np.random.Generator,
    *,
    together: Callable[[Point], Hashable] | None = None,
) -> list[Point]:
    """Return one block: the base, every point in random order, the base again.

    Args:
        points: What is run once.
        base: What begins and ends the block.
        rng: Of this block.
        together: Points of an equal key follow one another, the keys in random order too.
    """
    order = [points[at] for at in rng.permutation(len(points))]
    if together is not None:
        keys = list(dict.fromkeys(map(together, points)))
        ranks = dict(zip(keys, rng.permutation(len(keys)), strict=True))
        order.sort(key=lambda point: int(ranks[together(point)]))  # keeps the random order within a key
    return [base, *order, base]


def throughput_requests(spec: StudySpec) -> list[TrialRequest]:
    """Return every trial of a throughput study, in the order in which they run, each group alone on the machine."""
    section = spec.throughput
    assert section is not None  # the schema wants it
    base, *others = cells_of(spec)
    group = itertools.count()
    requests = []
    for block in range(section.blocks):
        rng = np.random.default_rng([spec.search.sampler_seed, 3, block])
        for cell in in_block(others, base, rng, together=_processes):
            request = TrialRequest(
                stage=THROUGHPUT,
                num_env_runners=cell.num_env_runners,
                seed=block + 1,
                setting=cell.setting,
                name=cell.name,
                iterations=WARMUP_ITERATIONS + section.iterations,
                group=next(group),
                num_learners=cell.num_learners,
            )
            requests += [request] * cell.num_trials
    return requests


def _processes(cell: Cell) -> Hashable:
    """Return what cells that can keep their runner processes have in common."""
    return cell.num_env_runners, cell.num_learners, cell.num_trials
