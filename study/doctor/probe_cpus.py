"""Which CPUs processes may use here, by the kernel and by the batch system, and what sets their clock. For `probe`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from study.cluster.machine import machine

CPU_FOLDER = Path("/sys/devices/system/cpu")


def read_cpus(names: Sequence[str]) -> dict[str, Any]:
    """Return the CPUs that processes may use here.

    Ray itself looks neither at the affinity nor at a version 2 cpuset, and takes hyper-threads for CPUs.

    Args:
        names: What this host is called in the batch system's files.
    """
    allowed = sorted(os.sched_getaffinity(0))
    granted, granted_by = read_grant(names, os.environ)
    cores = sorted({_siblings(cpu) for cpu in allowed})
    return {
        "machine": os.cpu_count() or len(allowed),
        "allowed": len(allowed),
        "quota": read_quota(),
        "cores": cores,
        "num_cores": machine().num_cores,
        "granted": granted,
        "granted_by": granted_by,
    }


def _siblings(cpu: int) -> str:
    try:
        return (CPU_FOLDER / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def read_grant(names: Sequence[str], variables: "os._Environ[str] | dict[str, str]") -> tuple[int | None, str]:
    """Return the CPUs that a batch system gave this node, and the variable that says so; None outside of a job.

    SLURM counts CPUs per node or per task, OAR writes a line per core into a file, PBS counts them in NCPUS.
    """
    if "SLURM_JOB_ID" in variables:
        for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"):
            if variables.get(name, "").isdigit():
                return int(variables[name]), name
    if file := variables.get("OAR_NODEFILE"):
        try:
            lines = [line.strip() for line in Path(file).read_text().splitlines()]
        except OSError:  # it lies on the job's first node only
            return None, ""
        here = [line for line in lines if line in names or line.partition(".")[0] in names]
        return (len(here), "OAR_NODEFILE") if here else (None, "")
    if "PBS_JOBID" in variables and variables.get("NCPUS", "").isdigit():
        return int(variables["NCPUS"]), "NCPUS"
    return None, ""


def read_quota() -> float | None:
    """Return the CPUs of the tightest quota of the control groups (version 1 or 2) around this process."""
    quotas = []
    for group in control_groups("cpu"):
        words = _text(group / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def control_groups(
    controller: str, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[Path]:
    """Yield the folders of the control groups around this process that rule over `controller`, innermost first.

    Inside a container the process may be named as the host sees it: then only the root of what is mounted is there.
    """
    for line in _text(membership).splitlines():
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


def read_number(file: Path) -> int | None:
    """Return the number in a file; None when there is no such file or it says `max`."""
    try:
        return int(_text(file))
    except ValueError:
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def read_frequency() -> dict[str, Any]:
    """Return what decides the CPUs' clock; empty in most virtual machines, where the host decides."""
    folders = [CPU_FOLDER / f"cpu{cpu}" / "cpufreq" for cpu in sorted(os.sched_getaffinity(0))]
    governors = {text for folder in folders if (text := _text(folder / "scaling_governor"))}
    turbo = None
    if no_turbo := _text(CPU_FOLDER / "intel_pstate" / "no_turbo"):
        turbo = no_turbo == "0"
    elif boost := _text(CPU_FOLDER / "cpufreq" / "boost"):
        turbo = boost == "1"
    return {"governors": sorted(governors), "driver": _text(folders[0] / "scaling_driver"), "turbo": turbo}
