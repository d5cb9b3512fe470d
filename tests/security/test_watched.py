"""A small real study under watch: who can reach what it starts, and where its secrets lie."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from study.errors import ClusterError
from study.machine.cluster import _find_running
from tests.e2e.commands import SPACE, command, environment
from tests.integration.mlflow_tools import Server

MARK = "STUDY_UNDER_WATCH"
"""Environment variable by which the processes of one run are told from those of others."""
TIMEOUT_S, PAUSE_S = 240.0, 0.3
ASKED = "import sys; from study.ray_private import nodes_of; print(len(nodes_of(sys.argv[1])))"
"""Asks the head of a Ray for its nodes, with the token in the environment."""


@dataclass
class Watched:
    """What a run left behind, and what was seen of it meanwhile."""

    place: Path
    secrets: dict[str, str]
    """What was planted in it; the token is its private Ray's."""
    code: int = 0
    output: str = ""
    listeners: set[tuple[str, str]] = field(default_factory=set)
    """Name of a process, and an address at which others can reach it."""
    commands: set[str] = field(default_factory=set)
    """All command lines."""
    answers: dict[str, bool] = field(default_factory=dict)
    """With no, a wrong or the right token -> whether the head answered."""
    ray_folder_mode: int = -1

    def look(self, process: psutil.Process) -> None:
        words, name = process.cmdline(), process.name()
        self.commands.add(" ".join(words))
        for each in process.net_connections("inet"):
            if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and each.laddr and not each.raddr):
                self.listeners.add((name, each.laddr.ip))
        values = {word.partition("=")[0]: word.partition("=")[2] for word in words}
        if name == "raylet" and not self.answers and "--gcs-address" in values:
            self.secrets["token"] = process.environ()["RAY_AUTH_TOKEN"]
            folder = Path(values["--raylet_socket_name"]).parents[2]
            self.ray_folder_mode = stat.S_IMODE(folder.parent.stat().st_mode)
            for kind, token in {"none": "", "wrong": secrets.token_urlsafe(32), "right": self.secrets["token"]}.items():
                given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
                asking = [*command()[:1], "-c", ASKED, values["--gcs-address"]]
                done = subprocess.run(asking, env={**environment(), **given}, capture_output=True, timeout=60)
                self.answers[kind] = done.returncode == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Watched:
    """Run a small study with real runners, and look at its processes until it ends."""
    place, mark = tmp_path_factory.mktemp("watched"), secrets.token_hex(8)
    seen = Watched(place, {name: f"PLANTED-{name}-{mark}" for name in ("password", "bearer", "credentials")})
    (place / "space.yaml").write_text(SPACE)
    (place / "home").mkdir()
    with Server(place / "server") as server, (place / "output").open("wb") as output:
        uri = server.uri.replace("://", f"://someone:{seen.secrets['password']}@")
        few = ["--trials", "1", "--set", "execution=real", "--set", "parameters.num_env_runners=2"]
        few += ["--set", "budget.env_steps=40000"]  # it lasts as long as the questions take
        words = command("--space", "space.yaml", *few, "--tracking-uri", uri)
        surroundings = {**environment(), "HOME": str(place / "home"), MARK: mark}
        surroundings["MLFLOW_TRACKING_TOKEN"] = seen.secrets["bearer"]
        surroundings["RAY_OUR_CREDENTIALS"] = seen.secrets["credentials"]
        surroundings["TUNE_OUR_SETTINGS"] = f'{{"password": "{seen.secrets["credentials"]}"}}'
        driver = subprocess.Popen(words, cwd=place, env=surroundings, stdout=output, stderr=output)
        end = time.monotonic() + TIMEOUT_S
        try:
            while driver.poll() is None and time.monotonic() < end:
                for process in psutil.process_iter():
                    with contextlib.suppress(psutil.Error):
                        if process.environ().get(MARK) == mark:
                            seen.look(process)
                time.sleep(PAUSE_S)
        finally:
            driver.kill()
            seen.code = driver.wait()
    seen.output = (place / "output").read_text()
    return seen


def files_with(secret: str, folder: Path) -> list[Path]:
    """Return the files below a folder that hold a text, in their content or their name."""
    assert secret
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sorted(file for file in files if secret in file.name or secret.encode() in file.read_bytes())


@pytest.mark.minutes
def test_a_private_ray_listens_on_loopback_only_and_answers_nobody_without_its_token(run):
    assert run.code == 0, run.output
    assert {"gcs_server", "raylet", "ray"} <= {name.partition("::")[0] for name, _ in run.listeners}
    assert {address for _, address in run.listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert run.answers == {"none": False, "wrong": False, "right": True}
    assert len(run.secrets["token"]) >= 32
    assert not (run.place / "home" / ".ray").exists(), "Ray's own token file lives longer than the study"


@pytest.mark.minutes
@pytest.mark.parametrize("name", ["token", "password", "bearer", "credentials"])
def test_a_secret_is_on_no_command_line_but_the_user_s_own_and_in_no_file_but_the_identity(run, name):
    assert run.code == 0, run.output
    secret, lines, study = run.secrets[name], run.commands, run.place / "studies" / "space"
    assert any("study.mirrors.process" in line for line in lines), "the look at the processes is blind"
    assert any("raylet" in line for line in lines)
    with_secret = [line for line in lines if secret in line]
    # The person typed the tracking URI with its password; it is on the driver's own command line, and on no other.
    assert all("run_study.py" in line and name == "password" for line in with_secret), with_secret
    identity = study / "study.json"
    assert files_with(secret, run.place) == ([identity] if name == "password" else [])  # a resume must find MLflow
    assert (stat.S_IMODE(identity.stat().st_mode), stat.S_IMODE(study.stat().st_mode)) == (0o600, 0o700)
    assert run.ray_folder_mode == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="a process of another user can only be started by root")
def test_auto_joins_no_ray_of_another_user():
    """By what looks like a raylet, whose address is nobody's."""
    place = Path(tempfile.mkdtemp(dir="/tmp", prefix="raylet-"))
    place.chmod(0o755)
    (program := place / "raylet").write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    addresses = {"10.255.255.1:1": {}, "10.255.255.2:2": {"user": 65534, "group": 65534}}
    processes = [
        subprocess.Popen([program, f"--gcs-address={address}"], cwd="/", start_new_session=True, **user)
        for address, user in addresses.items()
    ]
    try:
        while {psutil.Process(each.pid).name() for each in processes} != {"raylet"}:
            time.sleep(0.01)
        try:
            running = _find_running()
        except ClusterError as error:  # which names all of them
            running = str(error)
        assert [address in running for address in addresses] == [True, False]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(place)
