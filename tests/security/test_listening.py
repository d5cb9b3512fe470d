"""Nothing that a study starts by itself can be reached from another machine, nor used without its token."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from study.errors import ClusterError
from study.machine.cluster import _find_running


@pytest.mark.minutes
def test_a_study_with_a_ray_of_its_own_listens_on_loopback_only(run):
    seen = run.watched
    assert seen.code == 0, seen.output
    assert {"gcs_server", "raylet", "ray"} <= {name.partition("::")[0] for name, _ in seen.listeners}
    assert {address for _, address in seen.listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.minutes
def test_ray_answers_nobody_without_its_token(run):
    assert run.watched.answers == {"none": False, "wrong": False, "right": True}


@pytest.fixture
def fake_raylet(tmp_path):
    """Start something that looks like a raylet, as a user; its address is nobody's."""
    place = Path(tempfile.mkdtemp(dir="/tmp", prefix="raylet-"))
    place.chmod(0o755)
    (place / "raylet").write_text("#!/bin/sh\nsleep 60\n")
    (place / "raylet").chmod(0o755)
    processes = []

    def start(address: str, **user: int) -> None:
        words = [str(place / "raylet"), f"--gcs-address={address}"]
        processes.append(subprocess.Popen(words, cwd="/", start_new_session=True, **user))
        while psutil.Process(processes[-1].pid).name() != "raylet":
            time.sleep(0.01)

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(place)


def running() -> str:
    """Return the address of this user's Ray, or the message that names all of them."""
    try:
        return _find_running()
    except ClusterError as error:
        return str(error)


@pytest.mark.skipif(os.getuid() != 0, reason="a process of another user can only be started by root")
def test_auto_joins_no_ray_of_another_user(fake_raylet):
    fake_raylet("10.255.255.1:1")
    fake_raylet("10.255.255.2:2", user=65534, group=65534)
    assert "10.255.255.1:1" in running()
    assert "10.255.255.2:2" not in running()
