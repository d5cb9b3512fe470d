"""The doctor's checks: each meets its fault and its absence, in surroundings that a test describes."""

import socket
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from study import doctor
from study.doctor import PROJECT, Finding, Node, Surroundings, judge, read_node
from study.machine.load import NodeLoad
from study.machine.shape import LOCAL, NodeShape

QUIET = NodeLoad(host="h", num_cores=4, seconds=1.0, foreign_cores=0.02, stolen_cores=0.0)
NODE = Node(
    shape=NodeShape(address=LOCAL, num_cpus=4, physical_cpus=4, memory_mb=16000),
    versions={PROJECT: "0123456789ab", "python": "3.11.2", "ray": "2.60.0", "torch": "2.13.0"},
    granted=None,
    available_mb=14000,
    shm_free_mb=7900,
    token_mode="token",
    threads=None,
    load=QUIET,
)
"""A healthy machine of four cores with a Ray."""


def changed(**changes: Any) -> Node:
    of_shape = {field.name: changes.pop(field.name) for field in fields(NodeShape) if field.name in changes}
    return msgspec.structs.replace(NODE, shape=replace(NODE.shape, **of_shape), **changes)


def private(out: Path = Path("studies"), uri: str = "sqlite:///x.db", **changes: Any):
    """Return the surroundings of a study without a cluster."""
    return Surroundings(here=changed(**changes), tracking_uri=uri, out=out)


def cluster(*each: dict[str, Any], here=None, **more: Any):
    """Return the surroundings on a cluster; each argument is what one node has of its own."""
    nodes = tuple(changed(**{"address": f"n{number}", **own}) for number, own in enumerate(each or ({}, {}), start=1))
    more = {"num_free_cpus": sum(node.shape.num_cpus for node in nodes)} | more
    mine = changed(load=None, **(here or {}))
    return Surroundings(here=mine, address="n1:6379", joined=nodes, **more)


def assert_says(name: str, around: Surroundings, level: str, *words: str) -> None:
    shown = [each for each in judge(around) if each.check == name]
    text = " | ".join(f"{each.level}: {each.found} {each.fix}" for each in shown)
    assert max((each.level for each in shown), key=("ok", "warn", "fail").index) == level, text
    assert all(word in text for word in words), text
    assert all(each.fix.endswith(".") for each in shown if each.level != "ok"), text


def other(package: str, version: str) -> dict[str, Any]:
    return {"versions": NODE.versions | {package: version}}


OPEN = {"token_mode": "disabled"}
GRANTED = {"granted": 2}


@pytest.mark.parametrize(
    ("name", "around", "level", "words"),
    [
        ("ray", private(), "ok", []),
        ("ray", cluster(), "ok", ["n1:6379", "2 nodes", "8 CPUs"]),
        ("ray", cluster(silent={"n3": "No module named 'study'"}), "fail", ["n3: No module", "Install this project"]),
        ("ray", cluster(num_free_cpus=3), "warn", ["5 of 8"]),
        ("token", cluster(OPEN, here=OPEN), "warn", ["all nodes: whoever reaches its ports"]),
        ("token", cluster(OPEN | {"address": "127.0.0.1"}, here=OPEN), "ok", []),
        ("token", cluster({}, OPEN), "warn", ["n2: RAY_AUTH_MODE is disabled"]),
        ("token", private(token_mode=None), "ok", []),
        ("packages", cluster(), "ok", []),
        ("packages", cluster({}, other(PROJECT, "0" * 12)), "fail", ["n2: this project 000000000000 instead of"]),
        ("packages", cluster({}, other("python", "3.11.1")), "fail", ["n2: python 3.11.1 instead of 3.11.2"]),
        ("packages", cluster({}, other("jax", "0.9")), "fail", ["n2: jax 0.9 instead of none"]),
        ("CPUs", cluster(), "ok", ["all nodes: ", "4 CPUs of 4 cores"]),
        ("CPUs", cluster({}, *([{"niceness": 15}] * 99)), "warn", ["n2, n3, n4, ", " …: trials run at nice 15"]),
        ("CPUs", cluster({"niceness": 15}, {}), "warn", ["n1: ", "nice 15", "RAY_worker_niceness"]),
        ("CPUs", cluster({}, {"threads": "16"}), "warn", ["n2: OMP_NUM_THREADS=16"]),
        ("CPUs", cluster({"num_cpus": 8}), "warn", ["8 CPUs for 4 cores", "--num-cpus=4"]),
        ("CPUs", cluster(GRANTED, {}), "fail", ["n1: ", "2 were allocated here by SLURM_CPUS_ON_NODE"]),
        ("CPUs", private(**GRANTED), "fail", ["private Ray would hand out 4", "--cpu-bind"]),
        ("memory", cluster(), "ok", ["1.0 GB needed if every CPU gets a runner"]),
        ("memory", cluster({"available_mb": 1000}), "warn", ["End what holds"]),
        ("memory", cluster({"num_cpus": 64}), "fail", ["15.6 GB needed"]),
        ("memory", private(shm_free_mb=60), "warn", ["--shm-size"]),
        ("other work", private(), "ok", ["quiet"]),
        (
            "other work",
            private(load=replace(QUIET, foreign_cores=2.6, largest="stress")),
            "warn",
            ["2.6 of 4", "stress"],
        ),
        ("other work", private(load=None), "warn", ["cannot be seen"]),
        ("other work", private(load=replace(QUIET, stolen_cores=0.4)), "warn", ["the hypervisor took 10%"]),
    ],
)
def test_a_check_meets_its_fault_and_its_absence(name, around, level, words):
    assert_says(name, around, level, *words)


def test_this_machine_says_the_version_of_the_project():
    assert {PROJECT, "python", "ray"} <= read_node(sample_s=0).versions.keys()


def test_a_folder_that_cannot_be_written_is_found(tmp_path):
    assert_says("storage", private(out=tmp_path / "a" / "studies"), "ok", f"{tmp_path} (where ")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert_says("storage", private(out=tmp_path / "file" / "studies"), "fail", "--out")


@pytest.mark.parametrize(("free_mb", "level"), [(99, "fail"), (1000, "warn"), (1024, "ok")])
def test_little_space_is_found(tmp_path, monkeypatch, free_mb, level):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free_mb * 2**20))
    assert_says("storage", private(out=tmp_path), level)


@pytest.mark.parametrize(("kind", "level"), [("ext4", "warn"), ("nfs4", "ok")])
def test_a_batch_job_wants_its_studies_where_its_next_node_finds_them(tmp_path, monkeypatch, kind, level):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(doctor, "file_system_of", lambda path: kind)
    assert_says("storage", private(out=tmp_path), level)


def test_mlflow_is_asked_as_the_start_of_a_study_asks(tmp_path, monkeypatch):
    around = private(uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert_says("mlflow", around, "ok", "made by the first study")
    assert list(tmp_path.iterdir()) == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert_says("mlflow", private(uri=uri), "fail", "Connection refused")
    monkeypatch.setattr(doctor, "file_system_of", lambda path: "nfs4")
    assert_says("mlflow", around, "warn", "SQLite database on nfs4", "PostgreSQL")


def test_a_check_that_crashes_is_a_finding_and_not_the_end(monkeypatch):
    def crash(around: Surroundings):
        yield Finding("warn", "seen before", "Look.")
        raise RuntimeError("broken\npipe")

    monkeypatch.setattr(doctor, "CHECKS", {"bad": crash, "good": doctor.CHECKS["ray"]})
    found = list(judge(private()))
    assert [(each.check, each.level) for each in found] == [("bad", "warn"), ("bad", "fail"), ("good", "ok")]
    assert "RuntimeError: broken pipe" in found[1].found
