"""Foreign load: two snapshots of /proc by hand, and a real one beside a process that burns a known time.

What it makes of a trial's times is in `test_planning.py`.
"""

import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from study.machine.host import machine_key
from study.machine.load import (
    CpuTimes,
    LoadSnapshot,
    ProcessTimes,
    _study,
    load_between,
    snapshot,
)
from tests.waiting import until

TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu(busy, *, stolen=0.0, interrupts=0.0):
    return CpuTimes(idle_s=100.0 - busy - stolen - interrupts, stolen_s=stolen, interrupts_s=interrupts, all_s=100.0)


def process(own, *, ours=True, parent=1, children=0.0, name="python"):
    return ProcessTimes(parent=parent, name=name, own_s=own, children_s=children, ours=ours)


def snapshots(cpus, before, after):
    """Return two snapshots of a machine whose CPUs did `cpus` in the 100 s between."""
    about = {"machine": "h/1", "num_cores": len(cpus), "cpus": frozenset(range(len(cpus)))}
    first = LoadSnapshot(moment_s=5.0, times=CpuTimes(0, 0, 0, 0), processes=before, **about)
    return first, replace(first, moment_s=105.0, times=CpuTimes(*map(sum, zip(*cpus, strict=True))), processes=after)


def load(*arguments):
    return load_between(*snapshots(*arguments))


def test_what_is_not_ours_is_foreign():
    before = {(1, 0.0): process(7.0), (2, 0.0): process(50.0, ours=False, name="stress")}
    after = {(1, 0.0): process(67.0), (2, 0.0): process(80.0, ours=False, name="stress")}
    found = load([cpu(60.0), cpu(40.0)], before, after)
    # 100 busy seconds of which 60 are ours, less a tick for our process and for each CPU; half of it can be seen.
    assert found.foreign_cores == pytest.approx((40.0 - 3 * TICK) / 100)
    assert (found.host, found.num_cores, found.seconds, found.largest) == ("h", 2, 100.0, "stress")
    hidden = load([cpu(50.0)], {(1, 0.0): process(0.0)}, {(1, 0.0): process(10.0)})
    assert (hidden.foreign_cores, hidden.largest) == (pytest.approx(0.4, abs=0.001), "")
    stolen = load([cpu(10.0, stolen=20.0, interrupts=5.0)], {(1, 0.0): process(0.0)}, {(1, 0.0): process(10.0)})
    assert (stolen.foreign_cores, stolen.stolen_cores) == (0.0, pytest.approx(0.2))


FAMILY = {(1, 0.0): process(5.0), (2, 0.0): process(20.0), (3, 0.0): process(7.0, parent=2)}


@pytest.mark.parametrize(
    ("busy", "before", "after", "foreign"),
    [
        pytest.param(9, {}, {(1, 0.0): process(10.0)}, 0, id="clocks that do not agree"),
        pytest.param(40, {}, {(9, 3.0): process(30.0, children=10.0)}, 0, id="one that began in between"),
        pytest.param(30, {(9, 1.0): process(500.0)}, {(9, 3.0): process(30.0)}, 0, id="a number used again"),
        # A child had used 20 s at the first snapshot and 50 s at its end: 30 s of the interval.
        pytest.param(60, {(1, 0.0): process(5.0), (2, 0.0): process(20.0)}, {(1, 0.0): process(15.0, children=50.0)},
                     0.2, id="a child that ended"),
        pytest.param(10, {(1, 0.0): process(5.0), (2, 0.0): process(20.0)}, {(1, 0.0): process(15.0)}, 0, id="unseen"),
        pytest.param(40, FAMILY, {(1, 0.0): process(5.0, children=37.0)}, 0.3, id="a whole family that ended"),
    ],
)  # fmt: skip
def test_time_of_ours_counts_once_whatever_began_and_ended_in_between(busy, before, after, foreign):
    assert load([cpu(busy)], before, after).foreign_cores == pytest.approx(foreign, abs=0.001)


def test_no_snapshot_or_clocks_that_are_not_those_of_the_cores_say_nothing():
    first, last = snapshots([cpu(1.0)], {}, {})
    assert load_between(None, last) is load_between(first, None) is load_between(last, first) is None
    assert load_between(first, replace(last, cpus=frozenset())) is None  # a CPU was taken away
    for passed in (0.0, 70.0, 130.0):
        assert load([CpuTimes(idle_s=passed / 2, stolen_s=0, interrupts_s=0, all_s=passed)], {}, {}) is None


SESSION = "session_2026-01-01_00-00-00_000000_77"
MACHINE = {
    pid: {"ppid": parent, "name": words[0], "cmdline": words}
    for pid, parent, *words in (
        (1, 0, "/sbin/init"),
        (10, 1, "python", "run_study.py"),
        (11, 10, "python", "-m", "study.mirrors.process"),
        (20, 1, "gcs_server", f"--session-name={SESSION}"),
        (21, 1, "raylet", f"--session_dir=/tmp/ray/{SESSION}"),
        (30, 21, "ray::StudyTrial.train()"),
        (31, 21, "ray::BatchedEnvRunner.apply()"),
        (32, 31, "./simulator"),
        (33, 21, "ray::StudyTrial.train()"),
        (40, 1, "raylet", "--session_dir=/tmp/ray/session_of_somebody_else"),
        (41, 40, "ray::Other"),
        (50, 1, "make", "-j"),
        (52, 2, "kworker/0:1"),
    )
}


def test_the_study_is_its_driver_its_ray_and_what_they_started():
    assert _study(MACHINE, SESSION, (10, 30, 31)) == {10, 11, 20, 21, 30, 31, 32, 33}
    assert _study(MACHINE, "", (10, 30, 31)) == {10, 11, 30, 31, 32}  # without a Ray only what was named


def test_a_real_process_is_foreign_or_ours_by_whose_it_is():
    first = snapshot("no such session", ())
    code = "import time\nwhile time.process_time() < 1.1: pass\ntime.sleep(60)"
    burning = psutil.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    try:
        until(lambda: sum(burning.cpu_times()[:2]) >= 1.0)
        elsewhere = ("another machine", os.getpid())
        last = snapshot("no such session", [(machine_key(), burning.pid), elsewhere], last=True)
    finally:
        burning.kill()
        burning.wait()
    assert {key[0] for key, each in last.processes.items() if each.ours} == {burning.pid}
    strangers = {key: each._replace(ours=False) for key, each in last.processes.items()}
    ours, foreign = load_between(first, last), load_between(first, replace(last, processes=strangers))
    assert foreign.num_cores >= 1
    assert foreign.foreign_cores * foreign.seconds > 1.0  # others may have worked too
    assert (foreign.foreign_cores - ours.foreign_cores) * foreign.seconds == pytest.approx(1.1, abs=0.1)
