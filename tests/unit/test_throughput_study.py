"""A throughput study: the cells that its space names, its plan in blocks, what is refused, its course."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.designs.registry import make_plan
from study.designs.throughput import in_block
from study.errors import ClusterError, SpaceError
from study.records.ledger import best_per_scale
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
    grids = {
        "strong": {"num_env_runners": {"low": 1, "high": 6}},
        "many": {"num_epochs": {"low": 2, "high": 8}},
        "learners": {"num_learners": {"low": 0, "high": 4}},
    }
    axes = throughput_spec(throughput__grids=grids).throughput.axes()
    assert axes == {
        "strong": {"num_env_runners": [1, 2, 4, 6]},
        "many": {"num_epochs": [2, 4, 8]},
        "learners": {"num_learners": [0, 1, 2, 4]},
    }


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


def machine(cores):
    return cluster(local=(64, cores))


def blocks_of(spec):
    """Return block -> its requests in their order."""
    requests = requests_of(spec)
    return {
        seed: [request for request in requests if request.seed == seed]
        for seed in dict.fromkeys(request.seed for request in requests)
    }


def test_every_block_runs_every_cell_once_between_two_anchors():
    spec = throughput_spec()
    cells = dict.fromkeys(cells_of(spec), 1)
    blocks = blocks_of(spec)
    assert list(blocks) == [1, 2, 3]
    for requests in blocks.values():
        assert Counter(request.name for request in requests) == {**cells, BASE_CELL: 2}
        assert requests[0].name == requests[-1].name == BASE_CELL
        assert {(request.iterations, request.stage) for request in requests} == {(3, "throughput")}  # one of warm-up


def test_cells_of_equal_runners_follow_each_other_in_an_order_of_their_own_in_every_block():
    spec = throughput_spec(throughput__blocks=12)
    orders, of_scales = set(), set()
    for requests in blocks_of(spec).values():
        inside = requests[1:-1]
        runs = tuple(scale for scale, _ in itertools.groupby(request.num_env_runners for request in inside))
        assert len(runs) == len(set(runs))
        orders.add(tuple(request.name for request in inside))
        of_scales.add(runs)
    assert len(orders) > 8
    assert len(of_scales) == 2  # 1 before 4, and 4 before 1


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 5))
def test_a_block_holds_every_point_once_and_keeps_keys_together(keys, seed):
    points = list(enumerate(keys))
    anchor = (-1, -1)
    block = in_block(points, anchor, np.random.default_rng(seed), together=lambda point: point[1])
    assert block[0] == block[-1] == anchor
    assert sorted(block[1:-1]) == points
    found = [key for _, key in block[1:-1]]
    assert sum(a != b for a, b in itertools.pairwise(found)) == max(len(set(found)) - 1, 0)


def test_environments_that_wait_are_measured_provisionally_on_few_cores():
    plan = make_plan(throughput_spec(), machine(2))
    labels = {each.cell: each.label for each in plan.kinds}
    assert {label.timing for label in labels.values()} == {"measured"}
    assert not labels["n=1 k=1 B=400 m=100 E=4"].provisional
    assert labels["n=4 k=1 B=400 m=100 E=4"].provisional


def test_auto_refuses_a_clock_that_is_none_and_names_the_ways_out():
    busy = {"environment__step_wait_ms": 0}
    with pytest.raises(ClusterError, match="5 cells would share cores, got 2 runners with 3 CPUs reserved, 2 cores"):
        make_plan(throughput_spec(**busy), machine(2))
    assert all(each.execution == "real" for each in make_plan(throughput_spec(**busy), machine(8)).kinds)
    asked = make_plan(throughput_spec(**busy, execution="real"), machine(2))
    labels = Counter(each.label.timing for each in asked.kinds)
    assert labels == {"oversubscribed": 5, "measured": 4}
    emulated = make_plan(throughput_spec(**busy, execution="emulated"), machine(2))
    assert {each.label.timing for each in emulated.kinds} == {"emulated"}


# --- its course without Ray: killed and resumed ----------------------------------------------------------------------

CLUSTER = cluster(local=(8, 2))
PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s")
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
        """Report three iterations; one with n runners takes 4 / n seconds, the first twice as long and all sampling."""
        seconds = 4.0 / self.conductor.ledger.rows[trial].num_env_runners
        report(self.conductor, trial, built(startup_time_s=None), progress=0.0)
        for number in (1, 2, 3):
            time_s = seconds * (2 if number == 1 else 1)
            shares = (1.0, 0.0, 0.0, 0.0) if number == 1 else (0.3, 0.6, 0.02, 0.08)
            metrics = {name: share * time_s for name, share in zip(PHASES, shares, strict=True)}
            one = iteration(number, steps=400, seconds=time_s, **metrics)
            report(self.conductor, trial, one, progress=number / 3)
        self.conductor.finish(trial, None)

    def run(self, *, most=None):
        return super().run(self.finish, most=most)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    drive, together = Drive(path := tmp_path_factory.mktemp("undisturbed")), []
    for started in drive.groups():
        together.append(len(started))
        drive.finish(started[0].trial)
    assert drive.conductor.close().reason == "complete" and together == [1] * NUM_TRIALS
    return rows(path)


def test_rows_say_what_was_timed_and_nothing_of_learning(undisturbed):
    for row in undisturbed.values():
        assert (row.status, row.stage, row.optuna_number, row.iterations) == ("finished", "throughput", None, 3)
        assert (row.summary["final_return"], row.summary["score"], row.checkpoint) == (None, None, None)
        assert row.summary["env_steps_per_s"] == pytest.approx(100 * row.num_env_runners)
        assert row.rule["train_batch_size"] == row.setting["train_batch_size"] and row.setting["num_learners"] == 0
    assert best_per_scale(undisturbed.values()) == {}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(0, NUM_TRIALS - 1), max_size=4))
def test_killed_anywhere_and_resumed_every_trial_ends_exactly_once(tmp_path_factory, undisturbed, kills):
    path = tmp_path_factory.mktemp("study")
    for most in kills:
        Drive(path).run(most=most)
    closed = Drive(path).run()
    assert closed.reason == "complete"
    assert_whole(path, NUM_TRIALS)
    found = rows(path)  # the same cells in the same blocks, however often it was killed
    assert [(row.anchor, row.seed, row.setting) for row in found.values()] == [
        (row.anchor, row.seed, row.setting) for row in undisturbed.values()
    ]
