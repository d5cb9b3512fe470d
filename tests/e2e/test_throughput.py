"""A throughput study by the real command: killed, resumed, its processes kept. Real Ray, RLlib, Optuna and MLflow."""

from collections import Counter

import pytest

from tests.e2e.commands import ray_processes
from tests.e2e.drivers import Driver
from tests.waiting import until

SPACE = """
kind: throughput
environment: {id: CartPole-v1, step_wait_ms: 5}
parameters: {num_env_runners: 1, num_envs_per_env_runner: 2, train_batch_size: 80, minibatch_size: 40, num_epochs: 2}
throughput:
  iterations: 2
  blocks: 1
  grids:
    strong: {num_env_runners: 2, train_batch_size: [80, 160]}
"""
CELLS = {
    "anchor": 2,
    "n=2 k=2 B=80 m=40 E=2": 1,
    "n=2 k=2 B=160 m=40 E=2": 1,
}


@pytest.mark.minutes
def test_a_throughput_study_is_killed_resumed_and_keeps_its_processes(tmp_path):
    driver = Driver(tmp_path, space=SPACE)
    driver.start()
    driver.wait_for("iteration")
    driver.kill()
    until(lambda: not ray_processes(), "its Ray is gone", 30)
    assert driver.run(timeout=400) == 0, driver.said
    folder, found = driver.folder, driver.records()

    ended = {record.trial: record for record in found if record.kind == "trial_ended" and record.status == "finished"}
    started = {record.trial: record for record in found if record.kind == "trial_started"}
    built = {record.trial: record for record in found if record.kind == "trial_built"}
    driver.assert_whole(4)
    assert Counter(record.anchor for record in started.values()) == CELLS
    assert driver.count("evaluation") == 0
    assert not (folder / "checkpoints").exists()
    for trial, record in ended.items():
        assert record.summary["score"] is None
        assert record.summary["final_return"] is None
        assert record.checkpoint is None
        iterations = [each for each in found if each.kind == "iteration" and each.trial == trial]
        iterations = [each for each in iterations if each.attempt == record.attempt]
        assert [each.iteration for each in iterations] == [1, 2, 3]
        # What was asked is what ran.
        batch, setting = built[trial].effective["train_batch_size"], started[trial].setting
        assert batch == setting["train_batch_size"]
        assert {each.metrics["train_batch_size_actual"] for each in iterations} == {batch}
        assert built[trial].effective["num_learners"] == setting["num_learners"] == 0
        # The lanes wait one after another, runners side by side.
        least = batch * 0.005 / setting["num_env_runners"]
        assert all(each.metrics["sampling_time_s"] >= least for each in iterations)
        assert record.timing in ("measured", "oversubscribed", "tainted")  # by what else this machine does

    assert "python -m study report studies/space" in driver.said
