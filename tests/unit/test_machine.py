"""What `study.machine` reads of a host, which Ray it joins and watches, and which modules travel to its nodes."""

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from study.designs.registry import private_shape
from study.errors import ClusterError
from study.machine import cluster, host
from study.machine.shipping import OwnModule, own_modules, runtime_env
from tests.spaces import spec

ROOT = Path(__file__).resolve().parents[2]

# --- one host ---------------------------------------------------------------------------------------------------------


def test_hyper_threads_of_one_core_are_one_core(tmp_path):
    for cpu, siblings in enumerate(["0,8", "1,9"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert host.cores_of([0, 0, 1, 7], tmp_path) == ["0,8", "1,9", "7"]


def test_gpus_are_those_of_the_driver_that_this_process_may_see(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert host.count_gpus(tmp_path / "missing") == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert host.count_gpus(tmp_path) == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert host.count_gpus(tmp_path) == count


@pytest.mark.parametrize(
    ("membership", "folder", "files"),
    [
        ("0::/job\n", "job", {"cpu.max": "100000 100000", "memory.max": "1572864000", "memory.current": "1"}),
        (
            "4:memory:/job\n3:cpu,cpuacct:/job\n",
            "",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "100000",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                "memory/job/memory.limit_in_bytes": "1572864000",
                "memory/job/memory.usage_in_bytes": "1",
                "memory/memory.limit_in_bytes": str(2**63 - 4096),  # no limit
                "memory/memory.usage_in_bytes": "1",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_limits_of_control_groups_are_those_of_the_machine(tmp_path, monkeypatch, membership, folder, files):
    (tmp_path / "cgroup").write_text(membership)
    for name, content in files.items():
        file = tmp_path / "fs" / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    monkeypatch.setattr(host.control_groups, "__defaults__", (tmp_path / "cgroup", tmp_path / "fs"))
    monkeypatch.setattr(host, "cores_of", lambda cpus: ["core"] * 8)
    here = host.this_node(at_least=3)
    assert (here.num_cpus, here.physical_cpus, here.memory_mb) == (3, 1, 1500)
    assert host.cpu_quota() == 1.0


def test_the_cpus_that_a_process_is_bound_to_are_its_own():
    program = "from study.machine.host import *; print(len(usable_cpus()), num_cores(), len(cores_of(usable_cpus())))"
    words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1", "1", "1"]


def test_the_file_system_of_a_path_is_the_last_one_around_it(monkeypatch):
    mounts = {"/": "ext4", "/home": "nfs4", "/home/a b": "lustre", "/caf\udce9": "xfs"}  # a name of another encoding
    found = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in [*mounts.items(), ("/home", "beegfs")]]
    assert host.file_system_of(Path("/proc/self")) == "proc"
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    wanted = {"/etc": "ext4", "/home/u/x": "beegfs", "/home/a b/c": "lustre", "/homes": "ext4"}
    assert {path: host.file_system_of(Path(path)) for path in wanted} == wanted
    found.clear()
    assert host.file_system_of(Path("/home")) == ""
    kinds = ("nfs4", "lustre", "fuse.sshfs", "fuse.ceph-fuse", "ext4", "fuse.squashfuse", "")
    assert [host.is_network(kind) for kind in kinds] == [True] * 4 + [False] * 3


@pytest.mark.skipif(not host._OWN_AUTOGROUP.exists(), reason="a kernel without autogroups")
def test_the_leader_of_a_session_lets_others_go_before_all_of_it():
    code = """
import time
from study.machine.host import _OWN_AUTOGROUP, set_back
for niceness in (7, 0):
    time.sleep(0.2)  # the kernel takes ten values in a second
    set_back(niceness)
    print(*_OWN_AUTOGROUP.read_text().split()[-1:])
"""
    before = host._OWN_AUTOGROUP.read_text().split()[-1:]  # empty in a session that the kernel put in no group
    for leads, shown in ((True, ["7", "0"]), (False, before * 2)):
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, start_new_session=leads)
        assert done.stdout.decode().split() == shown


def test_a_folder_is_removed_at_the_end_and_with_it_what_killed_processes_of_this_host_left(tmp_path, monkeypatch):
    for place, expected in (("/var/tmp", "/var/tmp"), (f"/{'x' * 20}", "/tmp")):  # too long for Ray's sockets
        monkeypatch.setattr("tempfile.tempdir", place)
        with host.own_folder("rl-test") as folder:
            assert str(folder.parent) == expected
    monkeypatch.setattr(host, "_LONGEST_TMPDIR", 1_000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with host.own_folder("rl") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        owner, _, pid = folder.name.rpartition("-")
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [tmp_path / f"{owner}-{number}" for number in (dead.pid, pid)]
    stays = [tmp_path / name for name in (f"{owner}-{os.getppid()}", f"{owner}-x", f"rl-abcd-{dead.pid}", "rl-env")]
    for each in (*left, *stays):
        each.mkdir()
        (each / "start.log").touch()
    outlived = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"--dir={left[0]}/session"])
    with host.own_folder("rl") as folder:
        assert outlived.wait(10) == -signal.SIGKILL
        assert set(tmp_path.iterdir()) == {folder, *stays}
        assert not list(folder.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(host.socket, "gethostname", lambda: "n2")  # a living process there may have this number
            with host.own_folder("rl") as elsewhere:
                assert elsewhere != folder
        assert folder.exists()
    folder.symlink_to(stays[0])
    with pytest.raises(ClusterError, match="must be a folder that can be made"), host.own_folder("rl"):
        pass
    assert (stays[0] / "start.log").exists()


# --- which Ray ----------------------------------------------------------------------------------------------------


NO_ADDRESSES = {
    "must be auto, local or host:port": ("nonsense", ":1", "10.0.0.1:²", "ray://127.0.0.1:1"),
    "no answer within 3 s": (".:6379", "x" * 70 + ":1", "127.0.0.1:9"),
}


@pytest.mark.parametrize(("said", "given"), [(said, each) for said, of in NO_ADDRESSES.items() for each in of])
def test_an_address_that_cannot_be_reached_is_an_ordinary_error_and_without_one_ray_is_private(
    monkeypatch, said, given
):
    monkeypatch.setenv("RAY_ADDRESS", given)
    with pytest.raises(ClusterError, match=f"^RAY_ADDRESS {re.escape(given)}: {said}"):
        cluster.resolve_address(None)
    assert cluster.resolve_address("local") is None
    monkeypatch.delenv("RAY_ADDRESS")
    assert cluster.resolve_address(None) is None


def test_a_server_that_is_no_ray_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(cluster, "HANDSHAKE_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ClusterError, match="must be a Ray cluster"):
        cluster.resolve_address(address_of(server))


def test_a_private_ray_hands_out_the_cores_and_no_less_than_the_largest_trial_reserves():
    here = host.this_node()
    assert here.num_cpus == here.physical_cpus
    many = {"parameters__num_env_runners": [1, 300], "parameters__num_envs_per_env_runner": 1}
    (real,) = private_shape(spec(**many, execution="real", parameters__train_batch_size=300)).nodes
    assert (real.num_cpus, real.physical_cpus) == (301, here.physical_cpus)
    (emulated,) = private_shape(spec(**many, execution="emulated", parameters__train_batch_size=300)).nodes
    assert emulated.num_cpus == here.physical_cpus


def address_of(server):
    return "{}:{}".format(*server.getsockname())


def test_a_server_that_goes_away_is_reported_once_and_by_name(monkeypatch):
    monkeypatch.setattr(cluster, "PERIOD_S", 0.05)
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.5)
    said, reported = [], threading.Event()

    def on_lost(why):
        said.append(why)
        reported.set()

    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as server:
        place = address_of(server)
        with cluster.watching_ray({"the other": address_of(other), "the head": place}, on_lost):
            assert not reported.wait(1.5)  # three times its patience, and both are there
            server.close()
            assert reported.wait(30)
            reported.clear()
            assert not reported.wait(1)
    assert said == [f"the head ({place}) has not answered for 0.5 s"]


# --- what travels to its nodes --------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A person's own folder, from which modules are imported; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def modules(env_id):
    return own_modules(spec(environment__id=env_id).environment)


def test_a_file_a_package_and_what_was_imported_beside_it_travel_whole(mine):
    (mine / "ship_package" / "envs").mkdir(parents=True)
    for name in ("ship_main.py", "ship_beside.py", "ship_idle.py", "ship_package/__init__.py"):
        (mine / name).write_text("import ship_beside" if name == "ship_main.py" else "")
    assert modules("ship_package.envs:Maze") == (OwnModule(name="ship_package", path=mine / "ship_package"),)
    (alone,) = modules("ship_main:Maze")
    assert runtime_env([alone])["py_modules"] == [str(mine / "ship_main.py")]
    with pytest.raises(ClusterError, match="must be a folder or a"):
        runtime_env([OwnModule(name="ship_compiled", path=mine / "ship_compiled.cpython-311-x86_64-linux-gnu.so")])
    importlib.import_module("ship_main")
    assert [each.name for each in modules("ship_main:Maze")] == ["ship_main", "ship_beside"]


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        "gymnasium.envs.classic_control:CartPoleEnv",  # site-packages
        "unittest.mock:Mock",  # standard library
        "study.trial.engine.envs.environments:EnvFactory",  # every node has this project
        "__main__:Maze",
        "no_such_module:Maze",
    ],
)
def test_what_is_installed_or_not_there_stays(env_id):
    assert modules(env_id) == ()


def test_the_digest_follows_content_and_names_but_no_caches(mine):
    folder = mine / "ship_digest"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1")
    module = OwnModule(name="ship_digest", path=folder)
    first = module.digest
    (folder / "__pycache__" / "x.pyc").write_text("x")
    assert module.digest == first
    (folder / "data.txt").write_text("1")
    second = module.digest
    (folder / "data.txt").rename(folder / "other.txt")
    assert len({first, second, module.digest}) == 3


def test_variables_of_a_script_travel_and_what_it_removes_stays_as_a_node_has_it():
    assert runtime_env((), {"DIFFICULTY": "hard"}) == {"env_vars": {"DIFFICULTY": "hard"}}
    assert runtime_env(()) is None
