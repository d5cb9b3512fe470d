"""`python -m study doctor` as a person types it: faults planted on a machine, a live cluster and an MLflow server."""

import contextlib

import psutil
import pytest

from tests.e2e.clusters import Cluster
from tests.e2e.commands import run, study


def doctor(place, *words, before=()):
    """Run the doctor; return its exit code and what it says by each check: the worst level, and all that was found."""
    done = run([*before, *study("doctor", *words)], place, timeout=200, codes=(0, 2))
    assert "Traceback" not in done.stdout + done.stderr and "this check itself failed" not in done.stdout
    said = {}
    for line in done.stdout.splitlines()[:-2]:  # an empty line and the sum
        found, (check, _, text) = line[:4].strip(), line[6:].partition(": ")
        level, earlier = said.get(check, ("ok", ""))
        said[check] = max(level, found, key=("ok", "warn", "fail").index), f"{earlier}{text}\n"
    return done.returncode, said


def assert_says(findings, name, level, *words):
    got, text = findings[name]
    assert got == level, (name, got, text)
    for word in words:
        assert word in text


def test_a_healthy_machine_is_told_so_and_left_as_it_was(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    code, findings = doctor(place, before=["env", f"HOME={tmp_path}"])
    # Warnings depend on the machine of the test.
    assert {name: text for name, (level, text) in findings.items() if level == "fail"} == {}
    assert code == 0
    assert list(findings) == ["ray", "token", "packages", "CPUs", "memory", "other work", "storage", "mlflow"]
    for name in ("ray", "token", "packages"):
        assert_says(findings, name, "ok")
    assert_says(findings, "storage", "ok", f"{place} (where studies would be made)")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["work"]


def test_several_faults_of_one_machine_are_told_at_once_and_fail(tmp_path):
    (tmp_path / "studies").write_text("a file")
    code, findings = doctor(tmp_path, "--tracking-uri", "http://127.0.0.1:9", before=["env", "OMP_NUM_THREADS=16"])
    for name, level in (("CPUs", "warn"), ("storage", "fail"), ("mlflow", "fail")):
        assert_says(findings, name, level, "Fix: ")
    assert code == 2
    done = run(study("doctor", "--address", "127.0.0.1:10"), tmp_path, timeout=60, codes=(2,))
    assert (done.stdout, done.stderr[:27]) == ("", "--address 127.0.0.1:10: no ")


@pytest.mark.heavy
def test_what_is_wrong_with_one_node_of_a_cluster_is_told_with_its_name(tmp_path):
    cores = psutil.cpu_count(logical=False) or 1
    with contextlib.closing(Cluster(RAY_worker_niceness="0", OMP_NUM_THREADS="1")) as cluster:
        cluster.start_head(num_cpus=1)
        cluster.own |= {"RAY_worker_niceness": "7", "OMP_NUM_THREADS": "16"}
        cluster.add_node(cores + 3, "127.0.0.2")
        code, findings = doctor(tmp_path, "--address", cluster.address, before=cluster.settings)
    assert_says(findings, "token", "warn", "without a token")
    assert_says(findings, "packages", "ok")
    assert_says(findings, "CPUs", "warn", "127.0.0.2: OMP_NUM_THREADS=16", "127.0.0.2: trials run at nice 7")
    assert_says(findings, "CPUs", "warn", f"127.0.0.2: Ray hands out {cores + 3} CPUs")
    assert f"{cluster.address.rpartition(':')[0]}: OMP" not in findings["CPUs"][1]
    assert code == 0, findings
