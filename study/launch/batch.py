"""The script of a batch job, its submission, and what the scheduler foresees. Runs only the scheduler's commands."""

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study.errors import LaunchError
from study.launch.job import JOB_FILE, LaunchJob, SchedulerName
from study.launch.manifest import fill

NOTICE_S = 120
"""So long before its end a job is told, where the scheduler can."""
EARLY_S = 60
"""How much earlier SLURM may tell it."""
LEAST_WALLTIME_S = NOTICE_S + EARLY_S
"""A shorter job would be told of its end as it begins."""
ASK_TIMEOUT_S = 60.0
OAR_FORESIGHT_S = 10.0
"""How long OAR's scheduler may take to foresee a start."""


class NoAnswerError(LaunchError):
    """The scheduler may have taken the job, and did not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of the scheduler."""

    name: str
    nodes: int
    cpus_per_node: int | None
    """None: whole nodes."""
    walltime_s: int
    besteffort: bool = False
    passed_on: tuple[str, ...] = ()
    """Options of the scheduler's own, as words of a command line."""


def script(job: LaunchJob, request: Request, folder: Path) -> str:
    """Return the job's script: directives, the environment, and the supervisor in place of the shell.

    In place of it, since a shell loses signals that come together, and its children do not hear them.
    """
    start = [f"{line} || exit" for line in (f"cd {shlex.quote(job.workdir)}", job.activate) if line]
    words = [*shlex.split(job.python), "-u", "-m", "study.launch.supervisor", str(folder / JOB_FILE)]
    return fill(
        f"{job.scheduler}.sh.j2",
        options=_options(job.scheduler, request, folder),
        notice_s=NOTICE_S,
        resubmit=job.resubmit,
        body="\n".join([*start, f"exec {shlex.join(words)}"]),
    )


def _options(scheduler: SchedulerName, request: Request, folder: Path) -> list[str]:
    hours = clock(request.walltime_s)
    given = _grouped(request.passed_on, scheduler)
    log = shlex.quote(f"{folder}/job-")
    if scheduler == "slurm":
        cpus = f"--cpus-per-task={request.cpus_per_node}" if request.cpus_per_node else "--exclusive"
        size = [f"--nodes={request.nodes}", "--ntasks-per-node=1", cpus, f"--time={hours}"]
        ours = [f"--job-name={request.name}", *size, f"--output={log}%j.log"]
    elif scheduler == "oar":
        _check_for_oar(folder)
        cores = f"/core={request.cpus_per_node}" if request.cpus_per_node else ""
        # A second -l would be an alternative, of which OAR takes the one that starts first.
        own = any(re.match(r"(-l|--resource)", option) for option in given)
        size = [] if own else [f"-l /host={request.nodes}{cores},walltime={hours}"]
        ours = [f"-n {request.name}", *size, *(["-t besteffort"] if request.besteffort else [])]
        ours += [f"-O {log}%jobid%.log", f"-E {log}%jobid%.log"]
    else:
        count = request.cpus_per_node  # as many MPI processes, so that the node file has a line for each CPU
        ours = [f"-N {request.name[:15]}", f"-l select={request.nodes}:ncpus={count}:mpiprocs={count}"]
        ours += ["-l place=scatter", f"-l walltime={hours}", "-j oe", f"-o {shlex.quote(f'{folder}/')}"]
    return [*ours, *given]  # the last one wins: what was given, which the templates put after their own


def _check_for_oar(folder: Path) -> None:
    """Refuse a folder that OAR would not find again: it unquotes no file name, and puts some into a line of a shell."""
    if re.search(r"[^\w@%+=:,./-]", str(folder)):
        raise LaunchError(
            f"--out: OAR takes a folder without blanks, quotes and other signs of a shell, got '{folder}'. "
            "Fix: choose another --out, --workdir or --name."
        )


def _grouped(words: Sequence[str], scheduler: SchedulerName) -> list[str]:
    """Return options with their values, one each: a directive line holds one.

    They are quoted as their reader unquotes them: OAR's scan_script takes the text as it stands, and no `=` between a
    long option and its value.
    """
    options: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    for option in options:
        if not option[0].startswith("-") or any("\n" in word for word in option):
            raise LaunchError(f"after --: options of the scheduler, got '{option[0]}'. Fix: begin each with a dash.")
    if scheduler == "oar":
        return [re.sub(r"^(--[\w-]+)=", r"\1 ", " ".join(option)) for option in options]
    return [shlex.join(option) for option in options]


def submit_command(scheduler: SchedulerName, file: Path) -> list[str]:
    """Return the command that submits a script."""
    match scheduler:
        case "slurm":
            return ["sbatch", "--parsable", str(file)]
        case "oar":
            return ["oarsub", "-S", str(file)]
        case _:
            return ["qsub", str(file)]


def submit(scheduler: SchedulerName, file: Path) -> str:
    """Submit a script and return the job's id.

    Raises:
        LaunchError: The scheduler is not here, or refuses.
    """
    said = _ask(submit_command(scheduler, file))
    pattern = {"slurm": r"^(\d+)", "oar": r"OAR_JOB_ID=(\d+)", "pbs": r"^(\S+)"}[scheduler]
    match = re.search(pattern, said, flags=re.MULTILINE)
    if match is None:
        raise NoAnswerError(
            f"{scheduler}: must answer with a job id, got '{said.strip()[:200]}'. "
            "Fix: look whether the job is queued before you launch it again."
        )
    return match[1]


def foreseen_start(scheduler: SchedulerName, file: Path) -> str:
    """Return when the scheduler would start the script, in its own words; nothing is submitted.

    Raises:
        LaunchError: The scheduler would refuse the script.
    """
    if scheduler != "slurm":
        return ""
    said = _ask(["sbatch", "--test-only", str(file)], both=True)
    match = re.search(r"to start at (\S+)", said)
    return "" if match is None else match[1].replace("T", " ")


def foreseen_start_of(scheduler: SchedulerName, job_id: str) -> str:
    """Return when a submitted job is foreseen to start; empty where the scheduler does not say within seconds.

    It raises nothing: the job is there.
    """
    if scheduler != "oar":
        return ""
    deadline = time.monotonic() + OAR_FORESIGHT_S
    while time.monotonic() < deadline:
        said = ""
        with contextlib.suppress(LaunchError):
            said = _ask(["oarstat", "-fj", job_id])
        if state := re.search(r"state = (\w+)", said):
            if state[1] in ("Running", "Launching", "toLaunch"):
                return "now"
            if match := re.search(r"(?:scheduledStart|scheduled_start|startTime) = (\d{4}\S+ \S+|\d{9,})", said):
                value = match[1]
                return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(value))) if value.isdigit() else value
        time.sleep(1)
    return ""


def _ask(command: list[str], *, both: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except FileNotFoundError as error:
        raise LaunchError(
            f"{command[0]}: must be on this machine's PATH. Fix: launch on the front-end, or see the job with --print."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{command[0]}: must answer within {ASK_TIMEOUT_S:.0f} s. "
            "Fix: look whether the job is queued, and try again later."
        ) from error
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())[-500:]
        raise LaunchError(f"{command[0]}: must accept the job, got: {reason} Fix: change the options after --.")
    return done.stdout + (done.stderr if both else "")


def clock(seconds: int) -> str:
    """Return a duration as every scheduler reads it: `36:00:00`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
