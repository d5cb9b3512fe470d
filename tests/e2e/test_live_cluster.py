"""The command on a Ray that others run: it joins, leaves the cluster as it was, and survives being killed there."""

import os
import signal

import psutil
import pytest

from study.records.records import StudyOpened
from tests.e2e.clusters import Cluster, is_clean
from tests.e2e.commands import SPACE, assert_whole, command, records, run
from tests.e2e.drivers import Driver

LONGER = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 1").replace("env_steps: 800", "env_steps: 3000")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


@pytest.fixture(scope="module")
def live():
    cluster = Cluster()
    try:
        cluster.start_head(num_cpus=8)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def alone():
    """Where the test is about finding a Ray, another one on the machine would be found too."""
    named = psutil.process_iter(["name", "status"])
    if [one for one in named if one.info["name"] == "raylet" and one.info["status"] != psutil.STATUS_ZOMBIE]:
        pytest.skip("another Ray runs on this machine")


@pytest.mark.parametrize("way", ["auto", pytest.param("RAY_ADDRESS", marks=pytest.mark.heavy)])
def test_a_study_joins_a_live_cluster_and_leaves_it_as_it_was(place, live, way):
    words = [*live.settings, *command("--space", "space.yaml", "--trials", 2, "--address", "auto")]
    if way == "RAY_ADDRESS":
        words = [*live.settings, f"RAY_ADDRESS={live.address}", *command("--space", "space.yaml", "--trials", 2)]
    before = {process.pid for process in live.processes()}
    done = run(words, place, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert live.address in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert_whole(place / "studies" / "space", f"sqlite:///{place}/mlflow.db", 2)
    opened = [record for record in records(place / "studies" / "space") if isinstance(record, StudyOpened)]
    assert [record.cluster["num_cpus"] for record in opened] == [8]
    assert is_clean(live.state(), num_cpus=8)
    assert before <= {process.pid for process in live.processes()}, "a process of the cluster is gone"


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_ends_early_frees_a_live_cluster_and_a_resume_finishes(place, live, number):
    driver, options = Driver(place, space=LONGER), ("--trials", 2, "--address", live.address)
    driver.settings = live.settings
    driver.start(*options)
    driver.wait_for("iteration")
    os.killpg(driver.pid, number)
    assert driver.end(120) == (75 if number == signal.SIGTERM else -number), driver.said
    assert is_clean(live.state(), num_cpus=8)
    assert driver.run(*options) == 0, driver.said
    driver.assert_whole(2)
    assert [record.attempt for record in driver.records() if record.kind == "trial_started"].count(2) == 1
    assert is_clean(live.state(), num_cpus=8)
