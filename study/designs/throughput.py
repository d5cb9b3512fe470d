"""A throughput study: how fast given settings run, in randomised blocks of timed cells. Pure.

Each block begins and ends with the base cell. A drift of the machine (heat, neighbours) then hits every cell alike, and
the runs of the base cell show it.
"""

from collections.abc import Iterable, Mapping, Sequence

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
        rngs = (np.random.default_rng([spec.search.sampler_seed, 3, block]) for block in range(section.blocks))
        places = [(block, name) for block, rng in enumerate(rngs, start=1) for name in _in_block(cells, rng)]
        return numbered(
            TrialRequest(
                stage=THROUGHPUT,
                num_env_runners=cells[name].scales[0],
                seed=block,
                setting={each: value for each, value in cells[name].parameters.items() if each != SCALE},
                name=name,
                iterations=WARMUP_ITERATIONS + section.iterations,
                group=number,
                num_learners=cells[name].resources.num_learners,
            )
            for number, (block, name) in enumerate(places)
        )

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


def _in_block(cells: Mapping[str, StudySpec], rng: np.random.Generator) -> list[str]:
    """Return one block: the base cell, which is the first one, all others in random order, the base cell again.

    Cells of equal processes follow one another, these groups in random order too.
    """
    base, *others = cells
    processes = {name: (cells[name].scales, cells[name].resources.num_learners) for name in others}
    order, groups = [others[at] for at in rng.permutation(len(others))], list(dict.fromkeys(processes.values()))
    ranks = dict(zip(groups, rng.permutation(len(groups)), strict=True))
    order.sort(key=lambda name: int(ranks[processes[name]]))  # keeps the random order within a group
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
