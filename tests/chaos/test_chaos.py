"""Drivers, trials, nodes, raylets and heads that die under a study: what each does to it. Real processes."""

import contextlib
import os
import time

import psutil
import pytest

from study.records.records import TrialBuilt
from tests.chaos.__main__ import table
from tests.e2e.clusters import SOON, Cluster, is_clean, kill_all
from tests.e2e.drivers import Driver, lasting, setting

MOMENTS = int(os.environ.get("CHAOS_MOMENTS", "2"))
"""Of each kind of harm; the table of a release has ten: `python -m tests.chaos`."""
MAIN, RUNNER, LEARNER = "StudyTrial", "BatchedEnvRunner", "_WrappedExecutable"
"""What Ray calls the processes of a trial."""
IMPATIENT = {**SOON, "health_check_timeout_ms": 1000}
"""Lets Ray give up a node that says nothing, too, after some seconds."""
A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"
pytestmark = pytest.mark.heavy


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.stop()


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.mark.timeout(7200)
def test_nothing_is_lost_doubled_or_hung_whenever_a_study_is_hit(tmp_path, capsys):
    rows = []
    for row in table(tmp_path, moments=MOMENTS):
        rows.append(row)
        with capsys.disabled():
            print(f"\n{row}", end="")  # noqa: T201
    assert not [row for row in rows if row.lost or row.doubled or row.hung]


def start_on(driver, cluster, nodes, *options, **config):
    """Start the driver on a cluster with these nodes, whose head runs nothing."""
    cluster.start_head(**config)
    for host, num_cpus in nodes.items():
        cluster.add_node(num_cpus, host)
    driver.settings = cluster.settings
    driver.start("--address", cluster.address, *options)


@pytest.mark.parametrize("title", [RUNNER, LEARNER])
def test_a_trial_that_loses_a_process_runs_again(driver, title):
    driver.start(*lasting(4), *setting(resources__num_learners=1))
    driver.wait_for("iteration")
    kill_all(driver.workers(title))
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert "process" in lost.reason


@pytest.mark.parametrize("death", [Cluster.crash, Cluster.kill_raylet])
def test_a_trial_whose_node_dies_runs_again_on_another(driver, cluster, death):
    start_on(driver, cluster, {A: 2}, *lasting(4))
    driver.wait_for("iteration")
    death(cluster, A)
    cluster.add_node(2, B)
    driver.wait_for("trial_ended")
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert A in lost.reason and "node" in lost.reason
    built = [set(each.processes_per_node) for each in driver.records() if isinstance(each, TrialBuilt)]
    assert built == [{A}, {B}]
    assert is_clean(cluster.state(60), num_cpus=2, nodes=2)


def test_a_trial_that_loses_the_node_of_a_runner_runs_again(driver, cluster):
    start_on(driver, cluster, {A: 1, B: 1}, *lasting(4), **SOON)
    driver.wait_for("iteration")
    (host,) = [each for each in (A, B) if not any(MAIN in one.cmdline()[0] for one in cluster.workers(each))]
    cluster.crash(host)
    cluster.add_node(1, C)
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert lost.reason.startswith("env runners: all 1 must stay alive") and "node" in lost.reason
    assert (lost.timing, lost.timing_reason) == ("tainted", "a node of the trial died")


@pytest.mark.parametrize(("seconds", "config", "lost"), [(8, {}, 0), (30, IMPATIENT, 1)])
def test_a_node_that_answers_nobody_for_a_while(driver, cluster, seconds, config, lost):
    """As behind a cut network. Shorter than Ray's patience the trial goes on; longer, and it runs again elsewhere."""
    start_on(driver, cluster, {A: 2}, *lasting(30 - 10 * lost), **config)
    driver.wait_for("iteration", 2)
    silent = [cluster.raylet(A), *cluster.raylet(A).children(recursive=True)]
    for process in silent:
        process.suspend()
    time.sleep(seconds)
    for process in silent:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    cluster.add_node(2, B)
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    assert len(driver.attempts("interrupted")) == lost


def test_a_head_that_dies_ends_the_study_and_a_resume_on_a_new_cluster_finishes_it(driver, cluster):
    start_on(driver, cluster, {A: 2}, *lasting(60))
    driver.wait_for("iteration", 2)
    cluster.crash_head()
    assert driver.end(180) == 75, driver.said
    assert "--resume" in driver.said and "Traceback" not in driver.said
    other = Cluster()
    try:
        other.start_head(2)
        driver.settings = other.settings
        assert driver.run("--address", other.address, *lasting(60)) == 0, driver.said
    finally:
        other.stop()
    driver.assert_whole(1)
