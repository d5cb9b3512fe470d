"""The adapter from the frame of runs: what is taken, what is counted, what makes a workload."""

import json

import numpy as np
import pytest

from analysis.models.observations import _CLOCK_FREE, from_runs
from study.space.parameters import PARAMETERS
from tests.planted import as_frame


def fingerprint(**changes):
    content = {
        "environment": {"id": "Acrobot-v1", "step_wait_ms": 4.0, "backend": "gymnasium"},
        "train_batch_size": 800,
        "minibatch_times_learners": 200,
        "num_epochs": 4,
        "num_envs_per_env_runner": 1,
        "lr": 1e-3,
        "execution": "real",
        "threads": {"torch_threads_learner": 1, "torch_threads_main": 1, "torch_threads_runner": 1},
        "cpu_model": "X",
    }
    return json.dumps(content | changes, sort_keys=True)


def frame(*changes):
    row = {
        "status": "finished",
        "timing": "measured",
        "num_env_runners": 2,
        "num_envs_per_env_runner": 1,
        "train_batch_size": 800,
        "minibatch_size": 200,
        "num_epochs": 4,
        "num_learners": 0,
        "learner_threads": 1,
        "iteration_time_s": 2.0,
        "sampling_time_s": 1.5,
        "slowest_runner_time_s": 1.4,
        "mean_runner_time_s": 1.3,
        "learning_time_s": 0.4,
        "sync_time_s": 0.05,
        "rest_time_s": 0.05,
        "timed_iterations": 5,
        "timed_env_steps": 4_000,
        "timed_s": 10.0,
        "fingerprint": fingerprint(),
    }
    return as_frame([row | change for change in (changes or ({},))])


def test_runs_with_one_seed_are_a_block_and_one_without_is_a_block_of_its_own():
    (group,) = from_runs(frame({"seed": 3}, {"seed": 3}, {"seed": 4}, {}, {})).groups
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
    assert group.env_steps_per_s[0] == pytest.approx(400)
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
            {"fingerprint": None},
        )
    )
    assert selection.excluded == {
        "failed": 1,
        "oversubscribed": 1,
        "timing unknown": 1,
        "no learning_time_s": 1,
        "no fingerprint": 1,
    }
    (group,) = selection.groups
    assert len(group) == 2
    assert not group.has_runner_times


def test_runs_beside_others_of_their_cell_are_in_no_model():
    runs = frame(
        {"anchor": "allocation 1 x 8"}, {"anchor": "allocation 2 x 3"}, {"stage": "measure", "anchor": "shared"}
    )
    selection = from_runs(runs)
    assert [len(group) for group in selection.groups] == [1]
    assert selection.excluded == {"ran beside other trials of its cell": 2}


def test_a_workload_is_what_the_model_does_not_take_as_a_number():
    idle = {"environment": {"id": "Acrobot-v1", "step_wait_ms": 0.0, "backend": "gymnasium"}}
    same = frame(
        {},
        {"fingerprint": fingerprint(train_batch_size=1600, num_epochs=8, lr=3e-4, **idle)},
        {"fingerprint": fingerprint(threads={"torch_threads_learner": 2, "torch_threads_runner": 1})},
        {"fingerprint": fingerprint(num_learners=2), "num_learners": 2},
    )
    (group,) = from_runs(same).groups
    assert group.cells.step_wait_s.tolist() == [0.004, 0.0, 0.004, 0.004]
    assert group.cells.num_learners.tolist() == [1, 1, 1, 2]
    others = frame(
        {},
        {"fingerprint": fingerprint(cpu_model="Y")},
        {},
        {"fingerprint": fingerprint(network="big")},
        {"fingerprint": fingerprint(threads={"torch_threads_runner": 2})},
    )
    assert [len(each) for each in from_runs(others).groups] == [2, 1, 1, 1]


def test_parameters_of_learning_leave_the_clock_alone():
    assert {name for name, each in PARAMETERS.items() if each.kind is float} <= _CLOCK_FREE


def test_no_runs_are_no_groups():
    assert from_runs(frame().iloc[:0]).groups == ()
