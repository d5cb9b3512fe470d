"""`python -m study launch`: one command, whose first word says how the study gets its hosts.

It makes the description of the job from its options, shows what the job reserves and what the plan needs, then submits
it or runs it here.
"""

import shlex
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
import typer

from study import options
from study.console import say
from study.driver.opening import checked_name
from study.errors import ClusterError, ExitCode, wrong_option
from study.launch.job import BATCH, JOB_FILE, SCRIPT, SERVES, Job, parse_hosts
from study.launch.schedulers import LAUNCHERS, Launcher, clock
from study.machine.shape import UNKNOWN, ClusterShape, NodeShape
from study.mirrors.tracking_uri import asked_uri
from study.records.files import write_atomically
from study.space.parsing import find_space
from study.space.spec import StudySpec
from study.text import count, mask_credentials

LEAST_WALLTIME_S = 180
"""A shorter job would get the signal of its end as it begins."""
app = options.command_app()


@app.command(
    epilog=options.examples(
        "python -m study launch slurm --space scaling.yaml --nodes 4 --cpus-per-node 24 -- --partition=cpu",
        "python -m study launch oar --space scaling.yaml --nodes 2 --walltime 4:00:00 -- -t besteffort",
        "python -m study launch ssh --space scaling.yaml --hosts lab-1:16,lab-2:16,me@lab-3:8",
    ),
)
@options.with_options_of(Job)
def launch(
    context: typer.Context,
    where: Annotated[Literal["slurm", "oar", "ssh"], typer.Argument(help="What to use.")],
    space: Annotated[str, options.SPACE],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Behind -- options for sbatch or oarsub.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="Show what would be written, and do nothing.")] = False,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow, as the first node reaches it.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The same as of `python -m study run`.")] = False,
    until: Annotated[str | None, typer.Option(help="Last stage of a hold-up study, such as race.")] = None,
    trials: options.Trials = None,
    set_: options.Set = None,
    **of_job: Any,
) -> None:
    """Run a study as a job: SLURM, OAR, ssh.

    It starts Ray on several nodes, resumes when requeued, and leaves nothing behind. `slurm` and `oar` submit a
    job, `ssh` runs on a list of hosts in the foreground.
    """
    _check_options(context, where)
    if words and (where not in BATCH or not words[0].startswith("-")):
        rule, fix = "must be options of sbatch or oarsub", "Drop them; options of ssh stand in ~/.ssh/config."
        raise wrong_option("after --", rule=rule, got=words[0], fix=fix)
    file = find_space(space)
    spec = options.load(str(file), set_, trials).spec
    options.check_stage(until, spec)
    arguments = {"--tracking-uri": asked_uri(tracking_uri), "--until": until}
    arguments |= {"--trials": None if trials is None else str(trials)}
    given = [word for option, value in arguments.items() if value is not None for word in (option, value)]
    given += [*(["--tensorboard"] if tensorboard else []), *(word for each in set_ or [] for word in ("--set", each))]
    workdir = Path(of_job["workdir"] or Path.cwd())
    if where in BATCH:  # which share files with this machine
        workdir = workdir.absolute()
        of_job["out"] = str(workdir / of_job["out"])
    of_job |= {"workdir": str(workdir), "name": checked_name(of_job["name"] or file.stem)}
    of_job["space_text"] = "" if where in BATCH else file.read_text(encoding="utf-8-sig")
    of_job |= {"arguments": tuple(given), "scheduler_options": tuple(words or ())}
    job = Job(launcher=where, space=str(file.resolve()), **of_job)
    folder = Path(job.out).resolve() / f"{job.name}.launch"  # beside that of the study, which a study makes itself
    if job.walltime_s < LEAST_WALLTIME_S:
        rule = f"must be {LEAST_WALLTIME_S} s or more, to start Ray and to end cleanly in"
        raise wrong_option("--walltime", rule=rule, got=job.walltime, fix="Raise it.")
    raise typer.Exit(start(LAUNCHERS[where](job, folder), spec, only_print=print_))


def _check_options(context: typer.Context, where: str) -> None:
    """Refuse options that are for other launchers, and `launch ssh` without hosts."""
    given = {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
    for name in sorted(given):
        if where not in SERVES.get(name, (where,)):
            rule, fix = f"is for {', '.join(SERVES[name])}", f"Drop it: `launch {where}` has no use for it."
            raise wrong_option(f"--{name.replace('_', '-')}", rule=rule, got=f"launch {where}", fix=fix)
    if where == "ssh" and "hosts" not in given:
        raise wrong_option("--hosts", rule="must be given for `launch ssh`", fix="Add --hosts.")


def start(launcher: Launcher, spec: StudySpec, *, only_print: bool) -> int:
    """Show what a job will be, and submit it or run it here; return the exit code."""
    _say_plan(launcher, spec)
    job, folder = launcher.job, launcher.folder
    texts = {JOB_FILE: msgspec.json.format(msgspec.json.encode(job), indent=1).decode()}
    if job.launcher in BATCH:
        texts[SCRIPT] = launcher.script()
    if only_print:
        name, text = list(texts.items())[-1]
        say(f"\n# {folder / name}\n{mask_credentials(text)}")
        if job.launcher in BATCH:
            say(f"Submit with: {shlex.join(launcher.submission())}")
        return 0
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(folder / name, text)
    except OSError as error:
        rule, fix = "must be writable", "Choose another --out."
        raise ClusterError(where=str(folder), rule=rule, got=error.strerror, fix=fix) from error
    if job.launcher in BATCH:
        job_id = launcher.submit()
        say(f"Submitted as job {job_id}. Its log: {folder / f'job-{job_id}.log'}")
        say(f"Watch it: {shlex.join(['python', '-m', 'study', 'status', job.study])}")
        return 0
    from study.launch.supervisor import supervise

    if (code := supervise(folder / JOB_FILE)) != ExitCode.NO_CLUSTER:
        head = parse_hosts(job.hosts)[0].name
        study = PurePosixPath(job.workdir) / job.study  # which may be absolute
        say(f"\nThe study is in {study} on {head}. To fetch it:")
        say(f"  rsync -a {shlex.join([f'{head}:{study}', 'studies/'])}")
    return code


def _say_plan(launcher: Launcher, spec: StudySpec) -> None:
    """Say what is reserved, and the plan as a dry run would there; refuse what can never fit."""
    from study.cli.display import plan_text
    from study.designs.registry import make_plan

    job, sizes = launcher.job, launcher.planned_cpus()
    known = [size for size in sizes if size is not None]
    limit = f", for at most {clock(job.walltime_s)}" if job.launcher in BATCH else ""
    reserved = f" and {count(sum(known), 'CPU')}" if len(known) == len(sizes) else ""
    changed = ", unless the options after -- say otherwise" if job.scheduler_options else ""
    say(f"{job.name} on {count(len(sizes), 'node')}{reserved}{limit}{changed}")
    if not reserved:
        say("Whether the largest trial fits is known when the job runs there.")
        return
    if len(known) > 1 and not job.use_head:
        say("The first node runs Ray's head and the study's driver; with --use-head it runs trials too.")
        known = known[1:]
    of_each = ({"num_cpus": size, "physical_cpus": size} for size in known)
    nodes = [NodeShape(address="node", memory_mb=UNKNOWN, num_gpus=UNKNOWN, **cpus) for cpus in of_each]
    say(plan_text(make_plan(spec, ClusterShape(nodes=tuple(nodes))), spec, name=job.name))
