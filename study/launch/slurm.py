"""SLURM from inside a job. Facts observed on 22.05."""

import datetime
import re
import subprocess
from collections.abc import Mapping

from study.errors import ExitCode, LaunchError
from study.launch.allocation import Allocation, Host
from study.launch.job import LaunchJob
from study.launch.scheduler import outside

ASK_TIMEOUT_S = 30.0


class Slurm:
    """The job of `SLURM_JOB_ID`."""

    def __init__(self, job: LaunchJob, folder: str, environment: Mapping[str, str]) -> None:
        """Look at nothing yet."""
        self._job, self._folder, self._environment = job, folder, environment

    @property
    def _id(self) -> str:
        return self._environment.get("SLURM_JOB_ID") or outside("SLURM", "SLURM_JOB_ID")

    def allocation(self) -> Allocation:
        """Return the nodes in the scheduler's order: the batch script runs on the first."""
        names = _ask("scontrol", "show", "hostnames", self._environment.get("SLURM_JOB_NODELIST", "")).split()
        cpus = expand_counts(self._environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
        if len(names) != len(cpus):
            raise LaunchError(
                f"SLURM_JOB_CPUS_PER_NODE: must have a count for each of {len(names)} nodes, got {len(cpus)}. "
                "Fix: report this with the job's script."
            )
        hosts = tuple(Host(name=name, num_cpus=count) for name, count in zip(names, cpus, strict=True))
        return Allocation(hosts=hosts, job=self._id, ends_at=self._end())

    def _end(self) -> float | None:
        """Return the end by the scheduler's clock: a walltime may begin earlier than this process."""
        said = self._environment.get("SLURM_JOB_END_TIME") or _ask("squeue", "-h", "-j", self._id, "-o", "%e").strip()
        if said.isdigit():
            return float(said)
        try:
            return datetime.datetime.fromisoformat(said).timestamp()
        except ValueError:
            return None  # UNLIMITED, NONE

    def command(self, host: Host, line: str) -> list[str]:
        """Return a step of its own on that node, with all that the job has there."""
        alone = ["--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--mem=0", "--cpu-bind=none"]
        return ["srun", *alone, "--quiet", "--unbuffered", "bash", "-c", line]

    def may_resume(self, signal_name: str) -> bool:
        """Return False for a job that was cancelled: SIGTERM alone does not tell that from preemption."""
        if signal_name != "SIGTERM":
            return True
        try:
            return "JobState=CANCELLED" not in _ask("scontrol", "show", "job", "-o", self._id)
        except LaunchError:
            return False

    def resubmit(self, started_at: float) -> int:
        """Requeue the job; where the site does not allow it, submit its script again."""
        try:
            _ask("scontrol", "requeue", self._id)  # SIGTERM follows at once
        except LaunchError:
            _ask("sbatch", f"--dependency=afterany:{self._id}", f"{self._folder}/job.sh")
        return ExitCode.STOPPED


def expand_counts(text: str) -> list[int]:
    """Return the CPUs of each node.

    Args:
        text: As in `SLURM_JOB_CPUS_PER_NODE`: `36(x2),18`.

    Raises:
        LaunchError: It has another form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise LaunchError(
                f"SLURM_JOB_CPUS_PER_NODE: must read like 36(x2),18, got '{text}'. "
                "Fix: submit with `python -m study launch slurm`."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]}: must answer, got {error}. Fix: run on a node of SLURM.") from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise LaunchError(
            f"{' '.join(command[:2])}: must succeed, got {reason[-1] if reason else done.returncode}. "
            "Fix: ask the site's administrators, or launch again by hand."
        )
    return done.stdout
