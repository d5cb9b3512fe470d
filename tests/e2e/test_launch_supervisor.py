"""The supervisor with real Ray on two "hosts" of this machine: shells instead of ssh, all else as on a cluster."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from study.launch.node import LONGEST_TEMP_ROOT
from tests.e2e.commands import ROOT, SPACE, assert_whole, environment

SSH = """#!/bin/bash
# What ssh does, for hosts that are this machine: drop the options, give the rest to a shell.
while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
shift
cd / && exec env -u PYTHONPATH bash -c "$*"
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    (tmp_path / "tiny.yaml").write_text(SPACE)
    return tmp_path


def launch(place, *options, hosts="here:2,there:4", name="s"):
    variables = {**environment(), "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "study", "launch", "ssh", str(place / "tiny.yaml"), "--hosts", hosts, "--name", name]
    words += ["--workdir", str(place), "--activate", f"export PYTHONPATH={ROOT}", "--wait", "90s"]
    words += ["--tracking-uri", f"sqlite:///{place}/mlflow.db", *options]
    return subprocess.Popen(
        words,
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(place):
    """Return the processes that a launch in this place has started: all of them have a word of it."""
    folders = set()
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if process.pid != os.getpid() and (
            any(str(place) in word for word in words) or variables.get("PWD", "").startswith(str(place))
        ):
            folders.add(process.pid)
    return folders


def await_nothing(place):
    deadline = time.monotonic() + 30
    while (left := left_behind(place)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def test_a_study_on_one_host_runs_on_all_its_cpus_from_start_to_end(place):
    one = SPACE.replace("[1, 2]\n", "1\n").replace("num_trials: 4, seeds: [1, 2]", "num_trials: 1, seeds: [1]")
    (place / "tiny.yaml").write_text(one)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        root = Path(short, "x" * (LONGEST_TEMP_ROOT - len(short) - 1))
        root.mkdir()
        process = launch(place, "--temp-root", str(root), hosts="here:2")
        assert "Ray is up: 1 node with 2 CPUs." in read_until(process, "Ray is up")[-1]
        token_file = place / "studies" / "s.launch" / "ray.token"
        assert token_file.stat().st_mode & 0o077 == 0
        words = " ".join(" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
        assert token_file.read_text() not in words
        said = process.stdout.read()
        assert process.wait() == 0, said
        assert not list(root.iterdir())
    assert not token_file.exists()
    assert_whole(place / "studies" / "s", f"sqlite:///{place}/mlflow.db", 1)
    assert not await_nothing(place)


def test_ray_that_cannot_start_is_an_error_with_its_reason(place):
    began = time.monotonic()
    process = launch(place, "--temp-root", "/proc")
    said = process.stdout.read()
    assert process.wait() == 69
    assert re.search(r"here: Ray must start there, got /proc.*Fix: Choose another folder", said)
    assert time.monotonic() - began < 30
    assert not await_nothing(place)


def test_a_host_without_the_project_is_named(place):
    process = launch(place, "--python", "/no/such/python")
    said = process.stdout.read()
    assert process.wait() == 69
    assert "here: Ray must start there" in said
    assert "/no/such/python" in said
