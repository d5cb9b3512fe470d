"""A small real study under watch: the sockets, command lines and files of every process that it starts."""

import contextlib
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

MARK = "STUDY_UNDER_WATCH"
"""Environment variable by which the processes of one run are told from those of others."""
TIMEOUT_S = 240.0
PAUSE_S = 0.3
REFUSED = """
import sys
from study.ray_private import nodes_of
print(len(nodes_of(sys.argv[1])))
"""
"""Asks the head of a Ray for its nodes, with the token in the environment."""


@dataclass
class Watched:
    """What a run left behind, and what was seen of it meanwhile."""

    place: Path
    study: Path
    code: int = 0
    output: str = ""
    token: str = ""
    """Of the private Ray."""
    listeners: set[tuple[str, str]] = field(default_factory=set)
    """Name of a process, and an address at which others can reach it."""
    commands: set[str] = field(default_factory=set)
    """All command lines."""
    answers: dict[str, bool] = field(default_factory=dict)
    """With no, a wrong or the right token -> whether the head answered."""
    ray_folder_mode: int = -1


def watch(place: Path, *options: str, secret_environment: dict[str, str]) -> Watched:
    """Run a small study with real runners in `place` and look at its processes until it ends."""
    (place / "space.yaml").write_text(SPACE)
    (place / "home").mkdir()
    few = ["--trials", "1", "--set", "execution=real", "--set", "parameters.num_env_runners=2"]
    few += ["--set", "budget.env_steps=40000"]  # it lasts as long as the questions take
    mark = secrets.token_hex(8)
    surroundings = {**environment(), **secret_environment, "HOME": str(place / "home"), MARK: mark}
    seen = Watched(place=place, study=place / "studies" / "space")
    words = command("--space", "space.yaml", *few, *options)
    with (place / "output").open("wb") as output:
        driver = subprocess.Popen(words, cwd=place, env=surroundings, stdout=output, stderr=output)
        end = time.monotonic() + TIMEOUT_S
        try:
            while driver.poll() is None and time.monotonic() < end:
                for process in psutil.process_iter():
                    with contextlib.suppress(psutil.Error):
                        if process.environ().get(MARK) == mark:
                            _look(process, seen)
                time.sleep(PAUSE_S)
        finally:
            driver.kill()
            seen.code = driver.wait()
    seen.output = (place / "output").read_text()
    return seen


def _look(process: psutil.Process, seen: Watched) -> None:
    words, name = process.cmdline(), process.name()
    seen.commands.add(" ".join(words))
    for each in process.net_connections("inet"):
        if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and each.laddr and not each.raddr):
            seen.listeners.add((name, each.laddr.ip))
    values = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    if name == "raylet" and not seen.answers and "--gcs-address" in values:
        seen.token = process.environ()["RAY_AUTH_TOKEN"]
        folder = Path(values["--raylet_socket_name"]).parents[2]
        seen.ray_folder_mode = stat.S_IMODE(folder.parent.stat().st_mode)
        for kind, token in {"none": "", "wrong": secrets.token_urlsafe(32), "right": seen.token}.items():
            given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
            asking = [*command()[:1], "-c", REFUSED, values["--gcs-address"]]
            done = subprocess.run(asking, env={**environment(), **given}, capture_output=True, timeout=60)
            seen.answers[kind] = done.returncode == 0


def files_with(secret: str, folder: Path) -> list[Path]:
    """Return the files below a folder that hold a text, in their content or their name."""
    assert secret
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return sorted(file for file in files if secret in file.name or secret.encode() in _content(file))


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:  # gone meanwhile
        return b""
