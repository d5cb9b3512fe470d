"""The launchers: SLURM, OAR, PBS, and hosts that are reached by ssh.

The command `launch NAME` makes a launcher on the machine of the person, and calls `script` and `submit`. The supervisor
makes it from `launch.json`, inside the job, and calls the rest.

Facts were observed on SLURM 22.05 and OAR 2.5.9. PBS is written from the documentation and was never run. Source: PBS
Professional 2022.1 User's Guide, "Submitting a PBS job" (PBS_NODEFILE, mpiprocs); OpenPBS's pbs_tmrsh.c, which passes
on neither input nor output, so that no message would reach an agent.
"""

import contextlib
import datetime
import os
import re
import shlex
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from study.errors import ExitCode, LaunchError
from study.launch.job import JOB_FILE, SCRIPT, Host, Job, parse_hosts
from study.machine.jobs import BatchJob, job_of

NOTICE_S = 120
"""So many seconds before its end a job gets a signal, where the scheduler can send one; perhaps a minute earlier."""
ASK_TIMEOUT_S = 60.0
RESUBMIT = 99
"""OAR: exit code by which an idempotent job asks to be submitted again."""
YOUNGEST_S = 65.0
"""OAR: a job that ends sooner is not submitted again (OAR takes 60 s of its own clock)."""


class Scheduler(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is submitted; what it does once it runs is in `Launcher`."""

    mark: str
    """How a line of the script begins that holds an option: `#SBATCH`."""
    submit: tuple[str, ...]
    """The command that takes further options, and then the script."""
    id_pattern: str
    """Finds the job's id in what the submission prints: a line of its own, since a site may print others before it."""
    options: Callable[[Job, Path], list[str]]
    """Returns the options that ask for name, size, walltime, log, signal and requeueing."""
    log: str = "job-{id}.log"
    """The file in the job's folder into which a submitted job prints."""


def _slurm_options(job: Job, folder: Path) -> list[str]:
    cpus = f"--cpus-per-task={job.cpus_per_node}" if job.cpus_per_node else "--exclusive"
    size = [f"--nodes={job.nodes}", "--ntasks-per-node=1", cpus, f"--time={clock(job.walltime_s)}"]
    # The signal goes to the script alone; requeued, the job appends to its log.
    requeue = [f"--signal=B:USR1@{NOTICE_S}", "--requeue" if job.resubmit else "--no-requeue", "--open-mode=append"]
    return [f"--job-name={job.name}", *size, *requeue, f"--output={shlex.quote(f'{folder}/job-')}%j.log"]


def _oar_options(job: Job, folder: Path) -> list[str]:
    cores = f"/core={job.cpus_per_node}" if job.cpus_per_node else ""
    # A second -l would be an alternative, and OAR takes the one that starts first.
    has_own = any(word.startswith(("-l", "--resource")) for word in job.scheduler_options)
    size = [] if has_own else [f"-l /host={job.nodes}{cores},walltime={clock(job.walltime_s)}"]
    # The signal comes before the walltime and before a besteffort kill; idempotent jobs live again.
    again = [] if "--checkpoint" in job.scheduler_options else [f"--checkpoint {NOTICE_S}"]
    again += ["-t idempotent"] if job.resubmit else []
    log = f"{folder}/job-%jobid%.log"
    return [f"-n {job.name}", *size, *again, f"-O {log}", f"-E {log}"]


def _pbs_options(job: Job, folder: Path) -> list[str]:
    count = job.cpus_per_node  # with as many MPI processes, the node file has a line for each CPU
    size = [f"-l select={job.nodes}:ncpus={count}:mpiprocs={count}", "-l place=scatter"]
    again = f"-r {'y' if job.resubmit else 'n'}"
    log = ["-j oe", "-k oed", f"-o {shlex.quote(f'{folder}/')}"]
    return [f"-N {job.name[:15]}", *size, f"-l walltime={clock(job.walltime_s)}", again, *log]


SCHEDULERS: Mapping[str, Scheduler] = {
    "slurm": Scheduler(
        mark="#SBATCH", submit=("sbatch", "--parsable"), id_pattern=r"^(\d+)(?:;\S+)?\s*$", options=_slurm_options
    ),
    "oar": Scheduler(mark="#OAR", submit=("oarsub", "-S"), id_pattern=r"OAR_JOB_ID=(\d+)", options=_oar_options),
    "pbs": Scheduler(
        mark="#PBS",
        submit=("qsub",),
        id_pattern=r"^(\d+(?:\[\])?(?:\.\S+)?)\s*$",
        options=_pbs_options,
        log="{id}.OU",  # PBS names it, since `-o` of the script is a folder
    ),
}


def clock(seconds: int) -> str:
    """Return a duration as every scheduler reads it: `36:00:00`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def ask(*command: str) -> str:
    """Run a command of the scheduler and return what it prints.

    Raises:
        LaunchError: It is not here, takes too long, or refuses.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S)
    except OSError as error:
        rule, fix = "must be on this machine's PATH", "Launch on the front-end, or see the job with --print."
        raise LaunchError(where=command[0], rule=rule, got=error.strerror or "", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        rule, fix = f"must answer within {ASK_TIMEOUT_S:.0f} s", "Look whether the job is queued, and try again later."
        raise LaunchError(where=command[0], rule=rule, fix=fix) from error
    if done.returncode != 0:
        got = " ".join((done.stderr or done.stdout).split())[-500:] or f"exit code {done.returncode}"
        fix = "Change the options after --, or ask the site's administrators."
        raise LaunchError(where=command[0], rule="must accept the request", got=got, fix=fix)
    return done.stdout


class Launcher:
    """One job: how it gets its hosts, reaches them, and is queued again."""

    def __init__(self, job: Job, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        """Read nothing yet.

        Args:
            job: The launch.
            folder: The job's folder, with its script.
            environment: Variables of this process; inside a job those that the scheduler has set.
        """
        self.job, self.folder, self._environment = job, folder, environment

    @property
    def scheduler(self) -> Scheduler:
        """How the job is submitted; there is none for a list of hosts."""
        return SCHEDULERS[self.job.launcher]

    def planned_cpus(self) -> list[int | None]:
        """Return the CPUs of each host, the head first; None where they are not known before the job runs."""
        if self.job.launcher == "ssh":
            return [self.job.cpus_per_node or host.num_cpus for host in parse_hosts(self.job.hosts)]
        return [self.job.cpus_per_node] * self.job.nodes

    def script(self) -> str:
        """Return the job's script: options, the environment, and the supervisor in place of the shell.

        In its place, because a shell loses signals that come together, and its children do not get them.
        """
        job = self.job
        options = [f"{self.scheduler.mark} {each}" for each in self.scheduler.options(job, self.folder)]
        start = [f"{line} || exit" for line in (f"cd {shlex.quote(job.workdir)}", job.activate) if line]
        words = [*shlex.split(job.python), "-u", "-m", "study.launch.supervisor", str(self.folder / JOB_FILE)]
        return "\n".join(["#!/bin/bash", *options, *start, f"exec {shlex.join(words)}"]) + "\n"

    def submission(self, *more: str) -> list[str]:
        """Return the command that submits the job, with more options than those of the person."""
        return [*self.scheduler.submit, *more, *self.job.scheduler_options, str(self.folder / SCRIPT)]

    def submit(self) -> str:
        """Submit the script, which is in the folder, and return the job's id.

        Raises:
            LaunchError: The scheduler is not here, refuses, or does not answer with an id.
        """
        (self.folder / SCRIPT).chmod(0o700)
        said = ask(*self.submission())
        if match := re.search(self.scheduler.id_pattern, said, flags=re.MULTILINE):
            return match[1]
        rule, fix = "must answer with a job id", "Look whether the job is queued before you launch it again."
        raise LaunchError(where=self.scheduler.submit[0], rule=rule, got=said.strip()[:200], fix=fix)

    @property
    def _here(self) -> BatchJob:
        """The job that this process belongs to."""
        if (job := job_of(self.job.launcher, self._environment)) is None:
            rule, fix = "must run inside a job of this scheduler", "Submit the study with `launch`."
            raise LaunchError(where=self.job.launcher, rule=rule, fix=fix)
        return job

    def allocation(self) -> tuple[str, tuple[Host, ...], float | None]:
        """Return the job's name, short enough for a folder, its hosts, the one that this runs on first, and its end.

        The end is in seconds since the epoch; None where nothing ends it.

        Raises:
            LaunchError: This is not inside a job.
        """
        if self.job.launcher == "ssh":
            return f"ssh{os.getpid()}", parse_hosts(self.job.hosts), None
        job = self._here
        ends_at = job.ends_at  # by the scheduler's clock: a walltime may begin earlier than this process
        if self.job.launcher == "slurm":
            names = ask("scontrol", "show", "hostnames", job.node_list).split()  # the script runs on the first
            counts = dict(zip(names, expand_counts(job.cpus_per_node), strict=True))
            if ends_at is None:
                with contextlib.suppress(ValueError):  # UNLIMITED, NONE
                    said = ask("squeue", "-h", "-j", job.id, "-o", "%e").strip()
                    ends_at = datetime.datetime.fromisoformat(said).timestamp()
        else:
            counts = dict(Counter(Path(job.node_file).read_text().split()))  # a line for each CPU
            if self.job.launcher == "pbs":
                ends_at = time.time() + self.job.walltime_s
        return job.id.partition(".")[0], tuple(Host(*each) for each in counts.items()), ends_at

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return the command that runs a shell line on a host of the job, with this process's stdin and stdout."""
        if self.job.launcher == "slurm":  # a step of its own, with all that the job has there
            alone = ["--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--mem=0", "--cpu-bind=none"]
            # Without --unbuffered, which would make standard output a terminal.
            return ["srun", *alone, "--quiet", "bash", "-c", line]
        if self.job.launcher != "ssh" and is_here(host):
            return ["bash", "-c", line]
        if self.job.launcher == "oar":
            return ["oarsh", host.name, line]
        # It asks for no password; the end of its input tells the agent that we are gone.
        alive = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")
        return ["ssh", *alive, host.name, line]

    def may_resume(self, signal_name: str) -> bool:
        """Return whether the study may be queued again after this signal; False if its owner has cancelled the job."""
        if self.job.launcher == "slurm" and signal_name == "SIGTERM":
            try:  # the signal alone does not tell it from preemption
                return "JobState=CANCELLED" not in self._shown()
            except LaunchError:
                return False
        return self.job.launcher != "pbs" or signal_name != "SIGTERM"  # by which PBS deletes a job

    def resubmit(self, started_at: float) -> int:
        """Queue the study again and return the exit code of this job. The last thing that a job does.

        SLURM refuses to requeue a job where the site does not allow it, and one that it has requeued itself, as at a
        preemption without time of grace. The latter is known by its number of restarts, which SLURM raises at once.

        Args:
            started_at: When this job began, seconds since the epoch.

        Raises:
            LaunchError: The scheduler refuses.
        """
        job = self._here
        if job.scheduler == "oar":
            time.sleep(max(0.0, YOUNGEST_S - (time.time() - started_at)))
            return RESUBMIT
        if job.scheduler == "pbs":
            ask(*self.submission("-W", f"depend=afterany:{job.id}"))
            return ExitCode.STOPPED
        try:
            ask("scontrol", "requeue", job.id)  # SIGTERM follows at once
        except LaunchError:
            restarts = None
            with contextlib.suppress(LaunchError):  # without an answer a second job is better than none
                restarts = re.search(r"\bRestarts=(\d+)", self._shown())
            if restarts is None or int(restarts[1]) <= job.restarts:
                ask(*self.submission(f"--dependency=afterany:{job.id}"))
        return ExitCode.STOPPED

    def _shown(self) -> str:
        return ask("scontrol", "show", "job", "-o", self._here.id)


def is_here(host: Host) -> bool:
    """Return whether the host is the one that this runs on; either may be known by its short name."""
    return host.name.partition(".")[0] == socket.gethostname().partition(".")[0]


def expand_counts(text: str) -> list[int]:
    """Return the CPUs of each node, from a text such as `36(x2),18`."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts
