"""Whose processes run here: this Ray's, other Rays', and foreign ones that take CPU time. For `probe`."""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

STAT = Path("/proc/stat")
NAMED = 3
"""Busy foreign processes that are named."""
WORTH_NAMING = 0.05
"""CPUs that such a process uses at least."""
_LOOPBACK = ("127.", "::1", "::ffff:127.")


@dataclass(frozen=True)
class OwnRay:
    """The raylet that this process is a worker of."""

    pid: int
    options: Mapping[str, str]
    """Its command line: `temp_dir`, `session_dir`, `gcs_address`, …"""


def own_ray() -> OwnRay | None:
    """Return the raylet whose worker this process is; None outside of Ray."""
    for parent in psutil.Process().parents():
        if parent.name() == "raylet":
            return OwnRay(parent.pid, options_of(parent.cmdline()))
    return None


def options_of(words: Iterable[str]) -> dict[str, str]:
    """Return the options of a command line, `--temp-dir=/tmp` as `temp_dir`."""
    pairs = (word.removeprefix("--").partition("=") for word in words if word.startswith("--"))
    return {name.replace("-", "_"): value for name, equals, value in pairs if equals}


def read_ray() -> dict[str, Any] | None:
    """Return what the Ray that this task runs in looks like from inside; None outside of Ray."""
    ray = own_ray()
    if ray is None:
        return None
    return {
        "address": ray.options["gcs_address"],
        "temp_dir": ray.options["temp_dir"],
        "socket": ray.options["raylet_socket_name"],
        "plasma_directory": ray.options.get("plasma_directory", ""),
        "object_store_mb": int(ray.options.get("object_store_memory", "0")) // 2**20,
        "niceness": psutil.Process().nice(),
        "open_ports": _open_ports(ray.options["session_dir"]),
    }


def _open_ports(session: str) -> list[str]:
    """Return where the servers of a session listen beyond the loopback interface, as far as we may look."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet" or any(session in word for word in process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                found |= {
                    f"{process.info['name']} {_bracketed(at.laddr.ip)}:{at.laddr.port}"
                    for at in process.net_connections(kind="tcp")
                    if at.status == psutil.CONN_LISTEN and not at.laddr.ip.startswith(_LOOPBACK)
                }
    return sorted(found)


def _bracketed(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip


def read_load(sample_s: float, mine: Sequence[int] = (), *, named: int = NAMED) -> dict[str, Any]:
    """Return what happens on this machine's CPUs for a while beside this Ray and those who ask.

    Args:
        sample_s: Seconds to watch.
        mine: Processes that belong to whoever asks, with their children.
        named: Busy foreign processes to name.
    """
    cpus = os.sched_getaffinity(0)
    ray = own_ray()
    began, before = cpu_times(STAT.read_text(), cpus), _cpu_seconds()
    clock = time.monotonic()
    time.sleep(sample_s)
    wall = time.monotonic() - clock
    ended, after = cpu_times(STAT.read_text(), cpus), _cpu_seconds()
    used = {pid: max(now - before.get(pid, 0.0), 0.0) / wall for pid, now in after.items()}
    own = _family(os.getpid(), *mine) | (_session(ray) if ray is not None else set())
    busy, stolen, passed = (end - begin for begin, end in zip(began, ended, strict=True))
    foreign = busy / wall - sum(cpu for pid, cpu in used.items() if pid in own)
    ranked = sorted((cpu, pid) for pid, cpu in used.items() if pid not in own and cpu >= WORTH_NAMING)
    return {
        "sample_s": wall,
        "foreign_cpus": min(max(foreign, 0.0), float(len(cpus))),
        "foreign": [name for cpu, pid in ranked[: -named - 1 : -1] if (name := _named(pid, cpu))],
        "steal": stolen / passed if passed > 0 else 0.0,
        "pressure": read_pressure(),
        "other_rays": other_rays(ray.options["gcs_address"] if ray is not None else ""),
    }


def cpu_times(stat: str, cpus: Iterable[int]) -> tuple[float, float, float]:
    """Return seconds that some CPUs were busy, were stolen by the hypervisor, and passed in all.

    Args:
        stat: Text of /proc/stat, whose columns are user, nice, system, idle, iowait, irq, softirq, steal in ticks.
        cpus: Numbers of the CPUs.
    """
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = stolen = passed = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name in wanted:
            user, nice, system, idle, iowait, irq, softirq, steal = (int(column) for column in columns[:8])
            busy += user + nice + system + irq + softirq
            stolen += steal
            passed += user + nice + system + idle + iowait + irq + softirq + steal
    ticks = os.sysconf("SC_CLK_TCK")
    return busy / ticks, stolen / ticks, passed / ticks


def _cpu_seconds() -> dict[int, float]:
    found = {}
    for process in psutil.process_iter(["cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            found[process.pid] = times.user + times.system
    return found


def _family(*pids: int) -> set[int]:
    """Return processes with all that they started."""
    found = set(pids)
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return found


def _session(ray: OwnRay) -> set[int]:
    """Return the processes of one Ray on this machine: its servers, and what they started."""
    session = ray.options["session_dir"]
    servers = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(session in word for word in process.info["cmdline"] or [])
    ]
    return _family(ray.pid, *servers)


def _named(pid: int, cpus: float) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{process.name()} of {process.username()} {cpus:.1f}"
    return ""


def other_rays(address: str) -> list[str]:
    """Return every Ray here but the one whose head is at `address`, with its user."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline", "username", "status"]):
        if process.info["name"] == "raylet" and process.info["status"] != psutil.STATUS_ZOMBIE:
            other = options_of(process.info["cmdline"] or []).get("gcs_address", "?")
            if other != address:
                found.add(f"{other} of {process.info['username']}")
    return sorted(found)


def read_pressure(file: Path = Path("/proc/pressure/cpu")) -> float | None:
    """Return the share of the last ten seconds in which some task waited for a CPU; None when the kernel is silent."""
    try:
        some = re.search(r"^some avg10=([\d.]+)", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return float(some[1]) / 100 if some else None
