"""The batch job that this process belongs to, as the variables of SLURM, OAR, PBS and Kubernetes say.

Sources: sbatch(1); OAR 2.5 "environment variables"; PBS Professional 2022.1 User's Guide.
"""

import os
import time
from collections.abc import Mapping

import msgspec


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """A batch job, seen from inside."""

    scheduler: str
    """One of `SCHEDULERS`."""
    id: str
    """The scheduler's identifier; the pod's name in Kubernetes."""
    cluster: str = ""
    """SLURM's name of the cluster; empty elsewhere."""
    restarts: int = 0
    """How often SLURM has started this job again."""
    node_file: str = os.devnull
    """OAR and PBS: a file with one line for each CPU, the name of its host; it is on the job's first node only."""
    node_list: str = ""
    """SLURM: the hosts in its short form, `n[1-3,7]`."""
    cpus_per_node: str = ""
    """SLURM: CPUs of each host in its short form, `36(x2),18`."""
    ends_at: float | None = None
    """When the scheduler will end it, seconds since the epoch; None where the variables do not say."""


SCHEDULERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "slurm": (
        "SLURM_JOB_ID",
        {
            "cluster": "SLURM_CLUSTER_NAME",
            "restarts": "SLURM_RESTART_COUNT",
            "node_list": "SLURM_JOB_NODELIST",
            "cpus_per_node": "SLURM_JOB_CPUS_PER_NODE",
            "ends_at": "SLURM_JOB_END_TIME",
        },
    ),
    "oar": ("OAR_JOB_ID", {"node_file": "OAR_NODEFILE"}),
    "pbs": ("PBS_JOBID", {"node_file": "PBS_NODEFILE"}),
    "kubernetes": ("KUBERNETES_SERVICE_HOST", {"id": "HOSTNAME"}),
}
"""Scheduler -> the variable by which a process knows that it belongs to a job, and those of the job's other fields."""


def current_job(variables: Mapping[str, str] = os.environ) -> BatchJob | None:
    """Return the job that this process belongs to; None outside of one."""
    found = (job_of(scheduler, variables) for scheduler in SCHEDULERS)
    return next((job for job in found if job is not None), None)


def job_of(scheduler: str, variables: Mapping[str, str] = os.environ) -> BatchJob | None:
    """Return the job of one scheduler that this process belongs to; None outside of one."""
    name, names = SCHEDULERS[scheduler]
    if not variables.get(name):
        return None
    given = {field: variables.get(each, "") for field, each in names.items()}
    numbers = ("restarts", "ends_at")
    fields = {field: text for field, text in given.items() if text and (text.isdigit() or field not in numbers)}
    job: BatchJob = msgspec.convert({"scheduler": scheduler, "id": variables[name], **fields}, BatchJob, strict=False)
    if scheduler == "oar" and (walltime_s := variables.get("OAR_JOB_WALLTIME_SECONDS", "")).isdigit():
        # Counted from now: the script begins a few seconds after the job.
        return msgspec.structs.replace(job, ends_at=time.time() + int(walltime_s))
    return job


def granted_cpus(variables: Mapping[str, str] = os.environ) -> tuple[int, str] | None:
    """Return the CPUs that SLURM or PBS gave this node, and the variable that says so.

    OAR confines a job to its CPUs, which its processes see.
    """
    for scheduler, name in (("slurm", "SLURM_CPUS_ON_NODE"), ("pbs", "NCPUS")):
        if variables.get(SCHEDULERS[scheduler][0]) and variables.get(name, "").isdigit():
            return int(variables[name]), name
    return None
