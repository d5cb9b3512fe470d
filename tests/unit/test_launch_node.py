"""The program on a host: a real process that is told what to do; the ports, CPUs and folder of a node of Ray."""

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from study.launch import node
from study.launch.node import CELL, LONGEST_TEMP_ROOT, LOWEST_PORT, Task, taken_ports
from study.machine.host import own_folder
from tests.e2e.commands import ROOT, environment


@pytest.fixture
def agent():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "study.launch.node"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    yield process
    process.kill()
    process.wait()


def tell(agent, task):
    agent.stdin.write((task if isinstance(task, str) else msgspec.json.encode(task).decode()) + "\n")
    agent.stdin.flush()


def sleeper(agent):
    """Let the agent run a command that ends with 7 when it is asked to end; return its process."""
    line = "trap 'echo ended; exit 7' TERM; echo $$; while :; do sleep 0.1; done"
    tell(agent, Task(job="1", command=("bash", "-c", line)))
    return int(agent.stdout.readline())


def test_it_passes_on_what_a_command_prints_and_how_it_ended(agent):
    words = ("bash", "-c", 'cat "$1"; echo $SECRET >&2; echo $2; exit 3', "-", "{folder}/a.yaml", "{python}")
    tell(agent, Task(job="1", environment={"SECRET": "s3cret"}, command=words, files={"a.yaml": "content\n"}))
    assert agent.stdout.read().split() == ["content", "s3cret", sys.executable]
    assert agent.wait(5) == 3


def test_what_a_command_leaves_does_not_hold_the_connection_open(agent):
    tell(agent, Task(job="1", command=("bash", "-c", "sleep 1000 & echo $!")))
    left = int(agent.stdout.readline())
    assert agent.stdout.read() == ""
    assert agent.wait(5) == 0
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_signals_of_a_scheduler_do_not_end_its_child_and_the_end_of_its_supervisor_does(agent):
    pid = sleeper(agent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        agent.send_signal(number)  # as a scheduler would send to all of a job
    tell(agent, "more words")
    time.sleep(0.5)
    assert psutil.pid_exists(pid)
    agent.stdin.close()  # the supervisor, or the connection to it, is gone
    assert agent.stdout.read() == "ended\n"
    assert agent.wait(5) == 7


def test_a_killed_agent_leaves_no_child_and_a_killed_child_is_told_by_the_code(agent):
    child = psutil.Process(sleeper(agent))
    agent.kill()
    child.wait(10)
    other = subprocess.Popen([sys.executable, "-m", "study.launch.node"], stdin=subprocess.PIPE, text=True, cwd=ROOT)
    tell(other, Task(job="1", command=("bash", "-c", "kill -9 $$")))
    assert other.wait(20) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ('{"job": "1", "command": ["true"], "extra": 1}', "must be of the same version"),
        (Task(job="1", command=("no-such-command-here",)), "no-such-command-here"),
        (Task(job="1", num_cpus=1, interface="none0"), "--interface none0: must have an IPv4 address here"),
        (Task(job="1", num_cpus=1, temp_root="/proc"), "Fix: Choose another folder: TMPDIR, or --temp-root"),
    ],
)
def test_what_cannot_start_says_why(agent, task, said):
    tell(agent, task)
    assert said in agent.stdout.read()
    assert agent.wait(5) == 69


def test_the_longest_path_of_a_socket_fits():
    """Source of the session's name and of the sockets': ray/_private/node.py, _init_temp and _prepare_socket_file."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        root = Path(base, "x" * (LONGEST_TEMP_ROOT - len(base) - 1))
        root.mkdir()
        session = f"session_2026-11-22_21-30-32_123456_{4_194_304}"  # Linux' pid_max on 64 bits
        with own_folder(str(root), "rl") as folder:
            longest = folder.with_name(f"{folder.name.rpartition('-')[0]}-{4_194_304}")
            assert len(f"{longest}/r/{session}/sockets/plasma_store") <= 107


# --- CPUs, environment, ports -----------------------------------------------------------------------------------------


@pytest.fixture
def start(monkeypatch, tmp_path):
    """A function that makes a node whose `ray start` is no process, but writes into its log."""

    def popen(words, *, env, stdout, **_):
        stdout.write(b"Local node IP\n    code of a traceback\nRay runtime started.\n")
        stdout.flush()
        return type("Started", (), {"words": words, "environment": env})

    monkeypatch.setattr(node.subprocess, "Popen", popen)
    with contextlib.ExitStack() as stack:

        def make(num_cpus=1, granted=None, **variables):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            task = Task(job="1", environment=variables, num_cpus=num_cpus, granted=granted)
            return node.RayNode(task, stack.enter_context(taken_ports(task.job)), folder)

        yield make


@pytest.mark.parametrize(
    ("asked", "granted", "expected"), [(None, 72, 36), (None, 12, 12), (None, None, 36), (48, 72, 48), (0, 2, 0)]
)
def test_ray_hands_out_what_was_asked_or_the_cores_that_were_granted(start, monkeypatch, asked, granted, expected):
    monkeypatch.setattr(node, "num_cores", lambda: 36)
    assert f"--num-cpus={expected}" in start(asked, granted).process.words


def test_a_node_has_its_own_environment_and_says_its_last_lines(start, monkeypatch):
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "16")
    started = start(RAY_AUTH_TOKEN="x")
    assert started.process.environment["RAY_AUTH_TOKEN"] == "x"
    assert not {"OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"} & set(started.process.environment)
    assert started.is_up()
    logs = started.folder / "r" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.err").write_text("[2026-01-01 I 1 1] statistics\nno memory\n")
    assert started.last_lines() == "Local node IP\nRay runtime started.\nno memory"


@pytest.mark.parametrize("has_grpc", [False, True])
def test_ports_of_nodes_never_overlap(start, monkeypatch, has_grpc):
    """Nodes of one job on one host may differ in their CPUs; with grpc Ray has one server more."""
    monkeypatch.setattr(node, "find_spec", lambda name: has_grpc or None)
    nodes = [start(num_cpus) for num_cpus in (16, 0, 640)]
    taken = [[int(word.partition("=")[2]) for word in each.process.words if "port=" in word] for each in nodes]
    for each, ports in zip(nodes, taken, strict=True):
        assert len(set(ports)) == len(ports) == 10 + has_grpc
        assert {port // CELL for port in ports} == {each.port("port") // CELL}
        assert max(ports[:-2]) < ports[-2] < ports[-1], "those of workers follow"
    assert len({ports[0] // CELL for ports in taken}) == 3
    assert all(LOWEST_PORT <= port < 32_768 for ports in taken for port in ports), "below the ephemeral ones"


def test_ports_are_given_back_and_are_those_that_no_other_program_has():
    with taken_ports("a") as base, taken_ports("a") as other:
        assert base != other
    with socket.create_server(("", base + 3)), taken_ports("a") as third:
        assert third != base
    with taken_ports("a") as again:
        assert again == base
