"""Two snapshots of /proc: the difference by hand, and a real one beside a process that burns a known time."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from study.machine.host import machine_key
from study.machine.load import CpuTimes, LoadSnapshot, OwnProcesses, ProcessTimes, _study, load_between, snapshot
from study.trial import places

TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu(busy, *, passed=100.0, stolen=0.0, interrupts=0.0):
    return CpuTimes(idle_s=passed - busy - stolen - interrupts, stolen_s=stolen, interrupts_s=interrupts, all_s=passed)


def process(own, *, ours=True, parent=1, children=0.0, name="python"):
    return ProcessTimes(parent=parent, name=name, own_s=own, children_s=children, ours=ours)


def snapshots(cpus, before, after, *, seconds=100.0):
    """Return two snapshots of a machine whose CPUs did `cpus` in between."""
    ids = frozenset(range(len(cpus)))
    nothing = CpuTimes(idle_s=0, stolen_s=0, interrupts_s=0, all_s=0)
    about = {"host": "h", "machine": "h/1", "num_cores": len(cpus), "cpus": ids}
    first = LoadSnapshot(moment_s=5.0, times=nothing, processes=before, **about)
    whole = CpuTimes(*map(sum, zip(*cpus, strict=True)))
    return first, replace(first, moment_s=5.0 + seconds, times=whole, processes=after)


def load(*arguments, **words):
    return load_between(*snapshots(*arguments, **words))


def test_what_is_not_ours_is_foreign():
    before = {(1, 0.0): process(7.0), (2, 0.0): process(50.0, ours=False, name="stress")}
    after = {(1, 0.0): process(67.0), (2, 0.0): process(80.0, ours=False, name="stress")}
    found = load([cpu(60.0), cpu(40.0)], before, after)
    # 100 busy seconds of which 60 are ours, less a tick for our process and for each CPU; half of it can be seen.
    assert found.foreign_cores == pytest.approx((40.0 - 3 * TICK) / 100)
    assert (found.host, found.num_cores, found.seconds, found.largest) == ("h", 2, 100.0, "stress")


def test_time_that_no_process_here_used_is_foreign_unless_it_was_stolen_or_of_interrupts():
    before, after = {(1, 0.0): process(0.0)}, {(1, 0.0): process(10.0)}
    hidden = load([cpu(50.0)], before, after)
    assert (hidden.foreign_cores, hidden.largest) == (pytest.approx(0.4, abs=0.001), "")
    found = load([cpu(10.0, stolen=20.0, interrupts=5.0)], before, after)
    assert (found.foreign_cores, found.stolen_cores) == (0.0, pytest.approx(0.2))
    assert load([cpu(9.0)], before, after).foreign_cores == 0.0  # clocks that do not agree


def test_a_process_that_began_in_between_counts_whole_and_one_whose_number_was_used_again_is_another():
    before, after = {(1, 0.0): process(90.0)}, {(1, 0.0): process(90.0), (9, 3.0): process(30.0, children=10.0)}
    assert load([cpu(40.0)], before, after).foreign_cores == 0.0
    again = {(1, 0.0): process(90.0), (9, 3.0): process(30.0)}
    assert load([cpu(30.0)], {**before, (9, 1.0): process(500.0)}, again).foreign_cores == 0.0


def test_a_child_that_ended_brings_its_time_to_its_parent_once():
    # The child had used 20 s at the first snapshot and 50 s at its end: 30 s of the interval.
    before = {(1, 0.0): process(5.0), (2, 0.0): process(20.0, parent=1)}
    after = {(1, 0.0): process(15.0, children=50.0)}
    assert load([cpu(40.0)], before, after).foreign_cores == 0.0
    assert load([cpu(60.0)], before, after).foreign_cores == pytest.approx(0.2, abs=0.001)
    unseen = {(1, 0.0): process(15.0)}  # takes nothing from its parent
    assert load([cpu(10.0)], before, unseen).foreign_cores == 0.0


def test_a_whole_family_that_ended_brings_its_time_once():
    before = {(1, 0.0): process(5.0), (2, 0.0): process(20.0, parent=1), (3, 0.0): process(7.0, parent=2)}
    after = {(1, 0.0): process(5.0, children=20.0 + 7.0 + 10.0)}
    assert load([cpu(40.0)], before, after).foreign_cores == pytest.approx(0.3, abs=0.001)


@pytest.mark.parametrize("passed", [0.0, 70.0, 130.0])
def test_clocks_that_are_not_those_of_the_cores_say_nothing(passed):
    assert load([CpuTimes(idle_s=passed / 2, stolen_s=0, interrupts_s=0, all_s=passed)], {}, {}) is None


def test_no_snapshot_no_load():
    first, last = snapshots([cpu(1.0)], {}, {})
    assert load_between(None, last) is None
    assert load_between(first, None) is None
    assert load_between(first, replace(last, cpus=frozenset())) is None  # a CPU was taken away
    assert load_between(last, first) is None


def info(parent, name, *words):
    return {"ppid": parent, "name": name, "cmdline": list(words)}


SESSION = "session_2026-01-01_00-00-00_000000_77"
MACHINE = {
    1: info(0, "systemd", "/sbin/init"),
    10: info(1, "python", "python", "run_study.py"),
    11: info(10, "python", "python", "-m", "study.mirrors.process"),
    20: info(1, "gcs_server", "gcs_server", f"--session-name={SESSION}"),
    21: info(1, "raylet", "raylet", f"--session_dir=/tmp/ray/{SESSION}"),
    22: info(21, "python", "python", "agent.py", f"--session-dir=/tmp/ray/{SESSION}"),
    30: info(21, "ray::StudyTrial", "ray::StudyTrial.train()"),
    31: info(21, "ray::BatchedEnv", "ray::BatchedEnvRunner.apply()"),
    32: info(31, "simulator", "./simulator"),
    33: info(21, "ray::StudyTrial", "ray::StudyTrial.train()"),
    34: info(33, "simulator", "./simulator"),
    35: info(21, "ray::IDLE", "ray::IDLE"),
    40: info(1, "raylet", "raylet", "--session_dir=/tmp/ray/session_of_somebody_else"),
    41: info(40, "ray::Other", "ray::Other"),
    50: info(1, "make", "make", "-j"),
    51: info(50, "cc1", "cc1"),
    52: info(2, "kworker/0:1"),
}


def ours(**changes):
    base = OwnProcesses(session=SESSION, driver=("here", 10), trial={"here": (30, 31), "there": (50,)})
    return _study(MACHINE, replace(base, **changes), "here")


def test_the_study_is_its_driver_its_ray_and_what_they_started():
    assert ours() == {10, 11, 20, 21, 22, 30, 31, 32, 33, 34, 35}
    assert ours(session="") == {10, 11, 30, 31, 32}  # without a Ray only what was named
    assert ours() - ours(driver=("there", 10)) == ours() - ours(driver=None) == {10, 11}
    assert ours() - ours(alone=True) == {33, 34}  # of a trial that is to be alone


@pytest.mark.parametrize(
    ("machines", "read_by"),
    [
        pytest.param(("a/1", "a/1", "a/1"), [], id="several nodes of Ray on one machine"),
        pytest.param(("a/1", "b/2", "b/2"), [101], id="machines by different names"),
        pytest.param(("a/1", "a/2", "a/3"), [101, 102], id="machines of one name"),
    ],
)
def test_each_machine_of_a_trial_is_read_once_whatever_its_name(monkeypatch, machines, read_by):
    asked = {}

    def actor_of(place):
        return SimpleNamespace(apply=SimpleNamespace(remote=lambda _, ours, last: asked.update({place.pid: ours})))

    context = SimpleNamespace(get_session_name=lambda: SESSION)
    monkeypatch.setattr(places.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(places.ray, "get", lambda answers, timeout: answers)
    everywhere = [
        places.Place(
            process="runner" if number else "main",
            number=number,
            runners=(),
            node=f"10.0.0.{number}",
            host=machine.partition("/")[0],
            cpu_model="some CPU",
            machine=machine,
            pid=100 + number,
            num_cpus=1,
        )
        for number, machine in enumerate(machines)
    ]
    places.NodeWatch(everywhere, actor_of, driver=None, alone=False).begin()
    assert sorted(asked) == read_by
    for ours in asked.values():
        assert {pid: machine for machine, pids in ours.trial.items() for pid in pids} == dict(
            zip((100, 101, 102), machines, strict=True)
        )


def burn(seconds):
    """Start a process that uses so much CPU time."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass\ntime.sleep(60)"
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_real_process_is_foreign_or_ours_by_whose_it_is():
    nobody = OwnProcesses(session="no such session", driver=None, trial={})
    first = snapshot(nobody)
    burning = burn(1.1)
    try:
        deadline, process = time.monotonic() + 60, psutil.Process(burning.pid)
        while process.cpu_times().user + process.cpu_times().system < 1.0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        last = snapshot(replace(nobody, trial={machine_key(): (burning.pid,)}), last=True)
    finally:
        burning.kill()
        burning.wait()
    assert {key[0] for key, each in last.processes.items() if each.ours} == {burning.pid}
    strangers = {key: each._replace(ours=False) for key, each in last.processes.items()}
    ours, foreign = load_between(first, last), load_between(first, replace(last, processes=strangers))
    assert foreign.num_cores >= 1
    assert foreign.foreign_cores * foreign.seconds > 1.0  # others may have worked too
    assert (foreign.foreign_cores - ours.foreign_cores) * foreign.seconds == pytest.approx(1.1, abs=0.1)
