"""Which CPUs processes may use here, by the kernel and by the batch system, and what sets their clock. For `probe`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.hosts.control_groups import cpu_quota, read_text
from study.hosts.machine import machine

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
        "quota": cpu_quota(),
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


def read_frequency() -> dict[str, Any]:
    """Return what decides the CPUs' clock; empty in most virtual machines, where the host decides."""
    folders = [CPU_FOLDER / f"cpu{cpu}" / "cpufreq" for cpu in sorted(os.sched_getaffinity(0))]
    governors = {text for folder in folders if (text := read_text(folder / "scaling_governor"))}
    turbo = None
    if no_turbo := read_text(CPU_FOLDER / "intel_pstate" / "no_turbo"):
        turbo = no_turbo == "0"
    elif boost := read_text(CPU_FOLDER / "cpufreq" / "boost"):
        turbo = boost == "1"
    return {"governors": sorted(governors), "driver": read_text(folders[0] / "scaling_driver"), "turbo": turbo}
