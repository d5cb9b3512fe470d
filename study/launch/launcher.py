"""The base classes of launchers. A launcher is one way to get hosts for a job and to reach them.

The command `launch NAME` makes one from the options, on the machine of the person, and calls `script`, `submit` and
the forecast. The supervisor makes one from `launch.json`, inside the job, and calls the rest. Imports no engine.
"""

import abc
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from study.errors import LaunchError
from study.hosts.jobs import Job, job_of
from study.launch.job import JOB_FILE, Allocation, Host, LaunchJob
from study.launch.options import JobOptions

ASK_TIMEOUT_S = 60.0


class NoAnswerError(LaunchError):
    """The scheduler may have taken the job, and did not say so."""


class Launcher(abc.ABC):
    """One way to get hosts for a job and to reach them."""

    name: ClassVar[str]
    """Of the subcommand, and in `launch.json`."""
    Options: ClassVar[type[JobOptions]]
    """Options of the subcommand; its docstring is the help."""
    has_exact_cpus: ClassVar[bool] = False
    """Whether a host's CPUs are what a person wrote; a scheduler may count hyper-threads."""

    def __init__(self, job: LaunchJob, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        """Read nothing yet.

        Args:
            job: The launch.
            folder: The job's folder, with its script.
            environment: Variables of this process; inside a job those that the scheduler has set.
        """
        self.job, self.folder, self._environment = job, folder, environment

    @property
    def has_own_size(self) -> bool:
        """Whether the scheduler's own options say how large the job is, and how long, in place of ours."""
        return False

    def planned_cpus(self) -> list[int | None]:
        """Return the CPUs of each host, the head first; None where they are not known before the job runs."""
        return [None if self.has_own_size else self.job.cpus_per_node] * self.job.nodes

    @abc.abstractmethod
    def allocation(self) -> Allocation:
        """Return the machines of this job, the one that this runs on first.

        Raises:
            LaunchError: This is not inside a job.
        """

    @abc.abstractmethod
    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return the command that runs a shell line on a host of the job, with this process's stdin and stdout."""

    def may_resume(self, signal_name: str) -> bool:
        """Return whether the study may be resubmitted after this signal; False if its owner has cancelled the job."""
        return True

    @abc.abstractmethod
    def resubmit(self, started_at: float) -> int:
        """Queue the study again and return the exit code of this job. The last thing that a job does.

        Args:
            started_at: When this job began, seconds since the epoch.

        Raises:
            LaunchError: The scheduler refuses.
        """


class BatchScheduler(Launcher):
    """A launcher that submits a script."""

    notice_s: ClassVar[int] = 120
    """So many seconds before its end a job gets a signal, where the scheduler can send one."""
    early_s: ClassVar[int] = 60
    """How much earlier the signal may come."""
    mark: ClassVar[str]
    """How a line of the script begins that holds an option: `#SBATCH`."""
    size_options: ClassVar[tuple[str, ...]]
    """The scheduler's options for nodes, CPUs and walltime."""
    submit_command: ClassVar[tuple[str, ...]]
    id_pattern: ClassVar[str]
    """Finds the job's id in what the submission prints: a line of its own, since a site may print others before it."""

    @abc.abstractmethod
    def directives(self) -> list[str]:
        """Return the options in the script that ask for name, size, walltime, log, signal and requeueing."""

    def log(self, job_id: str) -> Path:
        """Return the file into which a submitted job prints."""
        return self.folder / f"job-{job_id}.log"

    def directive_of(self, option: list[str]) -> str:
        """Return one option of the person, with its value, as the scheduler reads it in a script."""
        return shlex.join(option)

    def foreseen_start(self, file: Path) -> str:
        """Return when the scheduler would start the script; empty if it cannot say. Nothing is submitted.

        Raises:
            LaunchError: The scheduler would refuse the script.
        """
        return ""

    def script(self) -> str:
        """Return the job's script: directives, the environment, and the supervisor in place of the shell.

        In its place, because a shell loses signals that come together, and its children do not get them.

        Raises:
            LaunchError: An option after `--` is none.
        """
        job = self.job
        start = [f"{line} || exit" for line in (f"cd {shlex.quote(job.workdir)}", job.activate) if line]
        words = [*shlex.split(job.python), "-u", "-m", "study.launch.supervisor", str(self.folder / JOB_FILE)]
        # The last one counts, so the options of the person come after ours.
        options = [*self.directives(), *map(self.directive_of, self.own_options())]
        lines = ["#!/bin/bash", *(f"{self.mark} {option}" for option in options), *start, f"exec {shlex.join(words)}"]
        return "\n".join(lines) + "\n"

    @property
    def has_own_size(self) -> bool:
        """Whether an option of the person's is one of `size_options`; the value may follow a short one at once."""
        names = (word if word.startswith("--") else word[:2] for word, *_ in self.own_options())
        return any(name.partition("=")[0] in self.size_options for name in names)

    def own_options(self) -> list[list[str]]:
        """Return the scheduler options of the person, each with its value: a line of the script holds one.

        Raises:
            LaunchError: One does not begin with a dash.
        """
        options: list[list[str]] = []
        for word in self.job.scheduler_options:
            if word.startswith("-"):
                options.append([word])
            elif options:
                options[-1].append(word)
            else:
                rule, fix = "must be options of the scheduler", "Begin each with a dash."
                raise LaunchError(where="after --", rule=rule, got=word, fix=fix)
        return options

    @property
    def here(self) -> Job:
        """The job that this process belongs to.

        Raises:
            LaunchError: There is none.
        """
        job = job_of(self.name, self._environment)
        if job is None:
            rule, fix = "must run inside a job of this scheduler", f"Submit the study with `launch {self.name}`."
            raise LaunchError(where=self.name, rule=rule, fix=fix)
        return job

    def submit(self, file: Path) -> str:
        """Submit a script and return the job's id.

        Raises:
            NoAnswerError: It does not answer with an id.
            LaunchError: The scheduler is not here, or refuses.
        """
        said = ask(*self.submit_command, str(file))
        if match := re.search(self.id_pattern, said, flags=re.MULTILINE):
            return match[1]
        rule, fix = "must answer with a job id", "Look whether the job is queued before you launch it again."
        raise NoAnswerError(where=self.submit_command[0], rule=rule, got=said.strip()[:200], fix=fix)


def ask(*command: str, both: bool = False) -> str:
    """Run a command of the scheduler and return what it prints.

    Raises:
        NoAnswerError: It takes too long.
        LaunchError: It is not here, or refuses.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S)
    except OSError as error:
        rule, fix = "must be on this machine's PATH", "Launch on the front-end, or see the job with --print."
        raise LaunchError(where=command[0], rule=rule, got=error.strerror or "", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        rule, fix = f"must answer within {ASK_TIMEOUT_S:.0f} s", "Look whether the job is queued, and try again later."
        raise NoAnswerError(where=command[0], rule=rule, fix=fix) from error
    if done.returncode != 0:
        got = " ".join((done.stderr or done.stdout).split())[-500:] or f"exit code {done.returncode}"
        fix = "Change the options after --, or ask the site's administrators."
        raise LaunchError(where=command[0], rule="must accept the request", got=got, fix=fix)
    return done.stdout + (done.stderr if both else "")


def is_here(host: Host) -> bool:
    """Return whether the host is the one that this runs on; either may be known by its short name."""
    return host.name.partition(".")[0] == socket.gethostname().partition(".")[0]


def clock(seconds: int) -> str:
    """Return a duration as every scheduler reads it: `36:00:00`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
