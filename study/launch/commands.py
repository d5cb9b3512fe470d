"""`python -m study launch`: a subcommand for each launcher, and two that write files for other programs.

Shows what a job reserves and what the plan needs, then submits it, or runs it here. Imports no engine.
"""

import functools
import math
import shlex
import sys
from pathlib import PurePosixPath

import typer

from study.console import SteadyConsole
from study.designs.registry import make_plan
from study.errors import ExitCode, StudyError
from study.harmless import mask_credentials
from study.launch.base import BatchScheduler, Launcher, NoAnswerError, clock
from study.launch.files import WrittenFiles
from study.launch.job import JOB_FILE
from study.launch.launchers import LAUNCHERS
from study.launch.manifests import KubeRayOptions, RayUpOptions, show_kuberay, show_ray_up
from study.launch.options import JobOptions, command_of
from study.launch.ssh import parse_hosts
from study.planning.needs import num_cpus
from study.planning.shape import UNKNOWN, ClusterShape, NodeShape
from study.space.spec import StudySpec
from study.text import cpu_hours

app = typer.Typer(
    help="Run a study as a job: start Ray on several nodes, resume when requeued, leave nothing behind.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def launch(kind: type[Launcher], options: JobOptions) -> int:
    """Show what a job will be, and submit it or run it; return the exit code.

    Raises:
        LaunchError: The scheduler refuses it. Nothing is raised once it has taken the job, which would invite another.
        ClusterError: The space's largest trial does not fit the nodes.
        SpaceError: The space is wrong.
    """
    launcher = kind(options.job(kind.name), options.folder)
    _say_plan(launcher, options.spec)
    if isinstance(launcher, BatchScheduler):
        return _submit(launcher, only_print=options.print_)
    return _run_here(launcher, only_print=options.print_)


def _submit(launcher: BatchScheduler, *, only_print: bool) -> int:
    folder, file, text = launcher.folder, launcher.folder / "job.sh", launcher.script()
    if only_print:
        _say(f"\n# {file}")
        sys.stdout.write(text)
        _say(f"\nSubmit with: {shlex.join([*launcher.submit_command, str(file)])}")
        return 0
    written = WrittenFiles(folder, {**launcher.job.files(), file.name: text})
    title = launcher.name.upper()
    try:
        file.chmod(0o700)
        if start := launcher.foreseen_start(file):
            _say(f"{title} foresees a start at {start}.")
        job_id = launcher.submit(file)
    except StudyError as error:
        if not isinstance(error, NoAnswerError):
            written.undo()
        raise
    _say(f"Submitted as job {job_id}. Its log: {folder}/job-{job_id}.log")
    if start := launcher.foreseen_start_of(job_id):
        _say("It starts now." if start == "now" else f"{title} foresees a start at {start}.")
    _say(f"Watch it: {shlex.join(['python', '-m', 'study', 'status', launcher.job.study, '--watch'])}")
    if launcher.job.dashboard:
        _say("The job's log has the ssh line for Ray's dashboard once Ray is up.")
    return 0


def _run_here(launcher: Launcher, *, only_print: bool) -> int:
    """Run the supervisor in the foreground."""
    from study.launch.supervisor import supervise

    job = launcher.job
    if only_print:
        sys.stdout.write(mask_credentials(job.model_dump_json(indent=1, exclude={"inputs"})) + "\n")
        return 0
    written = WrittenFiles(launcher.folder, job.files())
    code = supervise(launcher.folder / JOB_FILE)
    if code == ExitCode.NO_CLUSTER:
        written.undo()
        return code
    head = parse_hosts(job.hosts)[0].name
    study = PurePosixPath(job.workdir) / job.study  # which may be absolute
    _say(f"\nThe study is in {study} on {head}. To fetch it:")
    _say(f"  rsync -a {shlex.join([f'{head}:{study}', 'studies/'])}")
    return code


def _say_plan(launcher: Launcher, spec: StudySpec) -> None:
    """Say what is reserved and what the plan needs, and refuse what can never fit."""
    job, sizes = launcher.job, launcher.planned_cpus()
    where = f"{len(sizes)} node{'s' if len(sizes) != 1 else ''}"
    if job.walltime_s is not None:
        size = f" x {job.cpus_per_node} CPUs" if job.cpus_per_node else ", whole,"
        where += f"{size} for at most {clock(job.walltime_s)}"
    _say(f"{job.name} on {where}", style="bold")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        _say("How many CPUs that is, and whether the largest trial fits, is known when the job runs there.")
    else:
        if job.walltime_s is not None:
            again = " It is requeued until the study is complete; each job costs that much." if job.resubmit else ""
            _say(f"Reserves at most {cpu_hours(sum(known) * job.walltime_s / 3600)}.{again}")
        plan = make_plan(spec, ClusterShape(nodes=_nodes(known, use_head=job.use_head)))
        cost = cpu_hours(plan.hours * plan.cluster.capacity)
        hours = f"{plan.hours:.1f} h" if plan.hours >= 1 else f"{math.ceil(plan.hours * 60)} min"
        _say(f"The plan: {plan.num_trials} trials, about {hours} there, {cost} (guessed, within a factor of three).")
        if emulated := [scale.num_env_runners for scale in plan.scales if scale.execution == "emulated"]:
            need = num_cpus(spec, emulated[0], "real")
            _say(
                f"Emulated there, so their timing is not measured: trials of {', '.join(map(str, emulated))} runners. "
                f"Real ones of {emulated[0]} need {need} CPUs at once."
            )
    if len(sizes) > 1 and not job.use_head:
        _say(
            "The first node runs Ray's head and the study's driver, and no trials: its CPUs are reserved but not in "
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


def _say(text: str, *, style: str | None = None) -> None:
    """Print a line; names and paths in it are never markup."""
    console = SteadyConsole(width=None if sys.stdout.isatty() else 140)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


for _name, _kind in LAUNCHERS.items():
    _settings = {"allow_extra_args": issubclass(_kind, BatchScheduler)}
    app.command(_name, context_settings=_settings)(command_of(_kind.Options, functools.partial(launch, _kind)))
app.command("ray-up")(command_of(RayUpOptions, show_ray_up))
app.command("kuberay")(command_of(KubeRayOptions, show_kuberay))
