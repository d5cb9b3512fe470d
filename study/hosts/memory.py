"""Memory of the machine, of the control groups around this process, and of the process. Standard library and psutil."""

import contextlib
import gc
import resource
from pathlib import Path
from typing import TypedDict

import psutil

from study.hosts.control_groups import control_groups, read_number, read_text

_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage, of version 2 and of version 1."""
_STATUS = Path("/proc/self/status")
_KIB_PER_MB = 1024 / 1e6


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
