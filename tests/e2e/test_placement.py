"""Where runners are on a cluster of several nodes, what a lost node or a busy neighbour does, and trials alone."""

import contextlib
import itertools
import os
import re
import subprocess
import sys

import psutil
import pytest

from study.records.folder import StudyFolder
from study.records.records import TrialBuilt, TrialEnded, TrialStarted, read_lines
from tests.e2e.clusters import Cluster, is_clean
from tests.e2e.commands import SPACE, assert_whole, command, records, run

WIDE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 5")
"""A trial of six CPUs: more than one node of four has."""
THREE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 3")
SMALL = """
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 450, step_wait_ms: 1}
parameters: {num_env_runners: 1, num_envs_per_env_runner: 2, train_batch_size: 400, minibatch_size: 100}
budget: {env_steps: 2000}
search: {sampler: random, num_trials: 4}
evaluation: {episodes: 2, num_evaluations: 1}
"""
"""Trials of two CPUs."""


@contextlib.contextmanager
def cluster_of(*cpus: int):
    """Start as many nodes, the head first, with so many CPUs each."""
    cluster = Cluster()
    try:
        cluster.start_head(cpus[0])
        for number, count in enumerate(cpus[1:], start=2):
            cluster.add_node(count, f"127.0.0.{number}")
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def wide():
    with cluster_of(4, 4, 4) as cluster:
        yield cluster


def study_of(place, name):
    return place / "studies" / name


def trial_on(cluster, place, space, *options):
    """Run one trial on a cluster; return what the command said, and the record of the trial that was built."""
    (place / "space.yaml").write_text(space)
    words = ["--trials", "1", *options, "--address", cluster.address]
    done = run([*cluster.settings, *command("--space", "space.yaml", *words)], place, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = of_kind(place, "space", TrialBuilt)
    return done.stdout, built


def of_kind(place, name, kind):
    return [record for record in records(study_of(place, name)) if isinstance(record, kind)]


@pytest.mark.parametrize(
    ("placement", "nodes"),
    [
        pytest.param("spread", 3, marks=pytest.mark.minutes),
        pytest.param("pack", 1, marks=pytest.mark.heavy),
    ],
)
def test_a_trial_is_packed_or_spread_as_the_space_says(tmp_path, wide, placement, nodes):
    _, built = trial_on(wide, tmp_path, THREE, "--set", f"resources.placement={placement}")
    assert [(each["process"], each["number"], each["runners"]) for each in built.placement] == [
        ("main", 0, []),
        *(("runner", number, [number]) for number in (1, 2, 3)),
    ]
    assert len({each["node"] for each in built.placement}) == nodes
    addresses = {wide.address.rpartition(":")[0], "127.0.0.2", "127.0.0.3"}
    assert {each["node"] for each in built.placement} <= addresses
    counts = {node: sum(each["node"] == node for each in built.placement) for node in addresses}
    assert built.processes_per_node == {node: count for node, count in counts.items() if count}
    assert {each["host"] for each in built.placement} == {os.uname().nodename}


@pytest.mark.heavy
def test_a_trial_wider_than_a_node_says_that_nodes_share_cores(tmp_path, wide):
    cores = psutil.cpu_count(logical=False)
    if cores is None or cores >= 4:
        pytest.skip("nodes of four CPUs oversubscribe only a machine with fewer cores")
    said, built = trial_on(wide, tmp_path, WIDE)
    assert_whole(study_of(tmp_path, "space"), f"sqlite:///{tmp_path}/mlflow.db", 1)
    assert built.processes_per_node.keys() <= {wide.address.rpartition(":")[0], "127.0.0.2", "127.0.0.3"}
    assert len(built.processes_per_node) >= 2
    assert sum(built.processes_per_node.values()) == 6
    assert max(built.processes_per_node.values()) <= 4
    assert built.timing == "oversubscribed"
    assert re.search(r"Ray hands out 4 CPUs, \d cores?", built.timing_reason)
    assert "oversubscribed" in said
    assert is_clean(wide.state(), num_cpus=12, nodes=3)


@contextlib.contextmanager
def busy_cores():
    """Keep all cores but one busy with programs that belong to no study: a trial of two CPUs lacks one."""
    count = max(len(os.sched_getaffinity(0)) - 1, 1)
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@pytest.mark.heavy
def test_a_busy_neighbour_taints_the_times(tmp_path):
    (tmp_path / "space.yaml").write_text(SMALL)
    with busy_cores():
        done = run(command("--space", "space.yaml", "--trials", "1"), tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (ended,) = of_kind(tmp_path, "space", TrialEnded)
    (load,) = ended.node_loads
    assert load.foreign_cores > 0.3
    assert ended.summary["foreign_cores"] == load.foreign_cores
    if load.num_cores >= 2:
        assert ended.timing == "tainted"
        assert ended.timing_reason.startswith(f"foreign load on {os.uname().nodename}: ")
        assert "tainted" in done.stdout


def intervals(place, name):
    """Return [start, end] of every trial, by the driver's clock."""
    lines = list(read_lines(StudyFolder(study_of(place, name)).records))
    begun = {line.record.trial: line.time for line in lines if isinstance(line.record, TrialStarted)}
    return sorted((begun[line.record.trial], line.time) for line in lines if isinstance(line.record, TrialEnded))


@pytest.mark.heavy
def test_trials_of_an_exclusive_study_run_alone_on_a_cluster(tmp_path):
    (tmp_path / "space.yaml").write_text(SMALL)
    with cluster_of(1, 1, 1, 1) as cluster:
        for name, flag in (("shared", "false"), ("alone", "true")):
            words = ["--name", name, "--set", f"exclusive={flag}", "--address", cluster.address]
            done = run([*cluster.settings, *command("--space", "space.yaml", *words)], tmp_path, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
    assert any(later < end for (_, end), (later, _) in itertools.pairwise(intervals(tmp_path, "shared")))
    assert all(later >= end for (_, end), (later, _) in itertools.pairwise(intervals(tmp_path, "alone")))
    assert len(intervals(tmp_path, "alone")) == 4
