"""What this machine really has: cores, memory, GPUs, as far as this process may use them. Imports no engine.

A joined Ray runs this on every node of its cluster.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from study.hosts.control_groups import cpu_quota, memory_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What processes here can really have."""

    num_cores: int
    memory_mb: int
    num_gpus: int
    niceness: int = 0
    """Nice value of the process that looked: a worker of Ray's, or the driver of a private one."""


def machine() -> Machine:
    """Look at this machine.

    The cores are the least of the distinct cores behind this process's affinity and the quotas of its control groups:
    Ray itself looks at neither affinity nor cpusets, and counts hyper-threads as CPUs.
    """
    cores = cores_behind(os.sched_getaffinity(0))
    if (quota := cpu_quota()) is not None:
        cores = min(cores, max(int(quota), 1))
    memory = min([psutil.virtual_memory().total, *(limit for _, limit, _ in memory_limits())])
    return Machine(
        num_cores=cores, memory_mb=memory // 2**20, num_gpus=_count_gpus(), niceness=os.getpriority(os.PRIO_PROCESS, 0)
    )


def cores_behind(cpus: Iterable[int]) -> int:
    """Return the distinct cores behind CPUs, of which hyper-threads share one."""
    return len({_siblings(cpu) for cpu in cpus})


def _siblings(cpu: int, root: Path = Path("/sys/devices/system/cpu")) -> str:
    """Return the hyper-threads of the core that `cpu` belongs to; `cpu` alone where the system does not tell."""
    try:
        return (root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return the NVIDIA GPUs that this process may use, without importing torch; 0 where there is no driver."""
    try:
        count = len(list(driver.iterdir()))
    except OSError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([device for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]))
