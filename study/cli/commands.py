"""The commands. Parses options, calls the library, prints; a `StudyError` that nobody else took ends here."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from study.cli.seams import seams
from study.console import SteadyConsole, say
from study.console import write as write_text
from study.errors import ExitCode, Fault, SpaceError, StudyError
from study.evaluating.options import WithFilm, evaluate
from study.launch.commands import app as launch_app
from study.options import (
    Address,
    Replicate,
    Set,
    Space,
    SpaceArgument,
    Trials,
    as_run,
    checked_name,
    checked_stage,
    load,
    one_space,
    seconds,
    with_lines,
)
from study.space.space_file import find_space
from study.space.spec import StudySpec
from study.space.variants import STAGES

app = typer.Typer(
    help="Scaling studies of RLlib on Ray: which settings hold up at many environment runners, and what they cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = SteadyConsole(width=None if sys.stdout.isatty() else 140)
errors = SteadyConsole(stderr=True, width=None if sys.stderr.isatty() else 140)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("runner-scaling-study"))
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def _main(version: Version = False) -> None:
    pass


app.add_typer(launch_app, name="launch")
app.command(cls=WithFilm)(evaluate)
app.command()(seams)


@app.command()
def run(
    space_argument: SpaceArgument = None,
    space: Space = None,
    address: Address = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="MLflow: http://…, postgresql://…; else MLFLOW_TRACKING_URI, else sqlite:///mlflow.db."),
    ] = None,
    optuna_storage: Annotated[
        str | None, typer.Option(help="Show the search to a team there too, e.g. postgresql://…; see the README.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard too; a resume goes on with them.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder that holds the studies.")] = Path("studies"),
    name: Annotated[str | None, typer.Option(help="Name of the study; by default that of the space.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study of that name.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Continue it if there is one, else start: for requeued jobs.")
    ] = False,
    replicate: Replicate = None,
    trials: Trials = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop after so long, e.g. 30m, 2h, 1h30m; start no trial that would not end.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help=f"Last stage of a hold-up study to run: {', '.join(STAGES)}.")
    ] = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the logs of Ray and of the trials.")] = False,
    version: Version = False,
) -> None:
    """Run a study, or continue one.

    Exit codes: 0 all trials ended well, 1 some failed, 2 a mistake in the call, 69 Ray did not start on the hosts of a
    job, 70 a fault of this program, 75 stopped and resumable.
    """
    space = one_space(space_argument, space)
    spec = load(space, set_, replicate, trials)
    name = checked_name(name or find_space(space).stem)
    last = None if until is None else checked_stage(until, spec)
    if dry_run:
        with with_lines(space, set_):
            _print_plan(spec, address, name, space)
        return
    from study.cli.display import make_display
    from study.driver.opening import RunOptions
    from study.driver.run import run_study
    from study.driver.signals import leave

    file = find_space(space)
    options = RunOptions(
        name=name,
        out=out,
        address=address,
        tracking_uri=tracking_uri,
        optuna_storage=optuna_storage,
        tensorboard=tensorboard,
        resume=resume or resume_or_start,
        or_start=resume_or_start,
        time_budget_s=None if time_budget is None else seconds(time_budget, "--time-budget"),
        until=last,
        verbose=verbose,
        space=str(file),
        space_text=as_run(file, set_, replicate, trials),
    )
    again = _again()
    try:
        with with_lines(space, set_):
            result = run_study(spec, options, display=make_display(console))
    except KeyboardInterrupt:  # here, since typer makes exit code 130 of it
        then = f"Resume with: {again}" if (out / name).exists() else "Nothing was begun: start it again."
        errors.print(f"Ended before the first trial. {then}", markup=False, soft_wrap=True)
        leave(ExitCode.STOPPED)  # at once: what Ray registered for the end of the interpreter can wait for minutes
    _print_end(result, again)
    if result.closed.reason == "stopped":  # in seconds: see above
        leave(result.exit_code)
    raise typer.Exit(result.exit_code)


@app.command()
def plan(
    space_argument: SpaceArgument = None,
    space: Space = None,
    address: Address = None,
    replicate: Replicate = None,
    trials: Trials = None,
    set_: Set = None,
) -> None:
    """Print what a study would run and what each trial needs; the same as `run --dry-run`."""
    space = one_space(space_argument, space)
    with with_lines(space, set_):
        _print_plan(load(space, set_, replicate, trials), address, find_space(space).stem, space)


@app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the field reference in Markdown.")] = False,
) -> None:
    """Print the JSON Schema of space files, for editors."""
    from study.space.reference import field_reference, json_schema

    write_text(field_reference() if markdown else json_schema())


@app.command()
def sync(
    study: Annotated[Path, typer.Argument(help="Folder of the study, such as studies/quickstart.")],
    tracking_uri: Annotated[
        str | None, typer.Option(help="Write to this MLflow instead of the study's own; builds a complete copy there.")
    ] = None,
    optuna_storage: Annotated[str | None, typer.Option(help="Likewise, for the trials of the search.")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard, also of a study without them.")
    ] = False,
) -> None:
    """Bring MLflow, and what else shows a study, up to date with its records; with an option, only what it names."""
    from study.cli.syncing import sync_study
    from study.records.folder import StudyFolder

    folder = StudyFolder(study)
    for line in sync_study(folder, tracking_uri=tracking_uri, optuna_storage=optuna_storage, tensorboard=tensorboard):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


certificates = typer.Typer(help="The certificate of a hold-up study.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(certificates, name="certificate")

Study = Annotated[Path, typer.Argument(help="Folder of the study, such as studies/acrobot_holdup.")]


@certificates.command()
def write(study: Study) -> None:
    """Write certificate.json and certificate.md from the study's records, as the end of a study does."""
    from study.designs.holdup.certificate.making import make_certificate
    from study.records.folder import StudyFolder

    folder = StudyFolder(study)
    certificate = make_certificate(folder)
    certificate.write(folder)
    console.print(certificate.to_markdown(), markup=False, highlight=False, soft_wrap=True)


@certificates.command()
def verify(
    path: Annotated[Path, typer.Argument(help="certificate.json, or the study folder that holds it.")],
    frozen: Annotated[
        str | None, typer.Option(help="Digest that the study printed before the first test seed ran; compared.")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow that the study was mirrored to; the digest that it holds is compared.")
    ] = None,
    rerun: Annotated[int, typer.Option(min=0, help="So many trials of the confirmation are trained again.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of their choice, which is printed; else a new one.")] = None,
) -> None:
    """Recompute every figure of a certificate from the records beside it; exit code 2 on any difference.

    This finds records that contradict themselves or the certificate. It cannot find records that somebody has rewritten
    consistently, with a certificate made from them: for that, compare the digest that was published when the settings
    were frozen (--frozen, --tracking-uri), or train some of the runs again (--rerun), which runs the environment that
    the study names: do so for studies of people whom you trust with that.
    """
    from study.designs.holdup.certificate.making import verify as verify_certificate
    from study.evaluating.rerun import held_by_mlflow, train_again

    folder = verify_certificate(path, frozen=frozen)
    said = f"{path}: every figure follows from the records."
    if tracking_uri is not None:
        verify_certificate(path, frozen=held_by_mlflow(folder, tracking_uri))
        said += " MLflow holds the same digest of the records before the first test seed."
    say(console, said)
    if rerun:
        again = []
        for run in train_again(folder, rerun, seed=seed, tell=lambda text: say(console, text)):
            again.append(run)
            say(console, run.sentence)
        if not all(run.agrees for run in again):
            raise typer.Exit(ExitCode.MISTAKE)


@app.command()
def export(
    study: Study,
    scale: Annotated[int, typer.Option(min=1, help="Environment runners to export the setting for.")],
    format_: Annotated[
        str, typer.Option("--format", help="python: a plain RLlib script; yaml: values and the rule.")
    ] = "python",
) -> None:
    """Print the chosen setting of a hold-up study for use without this project, and the rule behind it."""
    from study.designs.holdup.certificate.export import export_python, export_yaml
    from study.records.folder import StudyFolder

    writers = {"python": export_python, "yaml": export_yaml}
    if format_ not in writers:
        law = f"one of {', '.join(writers)}, got '{format_}'."
        raise SpaceError("command line", [Fault(where="--format", rule=law, fix="Choose one of them.")])
    write_text(writers[format_](StudyFolder(study), scale))


@app.command()
def pack(
    study: Study,
    target: Annotated[Path, typer.Argument(help="Folder of the copy; must not hold anything.")],
    results_only: Annotated[
        bool, typer.Option("--results-only", help="Leave out training iterations: enough to replay, not to certify.")
    ] = False,
    digits: Annotated[
        int | None, typer.Option(min=7, max=7, help="Significant digits of training iterations: 7 halve the size.")
    ] = None,
) -> None:
    """Copy a study for publication: compressed records without paths of this machine, and its certificate."""
    from study.designs.holdup.certificate.making import make_certificate
    from study.records.folder import StudyFolder
    from study.records.packing import pack as pack_study

    folder = StudyFolder(study)
    packed = pack_study(folder, target, results_only=results_only, digits=digits)
    if folder.certificate.exists() and not results_only:
        make_certificate(packed).write(packed)
    size = packed.records.stat().st_size
    said = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    say(console, f"{packed.records}: {said}.")


@app.command()
def doctor(
    address: Address = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow: sqlite:///mlflow.db (default), http://…")] = None,
    out: Annotated[Path, typer.Option(help="Folder that holds the studies.")] = Path("studies"),
    space: Annotated[str | None, typer.Option(help="A space: does its largest trial fit, and run, there?")] = None,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings for programs.")] = False,
) -> None:
    """Say what would make a study fail or lie here, and what to do; exit code 2 if something failed."""
    from study.doctor.view import examine

    spec = None if space is None else load(space, set_, None, None)
    raise typer.Exit(examine(console, address=address, tracking_uri=tracking_uri, out=out, spec=spec, as_json=as_json))


@app.command()
def importance(study: Study) -> None:
    """Print which parameters mattered at each scale (PED-ANOVA)."""
    from study.designs.search.importance import FEWEST, importance_per_scale
    from study.records.folder import StudyFolder
    from study.records.state import ledger_of

    folder = StudyFolder(study)
    spec = folder.identity().parse()
    rows = ledger_of(folder.records).rows.values()
    from study.cli.display import print_importance

    print_importance(console, importance_per_scale(spec, rows), fewest=FEWEST)


@app.command()
def status(
    study: Study,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds until the driver ends.")] = False,
) -> None:
    """Print where a study stands, while it runs or after: progress, best so far, efficiency, health."""
    from analysis.status import StatusReader
    from analysis.status.efficiency import efficiency_so_far
    from study.cli.status_view import show
    from study.cli.status_view import watch as watch_study

    reader = StatusReader(study)
    if watch:
        watch_study(console, reader)
        return
    now = reader.read()
    show(console, now, efficiency_so_far(reader))


@app.command()
def report(
    study: Annotated[
        str, typer.Argument(help="Folder of the study, or a tracking URI: sqlite:///mlflow.db, http://….")
    ],
    format_: Annotated[str, typer.Option("--format", help="Some of html, md, csv, tex.")] = "html,md,csv,tex",
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; by default `report` in the study's folder.")] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Give the files to the MLflow that the study was started with, too.")
    ] = False,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow whose run of the study gets them; also MLFLOW_TRACKING_URI.")
    ] = None,
    name: Annotated[str | None, typer.Option("--study", help="Study or experiment in MLflow, by name or id.")] = None,
) -> None:
    """Write the report of a study: one HTML page, tables and figures; on request attach it to the MLflow run."""
    from study.cli.reporting import open_page, print_report, report_study

    written = report_study(study, study=name, formats=format_, out=out, tracking_uri=tracking_uri, attach=attach)
    print_report(console, written)
    if open_:
        open_page(written)


@app.command()
def replay(
    records: Annotated[Path, typer.Argument(help="Study folder with a complete table: settings x seeds x scales.")],
    target: Annotated[int, typer.Option(help="The scale that settings are chosen for.")] = 46,
    small: Annotated[int, typer.Option(help="The small scale.")] = 10,
    replays: Annotated[int, typer.Option(min=100, help="Studies to replay.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the replay.")] = 0,
    complete_seeds_only: Annotated[
        bool, typer.Option("--complete-seeds-only", help="Leave out seeds that were not run with every setting.")
    ] = False,
) -> None:
    """Replay the protocol and its rivals on a recorded table at equal CPU-seconds: how often does the pick hold up?"""
    from study.designs.holdup.replay import replay as replay_study
    from study.designs.holdup.replay import to_markdown

    result = replay_study(
        records, target=target, small=small, num_replays=replays, seed=seed, complete_seeds_only=complete_seeds_only
    )
    write_text(to_markdown(result))


def _print_plan(spec: StudySpec, address: str | None, name: str, source: str) -> None:
    from study.cli.display import print_plan
    from study.cli.throughput_display import print_throughput_plan
    from study.cluster.address import resolve_address
    from study.cluster.connection import joined_ray, private_shape
    from study.designs.registry import make_plan
    from study.planning.plan import remarks
    from study.trial.engine.envs.probing import probe_study

    spaces = probe_study(spec, source)
    if (joined := resolve_address(address)) is None:
        shape = private_shape(spec)
    else:
        with joined_ray(joined) as shape:
            pass
    if spec.rllib:  # only then is RLlib imported
        from study.driver.run import check_overrides

        check_overrides(spec, spaces, shape)
    made = make_plan(spec, shape)
    if made.cells:
        print_throughput_plan(console, made, spec, name=name)
    else:
        print_plan(console, made, name=name)
    for remark in remarks(spec, made):
        say(console, remark)


def _again() -> str:
    """Return the command line of this process, ready to be resumed."""
    from study.harmless import mask_credentials

    script = sys.argv[0]
    program = ["python", "-m", "study"] if script.endswith("__main__.py") else ["python", script]
    if Path(script).suffix != ".py":
        program = [Path(script).name]
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--resume-or-start")]
    return mask_credentials(" ".join(shlex.quote(word) for word in [*program, *words, "--resume"]))


def _print_end(result: Any, again: str) -> None:
    from study.cli.display import print_certificate, print_front, print_result, print_stages
    from study.cli.throughput_display import print_throughput
    from study.designs.registry import design_of
    from study.harmless import mask_credentials
    from study.mirrors.mirror_cursor import CursorFile
    from study.records.cautions import cautions

    closed, identity = result.closed, result.identity
    detail = f" ({closed.detail})" if closed.detail else ""
    say(console, f"\n{identity.name}: {closed.reason}{detail}")
    spec = identity.parse()
    design = design_of(spec)
    if design.times:
        print_throughput(console, spec, result.rows, folder=str(result.folder.path), table=str(result.folder.table))
    elif design.stages:
        print_stages(console, result.rows, table_file=str(result.folder.table))
    else:
        print_result(console, result.rows, result.best, table_file=str(result.folder.table))
    for caution in cautions(spec, result.rows):
        say(console, f"\n{caution}")
    if result.objective == "return_and_cpu_s":
        print_front(console, result.rows)
    if result.certificate is not None:
        print_certificate(console, result.certificate.to_json(), page=str(result.folder.certificate_page))
    if result.mirror.behind:
        console.print(
            f"\nMLflow is {result.mirror.behind} records behind ({result.mirror.reason or 'it is slow'}); "
            f"catch up with: python -m study sync {shlex.quote(str(result.folder.path))}",
            markup=False,
            soft_wrap=True,
        )
    uri = mask_credentials(identity.tracking_uri)
    cursor = CursorFile.of(result.folder, identity.tracking_uri).read()
    page = f"/#/experiments/{cursor.experiment_id}/runs" if cursor else ""
    server = uri if uri.startswith("http") else "http://127.0.0.1:5000"
    command = "" if uri.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(uri)}\nthen open "
    console.print(
        f"\nCompare the trials in MLflow: {command}{server}{page}\n"
        f"and unfold the run '{identity.name}' with its [+]: one run per trial.",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    if not design.times:  # their table ends with it
        folder = shlex.quote(str(result.folder.path))
        say(console, f"\nTables and figures on one page: python -m study report {folder}")
    if result.tensorboard is not None:
        console.print(
            "\nTheir curves in TensorBoard: pip install tensorboard && tensorboard --logdir "
            f"{shlex.quote(str(result.folder.tensorboard))}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    if closed.reason != "complete":
        again = re.sub(r" --until[ =]\S+", "", again) if closed.reason == "until" else again
        console.print(f"\nResume with: {again}", soft_wrap=True, highlight=False, markup=False)


def _guarded(command: Callable[[], None]) -> NoReturn:
    """Run a command; a person's mistake is told without a traceback."""
    if not sys.flags.safe_path and Path.cwd() not in map(Path, sys.path):
        sys.path.append(os.getcwd())  # noqa: PTH109 (environments of the person's own)
    try:
        command()
    except StudyError as error:
        say(errors, str(error))
        sys.exit(ExitCode.MISTAKE)
    except Exception:  # noqa: BLE001 (the edge of the program: said, with its traceback)
        errors.print("A fault of this program; nothing recorded is lost. Please report it with these lines:")
        write_text(traceback.format_exc(), error=True)
        sys.exit(ExitCode.UNEXPECTED)
    sys.exit(ExitCode.FINISHED)


def main() -> NoReturn:
    """Run `python -m study …`."""
    _guarded(app)


def main_run() -> NoReturn:
    """Run `python run_study.py …`: the command `run` alone."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command()(run)
    _guarded(alone)
