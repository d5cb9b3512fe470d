"""The doctor's checks: each meets its fault and its absence, in surroundings that a test describes."""

import contextlib
import os
import socket
import sqlite3
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from study.cli.doctor import print_result, print_summary
from study.doctor import checks, storage
from study.doctor.checks import DoctorCheck
from study.doctor.results import (
    CheckResult,
    JoinedCluster,
    NodeReport,
    Surroundings,
    fail,
    failed,
    merged,
    ok,
    warn,
)
from study.errors import ClusterError
from study.hosts.mounts import Mount
from study.hosts.probe import NodeFacts, read_software
from study.planning.shape import LOCAL
from tests.spaces import spec

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {f"{check.theme}: {check.name}": check for check in checks.CHECKS}
FACTS: dict[str, Any] = {
    "boot_id": "boot",
    "cpu_model": "A CPU",
    "software": {
        "python": "3.11.2",
        "versions": {"ray": "2.60.0", "torch": "2.13.0", "rich": "14.0"},
        "source": "0123456789ab",
        "source_folder": "/project/study",
    },
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
    "open_files": [65536, 65536],
    "token": {"mode": "token", "token_file": None, "is_private": True},
    "threads_variable": None,
    "niceness": 0,
    "ray": {
        "plasma_directory": "/dev/shm",
        "open_ports": ["gcs_server 0.0.0.0:6379"],
    },
    "load": {"seconds": 1.0, "foreign_cores": 0.02, "stolen_cores": 0.0, "largest": ""},
}
"""What a healthy machine of four cores with a Ray says."""


def changed(**changes: Any) -> Any:
    """Return the facts with some changed: a dictionary's keys one by one, anything else as a whole."""
    return FACTS | {
        name: FACTS[name] | change if isinstance(change, dict) and FACTS[name] else change
        for name, change in changes.items()
    }


def private(num_cpus: int = 4, study=None, out: Path = Path("studies"), uri: str = "sqlite:///x.db", **changes: Any):
    """Return the surroundings of a study without a cluster."""
    here = NodeReport(address=LOCAL, facts=changed(**{"ray": None} | changes), num_cpus=num_cpus)
    return Surroundings(here=here, tracking_uri=uri, out=out, spec=study)


def cluster(*each: dict[str, Any], study=None, **more: Any):
    """Return the surroundings on a cluster; each argument is what one node has of its own."""
    reports = []
    for number, own in enumerate(each or ({}, {}), start=1):
        facts = {name: value for name, value in own.items() if name in NodeFacts.__annotations__}
        others = {name: value for name, value in own.items() if name not in facts}
        facts.setdefault("boot_id", f"boot {number}")
        reports.append(NodeReport(address=f"n{number}", facts=changed(**facts), **{"num_cpus": 4} | others))
    total = sum(report.num_cpus for report in reports)
    joined = JoinedCluster(address="n1:6379", nodes=tuple(reports), **{"num_free_cpus": total} | more)
    here = NodeReport(address=LOCAL, facts=changed(load=None, ray=None), num_cpus=4)
    return Surroundings(here=here, tracking_uri="sqlite:///x.db", cluster=joined, spec=study)


def assert_says(name: str, around: Surroundings, level: str | None, *words: str) -> None:
    result = CHECKS[name].run(around)
    assert (None if result is None else result.level) == level, result
    for word in words:
        assert word in f"{result.found} | {result.fix}", result
    if result is not None and result.level != "ok":
        assert result.fix[0].isupper() and result.fix.endswith("."), result


SAME = {"boot_id": "one"}
OPEN = {"token": {"mode": "disabled"}}
GRANTED = {"granted": 2, "granted_by": "SLURM_CPUS_ON_NODE"}
SMALL = spec(parameters__num_env_runners=[1, 3], execution="real")
WIDE = spec(parameters__num_env_runners=[1, 30], execution="real")
HEAVY = spec(parameters__num_env_runners=[1, 3], execution="real", resources__memory_per_env_runner_mb=3000)


def software(**changes: Any) -> dict[str, Any]:
    return {"software": changes}


def versions(**changes: str) -> dict[str, Any]:
    return software(versions=FACTS["software"]["versions"] | changes)


@pytest.mark.parametrize(
    ("name", "around", "level", "words"),
    [
        ("ray: connection", private(), "ok", []),
        ("ray: connection", cluster(), "ok", ["n1:6379", "2 nodes"]),
        ("ray: nodes", cluster(), "ok", ["2 nodes", "8 CPUs"]),
        ("ray: nodes", private(), None, []),
        ("ray: nodes", cluster(dead=("n9",)), "warn", ["n9"]),
        ("ray: nodes", cluster(silent={"n3": "no answer"}), "fail", ["n3: no answer"]),
        ("ray: nodes", cluster(num_free_cpus=3), "warn", ["5 of 8"]),
        ("ray: token", private(), "ok", []),
        ("ray: token", private(token={"token_file": "/h/t", "is_private": False}), "fail", ["chmod 600 /h/t"]),
        ("ray: token", private(token={"token_file": "/h/t"}), "ok", []),
        ("ray: token", cluster({}, OPEN), "warn", ["n2: RAY_AUTH_MODE is disabled"]),
        ("ray: workers", cluster(), "ok", []),
        ("ray: workers", cluster({"niceness": 15}, {}), "warn", ["n1: ", "nice 15: every other process goes"]),
        ("ray: workers", private(niceness=15), "warn", ["without `nice`"]),
        ("ray: workers", cluster({}, {"threads_variable": "16"}), "warn", ["n2: ", "OMP_NUM_THREADS=16"]),
        ("packages: same as the driver", private(), None, []),
        ("packages: same as the driver", cluster(), "ok", ["3 packages"]),
        ("packages: same as the driver", cluster(software(source=None), {}), "fail", ["n1: ", "cannot be imported"]),
        ("packages: same as the driver", cluster(software(source="0" * 12), {}), "fail", ["n1: ", "0" * 12]),
        ("packages: same as the driver", cluster({}, software(python="3.11.1")), "fail", ["n2: Python 3.11.1"]),
        ("packages: same as the driver", cluster({}, versions(torch="2.9.0")), "fail", ["n2: torch 2.9.0 instead of"]),
        ("packages: same as the driver", cluster({}, versions(zipp="1")), "warn", ["n2: zipp 1 instead of none"]),
        ("nodes: CPUs", cluster(), "ok", ["all nodes: ", "4 CPUs of 4 cores"]),
        ("nodes: CPUs", cluster({"num_cpus": 8}), "warn", ["8 CPUs (hyper-threads) for 4 cores", "--num-cpus=4"]),
        (
            "nodes: CPUs",
            cluster({"cpus": GRANTED}, {}),
            "fail",
            ["n1: ", "2 were allocated here by SLURM_CPUS_ON_NODE"],
        ),
        ("nodes: CPUs", cluster({"cpus": {"quota": 3.5}}), "fail", ["3 were allocated here by the quota"]),
        ("nodes: CPUs", cluster({"cpus": {"allowed": 2}}), "fail", ["2 were allocated here by the affinity"]),
        ("nodes: CPUs", private(cpus=GRANTED), "fail", ["private Ray would hand out 4", "--cpu-bind"]),
        ("nodes: CPUs", private(16), "ok", ["4 CPUs of 4 cores"]),
        ("nodes: machines", private(), None, []),
        ("nodes: machines", cluster(), "ok", ["A CPU"]),
        ("nodes: machines", cluster(SAME, SAME), "warn", ["n1, n2 are one machine", "8 CPUs for 4 cores"]),
        (
            "nodes: machines",
            cluster(*(SAME | {"num_cpus": 2, "cpus": {"cores": each}} for each in (["0", "1"], ["2", "3"]))),
            "ok",
            [],
        ),
        ("nodes: machines", cluster({}, {"cpu_model": "B", "boot_id": "2"}), "warn", ["B on n2"]),
        ("nodes: memory", cluster(), "ok", ["1.0 GB needed if every CPU gets a runner"]),
        ("nodes: memory", cluster({"memory": {"available_mb": 1000}}), "warn", ["End what holds"]),
        ("nodes: memory", cluster({"num_cpus": 64}), "fail", ["15.6 GB needed"]),
        ("nodes: memory", private(study=HEAVY), "ok", ["9.7 GB needed for the largest trial"]),
        ("nodes: memory", private(study=HEAVY, memory={"total_mb": 10000, "available_mb": 9900}), "fail", []),
        ("nodes: open files", private(), "ok", []),
        ("nodes: open files", private(open_files=[512, 512]), "fail", ["ulimit -n"]),
        ("nodes: open files", private(open_files=[1024, 65536]), "ok", []),  # Ray raises the soft limit itself
        ("nodes: open files", cluster({"open_files": [1024, 65536]}), "warn", ["1024 open files"]),
        ("nodes: shared memory", private(), "ok", []),
        ("nodes: shared memory", private(shm={"free_mb": 60, "total_mb": 64}), "warn", ["--shm-size"]),
        ("nodes: shared memory", private(shm={"free_mb": 60, "total_mb": 64_000}), "warn", ["--shm-size"]),
        ("nodes: shared memory", cluster({"ray": {"plasma_directory": "/tmp"}}, {}), "warn", ["n1: ", "in /tmp"]),
        ("nodes: temporary folder", private(), "ok", []),
        ("nodes: temporary folder", private(temporary={"type": "nfs4"}), "fail", ["sockets hang"]),
        ("nodes: temporary folder", private(temporary={"free_mb": 20}), "fail", ["TMPDIR"]),
        ("nodes: temporary folder", private(temporary={"free_mb": 3000}), "warn", ["95% full"]),
        ("nodes: other work", private(load=None), None, []),
        ("nodes: other work", private(), "ok", []),
        ("nodes: other work", cluster({}, {"load": {"foreign_cores": 1.9, "largest": "x"}}), "warn", ["n2: ", "by x)"]),
        ("nodes: other work", private(load={"stolen_cores": 0.48}), "warn", ["hypervisor took 12%"]),
        ("nodes: other work", private(load={"foreign_cores": None}), "warn", ["/proc/stat"]),
        ("space: largest trial", cluster(), None, []),
        ("space: largest trial", cluster(study=SMALL), "ok", ["4 CPUs", "(3 runners, real)", "measured at 1 and 3"]),
        ("space: largest trial", private(study=SMALL), "ok", []),
        ("space: largest trial", private(31, study=WIDE), "warn", ["oversubscribed at 30 runners"]),
        ("space: largest trial", cluster(study=WIDE), "fail", ["30 runners need 31 CPUs"]),
        ("space: environment", cluster({"environment": ""}, study=SMALL), "ok", ["CartPole-v1"]),
        ("space: environment", cluster({"environment": "needs 'x'"}, study=SMALL), "fail", ["n1: ", "needs 'x'"]),
    ],
)
def test_what_is_wrong_is_found_and_what_is_well_is_not(name, around, level, words):
    assert_says(name, around, level, *words)


def everywhere(**changes: Any) -> Surroundings:
    """Return the surroundings on a cluster whose nodes and driver are the same."""
    around = cluster(changes, changes)
    here = replace(around.here, facts=around.here.facts | {"token": changed(**changes)["token"]})
    return replace(around, here=here)


def test_a_ray_that_the_network_can_reach_without_a_token_is_named():
    assert_says("ray: token", everywhere(), "ok", "needs the token")
    assert_says("ray: token", everywhere(**OPEN), "warn", "gcs_server 0.0.0.0:6379", "without a token")
    assert_says("ray: token", everywhere(**OPEN, ray={"open_ports": []}), "ok", "loopback")


def test_a_refusal_keeps_its_parts_and_names_a_token_that_is_there():
    error = ClusterError(where="--address x", rule="must let us in", got="no", fix="Check it.")
    assert failed(error) == fail("--address x: must let us in, got no", "Check it.")
    around = replace(private(token={"mode": None, "token_file": "/h/t"}), refusal=error)
    assert_says("ray: connection", around, "fail", "Check it. A token exists here")


def test_what_is_installed_is_compared_with_what_this_project_requires():
    installed = read_software()["versions"]
    assert_says("packages: requirements", private(software={"versions": installed}), "ok")
    older = {"versions": installed | {"torch": "1.0"}}
    assert_says("packages: requirements", private(software=older), "fail", "torch 1.0 instead of")
    del installed["jinja2"]
    assert_says("packages: requirements", private(software={"versions": installed}), "fail", "jinja2 is missing")


# Storage.


def test_a_folder_is_tried_and_left_as_it_was(tmp_path):
    around = private(out=tmp_path / "a" / "studies")
    assert_says("storage: folder", around, "ok", f"{tmp_path} (where ")
    assert_says("storage: free space", around, "ok")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert_says("storage: folder", private(out=tmp_path / "file" / "studies"), "fail", "--out")


def test_a_folder_that_cannot_be_written_or_locked_fails(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(storage.tempfile, "TemporaryDirectory", refuse)
        assert_says("storage: folder", private(out=tmp_path), "fail", "Permission denied", "--out")
    monkeypatch.setattr(storage.fcntl, "flock", lambda *_: None)
    assert_says("storage: folder", private(out=tmp_path), "fail", "locks do not lock there")


def test_little_space_is_found(tmp_path, monkeypatch):
    for free_mb, inodes, level, word in (
        (50, 9, "fail", "Free some"),
        (500, 9, "warn", "--out"),
        (5000, 9, "ok", ""),
        (5000, 0, "fail", "inodes"),
    ):
        status = os.statvfs_result((2**20, 2**20, 10**6, free_mb, free_mb, 100, inodes, inodes, 0, 255))
        monkeypatch.setattr(storage.os, "statvfs", lambda path, status=status: status)
        assert_says("storage: free space", private(out=tmp_path), level, word)


def test_a_batch_job_wants_its_studies_where_its_next_node_finds_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert_says("storage: folder", private(out=tmp_path), "warn", "requeued on another node")
    monkeypatch.setattr(storage, "mount_of", lambda path: Mount("nfs4"))
    assert_says("storage: folder", private(out=tmp_path), "ok")
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for kind, level in (("ext4", "ok"), ("overlay", "warn")):  # a claim, and the container's own
        monkeypatch.setattr(storage, "mount_of", lambda path, kind=kind: Mount(kind))
        assert_says("storage: folder", private(out=tmp_path), level)


# MLflow.


def test_a_database_that_is_not_there_is_neither_missed_nor_made(tmp_path):
    around = private(uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert_says("mlflow: answers", around, "ok", "made by the first study")
    assert_says("mlflow: file system", around, "ok")
    assert list(tmp_path.iterdir()) == []


def test_a_database_is_looked_at_and_not_changed(tmp_path, empty_database):
    file = tmp_path / "mlflow.db"
    file.write_bytes(empty_database)
    around = private(uri=f"sqlite:///{file}")
    assert_says("mlflow: answers", around, "ok")
    assert file.read_bytes() == empty_database
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("update alembic_version set version_num = 'cafe'")
    assert_says("mlflow: answers", around, "fail", "schema cafe", "mlflow db upgrade")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("create table cats (name)")
    assert_says("mlflow: answers", private(uri=f"sqlite:///{tmp_path}/other.db"), "fail", "not MLflow's", "cats")


def test_an_sqlite_database_on_a_network_file_system_is_named(monkeypatch):
    monkeypatch.setattr(storage, "mount_of", lambda path: Mount("nfs4"))
    assert_says("mlflow: file system", private(), "warn", "SQLite database on nfs4", "PostgreSQL")
    assert_says("mlflow: file system", private(uri="http://x:1"), None)


def test_a_server_that_is_away_fails_once():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        uri = f"http://127.0.0.1:{probe.getsockname()[1]}"
    results = [CHECKS[name].run(private(uri=uri)) for name in ("mlflow: answers", "mlflow: file system")]
    assert [result.level for result in results if result] == ["fail"]


# One line for all.


def test_many_nodes_make_one_line():
    quiet = {f"n{index}": ok("quiet") for index in range(100)}
    assert merged(quiet) == ok("all nodes: quiet")
    loud = {"n7": warn("loud", "End it."), "n8": fail("burning", "Run.")}
    assert merged(quiet | loud) == fail("n8: burning; n7: loud", "Run.")
    several = {f"n{index}": warn("loud", "End it.") for index in range(9)} | {"m": ok("quiet")}
    assert merged(several) == warn("n0, n1, n2, n3 and 5 more: loud", "End it.")
    every = {f"n{index}": ok(f"{index} GB") for index in range(9)}
    assert merged(every) == ok("n0: 0 GB; n1: 1 GB; n2: 2 GB; and 6 more nodes")
    assert merged({LOCAL: ok("quiet")}) == ok("quiet")
    assert merged({}) is None


def test_a_check_that_crashes_or_hangs_is_a_result_and_not_the_end(monkeypatch):
    def crash(around: Surroundings) -> CheckResult:
        raise RuntimeError("broken\npipe")

    result = DoctorCheck("x", "y", crash).run(private())
    assert (result.level, result.name) == ("fail", "x: y")
    assert "RuntimeError: broken pipe" in result.found
    monkeypatch.setattr(checks, "TIMEOUT_S", 0.05)
    result = DoctorCheck("x", "y", lambda around: time.sleep(2)).run(private())
    assert (result.level, "no answer" in result.found) == ("fail", True)
    around = private()
    around = replace(around, here=replace(around.here, facts={}, faults={"memory": "OSError: gone"}))
    assert_says("nodes: memory", around, "warn", "cannot be read: OSError: gone")
    assert_says("nodes: CPUs", around, "fail", "KeyError: 'cpus'")


RESULTS = [
    CheckResult("ok", "Ray 2.60.0, Python 3.11.2", "", "ray", "versions"),
    CheckResult("warn", "other processes " + "x " * 60, "End them.", "nodes", "other work"),
    CheckResult("fail", "512 [bold]", "Raise it.", "nodes", "open files"),
]


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("terminal", [False, True])
def test_in_a_file_each_result_is_one_line_and_in_a_terminal_nothing_is_cut(width, terminal):
    text = StringIO()
    console = Console(file=text, width=width, force_terminal=terminal, color_system=None)
    for result in RESULTS:
        print_result(console, result)
    print_summary(console, RESULTS)
    lines, whole = text.getvalue().splitlines(), " ".join(text.getvalue().split())
    for result in RESULTS:
        assert " ".join(result.found.split()) in whole or terminal
        assert result.name in whole
        assert result.fix in whole
    assert "1 ok, 1 warn, 1 fail" in lines[-1]
    if terminal:
        assert max(len(line) for line in lines) <= width
    else:
        assert len(lines) == len(RESULTS) + 2
