"""A throughput study by the real command: killed, resumed, its processes kept. Real Ray, RLlib, Optuna and MLflow."""

import time
from collections import Counter

import pytest

from tests.e2e.commands import command, kill, mlflow_trials, ray_processes, records, run, start

SPACE = """
kind: throughput
environment: {id: CartPole-v1, step_wait_ms: 5}
parameters: {num_env_runners: 1, num_envs_per_env_runner: 2, train_batch_size: 80, minibatch_size: 40, num_epochs: 2}
throughput:
  iterations: 2
  blocks: 1
  grids:
    strong: {num_env_runners: 2, train_batch_size: [80, 160]}
  allocation: {num_env_runners: 3, trials: [2]}
"""
CELLS = {
    "anchor": 2,
    "n=2 k=2 B=80 m=40 E=2": 1,
    "n=2 k=2 B=160 m=40 E=2": 1,
    "allocation 2 x 1": 2,
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    yield tmp_path
    assert not ray_processes(), "a Ray was left running"


@pytest.mark.minutes
def test_a_throughput_study_is_killed_resumed_and_keeps_its_processes(place):
    words, folder = command("--space", "space.yaml", "--resume-or-start"), place / "studies" / "space"
    with (place / "log").open("w") as log:
        process = start(words, place, log)
        end = time.monotonic() + 180
        while not (folder / "records.jsonl").exists() or "iteration" not in _kinds(folder):
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        kill(process)
    end = time.monotonic() + 30
    while ray_processes() and time.monotonic() < end:
        time.sleep(0.2)
    done = run(words, place, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(folder)

    ended = {record.trial: record for record in found if record.kind == "trial_ended" and record.status == "finished"}
    started = {record.trial: record for record in found if record.kind == "trial_started"}
    built = {record.trial: record for record in found if record.kind == "trial_built"}
    assert sorted(ended) == list(range(6))
    assert Counter(record.anchor for record in started.values()) == CELLS
    assert mlflow_trials(f"sqlite:///{place}/mlflow.db", "space") == [(trial, "FINISHED") for trial in range(6)]
    assert "evaluation" not in _kinds(folder)
    assert not (folder / "checkpoints").exists()
    for trial, record in ended.items():
        assert record.summary["score"] is None
        assert record.summary["final_return"] is None
        assert record.checkpoint is None
        iterations = [each for each in found if each.kind == "iteration" and each.trial == trial]
        iterations = [each for each in iterations if each.attempt == record.attempt]
        assert [each.iteration for each in iterations] == [1, 2, 3]
        # What was asked is what ran, also in processes that another trial has left.
        batch, setting = built[trial].effective["train_batch_size"], started[trial].setting
        assert batch == setting["train_batch_size"]
        assert {each.metrics["train_batch_size_actual"] for each in iterations} == {batch}
        assert built[trial].effective["num_learners"] == setting["num_learners"] == 0
        # The lanes wait one after another, runners side by side.
        least = batch * 0.005 / setting["num_env_runners"]
        assert all(each.metrics["sampling_time_s"] >= least for each in iterations)
        assert record.timing in ("measured", "oversubscribed", "tainted")  # by what else this machine does

    # Of two trials of two runners, the second goes on in the first one's processes; nobody else does.
    kept = [trial for trial in sorted(built) if built[trial].startup_time_s is None]
    of_two = [trial for trial in sorted(started) if started[trial].setting["num_env_runners"] == 2]
    assert kept == of_two[1:]

    # The pair trained side by side, however long each of the two took to start.
    pair = [trial for trial in sorted(started) if started[trial].anchor == "allocation 2 x 1"]
    (first, *_, last), (other_first, *_, other_last) = (_moments_of_iterations(folder, trial) for trial in pair)
    assert first < other_last
    assert other_first < last

    assert "python -m study report studies/space" in done.stdout
    assert "2 x 1" in done.stdout


def _kinds(folder):
    return [record.kind for record in records(folder)]


def _moments_of_iterations(folder, trial):
    from study.records.folder import StudyFolder
    from study.records.records import read_lines

    lines = list(read_lines(StudyFolder(folder).records))
    return [line.time for line in lines if line.record.kind == "iteration" and line.record.trial == trial]
