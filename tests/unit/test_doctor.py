"""The doctor's checks: each meets its fault, for real where a machine can be brought to have it, and its absence."""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console

from study import doctor
from study.doctor import asking, fit, limits, nodes, noise, packages, ray, storage, tracking
from study.doctor.finding import Check, Finding, Verdict, ok, refused
from study.doctor.surroundings import Clock, Cluster, NodeReport, Surroundings, folded
from study.doctor.view import print_finding, print_summary, to_json
from study.errors import ClusterError, RecordError
from study.hosts.control_groups import control_groups
from study.hosts.facts import Facts
from study.hosts.probe import digest_of, filesystem_of, look, readers_of
from study.hosts.probe_cpus import read_grant
from study.hosts.probe_load import cpu_times, options_of, read_load
from study.planning.shape import LOCAL
from study.records import trust
from tests.spaces import spec

ROOT = Path(__file__).resolve().parents[2]
FOUND_BY = {check.name: check.look for check in doctor.all_checks()}


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What this machine tells, with the CPUs, the load and the versions of a healthy one of four cores."""
    answer = look(sample_s=0)
    assert answer["faults"] == {}
    return answer["facts"] | {
        "cpus": {
            "machine": 8,
            "allowed": 8,
            "quota": None,
            "cores": ["0,4", "1,5", "2,6", "3,7"],
            "num_cores": 4,
            "granted": None,
            "granted_by": "",
        },
        "memory": {"total_mb": 16000, "available_mb": 14000},
        "shm": {"folder": "/dev/shm", "type": "tmpfs", "total_mb": 8000, "free_mb": 7900},
        "temporary": {"folder": "/tmp", "type": "ext4", "total_mb": 90000, "free_mb": 50000},
        "limits": {"open_files": 65536, "open_files_hard": 65536, "thread_room": None, "thread_limit": ""},
        "authentication": {"mode": "token", "token_in_environment": True, "token_file": None, "token_readers": ""},
        "threads_variable": None,
        "ray": {
            "address": "10.0.0.1:6379",
            "temp_dir": "/tmp/ray",
            "socket": "/tmp/ray/session_2026-11-21_21-35-00_123456_1234/sockets/raylet",
            "plasma_directory": "/dev/shm",
            "object_store_mb": 2000,
            "niceness": 0,
            "open_ports": ["gcs_server 0.0.0.0:6379"],
        },
        "load": {
            "sample_s": 1.0,
            "foreign_cpus": 0.02,
            "foreign": [],
            "steal": 0.0,
            "pressure": 0.001,
            "other_rays": [],
        },
        "frequency": {"governors": ["performance"], "driver": "intel_pstate", "turbo": False},
    }


def changed(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return facts with some changed: a dictionary's keys one by one, anything else as a whole."""
    old = {name: facts[name] if isinstance(facts[name], dict) else {} for name in changes}
    return facts | {
        name: old[name] | change if isinstance(change, dict) else change for name, change in changes.items()
    }


@pytest.fixture
def private(facts):
    """Return a maker of the surroundings of a study without a cluster."""

    def make(num_cpus: int = 4, study=None, tmp: Path = Path("studies"), uri: str = "sqlite:///x.db", **changes: Any):
        here = NodeReport(address=LOCAL, facts=changed(facts, **{"ray": None} | changes), num_cpus=num_cpus)
        return Surroundings(here=here, tracking_uri=uri, out=tmp, spec=study)

    return make


@pytest.fixture
def cluster(facts):
    """Return a maker of the surroundings on a cluster; each argument is what one node has of its own."""

    def make(*each: dict[str, Any], study=None, **more: Any):
        reports = []
        for number, own in enumerate(each or ({}, {}), start=1):
            of_node = {"num_cpus": 4, "clock": Clock(0.0001, 0.001)} | own
            mine = {name: of_node.pop(name) for name in list(of_node) if name in Facts.__annotations__}
            mine.setdefault("host", {"boot_id": f"boot {number}", "hostname": f"n{number}"})
            reports.append(NodeReport(address=f"10.0.0.{number}", facts=changed(facts, **mine), **of_node))
        total = sum(report.num_cpus for report in reports)
        joined = Cluster(address="10.0.0.1:6379", nodes=tuple(reports), **{"num_free_cpus": total} | more)
        here = NodeReport(address=LOCAL, facts=changed(facts, load=None, ray=None), num_cpus=4)
        return Surroundings(here=here, tracking_uri="sqlite:///x.db", cluster=joined, spec=study)

    return make


def assert_says(verdict: Verdict | None, level: str, *words: str) -> None:
    assert verdict is not None
    assert verdict.level == level, verdict
    for word in words:
        assert word in f"{verdict.found} | {verdict.fix}", verdict


# What a machine tells of itself.


def test_a_machine_tells_everything_that_is_asked():
    answer = look(sample_s=0.05)
    assert answer["faults"] == {}
    assert set(answer["facts"]) == set(Facts.__annotations__)
    for name, part in Facts.__annotations__.items():
        keys = getattr(part, "__annotations__", None)
        if keys and answer["facts"][name] is not None:
            assert set(answer["facts"][name]) == set(keys), name
    json.dumps(answer)
    assert answer["facts"]["ray"] is None
    assert answer["facts"]["software"]["source"] == digest_of([ROOT / "study", ROOT / "analysis"])
    assert answer["facts"]["load"]["sample_s"] >= 0.05


def test_what_cannot_be_read_is_named_with_its_reason(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/" + "x" * 5000)
    answer = look(sample_s=0)
    assert list(answer["faults"]) == ["authentication"]
    here = NodeReport(address=LOCAL, facts=answer["facts"], faults=answer["faults"])
    verdict = ray.token_file(Surroundings(here=here, tracking_uri=""))
    assert_says(verdict, "fail", "cannot be read: OSError", "too long")


@pytest.fixture
def open_folder():
    """Return a folder that everybody may pass through, as the ones of pytest are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("mode", "above", "readers"),
    [
        (0o600, 0o755, ""),
        (0o644, 0o755, "everybody"),
        (0o644, 0o700, ""),
        (0o640, 0o755, "its group"),
        (0o640, 0o701, ""),
        (0o604, 0o711, "everybody"),
    ],
)
def test_who_can_read_a_token_depends_on_its_mode_and_on_the_folders_above(open_folder, mode, above, readers):
    folder = open_folder / ".ray"
    folder.mkdir()
    file = folder / "auth_token"
    file.write_text("x" * 40)
    file.chmod(mode)
    folder.chmod(above)
    assert readers_of(file) == readers


def ask_in_a_process(code: str, *before: str) -> Any:
    """Run a line of Python that prints JSON in a process of its own, after shell commands."""
    imports = "from study.hosts.machine import machine; from study.hosts.probe import *"
    program = f"import json; {imports}; print(json.dumps({code}))"
    script = "; ".join([*before, 'exec "$@"'])
    words = ["sh", "-c", script, "sh", sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_a_low_limit_on_open_files_is_found(private):
    low = ask_in_a_process("read_limits()", "ulimit -n 512")
    assert low["open_files"] == low["open_files_hard"] == 512
    assert_says(limits.open_files(private(limits=low)), "fail", "512 open files", "ulimit -n")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard >= 65536:
        enough = ask_in_a_process("read_limits()", "ulimit -Sn 1024")  # Ray raises the soft limit itself
        assert_says(limits.open_files(private(limits=enough)), "ok", "65536")


def test_a_process_bound_to_one_cpu_is_found(cluster):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a machine of one CPU")
    one = min(os.sched_getaffinity(0))
    bound = ask_in_a_process("read_cpus(('x',))", f"taskset -pc {one} $$ >/dev/null")
    assert (bound["allowed"], bound["num_cores"], len(bound["cores"])) == (1, 1, 1)
    many, one = ({"num_cpus": number, "cpus": bound} for number in (2, 1))
    assert_says(nodes.cpus(cluster(many)), "fail", "2 CPUs, 1 were allocated", "affinity", "--num-cpus=1")
    assert_says(nodes.cpus(cluster(one)), "ok")


@pytest.fixture
def control_group():
    """Return a maker of a control group (version 1) with one limit; its `tasks` file takes processes in."""
    made = []

    def make(controller: str, **values: int) -> Path:
        folder = Path("/sys/fs/cgroup") / controller / f"doctor-{os.getpid()}"
        try:
            folder.mkdir()
            made.append(folder)
            for name, value in values.items():
                (folder / name.replace("__", ".")).write_text(str(value))
        except OSError as error:
            pytest.skip(f"no control group of {controller} can be made here ({error.strerror})")
        return folder

    yield make
    for folder in made:
        folder.rmdir()


def test_limits_of_control_groups_are_found(control_group, private, cluster):
    pids = control_group("pids", pids__max=50)
    told = ask_in_a_process("read_limits()", f"echo $$ > {pids}/tasks")
    assert told["thread_room"] < 50
    assert told["thread_limit"] == f"{pids}/pids.max"
    assert_says(limits.threads(private(4, limits=told)), "fail", "room for")
    cpu = control_group("cpu", cpu__cfs_quota_us=100_000)
    told = ask_in_a_process("read_cpus(('x',))", f"echo $$ > {cpu}/tasks")
    assert (told["quota"], told["num_cores"]) == (1.0, 1)
    if told["machine"] > 1:
        assert_says(nodes.cpus(cluster({"num_cpus": 2, "cpus": told})), "fail", "1 were allocated here by the quota")
    memory = control_group("memory", memory__limit_in_bytes=300 * 2**20)
    told = ask_in_a_process("read_memory()", f"echo $$ > {memory}/tasks")
    assert told["total_mb"] == ask_in_a_process("machine().memory_mb", f"echo $$ > {memory}/tasks") == 300
    assert 0 < told["available_mb"] <= 300
    assert_says(nodes.memory(private(2, memory=told)), "fail", "of 0.3 GB")


def test_control_groups_of_both_versions_are_walked_up_to_their_root(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/job/step\n3:cpu,cpuacct:/\n0::/slice/scope\n")
    root = tmp_path / "fs"
    for folder in ("memory/job/step", "cpu,cpuacct", "slice/scope"):
        (root / folder).mkdir(parents=True)
    told = [path.relative_to(root).as_posix() for path in control_groups("memory", membership, root)]
    assert told == ["memory/job/step", "memory/job", "memory", "slice/scope", "slice", "."]
    told = [path.relative_to(root).as_posix() for path in control_groups("cpu", membership, root)]
    assert told == ["cpu,cpuacct", "slice/scope", "slice", "."]


def test_the_cpus_that_a_batch_system_gave_are_read(tmp_path):
    nodefile = tmp_path / "nodes"
    nodefile.write_text("n1.site\nn1.site\nn2.site\n")
    names = ("n1",)
    assert read_grant(names, {"OAR_NODEFILE": str(nodefile)}) == (2, "OAR_NODEFILE")
    assert read_grant(("elsewhere",), {"OAR_NODEFILE": str(nodefile)}) == (None, "")
    assert read_grant(names, {"OAR_NODEFILE": "/missing"}) == (None, "")
    slurm = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "3"}
    assert read_grant(names, slurm) == (3, "SLURM_CPUS_PER_TASK")
    assert read_grant(names, slurm | {"SLURM_CPUS_ON_NODE": "6"}) == (6, "SLURM_CPUS_ON_NODE")
    assert read_grant(names, {"SLURM_CPUS_ON_NODE": "6"}) == (None, "")
    assert read_grant(names, {"PBS_JOBID": "1", "NCPUS": "5"}) == (5, "NCPUS")


BUSY = """
import pathlib, time
pathlib.Path("/proc/self/comm").write_text("doctor-busy")
end = time.time() + 60
while time.time() < end:
    pass
"""


def test_a_busy_process_of_somebody_else_is_found_and_named():
    # Its parent ends at once, so that it belongs to nobody here.
    starter = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {BUSY!r}], stdout=2).pid)"
    words = [sys.executable, "-c", starter]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout)
    try:
        told, asked_by_it = read_load(0.6, named=1000), read_load(0.3, mine=[pid], named=1000)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert told["foreign_cpus"] > noise.FOREIGN_CPUS
    assert any(name.startswith("doctor-busy of ") for name in told["foreign"]), told
    assert not any(name.startswith("doctor-busy of ") for name in asked_by_it["foreign"])


def test_the_kernels_count_of_cpu_time_is_read_for_our_cpus_only():
    ticks = os.sysconf("SC_CLK_TCK")
    stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 500 40 3 7 20 0 0\ncpu1 900 0 0 0 0 0 0 0 0 0\nintr 5\n"
    assert cpu_times(stat, {0}) == (140 / ticks, 20 / ticks, 700 / ticks)
    assert cpu_times(stat, {0, 1}) == (1040 / ticks, 20 / ticks, 1600 / ticks)


def test_the_options_of_a_raylet_are_read_from_its_command_line():
    words = ["/raylet", "--gcs-address=10.0.0.1:6379", "--session_dir=/tmp/ray/s", "--python_worker_command=a --b=c"]
    assert options_of(words) == {
        "gcs_address": "10.0.0.1:6379",
        "session_dir": "/tmp/ray/s",
        "python_worker_command": "a --b=c",
    }


def test_the_file_system_of_a_path_is_the_last_one_mounted_around_it(tmp_path):
    table = tmp_path / "mountinfo"
    lines = [
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw",
        "2 1 0:5 / /home rw - nfs4 server:/home rw",
        "3 2 0:6 / /home/a\\040b rw - lustre x rw",
        "4 1 0:7 / /scratch rw - ext4 /dev/sdb rw",
        "5 1 0:8 / /scratch rw - beegfs y rw",
    ]
    table.write_text("\n".join(lines))
    told = {
        path: filesystem_of(Path(path), table) for path in ("/etc", "/home/u/x", "/home/a b/c", "/homes", "/scratch/s")
    }
    assert told == {
        "/etc": "ext4",
        "/home/u/x": "nfs4",
        "/home/a b/c": "lustre",
        "/homes": "ext4",
        "/scratch/s": "beegfs",
    }
    served = "nfs4 lustre panfs wekafs dvs pvfs2 fhgfs fuse.sshfs fuse.ceph-fuse fuse.lustre fuse.beegfs fuse.juicefs"
    assert all(map(limits.is_network, served.split()))
    assert not any(map(limits.is_network, ("ext4", "tmpfs", "overlay", "fuse.squashfuse", "fuse.ext4", "fuseblk", "")))


# Ray.


def test_versions_must_be_the_same_on_all_nodes_and_here(cluster, facts):
    assert_says(ray.versions(cluster()), "ok", "Ray ", "Python ")
    other = {"software": facts["software"] | {"python": "3.11.1"}}
    assert_says(ray.versions(cluster({}, other)), "fail", "Python 3.11.1 on 10.0.0.2", "here")


def test_a_node_that_is_silent_or_dead_is_named(cluster):
    assert_says(ray.nodes_alive(cluster()), "ok", "2 nodes")
    assert_says(ray.nodes_alive(cluster(dead=("10.0.0.9",))), "warn", "10.0.0.9")
    silent = {"10.0.0.3": "no answer within 60 s"}
    assert_says(ray.nodes_alive(cluster(silent=silent)), "fail", "10.0.0.3: no answer")


def test_cpus_that_others_hold_are_counted(cluster):
    assert_says(ray.idle(cluster()), "ok", "8 CPUs")
    assert_says(ray.idle(cluster(num_free_cpus=3)), "warn", "5 of 8")


def test_authentication_must_be_decided_and_the_same_everywhere(cluster, private, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)  # a Ray that this process has joined may have set it
    unset = {"authentication": {"mode": None}}
    assert_says(ray.authentication(cluster()), "ok", "RAY_AUTH_MODE=token everywhere")
    assert_says(ray.authentication(cluster({}, unset)), "warn", "not set on 10.0.0.2")
    nowhere = cluster(unset, unset)
    nowhere = replace(nowhere, here=replace(nowhere.here, facts=changed(nowhere.here.facts, **unset)))
    assert_says(ray.authentication(nowhere), "warn", "set nowhere")
    assert_says(ray.authentication(private()), "ok")
    trap = private(authentication={"mode": None, "token_file": "/home/u/.ray/auth_token"})
    assert_says(ray.authentication(trap), "warn", "auth_token exists", "export RAY_AUTH_MODE=token")
    refusal = replace(trap, refusal=ClusterError("--address x: refused. Fix: check it."))
    assert_says(ray.connection(refusal), "fail", "refused | Check it. A token exists here")


def test_a_head_that_the_network_can_reach_without_a_token_is_told(cluster):
    off = {"authentication": {"mode": "disabled"}}
    assert_says(ray.exposure(cluster()), "ok", "token")
    assert_says(ray.exposure(cluster(off)), "warn", "gcs_server 0.0.0.0:6379 on 10.0.0.1", "without a token")
    assert_says(ray.exposure(cluster(off | {"ray": {"open_ports": []}})), "ok", "loopback")


def test_a_token_that_others_can_read_fails(private):
    told = {"token_file": "/h/.ray/auth_token", "token_readers": "everybody"}
    assert_says(ray.token_file(private(authentication=told)), "fail", "everybody can read", "chmod 600")
    assert_says(ray.token_file(private(authentication=told | {"token_readers": ""})), "ok", "only you")


def test_workers_of_low_priority_and_many_threads_are_told(cluster):
    assert_says(ray.priority(cluster({"ray": {"niceness": 15}}, {})), "warn", "10.0.0.1: trials run at nice 15")
    assert_says(ray.priority(cluster()), "ok")
    assert_says(ray.threads(cluster({}, {"threads_variable": "16"})), "warn", "10.0.0.2: OMP_NUM_THREADS=16")
    assert_says(ray.threads(cluster({"threads_variable": "1"})), "ok")
    assert_says(
        ray.other_rays(cluster({"load": {"other_rays": ["1.2.3.4:6379 of eve"]}})), "warn", "1.2.3.4:6379 of eve"
    )
    assert_says(ray.other_rays(cluster()), "ok")


# Nodes.


def test_cpus_that_ray_invents_are_told_from_hyper_threads(cluster, private):
    assert_says(nodes.cpus(cluster()), "ok", "all nodes: Ray hands out 4 CPUs of 4 cores")
    assert_says(nodes.cpus(cluster({"num_cpus": 8})), "warn", "8 CPUs (hyper-threads) for 4 cores", "--num-cpus=4")
    granted = {"granted": 2, "granted_by": "SLURM_CPUS_ON_NODE"}
    assert_says(nodes.cpus(cluster({"cpus": granted}, {})), "fail", "2 were allocated here by SLURM_CPUS_ON_NODE")
    assert_says(nodes.cpus(private(4, cpus=granted)), "fail", "private Ray would hand out 4", "--cpu-bind")
    assert_says(nodes.cpus(cluster({"cpus": {"quota": 3.5}})), "fail", "3 were allocated here by the quota")
    assert_says(nodes.cpus(private(16)), "ok", "4 CPUs of 4 cores")


def test_two_raylets_on_one_machine_share_its_cores(cluster):
    same = {"host": {"boot_id": "one", "hostname": "n"}}
    assert_says(nodes.shared_machines(cluster()), "ok")
    assert_says(nodes.shared_machines(cluster(same, same)), "warn", "8 CPUs for 4 cores")
    half = [same | {"num_cpus": 2, "cpus": {"cores": cores}} for cores in (["0,4", "1,5"], ["2,6", "3,7"])]
    assert_says(nodes.shared_machines(cluster(*half)), "ok")


def test_unequal_hardware_is_told(cluster):
    assert_says(nodes.hardware(cluster()), "ok")
    other = {"host": {"cpu_model": "Another", "boot_id": "2"}}
    assert_says(nodes.hardware(cluster({}, other)), "warn", "Another on 10.0.0.2")


def test_memory_must_hold_the_runners(cluster, private):
    assert_says(nodes.memory(cluster()), "ok", "1.0 GB needed if every CPU gets a runner")
    assert_says(nodes.memory(cluster({"memory": {"available_mb": 1000}})), "warn", "End what holds")
    assert_says(nodes.memory(cluster({"num_cpus": 64})), "fail", "15.6 GB needed")
    wide = spec(parameters__num_env_runners=[1, 3], execution="real", resources__memory_per_env_runner_mb=3000)
    assert_says(nodes.memory(private(4, study=wide)), "ok", "9.5 GB needed for the largest trial")
    assert_says(nodes.memory(private(4, study=wide, memory={"total_mb": 10000, "available_mb": 9900})), "fail")


def test_clocks_are_judged_by_what_a_round_trip_proves(cluster):
    assert_says(nodes.clocks(cluster()), "ok", "within 0.001 s")
    assert_says(nodes.clocks(cluster({}, {"clock": Clock(-4.0, 0.002)})), "warn", "10.0.0.2 is 4.000 s", "behind")
    assert_says(nodes.clocks(cluster({"clock": Clock(90.0, 0.5)})), "fail", "90.000 s (give or take 0.500 s) ahead")
    assert_says(nodes.clocks(cluster({"clock": Clock(3.0, 2.5)})), "ok")


# Limits.


def test_shared_memory_the_temporary_folder_and_sockets(cluster, private):
    assert_says(limits.shared_memory(private()), "ok")
    assert_says(limits.shared_memory(private(shm={"free_mb": 60, "total_mb": 64})), "warn", "--shm-size")
    assert_says(limits.shared_memory(cluster({"ray": {"plasma_directory": "/tmp"}}, {})), "warn", "objects in /tmp")
    assert_says(limits.temporary(private()), "ok")
    assert_says(limits.temporary(private(temporary={"type": "nfs4"})), "fail", "sockets hang")
    assert_says(limits.temporary(private(temporary={"free_mb": 20})), "fail", "TMPDIR")
    assert_says(limits.temporary(private(temporary={"free_mb": 3000})), "warn", "95% full")
    assert_says(limits.socket_path(private()), "ok", "107 bytes")
    long = {"ray": {"socket": "/" + "x" * 120}}
    assert_says(limits.socket_path(cluster(long)), "fail", "121 bytes")


def test_no_private_ray_gets_a_socket_whose_path_is_too_long(private, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/very/long" * 12)
    assert_says(limits.socket_path(private()), "ok")


def test_room_for_threads(private):
    room = {"thread_room": 100_000, "thread_limit": "ulimit -u"}
    assert_says(limits.threads(private()), "ok", "no limit")
    assert_says(limits.threads(private(limits=room)), "ok", "100000 threads")
    assert_says(limits.threads(private(limits=room | {"thread_room": 200})), "warn", "ulimit -u")
    assert_says(limits.threads(private(limits=room | {"thread_room": 10})), "fail")


# Noise.


def test_noise_is_judged(cluster, private):
    for quiet in (noise.neighbours, noise.steal, noise.pressure, noise.frequency):
        assert_says(quiet(private()), "ok")
    busy = {"load": {"foreign_cpus": 1.9, "foreign": ["stress of eve 1.9"]}}
    assert_says(noise.neighbours(cluster({}, busy)), "warn", "10.0.0.2: other processes use 1.9 of 8", "stress of eve")
    assert_says(noise.steal(private(load={"steal": 0.12})), "warn", "12%")
    assert_says(noise.pressure(private(load={"pressure": None})), "warn", "psi=1")
    assert_says(noise.pressure(private(load={"pressure": 0.3})), "warn", "30%")
    slow = {"governors": ["powersave"], "driver": "acpi-cpufreq", "turbo": True}
    assert_says(noise.frequency(private(frequency=slow)), "warn", "powersave", "turbo is on")
    assert_says(noise.frequency(private(frequency=slow | {"driver": "intel_pstate"})), "ok")
    assert_says(noise.frequency(private(frequency=slow | {"governors": []})), "ok", "virtual machine")


# Packages.


def test_packages_must_be_the_same_everywhere(cluster, facts):
    versions, software = facts["software"]["versions"], facts["software"]
    assert_says(packages.versions(cluster()), "ok", f"{len(versions)} packages")
    torch = software | {"versions": versions | {"torch": "2.9.0", "zipp": "0.1"}}
    verdict = packages.versions(cluster({}, {"software": torch}))
    assert_says(verdict, "fail", f"10.0.0.2: torch 2.9.0 instead of {versions['torch']}, zipp 0.1")
    without = {name: version for name, version in versions.items() if name != "rich"}
    assert_says(packages.versions(cluster({"software": software | {"versions": without}})), "warn", "rich missing")
    assert_says(packages.project(cluster()), "ok", facts["software"]["source"])
    assert_says(packages.project(cluster({"software": software | {"source": "0" * 12}}, {})), "fail", "another version")
    assert_says(packages.project(cluster({"software": software | {"source": None}}, {})), "fail", "cannot be imported")
    assert_says(packages.environments(cluster()), "ok")
    assert_says(packages.environments(cluster({"software": software | {"prefix": "/x"}})), "warn", "/x on 10.0.0.1")


def test_versions_with_known_holes_fail(private, facts):
    assert_says(packages.holes(private()), "ok")
    versions = facts["software"]["versions"]
    for name, version in (("mlflow", "3.16.2"), ("ray", "2.51.0"), ("torch", "2.10.0"), ("orjson", "3.11.5")):
        old = facts["software"] | {"versions": versions | {name: version}}
        assert_says(packages.holes(private(software=old)), "fail", f"{name} {version}", "CVE", f"{name}>=")


def test_the_versions_without_holes_are_those_that_this_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    told = (ROOT / "study" / "cluster" / "README.md").read_text()
    for name, (floor, _) in packages.FLOORS.items():
        if name != "ray":  # pinned for what was tested, beyond its floor
            assert floor in {each.version for each in asked[name] if each.operator == ">="}, name
            assert f"{name} {floor}" in told
        assert Version(floor) <= min(Version(each.version.removesuffix(".*")) for each in asked[name])


def test_what_is_installed_is_compared_with_what_this_project_wants(private, tmp_path, monkeypatch):
    assert_says(packages.requirements(private()), "ok", "requirements are met")
    planted = tmp_path / "torch-1.0.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert_says(packages.requirements(private()), "fail", "torch 1.0 instead of")


def test_a_digest_changes_with_any_module_and_with_nothing_else(tmp_path):
    package = tmp_path / "study"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    before = digest_of([package])
    (package / "a.pyc").write_text("compiled")
    assert digest_of([package]) == before
    (package / "a.py").write_text("x = 2\n")
    changed_text = digest_of([package])
    (package / "a.py").rename(package / "b.py")
    assert len({before, changed_text, digest_of([package])}) == 3


# Storage.


def test_a_folder_is_tried_and_left_as_it_was(private, tmp_path):
    around = private(tmp=tmp_path / "a" / "studies")
    assert_says(storage.writable(around), "ok", f"{tmp_path} (where ")
    assert_says(storage.trusted(around), "ok")
    assert_says(storage.shared(around), "ok")
    assert_says(storage.free_space(around), "ok")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert_says(storage.writable(private(tmp=tmp_path / "file" / "studies")), "fail", "not a folder", "--out")


@pytest.mark.parametrize(
    ("above", "mode", "words"),
    [
        (0o755, 0o755, ["nobody else"]),
        (0o755, 0o777, ["everybody may write to", "chmod o-w", "/studies"]),
        (0o755, 0o1777, ["nobody else"]),
        (0o777, 0o755, ["everybody may write to", "chmod o-w", "/above"]),
        (0o1777, 0o755, ["nobody else"]),
        (0o755, 0o775, ["its group may write to", "chmod g-w", "/studies"]),
        (0o755, 0o1775, ["nobody else"]),
        (0o775, 0o755, ["nobody else"]),  # as a project's folder is
    ],
)
def test_who_may_replace_a_study_is_told_by_the_rule_of_a_resume(private, tmp_path, monkeypatch, above, mode, words):
    monkeypatch.setattr(trust, "_is_private", lambda gid: False)
    folder = tmp_path / "above" / "studies"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    folder.parent.chmod(above)
    for out in (folder, folder / "new"):
        assert_says(storage.trusted(private(tmp=out)), "ok" if len(words) == 1 else "warn", *words)
    study = folder / "new"
    study.mkdir(mode=0o700)
    if "chmod o-w" in words:
        with pytest.raises(RecordError, match="chmod o-w"):
            trust.check_own(study)
    else:
        trust.check_own(study)


def judge_as_nobody(around: Surroundings, answers: "multiprocessing.SimpleQueue[Any]") -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)  # root may write anywhere
    verdict = storage.writable(around)
    answers.put((verdict.level, verdict.found, verdict.fix))


@pytest.mark.parametrize(("mode", "level"), [(0o555, "fail"), (0o777, "ok")])
def test_a_folder_that_may_not_be_written_fails(private, open_folder, mode, level):
    folder = open_folder / "studies"
    folder.mkdir()
    folder.chmod(mode)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(target=judge_as_nobody, args=(private(tmp=folder), answers))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    verdict = Verdict(*answers.get())
    assert_says(verdict, level, *(["Permission denied", "--out"] if level == "fail" else []))


@pytest.fixture
def small_disk(tmp_path):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", tmp_path], capture_output=True)
    if done.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_disk_without_space_fails(private, small_disk):
    around = private(tmp=small_disk)
    assert_says(storage.free_space(around), "fail", "0.0 GB are free")
    assert_says(storage.writable(around), "fail", "No space left")
    assert list(small_disk.iterdir()) == []


def test_a_batch_job_wants_its_studies_where_its_next_node_finds_them(private, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert_says(storage.shared(private(tmp=tmp_path)), "warn", "requeued on another node")
    monkeypatch.setattr(storage, "filesystem_of", lambda path: "nfs4")
    assert_says(storage.shared(private(tmp=tmp_path)), "ok", "nfs4")


# MLflow.


def test_a_database_that_is_not_there_is_neither_missed_nor_made(private, tmp_path):
    around = private(uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert_says(FOUND_BY["address"](around), "ok", "made by the first study")
    assert tracking.api(around) is None
    assert_says(tracking.filesystem(around), "ok")
    assert list(tmp_path.iterdir()) == []


def test_an_sqlite_database_on_a_network_file_system_is_told(private, monkeypatch):
    monkeypatch.setattr(tracking, "filesystem_of", lambda path: "nfs4")
    assert_says(tracking.filesystem(private()), "warn", "SQLite database on nfs4", "PostgreSQL")


def test_a_server_that_is_away_fails_once(private):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        uri = f"http://127.0.0.1:{probe.getsockname()[1]}"
    around = private(uri=uri)
    assert tracking.api(around) is None
    assert tracking.server_version(around) is None
    findings = [doctor._guarded(check, around) for check in tracking.CHECKS]
    assert [verdict.level for verdict in findings if verdict] == ["fail"]
    assert_says(findings[0], "fail", "a server must answer", "mlflow server")


def test_versions_of_server_and_client_are_compared():
    assert_says(tracking.compare_versions("3.17.0", "3.17.2"), "ok")
    assert_says(tracking.compare_versions("3.16.9", "3.17.2"), "warn", "known holes", "3.17 or later")
    assert_says(tracking.compare_versions("4.0.0", "3.17.2"), "fail", "major")
    assert_says(tracking.compare_versions("<html>", "3.17.2"), "warn", "<html>")


# A space.


def test_the_largest_trial_of_a_space_must_fit(cluster, private):
    small = spec(parameters__num_env_runners=[1, 3], execution="real")
    assert_says(fit.plan(cluster(study=small)), "ok", "4 CPUs and", "(3 runners, real)", "measured at 1 and 3")
    assert_says(fit.plan(private(4, study=small)), "ok", "4 CPUs and")
    wide = spec(parameters__num_env_runners=[1, 30], execution="real")
    assert_says(FOUND_BY["largest trial"](private(31, study=wide)), "warn", "oversubscribed at 30 runners")
    findings = doctor._guarded(Check("space", "largest trial", fit.plan), cluster(study=wide))
    assert_says(findings, "fail", "30 runners need 31 CPUs", "List smaller scales")
    assert fit.plan(cluster()) is None


def test_the_environment_of_a_space_must_be_there_on_every_node(cluster):
    study = spec()
    there = cluster({"environment": ""}, {"environment": ""}, study=study)
    assert_says(fit.environment(there), "ok", "CartPole-v1 can be made")
    missing = cluster({"environment": ""}, {"environment": "needs 'ale_py'"}, study=study)
    assert_says(fit.environment(missing), "fail", "10.0.0.2: CartPole-v1 cannot be made: needs 'ale_py'")


# One line for all.


def test_many_nodes_make_one_line():
    verdicts = {f"n{index}": ok("quiet") for index in range(100)}
    assert folded(verdicts) == ok("all nodes: quiet")
    loud = {"n7": Verdict("warn", "loud", "End it."), "n8": Verdict("fail", "burning", "Run.")}
    told = folded(verdicts | loud)
    assert told == Verdict("fail", "n8: burning; n7: loud", "Run.")
    several = folded({f"n{index}": Verdict("warn", "loud", "End it.") for index in range(9)} | {"m": ok("quiet")})
    assert several == Verdict("warn", "n0, n1, n2, n3 and 5 more: loud", "End it.")
    every = folded({f"n{index}": ok(f"{index} GB") for index in range(9)})
    assert every == ok("n0: 0 GB; n1: 1 GB; n2: 2 GB; and 6 more nodes")
    assert folded({}) is None


def test_a_check_that_crashes_or_hangs_is_a_failure_and_not_the_end(private, monkeypatch):
    def crash(around: Surroundings) -> Verdict:
        raise RuntimeError("broken\npipe")

    verdict = doctor._guarded(Check("x", "y", crash), private())
    assert_says(verdict, "fail", "this check itself failed, RuntimeError: broken pipe")
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.05)
    verdict = doctor._guarded(Check("x", "y", lambda around: time.sleep(2)), private())
    assert_says(verdict, "fail", "no answer within 0 s")
    around = private()
    around = replace(around, here=replace(around.here, facts={}, faults={"memory": "OSError: gone"}))
    assert_says(nodes.memory(around), "fail", "cannot be read: OSError: gone")
    assert_says(nodes.cpus(around), "fail", "KeyError: 'cpus'")


def test_an_error_of_this_project_becomes_found_and_fix():
    assert refused(ClusterError("there: must be x,\n got y. Fix: do z.")) == Verdict(
        "fail", "there: must be x, got y", "Do z."
    )


def test_a_verdict_that_is_not_ok_says_what_to_do():
    with pytest.raises(ValueError, match="fix"):
        Verdict("warn", "something")


def test_without_a_cluster_this_machine_is_diagnosed(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(asking, "SAMPLE_S", 0.05)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    findings = doctor.diagnose(out=tmp_path / "studies", tracking_uri=uri, spec=spec())
    assert len({finding.name for finding in findings}) == len(findings)
    assert [finding for finding in findings if "this check itself failed" in finding.found] == []
    assert {"ray", "packages", "nodes", "limits", "noise", "storage", "mlflow", "space"} == {
        finding.theme for finding in findings
    }
    assert list(tmp_path.iterdir()) == []
    unreachable = doctor.diagnose(address="127.0.0.1:9", out=tmp_path, tracking_uri=uri)
    (connection,) = [finding for finding in unreachable if finding.name == "ray: connection"]
    assert connection.level == "fail"
    assert "127.0.0.1:9" in connection.found
    assert len(unreachable) >= len(findings) - 2, "this machine is looked at all the same"


FINDINGS = [
    Finding(theme="ray", check="versions", level="ok", found="Ray 2.60.0, Python 3.11.2", fix=""),
    Finding(theme="noise", check="neighbours", level="warn", found="other processes " + "x " * 60, fix="End them."),
    Finding(theme="limits", check="open files", level="fail", found="512 [bold]", fix="Raise it."),
]


@pytest.mark.parametrize("width", [80, 140])
def test_in_a_file_each_finding_is_one_line_and_in_a_terminal_nothing_is_cut(width):
    for terminal in (False, True):
        text = StringIO()
        console = Console(file=text, width=width, force_terminal=terminal, color_system=None)
        for finding in FINDINGS:
            print_finding(console, finding)
        print_summary(console, FINDINGS)
        lines = text.getvalue().splitlines()
        whole = " ".join(text.getvalue().split())
        for finding in FINDINGS:
            assert " ".join(finding.found.split()) in whole or terminal
            assert finding.name in whole
            assert finding.fix in whole
        assert whole.count("x") - whole.count("fix") >= 60
        assert whole.endswith("1 ok, 1 warn, 1 fail: a study would fail or lie here.")
        if terminal:
            assert max(len(line) for line in lines) <= width
        else:
            assert len(lines) == len(FINDINGS) + 2
    assert json.loads(to_json(FINDINGS))[2]["found"] == "512 [bold]"
