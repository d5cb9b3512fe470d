"""`python -m study launch`: one command, whose first word says how the study gets its hosts.

It makes the description of the job from its options, shows what the job reserves and what the plan needs, then submits
it, runs it here, or writes the files that another program reads.
"""

import math
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
import typer

from study.console import write
from study.designs.registry import make_plan
from study.errors import ExitCode
from study.harmless import mask_credentials
from study.launch.job import JOB_FILE, SCRIPT, Job, parse_hosts, written
from study.launch.manifests import kuberay, ray_up
from study.launch.node import LONGEST_TEMP_ROOT
from study.launch.schedulers import LAUNCHERS, SCHEDULERS, Launcher, NoAnswerError, Scheduler, clock
from study.machine.shape import UNKNOWN, ClusterShape, NodeShape
from study.mirrors.tracking_uri import asked_uri
from study.options import (
    Replicate,
    Set,
    Space,
    Trials,
    checked_name,
    checked_stage,
    command_app,
    examples,
    load,
    one_space,
    seconds,
    wrong_option,
)
from study.planning.needs import num_cpus
from study.space.space_file import find_space
from study.space.spec import StudySpec
from study.text import count, cpu_hours

LEAST_WALLTIME_S = 180
"""A shorter job would get the signal of its end as it begins."""
BATCH = tuple(SCHEDULERS)
ON_HOSTS = (*BATCH, "ssh", "ray-up")
"""Where Ray starts on hosts with a Python of their own."""
_ONLY: Mapping[str, tuple[str, ...]] = {
    "hosts": ("ssh", "ray-up"),
    "ssh_option": ("ssh", "pbs"),
    "nodes": (*BATCH, "kuberay"),
    "walltime": (*BATCH, "kuberay"),
    "resubmit": BATCH,
    "besteffort": ("oar",),
    **dict.fromkeys(("python", "activate", "interface", "port_base", "wait"), ON_HOSTS),
    **dict.fromkeys(("workdir", "temp_root"), (*BATCH, "ssh")),
    **dict.fromkeys(("ssh_key", "head_ip"), ("ray-up",)),
    **dict.fromkeys(("image", "memory_gb"), ("kuberay",)),
}
"""Option -> the launchers that it is for; the others are for all."""
_NEEDED = {"ssh": ["hosts"], "ray-up": ["hosts"], "pbs": ["cpus_per_node"], "kuberay": ["image", "cpus_per_node"]}

app = command_app()


def _for(name: str, about: str, **more: Any) -> Any:
    """Return an option whose help begins with the launchers that it is for."""
    return typer.Option(help=f"{', '.join(_ONLY[name])}: {about}", **more)


@app.command(
    epilog=examples(
        "python -m study launch slurm scaling.yaml --nodes 4 --cpus-per-node 24 --walltime 2:00:00 -- --partition=cpu",
        """python -m study launch oar scaling.yaml --nodes 2 --walltime 4:00:00 --besteffort -- -p "cluster='gros'\"""",
        "python -m study launch pbs scaling.yaml --nodes 2 --cpus-per-node 24 --walltime 4:00:00 -- -q workq",
        "python -m study launch ssh scaling.yaml --hosts lab-1:16,lab-2:16,me@lab-3:8",
        "python -m study launch ray-up scaling.yaml --hosts lab-1:8,lab-2:16,lab-3:16",
        "python -m study launch kuberay scaling.yaml --nodes 3 --cpus-per-node 16 --image example.org/study:1",
    ),
)
def launch(
    context: typer.Context,
    where: Annotated[Literal["slurm", "oar", "pbs", "ssh", "ray-up", "kuberay"], typer.Argument(help="What to use.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SPACE [-- OPTIONS]", help="The space; behind -- options for sbatch, oarsub or qsub."),
    ] = None,
    space: Space = None,
    print_: Annotated[bool, typer.Option("--print", help="Show what would be written, and do nothing.")] = False,
    nodes: Annotated[int, _for("nodes", "number of nodes.", min=1)] = 1,
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each node for Ray; by default all of the node that the job has.")
    ] = None,
    walltime: Annotated[str | None, _for("walltime", "longest duration of one job (1h by default): 90m.")] = None,
    resubmit: Annotated[
        bool,
        typer.Option("--resubmit/--no-resubmit", help="Schedulers: queue the job again until the study is complete."),
    ] = True,
    besteffort: Annotated[
        bool, typer.Option("--besteffort", help="oar: use idle resources; killed when somebody wants them.")
    ] = False,
    hosts: Annotated[str, _for("hosts", "the hosts, as [user@]name[:cpus], with commas; the head first.")] = "",
    ssh_option: Annotated[list[str] | None, _for("ssh_option", "an option for ssh, e.g. -p2222; repeatable.")] = None,
    ssh_key: Annotated[str, _for("ssh_key", "private key for the hosts; Ray copies it to the first.")] = "",
    head_ip: Annotated[str, _for("head_ip", "address at which the others reach the first host.")] = "",
    image: Annotated[str, _for("image", "image with this project, e.g. registry.example.org/me/study:1.")] = "",
    memory_gb: Annotated[int | None, _for("memory_gb", "memory of each node; else its CPUs + 2.", min=2)] = None,
    use_head: Annotated[bool, typer.Option("--use-head", help="Let trials run on the first node of several too.")] = (
        False
    ),
    name: Annotated[str | None, typer.Option(help="Name of the study; by default that of the space.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that holds the studies, on the nodes.")] = Path("studies"),
    workdir: Annotated[
        Path | None, typer.Option(help="Folder in which everything runs, on every node; by default this one.")
    ] = None,
    python: Annotated[str, typer.Option(help="Interpreter on every node; by default this one.")] = shlex.quote(
        sys.executable
    ),
    activate: Annotated[str, typer.Option(help="Shell line before it, e.g. 'module load python'.")] = "",
    interface: Annotated[str, typer.Option(help="Network interface for Ray, e.g. ib0.")] = "",
    port_base: Annotated[
        int | None, typer.Option(min=1024, max=65000, help="First port that Ray may use, rounded up to thousands.")
    ] = None,
    temp_root: Annotated[str, typer.Option(help="Short folder on each node's own disk.")] = "/tmp",
    wait: Annotated[str, typer.Option(help="How long Ray may take to start on all nodes.")] = "5m",
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow, as the first node reaches it.")] = None,
    optuna_storage: Annotated[str | None, typer.Option(help="The same as of `python -m study run`.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The same as of `python -m study run`.")] = False,
    until: Annotated[str | None, typer.Option(help="Last stage of a hold-up study, such as race.")] = None,
    replicate: Replicate = None,
    trials: Trials = None,
    set_: Set = None,
) -> None:
    """Run a study as a job: start Ray on several nodes, resume when requeued, leave nothing behind.

    `slurm`, `oar` and `pbs` submit a job, `ssh` runs on a list of hosts in the foreground, `ray-up` and `kuberay` write
    files for these programs.
    """
    _check_options(context, where)
    first, *rest = words or [""]
    named, passed_on = (first, tuple(rest)) if not first.startswith("-") else (None, (first, *rest))
    if passed_on and where not in BATCH:
        rule, fix = "only a scheduler takes more options", "Drop them; ssh has --ssh-option."
        raise wrong_option("after --", rule=rule, got=passed_on[0], fix=fix)
    file = find_space(one_space(named or None, space))
    spec = load(str(file), set_, replicate, trials)
    if until is not None:
        checked_stage(until, spec)
    arguments = {
        "--tracking-uri": asked_uri(tracking_uri),
        "--optuna-storage": optuna_storage,
        "--until": until,
        "--replicate": replicate,
        "--trials": trials,
    }
    given = [word for option, value in arguments.items() if value is not None for word in (option, str(value))]
    given += [*(["--tensorboard"] if tensorboard else []), *(word for each in set_ or [] for word in ("--set", each))]
    here = workdir or Path.cwd()
    if where in BATCH:
        here = here.absolute()
        out = here / out
    changed = {
        "name": checked_name(name or file.stem),
        "out": str(out),
        "space": str(file.resolve()),
        "space_text": "" if where in BATCH else file.read_text(encoding="utf-8-sig"),
        "arguments": tuple(given),
        "workdir": str(here),
        "ssh_options": tuple(ssh_option or ()),
        "scheduler_options": (*(("-t", "besteffort") if besteffort else ()), *passed_on),
        "wait_s": seconds(wait, "--wait"),
        "walltime_s": int(seconds(walltime or "1h", "--walltime")) if where in BATCH or walltime else None,
        "resubmit": resubmit and where in BATCH,
        "ssh_key": str(Path(ssh_key).resolve()) if ssh_key else "",
    }
    as_given = {option: value for option, value in context.params.items() if option in Job.__struct_fields__}
    job = Job(**{"launcher": where, **as_given, **changed})
    folder = Path(job.out).resolve() / f"{job.name}.launch"  # beside that of the study, which a study makes itself
    check_job(job, folder)
    if where in LAUNCHERS:
        raise typer.Exit(start(Launcher(job, folder), spec, only_print=print_))
    texts, commands = (ray_up if where == "ray-up" else kuberay)(job, folder, spec)
    if print_:
        write(next(iter(texts.values())))
    else:
        with written(folder, texts):
            pass
        _say(f"Wrote {', '.join(str(folder / each) for each in texts)}. Now type:")
    _say(f"\n{commands}")


def _check_options(context: typer.Context, where: str) -> None:
    """Refuse options that are for other launchers, and the lack of one that this needs."""
    missing = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        is_given, option = source is not None and source.name == "COMMANDLINE", f"--{name.replace('_', '-')}"
        if is_given and where not in _ONLY.get(name, (where,)):
            rule, fix = f"is for {', '.join(_ONLY[name])}", f"Drop it: `launch {where}` has no use for it."
            raise wrong_option(option, rule=rule, got=f"launch {where}", fix=fix)
        if not is_given and name in _NEEDED.get(where, ()):
            missing.append(option)
    if missing:
        options = " and ".join(missing)
        raise wrong_option(options, rule=f"must be given for `launch {where}`", fix=f"Add {options}.")


def check_job(job: Job, folder: Path) -> None:
    """Refuse what cannot work: a second line, too long a path for sockets, too short a job, a Python that is none.

    Raises:
        SpaceError: It cannot.
    """
    _check_one_line(job, folder)
    if not job.temp_root.startswith("/") or len(os.fsencode(job.temp_root)) > LONGEST_TEMP_ROOT:
        rule = f"must be an absolute path of at most {LONGEST_TEMP_ROOT} bytes (paths of sockets are limited)"
        fix = "Name /tmp, or a short folder on each node's own disk."
        raise wrong_option("--temp-root", rule=rule, got=job.temp_root, fix=fix)
    try:
        python = shlex.split(job.python)
    except ValueError:
        python = []
    if not python or (job.launcher in BATCH and len(python) > 1):
        # A job calls the scheduler's own commands, which a container does not have.
        rule = "must be one program" if python else "must be words of a shell"
        fix = "Name an interpreter that all nodes see, with --activate before it; `launch ssh` takes a container too."
        raise wrong_option("--python", rule=rule, got=job.python, fix=fix)
    if job.launcher in BATCH and (job.walltime_s or 0) < LEAST_WALLTIME_S:
        rule = f"must be {LEAST_WALLTIME_S} s or more, to start Ray and to end cleanly in"
        raise wrong_option("--walltime", rule=rule, got=f"{job.walltime_s} s", fix="Raise it.")
    if job.hosts:
        parse_hosts(job.hosts)


def _check_one_line(job: Job, folder: Path) -> None:
    """Refuse control characters, which would begin another line of a script or of a printed command."""
    named = {"scheduler_options": "after --", "ssh_options": "--ssh-option"}
    for name, value in [("workdir", job.workdir), ("out", folder), *msgspec.structs.asdict(job).items()]:
        option = named.get(name, f"--{name.replace('_', '-')}")
        for text in map(str, value if isinstance(value, tuple) else (value,)):
            if not text.isprintable() and name != "space_text":
                rule, fix = "must be one line without control characters", "Remove them; join commands by &&."
                raise wrong_option(option, rule=rule, got=repr(text), fix=fix)
            option = text if name == "arguments" and text.startswith("--") else option


def start(launcher: Launcher, spec: StudySpec, *, only_print: bool) -> int:
    """Show what a job will be, and submit it or run it here; return the exit code.

    Raises:
        LaunchError: The scheduler refuses it. Nothing is raised once it has taken the job, which would invite another.
        ClusterError: The space's largest trial does not fit the nodes.
    """
    _say_plan(launcher, spec)
    job, folder = launcher.job, launcher.folder
    texts = {JOB_FILE: msgspec.json.format(msgspec.json.encode(job), indent=1).decode()}
    if launcher.scheduler is not None:
        return _submit(launcher, launcher.scheduler, texts, only_print=only_print)
    if only_print:
        shown = msgspec.structs.replace(job, space_text="…")
        _say(mask_credentials(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode()))
        return 0
    from study.launch.supervisor import supervise

    with written(folder, texts):
        code = supervise(folder / JOB_FILE)
        if code == ExitCode.NO_CLUSTER:
            raise typer.Exit(code)  # nothing was begun, and nothing is left
    head = parse_hosts(job.hosts)[0].name
    study = PurePosixPath(job.workdir) / job.study  # which may be absolute
    _say(f"\nThe study is in {study} on {head}. To fetch it:")
    _say(f"  rsync -a {shlex.join([f'{head}:{study}', 'studies/'])}")
    return code


def _submit(launcher: Launcher, scheduler: Scheduler, texts: dict[str, str], *, only_print: bool) -> int:
    folder, file, text = launcher.folder, launcher.folder / SCRIPT, launcher.script(scheduler)
    if only_print:
        _say(f"\n# {file}\n{text}")
        _say(f"Submit with: {shlex.join([*scheduler.submit, str(file)])}")
        return 0
    no_answer = None
    with written(folder, {**texts, SCRIPT: text}):
        file.chmod(0o700)
        try:
            job_id = launcher.submit(scheduler, file)
        except NoAnswerError as error:
            no_answer = error  # the job may be queued, and needs its files
    if no_answer is not None:
        raise no_answer
    _say(f"Submitted as job {job_id}. Its log: {folder / scheduler.log.format(id=job_id)}")
    _say(f"Watch it: {shlex.join(['python', '-m', 'study', 'status', launcher.job.study])}")
    return 0


def _say_plan(launcher: Launcher, spec: StudySpec) -> None:
    """Say what is reserved and what the plan needs, and refuse what can never fit."""
    job, sizes = launcher.job, launcher.planned_cpus()
    size = f" x {job.cpus_per_node} CPUs" if job.cpus_per_node else ", whole,"
    most = "" if job.walltime_s is None else f"{size} for at most {clock(job.walltime_s)}"
    changed = ", unless the options after -- say otherwise" if job.scheduler_options else ""
    _say(f"{job.name} on {count(len(sizes), 'node')}{most}{changed}")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        _say("How many CPUs that is, and whether the largest trial fits, is known when the job runs there.")
    else:
        if job.walltime_s is not None:
            again = " It is requeued until the study is complete; each job costs that much." if job.resubmit else ""
            _say(f"Reserves at most {cpu_hours(sum(known) * job.walltime_s / 3600)}.{again}")
        without_head = [0, *known[1:]] if len(known) > 1 and not job.use_head else known
        shape = {"memory_mb": UNKNOWN, "num_gpus": UNKNOWN}
        nodes = [NodeShape(address="node", num_cpus=size, physical_cpus=size, **shape) for size in without_head if size]
        plan = make_plan(spec, ClusterShape(nodes=tuple(nodes)))
        cost = cpu_hours(plan.hours * plan.cluster.capacity)
        hours = f"{plan.hours:.1f} h" if plan.hours >= 1 else f"{math.ceil(plan.hours * 60)} min"
        _say(f"The plan: {plan.num_trials} trials, about {hours} there, {cost} (guessed, within a factor of three).")
        if emulated := [each.num_env_runners for each in plan.kinds if each.execution == "emulated"]:
            need = num_cpus(spec, emulated[0], "real")
            _say(
                f"Emulated there, so their timing is not measured: trials of {', '.join(map(str, emulated))} runners. "
                f"Real ones of {emulated[0]} need {need} CPUs at once."
            )
    if len(sizes) > 1 and not job.use_head:
        _say(
            "The first node of several runs Ray's head and the study's driver, and no trials: its CPUs are reserved "
            "but not in the plan. --use-head lets trials run there too."
        )


def _say(text: str) -> None:
    write(f"{text}\n")
