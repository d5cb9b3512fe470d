"""SLURM. Facts observed on 22.05."""

import contextlib
import datetime
import re
import shlex
from pathlib import Path

from study.errors import ExitCode, LaunchError
from study.hosts.jobs import Job
from study.launch.base import BatchScheduler, ask, clock
from study.launch.job import Allocation, Host
from study.launch.options import BatchOptions


class SlurmOptions(BatchOptions):
    """Submit a study to SLURM. Options after `--` go to sbatch."""

    example = (
        "python -m study launch slurm scaling.yaml --nodes 4 --cpus-per-node 24 --walltime 2:00:00 -- --partition=cpu"
    )


class Slurm(BatchScheduler):
    """The job of `SLURM_JOB_ID`."""

    name = "slurm"
    Options = SlurmOptions
    mark = "#SBATCH"
    size_options = ("-N", "--nodes", "-n", "--ntasks", "-c", "--cpus-per-task", "-t", "--time", "--exclusive")
    submit_command = ("sbatch", "--parsable")
    id_pattern = r"^(\d+)(?:;\S+)?\s*$"

    def directives(self) -> list[str]:
        """Return size, name and log; one signal to the script alone; requeued, the job appends to its log."""
        job = self.job
        cpus = f"--cpus-per-task={job.cpus_per_node}" if job.cpus_per_node else "--exclusive"
        size = [f"--nodes={job.nodes}", "--ntasks-per-node=1", cpus, f"--time={clock(job.walltime_s or 0)}"]
        again = "--requeue" if job.resubmit else "--no-requeue"
        requeue = [f"--signal=B:USR1@{self.notice_s}", again, "--open-mode=append"]
        return [f"--job-name={job.name}", *size, *requeue, f"--output={shlex.quote(f'{self.folder}/job-')}%j.log"]

    def foreseen_start(self, file: Path) -> str:
        """Return what `sbatch --test-only` says."""
        match = re.search(r"to start at (\S+)", ask("sbatch", "--test-only", str(file), both=True))
        return "" if match is None else match[1].replace("T", " ")

    def allocation(self) -> Allocation:
        """Return the nodes in the scheduler's order: the batch script runs on the first."""
        job = self.here
        counts, names = expand_counts(job.cpus_per_node), ask("scontrol", "show", "hostnames", job.node_list).split()
        hosts = tuple(Host(name=name, num_cpus=count) for name, count in zip(names, counts, strict=True))
        return Allocation(hosts=hosts, job=job.id, ends_at=self._end(job))

    def _end(self, job: Job) -> float | None:
        """Return the end by the scheduler's clock: a walltime may begin earlier than this process."""
        if job.ends_at is not None:
            return job.ends_at
        try:
            return datetime.datetime.fromisoformat(ask("squeue", "-h", "-j", job.id, "-o", "%e").strip()).timestamp()
        except ValueError:
            return None  # UNLIMITED, NONE

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a step of its own on that node, with all that the job has there."""
        alone = ["--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--mem=0", "--cpu-bind=none"]
        return ["srun", *alone, "--quiet", "--unbuffered", "bash", "-c", line]

    def may_resume(self, signal_name: str) -> bool:
        """Return False for a job that was cancelled: SIGTERM alone does not tell that from preemption."""
        if signal_name != "SIGTERM":
            return True
        try:
            return "JobState=CANCELLED" not in self._shown()
        except LaunchError:
            return False

    def resubmit(self, started_at: float) -> int:
        """Requeue the job; where the site does not allow it, submit its script again.

        SLURM also refuses to requeue a job that it has requeued itself, as at a preemption without time of grace. Such
        a job is known by its number of restarts, which SLURM raises at once.
        """
        job = self.here
        try:
            ask("scontrol", "requeue", job.id)  # SIGTERM follows at once
        except LaunchError:
            restarts = None
            with contextlib.suppress(LaunchError):  # without an answer a second job is better than none
                restarts = re.search(r"\bRestarts=(\d+)", self._shown())
            if restarts is None or int(restarts[1]) <= job.restarts:
                ask("sbatch", f"--dependency=afterany:{job.id}", f"{self.folder}/job.sh")
        return ExitCode.STOPPED

    def _shown(self) -> str:
        """Return what SLURM says of this job.

        Raises:
            LaunchError: It does not answer.
        """
        return ask("scontrol", "show", "job", "-o", self.here.id)


def expand_counts(text: str) -> list[int]:
    """Return the CPUs of each node, from a text such as `36(x2),18`."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts
