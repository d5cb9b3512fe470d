"""The launchers: SLURM, OAR, and hosts that are reached by ssh.

The command `launch NAME` makes a launcher on the machine of the person, and calls `script` and `submit`. The supervisor
makes it from `launch.json`, inside the job, and calls the rest. Facts were observed on SLURM 22.05 and OAR 2.5.9.
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
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from study.errors import ClusterError, ExitCode
from study.launch.job import BATCH, JOB_FILE, SCRIPT, Host, Job, parse_hosts

NOTICE_S = 120
"""So many seconds before its end a job gets a signal; perhaps a minute earlier."""
ASK_TIMEOUT_S = 60.0
RESUBMIT = 99
"""OAR: exit code by which an idempotent job asks to be submitted again."""
YOUNGEST_S = 65.0
"""OAR: a job that ends sooner is not submitted again (OAR takes 60 s of its own clock)."""

Allocation = tuple[str, tuple[Host, ...], float | None]
"""The job's name; its hosts, the one that the supervisor runs on first; its end in seconds since the epoch, if any."""


def clock(seconds: int) -> str:
    """Return a duration as every scheduler reads it: `36:00:00`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def ask(*command: str) -> str:
    """Run a command of the scheduler and return what it prints.

    Raises:
        ClusterError: It is not here, takes too long, or refuses.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        rule, fix = "must answer on this machine", "Launch on the front-end, if the job is not queued already."
        raise ClusterError(where=command[0], rule=rule, got=error, fix=fix) from error
    if done.returncode != 0:
        got = " ".join((done.stderr or done.stdout).split())[-500:] or f"exit code {done.returncode}"
        fix = "Change the options after --, or ask the site's administrators."
        raise ClusterError(where=command[0], rule="must accept the request", got=got, fix=fix)
    return done.stdout


class Launcher:
    """One job, here on a list of hosts: how it gets them, reaches them, and is queued again."""

    submit_words: ClassVar[tuple[str, ...]] = ()
    """The command that takes further options, and then the script."""
    id_pattern: ClassVar[str] = ""
    """Finds the job's id in what the submission prints: a line of its own, since a site may print others before it."""

    def __init__(self, job: Job, folder: Path, variables: Mapping[str, str] = os.environ) -> None:
        """Read nothing yet: `folder` is that of the job, `variables` are those that a scheduler sets in a job."""
        self.job, self.folder, self._variables = job, folder, variables

    # --- on the person's machine -------------------------------------------------------------------------------

    def planned_cpus(self) -> list[int | None]:
        """Return the CPUs of each host, the head first; None where they are not known before the job runs."""
        job = self.job
        if job.launcher in BATCH:
            return [job.cpus_per_node] * job.nodes
        return [job.cpus_per_node or host.num_cpus for host in parse_hosts(job.hosts)]

    def directives(self) -> list[str]:
        """Return the lines of the script that ask for name, size, walltime, log, signal and requeueing."""
        return []

    def script(self) -> str:
        """Return the job's script: options, the environment, and the supervisor in place of the shell.

        In its place, because a shell loses signals that come together, and its children do not get them.
        """
        start = [f"{line} || exit" for line in (f"cd {shlex.quote(self.job.workdir)}", self.job.activate) if line]
        words = [self.job.python, "-u", "-m", "study.launch.supervisor", str(self.folder / JOB_FILE)]
        return "\n".join(["#!/bin/bash", *self.directives(), *start, f"exec {shlex.join(words)}"]) + "\n"

    def submission(self, *more: str) -> list[str]:
        """Return the command that submits the job, with more options than those of the person."""
        return [*self.submit_words, *more, *self.job.scheduler_options, str(self.folder / SCRIPT)]

    def submit(self) -> str:
        """Submit the script, which is in the folder, and return the job's id.

        Raises:
            ClusterError: The scheduler is not here, refuses, or does not answer with an id.
        """
        (self.folder / SCRIPT).chmod(0o700)
        said = ask(*self.submission())
        if match := re.search(self.id_pattern, said, flags=re.MULTILINE):
            return match[1]
        rule, fix = "must answer with a job id", "Look whether the job is queued before you launch it again."
        raise ClusterError(where=self.submit_words[0], rule=rule, got=said.strip()[:200], fix=fix)

    # --- inside the job ----------------------------------------------------------------------------------------

    def variable(self, name: str) -> str:
        """Return a variable that the scheduler sets in a job; raises `ClusterError` outside of one."""
        if not (value := self._variables.get(name)):
            rule, fix = "must run inside a job of this scheduler", "Submit the study with `launch`."
            raise ClusterError(where=self.job.launcher, rule=rule, got=f"no {name}", fix=fix)
        return value

    def allocation(self) -> Allocation:
        """Return what the job has; raises `ClusterError` outside of one."""
        return f"ssh{os.getpid()}", parse_hosts(self.job.hosts), None

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return the command that runs a shell line on a host of the job, with this process's stdin and stdout."""
        # It asks for no password; the end of its input tells the agent that we are gone.
        alive = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")
        return ["ssh", *alive, host.name, line]

    def may_resume(self, signal_name: str) -> bool:
        """Return whether the study may be queued again after this signal; False if its owner has cancelled the job."""
        return True

    def resubmit(self, started_at: float) -> int:
        """Queue the study again and return the exit code of this job, which began so many seconds after the epoch.

        Raises:
            ClusterError: The scheduler refuses.
        """
        return ExitCode.STOPPED


class Slurm(Launcher):
    """A job of SLURM."""

    submit_words = ("sbatch", "--parsable")
    id_pattern = r"^(\d+)(?:;\S+)?\s*$"

    def directives(self) -> list[str]:  # noqa: D102
        job = self.job
        options = [
            *(f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1"),
            f"--cpus-per-task={job.cpus_per_node}" if job.cpus_per_node else "--exclusive",
            f"--time={clock(job.walltime_s)}",
            f"--signal=B:USR1@{NOTICE_S}",  # to the script alone
            "--requeue" if job.resubmit else "--no-requeue",
            "--open-mode=append",  # of a requeued job too
            f"--output={shlex.quote(f'{self.folder}/job-')}%j.log",
        ]
        return [f"#SBATCH {each}" for each in options]

    def allocation(self) -> Allocation:  # noqa: D102
        job = self.variable("SLURM_JOB_ID")
        names = ask("scontrol", "show", "hostnames", self.variable("SLURM_JOB_NODELIST")).split()
        counts = expand_counts(self.variable("SLURM_JOB_CPUS_PER_NODE"))
        ends_at: float | None = None
        with contextlib.suppress(ValueError):  # NONE, N/A
            ends_at = datetime.datetime.fromisoformat(ask("squeue", "-h", "-j", job, "-o", "%e").strip()).timestamp()
        return job, tuple(Host(*each) for each in zip(names, counts, strict=True)), ends_at

    def remote_shell(self, host: Host, line: str) -> list[str]:  # noqa: D102
        # A step of its own, with all that the job has there; --unbuffered would make standard output a terminal.
        alone = ["--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--mem=0", "--cpu-bind=none"]
        return ["srun", *alone, "--quiet", "bash", "-c", line]

    def may_resume(self, signal_name: str) -> bool:  # noqa: D102
        if signal_name != "SIGTERM":
            return True
        try:  # the signal alone does not tell it from preemption
            return "JobState=CANCELLED" not in self._shown()
        except ClusterError:
            return False

    def resubmit(self, started_at: float) -> int:
        """Requeue the job, or submit it again.

        SLURM refuses to requeue a job where the site does not allow it, and one that it has requeued itself, as at a
        preemption without time of grace. The latter is known by its number of restarts, which SLURM raises at once.
        """
        job = self.variable("SLURM_JOB_ID")
        try:
            ask("scontrol", "requeue", job)  # SIGTERM follows at once
        except ClusterError:
            restarts = None
            with contextlib.suppress(ClusterError):  # without an answer a second job is better than none
                restarts = re.search(r"\bRestarts=(\d+)", self._shown())
            if restarts is None or int(restarts[1]) <= int(self._variables.get("SLURM_RESTART_COUNT") or 0):
                ask(*self.submission(f"--dependency=afterany:{job}"))
        return ExitCode.STOPPED

    def _shown(self) -> str:
        return ask("scontrol", "show", "job", "-o", self.variable("SLURM_JOB_ID"))


class Oar(Launcher):
    """A job of OAR."""

    submit_words = ("oarsub", "-S")
    id_pattern = r"OAR_JOB_ID=(\d+)"

    def directives(self) -> list[str]:  # noqa: D102
        job, log = self.job, f"{self.folder}/job-%jobid%.log"
        options = [f"-n {job.name}", f"-O {log}", f"-E {log}"]
        # A second -l would be an alternative, and OAR takes the one that starts first.
        if not any(word.startswith(("-l", "--resource")) for word in job.scheduler_options):
            cores = f"/core={job.cpus_per_node}" if job.cpus_per_node else ""
            options.append(f"-l /host={job.nodes}{cores},walltime={clock(job.walltime_s)}")
        # The signal comes before the walltime and before a besteffort kill; idempotent jobs live again.
        options += [] if "--checkpoint" in job.scheduler_options else [f"--checkpoint {NOTICE_S}"]
        options += ["-t idempotent"] if job.resubmit else []
        return [f"#OAR {each}" for each in options]

    def allocation(self) -> Allocation:  # noqa: D102
        counts = Counter(Path(self.variable("OAR_NODEFILE")).read_text().split())  # a line for each CPU
        walltime = self._variables.get("OAR_JOB_WALLTIME_SECONDS", "")
        # Counted from now: the script begins a few seconds after the job.
        ends_at = time.time() + int(walltime) if walltime.isdigit() else None
        return self.variable("OAR_JOB_ID"), tuple(Host(*each) for each in counts.items()), ends_at

    def remote_shell(self, host: Host, line: str) -> list[str]:  # noqa: D102
        is_here = host.name.partition(".")[0] == socket.gethostname().partition(".")[0]
        return ["bash", "-c", line] if is_here else ["oarsh", host.name, line]

    def resubmit(self, started_at: float) -> int:  # noqa: D102
        time.sleep(max(0.0, YOUNGEST_S - (time.time() - started_at)))
        return RESUBMIT


LAUNCHERS: Mapping[str, type[Launcher]] = {"slurm": Slurm, "oar": Oar, "ssh": Launcher}


def expand_counts(text: str) -> list[int]:
    """Return the CPUs of each node, from a text such as `36(x2),18`."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts
