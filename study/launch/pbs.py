"""PBS, written from the documentation of PBS Professional 2022; it was never run on PBS.

Source: PBS Professional 2022.1 User's Guide, "Submitting a PBS job" (PBS_NODEFILE, mpiprocs), "pbs_attach"; OpenPBS's
pbs_tmrsh.c, which passes on neither input nor output, so that no message would reach an agent; pbs_attach.c.
"""

import shlex
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from study.errors import ExitCode
from study.launch.base import BatchScheduler, ask, clock, is_here
from study.launch.job import Allocation, Host, hosts_of_file
from study.launch.options import BatchOptions, SshOption
from study.launch.ssh import over_ssh


@dataclass(frozen=True, kw_only=True)
class PbsOptions(BatchOptions):
    """Submit a study to PBS. Options after `--` go to qsub."""

    example = "python -m study launch pbs scaling.yaml --nodes 2 --cpus-per-node 24 --walltime 4:00:00 -- -q workq"
    cpus_per_node: Annotated[int, typer.Option(min=1, help="CPUs of each node.")] = field()
    ssh_options: SshOption = None


class Pbs(BatchScheduler):
    """The job of `PBS_JOBID`."""

    name = "pbs"
    Options = PbsOptions
    mark = "#PBS"
    size_options = ("-l",)
    submit_command = ("qsub",)
    id_pattern = r"^(\d+(?:\[\])?(?:\.\S+)?)\s*$"

    def directives(self) -> list[str]:
        """Return the `#PBS` options; with as many MPI processes as CPUs, the node file has a line for each CPU."""
        job = self.job
        count = job.cpus_per_node
        size = [f"-l select={job.nodes}:ncpus={count}:mpiprocs={count}", "-l place=scatter"]
        log = ["-j oe", "-k oed", f"-o {shlex.quote(f'{self.folder}/')}"]
        again = f"-r {'y' if job.resubmit else 'n'}"
        return [f"-N {job.name[:15]}", *size, f"-l walltime={clock(job.walltime_s or 0)}", again, *log]

    def log(self, job_id: str) -> Path:
        """Return the file that PBS names, since `-o` of the script is a folder."""
        return self.folder / f"{job_id}.OU"

    def allocation(self) -> Allocation:
        """Return the hosts of the node file."""
        job = self.here
        ends_at = None if self.job.walltime_s is None else time.time() + self.job.walltime_s
        return Allocation(hosts=hosts_of_file(job.node_file), job=job.id.partition(".")[0], ends_at=ends_at)

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell; its session, and so all that it starts, is part of the job where PBS can attach it."""
        if is_here(host):
            return ["bash", "-c", line]
        attach = shlex.quote(shutil.which("pbs_attach") or "pbs_attach")  # a shell over ssh may have another PATH
        job_id = shlex.quote(self.here.id)
        join = f"if command -v {attach} >/dev/null; then {attach} -j {job_id} -p $$ >&2; fi"
        return over_ssh(self.job, host, f"exec bash -c {shlex.quote(f'{join}; {line}')}")

    def may_resume(self, signal_name: str) -> bool:
        """Return False for SIGTERM: PBS sends it to jobs that their owner deletes; the walltime is watched here."""
        return signal_name != "SIGTERM"

    def resubmit(self, started_at: float) -> int:
        """Submit the script again, to begin when this job has ended."""
        ask("qsub", "-W", f"depend=afterany:{self.here.id}", f"{self.folder}/job.sh")
        return ExitCode.STOPPED
