"""`python -m study launch`: options into a job, what it will cost, the script, the submission."""

import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rich.console import Console

from study.errors import ExitCode, StudyError
from study.harmless import mask_credentials
from study.launch import batch
from study.launch.job import JOB_FILE, LaunchJob
from study.launch.manifest import WrittenFiles
from study.launch.ssh import parse_hosts
from study.planning.needs import num_cpus
from study.planning.plan import make_plan
from study.planning.shape import UNKNOWN, ClusterShape, NodeShape
from study.space.spec import StudySpec
from study.text import cpu_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a person asked for, checked."""

    job: LaunchJob
    request: batch.Request | None
    """None for `ssh`."""
    spec: StudySpec
    name: str
    folder: Path
    """Of the job: beside the study's, which a study makes itself."""


def launch(console: Console, asked: Launch, *, only_print: bool) -> int:
    """Show what a job will be, submit it or run it; return the exit code.

    Raises:
        LaunchError: The scheduler refuses it. Nothing is raised once it has taken the job, which would invite another.
        ClusterError: The space's largest trial does not fit the nodes.
    """
    say = Teller(console)
    _show_plan(say, asked)
    if asked.request is None:
        return _over_ssh(say, asked, only_print=only_print)
    file, text = asked.folder / "job.sh", batch.script(asked.job, asked.request, asked.folder)
    if only_print:
        say(f"\n# {file}")
        sys.stdout.write(text)
        say(f"\nSubmit with: {shlex.join(batch.submit_command(asked.job.scheduler, file))}")
        return 0
    written = WrittenFiles(asked.folder, {**asked.job.files(), file.name: text})
    try:
        file.chmod(0o700)
        if start := batch.foreseen_start(asked.job.scheduler, file):
            say(f"{asked.job.scheduler.upper()} foresees a start at {start}.")
        job_id = batch.submit(asked.job.scheduler, file)
    except StudyError as error:
        if not isinstance(error, batch.NoAnswerError):
            written.undo()
        raise
    say(f"Submitted as job {job_id}. Its log: {asked.folder}/job-{job_id}.log")
    if start := batch.foreseen_start_of(asked.job.scheduler, job_id):
        say(f"{asked.job.scheduler.upper()} foresees a start at {start}." if start != "now" else "It starts now.")
    say(f"Watch it: {shlex.join(['python', '-m', 'study', 'status', asked.job.study, '--watch'])}")
    if asked.job.dashboard:
        say("The ssh line for Ray's dashboard is in its log once Ray is up: its port is known then.")
    return 0


def _over_ssh(say: "Teller", asked: Launch, *, only_print: bool) -> int:
    """Run the supervisor here, in the foreground."""
    from study.launch.supervisor import supervise

    if only_print:
        sys.stdout.write(mask_credentials(asked.job.model_dump_json(indent=1, exclude={"space_text"})) + "\n")
        return 0
    written = WrittenFiles(asked.folder, asked.job.files())
    code = supervise(asked.folder / JOB_FILE)
    if code == ExitCode.NO_CLUSTER:
        written.undo()
        return code
    head = parse_hosts(asked.job.hosts)[0].name
    study = PurePosixPath(asked.job.workdir) / asked.job.study  # which may be absolute
    say(f"\nThe study is in {study} on {head}. To fetch it:")
    say(f"  rsync -a {shlex.join([f'{head}:{study}', 'studies/'])}")
    return code


def _show_plan(say: "Teller", asked: Launch) -> None:
    """Say what is reserved and what the plan needs, and refuse what can never fit."""
    job, request = asked.job, asked.request
    sizes = [request.cpus_per_node] * request.nodes if request else [host.num_cpus for host in parse_hosts(job.hosts)]
    if job.cpus_per_node is not None:
        sizes = [job.cpus_per_node] * len(sizes)
    where = f"{len(sizes)} node{'s' if len(sizes) != 1 else ''}"
    if request is not None:
        size = f" x {request.cpus_per_node} CPUs" if request.cpus_per_node else ", whole,"
        say(f"{asked.name} on {where}{size} for at most {batch.clock(request.walltime_s)}", style="bold")
    else:
        say(f"{asked.name} on {where}", style="bold")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        say("How many CPUs that is, and whether the largest trial fits, is known when the job runs there.")
    else:
        if request is not None:
            cost = sum(known) * request.walltime_s / 3600
            again = " It is requeued until the study is complete; each life costs that much." if job.resubmit else ""
            say(f"Reserves at most {cpu_hours(cost)}.{again}")
        plan = make_plan(asked.spec, ClusterShape(nodes=_nodes(known, use_head=job.use_head)))
        whole = plan.hours * plan.cluster.capacity
        say(
            f"The plan: {plan.num_trials} trials, about {_hours(plan.hours)} there, {cpu_hours(whole)} "
            "(guessed, good to a factor of three)."
        )
        if emulated := [scale.num_env_runners for scale in plan.scales if scale.execution == "emulated"]:
            need = num_cpus(asked.spec, emulated[0], "real")
            say(
                f"Emulated there, so without a clock: trials of {', '.join(map(str, emulated))} runners. "
                f"Real ones of {emulated[0]} need {need} CPUs at once."
            )
    if len(sizes) > 1 and not job.use_head:
        say(
            "The first node carries Ray's head and the study's driver, and no trials: its CPUs are reserved but not in "
            "the plan. --use-head lets trials run there too."
        )


def _nodes(sizes: list[int], *, use_head: bool) -> tuple[NodeShape, ...]:
    """Return the cluster that a job will have, as far as it is known before; a head without trials is no part of it."""
    head, *others = sizes
    cpus = [head if use_head or not others else 0, *others]
    return tuple(
        NodeShape(address=f"node {index}", num_cpus=count, physical_cpus=count, memory_mb=UNKNOWN, num_gpus=UNKNOWN)
        for index, count in enumerate(cpus, start=1)
        if count
    )


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{math.ceil(hours * 60)} min"


class Teller:
    """Prints plain lines: names and paths are never markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, text: str, *, style: str | None = None) -> None:
        """Print a line."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
