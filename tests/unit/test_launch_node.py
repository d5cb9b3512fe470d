"""A launched node of Ray: its CPUs, its environment, and what it finds in its temporary folder."""

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from study.errors import LaunchError
from study.hosts.machine import Machine
from study.launch import await_nodes, node
from study.launch.job import LONGEST_TEMP_ROOT, RayTask
from study.launch.node import LOWEST_PORT, take_ports
from tests.launching import host, launcher, ray_on


@pytest.fixture
def ports():
    with contextlib.ExitStack() as stack:

        def take(job):
            taken = take_ports(job, num_cpus=1)
            stack.callback(taken.lock.close)
            return taken

        yield take


def node_folder(root, base, monkeypatch, host=None):
    """Make the folder of a node on a host; return it."""
    with monkeypatch.context() as patch:
        if host:
            patch.setattr(socket, "gethostname", lambda: host)
        return node._folder(str(root), base)


def test_what_killed_nodes_of_this_host_left_is_removed_and_nothing_of_those_that_live(tmp_path, ports, monkeypatch):
    mine, other, dead = ports("mine"), ports("other"), ports("dead")
    left, living, gone = (node_folder(tmp_path, each.base, monkeypatch) for each in (mine, other, dead))
    (left / "start.log").write_text("left by a node that was killed")
    dead.lock.close()
    made = node._folder(str(tmp_path), mine.base)
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
    node._folder(str(tmp_path), mine.base)
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_that_something_else_has_is_refused(tmp_path, ports, monkeypatch):
    mine = ports("mine")
    folder = node_folder(tmp_path, mine.base, monkeypatch)
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match=f"^{folder}: must be a folder of yours"):
        node._folder(str(tmp_path), mine.base)
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


# --- CPUs -------------------------------------------------------------------------------------------------------------


def cpus_of(monkeypatch, *hosts, cores=36, name="slurm", **fields):
    """Return what Ray hands out on each host of so many cores, the head first."""
    monkeypatch.setattr(node, "machine", lambda: Machine(num_cores=cores, memory_mb=64_000, num_gpus=0))
    ray = ray_on(launcher(name, **fields), *hosts)
    tasks = [ray._task(each, peer="", address="" if each is hosts[0] else "10.0.0.1:6379") for each in hosts]
    return [node._num_cpus(task) for task in tasks]


def test_hyper_threads_that_a_scheduler_counts_are_no_cpus_of_ray(monkeypatch):
    whole = [host(name, 72) for name in "abc"]
    assert cpus_of(monkeypatch, *whole) == [0, 36, 36]
    assert cpus_of(monkeypatch, *whole, use_head=True) == [36, 36, 36]
    assert cpus_of(monkeypatch, whole[0], host("b", 12)) == [0, 12], "a part of a node"
    assert cpus_of(monkeypatch, whole[0], host("b")) == [0, 36]


def test_the_cpus_that_a_person_asks_for_are_taken_as_they_are(monkeypatch):
    whole = [host(name, 72) for name in "ab"]
    assert cpus_of(monkeypatch, *whole, cpus_per_node=48) == [0, 48]
    assert cpus_of(monkeypatch, *whole, name="ssh", use_head=True) == [72, 72]


def test_on_one_node_trials_get_all_that_the_scheduler_gave(monkeypatch):
    for given, cores, expected in ((None, 36, 36), (2, 36, 2), (1, 36, 1), (4, 1, 1)):
        assert cpus_of(monkeypatch, host("a", given), cores=cores) == [expected]


# --- environment ------------------------------------------------------------------------------------------------------


LAST_LINES = "Local node IP\nRay runtime started."


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

        def make(**environment):
            made = node.RayNode(RayTask(job="1", temp_root=str(tmp_path), environment=environment, num_cpus=1))
            stack.callback(made._ports.lock.close)
            stack.callback(made._log.close)
            return made

        yield make


def test_a_node_that_has_ended_or_whose_folder_is_gone_is_dead(start, monkeypatch):
    started = start()
    assert started.death() is None
    assert started.is_up()
    with monkeypatch.context() as patch:
        patch.setattr(started.process, "poll", lambda: 1, raising=False)
        assert started.death() == f"`ray start` ended with code 1: {LAST_LINES}"
    shutil.rmtree(started.folder)
    assert started.death() == f"somebody removed {started.folder}: {LAST_LINES}"


def test_threads_and_the_address_of_another_ray_do_not_reach_its_workers(start, monkeypatch):
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "16")
    environment = start(RAY_AUTH_TOKEN="x").process.environment
    assert environment["RAY_AUTH_TOKEN"] == "x"
    assert not {"OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"} & set(environment)


@pytest.mark.parametrize("has_grpc", [False, True])
def test_a_server_for_ray_client_has_a_port_of_the_block(has_grpc, start, monkeypatch):
    """Ray starts one where grpc is installed, at 10001 for all on the host; without grpc it refuses the option."""
    monkeypatch.setattr(node, "find_spec", lambda name: has_grpc or None)
    started = start()
    given = [each for each in started.process.words if each.startswith("--ray-client-server-port=")]
    assert given == ([f"--ray-client-server-port={started._ports['client']}"] if has_grpc else [])


# --- ports ------------------------------------------------------------------------------------------------------------


def test_ports_of_nodes_never_overlap_and_are_given_back():
    """Nodes of one job on one host may differ in their CPUs, and so may jobs that begin at different ports."""
    wanted = [("a", 16, 24_000), ("b", 0, 24_000), ("c", 640, 24_050), ("a", 16, None), ("a", 1, None), ("a", 1, None)]
    with contextlib.ExitStack() as stack:
        taken = []
        for job, num_cpus, base in wanted:
            taken.append(take_ports(job, num_cpus=num_cpus, port_base=base))
            stack.callback(taken[-1].lock.close)
        assert all(each.base >= (base or LOWEST_PORT) for each, (_, _, base) in zip(taken, wanted, strict=True))
        assert all(each.base < each["gcs"] < each["client"] < each.workers[0] for each in taken)
        ports = [port for each in taken for port in range(each.base, each.workers[1] + 1)]
        assert len(set(ports)) == len(ports)
        assert max(ports) < 32_768, "below the ephemeral ones"
    again = take_ports("a", num_cpus=16)
    again.lock.close()
    assert again.base == taken[3].base


def test_where_no_port_is_left_it_is_said():
    with pytest.raises(LaunchError, match=r"ports: .* must be free between 66000 and 65535, got none"):
        take_ports("17", num_cpus=4, port_base=65_001)


def test_a_head_that_fails_without_a_word_is_waited_for(monkeypatch, capsys):
    def silent(address):
        raise ConnectionError

    monkeypatch.setattr(await_nodes, "alive", silent)
    assert await_nodes.main("127.0.0.1:9", "1", "0", "10.0.0.1") == 1
    assert capsys.readouterr().out == "10.0.0.1 (ConnectionError)\n"
