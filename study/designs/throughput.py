"""A throughput study: how fast given settings run, in randomised blocks of timed cells. Pure.

Each block begins and ends with the base cell. A drift of the machine (heat, neighbours) then hits every cell alike, and
the runs of the base cell show it.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from study.designs.base import Design
from study.errors import ClusterError
from study.machine.shape import ClusterShape
from study.metrics import WARMUP_ITERATIONS
from study.planning import Plan, TrialKind, TrialNeeds
from study.records.ledger import TrialRow
from study.records.records import StageDecided, TrialRequest, numbered
from study.space.parameters import SCALE
from study.space.settings import BASE_CELL, THROUGHPUT, cells_of
from study.space.spec import StudySpec
from study.text import count


class Throughput(Design):
    """How many environment steps a second each cell makes."""

    name = THROUGHPUT

    def requests(self, spec: StudySpec, decisions: Sequence[StageDecided] = ()) -> tuple[TrialRequest, ...]:
        """Return the trials block by block, in the order in which they run, each alone on the machine."""
        section = spec.throughput
        assert section is not None  # the schema wants it
        cells = cells_of(spec)
        processes = {name: (cell.scales, cell.resources.num_learners) for name, cell in cells.items()}
        base, *others = cells
        requests = list[TrialRequest]()
        for block in range(section.blocks):
            rng = np.random.default_rng([spec.search.sampler_seed, 3, block])
            for name in in_block(others, base, rng, together=processes.__getitem__):
                cell = cells[name]
                request = TrialRequest(
                    stage=THROUGHPUT,
                    num_env_runners=cell.scales[0],
                    seed=block + 1,
                    setting={each: value for each, value in cell.parameters.items() if each != SCALE},
                    name=name,
                    iterations=WARMUP_ITERATIONS + section.iterations,
                    group=len(requests),
                    num_learners=cell.resources.num_learners,
                )
                requests.append(request)
        return numbered(requests)

    def kinds(self, spec: StudySpec) -> tuple[TrialKind, ...]:
        """Return one kind of trial for each cell."""
        section = spec.throughput
        assert section is not None  # the schema wants it
        return tuple(
            TrialKind(
                spec=cell,
                num_env_runners=cell.scales[0],
                num_trials=section.blocks * (2 if name == BASE_CELL else 1),
                cell=name,
                iterations=WARMUP_ITERATIONS + section.iterations,
            )
            for name, cell in cells_of(spec).items()
        )

    def plan(self, spec: StudySpec, cluster: ClusterShape, decisions: Sequence[StageDecided] = ()) -> Plan:
        """Return the trials, and what those of each cell need; refuse those whose clock would say nothing."""
        plan = super().plan(spec, cluster, decisions)
        if spec.execution == "auto":
            _check_clock(plan.kinds)
        return plan

    def words_of(self, row: TrialRow) -> str:
        """Return block, runners and cell."""
        return f"block {row.seed}, {count(row.num_env_runners, 'runner')}, {row.anchor}"


def in_block(
    points: Sequence[str], base: str, rng: np.random.Generator, *, together: Callable[[str], Hashable]
) -> list[str]:
    """Return one block: the base, every point in random order, the base again.

    Points of which `together` returns an equal key follow one another, the keys in random order too.
    """
    order = [points[at] for at in rng.permutation(len(points))]
    keys = list(dict.fromkeys(map(together, points)))
    ranks = dict(zip(keys, rng.permutation(len(keys)), strict=True))
    order.sort(key=lambda point: int(ranks[together(point)]))  # keeps the random order within a key
    return [base, *order, base]


def _check_clock(kinds: Iterable[TrialNeeds]) -> None:
    """Refuse cells whose times would say nothing; a person who wants them all the same sets `execution`."""
    if sharing := [each for each in kinds if each.label.timing != "measured"]:
        first = min(sharing, key=lambda each: each.total.num_cpus)
        cells = f"{len(sharing)} cells" if len(sharing) > 1 else "a cell"
        raise ClusterError(
            where="execution",
            rule=f"auto times only processes with a core each, and {cells} would share cores",
            got=f"{first.num_env_runners} runners with {first.label.reason}",
            fix="Run where the CPUs are (--address), list fewer runners, or set environment.step_wait_ms; "
            "execution: real times them all the same, labelled oversubscribed; execution: emulated runs them "
            "without a clock.",
        )
