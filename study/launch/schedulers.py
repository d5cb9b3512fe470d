"""The launchers: SLURM, OAR, PBS, and a list of hosts that can be reached by ssh.

Facts were observed on SLURM 22.05 and OAR 2.5.9. PBS is written from the documentation and was never run. Source: PBS
Professional 2022.1 User's Guide, "Submitting a PBS job" (PBS_NODEFILE, mpiprocs), "pbs_attach"; OpenPBS's pbs_tmrsh.c,
which passes on neither input nor output, so that no message would reach an agent; pbs_attach.c.
"""

import contextlib
import datetime
import os
import re
import shlex
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from study.errors import ExitCode, LaunchError
from study.hosts.jobs import Job
from study.launch.job import Allocation, Host, LaunchJob, hosts_of_file
from study.launch.launcher import BatchScheduler, Launcher, ask, clock, is_here
from study.launch.options import TARGET, BatchOptions, Hosts, JobOptions, SshOption
from study.options import wrong_option

_ALIVE = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")
DASHBOARD_PORT = 8265
"""Ray's usual port, used on the laptop."""
RESUBMIT = 99
"""Exit code by which an idempotent job asks to be submitted again."""
YOUNGEST_S = 65.0
"""A job that ends sooner is not submitted again (OAR takes 60 s of its own clock)."""


# --- SLURM ------------------------------------------------------------------------------------------------------------


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


# --- OAR --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OarOptions(BatchOptions):
    """Submit a study to OAR. Options after `--` go to oarsub."""

    example = (
        """python -m study launch oar scaling.yaml --nodes 2 --walltime 4:00:00 --besteffort -- -p "cluster='gros'\""""
    )
    besteffort: Annotated[
        bool, typer.Option("--besteffort", help="Use idle resources; the job is killed when somebody wants them.")
    ] = False

    def job(self, launcher: str) -> LaunchJob:
        """Return the job; `--besteffort` is short for an option of OAR."""
        job, besteffort = super().job(launcher), ("-t", "besteffort") if self.besteffort else ()
        return job.model_copy(update={"scheduler_options": (*besteffort, *job.scheduler_options)})


class Oar(BatchScheduler):
    """The job of `OAR_JOB_ID`."""

    name = "oar"
    Options = OarOptions
    mark = "#OAR"
    size_options = ("-l", "--resource")
    submit_command = ("oarsub", "-S")
    id_pattern = r"OAR_JOB_ID=(\d+)"

    def directives(self) -> list[str]:
        """Return size, name and log; a signal before the walltime and a besteffort kill; idempotent jobs live again.

        Raises:
            LaunchError: OAR would not find the folder again: it unquotes no file name, and a shell reads some of them.
        """
        job = self.job
        if re.search(r"[^\w@%+=:,./-]", str(self.folder)):
            raise LaunchError(
                where="--out",
                rule="must have no blanks, quotes or other signs of a shell, which OAR does not quote",
                got=self.folder,
                fix="Choose another --out, --workdir or --name.",
            )
        cores = f"/core={job.cpus_per_node}" if job.cpus_per_node else ""
        # A second -l would be an alternative, and OAR takes the one that starts first.
        size = [] if self.has_own_size else [f"-l /host={job.nodes}{cores},walltime={clock(job.walltime_s or 0)}"]
        log = shlex.quote(f"{self.folder}/job-")
        again = ["-t idempotent"] if job.resubmit else []
        requeue = [f"--checkpoint {self.notice_s}", *again]
        return [f"-n {job.name}", *size, *requeue, f"-O {log}%jobid%.log", f"-E {log}%jobid%.log"]

    def directive_of(self, option: list[str]) -> str:
        """Return an option as OAR's scan_script takes it: as it stands, and without `=` after a long option."""
        return re.sub(r"^(--[\w-]+)=", r"\1 ", " ".join(option))

    def allocation(self) -> Allocation:
        """Return the hosts of the node file, one line for each core; the script runs on the first."""
        job = self.here
        return Allocation(hosts=hosts_of_file(job.node_file), job=job.id, ends_at=job.ends_at)

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell within the job's cpuset on that host."""
        return ["bash", "-c", line] if is_here(host) else ["oarsh", host.name, line]

    def resubmit(self, started_at: float) -> int:
        """Wait until the job is old enough, and ask for the resubmission by the exit code."""
        time.sleep(max(0.0, YOUNGEST_S - (time.time() - started_at)))
        return RESUBMIT


# --- PBS --------------------------------------------------------------------------------------------------------------


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


# --- ssh --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SshOptions(JobOptions):
    """Run a study on a list of hosts, in the foreground."""

    example = "python -m study launch ssh scaling.yaml --hosts lab-1:16,lab-2:16,me@lab-3:8"
    shares_files = False
    hosts: Hosts
    ssh_options: SshOption = None

    def __post_init__(self) -> None:
        """Refuse a list of hosts that is none."""
        super().__post_init__()
        parse_hosts(self.hosts)

    @property
    def studies(self) -> Path:
        """Folder of the studies, below the working directory of the first host."""
        return self.out

    @property
    def space_on_nodes(self) -> str:
        """The space in the folder of the job on the first host."""
        return f"{{folder}}/{self.space_file.name}"

    @property
    def inputs(self) -> dict[str, str]:
        """The space, since hosts share no files."""
        return {self.space_file.name: self.space_file.read_text(encoding="utf-8-sig")}


class Ssh(Launcher):
    """Hosts on which one may log in."""

    name = "ssh"
    Options = SshOptions
    has_exact_cpus = True

    def planned_cpus(self) -> list[int | None]:
        """Return what the list of hosts says."""
        return [self.job.cpus_per_node or host.num_cpus for host in parse_hosts(self.job.hosts)]

    def allocation(self) -> Allocation:
        """Return the hosts as they were listed."""
        return Allocation(hosts=parse_hosts(self.job.hosts), job=f"ssh{os.getpid()}", ends_at=None)

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell."""
        return over_ssh(self.job, host, line)

    def may_resume(self, signal_name: str) -> bool:
        """Return False: a signal comes from the person at the keyboard."""
        return False

    def resubmit(self, started_at: float) -> int:
        """Return that the study can be resumed: there is no queue."""
        return ExitCode.STOPPED


def over_ssh(job: LaunchJob, host: Host, line: str) -> list[str]:
    """Return a remote shell that asks for no password; the end of its input tells the agent that we are gone."""
    return ["ssh", *_ALIVE, *(job.ssh_options or ()), host.name, line]


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `[user@]name[:cpus]`, with commas between them.

    Raises:
        SpaceError: One has another form, or none is given, or one is given twice.
    """
    hosts = []
    for each in [part.strip() for part in text.split(",")]:
        match = re.fullmatch(r"((?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*)(?::(\d+))?", each, flags=re.ASCII)
        if match is None or match[2] == "0":
            rule, fix = "must be [user@]name[:cpus] each", "Write them like lab-1:16,lab-2:16."
            raise wrong_option("--hosts", rule=rule, got=each, fix=fix)
        hosts.append(Host(name=match[1], num_cpus=None if match[2] is None else int(match[2])))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise wrong_option("--hosts", rule="must be different hosts", got=", ".join(names), fix="List each once.")
    return tuple(hosts)


def dashboard_line(head: str, port: int, *, jump: str = "", user: str = "") -> str:
    """Return the `ssh -L` line by which a laptop reaches Ray's dashboard, which listens on loopback on the head.

    Args:
        head: Host on which it listens, as the laptop or the front-end knows it; may begin with `user@`.
        port: Where it listens there.
        jump: Front-end through which the host is reached; may begin with `user@`.
        user: Name on both, where it is not that of the laptop.

    Raises:
        LaunchError: A host or a user would be read as an option or as more than a name.
    """
    target, way_in = (host if not user or "@" in host else f"{user}@{host}" for host in (head, jump))
    for name in (target, way_in) if jump else (target,):
        if not re.fullmatch(TARGET, name, flags=re.ASCII):
            fix = "Name them like me@front-end."
            raise LaunchError(where="ssh", rule="must be [user@]name", got=repr(name), fix=fix)
    way = ["-J", way_in] if jump else []
    line = shlex.join(["ssh", "-N", "-L", f"{DASHBOARD_PORT}:127.0.0.1:{port}", *way, target])
    return f"{line}  # Ray dashboard: http://127.0.0.1:{DASHBOARD_PORT}"


LAUNCHERS: dict[str, type[Launcher]] = {each.name: each for each in (Slurm, Oar, Pbs, Ssh)}


def read_launcher(file: Path) -> Launcher:
    """Return the launcher of a job from its `launch.json`.

    Raises:
        LaunchError: The file cannot be read, or names a launcher that does not exist.
    """
    job = LaunchJob.read(file)
    if job.launcher not in LAUNCHERS:
        rule = f"must name a launcher, one of {', '.join(LAUNCHERS)}"
        raise LaunchError(where=str(file), rule=rule, got=job.launcher, fix="Launch it again.")
    return LAUNCHERS[job.launcher](job, file.resolve().parent)
