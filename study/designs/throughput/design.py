"""A throughput study: how fast given settings run, in randomised blocks of timed cells. Pure.

Each block begins and ends with the base cell. A drift of the machine (heat, neighbours) then hits every cell alike, and
the runs of the base cell show it.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from study.designs.base import Design
from study.errors import ClusterError
from study.machine.shape import ClusterShape
from study.metrics import WARMUP_ITERATIONS
from study.planning.guess import guess_iteration_seconds, guess_start_seconds
from study.planning.needs import execution_of, num_cpus
from study.planning.plan import CellPlan, Plan, trial_needs
from study.records.ledger import TrialRow
from study.records.records import StageDecided
from study.records.request import TrialRequest, numbered
from study.space.settings import THROUGHPUT
from study.space.spec import StudySpec
from study.space.throughput import BASE_CELL, Cell, cells_of, spec_of_cell
from study.text import count

Point = TypeVar("Point")

RENEWAL_S = 1.5
"""Seconds between two trials that share processes: a new learner, new environments, a new policy in every runner."""


class Throughput(Design):
    """How many environment steps a second each cell makes."""

    name = THROUGHPUT
    proposes = False
    times = True

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials block by block, in the order in which they run, each alone on the machine."""
        section = spec.throughput
        assert section is not None  # the schema wants it
        base, *others = cells_of(spec)
        group = itertools.count()
        requests = []
        for block in range(section.blocks):
            rng = np.random.default_rng([spec.search.sampler_seed, 3, block])
            for cell in in_block(others, base, rng, together=lambda cell: (cell.num_env_runners, cell.num_learners)):
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
                requests.append(request)
        return numbered(requests)

    def plan(self, spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
        """Return the trials, and what those of each cell need."""
        cells, requests = {cell.name: _cell_plan(spec, cell, cluster) for cell in cells_of(spec)}, self.requests(spec)
        if spec.execution == "auto":
            _check_clock(cells.values())
        plan = Plan(requests=requests, scales=(), cluster=cluster, num_trials=len(requests), hours=0.0, cells=cells)
        seconds, last = 0.0, None
        for request in requests:
            planned, kept = cells[request.name or ""], plan.processes_kept_for(request)
            alone, way = spec_of_cell(spec, planned.cell), planned.needs.execution
            start = guess_start_seconds(alone, planned.cell.num_env_runners, cluster, execution=way)
            seconds += planned.needs.hours * 3600 + (RENEWAL_S if kept == last else start)
            last = kept
        return replace(plan, hours=seconds / 3600)

    def num_cpus(self, spec: StudySpec, cluster: ClusterShape) -> int:
        """Return the CPUs of the largest cell."""
        alone = ((spec_of_cell(spec, cell), cell.num_env_runners) for cell in cells_of(spec))
        return max(num_cpus(own, scale, execution_of(own, scale, cluster)) for own, scale in alone)

    def replicate(self, spec: StudySpec, number: int) -> list[str]:
        """Return the overrides that change the order of the cells; a block's number is the seed of its trials."""
        return [f"search.sampler_seed={spec.search.sampler_seed + number}"]

    def words_of(self, row: TrialRow) -> str:
        """Return block, runners and cell."""
        return f"block {row.seed}, {count(row.num_env_runners, 'runner')}, {row.anchor}"


def in_block(
    points: Sequence[Point], base: Point, rng: np.random.Generator, *, together: Callable[[Point], Hashable]
) -> list[Point]:
    """Return one block: the base, every point in random order, the base again.

    Args:
        points: What is run once.
        base: What begins and ends the block.
        rng: Of this block.
        together: Points of an equal key follow one another, the keys in random order too.
    """
    order = [points[at] for at in rng.permutation(len(points))]
    keys = list(dict.fromkeys(map(together, points)))
    ranks = dict(zip(keys, rng.permutation(len(keys)), strict=True))
    order.sort(key=lambda point: int(ranks[together(point)]))  # keeps the random order within a key
    return [base, *order, base]


def _cell_plan(spec: StudySpec, cell: Cell, cluster: ClusterShape) -> CellPlan:
    assert spec.throughput is not None  # the schema wants it
    alone, scale = spec_of_cell(spec, cell), cell.num_env_runners
    iterations = WARMUP_ITERATIONS + spec.throughput.iterations
    runs = spec.throughput.blocks * (2 if cell.name == BASE_CELL else 1)
    needs = trial_needs(alone, scale, cluster, num_trials=runs, iterations=iterations)
    seconds = iterations * guess_iteration_seconds(alone, scale, cluster, execution=needs.execution)
    return CellPlan(cell=cell, needs=replace(needs, hours=seconds / 3600))


def _check_clock(plans: Iterable[CellPlan]) -> None:
    """Refuse cells whose times would say nothing; a person who wants them all the same sets `execution`.

    Raises:
        ClusterError: Names the first of them and the ways out.
    """
    if sharing := [plan for plan in plans if plan.needs.label.timing != "measured"]:
        first = min(sharing, key=lambda plan: plan.needs.num_cpus)
        cells = f"{len(sharing)} cells" if len(sharing) > 1 else "a cell"
        raise ClusterError(
            where="execution",
            rule=f"auto times only processes with a core each, and {cells} would share cores",
            got=f"{first.cell.num_env_runners} runners with {first.needs.label.reason}",
            fix="Run where the CPUs are (--address), list fewer runners, or set environment.step_wait_ms; "
            "execution: real times them all the same, labelled oversubscribed; execution: emulated runs them "
            "without a clock.",
        )
