"""OAR from inside a job. Facts observed on 2.5.9."""

import time
from collections.abc import Mapping
from pathlib import Path

from study.launch.allocation import Allocation, Host, hosts_of_lines
from study.launch.job import LaunchJob
from study.launch.scheduler import is_here, outside

RESUBMIT = 99
"""Exit code by which an idempotent job asks for another life."""
YOUNGEST_S = 65.0
"""A job that ends sooner gets none (OAR takes 60 s of its own clock)."""


class Oar:
    """The job of `OAR_JOB_ID`."""

    def __init__(self, job: LaunchJob, folder: str, environment: Mapping[str, str]) -> None:
        """Look at nothing yet."""
        self._job, self._environment = job, environment

    def allocation(self) -> Allocation:
        """Return the hosts of the node file, one line for each core; the script runs on the first."""
        file = self._environment.get("OAR_NODEFILE") or outside("OAR", "OAR_NODEFILE")
        hosts = hosts_of_lines(Path(file).read_text().splitlines())
        return Allocation(hosts=hosts, job=self._environment.get("OAR_JOB_ID", "oar"), ends_at=self._end())

    def _end(self) -> float | None:
        """Return the end of the walltime, counted from now: the script begins a few seconds after the job."""
        seconds = self._environment.get("OAR_JOB_WALLTIME_SECONDS", "")
        return time.time() + float(seconds) if seconds.isdigit() else None

    def command(self, host: Host, line: str) -> list[str]:
        """Return a remote shell within the job's cpuset on that host."""
        if is_here(host):
            return ["bash", "-c", line]
        return ["oarsh", host.name, line]

    def may_resume(self, signal_name: str) -> bool:
        """Return True: OAR kills a job that its owner deletes without a word."""
        return True

    def resubmit(self, started_at: float) -> int:
        """Wait until the job is old enough, and ask for another life by the exit code."""
        time.sleep(max(0.0, YOUNGEST_S - (time.time() - started_at)))
        return RESUBMIT
