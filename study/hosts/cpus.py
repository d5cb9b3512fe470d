"""The CPUs that processes may use here: cores, hyper-threads, quota, model, clock frequency, GPUs. Standard library."""

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from study.hosts.control_groups import cpu_quota, read_text

CPU_FOLDER = Path("/sys/devices/system/cpu")


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


class FrequencyFacts(TypedDict):
    """What decides the CPUs' clock; no governors in most virtual machines, where the host decides."""

    governors: list[str]
    driver: str
    turbo: bool | None
    """None: the system does not tell."""


def read_frequency() -> FrequencyFacts:
    """Return what decides the CPUs' clock."""
    folders = [CPU_FOLDER / f"cpu{cpu}" / "cpufreq" for cpu in usable_cpus()]
    governors = {text for folder in folders if (text := read_text(folder / "scaling_governor"))}
    turbo = None
    if no_turbo := read_text(CPU_FOLDER / "intel_pstate" / "no_turbo"):
        turbo = no_turbo == "0"
    elif boost := read_text(CPU_FOLDER / "cpufreq" / "boost"):
        turbo = boost == "1"
    driver = read_text(folders[0] / "scaling_driver")
    return FrequencyFacts(governors=sorted(governors), driver=driver, turbo=turbo)
