"""Whole studies by the real command: run, extend, stop, kill, resume, on a Ray of their own or on one of others.

Real Ray, RLlib, Optuna and MLflow on SQLite.
"""

import contextlib
import csv
import os
import random
import signal
import time
from collections import Counter

import psutil
import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.records.folder import StudyFolder
from tests.e2e.clusters import Cluster, is_clean
from tests.e2e.commands import SPACE, ray_processes
from tests.e2e.drivers import Driver, setting
from tests.event_files import assert_files_follow
from tests.waiting import until

KILL_SEED = int(os.environ.get("KILL_SEED", "1"))
LONGER = SPACE.replace("env_steps: 800", "env_steps: 3000")
TWO = setting(search__num_trials=2)


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path, space=LONGER)
    yield driver
    driver.stop()
    until(lambda: not ray_processes(), "no Ray is left running", 30)


BREAKS = """
from gymnasium.envs.classic_control import CartPoleEnv


class Breaks(CartPoleEnv):
    def step(self, action):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 150:
            raise KeyError("planted")
        return super().step(action)
"""


def test_a_study_whose_environment_breaks_in_every_trial_stops_with_its_file_and_line(driver):
    (driver.place / "breaks.py").write_text(BREAKS)
    broken = setting(environment__id="breaks:Breaks", evaluation__max_episode_steps=500, search__num_trials=5)
    assert driver.run(*broken) == 1, driver.said
    last = driver.records()[-1]
    assert (last.kind, last.reason) == ("study_closed", "error")
    assert "KeyError: 'planted' (breaks.py, line 9, in step)" in last.detail
    assert len(driver.attempts("failed")) == 4
    assert "breaks.py" in (driver.folder / "tracebacks" / "trial_00000_1.txt").read_text()
    assert driver.run(*broken, "--keep-going") == 1, driver.said
    driver.assert_whole(5, failed=range(5))


def table(driver):
    with (driver.folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def typed(*words):
    """Return what a command prints, or its error, in this process."""
    result = CliRunner().invoke(cli.app, words)
    return str(result.exception) if result.exception else result.output


@pytest.mark.quick
def test_a_study_is_killed_extended_and_cannot_be_mistaken_for_another(driver, monkeypatch):
    (driver.place / "space.yaml").write_text(SPACE)
    driver.start("--trials", 2)
    driver.wait_for("study_opened")
    time.sleep(random.Random(KILL_SEED).uniform(0, 10))
    driver.kill()
    until(lambda: not ray_processes(), "its Ray is gone", 30)
    assert driver.run("--trials", 3) == 0, driver.said
    assert "space: complete" in driver.said
    driver.assert_whole(3)
    rows = table(driver)
    assert [row["status"] for row in rows] == ["finished"] * 3
    assert {int(row["num_env_runners"]) for row in rows} == {1, 2}
    assert len({(row["train_batch_size"], row["lr"]) for row in rows}) == 3
    for row in rows:
        assert float(row["env_steps_per_s"]) > 0
        assert 0 <= float(row["final_return"]) <= 500
        assert (driver.folder / row["checkpoint"]).is_dir()

    monkeypatch.chdir(driver.place)
    again = ("run", "--space", "space.yaml")
    assert "Continue that study with --resume" in typed(*again)
    assert "parameters.num_epochs" in typed(*again, "--resume", "--set", "parameters.num_epochs=3")
    before = (driver.folder / "records.jsonl").read_bytes()
    assert "space: complete" in typed(*again, "--resume", "--trials", "3")
    assert (driver.folder / "records.jsonl").read_bytes() == before  # nothing is left to run: no session, no Ray
    driver.assert_whole(3)

    assert not (driver.folder / "tensorboard").exists()
    StudyFolder(driver.folder).make_tensorboard()
    assert "TensorBoard's folder is up to date" in typed("sync", "studies/space")
    assert_files_follow(StudyFolder(driver.folder))


@pytest.mark.minutes
def test_signals_end_the_study_cleanly_and_a_resume_finishes_it(driver):
    for number in (signal.SIGTERM, signal.SIGINT):
        seen = driver.count("iteration")
        driver.start(*TWO, *([] if seen else ["--tensorboard"]))
        driver.wait_for("iteration", seen + 1)
        driver.process.send_signal(number)
        assert driver.end(120) == 75
        assert f"received {number.name}" in driver.said
        assert "Resume with: " in driver.said or "run the same command with --resume-or-start" in driver.said
        assert driver.records()[-1].kind == "study_closed"
    assert driver.run(*TWO) == 0, driver.said
    assert "Traceback" not in driver.said
    driver.assert_whole(2)
    assert_files_follow(StudyFolder(driver.folder))


# --- a throughput study -----------------------------------------------------------------------------------------------

TIMED = """
kind: throughput
environment: {id: CartPole-v1, step_wait_ms: 5}
parameters: {num_env_runners: 1, num_envs_per_env_runner: 2, train_batch_size: 80, minibatch_size: 40, num_epochs: 2}
throughput:
  iterations: 2
  blocks: 1
  grids:
    strong: {num_env_runners: 2, train_batch_size: 160}
"""


@pytest.mark.minutes
def test_a_throughput_study_is_killed_resumed_and_keeps_its_processes(driver):
    (driver.place / "space.yaml").write_text(TIMED)
    driver.start()
    driver.wait_for("iteration")
    driver.kill()
    until(lambda: not ray_processes(), "its Ray is gone", 30)
    assert driver.run(timeout=400) == 0, driver.said
    driver.assert_whole(3)
    found = driver.records()
    started = {record.trial: record for record in found if record.kind == "trial_started"}
    built = {record.trial: record for record in found if record.kind == "trial_built"}
    cells = {"anchor": 2, "n=2 k=2 B=160 m=40 E=2": 1}
    assert Counter(record.anchor for record in started.values()) == cells
    assert driver.count("evaluation") == 0
    for end in driver.attempts("finished"):
        assert (end.summary["score"], end.summary["final_return"], end.checkpoint) == (None, None, None)
        alike = [each for each in found if each.kind == "iteration" and each.trial == end.trial]
        alike = [each for each in alike if each.attempt == end.attempt]
        assert [each.iteration for each in alike] == [1, 2, 3]
        # What was asked is what ran; the lanes wait one after another, runners side by side.
        batch, setting = built[end.trial].effective["train_batch_size"], started[end.trial].setting
        assert batch == setting["train_batch_size"]
        assert {each.metrics["train_batch_size_actual"] for each in alike} == {batch}
        assert all(each.metrics["sampling_time_s"] >= batch * 0.005 / setting["num_env_runners"] for each in alike)


# --- a Ray that others run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live():
    with contextlib.closing(Cluster()) as cluster:
        cluster.start_head(num_cpus=8)
        yield cluster


@pytest.fixture
def guest(tmp_path, live):
    """A driver that joins the live cluster."""
    driver = Driver(tmp_path, space=LONGER.replace("num_env_runners: [1, 2]", "num_env_runners: 1"))
    driver.settings = live.settings
    yield driver
    driver.stop()


@pytest.mark.parametrize("way", ["auto", pytest.param("RAY_ADDRESS", marks=pytest.mark.heavy)])
def test_a_study_joins_a_live_cluster_and_leaves_it_as_it_was(guest, live, way):
    if way == "RAY_ADDRESS":
        guest.settings = [*live.settings, f"RAY_ADDRESS={live.address}"]
    before = {process.pid for process in live.processes()}
    raylets = {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "raylet"}
    if way == "auto" and raylets - before:
        pytest.skip("another Ray runs on this machine")
    options = ["--trials", 2, *setting(budget__env_steps=800), *(["--address", "auto"] if way == "auto" else [])]
    assert guest.run(*options) == 0, guest.said
    assert live.address in guest.said
    assert "Traceback" not in guest.said
    guest.assert_whole(2)
    opened = [record for record in guest.records() if record.kind == "study_opened"]
    assert [record.cluster["num_cpus"] for record in opened] == [8]
    assert is_clean(live.state(), num_cpus=8)
    assert before <= {process.pid for process in live.processes()}, "a process of the cluster is gone"


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_ends_early_frees_a_live_cluster_and_a_resume_finishes(guest, live, number):
    options = ("--trials", 2, "--address", live.address)
    guest.start(*options)
    guest.wait_for("iteration")
    os.killpg(guest.pid, number)
    assert guest.end(120) == (75 if number == signal.SIGTERM else -number), guest.said
    assert is_clean(live.state(), num_cpus=8)
    assert guest.run(*options) == 0, guest.said
    guest.assert_whole(2)
    assert [record.attempt for record in guest.records() if record.kind == "trial_started"].count(2) == 1
    assert is_clean(live.state(), num_cpus=8)
