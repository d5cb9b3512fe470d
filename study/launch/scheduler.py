"""What the supervisor needs of a batch scheduler, from inside a job of it: the seam between it and each of them."""

import socket
from collections.abc import Mapping
from typing import NoReturn, Protocol

from study.errors import LaunchError
from study.launch.allocation import Allocation, Host
from study.launch.job import LaunchJob


class Scheduler(Protocol):
    """One scheduler, seen from inside the job."""

    def allocation(self) -> Allocation:
        """Return the machines of this job, the one that this runs on first.

        Raises:
            LaunchError: This is not inside a job of that scheduler.
        """

    def command(self, host: Host, line: str) -> list[str]:
        """Return the command that runs the shell line on a host of the job, with this process's stdin and stdout."""

    def may_resume(self, signal_name: str) -> bool:
        """Return whether the job may have another life after this signal; False when its owner has cancelled it."""

    def resubmit(self, started_at: float) -> int:
        """Give the study another life and return the code to exit with. The last thing that a job does.

        Args:
            started_at: When this life began, seconds since the epoch.

        Raises:
            LaunchError: The scheduler refuses.
        """


def adapter(job: LaunchJob, folder: str, environment: Mapping[str, str]) -> Scheduler:
    """Return the scheduler of a job.

    Args:
        job: The launch.
        folder: The job's folder, with its script.
        environment: Of the process that the scheduler started.
    """
    from study.launch.oar import Oar
    from study.launch.pbs import Pbs
    from study.launch.slurm import Slurm
    from study.launch.ssh import Ssh

    match job.scheduler:
        case "slurm":
            return Slurm(job, folder, environment)
        case "oar":
            return Oar(job, folder, environment)
        case "pbs":
            return Pbs(job, folder, environment)
        case "ssh":
            return Ssh(job)


def is_here(host: Host) -> bool:
    """Return whether the host is the one that this runs on; either may be known by its short name."""
    return host.name.partition(".")[0] == socket.gethostname().partition(".")[0]


def outside(scheduler: str, variable: str) -> NoReturn:
    """Refuse to run where the scheduler's variables are missing.

    Raises:
        LaunchError: Always.
    """
    raise LaunchError(
        f"{variable}: must be set, as {scheduler} does inside a job. Fix: submit with `python -m study launch`."
    )
