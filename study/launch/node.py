"""The program on every host of a job (`python -m study.launch.node`): runs a node of Ray, or the study's driver.

Its standard input has one line, a `Task`, and then stays open: when it ends, by an order, a lost connection or the
death of the supervisor, the child is ended, so that nothing is left behind. Its standard output is that of the driver,
or one line that begins with `UP` once Ray runs; what went wrong follows there too. Its exit code is the child's. It
ignores the signals by which schedulers end jobs: the supervisor gets them too, and ends the study before Ray.

Every server of Ray takes a free port by itself, and has its files in a folder of this program: two jobs on a host do
not meet.
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
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import msgspec

from study.errors import ClusterError, ExitCode, StudyError
from study.machine.cluster import PRIVATE_ENVIRONMENT, RAY_ENVIRONMENT
from study.machine.host import num_cores, own_folder

UP = "@ray-is-up "
"""How the line begins that says where a node of Ray listens, as JSON."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""By which schedulers and people end jobs."""
POLL_S = 0.25
STOP_TIMEOUT_S = 60.0
"""How long the child may take to end cleanly; `ray start --block` waits half a minute for a head that is gone."""
_STARTED = b"Ray runtime started."
"""What `ray start` of Ray 2.60 prints when its node has registered with the head."""
_NOISE = re.compile(r"^    |^\t|^  File |^Traceback|\[0x[0-9a-f]+\]|^\*\*\*|\[state-dump\]| I \d+ \d+\] ")
"""Code of tracebacks, frames of stacks, statistics and information in what Ray prints."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What runs on a host: the driver's command, or a node of Ray where there is no command."""

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
    peer: str = ""
    """A host that must be reached from here; empty: there is none, and Ray stays on loopback."""


def main() -> int:
    """Do what the first line of standard input says."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # a handler, since children would inherit SIG_IGN
    if not (line := sys.stdin.readline()):
        return 0
    ended = threading.Event()

    def read() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        task = msgspec.json.decode(line, type=Task)
        with own_folder("rl") as folder:
            return _run(task, folder, ended)
    except msgspec.DecodeError as error:
        _say(f"the supervisor must be of the same version: {error}")
    except (StudyError, OSError) as error:
        _say(str(error))
    return ExitCode.NO_CLUSTER


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _start(words: list[str], variables: Mapping[str, str], output: IO[Any]) -> "subprocess.Popen[bytes]":
    """Start a child that the kernel tells to end when the main thread of this process does."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    pipes["preexec_fn"] = lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # In a session of its own: a signal to the job's group must not end Ray before the study.
    return subprocess.Popen(words, env=dict(variables), start_new_session=True, **pipes)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end; end what is left of its group, which would hold the connection open."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run(task: Task, folder: Path, ended: threading.Event) -> int:
    """Run the driver, or a node of Ray, until it or the input ends; return its code, 128 and more for a signal."""
    log, is_node = folder / "start.log", not task.command
    ip, num_cpus = own_address(task.peer), cpus_of(task)
    for name, content in task.files.items():
        (folder / name).write_text(content)
    words = [word.replace("{folder}", str(folder)).replace("{python}", sys.executable) for word in task.command]
    with log.open("wb") as output:
        if is_node:
            process = _start(ray_start(task, ip, num_cpus, folder), environment_of_ray(task), output)
        else:
            process = _start(words, {**os.environ, **task.environment}, sys.stdout)
    is_told = not is_node
    while process.poll() is None and not ended.wait(POLL_S):
        if not is_told and (is_told := _STARTED in log.read_bytes()):
            address = task.address or (folder / "r" / "ray_current_cluster").read_text()
            about = {"address": address.strip(), "ip": ip, "num_cpus": num_cpus}
            _say(UP + msgspec.json.encode(about).decode())
    if is_node and process.returncode is not None:  # `ray start --block` notices a dead server in a second
        _say(f"`ray start` ended with code {process.returncode}: {last_lines(folder)}")
    _end(process)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def cpus_of(task: Task) -> int:
    """Return the CPUs that Ray hands out here."""
    cores = num_cores()
    return min(cores, task.granted or cores) if task.num_cpus is None else task.num_cpus


def ray_start(task: Task, ip: str, num_cpus: int, folder: Path) -> list[str]:
    """Return the command that starts the node and waits for its end, with its files in a folder.

    A port of 0 is one that the server itself takes from the system, so that no other program can come in between.
    """
    if task.address:
        words = [f"--address={task.address}"]
    else:
        words = ["--head", "--port=0", "--include-dashboard=false", "--dashboard-port=0"]
        if find_spec("grpc"):  # then the head has a server for Ray Client too, which takes no 0
            with socket.socket() as probe:
                probe.bind(("", 0))
                words.append(f"--ray-client-server-port={probe.getsockname()[1]}")
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", *words),
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        *(f"--node-ip-address={ip}", f"--num-cpus={num_cpus}", f"--temp-dir={folder}/r"),
        *("--disable-usage-stats", "--block"),
    ]


def environment_of_ray(task: Task) -> dict[str, str]:
    """Return the variables of a node of Ray, which its workers inherit."""
    # A job's own OMP_NUM_THREADS would give every runner of one CPU as many threads.
    outside = {"RAY_ADDRESS", "RAY_TMPDIR", "OMP_NUM_THREADS"}
    variables = {name: value for name, value in os.environ.items() if name not in outside}
    return {**variables, **(RAY_ENVIRONMENT if task.peer else PRIVATE_ENVIRONMENT), **task.environment}


def last_lines(folder: Path) -> str:
    """Return the last lines of `ray start` and of the error logs of Ray's servers."""
    ends: list[str] = []
    for name in ("start.log", "r/session_latest/logs/gcs_server.err", "r/session_latest/logs/raylet.err"):
        with contextlib.suppress(OSError):
            lines = (folder / name).read_text(errors="replace").splitlines()
            ends += [line for line in lines if line.strip() and not _NOISE.search(line)][-8:]
    return "\n".join(ends)[-1500:]


def own_address(peer: str) -> str:
    """Return the address from which this host reaches another one of the job; loopback where there is none."""
    if not peer:
        return "127.0.0.1"
    # The second address belongs to nobody (RFC 5737): `peer` may be a name that only ssh knows. Nothing is sent.
    for target in (peer.rpartition("@")[2], "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    raise ClusterError(where="network", rule=f"must have a route to {peer}", fix="List hosts that reach each other.")


if __name__ == "__main__":
    sys.exit(main())
