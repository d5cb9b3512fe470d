"""A throughput study: the cells that its space names, its plan in blocks, what is refused, its course."""

import itertools
from collections import Counter

import pytest

from study.designs.registry import make_plan
from study.errors import ClusterError, SpaceError
from study.records.ledger import result_of
from study.space.settings import BASE_CELL, cells_of
from study.space.spec import StudySpec
from tests.driven import Driven, assert_whole, rows
from tests.reported import built, iteration, report
from tests.spaces import cluster, read_again, requests_of, throughput_spec


def test_cells_are_the_cross_products_around_the_base_each_once():
    cells = cells_of(throughput_spec())
    assert [*cells] == [
        BASE_CELL,  # 2 runners, batch 400: as two grids name it
        *(f"n={scale} k=1 B=400 m=100 E=4" for scale in (1, 4)),
        *(f"n={scale} k=1 B={200 * scale} m=100 E=4" for scale in (1, 4)),
        *(f"n={scale} k=1 B=400 m=100 E={epochs}" for scale in (1, 4) for epochs in (1, 8)),
    ]
    weak = cells["n=4 k=1 B=800 m=100 E=4"]
    assert (weak.scales, weak.domain("train_batch_size"), weak.rules) == ((4,), 800, {})


def test_a_range_in_a_grid_stands_for_a_list():
    said = {"num_env_runners": {"low": 1, "high": 6}, "num_learners": {"low": 0, "high": 4}}
    axes = throughput_spec(throughput__grids={"all": said}).throughput.axes()
    assert axes == {"all": {"num_env_runners": [1, 2, 4, 6], "num_learners": [0, 1, 2, 4]}}


def test_a_grid_is_one_fault_and_no_minibatch_is_clipped_in_silence():
    with pytest.raises(SpaceError) as caught:
        throughput_spec(throughput__grids__bad={"num_env_runners": [500, 600, 700]})
    assert [fault.where for fault in caught.value.faults] == ["throughput.grids.bad"]
    accepted = throughput_spec(throughput__grids__few={"train_batch_size": 50, "minibatch_size": 50})
    assert "n=2 k=1 B=50 m=50 E=4" in cells_of(accepted)


def test_a_throughput_space_reads_back_what_it_writes():
    written = throughput_spec(throughput__grids__more={"train_batch_size": 700})
    assert read_again(written) == written
    assert StudySpec.model_validate(written.to_json()) == written  # as a trial's process does
    assert throughput_spec(throughput__blocks=4).digest() != throughput_spec().digest()


def test_every_block_runs_every_cell_once_between_two_anchors_those_of_equal_processes_together():
    learners = {"num_env_runners": [1, 4], "num_learners": [0, 1]}
    spec = throughput_spec(throughput__blocks=12, throughput__grids__learners=learners)
    cells = dict.fromkeys(cells_of(spec), 1)
    blocks = itertools.groupby(requests_of(spec), key=lambda request: request.seed)
    orders, of_processes = set(), set()
    for number, (block, of_block) in enumerate(blocks, start=1):
        first, *inside, last = of_block
        assert (block, first.name, last.name) == (number, BASE_CELL, BASE_CELL)
        assert Counter(request.name for request in (first, *inside)) == cells
        assert {(request.iterations, request.stage) for request in inside} == {(3, "throughput")}  # one of warm-up
        together = itertools.groupby((request.num_env_runners, request.num_learners) for request in inside)
        runs = tuple(processes for processes, _ in together)
        assert len(runs) == len(set(runs))
        orders.add(tuple(request.name for request in inside))
        of_processes.add(runs)
    assert number == 12 and len(orders) > 8
    assert len(of_processes) > 4


def test_environments_that_wait_are_measured_provisionally_on_few_cores():
    plan = make_plan(throughput_spec(), cluster(local=(64, 2)))
    labels = {each.cell: each.label for each in plan.kinds}
    assert {label.timing for label in labels.values()} == {"measured"}
    assert not labels["n=1 k=1 B=400 m=100 E=4"].provisional
    assert labels["n=4 k=1 B=400 m=100 E=4"].provisional


def test_auto_refuses_a_clock_that_is_none_and_names_the_ways_out():
    busy = {"environment__step_wait_ms": 0}
    with pytest.raises(ClusterError, match="5 cells would share cores, got 2 runners with 3 CPUs reserved, 2 cores"):
        make_plan(throughput_spec(**busy), cluster(local=(64, 2)))
    assert all(each.execution == "real" for each in make_plan(throughput_spec(**busy), cluster(local=(64, 8))).kinds)
    asked = make_plan(throughput_spec(**busy, execution="real"), cluster(local=(64, 2)))
    labels = Counter(each.label.timing for each in asked.kinds)
    assert labels == {"oversubscribed": 5, "measured": 4}
    emulated = make_plan(throughput_spec(**busy, execution="emulated"), cluster(local=(64, 2)))
    assert {each.label.timing for each in emulated.kinds} == {"emulated"}


# --- its course without Ray: killed and resumed ----------------------------------------------------------------------

CLUSTER = cluster(local=(8, 2))
SMALL = {
    "throughput__blocks": 2,
    "throughput__grids": {"strong": {"num_env_runners": [1, 2, 4]}},
}
NUM_TRIALS = 2 * (2 + 2)
"""Of `SMALL`: two anchors and two other cells in each block."""


class Drive(Driven):
    """A session whose trials have three iterations."""

    def __init__(self, path, space=None):
        super().__init__(path, space or throughput_spec(**SMALL), cluster=CLUSTER)

    def finish(self, trial):
        """Report three iterations; one of n runners takes 4 / n seconds, the first twice as long: it is warm-up."""
        seconds = 4.0 / self.conductor.ledger.rows[trial].num_env_runners
        report(self.conductor, trial, built(startup_time_s=None), progress=0.0)
        for number in (1, 2, 3):
            one = iteration(number, steps=400, seconds=seconds * (2 if number == 1 else 1))
            report(self.conductor, trial, one, progress=number / 3)
        self.conductor.finish(trial, None)

    def run(self, *, most=None):
        return super().run(self.finish, most=most)


@pytest.mark.parametrize("killed_after", range(0, NUM_TRIALS, 3))
def test_killed_and_resumed_every_trial_ends_once_and_says_what_was_timed(tmp_path, killed_after):
    Drive(tmp_path).run(most=killed_after)
    drive = Drive(tmp_path)
    for started in drive.groups():
        assert len(started) == 1, "each alone"
        drive.finish(started[0].trial)
    assert drive.conductor.close().reason == "complete"
    assert_whole(tmp_path, NUM_TRIALS)
    for row, request in zip(rows(tmp_path).values(), requests_of(drive.spec), strict=True):
        assert (row.anchor, row.seed, row.rule) == (request.name, request.seed, request.setting)
        assert (row.status, row.stage, row.optuna_number, row.iterations) == ("finished", "throughput", None, 3)
        assert (row.summary["final_return"], row.summary["score"], row.checkpoint) == (None, None, None)
        assert row.summary["env_steps_per_s"] == pytest.approx(100 * row.num_env_runners)
        assert row.setting["num_learners"] == 0
    assert {result_of(row) for row in rows(tmp_path).values()} == {None}
