"""The command on a Ray that others run: it joins, leaves the cluster as it was, and survives being killed there."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from study.records.records import StudyOpened, TrialBuilt
from tests.e2e.commands import SPACE, assert_whole, command, records, run, start, wait_for

WIDE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 5")
"""A trial of six CPUs: more than one node of four has."""
ONE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 1")
LONGER = ONE.replace("env_steps: 800", "env_steps: 3000")

STATE = """
import json, sys, time
import ray
from ray._private import state

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
mine = ray.get_runtime_context().get_job_id()
end = time.monotonic() + float(sys.argv[2])
while True:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    seen = {
        "nodes": len(nodes),
        "total": sum(node["Resources"].get("CPU", 0) for node in nodes),
        "free": ray.available_resources().get("CPU", 0),
        "groups": sum(group["state"] != "REMOVED" for group in ray.util.placement_group_table().values()),
        "actors": sum(actor["State"] != "DEAD" for actor in state.actors().values() if actor["JobID"] != mine),
    }
    if (seen["free"] == seen["total"] and not seen["groups"] and not seen["actors"]) or time.monotonic() > end:
        break
    time.sleep(0.5)
print(json.dumps(seen))
"""
"""Joins a cluster, waits until nothing of a study is left there, and tells what there is."""


class Cluster:
    """What `ray start` starts, in a folder of its own, by which its processes are found again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lc", dir="/tmp"))  # sockets have at most 107 bytes of path
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.address = ""

    @property
    def settings(self) -> list[str]:
        """Words that give a command the cluster's environment; RAY_TMPDIR is where `auto` looks."""
        return ["env", "RAY_AUTH_MODE=disabled", f"RAY_TMPDIR={self.folder}"]

    @property
    def address_file(self) -> Path:
        """What `ray start` leaves for `auto`."""
        return self.folder / "ray_current_cluster"

    def start_head(self, num_cpus: int) -> None:
        words = ["--head", "--port", self.port, "--temp-dir", self.folder, "--include-dashboard=False"]
        self._ray_start(*words, "--node-ip-address", "127.0.0.1", "--num-cpus", num_cpus)
        # Ray replaces a loopback address of the head by one that other machines can reach.
        self.address = self.address_file.read_text().strip()

    def add_node(self, num_cpus: int, host: str) -> None:
        """Add a node with an address of its own; all of 127.0.0.0/8 is this machine."""
        self._ray_start("--address", self.address, "--node-ip-address", host, "--num-cpus", num_cpus)

    def _ray_start(self, *words: object) -> None:
        program = [*self.settings, str(Path(sys.executable).parent / "ray"), "start", "--disable-usage-stats"]
        done = run([*program, *map(str, words)], self.folder, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def state(self, patience_s: float = 60.0) -> dict[str, float]:
        """Return what is on the cluster, once it is clean or after `patience_s`."""
        done = run([*self.settings, sys.executable, "-c", STATE, self.address, str(patience_s)], self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.folder) in word for word in process.info["cmdline"] or [])
        ]

    def stop(self, *, forget: bool = True) -> None:
        """End its processes; with `forget` remove its folder too."""
        mine = {process for parent in self.processes() for process in (parent, *parent.children(recursive=True))}
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(mine, timeout=30)
        assert not self.processes()
        if forget:
            shutil.rmtree(self.folder, ignore_errors=True)


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


def uri(place):
    return f"sqlite:///{place}/mlflow.db"


def is_clean(state: dict[str, float], *, num_cpus: int, nodes: int = 1) -> bool:
    return state == {"nodes": nodes, "total": num_cpus, "free": num_cpus, "groups": 0, "actors": 0}


# First: it needs a machine without a Ray, before the module's own is up.
@pytest.mark.heavy
def test_a_dead_ray_is_neither_joined_nor_waited_for(place, alone):
    stale = Cluster()
    try:
        stale.start_head(num_cpus=1)
        stale.stop(forget=False)
        assert stale.address_file.read_text().strip() == stale.address
        began = time.monotonic()
        done = run([*stale.settings, *command("--space", "space.yaml", "--address", "auto")], place)
        assert time.monotonic() - began < 15
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Fix:" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (place / "studies").exists()

        (place / "space.yaml").write_text(ONE)
        # Without an address a study is on its own: its Ray needs a token, whatever the dead one needed.
        done = run(["env", f"RAY_TMPDIR={stale.folder}", *command("--space", "space.yaml", "--trials", "1")], place)
        assert done.returncode == 0, done.stdout + done.stderr
        assert stale.address not in done.stdout
        assert_whole(place / "studies" / "space", uri(place), 1)
    finally:
        stale.stop()


@pytest.mark.parametrize(
    "way",
    ["auto", pytest.param("host:port", marks=pytest.mark.heavy), pytest.param("RAY_ADDRESS", marks=pytest.mark.heavy)],
)
def test_a_study_joins_a_live_cluster_and_leaves_it_as_it_was(place, live, way):
    count = 2 if way == "auto" else 1
    (place / "space.yaml").write_text(SPACE if way == "auto" else ONE)
    words = command("--space", "space.yaml", "--trials", count)
    match way:
        case "auto":
            words = [*live.settings, *words, "--address", "auto"]
        case "host:port":
            words = [*live.settings, *words, "--address", live.address]
        case _:
            words = [*live.settings, f"RAY_ADDRESS={live.address}", *words]
    before = {process.pid for process in live.processes()}
    done = run(words, place, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert live.address in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert_whole(place / "studies" / "space", uri(place), count)
    opened = [record for record in records(place / "studies" / "space") if isinstance(record, StudyOpened)]
    assert [record.cluster["num_cpus"] for record in opened] == [8]
    assert is_clean(live.state(), num_cpus=8)
    assert before <= {process.pid for process in live.processes()}, "a process of the cluster is gone"


@pytest.mark.heavy
def test_a_trial_spreads_over_nodes_and_says_that_they_share_cores(place):
    cores = psutil.cpu_count(logical=False)
    if cores is None or cores >= 4:
        pytest.skip("nodes of four CPUs oversubscribe only a machine with fewer cores")
    (place / "space.yaml").write_text(WIDE)
    cluster = Cluster()
    try:
        cluster.start_head(num_cpus=4)
        cluster.add_node(4, "127.0.0.2")
        cluster.add_node(4, "127.0.0.3")
        words = command("--space", "space.yaml", "--trials", "1", "--address", cluster.address)
        done = run([*cluster.settings, *words], place, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        assert_whole(place / "studies" / "space", uri(place), 1)
        (built,) = [record for record in records(place / "studies" / "space") if isinstance(record, TrialBuilt)]
        addresses = {cluster.address.rpartition(":")[0], "127.0.0.2", "127.0.0.3"}
        assert set(built.processes_per_node) <= addresses
        assert len(built.processes_per_node) >= 2
        assert sum(built.processes_per_node.values()) == 6
        assert max(built.processes_per_node.values()) <= 4
        assert built.timing == "oversubscribed"
        assert re.search(r"Ray hands out 4 CPUs, \d cores?", built.timing_reason)
        assert "oversubscribed" in done.stdout
        assert is_clean(cluster.state(), num_cpus=12, nodes=3)
    finally:
        cluster.stop()


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_ends_early_frees_a_live_cluster_and_a_resume_finishes(place, live, number):
    (place / "space.yaml").write_text(LONGER)
    words = [*live.settings, *command("--space", "space.yaml", "--trials", "2", "--address", live.address)]
    folder = place / "studies" / "space"
    with (place / "log").open("w") as log:
        process = start(words, place, log)
        wait_for(
            lambda: (folder / "records.jsonl").exists() and "iteration" in {record.kind for record in records(folder)},
            process,
        )
        os.killpg(process.pid, number)
        assert process.wait(timeout=120) == (75 if number == signal.SIGTERM else -number), (place / "log").read_text()
    assert is_clean(live.state(), num_cpus=8)
    done = run([*words, "--resume"], place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(folder, uri(place), 2)
    assert [record.attempt for record in records(folder) if record.kind == "trial_started"].count(2) == 1
    assert is_clean(live.state(), num_cpus=8)
