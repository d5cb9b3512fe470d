"""The program on every host of a job (`python -m study.launch.node`): runs a node of Ray, or the study's driver.

Its standard input has one line, a `Task`, and then stays open: when it ends, by an order, a lost connection or the
death of the supervisor, the child is ended, so that nothing is left behind. Its standard output is that of the driver,
or one line that begins with `UP` once Ray runs; what went wrong follows there too. Its exit code is the child's. It
ignores the signals by which schedulers end jobs: the supervisor gets them too, and ends the study before Ray.

Ray picks its ports at random and dies, or never registers, where another program took one in between; two jobs that
share a host collide in the same way. So every node takes a cell of ports, and listens on the first one as long as Ray
runs: the process that holds it owns the cell, and a lock that ends with its process can never be stale.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil

from study.errors import ExitCode, LaunchError, StudyError
from study.machine.cluster import PRIVATE_ENVIRONMENT, RAY_ENVIRONMENT
from study.machine.host import num_cores, own_folder, with_word

UP = "@ray-is-up "
"""How the line begins that says where a node of Ray listens, as JSON."""
POLL_S = 0.25
STOP_TIMEOUT_S = 60.0
"""How long the child may take to end cleanly; `ray start --block` waits half a minute for a head that is gone."""
LONGEST_TEMP_ROOT = 25
"""Bytes; with the folders of a node and of Ray behind it, the path of a socket has 107, which is the most."""
LOWEST_PORT, HIGHEST_PORT, CELL = 20_000, 32_000, 1000
"""Above the ports of Ray's own choice (10002 to 19999) and below Linux's ephemeral ones (32768 to 60999).

A node has a cell of so many, which begins at a multiple of it.
"""
HEAD_PORTS = ("port", "dashboard-port", "ray-client-server-port")
PORTS = (
    "lock",
    *HEAD_PORTS,
    *("node-manager-port", "object-manager-port", "metrics-export-port"),
    *("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port"),
)
"""The first ports of a cell, by the option of `ray start` for each; those of worker processes follow."""
_STARTED = b"Ray runtime started."
"""What `ray start` of Ray 2.60 prints when its node has registered with the head."""
_NOISE = re.compile(r"^    |^\t|^  File |^Traceback|\[0x[0-9a-f]+\]|^\*\*\*|\[state-dump\]| I \d+ \d+\] ")
"""Code of tracebacks, frames of stacks, statistics and information in what Ray prints."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What runs on a host: the driver's command, or a node of Ray where there is no command."""

    job: str
    """Name of the job, for folders and ports."""
    temp_root: str = "/tmp"
    environment: dict[str, str] = {}
    """Secrets too: what goes over standard input is on no command line and in no file."""
    command: tuple[str, ...] = ()
    """`{python}` stands for the interpreter on that host, `{folder}` for a folder with the files."""
    files: dict[str, str] = {}
    """Name -> content."""
    address: str = ""
    """Of Ray's head; empty: be the head."""
    num_cpus: int | None = None
    """CPUs that Ray hands out; None: the cores that this process may use."""
    granted: int | None = None
    """CPUs that the scheduler gave, perhaps hyper-threads: the most that Ray hands out where `num_cpus` is None."""
    interface: str = ""
    peer: str = ""
    """A host that must be reached from here; empty: there is none, and Ray stays on loopback."""


def main() -> int:
    """Do what the first line of standard input says."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # a handler, since children would inherit SIG_IGN
    if not (line := sys.stdin.readline()):
        return 0
    try:
        task = msgspec.json.decode(line, type=Task)
        return _run_command(task) if task.command else _run_ray(task)
    except msgspec.DecodeError as error:
        _say(f"the supervisor must be of the same version: {error}")
    except (StudyError, OSError) as error:
        _say(str(error))
    return ExitCode.NO_CLUSTER


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _end_of_input() -> threading.Event:
    """Return what is set when the standard input has ended."""
    ended = threading.Event()

    def read() -> None:
        for _ in sys.stdin:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended


def _start(words: list[str], variables: Mapping[str, str], output: IO[Any]) -> "subprocess.Popen[bytes]":
    """Start a child that the kernel tells to end when the main thread of this process does."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(variables),
        start_new_session=True,  # a signal to the job's group must not end Ray before the study
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, and see that it and its group do."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run_command(task: Task) -> int:
    """Run the driver until it or the input ends; return its code, 128 and more for the signal that killed it."""
    with own_folder(task.temp_root, "rl") if task.files else contextlib.nullcontext(Path()) as folder:
        for name, content in task.files.items():
            (folder / name).write_text(content)
        words = [word.replace("{folder}", str(folder)).replace("{python}", sys.executable) for word in task.command]
        process, ended = _start(words, {**os.environ, **task.environment}, sys.stdout), _end_of_input()
        while process.poll() is None and not ended.wait(POLL_S):
            pass
        _end(process)
        with contextlib.suppress(ProcessLookupError):  # what it left would hold the connection open
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _run_ray(task: Task) -> int:
    """Run a node until the input ends, or it dies."""
    ended, is_up = _end_of_input(), False
    with taken_ports(task.job) as base, own_folder(task.temp_root, "rl") as folder:
        node = RayNode(task, base, folder)
        try:
            while not ended.wait(POLL_S):
                if (code := node.process.poll()) is not None:  # `ray start --block` notices a dead server in a second
                    _say(f"`ray start` ended with code {code}: {node.last_lines()}")
                    return ExitCode.NO_CLUSTER
                if not is_up and (is_up := node.is_up()):
                    _say(UP + msgspec.json.encode(node.about()).decode())
        finally:
            node.stop()
    return 0


class RayNode:
    """A Ray node that ends on `stop`, or with this process."""

    def __init__(self, task: Task, base: int, folder: Path) -> None:
        """Start it; must be called in the main thread, whose death ends it.

        Args:
            task: What it is to be.
            base: First port of the cell that it may use.
            folder: For its files.

        Raises:
            LaunchError: There is no address for it.
        """
        self.ip, self.base, self.folder = own_address(task), base, folder
        cores = num_cores()
        self.num_cpus = min(cores, task.granted or cores) if task.num_cpus is None else task.num_cpus
        ours = RAY_ENVIRONMENT if task.address or task.peer else PRIVATE_ENVIRONMENT
        # Workers inherit OMP_NUM_THREADS: a job's own would give every runner of one CPU as many threads.
        outside = {"RAY_ADDRESS", "RAY_TMPDIR", "OMP_NUM_THREADS"}
        variables = {name: value for name, value in os.environ.items() if name not in outside}
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", *self._arguments(task)]
        with (folder / "start.log").open("wb") as log:
            self.process = _start(words, {**variables, **ours, **task.environment}, log)

    def about(self) -> dict[str, Any]:
        """Return what the supervisor needs to know of it."""
        return {"address": f"{self.ip}:{self.port('port')}", "ip": self.ip, "num_cpus": self.num_cpus}

    def port(self, option: str) -> int:
        """Return the port that goes with an option of `ray start`."""
        return self.base + PORTS.index(option)

    def is_up(self) -> bool:
        """Return whether it has registered with the head."""
        return _STARTED in (self.folder / "start.log").read_bytes()

    def last_lines(self) -> str:
        """Return the last lines of `ray start` and of the error logs of Ray's servers."""
        ends: list[str] = []
        for name in ("start.log", "r/session_latest/logs/gcs_server.err", "r/session_latest/logs/raylet.err"):
            with contextlib.suppress(OSError):
                lines = (self.folder / name).read_text(errors="replace").splitlines()
                ends += [line for line in lines if line.strip() and not _NOISE.search(line)][-8:]
        return "\n".join(ends)[-1500:]

    def stop(self) -> None:
        """End it and its processes, and no others."""
        _end(self.process)
        deadline = time.monotonic() + 3
        while (left := list(with_word(f"{self.folder}/"))) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _arguments(self, task: Task) -> list[str]:
        if task.address:
            words, of_head = [f"--address={task.address}"], set(HEAD_PORTS)
        else:
            words = ["--head", "--include-dashboard=false", "--dashboard-host=127.0.0.1"]
            # Where grpc is installed, the head has a server for Ray Client too: at 10001, which other Rays would take.
            of_head = set() if find_spec("grpc") else {"ray-client-server-port"}
        first = self.base + len(PORTS)  # of worker processes, one each; Ray passes over those that are taken
        return [
            *words,
            *(f"--{option}={self.port(option)}" for option in PORTS[1:] if option not in of_head),
            f"--min-worker-port={first}",
            f"--max-worker-port={min(first + 99 + 4 * self.num_cpus, self.base + CELL - 1)}",
            f"--node-ip-address={self.ip}",
            f"--num-cpus={self.num_cpus}",
            f"--temp-dir={self.folder}/r",
            "--disable-usage-stats",
            "--block",
        ]


def own_address(task: Task) -> str:
    """Return the address of this host that the others of its cluster reach.

    Raises:
        LaunchError: The interface is not there, or no way leads to the others.
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


@contextlib.contextmanager
def taken_ports(job: str) -> Iterator[int]:
    """Hold a free cell of ports, the first one from where the job's name says: other jobs begin elsewhere.

    Raises:
        LaunchError: No cell is free.
    """
    bases = range(LOWEST_PORT, HIGHEST_PORT, CELL)
    first = zlib.crc32(job.encode()) % len(bases)
    for base in (*bases[first:], *bases[:first]):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", base)))  # the lock
                for offset in range(1, len(PORTS)):
                    with socket.socket() as probe:
                        probe.bind(("", base + offset))  # on all addresses, as Ray does
            except OSError:
                continue
            yield base
            return
    rule, fix = f"{CELL} in a row must be free between {LOWEST_PORT} and {HIGHEST_PORT}", "Use another host."
    raise LaunchError(where="ports", rule=rule, got="none", fix=fix)


if __name__ == "__main__":
    sys.exit(main())
