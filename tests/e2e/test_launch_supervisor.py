"""The supervisor with real Ray on two "hosts" of this machine: shells instead of ssh, all else as on a cluster."""

import os
import subprocess
import sys
import time

import psutil
import pytest

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
    words += ["--tracking-uri", f"sqlite:///{place}/{name}.db", *options]
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


def test_two_launches_on_one_host_do_not_meet_and_leave_nothing(place):
    one = SPACE.replace("[1, 2]\n", "1\n").replace("num_trials: 4, seeds: [1, 2]", "num_trials: 1, seeds: [1]")
    (place / "tiny.yaml").write_text(one)
    names = ("a", "b")
    processes = [launch(place, hosts="here:2", name=name) for name in names]
    for process in processes:
        assert "Ray is up: 1 node with 2 CPUs." in read_until(process, "Ray is up")[-1]
    for process, name in zip(processes, names, strict=True):
        said = process.stdout.read()
        assert process.wait() == 0, said
        assert_whole(place / "studies" / name, f"sqlite:///{place}/{name}.db", 1)
    assert not await_nothing(place)


def test_a_host_without_the_project_is_named(place):
    process = launch(place, "--python", "/no/such/python")
    said = process.stdout.read()
    assert process.wait() == 69
    assert "here: Ray must start there" in said
    assert "/no/such/python" in said
