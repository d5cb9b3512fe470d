"""A launched node of Ray: its CPUs, its environment, and what it finds in its temporary folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.errors import LaunchError
from study.hosts.machine import Machine
from study.launch import await_nodes, node
from study.launch.job import LONGEST_TEMP_ROOT
from study.launch.ports import LOWEST_PORT, take_block
from study.launch.remote import RayTask
from tests.launching import host, launcher, ray_on


@pytest.fixture
def block():
    with contextlib.ExitStack() as stack:

        def take(job):
            block = take_block(job, num_cpus=1)
            stack.callback(block.release)
            return block

        yield take


def marked(folder, host=None):
    """Make a folder as a launch on a host makes one."""
    (folder / "bin").mkdir(parents=True)
    (folder / node.MARKER).write_text(host or socket.gethostname())
    return folder


def node_folder(root, base, monkeypatch, host=None):
    """Make the folder of a node on a host; return it."""
    with monkeypatch.context() as patch:
        if host:
            patch.setattr(socket, "gethostname", lambda: host)
        return node._folder(str(root), base)


def test_what_killed_nodes_of_this_host_left_is_removed_and_nothing_of_those_that_live(tmp_path, block, monkeypatch):
    mine, other, dead = block("mine"), block("other"), block("dead")
    left, living, gone = (node_folder(tmp_path, each.base, monkeypatch) for each in (mine, other, dead))
    (left / "start.log").write_text("left by a node that was killed")
    dead.release()
    made = node._folder(str(tmp_path), mine.base)
    assert made == left
    assert [path.name for path in made.iterdir()] == [node.MARKER]
    assert living.exists()
    assert not gone.exists()


def test_hosts_that_share_their_temporary_root_have_folders_of_their_own(tmp_path, block, monkeypatch):
    mine, dead = block("mine"), block("dead")
    theirs = [node_folder(tmp_path, base, monkeypatch, host="n2") for base in (mine.base, dead.base)]
    environment = marked(tmp_path / node.STAGED.format(job="17", host="n2"), host="n2")
    dead.release()  # here nobody has these ports; on n2 a living node may
    made = node._folder(str(tmp_path), mine.base)
    assert all(folder.exists() for folder in (made, *theirs, environment))
    assert len({made, *theirs}) == 3


def test_what_is_not_marked_as_ours_is_left_alone(tmp_path, block, monkeypatch):
    mine = block("mine")
    own = marked(tmp_path / "elsewhere")
    names = ["rl-baselines-env", "rl-17-env", "rl-20000-abcdef", f"rl-{os.getuid()}-20000", "rl-x"]
    for name in names:
        (tmp_path / name / "bin").mkdir(parents=True)
    (tmp_path / "rl-18-env").symlink_to(own)
    linked = tmp_path / "rl-19-env"
    linked.mkdir()
    (linked / node.MARKER).symlink_to(own / node.MARKER)
    foreign = marked(tmp_path / "rl-20-env")
    if os.geteuid() == 0:
        os.chown(foreign, 20001, 20001)
    else:
        shutil.rmtree(foreign)
    before = sorted(tmp_path.iterdir())
    made = node._folder(str(tmp_path), mine.base)
    assert sorted(tmp_path.iterdir()) == sorted([*before, made])


def test_environments_that_nobody_runs_from_are_removed(tmp_path):
    dead, used = (marked(tmp_path / node.STAGED.format(job=job, host="n1")) for job in ("17", "18.pbs"))
    # As the shell that makes the copy, and what runs from it; by its name, since the folder has other paths too.
    process = subprocess.Popen(["bash", "-c", "exec -a //tmp/rl-18.pbs-n1-env/bin/python sleep 60"])
    try:
        node._remove_dead(tmp_path)
    finally:
        process.kill()
        process.wait()
    assert not dead.exists()
    assert used.exists()


def staging_line(root, stage):
    """Return the shell line by which a node copies its environment, and the place of the copy."""
    ray = ray_on(launcher("slurm", workdir="/", stage=stage, temp_root=root), host("a"))
    return ray._line(host("a")), Path(ray._staged(host("a")))


@pytest.mark.parametrize("what", ["folder", "link", "no environment", "nothing"])
def test_an_environment_is_copied_whole_and_only_into_a_folder_of_ours(tmp_path, what):
    own = tmp_path / "env"
    if what != "no environment":
        (own / "bin").mkdir(parents=True)
        (own / "bin" / "python").write_text('#!/bin/sh\necho agent "$@"\n')
        (own / "bin" / "python").chmod(0o755)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rl") as root:  # short enough for the sockets of Ray
        line, copy = staging_line(root, str(own))
        if what == "folder":
            (copy / "keep").mkdir(parents=True)
        elif what == "link":
            (marked(tmp_path / "elsewhere") / ".staged").touch()
            copy.symlink_to(tmp_path / "elsewhere")
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
        copied = what == "nothing"
        assert (done.stdout, done.returncode == 0) == ("agent -u -m study.launch.agent\n" * copied, copied), done.stderr
        assert copy.exists() == (what != "no environment"), "half a copy is removed, and what is not ours is left"
        if copied:
            node.remove_marked(copy)
            assert not copy.exists()


def test_a_name_that_something_else_has_is_refused(tmp_path, block, monkeypatch):
    mine = block("mine")
    folder = node_folder(tmp_path, mine.base, monkeypatch)
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    for make in (lambda: folder.symlink_to(tmp_path / "elsewhere"), folder.mkdir):
        make()
        with pytest.raises(LaunchError, match=f"^{folder}: must be a folder that a launch made"):
            node._folder(str(tmp_path), mine.base)
        assert (tmp_path / "elsewhere").exists()
        folder.unlink() if folder.is_symlink() else folder.rmdir()


def test_the_longest_path_of_a_socket_fits(block, monkeypatch):
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


@pytest.mark.parametrize("asked", [None, 4])
def test_unused_cpus_are_named_where_nobody_asked_for_fewer(asked, capsys):
    ray = ray_on(launcher("slurm", cpus_per_node=asked), host("a", 8))
    ray._say_what_is_not_used([SimpleNamespace(host="a", started={"num_cpus": 4})])
    assert ("a: Ray has 4 of 8 CPUs, one for each core" in capsys.readouterr().out) is (asked is None)


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
            stack.callback(made._ports.release)
            stack.callback(made._log.close)
            return made

        yield make


def test_a_node_whose_servers_or_folder_are_gone_is_dead(start):
    started = start()
    assert started.death() is None, "it has not listened yet"
    with socket.create_server(("127.0.0.1", started._ports["gcs"])):
        with socket.create_server(("127.0.0.1", started._ports["node_manager"])):
            assert started.death() is None
            assert started.is_up()
        assert started.death() == f"a server of Ray no longer listens: {LAST_LINES}"
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


def test_blocks_of_ports_never_overlap_and_are_given_back():
    """Nodes of one job on one host may differ in their CPUs, and so may jobs that begin at different ports."""
    wanted = [("a", 16, 24_000), ("b", 0, 24_000), ("c", 64, 24_050), ("a", 16, None), ("a", 1, None), ("a", 1, None)]
    with contextlib.ExitStack() as stack:
        blocks = []
        for job, num_cpus, base in wanted:
            blocks.append(take_block(job, num_cpus=num_cpus, port_base=base))
            stack.callback(blocks[-1].release)
        assert all(block.base >= (base or LOWEST_PORT) for block, (_, _, base) in zip(blocks, wanted, strict=True))
        assert all(block.base < block["gcs"] < block["client"] < block.workers[0] for block in blocks)
        ports = [port for block in blocks for port in range(block.base, block.workers[1] + 1)]
        assert len(set(ports)) == len(ports)
        assert max(ports) < 32_768, "below the ephemeral ones"
    again = take_block("a", num_cpus=16)
    again.release()
    assert again.base == blocks[3].base


def test_where_no_port_is_left_it_is_said():
    with pytest.raises(LaunchError, match=r"ports: .* must be free between 65500 and 65535, got none"):
        take_block("17", num_cpus=4, port_base=65_500)


def test_a_head_that_fails_without_a_word_is_waited_for(monkeypatch, capsys):
    def silent(address):
        raise ConnectionError

    monkeypatch.setattr(await_nodes, "alive", silent)
    assert await_nodes.main("127.0.0.1:9", "1", "0", "10.0.0.1") == 1
    assert capsys.readouterr().out == "10.0.0.1 (ConnectionError)\n"
