"""A throughput study: the cells that its space names, its plan in blocks, what is refused, its course."""

import itertools
from collections import Counter

import pytest

from study.designs.registry import make_plan
from study.errors import ClusterError, SpaceError
from study.records.ledger import result_of
from study.space.settings import BASE_CELL, cells_of
from tests.driven import Session
from tests.spaces import cluster, requests_of, throughput_spec


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


def test_a_grid_is_one_fault_and_no_minibatch_is_clipped_in_silence():
    with pytest.raises(SpaceError) as caught:
        throughput_spec(throughput__grids__bad={"num_env_runners": [500, 600, 700]})
    assert [fault.where for fault in caught.value.faults] == ["throughput.grids.bad"]
    accepted = throughput_spec(throughput__grids__few={"train_batch_size": 50, "minibatch_size": 50})
    assert "n=2 k=1 B=50 m=50 E=4" in cells_of(accepted)


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


def test_a_trial_says_what_was_timed(tmp_path):
    spec = throughput_spec(throughput__blocks=2, throughput__grids={"strong": {"num_env_runners": [1, 2, 4]}})
    session = Session(tmp_path, spec)
    for (started,) in session.groups():  # each alone
        seconds = 4.0 / started.num_env_runners
        for number in (1, 2, 3):  # the first takes twice as long: it is warm-up
            session.iterate(started.trial, number, iteration_time_s=seconds * (2 if number == 1 else 1))
        session.conductor.finish(started.trial, None)
    for row, request in zip(session.rows.values(), requests_of(spec), strict=True):
        assert (row.anchor, row.seed, row.rule) == (request.name, request.seed, request.setting)
        assert (row.status, row.stage, row.optuna_number, row.iterations) == ("finished", "throughput", None, 3)
        assert (row.summary["final_return"], row.summary["score"], row.checkpoint) == (None, None, None)
        assert row.summary["env_steps_per_s"] == pytest.approx(100 / 4 * row.num_env_runners)
        assert row.setting["num_learners"] == 0
    assert {result_of(row) for row in session.rows.values()} == {None}
