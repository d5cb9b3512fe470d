import pytest

from study.hosts import control_groups
from study.hosts import machine as machine_module
from study.hosts.machine import _count_gpus, _siblings, machine


def test_hyper_threads_of_one_core_are_one_core(tmp_path):
    for cpu, siblings in enumerate(["0,8", "1,9"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert _siblings(0, tmp_path) == "0,8"
    assert len({_siblings(0, tmp_path), _siblings(0, tmp_path), _siblings(1, tmp_path)}) == 2
    assert _siblings(7, tmp_path) == "7"


def test_the_machine_has_a_core_and_some_memory():
    here = machine()
    assert here.num_cores >= 1
    assert here.memory_mb > 100
    assert here.num_gpus >= 0


def test_gpus_are_those_of_the_driver_that_this_process_may_see(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _count_gpus(tmp_path / "missing") == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert _count_gpus(tmp_path) == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert _count_gpus(tmp_path) == count


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
    where = (tmp_path / "cgroup", tmp_path / "fs")
    monkeypatch.setattr(control_groups.control_groups, "__defaults__", where)
    monkeypatch.setattr(machine_module, "cores_behind", lambda cpus: 8)
    here = machine()
    assert (here.num_cores, here.memory_mb) == (1, 1500)
    assert control_groups.cpu_quota() == 1.0
