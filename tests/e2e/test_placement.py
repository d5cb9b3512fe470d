"""Where runners are on a cluster of several nodes."""

import contextlib
import os

import pytest

from study.records.records import TrialBuilt
from tests.e2e.clusters import Cluster
from tests.e2e.commands import SPACE, command, records, run

THREE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 3")


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


@pytest.mark.minutes
def test_a_trial_is_spread_as_the_space_says(tmp_path):
    (tmp_path / "space.yaml").write_text(THREE)
    with cluster_of(4, 4, 4) as cluster:
        words = ["--trials", "1", "--set", "resources.placement=spread", "--address", cluster.address]
        done = run([*cluster.settings, *command("--space", "space.yaml", *words)], tmp_path, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        addresses = {cluster.address.rpartition(":")[0], "127.0.0.2", "127.0.0.3"}
    (built,) = [each for each in records(tmp_path / "studies" / "space") if isinstance(each, TrialBuilt)]
    assert [(each["process"], each["number"], each["runners"]) for each in built.placement] == [
        ("main", 0, []),
        *(("runner", number, [number]) for number in (1, 2, 3)),
    ]
    assert {each["node"] for each in built.placement} == addresses
    counts = {node: sum(each["node"] == node for each in built.placement) for node in addresses}
    assert built.processes_per_node == counts
    assert {each["host"] for each in built.placement} == {os.uname().nodename}
