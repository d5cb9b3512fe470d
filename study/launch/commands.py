"""`python -m study launch`: a subcommand for each launcher, and two that write files for other programs.

Shows what a job reserves and what the plan needs, then submits it, or runs it here. Imports no engine.
"""

import functools
import inspect
import math
import shlex
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import typer

from study.console import write
from study.designs.registry import make_plan
from study.errors import ExitCode
from study.harmless import mask_credentials
from study.launch.job import JOB_FILE, written
from study.launch.launcher import BatchScheduler, Launcher, NoAnswerError, clock
from study.launch.manifests import KubeRayOptions, Manifests, RayUpOptions, kuberay, ray_up
from study.launch.options import BatchOptions, JobOptions, LaunchOptions
from study.launch.schedulers import LAUNCHERS, parse_hosts
from study.options import command_app, examples
from study.planning.needs import num_cpus
from study.planning.shape import UNKNOWN, ClusterShape, NodeShape
from study.space.spec import StudySpec
from study.text import count, cpu_hours

app = command_app("Run a study as a job: start Ray on several nodes, resume when requeued, leave nothing behind.")


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
        _say(f"\n# {file}\n{text}")
        _say(f"Submit with: {shlex.join([*launcher.submit_command, str(file)])}")
        return 0
    no_answer = None
    with written(folder, {**launcher.job.files(), file.name: text}):
        file.chmod(0o700)
        if start := launcher.foreseen_start(file):
            _say(f"{launcher.name.upper()} foresees a start at {start}.")
        try:
            job_id = launcher.submit(file)
        except NoAnswerError as error:
            no_answer = error  # the job may be queued, and needs its files
    if no_answer is not None:
        raise no_answer
    _say(f"Submitted as job {job_id}. Its log: {launcher.log(job_id)}")
    _say(f"Watch it: {shlex.join(['python', '-m', 'study', 'status', launcher.job.study, '--watch'])}")
    if launcher.job.dashboard:
        _say("The job's log has the ssh line for Ray's dashboard once Ray is up.")
    return 0


def _run_here(launcher: Launcher, *, only_print: bool) -> int:
    """Run the supervisor in the foreground."""
    from study.launch.supervisor import supervise

    job = launcher.job
    if only_print:
        _say(mask_credentials(job.model_dump_json(indent=1, exclude={"inputs"})))
        return 0
    with written(launcher.folder, job.files()):
        code = supervise(launcher.folder / JOB_FILE)
        if code == ExitCode.NO_CLUSTER:
            raise typer.Exit(code)  # nothing was begun, and nothing is left
    head = parse_hosts(job.hosts)[0].name
    study = PurePosixPath(job.workdir) / job.study  # which may be absolute
    _say(f"\nThe study is in {study} on {head}. To fetch it:")
    _say(f"  rsync -a {shlex.join([f'{head}:{study}', 'studies/'])}")
    return code


def _say_plan(launcher: Launcher, spec: StudySpec) -> None:
    """Say what is reserved and what the plan needs, and refuse what can never fit."""
    job, sizes = launcher.job, launcher.planned_cpus()
    where = count(len(sizes), "node")
    if launcher.has_own_size:
        where = "the nodes, and for the time, that the options after -- ask for"
    elif job.walltime_s is not None:
        size = f" x {job.cpus_per_node} CPUs" if job.cpus_per_node else ", whole,"
        where += f"{size} for at most {clock(job.walltime_s)}"
    _say(f"{job.name} on {where}")
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
    if (len(sizes) > 1 or launcher.has_own_size) and not job.use_head:
        _say(
            "The first node of several runs Ray's head and the study's driver, and no trials: its CPUs are reserved "
            "but not in the plan. --use-head lets trials run there too."
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


def write_manifests(make: Callable[[Any], Manifests], options: LaunchOptions) -> int:
    """Write the files of another program, or only show the first, and say what to type; return the exit code."""
    made = make(options)
    if options.print_:
        write(next(iter(made.files.values())))
    else:
        with written(options.folder, made.files):
            pass
        _say(f"Wrote {', '.join(str(options.folder / name) for name in made.files)}. Now type:")
    _say(f"\n{made.commands}")
    return 0


def _say(text: str) -> None:
    write(f"{text}\n")


def _add(name: str, options: type[LaunchOptions], act: Callable[[Any], int]) -> None:
    """Add a subcommand.

    Args:
        name: Of the subcommand.
        options: Its options, the own ones of the class first; the docstring is the help.
        act: Takes the options and returns the exit code.
    """
    takes_more = issubclass(options, BatchOptions)

    def command(context: typer.Context, **values: Any) -> None:
        if takes_more:
            values["scheduler_options"] = tuple(context.args)
            argument = values["space_argument"]
            if values["space"] and argument is not None and argument.startswith("-"):
                # With --space, the first word after `--` takes the place of the argument.
                values |= {"space_argument": None, "scheduler_options": (argument, *values["scheduler_options"])}
        raise typer.Exit(act(options(**values)))

    own_first = [field for each in options.__mro__ for field in inspect.get_annotations(each)]
    fields = [each for field, each in inspect.signature(options).parameters.items() if field != "scheduler_options"]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *sorted(fields, key=lambda each: own_first.index(each.name))]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = options.__doc__
    settings = {"allow_extra_args": takes_more}
    epilog = examples(options.example)
    app.command(name, context_settings=settings, epilog=epilog)(command)


for _name, _kind in LAUNCHERS.items():
    _add(_name, _kind.Options, functools.partial(launch, _kind))
_add("ray-up", RayUpOptions, functools.partial(write_manifests, ray_up))
_add("kuberay", KubeRayOptions, functools.partial(write_manifests, kuberay))
