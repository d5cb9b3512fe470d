"""PBS from inside a job, written from the documentation of PBS Professional 2022; it was never run on PBS.

Source: PBS Professional 2022.1 User's Guide, "Submitting a PBS job" (PBS_NODEFILE, mpiprocs), "pbs_attach"; OpenPBS's
pbs_tmrsh.c, which passes on neither input nor output, so that an agent could not be spoken to, and pbs_attach.c.
"""

import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from study.errors import ExitCode, LaunchError
from study.launch.allocation import Allocation, Host, hosts_of_lines
from study.launch.job import LaunchJob
from study.launch.scheduler import is_here, outside
from study.launch.ssh import over_ssh


class Pbs:
    """The job of `PBS_JOBID`."""

    def __init__(self, job: LaunchJob, folder: str, environment: Mapping[str, str]) -> None:
        """Look at nothing yet."""
        self._job, self._folder, self._environment = job, folder, environment

    @property
    def _id(self) -> str:
        return self._environment.get("PBS_JOBID") or outside("PBS", "PBS_JOBID")

    def allocation(self) -> Allocation:
        """Return the hosts of the node file: the script asks for one MPI process, and so one line, for each CPU."""
        file = self._environment.get("PBS_NODEFILE") or outside("PBS", "PBS_NODEFILE")
        hosts = hosts_of_lines(Path(file).read_text().splitlines())
        walltime = self._job.walltime_s
        ends_at = None if walltime is None else time.time() + walltime
        return Allocation(hosts=hosts, job=self._id.partition(".")[0], ends_at=ends_at)

    def command(self, host: Host, line: str) -> list[str]:
        """Return a remote shell; its session, and so all that it starts, is part of the job where PBS can attach it."""
        if is_here(host):
            return ["bash", "-c", line]
        attach = shlex.quote(shutil.which("pbs_attach") or "pbs_attach")  # a shell over ssh may have another PATH
        join = f"if command -v {attach} >/dev/null; then {attach} -j {shlex.quote(self._id)} -p $$ >&2; fi"
        return over_ssh(self._job, host, f"exec bash -c {shlex.quote(f'{join}; {line}')}")

    def may_resume(self, signal_name: str) -> bool:
        """Return False for SIGTERM: PBS sends it to jobs that their owner deletes; the walltime is watched here."""
        return signal_name != "SIGTERM"

    def resubmit(self, started_at: float) -> int:
        """Submit the script again, to begin when this job has ended."""
        command = ["qsub", "-W", f"depend=afterany:{self._id}", f"{self._folder}/job.sh"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise LaunchError(f"qsub: must accept the job again, got {done.stderr.strip()}. Fix: submit it by hand.")
        return ExitCode.STOPPED
