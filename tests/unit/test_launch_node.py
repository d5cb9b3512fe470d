"""A launched node of Ray: its CPUs, its environment, and what it finds in its temporary folder."""

import contextlib
import os
import queue
import subprocess
import tempfile
from pathlib import Path

import pytest

from study.cluster.machine import Machine
from study.errors import LaunchError
from study.launch import node
from study.launch.allocation import Allocation, Host
from study.launch.job import LaunchJob
from study.launch.ports import take_block
from study.launch.ray_cluster import RayCluster
from study.launch.tasks import RayTask


@pytest.fixture
def block():
    with contextlib.ExitStack() as stack:

        def take(job):
            block = take_block(job, num_cpus=1)
            stack.callback(block.release)
            return block

        yield take


def folder_of(root, base):
    folder = root / f"rl-{os.getuid()}-{base}"
    folder.mkdir()
    (folder / "start.log").write_text("left by a node that was killed")
    return folder


def test_what_killed_nodes_left_is_removed_and_nothing_of_those_that_live(tmp_path, block):
    mine, other, dead = block("mine"), block("other"), block("dead")
    folders = [folder_of(tmp_path, each.base) for each in (mine, other, dead)]
    dead.release()
    foreign = [tmp_path / name for name in ("rl-99999-20000", f"rl-{os.getuid()}-x", f"rl-{os.getuid()}-99999999")]
    for folder in foreign:
        folder.mkdir()
    made = node._folder(str(tmp_path), mine.base)
    assert made == folders[0]
    assert not list(made.iterdir())
    assert folders[1].exists()
    assert not folders[2].exists()
    assert all(folder.exists() for folder in foreign)


def test_environments_that_nobody_runs_from_are_removed(tmp_path):
    dead, used, linked = (tmp_path / node.STAGED.format(job=job) for job in ("17", "18.pbs", "19"))
    for folder in (dead, used, tmp_path / "elsewhere"):
        (folder / "bin").mkdir(parents=True)
    linked.symlink_to(tmp_path / "elsewhere")
    # As the shell that makes the copy, and what runs from it; by its name, since the folder has other paths too.
    process = subprocess.Popen(["bash", "-c", "exec -a //tmp/rl-18.pbs-env/bin/python sleep 60"])
    try:
        node._remove_dead(tmp_path)
    finally:
        process.kill()
        process.wait()
    assert not dead.exists()
    assert used.exists()
    assert linked.exists()


@pytest.mark.parametrize("copied", [True, False])
def test_half_an_environment_is_not_left_behind(tmp_path, copied):
    here = tmp_path / "env"
    if copied:
        (here / "bin").mkdir(parents=True)
        (here / "bin" / "python").write_text('#!/bin/sh\necho agent "$@"\n')
        (here / "bin" / "python").chmod(0o755)
    # A path that is short enough for the sockets of Ray.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rl") as root:
        job = LaunchJob(
            scheduler="slurm", study="/s", run=(), workdir="/", python="python", stage=str(here), temp_root=root
        )
        allocation = Allocation(hosts=(Host(name="a", num_cpus=1),), job="1", ends_at=None)
        line = RayCluster(job, tmp_path, allocation, None, queue.SimpleQueue(), print)._line()
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
        assert (done.returncode == 0) == (done.stdout == "agent -u -m study.launch.agent\n") == copied
        assert [each.name for each in Path(root).iterdir()] == (["rl-1-env"] if copied else [])


def test_somebody_elses_folder_is_refused(tmp_path, block):
    mine = block("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"rl-{os.getuid()}-{mine.base}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="must be yours"):
        node._folder(str(tmp_path), mine.base)
    assert (tmp_path / "elsewhere").exists()


# --- CPUs -------------------------------------------------------------------------------------------------------------


def cpus_of(monkeypatch, *hosts, cores=36, scheduler="slurm", **changes):
    """Return what Ray hands out on each host of so many cores, the head first."""
    monkeypatch.setattr(node, "machine", lambda: Machine(num_cores=cores, memory_mb=64_000, num_gpus=0))
    job = LaunchJob(scheduler=scheduler, study="/s", run=(), workdir="/w", python="python", **changes)
    allocation = Allocation(hosts=hosts, job="1", ends_at=None)
    ray = RayCluster(job, None, allocation, None, queue.SimpleQueue(), print)
    tasks = [ray._task(host, peer="", address="" if host is hosts[0] else "10.0.0.1:6379") for host in hosts]
    return [node._num_cpus(task) for task in tasks]


def test_hyper_threads_that_a_scheduler_counts_are_no_cpus_of_ray(monkeypatch):
    whole = [Host(name=name, num_cpus=72) for name in "abc"]
    assert cpus_of(monkeypatch, *whole) == [0, 36, 36]
    assert cpus_of(monkeypatch, *whole, use_head=True) == [35, 36, 36]
    assert cpus_of(monkeypatch, whole[0], Host(name="b", num_cpus=12)) == [0, 12], "a part of a node"
    assert cpus_of(monkeypatch, whole[0], Host(name="b", num_cpus=None)) == [0, 36]


def test_the_cpus_that_a_person_asks_for_are_taken_as_they_are(monkeypatch):
    whole = [Host(name=name, num_cpus=72) for name in "ab"]
    assert cpus_of(monkeypatch, *whole, cpus_per_node=48) == [0, 48]
    assert cpus_of(monkeypatch, *whole, scheduler="ssh", use_head=True) == [71, 72]


def test_a_head_that_runs_trials_has_a_cpu_for_them(monkeypatch):
    for given in (None, 1, 4):
        assert cpus_of(monkeypatch, Host(name="a", num_cpus=given), cores=1) == [1]


# --- environment ------------------------------------------------------------------------------------------------------


class Started:
    """Of the last process: how it was started."""

    environment: dict[str, str]

    def __init__(self, words, *, env, **_):
        Started.environment = env


def test_threads_and_the_address_of_another_ray_do_not_reach_its_workers(monkeypatch, tmp_path):
    monkeypatch.setattr(node.subprocess, "Popen", Started)
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "16")
    task = RayTask(job="1", temp_root=str(tmp_path), environment={"RAY_AUTH_TOKEN": "x"}, num_cpus=1)
    node.RayNode(task)._ports.release()
    assert Started.environment["RAY_AUTH_TOKEN"] == "x"
    assert not {"OMP_NUM_THREADS", "RAY_ADDRESS", "RAY_TMPDIR"} & set(Started.environment)
