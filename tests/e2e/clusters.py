"""A Ray cluster of several nodes on this machine whose nodes, raylets and head can be killed one by one."""

import contextlib
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from tests.e2e.commands import run

SOON = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""Lets Ray declare a node dead after about 4 s; by default it takes 15 to 25 s."""


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
    """What `ray start` starts, in a folder of its own, by which its processes are found again.

    Raylets have an address each; the head runs nothing unless told so.
    """

    def __init__(self, **own: str) -> None:
        self.own = {"RAY_AUTH_MODE": "disabled", **own}
        """Variables of the nodes that start from now on, and of the commands."""
        self.folder = Path(tempfile.mkdtemp(prefix="lc", dir="/tmp"))  # sockets have at most 107 bytes of path
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.address = ""

    @property
    def settings(self) -> list[str]:
        """Words that give a command the cluster's environment; RAY_TMPDIR is where `auto` looks."""
        return ["env", f"RAY_TMPDIR={self.folder}", *(f"{name}={value}" for name, value in self.own.items())]

    def start_head(self, num_cpus: int = 0, **config: object) -> None:
        words = ["--head", "--port", self.port, "--temp-dir", self.folder, "--include-dashboard=False"]
        words += ["--node-ip-address", "127.0.0.1", "--num-cpus", num_cpus]
        self._ray_start(*words, *(["--system-config", json.dumps(config)] if config else []))
        # Ray replaces a loopback address of the head by one that other machines can reach.
        self.address = (self.folder / "ray_current_cluster").read_text().strip()

    def add_node(self, num_cpus: int, host: str, *, within: Sequence[str] = ()) -> None:
        """Add a node with an address of its own, all of 127.0.0.0/8 is this machine, started `within` a command."""
        where = ("--address", self.address, "--node-ip-address", host, "--num-cpus", num_cpus)
        self._ray_start(*where, within=within)

    def _ray_start(self, *words: object, within: Sequence[str] = ()) -> None:
        program = [*within, *self.settings, str(Path(sys.executable).parent / "ray"), "start", "--disable-usage-stats"]
        run([*program, *map(str, words)], self.folder, timeout=180)

    def raylet(self, host: str) -> psutil.Process:
        """Return the raylet with that address."""
        (found,) = [process for process in self._named("raylet") if f"--node_ip_address={host}" in process.cmdline()]
        return found

    def workers(self, host: str) -> list[psutil.Process]:
        """Return the processes that the node runs for drivers."""
        return workers_below(self.raylet(host))

    def crash(self, host: str) -> None:
        """End a node as a power cut would."""
        raylet = self.raylet(host)
        kill_all([raylet, *raylet.children(recursive=True)])

    def kill_raylet(self, host: str) -> None:
        """End the raylet alone; its workers find out by themselves."""
        kill_all([self.raylet(host)])

    def crash_head(self) -> None:
        """End the machine that the head runs on, without the driver."""
        kill_all([*self._named("gcs_server"), self.raylet(self.address.rpartition(":")[0])])

    def state(self, patience_s: float = 60.0) -> dict[str, float]:
        """Return what is on the cluster, once it is clean or after `patience_s`."""
        done = run([*self.settings, sys.executable, "-c", STATE, self.address, str(patience_s)], self.folder)
        return json.loads(done.stdout.splitlines()[-1])

    def processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.folder) in word for word in process.info["cmdline"] or [])
        ]

    def close(self) -> None:
        """End its processes, and remove its folder."""
        kill_all({process for parent in self.processes() for process in (parent, *parent.children(recursive=True))})
        assert not self.processes()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _named(self, name: str) -> list[psutil.Process]:
        return [process for process in self.processes() if process.name() == name and is_alive(process)]


def is_clean(state: dict[str, float], *, num_cpus: int, nodes: int = 1) -> bool:
    """Return whether nothing of a study is left."""
    return state == {"nodes": nodes, "total": num_cpus, "free": num_cpus, "groups": 0, "actors": 0}


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that nobody has waited for does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def workers_below(parent: psutil.Process, title: str = "") -> list[psutil.Process]:
    """Return Ray's worker processes below `parent` whose title begins so, without idle ones."""
    found = []
    for process in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            words = process.cmdline()[0]
            if words.startswith(f"ray::{title}") and not words.startswith("ray::IDLE"):
                found.append(process)
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """End processes so that no handler runs."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=30)
