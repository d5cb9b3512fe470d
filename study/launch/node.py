"""One Ray node on this host: its address, ports, folder and command line, and the end of exactly these processes.

Ray picks its ports at random and dies, or never registers, where another program took one in between; two jobs that
share a host collide in the same way. So every node takes a cell of ports, and listens on the first one as long as Ray
runs: the process that holds it owns the cell, and a lock that ends with its process can never be stale.

Imports no engine: Ray runs in a process of its own.
"""

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from study.cluster.environment import PRIVATE_ENVIRONMENT, RAY_ENVIRONMENT
from study.errors import LaunchError
from study.hosts.machine import machine
from study.launch.job import RayTask

LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000
"""Above the ports of Ray's own choice (10002 to 19999) and below Linux's ephemeral ones (32768 to 60999)."""
CELL = 1000
"""Ports of a node; cells begin at multiples of it, so that those of different jobs never overlap."""
_NAMED = (
    *("lock", "gcs", "node_manager", "object_manager", "metrics", "agent_http", "agent_grpc"),
    *("runtime_env", "dashboard", "client"),
)
"""The first ports of a cell; those of worker processes follow."""
STOP_TIMEOUT_S = 40.0
"""How long `ray start --block` may take to end; it waits half a minute for a head that is gone."""
_STARTED = b"Ray runtime started."
"""What `ray start` of Ray 2.60 prints when it is done."""
_NOISE = re.compile(r"^    |^\t|^  File |^Traceback|\[0x[0-9a-f]+\]|^\*\*\*|\[state-dump\]| I \d+ \d+\] ")
"""Code of tracebacks, frames of stacks, statistics and information in what Ray prints."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of one Ray node."""

    base: int
    num_workers: int
    """Ports for worker processes, one each; Ray passes over those that are taken."""
    lock: socket.socket

    def __getitem__(self, name: str) -> int:
        return self.base + _NAMED.index(name)

    @property
    def workers(self) -> tuple[int, int]:
        """First and last port of worker processes."""
        first = self.base + len(_NAMED)
        return first, first + self.num_workers - 1


def take_ports(job: str, *, num_cpus: int, port_base: int | None = None) -> Ports:
    """Find a free cell, beginning where the job's name says, and hold it until its lock is closed.

    Args:
        job: The job's name: other jobs begin elsewhere, so that hosts rarely have to search.
        num_cpus: CPUs of the node; Ray starts up to a few processes for each.
        port_base: First port that may be used, where a firewall leaves only some; the next multiple of `CELL` counts.

    Raises:
        LaunchError: No cell is free.
    """
    lowest, highest = (LOWEST_PORT, HIGHEST_PORT) if port_base is None else (-(-port_base // CELL) * CELL, 65_535)
    bases = range(lowest, highest - CELL + 1, CELL)
    first = 0 if port_base is not None else zlib.crc32(job.encode()) % len(bases)
    for base in (*bases[first:], *bases[:first]):
        if (lock := claim(base)) is not None:
            if all(_is_free(base + offset) for offset in range(1, len(_NAMED))):
                return Ports(base, min(100 + 4 * num_cpus, CELL - len(_NAMED)), lock)
            lock.close()
    rule, fix = f"{CELL} in a row must be free between {lowest} and {highest}", "Give --port-base, or use another host."
    raise LaunchError(where="ports", rule=rule, got="none", fix=fix)


def claim(base: int) -> socket.socket | None:
    """Return the lock of the cell from `base` on, which listens on loopback; None where another process has it."""
    lock = socket.socket()
    try:
        lock.bind(("127.0.0.1", base))
        lock.listen(1)
    except OSError:
        lock.close()
        return None
    return lock


def _is_free(port: int) -> bool:
    """Return whether the port can be bound on all addresses, as Ray does."""
    with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False


class RayNode:
    """A Ray node that ends on `stop`, or with this process."""

    def __init__(self, task: RayTask) -> None:
        """Start it; must be called in the main thread, whose death ends it.

        Raises:
            LaunchError: There is no address, no port or no folder for it.
        """
        self.ip = own_address(task)
        self.num_cpus = _num_cpus(task)
        self._ports = take_ports(task.job, num_cpus=self.num_cpus, port_base=task.port_base)
        try:
            self.folder = _folder(task.temp_root, self._ports.base)
            self._log = (self.folder / "start.log").open("w+b")  # held open: readable also when its folder is gone
            ours = RAY_ENVIRONMENT if task.address or task.peer else PRIVATE_ENVIRONMENT
            environment = {**os.environ, **ours, **task.environment}
            # Workers inherit OMP_NUM_THREADS: a job's own would give every runner of one CPU as many threads.
            for name in ("RAY_ADDRESS", "RAY_TMPDIR", "OMP_NUM_THREADS"):
                environment.pop(name, None)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *self._arguments(task)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,  # a signal to the job's group must not end Ray before the study
                preexec_fn=die_with_parent,
            )
        except BaseException:
            self._ports.lock.close()
            raise

    @property
    def address(self) -> str:
        """Where the head listens, if this is it."""
        return f"{self.ip}:{self._ports['gcs']}"

    @property
    def dashboard(self) -> str:
        """Where the dashboard listens: on loopback only."""
        return f"127.0.0.1:{self._ports['dashboard']}"

    def is_up(self) -> bool:
        """Return whether Ray has started."""
        return _STARTED in self._printed()

    def death(self) -> str | None:
        """Return how the node has died, with its last lines; None while it lives.

        `ray start` itself notices the death of a server within a second, while it starts after half a minute.
        """
        if (code := self.process.poll()) is not None:
            return f"`ray start` ended with code {code}: {self._last_lines()}"
        return None if self.folder.exists() else f"somebody removed {self.folder}: {self._last_lines()}"

    def _last_lines(self) -> str:
        """Return the last lines of `ray start` and of the error logs of Ray's servers."""
        texts = [self._printed()]
        for name in ("gcs_server.err", "raylet.err"):
            with contextlib.suppress(OSError):
                texts.append((self.folder / "r" / "session_latest" / "logs" / name).read_bytes())
        ends = []
        for text in texts:
            lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
            ends += [line for line in lines if not _NOISE.search(line)][-8:]
        return "\n".join(ends)[-1500:]

    def _printed(self) -> bytes:
        self._log.seek(0)
        return self._log.read()

    def stop(self, *, keep_logs: bool = False) -> None:
        """End it and its processes, and no others; remove its folder."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        deadline = time.monotonic() + 3
        while (left := _processes_with(f"{self.folder}/")) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._ports.lock.close()
        self._log.close()
        if not (keep_logs and (self.folder / "start.log").exists()):  # Ray makes anew what somebody removed
            shutil.rmtree(self.folder, ignore_errors=True)

    def _arguments(self, task: RayTask) -> list[str]:
        ports, (first, last) = self._ports, self._ports.workers
        head = ["--head", f"--port={ports['gcs']}", f"--include-dashboard={str(task.dashboard).lower()}"]
        head += ["--dashboard-host=127.0.0.1", f"--dashboard-port={ports['dashboard']}"]
        if find_spec("grpc"):  # then the head has a server for Ray Client too: at 10001, which other Rays would take
            head.append(f"--ray-client-server-port={ports['client']}")
        where = [f"--address={task.address}"] if task.address else head
        return [
            "start",
            *where,
            f"--node-ip-address={self.ip}",
            f"--num-cpus={self.num_cpus}",
            f"--temp-dir={self.folder}/r",
            f"--node-manager-port={ports['node_manager']}",
            f"--object-manager-port={ports['object_manager']}",
            f"--metrics-export-port={ports['metrics']}",
            f"--dashboard-agent-listen-port={ports['agent_http']}",
            f"--dashboard-agent-grpc-port={ports['agent_grpc']}",
            f"--runtime-env-agent-port={ports['runtime_env']}",
            f"--min-worker-port={first}",
            f"--max-worker-port={last}",
            "--disable-usage-stats",
            "--block",
        ]


def own_address(task: RayTask) -> str:
    """Return the address of this host that the others of its cluster reach.

    Raises:
        LaunchError: The interface is not there.
    """
    if task.interface:
        there = psutil.net_if_addrs()
        if found := [each for each in there.get(task.interface, []) if each.family == socket.AF_INET]:
            return found[0].address
        where, rule, got = f"--interface {task.interface}", "must have an IPv4 address here", ", ".join(sorted(there))
        raise LaunchError(where=where, rule=rule, got=f"interfaces {got}", fix="Name one of these.")
    if not task.peer:
        return "127.0.0.1"  # alone: nothing listens for others
    # The second address belongs to nobody (RFC 5737); it shows by which address this host sends. Nothing is sent.
    for peer in (task.peer.rpartition("@")[2], "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
    rule, fix = f"must have a route to {task.peer}", "Give --interface with the network that the hosts share."
    raise LaunchError(where="network", rule=rule, fix=fix)


def _num_cpus(task: RayTask) -> int:
    if task.num_cpus is not None:
        return task.num_cpus
    cores = machine().num_cores
    return min(cores, task.granted or cores)


def _folder(temp_root: str, base: int) -> Path:
    """Make the folder of the node that owns the ports from `base` on; remove what killed nodes here have left.

    Its name tells hosts and users apart, since hosts may share the folder above it.

    Raises:
        LaunchError: It cannot be made, or something else has its name.
    """
    owner = hashlib.sha256(f"{os.getuid()}@{socket.gethostname()}".encode()).hexdigest()[:6]
    folder = Path(temp_root, f"rl-{base}-{owner}")
    for place in Path(temp_root).glob(f"rl-*-{owner}"):
        port = place.name.split("-")[1]
        if place == folder:
            _remove_own(place)  # of an earlier owner of these ports, which are held by now
        elif port.isdecimal() and int(port) < 65_536 and (lock := claim(int(port))):
            with lock:
                _remove_own(place)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError as error:
        rule, fix = "must be a folder of yours, or nothing", "Choose another --temp-root."
        raise LaunchError(where=str(folder), rule=rule, got="something else", fix=fix) from error
    except OSError as error:
        rule, got = "must be a folder in which you can write", f"{temp_root} ({error.strerror})"
        fix = "Choose a --temp-root on this host's own disk."
        raise LaunchError(where="--temp-root", rule=rule, got=got, fix=fix) from error
    return folder


def _remove_own(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another node has just removed it
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)


def _processes_with(mark: str) -> list[psutil.Process]:
    """Return this user's processes that have the mark on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "uids"]):
        uids = process.info["uids"]
        if uids and uids.real == os.getuid() and any(mark in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this child when the agent is killed; the child then ends its own children."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
