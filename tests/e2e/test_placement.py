"""Where runners are on a cluster of several nodes, what a lost node or a busy neighbour does, and trials alone."""

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
