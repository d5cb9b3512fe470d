"""Nodes, raylets, heads and processes of trials that die under a study: what each does to it. Real raylets."""

import contextlib
import itertools
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from study.driver.conductor import TAKEN_BACK
from study.records.records import TrialBuilt
from tests.e2e.clusters import SOON, Cluster, is_clean, kill_all
from tests.e2e.commands import run
from tests.e2e.drivers import Driver, lasting, setting

MAIN, RUNNER, LEARNER = "StudyTrial", "BatchedEnvRunner", "_WrappedExecutable"
"""What Ray calls the processes of a trial."""
MINUTES = float(os.environ.get("CHAOS_MINUTES", "10"))
"""How long the chaos is to last."""
START_UP_S = 40.0
"""What a trial takes to start, about."""
IMPATIENT = {**SOON, "health_check_timeout_ms": 1000}
"""Lets Ray give up a node that says nothing, too, after some seconds."""
Tell = Callable[..., None]
A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"


def start_on(driver: Driver, cluster: Cluster, nodes: Mapping[str, int], *options: object, **config: object) -> None:
    """Start the driver on a cluster with these nodes, whose head runs nothing."""
    cluster.start_head(**config)
    for host, num_cpus in nodes.items():
        cluster.add_node(num_cpus, host)
    driver.settings = cluster.settings
    driver.start("--address", cluster.address, *options)


@pytest.mark.heavy
@pytest.mark.parametrize("title", [MAIN, RUNNER, LEARNER])
def test_a_trial_that_loses_a_process_runs_again(driver: Driver, title: str) -> None:
    driver.start(*lasting(4), *setting(resources__num_learners=1))
    driver.wait_for("iteration")
    (victim,) = driver.workers(title)
    kill_all([victim])
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert "process" in lost.reason
    assert "Traceback" not in driver.said


@pytest.mark.heavy
def test_a_trial_that_loses_a_process_each_time_has_failed_and_the_next_one_runs(driver: Driver) -> None:
    driver.start(*lasting(4), *setting(search__num_trials=2))
    for attempt in range(1, TAKEN_BACK["process"] + 2):
        driver.wait_for("trial_built", attempt)
        kill_all(driver.workers(MAIN))
        driver.wait_for("trial_ended", attempt)
    assert driver.end() == 1, driver.said
    driver.assert_whole(2, failed=[0])
    (failed,) = driver.attempts("failed")
    assert "worker process has died" in failed.reason
    assert f"lost {TAKEN_BACK['process'] + 1} times" in failed.reason
    assert failed.summary["score"] == 0.0


@pytest.mark.heavy
@pytest.mark.parametrize("death", [Cluster.crash, Cluster.kill_raylet])
def test_a_trial_whose_node_dies_runs_again_on_another(
    driver: Driver, cluster: Cluster, death: Callable[[Cluster, str], None], tell: Tell
) -> None:
    start_on(driver, cluster, {A: 2}, *lasting(4))
    driver.wait_for("iteration")
    began = time.monotonic()
    death(cluster, A)
    cluster.add_node(2, B)
    driver.wait_for("trial_ended")
    noticed = time.monotonic() - began
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert A in lost.reason
    assert "node" in lost.reason
    built = [set(each.processes_per_node) for each in driver.records() if isinstance(each, TrialBuilt)]
    assert built == [{A}, {B}]
    assert is_clean(cluster.state(60), num_cpus=2, nodes=2)
    tell(chaos=death.__name__, noticed_s=round(noticed, 1), reason=lost.reason)


@pytest.mark.heavy
def test_a_trial_that_loses_the_node_of_a_runner_runs_again(driver: Driver, cluster: Cluster, tell: Tell) -> None:
    start_on(driver, cluster, {A: 1, B: 1}, *lasting(4), **SOON)
    driver.wait_for("iteration")
    (host,) = [each for each in (A, B) if not any("StudyTrial" in one.cmdline()[0] for one in cluster.workers(each))]
    cluster.crash(host)
    cluster.add_node(1, C)
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert lost.reason.startswith("env runners: all 1 must stay alive")
    assert "node" in lost.reason
    assert (lost.timing, lost.timing_reason) == ("tainted", "a node of the trial died")
    assert is_clean(cluster.state(60), num_cpus=2, nodes=3)
    tell(chaos="node of a runner", reason=lost.reason)


@pytest.mark.heavy
@pytest.mark.parametrize(("seconds", "config", "lost"), [(8, {}, 0), (30, IMPATIENT, 1)])
def test_a_node_that_answers_nobody_for_a_while(
    driver: Driver, cluster: Cluster, seconds: float, config: dict[str, int], lost: int
) -> None:
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
    state = cluster.state(60)
    assert state["free"] == state["total"]
    assert not state["groups"]
    assert not state["actors"]


@pytest.mark.heavy
def test_a_trial_that_fits_nowhere_any_more_waits_and_a_resume_says_so(driver: Driver, cluster: Cluster) -> None:
    start_on(driver, cluster, {A: 2}, *lasting(4), **SOON)
    driver.wait_for("iteration")
    cluster.crash(A)
    driver.wait_for("trial_started", 2)
    time.sleep(20)  # longer than Ray takes for anything
    assert driver.process is not None
    assert driver.process.poll() is None
    driver.process.send_signal(signal.SIGTERM)
    assert driver.end(60) == 75, driver.said
    assert driver.run("--address", cluster.address, *lasting(4)) == 2
    assert "the cluster has 0" in driver.said
    cluster.add_node(2, B)
    assert driver.run("--address", cluster.address, *lasting(4)) == 0, driver.said
    driver.assert_whole(1)


@pytest.mark.heavy
def test_a_trial_on_a_node_that_is_drained_begins_anew_as_another_attempt(
    driver: Driver, cluster: Cluster, tell: Tell
) -> None:
    """Preempted in Ray's words; Tune by itself would start the trial again under the same attempt."""
    start_on(driver, cluster, {A: 2}, *lasting(20), **SOON)
    driver.wait_for("iteration")
    (node,) = [word.partition("=")[2] for word in cluster.raylet(A).cmdline() if word.startswith("--node_id=")]
    words = ["drain-node", "--address", cluster.address, "--node-id", node, "--deadline-remaining-seconds", "1"]
    words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "wanted elsewhere"]
    done = run([*cluster.settings, str(Path(sys.executable).parent / "ray"), *words], driver.place)
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.add_node(2, B)
    cluster.crash(A)
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert "node" in lost.reason
    tell(chaos="drained", reason=lost.reason)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_private_ray_that_dies_ends_the_study_and_a_resume_finishes_it(driver: Driver, name: str, tell: Tell) -> None:
    driver.start(*lasting(60))
    driver.wait_for("iteration", 2)
    below = psutil.Process(driver.pid).children(recursive=True)
    began = time.monotonic()
    kill_all([process for process in below if process.name() == name])
    code = driver.end(180)
    seconds = time.monotonic() - began
    tell(chaos=f"{name} of a private Ray", exit=code, seconds=round(seconds, 1))
    assert code == 75, driver.said
    assert "--resume" in driver.said
    assert "Traceback" not in driver.said
    assert driver.run(*lasting(60)) == 0, driver.said
    driver.assert_whole(1)


@pytest.mark.heavy
def test_a_head_that_dies_ends_the_study_and_a_resume_on_a_new_cluster_finishes_it(
    driver: Driver, cluster: Cluster, tell: Tell
) -> None:
    start_on(driver, cluster, {A: 2}, *lasting(60))
    driver.wait_for("iteration", 2)
    began = time.monotonic()
    cluster.crash_head()
    code = driver.end(180)
    tell(chaos="head", exit=code, seconds=round(time.monotonic() - began, 1))
    assert code == 75, driver.said
    assert "--resume" in driver.said
    assert "Traceback" not in driver.said
    other = Cluster()
    try:
        other.start_head(2)
        driver.settings = other.settings
        assert driver.run("--address", other.address, *lasting(60)) == 0, driver.said
    finally:
        other.stop()
    driver.assert_whole(1)


@pytest.mark.heavy
@pytest.mark.timeout(5400)
def test_nodes_that_are_killed_every_minute(driver: Driver, cluster: Cluster, tell: Tell) -> None:
    """Forty trials on four nodes of two CPUs; every minute one of them dies and a new one joins."""
    rng, hosts = random.Random(int(os.environ.get("KILL_SEED", "0"))), [f"127.0.0.{last}" for last in range(2, 6)]
    # A trial loses its node at this rate, and begins anew: its share of the time is (exp(rate x length) - 1) / rate.
    rate, share_s = 1 / (60 * len(hosts)), MINUTES * 60 * len(hosts) / 40
    trial_s = math.log(1 + rate * share_s) / rate - START_UP_S
    # Environments that wait leave the cores to the start of processes, which is most of the work here.
    options = [*lasting(max(trial_s, 5)), *setting(search__num_trials=40, environment__step_wait_ms=20)]
    start_on(driver, cluster, dict.fromkeys(hosts, 2), *options)
    assert driver.process is not None
    driver.wait_for("iteration")
    began = last = time.monotonic()
    kills, fresh = 0, itertools.count(6)
    while driver.process.poll() is None:
        time.sleep(0.5)
        if time.monotonic() - last >= 60:
            last = time.monotonic()
            victim = hosts.pop(rng.randrange(len(hosts)))
            cluster.crash(victim)
            kills += 1
            hosts.append(f"127.0.0.{next(fresh)}")
            cluster.add_node(2, hosts[-1])
    minutes = (time.monotonic() - began) / 60
    assert driver.end() in (0, 1), driver.said
    ended = time.monotonic()
    assert is_clean(cluster.state(60), num_cpus=8, nodes=5)
    clean_s = time.monotonic() - ended
    failed = driver.attempts("failed")
    assert all("node" in each.reason and "lost" in each.reason for each in failed)
    driver.assert_whole(40, failed=sorted(each.trial for each in failed))
    lost = driver.attempts("interrupted")
    assert kills >= 1
    assert lost, "no trial was hit"
    assert "Traceback" not in driver.said
    figures = {"chaos": "nodes", "minutes": round(minutes, 1), "kills": kills, "trials": 40, "failed": len(failed)}
    tell(**figures, lost_attempts=len(lost), clean_within_s=round(clean_s, 1))
    assert not psutil.pid_exists(driver.pid)
