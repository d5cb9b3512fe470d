"""The launchers: SLURM, OAR, PBS, and hosts that are reached by ssh.

The command `launch NAME` makes a launcher on the machine of the person, and calls `script` and `submit`. The supervisor
makes it from `launch.json`, inside the job, and calls the rest.

Facts were observed on SLURM 22.05 and OAR 2.5.9. PBS is written from the documentation and was never run. Source: PBS
Professional 2022.1 User's Guide, "Submitting a PBS job" (PBS_NODEFILE, mpiprocs); OpenPBS's pbs_tmrsh.c, which passes
on neither input nor output, so that no message would reach an agent.
"""

import abc
import contextlib
import datetime
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from study.errors import ExitCode, LaunchError
from study.launch.job import JOB_FILE, SCRIPT, Host, Job, parse_hosts
from study.machine.jobs import BatchJob, cpus_of_hosts, job_of

NOTICE_S = 120
"""So many seconds before its end a job gets a signal, where the scheduler can send one; perhaps a minute earlier."""
ASK_TIMEOUT_S = 60.0
RESUBMIT = 99
"""OAR: exit code by which an idempotent job asks to be submitted again."""
YOUNGEST_S = 65.0
"""OAR: a job that ends sooner is not submitted again (OAR takes 60 s of its own clock)."""


class NoAnswerError(LaunchError):
    """The scheduler may have taken the job, and did not say so."""


class Launcher(abc.ABC):
    """One way to get hosts for a job and to reach them."""

    name: ClassVar[str]
    """Of the subcommand, and in `launch.json`."""
    has_exact_cpus: ClassVar[bool] = False
    """Whether a host's CPUs are what a person wrote; a scheduler may count hyper-threads."""

    def __init__(self, job: Job, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        """Read nothing yet.

        Args:
            job: The launch.
            folder: The job's folder, with its script.
            environment: Variables of this process; inside a job those that the scheduler has set.
        """
        self.job, self.folder, self._environment = job, folder, environment

    def planned_cpus(self) -> list[int | None]:
        """Return the CPUs of each host, the head first; None where they are not known before the job runs."""
        return [self.job.cpus_per_node] * self.job.nodes

    @abc.abstractmethod
    def allocation(self) -> tuple[str, tuple[Host, ...], float | None]:
        """Return the job's name, short enough for a folder, its hosts, the one that this runs on first, and its end.

        The end is in seconds since the epoch; None where nothing ends it.

        Raises:
            LaunchError: This is not inside a job.
        """

    @abc.abstractmethod
    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return the command that runs a shell line on a host of the job, with this process's stdin and stdout."""

    def may_resume(self, signal_name: str) -> bool:
        """Return whether the study may be resubmitted after this signal; False if its owner has cancelled the job."""
        return True

    def resubmit(self, started_at: float) -> int:
        """Queue the study again and return the exit code of this job. The last thing that a job does.

        Args:
            started_at: When this job began, seconds since the epoch.

        Raises:
            LaunchError: The scheduler refuses.
        """
        return ExitCode.STOPPED


class BatchScheduler(Launcher):
    """A launcher that submits a script."""

    mark: ClassVar[str]
    """How a line of the script begins that holds an option: `#SBATCH`."""
    submit_command: ClassVar[tuple[str, ...]]
    id_pattern: ClassVar[str]
    """Finds the job's id in what the submission prints: a line of its own, since a site may print others before it."""
    log: ClassVar[str] = "job-{id}.log"
    """The file in the job's folder into which a submitted job prints."""

    @abc.abstractmethod
    def directives(self) -> list[str]:
        """Return the options in the script that ask for name, size, walltime, log, signal and requeueing."""

    def directive_of(self, option: list[str]) -> str:
        """Return one option of the person, with its value, as the scheduler reads it in a script."""
        return shlex.join(option)

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
    def here(self) -> BatchJob:
        """The job that this process belongs to.

        Raises:
            LaunchError: There is none.
        """
        job = job_of(self.name, self._environment)
        if job is None:
            rule, fix = "must run inside a job of this scheduler", f"Submit the study with `launch {self.name}`."
            raise LaunchError(where=self.name, rule=rule, fix=fix)
        return job

    def hosts_of_file(self) -> tuple[Host, ...]:
        """Return the hosts of the job's node file, in its order: one line for each CPU."""
        return tuple(Host(name, count) for name, count in cpus_of_hosts(Path(self.here.node_file)).items())

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


def ask(*command: str) -> str:
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
    return done.stdout


def is_here(host: Host) -> bool:
    """Return whether the host is the one that this runs on; either may be known by its short name."""
    return host.name.partition(".")[0] == socket.gethostname().partition(".")[0]


def clock(seconds: int) -> str:
    """Return a duration as every scheduler reads it: `36:00:00`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Slurm(BatchScheduler):
    """The job of `SLURM_JOB_ID`."""

    name = "slurm"
    mark = "#SBATCH"
    submit_command = ("sbatch", "--parsable")
    id_pattern = r"^(\d+)(?:;\S+)?\s*$"

    def directives(self) -> list[str]:
        """Return size, name and log; one signal to the script alone; requeued, the job appends to its log."""
        job = self.job
        cpus = f"--cpus-per-task={job.cpus_per_node}" if job.cpus_per_node else "--exclusive"
        size = [f"--nodes={job.nodes}", "--ntasks-per-node=1", cpus, f"--time={clock(job.walltime_s or 0)}"]
        again = "--requeue" if job.resubmit else "--no-requeue"
        requeue = [f"--signal=B:USR1@{NOTICE_S}", again, "--open-mode=append"]
        return [f"--job-name={job.name}", *size, *requeue, f"--output={shlex.quote(f'{self.folder}/job-')}%j.log"]

    def allocation(self) -> tuple[str, tuple[Host, ...], float | None]:
        """Return the nodes in the scheduler's order: the batch script runs on the first."""
        job = self.here
        names = ask("scontrol", "show", "hostnames", job.node_list).split()
        hosts = tuple(Host(*each) for each in zip(names, expand_counts(job.cpus_per_node), strict=True))
        ends_at = job.ends_at  # by the scheduler's clock: a walltime may begin earlier than this process
        if ends_at is None:
            said = ask("squeue", "-h", "-j", job.id, "-o", "%e").strip()
            with contextlib.suppress(ValueError):  # UNLIMITED, NONE
                ends_at = datetime.datetime.fromisoformat(said).timestamp()
        return job.id, hosts, ends_at

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
                ask("sbatch", f"--dependency=afterany:{job.id}", f"{self.folder}/{SCRIPT}")
        return ExitCode.STOPPED

    def _shown(self) -> str:
        return ask("scontrol", "show", "job", "-o", self.here.id)


def expand_counts(text: str) -> list[int]:
    """Return the CPUs of each node, from a text such as `36(x2),18`."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts


class Oar(BatchScheduler):
    """The job of `OAR_JOB_ID`."""

    name = "oar"
    mark = "#OAR"
    submit_command = ("oarsub", "-S")
    id_pattern = r"OAR_JOB_ID=(\d+)"

    def directives(self) -> list[str]:
        """Return size, name and log; a signal before the walltime and a besteffort kill; idempotent jobs live again.

        Raises:
            LaunchError: OAR would not find the folder again: it unquotes no file name, and a shell reads some of them.
        """
        job = self.job
        if re.search(r"[^\w@%+=:,./-]", str(self.folder)):
            rule = "must have no blanks, quotes or other signs of a shell, which OAR does not quote"
            fix = "Choose another --out, --workdir or --name."
            raise LaunchError(where="--out", rule=rule, got=self.folder, fix=fix)
        cores = f"/core={job.cpus_per_node}" if job.cpus_per_node else ""
        # A second -l would be an alternative, and OAR takes the one that starts first.
        has_own = any(word.startswith(("-l", "--resource")) for word in job.scheduler_options)
        size = [] if has_own else [f"-l /host={job.nodes}{cores},walltime={clock(job.walltime_s or 0)}"]
        again = ["-t idempotent"] if job.resubmit else []
        log = f"{self.folder}/job-%jobid%.log"
        return [f"-n {job.name}", *size, f"--checkpoint {NOTICE_S}", *again, f"-O {log}", f"-E {log}"]

    def directive_of(self, option: list[str]) -> str:
        """Return an option as OAR's scan_script takes it: as it stands, and without `=` after a long option."""
        return re.sub(r"^(--[\w-]+)=", r"\1 ", " ".join(option))

    def allocation(self) -> tuple[str, tuple[Host, ...], float | None]:
        """Return the hosts of the node file; the script runs on the first."""
        return self.here.id, self.hosts_of_file(), self.here.ends_at

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell within the job's cpuset on that host."""
        return ["bash", "-c", line] if is_here(host) else ["oarsh", host.name, line]

    def resubmit(self, started_at: float) -> int:
        """Wait until the job is old enough, and ask for the resubmission by the exit code."""
        time.sleep(max(0.0, YOUNGEST_S - (time.time() - started_at)))
        return RESUBMIT


class Pbs(BatchScheduler):
    """The job of `PBS_JOBID`."""

    name = "pbs"
    mark = "#PBS"
    submit_command = ("qsub",)
    id_pattern = r"^(\d+(?:\[\])?(?:\.\S+)?)\s*$"
    log = "{id}.OU"  # PBS names it, since `-o` of the script is a folder

    def directives(self) -> list[str]:
        """Return the `#PBS` options; with as many MPI processes as CPUs, the node file has a line for each CPU."""
        job = self.job
        count = job.cpus_per_node
        size = [f"-l select={job.nodes}:ncpus={count}:mpiprocs={count}", "-l place=scatter"]
        log = ["-j oe", "-k oed", f"-o {shlex.quote(f'{self.folder}/')}"]
        again = f"-r {'y' if job.resubmit else 'n'}"
        return [f"-N {job.name[:15]}", *size, f"-l walltime={clock(job.walltime_s or 0)}", again, *log]

    def allocation(self) -> tuple[str, tuple[Host, ...], float | None]:
        """Return the hosts of the node file."""
        ends_at = None if self.job.walltime_s is None else time.time() + self.job.walltime_s
        return self.here.id.partition(".")[0], self.hosts_of_file(), ends_at

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell."""
        return ["bash", "-c", line] if is_here(host) else over_ssh(self.job, host, line)

    def may_resume(self, signal_name: str) -> bool:
        """Return False for SIGTERM: PBS sends it to jobs that their owner deletes; the walltime is watched here."""
        return signal_name != "SIGTERM"

    def resubmit(self, started_at: float) -> int:
        """Submit the script again, to begin when this job has ended."""
        ask("qsub", "-W", f"depend=afterany:{self.here.id}", f"{self.folder}/{SCRIPT}")
        return ExitCode.STOPPED


class Ssh(Launcher):
    """Hosts on which one may log in."""

    name = "ssh"
    has_exact_cpus = True

    def planned_cpus(self) -> list[int | None]:
        """Return what the list of hosts says."""
        return [self.job.cpus_per_node or host.num_cpus for host in parse_hosts(self.job.hosts)]

    def allocation(self) -> tuple[str, tuple[Host, ...], float | None]:
        """Return the hosts as they were listed."""
        return f"ssh{os.getpid()}", parse_hosts(self.job.hosts), None

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell."""
        return over_ssh(self.job, host, line)

    def may_resume(self, signal_name: str) -> bool:
        """Return False: a signal comes from the person at the keyboard."""
        return False


def over_ssh(job: Job, host: Host, line: str) -> list[str]:
    """Return a remote shell that asks for no password; the end of its input tells the agent that we are gone."""
    alive = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")
    return ["ssh", *alive, *job.ssh_options, host.name, line]


LAUNCHERS: dict[str, type[Launcher]] = {each.name: each for each in (Slurm, Oar, Pbs, Ssh)}


def launcher_of(job: Job, folder: Path) -> Launcher:
    """Return the launcher of a job.

    Raises:
        LaunchError: It names one that does not exist.
    """
    if job.launcher not in LAUNCHERS:
        rule = f"must name a launcher, one of {', '.join(LAUNCHERS)}"
        raise LaunchError(where=JOB_FILE, rule=rule, got=job.launcher, fix="Launch it again.")
    return LAUNCHERS[job.launcher](job, folder)
