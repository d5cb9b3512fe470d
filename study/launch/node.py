"""One Ray node on this host: its address, folder and command line, and the end of exactly these processes.

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
from importlib.util import find_spec
from pathlib import Path

import psutil

from study.cluster.environment import PRIVATE_ENVIRONMENT, RAY_ENVIRONMENT
from study.errors import LaunchError
from study.hosts.machine import machine
from study.launch.ports import claim, take_block
from study.launch.remote import RayTask

STAGED = "rl-{job}-{host}-env"
"""Name of the copy of an environment for a host."""
MARKER = ".study-launch"
"""File in every folder that may be removed here; it holds the name of the host that made the folder."""
STOP_TIMEOUT_S = 40.0
"""How long `ray start --block` may take to end; it waits half a minute for a head that is gone."""
_STARTED = b"Ray runtime started."
"""What `ray start` of Ray 2.60 prints when it is done."""
_NOISE = re.compile(r"^    |^\t|^  File |^Traceback|\[0x[0-9a-f]+\]|^\*\*\*|\[state-dump\]| I \d+ \d+\] ")
"""Code of tracebacks, frames of stacks, statistics and information in what Ray prints."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


class RayNode:
    """A Ray node that ends on `stop`, or with this process."""

    def __init__(self, task: RayTask) -> None:
        """Start it; must be called in the main thread, whose death ends it.

        Raises:
            LaunchError: There is no address, no port or no folder for it.
        """
        self.ip = own_address(task)
        self.num_cpus = _num_cpus(task)
        self._ports = take_block(task.job, num_cpus=self.num_cpus, port_base=task.port_base)
        try:
            self.folder = _folder(task.temp_root, self._ports.base)
            self._log = (self.folder / "start.log").open("w+b")  # held open: readable also when its folder is gone
            alone = not (task.address or task.peer)
            ours = PRIVATE_ENVIRONMENT if alone else RAY_ENVIRONMENT
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
            self._ports.release()
            raise
        self._is_head = not task.address
        self.has_listened = False
        """Whether its servers ever listened: what dies after that may live at the next start."""

    @property
    def address(self) -> str:
        """Where the head listens, if this is it."""
        return f"{self.ip}:{self._ports['gcs']}"

    @property
    def dashboard(self) -> str:
        """Where the dashboard listens: on loopback only."""
        return f"127.0.0.1:{self._ports['dashboard']}"

    def is_up(self) -> bool:
        """Return whether Ray has started: its servers listen seconds before, and may still fail."""
        return self.has_listened and _STARTED in self._printed()

    def death(self) -> str | None:
        """Return how the node has died, with its last lines; None while it lives.

        `ray start` itself notices the death of a server within a second, but while it starts only after half a minute.
        """
        names = ("gcs", "node_manager") if self._is_head else ("node_manager",)
        listens = all(_listens(self.ip, self._ports[name]) for name in names)
        if (code := self.process.poll()) is not None:
            what = f"`ray start` ended with code {code}"
        elif not self.folder.exists():
            what = f"somebody removed {self.folder}"
        elif self.has_listened and not listens:
            what = "a server of Ray no longer listens"
        else:
            self.has_listened = listens
            return None
        return f"{what}: {self._last_lines()}"

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
        self._ports.release()
        self._log.close()
        if not (keep_logs and (self.folder / MARKER).exists()):  # Ray makes anew what somebody removed
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
        found = [each for each in psutil.net_if_addrs().get(task.interface, []) if each.family == socket.AF_INET]
        if not found:
            there = ", ".join(sorted(psutil.net_if_addrs()))
            raise LaunchError(
                where=f"--interface {task.interface}",
                rule="must have an IPv4 address here",
                got=f"interfaces {there}",
                fix="Name one of these.",
            )
        return found[0].address
    if not task.peer:
        return "127.0.0.1"  # alone: nothing listens for others
    # The second address belongs to nobody (RFC 5737); it shows by which address this host sends. Nothing is sent.
    for peer in (task.peer.rpartition("@")[2], "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((peer, 9))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    raise LaunchError(
        where="network",
        rule=f"must have a route to {task.peer}",
        fix="Give --interface with the network that the hosts share.",
    )


def _num_cpus(task: RayTask) -> int:
    if task.num_cpus is not None:
        return task.num_cpus
    cores = machine().num_cores
    return min(cores, task.granted or cores)


def _folder(temp_root: str, base: int) -> Path:
    """Make the folder of the node that owns the ports from `base` on.

    Its name tells hosts and users apart, since hosts may share the folder above it. What nodes that were killed on
    this host have left there is removed first.

    Raises:
        LaunchError: It cannot be made, or something else has its name.
    """
    root, owner = Path(temp_root), f"{os.getuid()}@{socket.gethostname()}"
    _remove_dead(root)
    folder = root / f"rl-{base}-{hashlib.sha256(owner.encode()).hexdigest()[:6]}"
    remove_marked(folder)  # of an earlier owner of these ports, which are held by now
    try:
        folder.mkdir(mode=0o700)
        (folder / MARKER).write_text(socket.gethostname())
    except FileExistsError as error:
        raise LaunchError(
            where=str(folder),
            rule="must be a folder that a launch made for you on this host",
            got="something else",
            fix="Choose another --temp-root.",
        ) from error
    except OSError as error:
        raise LaunchError(
            where="--temp-root",
            rule="must be a folder in which you can write",
            got=f"{temp_root} ({error.strerror})",
            fix="Choose a --temp-root on this host's own disk.",
        ) from error
    return folder


def remove_marked(folder: Path) -> None:
    """Remove a folder that a launch of this user made on this host; leave any other alone."""
    marker = folder / MARKER
    with contextlib.suppress(OSError):  # it is not there, or another node has just removed it
        place, mark = folder.lstat(), marker.lstat()
        is_marked = stat.S_ISDIR(place.st_mode) and stat.S_ISREG(mark.st_mode)
        is_mine = place.st_uid == mark.st_uid == os.getuid()
        if is_marked and is_mine and marker.read_bytes().strip() == socket.gethostname().encode():
            shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(root: Path) -> None:
    """Remove what killed nodes of this host have left.

    These are folders of nodes whose ports nobody holds, and copies of environments that no process of this user has on
    its command line: neither one that runs from the copy, nor the shell that makes it.
    """
    for folder in root.glob("rl-*"):
        if node := re.fullmatch(r"rl-(\d{4,5})-[0-9a-f]{6}", folder.name):
            if int(node[1]) < 65_536 and (lock := claim(int(node[1]))):
                with lock:
                    remove_marked(folder)
        elif not _processes_with(f"/{folder.name}/"):
            remove_marked(folder)


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


def _listens(ip: str, port: int) -> bool:
    """Return whether a process listens there; one that is too busy to answer does."""
    try:
        with socket.create_connection((ip, port), timeout=1):
            return True
    except TimeoutError:
        return True
    except OSError:
        return False
