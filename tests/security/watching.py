"""A small real study under watch: the sockets, command lines and files of every process that it starts."""

import contextlib
import itertools
import os
import secrets
import socket
import stat
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.e2e.commands import SPACE, command, environment
from tests.security.rpc import UNAVAILABLE, UNIMPLEMENTED, answer_of, status_of

MARK = "STUDY_UNDER_WATCH"
"""Environment variable by which the processes of one run are told from those of others."""
TIMEOUT_S = 240.0
PAUSE_S = 0.3
METHODS = {
    "gcs": ("gcs_server", "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"),
    "raylet": ("raylet", "/ray.rpc.NodeManagerService/GetNodeStats"),
    "objects": ("raylet", "/ray.rpc.ObjectManagerService/Pull"),
    "worker": ("ray::", "/ray.rpc.CoreWorkerService/GetCoreWorkerStats"),
}
"""Each kind of Ray's servers: how its process is called, and a harmless question."""


@dataclass(frozen=True, order=True)
class Listener:
    """A socket that takes connections, or datagrams from anybody."""

    kind: str
    address: str
    port: int
    process: str

    @property
    def is_local(self) -> bool:
        return self.address in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@dataclass
class Watched:
    """What a run left behind, and what was seen of it meanwhile."""

    place: Path
    study: Path
    code: int = 0
    output: str = ""
    token: str = ""
    """Of the private Ray."""
    listeners: set[Listener] = field(default_factory=set)
    commands: dict[int, str] = field(default_factory=dict)
    """Process id -> all command lines that it has had."""
    names: set[str] = field(default_factory=set)
    answers: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(kind of server, none, wrong or right token) -> the codes of its answers."""
    ray_files_with_token: list[Path] = field(default_factory=list)
    ray_folder_mode: int = -1


def watch(place: Path, *options: str, secret_environment: dict[str, str]) -> Watched:
    """Run a small study with real runners in `place` and look at its processes until it ends."""
    (place / "space.yaml").write_text(SPACE)
    (place / "home").mkdir()
    few = ["--trials", "1", "--set", "execution=real", "--set", "parameters.num_env_runners=2"]
    few += ["--set", "budget.env_steps=20000"]  # it lasts as long as the questions take
    mark = secrets.token_hex(8)
    surroundings = {**environment(), **secret_environment, "HOME": str(place / "home"), MARK: mark}
    seen = Watched(place=place, study=place / "studies" / "space")
    with (place / "output").open("wb") as output:
        driver = subprocess.Popen(
            command("--space", "space.yaml", *few, *options),
            cwd=place,
            env=surroundings,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _look_until_it_ends(driver, mark, seen)
        finally:
            if driver.poll() is None:
                driver.kill()
            seen.code = driver.wait()
    seen.output = (place / "output").read_text()
    return seen


def _look_until_it_ends(driver: subprocess.Popen[bytes], mark: str, seen: Watched) -> None:
    end = time.monotonic() + TIMEOUT_S
    while driver.poll() is None and time.monotonic() < end:
        processes = family(driver.pid, mark)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                _look(process, seen)
        if b'"kind":"trial_built"' in _text(seen.study / "records.jsonl"):
            if len(seen.answers) < 3 * len(METHODS):
                _ask(processes, seen)
            _look_at_ray_s_folder(processes, seen)
        time.sleep(PAUSE_S)


def family(pid: int, mark: str) -> list[psutil.Process]:
    """Return a process, its descendants, and those that have lost their parent but carry the mark."""
    found = {}
    with contextlib.suppress(psutil.Error):
        driver = psutil.Process(pid)
        found = {each.pid: each for each in (driver, *driver.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in found and process.environ().get(MARK) == mark:
                found[process.pid] = process
    return list(found.values())


def listeners_of(process: psutil.Process) -> set[Listener]:
    """Return the sockets of a process by which others can reach it."""
    name = process.name()
    return {
        Listener("tcp" if each.type == socket.SOCK_STREAM else "udp", each.laddr.ip, each.laddr.port, name)
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and each.laddr and not each.raddr)
    }


def _look(process: psutil.Process, seen: Watched) -> None:
    line = " ".join(process.cmdline())
    if line not in seen.commands.get(process.pid, ""):
        seen.commands[process.pid] = seen.commands.get(process.pid, "") + "\n" + line
    seen.names.add(process.name())
    seen.listeners |= listeners_of(process)
    if not seen.token and process.name() == "raylet":
        seen.token = process.environ().get("RAY_AUTH_TOKEN", "")


def _ask(processes: list[psutil.Process], seen: Watched) -> None:
    """Ask every kind of server without a token, with a wrong one and with the right one."""
    tokens = {"none": None, "wrong": secrets.token_urlsafe(32), "right": seen.token}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("ray::RuntimeEnv"):
                continue  # it speaks HTTP, and writes what it does not understand into its log, token and all
            ports = [listener.port for listener in listeners_of(process)]
            kinds = [kind for kind, (name, _) in METHODS.items() if process.name().startswith(name)]
            for kind, port, token in itertools.product(kinds, ports, tokens):
                code = status_of(answer_of(port, METHODS[kind][1], tokens[token]))
                if code not in (None, UNAVAILABLE, UNIMPLEMENTED):  # the process has ended, the port of another kind
                    seen.answers.setdefault((kind, token), set()).add(code)


def _look_at_ray_s_folder(processes: list[psutil.Process], seen: Watched) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = [word.partition("=")[2] for word in process.cmdline() if word.startswith("--raylet_socket_name=")]
            if process.name() == "raylet" and sockets:
                session = Path(sockets[0]).parents[1]
                seen.ray_folder_mode = stat.S_IMODE(session.parents[1].stat().st_mode)
                seen.ray_files_with_token += files_with(seen.token, session)


def files_with(secret: str, folder: Path) -> list[Path]:
    """Return the files below a folder that hold a text, in their content or their name."""
    assert secret
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if secret in name or secret.encode() in _text(Path(parent, name))
    )


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:  # gone meanwhile
        return b""
