"""The adapter from the frame of runs: what is taken, what is counted, what makes a workload."""

import numpy as np
import pytest

from analysis.models.observations import _CLOCK_FREE, from_runs
from study.space.parameters import PARAMETERS
from tests.planted import as_frame
from tests.unit import tables_data

IDLE = {"id": "Acrobot-v1", "step_wait_ms": 0.0}
WAITING = {"environment": IDLE | {"step_wait_ms": 4.0}, "threads": {"torch_threads_learner": 1}}


def frame(*changes):
    """Return runs in environments that wait; `workload` of a change are entries of its fingerprint."""
    rows = [{"runners": 2, "batch": 800} | change for change in (changes or ({},))]
    return as_frame([tables_data.run(0, **row | {"workload": WAITING | row.get("workload", {})}) for row in rows])


def test_runs_with_one_seed_are_a_block_and_one_without_is_a_block_of_its_own():
    (group,) = from_runs(frame({"seed": 3}, {"seed": 3}, {"seed": 4}, {"seed": None}, {"seed": None})).groups
    assert group.block.tolist()[:3] == [3, 3, 4]
    assert len({*group.block.tolist()}) == 4
    assert group.take(np.array([2, 0])).block.tolist() == [4, 3]


def test_a_run_becomes_an_observation():
    selection = from_runs(frame())
    (group,) = selection.groups
    assert selection.excluded == {}
    assert len(group) == 1
    assert group.cells.step_wait_s[0] == pytest.approx(0.004)
    assert (group.cells.num_learners[0], group.cells.learner_threads[0]) == (1, 1)
    assert np.isnan(group.cells.episode_len[0])
    assert group.env_steps_per_s[0] == pytest.approx(800)
    assert group.has_runner_times


def test_a_minibatch_is_shared_by_the_learners():
    (group,) = from_runs(frame({"num_learners": 2, "minibatch_size": 400})).groups
    assert (group.cells.num_learners[0], group.cells.minibatch_size[0]) == (2, 200)


def test_every_row_that_is_left_out_is_counted_with_its_reason():
    selection = from_runs(
        frame(
            {},
            {"status": "failed"},
            {"timing": "oversubscribed"},
            {"timing": None},
            {"learning_time_s": None},
            {"slowest_runner_time_s": None},
        )
    )
    assert selection.excluded == {
        "failed": 1,
        "oversubscribed": 1,
        "timing unknown": 1,
        "no learning_time_s": 1,
    }
    (group,) = selection.groups
    assert len(group) == 2
    assert not group.has_runner_times


def test_runs_beside_others_of_their_cell_are_in_no_model():
    runs = frame(
        {"baseline": "allocation 1 x 8"}, {"baseline": "allocation 2 x 3"}, {"stage": "measure", "baseline": "shared"}
    )
    selection = from_runs(runs)
    assert [len(group) for group in selection.groups] == [1]
    assert selection.excluded == {"ran beside other trials of its cell": 2}


def test_a_workload_is_what_the_model_does_not_take_as_a_number():
    threads = {"torch_threads_learner": 2}
    same = frame(
        {},
        {"batch": 1600, "workload": {"num_epochs": 8, "lr": 3e-4, "environment": IDLE}},
        {"workload": {"threads": threads}},
        {"num_learners": 2, "workload": {"num_learners": 2}},
    )
    (group,) = from_runs(same).groups
    assert group.cells.step_wait_s.tolist() == [0.004, 0.0, 0.004, 0.004]
    assert group.cells.num_learners.tolist() == [1, 1, 1, 2]
    others = ({"cpu_model": "Y"}, {}, {"network": "big"}, {"threads": {"torch_threads_runner": 2}})
    groups = from_runs(frame({}, *({"workload": each} for each in others))).groups
    assert [len(each) for each in groups] == [2, 1, 1, 1]


def test_parameters_of_learning_leave_the_clock_alone():
    assert {name for name, each in PARAMETERS.items() if each.kind is float} <= _CLOCK_FREE


def test_no_runs_are_no_groups():
    assert from_runs(frame().iloc[:0]).groups == ()
