"""A launched node of Ray: its CPUs, its environment, and what it finds in its temporary folder."""

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.errors import LaunchError
from study.launch import node
from study.launch.node import CELL, LONGEST_TEMP_ROOT, LOWEST_PORT, RayTask, take_ports


@pytest.fixture
def ports():
    with contextlib.ExitStack() as stack:

        def take(job):
            base, lock = take_ports(job)
            stack.callback(lock.close)
            return SimpleNamespace(base=base, lock=lock)

        yield take


def node_folder(root, base, monkeypatch, host=None):
    """Make the folder of a node on a host; return it."""
    with monkeypatch.context() as patch:
        if host:
            patch.setattr(socket, "gethostname", lambda: host)
        return node.node_folder(str(root), base)


def test_what_killed_nodes_of_this_host_left_is_removed_and_nothing_of_those_that_live(tmp_path, ports, monkeypatch):
    mine, other, dead = ports("mine"), ports("other"), ports("dead")
    left, living, gone = (node_folder(tmp_path, each.base, monkeypatch) for each in (mine, other, dead))
    (left / "start.log").write_text("left by a node that was killed")
    dead.lock.close()
    made = node.node_folder(str(tmp_path), mine.base)
    assert made == left
    assert not list(made.iterdir())
    assert living.exists()
    assert not gone.exists()


def test_what_other_hosts_users_and_programs_have_in_a_shared_folder_is_left_alone(tmp_path, ports, monkeypatch):
    mine, dead = ports("mine"), ports("dead")
    for base in (mine.base, dead.base):
        node_folder(tmp_path, base, monkeypatch, host="n2")  # where living nodes may have these ports
    for name in ("rl-baselines-env", "rl-17-env", "rl-20000-abcdef", f"rl-{os.getuid()}-20000", "rl-x"):
        (tmp_path / name / "bin").mkdir(parents=True)
    owner = node_folder(tmp_path, mine.base, monkeypatch).name.rpartition("-")[2]
    (tmp_path / f"rl-x-{owner}").mkdir()
    (tmp_path / f"rl-{dead.base}-{owner}").symlink_to(tmp_path / "rl-x")
    if os.geteuid() == 0:
        (tmp_path / f"rl-20001-{owner}").mkdir()
        os.chown(tmp_path / f"rl-20001-{owner}", 20001, 20001)
    dead.lock.close()
    before = sorted(tmp_path.iterdir())
    node.node_folder(str(tmp_path), mine.base)
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_that_something_else_has_is_refused(tmp_path, ports, monkeypatch):
    mine = ports("mine")
    folder = node_folder(tmp_path, mine.base, monkeypatch)
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match=f"^{folder}: must be a folder of yours"):
        node.node_folder(str(tmp_path), mine.base)
    assert (tmp_path / "elsewhere").exists()


def test_the_longest_path_of_a_socket_fits(monkeypatch):
    """Source of the session's name and of the sockets': ray/_private/node.py, _init_temp and _prepare_socket_file."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        root = Path(base, "x" * (LONGEST_TEMP_ROOT - len(base) - 1))
        root.mkdir()
        folder = node_folder(root, 65_500, monkeypatch)
        largest_pid = 4_194_304  # Linux' pid_max on 64 bits
        session = f"session_2026-11-22_21-30-32_123456_{largest_pid}"
        assert len(f"{folder}/r/{session}/sockets/plasma_store") <= 107


# --- environment ------------------------------------------------------------------------------------------------------


class Started:
    """A process that was started, and writes into its log."""

    def __init__(self, words, *, env, stdout, **_):
        self.words, self.environment = words, env
        stdout.write(b"Local node IP\n    code of a traceback\nRay runtime started.\n")
        stdout.flush()

    def poll(self):
        return None


@pytest.fixture
def start(monkeypatch, tmp_path):
    """A function that makes a node whose `ray start` is no process."""
    monkeypatch.setattr(node.subprocess, "Popen", Started)
    with contextlib.ExitStack() as stack:

        def make(num_cpus=1, granted=None, **environment):
            task = RayTask(
                job="1", temp_root=str(tmp_path), environment=environment, num_cpus=num_cpus, granted=granted
            )
            made = node.RayNode(task)
            stack.callback(made._lock.close)
            stack.callback(made._log.close)
            return made

        yield make


def test_the_last_lines_of_a_node_are_those_that_say_something(start):
    started = start()
    assert started.is_up()
    logs = started.folder / "r" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.err").write_text("[2026-01-01 I 1 1] statistics\nno memory\n")
    assert started.last_lines() == "Local node IP\nRay runtime started.\nno memory"


@pytest.mark.parametrize(
    ("asked", "granted", "cores", "expected"),
    [(None, 72, 36, 36), (None, 12, 36, 12), (None, None, 36, 36), (48, 72, 36, 48), (0, 2, 36, 0)],
)
def test_ray_hands_out_what_was_asked_or_the_cores_that_were_granted(
    start, monkeypatch, asked, granted, cores, expected
):
    monkeypatch.setattr(node, "num_cores", lambda: cores)
    assert f"--num-cpus={expected}" in start(asked, granted).process.words


def test_threads_and_the_address_of_another_ray_do_not_reach_its_workers(start, monkeypatch):
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "16")
    environment = start(RAY_AUTH_TOKEN="x").process.environment
    assert environment["RAY_AUTH_TOKEN"] == "x"
    assert not {"OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"} & set(environment)


def test_a_server_for_ray_client_has_a_port_of_the_block(start, monkeypatch):
    """Ray starts one where grpc is installed, at 10001 for all on the host; without grpc it refuses the option."""
    for has_grpc in (False, True):
        monkeypatch.setattr(node, "find_spec", lambda name, found=has_grpc: found or None)
        started = start()
        given = [each for each in started.process.words if each.startswith("--ray-client-server-port=")]
        assert given == ([f"--ray-client-server-port={started.port('client')}"] if has_grpc else [])


# --- ports ------------------------------------------------------------------------------------------------------------


def ports_of(words):
    return [int(word.partition("=")[2]) for word in words if "port=" in word]


def test_ports_of_nodes_never_overlap_and_are_given_back(start):
    """Nodes of one job on one host may differ in their CPUs, and so may jobs that begin at different ports."""
    nodes = [start(num_cpus) for num_cpus in (16, 0, 640)]
    taken = [ports_of(each.process.words) for each in nodes]
    for each, ports in zip(nodes, taken, strict=True):
        assert len(set(ports)) == len(ports) >= 8
        assert {port // CELL for port in ports} == {each.port("gcs") // CELL}
        assert max(ports[:-2]) < ports[-2] < ports[-1], "those of workers follow"
    assert len({ports[0] // CELL for ports in taken}) == 3
    assert all(LOWEST_PORT <= port < 32_768 for ports in taken for port in ports), "below the ephemeral ones"
    base, lock = take_ports("a")
    lock.close()
    again, lock = take_ports("a")
    lock.close()
    assert again == base
    base, lock = take_ports("a", port_base=24_050)
    lock.close()
    assert base == 25_000


def test_where_no_port_is_left_it_is_said():
    with pytest.raises(LaunchError, match=r"ports: .* must be free between 66000 and 65535, got none"):
        take_ports("17", port_base=65_001)
