"""One machine: its identity, the CPUs, GPUs and memory that a study can use there, what control groups leave of them.

Standard library and psutil. A joined Ray runs this on every node of its cluster. Nothing is kept from one call to the
next: these functions travel by value, and would take this machine's answer along.
"""

import contextlib
import gc
import os
import platform
import re
import resource
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import psutil

CPU_FOLDER = Path("/sys/devices/system/cpu")
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage, of version 2 and of version 1."""
_STATUS = Path("/proc/self/status")
_KIB_PER_MB = 1024 / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What processes here can really have."""

    num_cores: int
    memory_mb: int
    num_gpus: int
    niceness: int = 0
    """Nice value of the process that looked: a worker of Ray's, or the driver of a private one."""


def machine() -> Machine:
    """Return what this process may use of its machine: cores (`num_cores`), memory in MB, GPUs."""
    return Machine(
        num_cores=num_cores(),
        memory_mb=read_memory()["total_mb"],
        num_gpus=count_gpus(),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
    )


# --- identity --------------------------------------------------------------------------------------------------------


def boot_id() -> str:
    """Return the identity of the running kernel, new at every start; containers have that of their host."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def machine_key() -> str:
    """Return what tells this machine from all others: its host name, which another one may have too, and its boot."""
    return f"{os.uname().nodename}/{boot_id()}"


def machine_id() -> str:
    """Return the identity of the installed system, which the machines of a cluster may share; empty when unknown."""
    return read_text(Path("/etc/machine-id"))


# --- control groups --------------------------------------------------------------------------------------------------


def control_groups(
    controller: str, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[Path]:
    """Yield the folders of the control groups around this process that `controller` limits, innermost first.

    Inside a container the process may be named as the host sees it: then only the root of what is mounted is there.
    """
    for line in read_text(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        top = next((place for place in (root / "unified", root) if place.is_dir()), root) if unified else None
        top = top or next((place for place in (root / controllers, root / controller) if place.is_dir()), root)
        inner = top / group.lstrip("/")
        while True:
            if inner.is_dir():
                yield inner
            if inner in (top, inner.parent):
                break
            inner = inner.parent


def cpu_quota() -> float | None:
    """Return the CPUs of the tightest quota around this process; None where there is none."""
    quotas = []
    for group in control_groups("cpu"):
        words = read_text(group / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def read_number(file: Path) -> int | None:
    """Return the number in a file; None when there is no such file or it says `max`."""
    try:
        return int(read_text(file))
    except ValueError:
        return None


def read_text(file: Path) -> str:
    """Return the text of a file without blanks around it; empty when it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


# --- CPUs and GPUs ---------------------------------------------------------------------------------------------------


def usable_cpus() -> list[int]:
    """Return the logical CPUs of this process's affinity, which the cpusets of control groups are part of."""
    return sorted(os.sched_getaffinity(0))


def cores_of(cpus: Iterable[int], root: Path = CPU_FOLDER) -> list[str]:
    """Return the distinct cores of logical CPUs, each by the list of its hyper-threads: `["0,4", "1,5"]`.

    Where the system does not tell, a CPU counts as a core of its own.
    """
    return sorted({read_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus})


def num_cores() -> int:
    """Return the cores that a study can use here, at least 1.

    They are the least of the distinct cores of this process's affinity and the quotas of its control groups: Ray itself
    looks at neither affinity nor version 2 cpusets, and counts hyper-threads as CPUs.
    """
    cores, quota = len(cores_of(usable_cpus())), cpu_quota()
    return cores if quota is None else min(cores, max(int(quota), 1))


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor, or the architecture where the system does not name it."""
    found = re.search(r"^model name\s*:\s*(.*)$", read_text(file), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return the NVIDIA GPUs that this process may use, without importing torch; 0 where there is no driver."""
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([device for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]))


# --- memory ----------------------------------------------------------------------------------------------------------


class MemoryFacts(TypedDict):
    """Memory of the machine or of the tightest control group, in MB of 2**20 bytes."""

    total_mb: int
    available_mb: int


def read_memory() -> MemoryFacts:
    """Return the memory that processes here may use."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for group in control_groups("memory"):
        for limit_file, usage_file in _FILES:
            limit, usage = read_number(group / limit_file), read_number(group / usage_file)
            # Version 1 gives a number beyond all machines where there is no limit.
            if limit is not None and usage is not None and limit < machine.total:
                total, available = min(total, limit), min(available, max(limit - usage + _file_cache(group), 0))
    return MemoryFacts(total_mb=total // 2**20, available_mb=available // 2**20)


def _file_cache(group: Path) -> int:
    """Return the bytes of cached files in a control group, which the kernel frees when it needs them."""
    values = dict(line.split()[:2] for line in read_text(group / "memory.stat").splitlines())
    return int(values.get("inactive_file", 0))


def forget_trial() -> None:
    """Free what a process's last trial left, and forget its peak; between two trials, where nothing is timed.

    What stays is mostly modules. They are left out of all later searches for garbage, which would go through RLlib,
    torch and JAX in the midst of a timed phase, 0.3 s each.
    """
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
    forget_peak_rss()


def forget_peak_rss() -> None:
    """Let the largest resident size begin anew, for a process that serves another trial."""
    with contextlib.suppress(OSError):  # not Linux: then it stays that of all trials so far
        Path("/proc/self/clear_refs").write_text("5")


def read_peak_rss_mb() -> float:
    """Return the largest resident size of this process so far, in MB (10**6 bytes)."""
    for line in read_text(_STATUS).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB_PER_MB
    # Second choice: on Linux a process inherits this one from the process that started it.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB_PER_MB
