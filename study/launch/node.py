"""The program on every host of a launched cluster (`python -m study.launch.node`): runs one child and ends it.

Its standard input has one line, a task, and then stays open: when it ends, by an order, a lost connection or the death
of the supervisor, the child is ended, so that nothing is left behind. Its standard output has one event on each line:

    {"event": "started", …}   {"event": "line", "text": …}   {"event": "exited", "code": …}
    {"event": "failed", "reason": …, "fix": …}

It ignores the signals by which schedulers end jobs: the supervisor gets them too, and ends the study before Ray.

The child is a command or a node of Ray. Ray picks its ports at random and dies, or never registers, where another
program took one in between; two jobs that share a host collide in the same way. So every node takes a cell of ports,
and listens on the first one as long as Ray runs: the process that holds it owns the cell, and a lock that ends with its
process can never be stale. Imports no engine: Ray runs in a process of its own.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psutil

from study.errors import LaunchError, in_one_line
from study.machine.cluster import PRIVATE_ENVIRONMENT, RAY_ENVIRONMENT
from study.machine.host import num_cores
from study.machine.processes import with_word

POLL_S = 0.25
STOP_TIMEOUT_S = 60.0
"""How long the child may take to end cleanly; `ray start --block` waits half a minute for a head that is gone."""
LONGEST_TEMP_ROOT = 25
"""Bytes; with the folders of a node and of Ray behind it, the path of a socket has 107, which is the most."""
_STARTED = b"Ray runtime started."
"""What `ray start` of Ray 2.60 prints when its node has registered with the head."""
_NOISE = re.compile(r"^    |^\t|^  File |^Traceback|\[0x[0-9a-f]+\]|^\*\*\*|\[state-dump\]| I \d+ \d+\] ")
"""Code of tracebacks, frames of stacks, statistics and information in what Ray prints."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


class _Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: str
    """Name of the job, for folders and ports."""
    temp_root: str
    environment: dict[str, str]
    """Secrets too: what goes over standard input is on no command line and in no file."""


class RayTask(_Task, frozen=True, kw_only=True, tag="ray"):
    """Run one node of Ray."""

    address: str = ""
    """Of the head; empty: be the head."""
    num_cpus: int | None = None
    """CPUs that Ray hands out; None: the cores that this process may use."""
    granted: int | None = None
    """CPUs that the scheduler gave, perhaps hyper-threads: the most that Ray hands out where `num_cpus` is None."""
    interface: str = ""
    peer: str = ""
    """A host that must be reached from here; empty: there is none, and Ray stays on loopback."""
    port_base: int | None = None
    dashboard: bool = False


class CommandTask(_Task, frozen=True, kw_only=True, tag="command"):
    """Run a command, pass on what it prints, report its exit code."""

    command: tuple[str, ...]
    """`{python}` stands for the interpreter on that host, `{folder}` for a folder with the files."""
    files: dict[str, str] = {}
    """Name -> content."""


_said = threading.Lock()


def say(event: str, **content: Any) -> None:
    """Send an event to the supervisor; does nothing if it is gone."""
    line = json.dumps({"event": event, **content}) + "\n"
    with _said, contextlib.suppress(OSError):
        sys.stdout.write(line)
        sys.stdout.flush()


def main() -> int:
    """Do what the first line of standard input says."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # a handler, since children would inherit SIG_IGN
    line = sys.stdin.readline()
    if not line:
        return 0
    try:
        task = msgspec.json.decode(line, type=RayTask | CommandTask)
        return _run_ray(task) if isinstance(task, RayTask) else _run_command(task)
    except msgspec.DecodeError as error:
        say("failed", reason=f"the supervisor must be of the same version: {error}")
    except LaunchError as error:
        say("failed", reason=in_one_line(where=error.where, rule=error.rule, got=error.got, fix=""), fix=error.fix)
    except OSError as error:
        say("failed", reason=str(error))
    return 1


def _end_of_input() -> threading.Event:
    """Return what is set when the standard input has ended."""
    ended = threading.Event()

    def read() -> None:
        for _ in sys.stdin:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended


def _run_command(task: CommandTask) -> int:
    with contextlib.ExitStack() as stack:
        folder = ""
        if task.files:
            made = tempfile.TemporaryDirectory(prefix=f"rl-{os.getuid()}-", dir=task.temp_root)
            folder = stack.enter_context(made)
        for name, content in task.files.items():
            (Path(folder) / name).write_text(content)
        process = subprocess.Popen(
            [word.replace("{folder}", folder).replace("{python}", sys.executable) for word in task.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **task.environment},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        say("started", pid=process.pid)
        reader = threading.Thread(target=_pass_on, args=[process], daemon=True)
        reader.start()
        ended = _end_of_input()
        while process.poll() is None and not ended.wait(POLL_S):
            pass
        _end(process)
        reader.join(5)
        say("exited", code=process.returncode)
    return 0


def _pass_on(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        say("line", text=line.decode(errors="replace").rstrip("\n"))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, and see that it and its group do."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _die_with_parent() -> None:
    """Let the kernel send SIGTERM to this child when the agent is killed; the child then ends its own children."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


# --- a node of Ray ---------------------------------------------------------------------------------------------------


def _run_ray(task: RayTask) -> int:
    """Run a node until the input ends, or it dies."""
    ended, is_up = _end_of_input(), False
    reason = ""
    node = RayNode(task)
    try:
        while not ended.wait(POLL_S):
            if (code := node.process.poll()) is not None:  # `ray start --block` notices a dead server within a second
                reason = f"`ray start` ended with code {code}: {node.last_lines()}"
                say("failed", reason=reason, logs=str(node.folder))
                return 1
            if not is_up and (is_up := node.is_up()):
                address, dashboard = f"{node.ip}:{node.port('gcs')}", node.port("dashboard")
                about = {"ip": node.ip, "num_cpus": node.num_cpus, "folder": str(node.folder)}
                say("started", address=address, dashboard=dashboard, **about)
    finally:
        node.stop(keep_logs=bool(reason))
    say("exited", code=0)
    return 0


class RayNode:
    """A Ray node that ends on `stop`, or with this process."""

    def __init__(self, task: RayTask) -> None:
        """Start it; must be called in the main thread, whose death ends it.

        Raises:
            LaunchError: There is no address, no port or no folder for it.
        """
        self.ip = own_address(task)
        cores = num_cores()
        self.num_cpus = min(cores, task.granted or cores) if task.num_cpus is None else task.num_cpus
        self._base, self._lock = take_ports(task.job, port_base=task.port_base)
        try:
            self.folder = node_folder(task.temp_root, self._base)
            self._log = (self.folder / "start.log").open("w+b")
            ours = RAY_ENVIRONMENT if task.address or task.peer else PRIVATE_ENVIRONMENT
            # Workers inherit OMP_NUM_THREADS: a job's own would give every runner of one CPU as many threads.
            outside = {"RAY_ADDRESS", "RAY_TMPDIR", "OMP_NUM_THREADS"}
            inherited = {name: value for name, value in os.environ.items() if name not in outside}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *self._arguments(task)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**inherited, **ours, **task.environment},
                start_new_session=True,  # a signal to the job's group must not end Ray before the study
                preexec_fn=_die_with_parent,
            )
        except BaseException:
            self._lock.close()
            raise

    def port(self, name: str) -> int:
        """Return the port of a server of this node."""
        return self._base + _NAMED.index(name)

    def is_up(self) -> bool:
        """Return whether it has registered with the head."""
        return _STARTED in self._printed()

    def _printed(self) -> bytes:
        self._log.seek(0)
        return self._log.read()

    def last_lines(self) -> str:
        """Return the last lines of `ray start` and of the error logs of Ray's servers."""
        texts = [self._printed()]
        for name in ("gcs_server.err", "raylet.err"):
            with contextlib.suppress(OSError):
                texts.append((self.folder / "r" / "session_latest" / "logs" / name).read_bytes())
        ends: list[str] = []
        for text in texts:
            lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
            ends += [line for line in lines if not _NOISE.search(line)][-8:]
        return "\n".join(ends)[-1500:]

    def stop(self, *, keep_logs: bool = False) -> None:
        """End it and its processes, and no others; remove its folder."""
        _end(self.process)
        deadline = time.monotonic() + 3
        while (left := list(with_word(f"{self.folder}/"))) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._lock.close()
        self._log.close()
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _arguments(self, task: RayTask) -> list[str]:
        head = ["--head", f"--port={self.port('gcs')}", f"--include-dashboard={str(task.dashboard).lower()}"]
        head += ["--dashboard-host=127.0.0.1", f"--dashboard-port={self.port('dashboard')}"]
        if find_spec("grpc"):  # then the head has a server for Ray Client too: at 10001, which other Rays would take
            head.append(f"--ray-client-server-port={self.port('client')}")
        first = self._base + len(_NAMED)  # of worker processes, one each; Ray passes over those that are taken
        return [
            "start",
            *([f"--address={task.address}"] if task.address else head),
            f"--node-ip-address={self.ip}",
            f"--num-cpus={self.num_cpus}",
            f"--temp-dir={self.folder}/r",
            *(f"--{option}={self.port(name)}" for name, option in _OPTIONS.items()),
            f"--min-worker-port={first}",
            f"--max-worker-port={min(first + 99 + 4 * self.num_cpus, self._base + CELL - 1)}",
            "--disable-usage-stats",
            "--block",
        ]


def own_address(task: RayTask) -> str:
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


# --- its ports and its folder ----------------------------------------------------------------------------------------

LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000
"""Above the ports of Ray's own choice (10002 to 19999) and below Linux's ephemeral ones (32768 to 60999)."""
CELL = 1000
"""Ports of a node; cells begin at multiples of it, so that those of different jobs never overlap."""
_OPTIONS = {
    "node_manager": "node-manager-port",
    "object_manager": "object-manager-port",
    "metrics": "metrics-export-port",
    "agent_http": "dashboard-agent-listen-port",
    "agent_grpc": "dashboard-agent-grpc-port",
    "runtime_env": "runtime-env-agent-port",
}
"""Server of every node -> the option of `ray start` for its port."""
_NAMED = ("lock", "gcs", "dashboard", "client", *_OPTIONS)
"""The first ports of a cell; those of worker processes follow."""


def take_ports(job: str, *, port_base: int | None = None) -> tuple[int, socket.socket]:
    """Find a free cell, beginning where the job's name says; return its first port, and the lock that holds it.

    Args:
        job: The job's name: other jobs begin elsewhere, so that hosts rarely have to search.
        port_base: First port that may be used, where a firewall leaves only some; the next multiple of `CELL` counts.

    Raises:
        LaunchError: No cell is free.
    """
    lowest, highest = (LOWEST_PORT, HIGHEST_PORT) if port_base is None else (-(-port_base // CELL) * CELL, 65_535)
    bases = range(lowest, highest - CELL + 1, CELL)
    first = 0 if port_base is not None else zlib.crc32(job.encode()) % len(bases)
    for base in (*bases[first:], *bases[:first]):
        if (lock := _claim(base)) is not None:
            if all(_is_free(base + offset) for offset in range(1, len(_NAMED))):
                return base, lock
            lock.close()
    rule, fix = f"{CELL} in a row must be free between {lowest} and {highest}", "Give --port-base, or use another host."
    raise LaunchError(where="ports", rule=rule, got="none", fix=fix)


def _claim(base: int) -> socket.socket | None:
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


def node_folder(temp_root: str, base: int) -> Path:
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
        elif port.isdecimal() and int(port) < 65_536 and (lock := _claim(int(port))):
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


if __name__ == "__main__":
    sys.exit(main())
