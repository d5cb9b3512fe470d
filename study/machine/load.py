"""What a node's cores do besides the study: two snapshots of /proc and their difference; CPU pressure. Linux, psutil.

What all cores did comes from the system's own clocks, what the study did from those of its processes. The rest is
foreign, also where the programs of others are hidden or live for milliseconds. Only the CPUs that this process may use
are looked at: what other jobs do on the rest of the machine does not disturb the study.
"""

import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from study.machine.host import cores_of, machine_key, read_text, usable_cpus

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of the system's clocks."""
_STEADY = 0.2
"""Clocks whose times do not add up to the time that passed, within this share, are not those of the cores: a container
shows its own, or none."""
_PRESSURE = Path("/proc/pressure/cpu")

Key = tuple[int, float]
"""Number and start of a process, since numbers are used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node's cores did besides the study, over the timed part of a trial, whose processes may use them."""

    host: str
    num_cores: int
    seconds: float
    foreign_cores: float
    """Mean cores that processes of others kept busy; a lower bound, by the resolution of the system's clocks."""
    stolen_cores: float
    """Mean cores that the hypervisor withheld."""
    largest: str = ""
    """Name of the programs of others that used most; empty where the system does not show them."""
    machine: str = ""
    """The machine, by `machine_key`; empty in records before 0.12.1."""


class ProcessTimes(NamedTuple):
    """CPU time of a process up to a moment."""

    parent: int
    name: str
    own_s: float
    children_s: float
    """Of its children that have ended, and of theirs."""
    ours: bool


class CpuTimes(NamedTuple):
    """What the CPUs that this process may use did up to a moment, together, in seconds."""

    idle_s: float
    stolen_s: float
    """Withheld by the hypervisor while there was work."""
    interrupts_s: float
    all_s: float
    """All that was counted, idleness included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """What /proc of a node showed at one moment, by the host's monotonic clock."""

    machine: str
    """By `machine_key`."""
    moment_s: float
    num_cores: int
    cpus: frozenset[int]
    times: CpuTimes
    processes: Mapping[Key, ProcessTimes]


def snapshot(session: str, own: Collection[tuple[str, int]], *, last: bool = False) -> LoadSnapshot | None:
    """Return what this node's processes and CPUs have done so far; None where the system does not tell.

    Of the two snapshots around an interval, the first one reads the CPUs last and the last one reads them first: what
    the study does while its processes are read then never counts as foreign.

    Args:
        session: Name of the Ray session, which Ray's own processes have on their command lines; empty without a Ray.
        own: Machine, by `machine_key`, and number of each process of the trial and of the driver. Their children (the
            mirror, a private Ray) are the study's too.
        last: Whether this is the second one.
    """
    machine = machine_key()
    try:
        early = time.monotonic(), _times()
        processes = _processes(session, [pid for place, pid in own if place == machine])
        moment_s, times = early if last else (time.monotonic(), _times())
    except (OSError, ValueError, KeyError):
        return None  # not Linux, a container without /proc, or one that does not show a CPU of this process
    return LoadSnapshot(
        machine=machine,
        moment_s=moment_s,
        num_cores=len(cores_of(usable_cpus())),
        cpus=frozenset(usable_cpus()),
        times=times,
        processes=processes,
    )


def load_between(first: LoadSnapshot | None, last: LoadSnapshot | None) -> NodeLoad | None:
    """Return what a node's cores did besides the study between two snapshots; None when that cannot be said."""
    if first is None or last is None or first.cpus != last.cpus:
        return None
    seconds = last.moment_s - first.moment_s
    possible_s = seconds * len(first.cpus)
    idle_s, stolen_s, interrupts_s, all_s = (now - before for now, before in zip(last.times, first.times, strict=True))
    if seconds <= 0 or abs(all_s - possible_s) > _STEADY * possible_s:
        return None
    # By what it was not: the kernel counts idleness exactly, and busy time in most configurations by samples.
    busy_s = possible_s - stolen_s - idle_s - interrupts_s
    used = [(last.processes[key], cpu_s) for key, cpu_s in _used_s(first, last).items() if cpu_s > 0]
    ours_s = [cpu_s for process, cpu_s in used if process.ours]
    unsure_s = _TICK_S * (len(ours_s) + len(first.cpus))
    others: defaultdict[str, float] = defaultdict(float)
    for process, cpu_s in used:
        if not process.ours:
            others[process.name] += cpu_s
    return NodeLoad(
        host=last.machine.partition("/")[0],
        num_cores=last.num_cores,
        seconds=seconds,
        foreign_cores=max(busy_s - math.fsum(ours_s) - unsure_s, 0.0) / seconds,
        stolen_cores=max(stolen_s, 0.0) / seconds,
        largest=max(others, key=others.__getitem__, default=""),
        machine=last.machine,
    )


def _used_s(first: LoadSnapshot, last: LoadSnapshot) -> dict[Key, float]:
    """Return the CPU seconds between two snapshots of every process that is still there, and of its ended children.

    A child that was there at the first snapshot and has ended since brings its earlier time, and that of its own
    children, to the nearest process above it that is still there.
    """
    earlier: defaultdict[int, float] = defaultdict(float)
    ended = {key[0]: first.processes[key] for key in first.processes.keys() - last.processes.keys()}
    for process in ended.values():
        above = process.parent
        for _ in ended:  # numbers of processes could, by reuse, form a ring
            if above not in ended:
                break
            above = ended[above].parent
        earlier[above] += process.own_s + process.children_s
    used = {}
    for key, now in last.processes.items():
        if (before := first.processes.get(key)) is None:
            used[key] = now.own_s + now.children_s  # it began in between
        else:
            children_s = now.children_s - before.children_s - earlier[key[0]]
            used[key] = max(now.own_s - before.own_s, 0.0) + max(children_s, 0.0)
    return used


def _times() -> CpuTimes:
    """Read the clocks of the CPUs that this process may use; psutil numbers those that are online, the kernel all."""
    names = re.findall(r"^cpu(\d+) ", Path("/proc/stat").read_text(), flags=re.MULTILINE)
    each = dict(zip(map(int, names), psutil.cpu_times(percpu=True), strict=True))
    mine = [each[cpu] for cpu in usable_cpus()]
    idle_s, stolen_s = sum(cpu.idle + cpu.iowait for cpu in mine), sum(cpu.steal for cpu in mine)
    interrupts_s = sum(cpu.irq + cpu.softirq for cpu in mine)
    # Time of guests is contained in that of users.
    return CpuTimes(idle_s, stolen_s, interrupts_s, sum(math.fsum(cpu[:8]) for cpu in mine))


def _processes(session: str, own: Iterable[int]) -> dict[Key, ProcessTimes]:
    """Read the clocks of all processes that the system shows, and tell ours from others."""
    wanted = ["pid", "ppid", "name", "cmdline", "cpu_times", "create_time"]
    seen = {each.pid: each.info for each in psutil.process_iter(wanted) if each.info["cpu_times"] is not None}
    ours = _study(seen, session, own)
    return {
        (pid, info["create_time"]): ProcessTimes(
            parent=info["ppid"] or 0,
            name=info["name"] or "",
            own_s=(times := info["cpu_times"]).user + times.system,
            children_s=times.children_user + times.children_system,
            ours=pid in ours,
        )
        for pid, info in seen.items()
    }


def _study(seen: Mapping[int, Mapping[str, Any]], session: str, own: Iterable[int]) -> set[int]:
    """Return the processes of the study: Ray's own, the driver, the trial, and what they have started."""
    of_ray = [pid for pid, info in seen.items() if session and session in " ".join(info["cmdline"] or ())]
    waiting = [*of_ray, *own]
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, info in seen.items():
        children[info["ppid"] or 0].append(pid)
    found: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children[pid]
    return found


def read_pressure_s() -> float | None:
    """Return the seconds in which some task of this machine ever waited for a CPU; None without Linux PSI.

    The kernel's line is `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, in microseconds. There is none where pressure
    stall information is compiled out or switched off.
    """
    for line in read_text(_PRESSURE).splitlines():
        if line.startswith("some "):
            return int(line.rpartition("total=")[2]) / 1e6
    return None
