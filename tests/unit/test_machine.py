"""What `study.machine` reads of a host: from files that a test wrote, and for real."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from study.errors import ClusterError
from study.machine import host
from study.machine.host import (
    control_groups,
    cores_of,
    count_gpus,
    cpu_quota,
    current_job,
    file_system_of,
    is_network,
    own_folder,
    short_temporary_folder,
    this_node,
)

ROOT = Path(__file__).resolve().parents[2]
# CPUs, memory, control groups.


def test_hyper_threads_of_one_core_are_one_core(tmp_path):
    for cpu, siblings in enumerate(["0,8", "1,9"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert cores_of([0, 0, 1, 7], tmp_path) == ["0,8", "1,9", "7"]


def test_gpus_are_those_of_the_driver_that_this_process_may_see(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert count_gpus(tmp_path / "missing") == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert count_gpus(tmp_path) == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert count_gpus(tmp_path) == count


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
    monkeypatch.setattr(control_groups, "__defaults__", (tmp_path / "cgroup", tmp_path / "fs"))
    monkeypatch.setattr(host, "cores_of", lambda cpus: ["core"] * 8)
    here = this_node(at_least=3)
    assert (here.num_cpus, here.physical_cpus, here.memory_mb) == (3, 1, 1500)
    assert cpu_quota() == 1.0


def test_the_cpus_that_a_process_is_bound_to_are_its_own():
    program = "from study.machine.host import *; print(len(usable_cpus()), num_cores(), len(cores_of(usable_cpus())))"
    words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1", "1", "1"]


# File systems.


def test_the_file_system_of_a_path_is_the_last_one_around_it(monkeypatch):
    mounts = {"/": "ext4", "/home": "nfs4", "/home/a b": "lustre", "/caf\udce9": "xfs"}  # a name of another encoding
    found = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in [*mounts.items(), ("/home", "beegfs")]]
    assert file_system_of(Path("/proc/self")) == "proc"
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    wanted = {"/etc": "ext4", "/home/u/x": "beegfs", "/home/a b/c": "lustre", "/homes": "ext4"}
    assert {path: file_system_of(Path(path)) for path in wanted} == wanted
    found.clear()
    assert file_system_of(Path("/home")) == ""
    kinds = ("nfs4", "lustre", "fuse.sshfs", "fuse.ceph-fuse", "ext4", "fuse.squashfuse", "")
    assert [is_network(kind) for kind in kinds] == [True] * 4 + [False] * 3


def test_a_job_is_read_from_the_variables_of_its_scheduler():
    assert current_job({}) is None
    assert current_job({"SLURM_JOB_ID": "7"}) == ("slurm", "7")
    assert current_job({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "p"}) == ("kubernetes", "p")


# Processes, and everything that a node says.


@pytest.mark.skipif(not host._OWN_AUTOGROUP.exists(), reason="a kernel without autogroups")
def test_the_leader_of_a_session_lets_others_go_before_all_of_it():
    code = """
from study.machine.host import _OWN_AUTOGROUP, set_back
for niceness in (7, 0):
    set_back(niceness)
    print(*_OWN_AUTOGROUP.read_text().split()[-1:])
"""
    before = host._OWN_AUTOGROUP.read_text().split()[-1:]  # empty in a session that the kernel put in no group
    for leads, shown in ((True, ["7", "0"]), (False, before * 2)):
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, start_new_session=leads)
        assert done.stdout.decode().split() == shown


def test_a_long_tmpdir_is_not_that_of_a_private_ray(tmp_path, monkeypatch):
    assert len(str(tmp_path)) > 20
    for folder, expected in (("/var/tmp", "/var/tmp"), (str(tmp_path), "/tmp")):
        monkeypatch.setattr("tempfile.tempdir", folder)
        assert short_temporary_folder() == expected


def test_a_folder_is_removed_at_the_end_and_with_it_what_killed_processes_of_this_host_left(tmp_path, monkeypatch):
    with own_folder(str(tmp_path), "rl") as folder:
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
    with own_folder(str(tmp_path), "rl") as folder:
        assert outlived.wait(10) == -signal.SIGKILL
        assert set(tmp_path.iterdir()) == {folder, *stays}
        assert not list(folder.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(host.socket, "gethostname", lambda: "n2")  # a living process there may have this number
            with own_folder(str(tmp_path), "rl") as elsewhere:
                assert elsewhere != folder
        assert folder.exists()
    folder.symlink_to(stays[0])
    with pytest.raises(ClusterError, match="must be a folder that can be made"), own_folder(str(tmp_path), "rl"):
        pass
    assert (stays[0] / "start.log").exists()
