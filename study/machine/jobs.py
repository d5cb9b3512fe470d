"""The batch job that this process belongs to, as the variables of SLURM, OAR, PBS and Kubernetes say.

Sources: sbatch(1); OAR 2.5 "environment variables"; PBS Professional 2022.1 User's Guide.
"""

import os
import subprocess
from collections.abc import Mapping

import msgspec

_SCHEDULER_TIMEOUT_S = 10.0
_STILL_THERE = {
    *("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "RESIZING", "STAGE_OUT"),
}
"""States of a job of SLURM of which a process may be left."""
SCHEDULERS: Mapping[str, str] = {
    "slurm": "SLURM_JOB_ID",
    "oar": "OAR_JOB_ID",
    "pbs": "PBS_JOBID",
    "kubernetes": "KUBERNETES_SERVICE_HOST",
}
"""Scheduler -> the variable by which a process knows that it belongs to a job."""


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

    def is_over(self, other_id: str) -> bool:
        """Return whether the scheduler of this job says that another job of it is over; False without an answer."""
        if self.scheduler == "slurm":
            code, out, err = _ask("squeue", "--noheader", "--format=%T", "--jobs", other_id)
            if code:
                return "invalid job id" in err.lower()  # SLURM forgets a job some minutes after its end
            return not _STILL_THERE & set(out.split())
        if self.scheduler == "oar":
            code, out, _ = _ask("oarstat", "-s", "-j", other_id)  # `N: State`
            return code == 0 and out.rpartition(":")[2].strip() in ("Terminated", "Error")
        return False


def current_job(variables: Mapping[str, str] = os.environ) -> BatchJob | None:
    """Return the job that this process belongs to; None outside of one."""
    for scheduler, name in SCHEDULERS.items():
        if number := variables.get(name):
            return BatchJob(
                scheduler=scheduler,
                id=variables.get("HOSTNAME", "") if scheduler == "kubernetes" else number,
                cluster=variables.get("SLURM_CLUSTER_NAME", ""),
                restarts=int(variables.get("SLURM_RESTART_COUNT") or 0),
            )
    return None


def _ask(*command: str) -> tuple[int, str, str]:
    """Return exit code, standard output and error; a code of -1 where the scheduler cannot be asked."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SCHEDULER_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return -1, "", ""
    return done.returncode, done.stdout, done.stderr
