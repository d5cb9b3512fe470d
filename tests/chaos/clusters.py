"""A Ray cluster of several nodes on this machine whose nodes, raylets and head can be killed one by one."""

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from tests.chaos.network import Wire
from tests.e2e import test_live_cluster
from tests.e2e.commands import run

SOON = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""Lets Ray declare a node dead after about 4 s; by default it takes 15 to 25 s."""


class Cluster(test_live_cluster.Cluster):
    """Raylets with an address each, and a head that runs nothing unless told so."""

    def start_head(self, num_cpus: int = 0, host: str = "127.0.0.1", **config: object) -> None:
        words = ["--head", "--port", self.port, "--temp-dir", self.folder, "--include-dashboard=False"]
        words += ["--node-ip-address", host, "--num-cpus", num_cpus]
        self._ray_start(*words, *(["--system-config", json.dumps(config)] if config else []))
        # Ray replaces a loopback address of the head by one that other machines can reach.
        self.address = self.address_file.read_text().strip()

    def add_node_inside(self, num_cpus: int, wire: Wire) -> None:
        """Add a node behind a wire that can be cut."""
        where = ["--node-ip-address", wire.inside, "--num-cpus", num_cpus]
        self._ray_start("--address", self.address, *where, within=wire.within)

    def _ray_start(self, *words: object, within: Sequence[str] = ()) -> None:
        program = [*within, *self.settings, str(Path(sys.executable).parent / "ray"), "start", "--disable-usage-stats"]
        done = run([*program, *map(str, words)], self.folder, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr

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

    def _named(self, name: str) -> list[psutil.Process]:
        return [process for process in self.processes() if process.name() == name and is_alive(process)]


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
    psutil.wait_procs(processes, timeout=10)
