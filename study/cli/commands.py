"""All commands. What one needs is imported when it is called, so that `--help` is fast.

A person's mistake ends here: a `StudyError` that nobody else took, or a full disk, is printed without a traceback.
"""

import errno
import functools
import os
import shlex
import sys
import traceback
from collections import Counter
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from study import options
from study.cli.launch import app as launch_app
from study.cli.results import app as results_app
from study.cli.results import best_trial
from study.console import say, to_nowhere
from study.driver.opening import Address, Out, RunOptions, checked_name
from study.errors import ExitCode, Fault, StudyError, wrong_option
from study.records.folder import StudyFolder
from study.space.parsing import find_space
from study.space.spec import StudySpec
from study.text import count

app = options.command_app(
    "Scaling studies of RLlib on Ray: which settings hold up at many runners, and what they cost."
)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(version_of("runner-scaling-study"))
        raise typer.Exit


@app.command(
    epilog=options.examples(
        "python run_study.py --space quickstart.yaml",
        "python run_study.py --space quickstart.yaml --name longer --set budget.env_steps=100000",
        "python run_study.py --space scaling.yaml --address auto --time-budget 2h --resume-or-start",
        "python run_study.py --config my_train.py --runners 1,10,46",
        "python run_study.py --config my_train.py --dry-run > my_space.yaml",
    ),
)
@options.with_options_of(RunOptions)
def run(
    space: options.Space = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:NAME]",
            help="An RLlib script in place of a space; its code runs up to where it would train. NAME: an "
            "AlgorithmConfig in it, or a function that returns one.",
        ),
    ] = None,
    runners: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="With --config: the numbers of environment runners, as 1,10,46.")
    ] = None,
    config_args: Annotated[str, typer.Option(help="Arguments of the script, as one text: '--num-agents 2'.")] = "",
    trials: options.Trials = None,
    set_: options.Set = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop after so long, e.g. 30m, 2h, 1h30m; start no trial that would not end.")
    ] = None,
    dry_run: options.DryRun = False,
    **given: Any,
) -> None:
    """Run a study, or continue one.

    Exit codes: 0 all trials ended well, 1 some failed, 2 a mistake in the call, 69 Ray did not start on the hosts of a
    job, 70 a fault of this program, 75 stopped and resumable.
    """
    if config is None and (runners is not None or config_args):
        rule, fix = "belong to --config", "In a space these are fields of their own."
        raise wrong_option("--runners, --config-args", rule, fix=fix)
    if (space is None) == (config is None):
        got, fix = "none" if space is None else f"'{space}' and '{config}'", "A space may name a script as `config`."
        raise wrong_option("--space", "must be given, or --config in its place", got=got, fix=fix)
    source = space or options.space_of_script(str(config), runners=runners, arguments=config_args, trials=trials)
    file = find_space(source)
    given["name"] = checked_name(given.get("name") or file.stem)
    given["time_budget_s"] = None if time_budget is None else options.seconds(time_budget, "--time-budget")
    asked = options.load(str(file), set_, trials)
    wanted = RunOptions(**given, space=config or str(file), space_text=asked.text)
    folder = StudyFolder(wanted.out / wanted.name)
    options.check_stage(wanted.until, asked.spec)
    with options.with_lines(asked.source):
        if not dry_run:
            _run(asked.spec, wanted, folder)
        if config is not None:
            say(file.read_text(encoding="utf-8").rstrip())
        _print_plan(asked.spec, wanted, source, error=config is not None)


def _run(spec: StudySpec, wanted: RunOptions, folder: StudyFolder) -> NoReturn:
    """Run a study to the end of the session, and leave with its exit code."""
    from study.cli.display import Display, print_end
    from study.driver.run import run_study
    from study.driver.signals import leave

    display = Display(error=False)
    words = ["python", "-m", "study", "run", "--space", str(folder.space_file), "--name", wanted.name]
    words += ["--out", str(wanted.out)]
    words += ["--address", wanted.address] if wanted.address else []
    resume_line = shlex.join([*words, "--resume"])
    try:
        result = run_study(spec, wanted, display=display)
    except KeyboardInterrupt:  # here, since typer makes exit code 130 of it
        then = f"Resume with: {resume_line}" if folder.path.exists() else "Nothing was begun: start it again."
        say(f"Ended before the first trial. {then}", error=True)
        leave(ExitCode.STOPPED)  # at once: what Ray registered for the end of the interpreter can wait for minutes
    print_end(result, resume_line, display.said)
    if result.closed.reason == "stopped":
        leave(result.exit_code)
    raise typer.Exit(result.exit_code)


def _print_plan(spec: StudySpec, wanted: RunOptions, source: str, *, error: bool) -> None:
    from study.cli.display import plan_text
    from study.designs.registry import make_plan, private_shape
    from study.driver.run import tried
    from study.machine.cluster import joined_ray, resolve_address
    from study.planning import remarks

    spec, brought = tried(spec, source=source, note=functools.partial(say, error=True))
    if (address := resolve_address(wanted.address)) is None:
        shape = private_shape(spec)
    else:
        with joined_ray(address) as shape:
            pass
    plan = make_plan(spec, replace(shape, speeds=brought.speeds))
    for text in (plan_text(plan, spec, name=wanted.name), *remarks(spec, plan)):
        say(text, error=error)


@app.command()
def status(
    study: Annotated[
        Path,
        typer.Argument(help="Folder of a study, such as studies/quickstart, or of several."),
    ] = Path("studies"),
) -> None:
    """Print where a study stands, or each of the studies of a folder.

    While it runs and after: its progress, its answer so far, its health.
    """
    from analysis.status import read_status
    from study.cli.display import answer_of, print_answer, status_text

    several = [] if (study / "study.json").exists() else sorted(file.parent for file in study.glob("*/study.json"))
    for folder in several:
        try:
            say(status_text(read_status(folder)))
        except StudyError as error:
            say(f"{folder.name}: cannot be read: {error}")
        say()
    if not several and study == Path("studies"):
        say(f"No study in {study}. Start one: python run_study.py --space quickstart.yaml")
    elif not several:
        now = read_status(study)
        say(status_text(now))
        if now.counts["finished"]:
            say("" if now.complete else "\nSo far:\n")
            print_answer(answer_of(study))


@app.command()
def repeat(
    study: options.Study,
    trial: options.Trial = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, none of which the study has used.")] = 5,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")] = False,
) -> None:
    """Train the setting of a trial again on new seeds.

    The runs are a study of their own beside the first one, with the same evaluation episodes and the same MLflow. The
    same line goes on with it where it was stopped.
    """
    from study.exporting.script import trial_as_space, trial_of
    from study.records.files import check_own
    from study.records.ledger import ledger_of

    folder = StudyFolder(study)
    check_own(folder.path)  # it trains what the folder says, and sends to its MLflow
    number = best_trial(folder) if trial is None else trial
    chosen, identity, out = trial_of(folder, number), folder.identity(), folder.path.parent
    first = 1 + max(row.seed for row in ledger_of(folder.records).rows.values())
    file = out / f"{identity.name}-trial-{number}.yaml"
    file.write_text(trial_as_space(chosen, range(first, first + seeds)), encoding="utf-8")
    same, uri = [f"execution={chosen.row.execution}"], identity.tracking_uri
    run(space=str(file), tracking_uri=uri, out=out, address=address, resume_or_start=True, set_=same, dry_run=dry_run)


# --- around a study ---------------------------------------------------------------------------------------------------

app.add_typer(results_app)
app.add_typer(launch_app)


@app.command()
def doctor(
    address: Address = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow: sqlite:///mlflow.db (default), http://…")] = None,
    out: Out = Path("studies"),
) -> None:
    """Check this machine, or a Ray cluster, before a study.

    Says what would make it fail, or its numbers wrong, and what to do; exit code 2 if a check failed. Whether the
    trials of a space fit is said by `run --dry-run`.
    """
    from study.doctor import find_surroundings, judge

    counts: Counter[str] = Counter()
    for finding in judge(find_surroundings(address=address, tracking_uri=tracking_uri, out=out)):
        counts[finding.level] += 1
        fix = f". Fix: {finding.fix}" if finding.fix else ""
        say(f"{finding.level:<4}  {finding.check}: {finding.found}{fix}")
    parts = ", ".join(f"{number} {level}" for level, number in counts.items())
    end = "a study would fail here, or its numbers be wrong" if counts["fail"] else "a study can run here"
    say(f"\n{parts}: {end}.")
    raise typer.Exit(ExitCode.MISTAKE if counts["fail"] else ExitCode.FINISHED)


@app.command()
def sync(study: options.Study) -> None:
    """Bring MLflow, Optuna's journal and TensorBoard up to date.

    A place that does not answer keeps no other from getting what it lacks.
    """
    from study.cli.display import answer_of
    from study.mirrors.process import mirrors_of
    from study.mirrors.process import sync as catch_up
    from study.records.files import check_own

    folder = StudyFolder(study)
    folder.identity()
    folder.check_unpacked()
    check_own(folder.path)  # which names the places
    answer, failed = answer_of(folder.path), list[StudyError]()
    for mirror in mirrors_of(folder):
        try:
            mirror.answer = "" if isinstance(answer, str) else answer.to_markdown()
            lacked = catch_up(mirror)
            say(f"{mirror.name} is up to date" + (f": {count(lacked, 'record')} sent." if lacked else "."))
        except StudyError as error:
            failed.append(error)
    for each in failed[:-1]:
        say(str(each))
    if failed:
        raise failed[-1]


@app.command()
def pack(
    study: options.Study,
    target: Annotated[Path, typer.Argument(help="Folder of the copy; must not hold anything.")],
) -> None:
    """Copy a study for publication.

    The copy has compressed records without paths of this machine, and the certificate.
    """
    from study.designs.holdup.certificate import write_certificate
    from study.records.folder import pack as pack_study

    folder = StudyFolder(study)
    packed = pack_study(folder, target)
    if folder.certificate.exists():
        write_certificate(packed)
    say(f"{packed.records}: {packed.records.stat().st_size / 1e6:.2g} MB.")


# --- the edge of the program ------------------------------------------------------------------------------------------


def main(command: str = "") -> NoReturn:
    """Run the command line, or one of its commands, to its exit code; a person's mistake has no traceback.

    Raises:
        ModuleNotFoundError: A package is not installed.
    """
    if not sys.flags.safe_path and Path.cwd() not in map(Path, sys.path):
        sys.path.append(os.getcwd())  # noqa: PTH109 (environments of the person's own)
    program = get_command(app)
    try:
        code = (program.commands[command] if command else program)(standalone_mode=False)  # type: ignore[attr-defined]
        sys.exit(code or ExitCode.FINISHED)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # noqa: BLE001 (the edge of the program: said, with its traceback where it is ours)
        cause = error.__cause__ if isinstance(error, StudyError) else error
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        if isinstance(error, StudyError):
            say(str(error), error=True)
        elif hasattr(error, "format_message"):  # of click, or of typer's copy of it: a call that it does not take
            say(_misspelt(error), error=True)
        elif is_full:
            where, rule = str(getattr(error, "filename", None) or "output"), f"must be writable ({error})"
            fix = "Free some space, then run the same command again."
            if not getattr(error, "filename", None):
                to_nowhere(sys.stdout)
            say(str(Fault(where=where, rule=rule, fix=fix)), error=True)
        else:
            say("A fault of this program; nothing recorded is lost. Please report it with these lines:", error=True)
            say(traceback.format_exc(), error=True)
            sys.exit(ExitCode.UNEXPECTED)
        resumes = any(word.startswith("--resume") for word in sys.argv)  # a study is there, and waits
        sys.exit(ExitCode.STOPPED if is_full and resumes else ExitCode.MISTAKE)


def _misspelt(error: Any) -> str:
    """Return what is wrong with a call, and where to look; the help itself where only a command was named."""
    message, path = error.format_message(), error.ctx.command_path if error.ctx else "python -m study"
    if message.startswith("Usage:"):
        return str(message)
    fix = f"Look at `{path} --help`."
    return str(Fault(where=path, rule=message.removesuffix("."), fix=fix))
