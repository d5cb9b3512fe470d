"""`run`: options into a spec and `RunOptions`, then the plan or the study, then its result. Thin."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from study.console import say, terminal, write
from study.errors import ExitCode
from study.options import (
    Address,
    Out,
    Set,
    Space,
    SpaceArgument,
    Trials,
    Version,
    as_run,
    checked_name,
    checked_stage,
    command_app,
    examples,
    load,
    one_space,
    overrides_of,
    seconds,
    space_of_script,
    with_lines,
    wrong_option,
)
from study.space.space_file import find_space
from study.space.spec import StudySpec

app = command_app()


@app.command(
    epilog=examples(
        "python run_study.py quickstart.yaml",
        "python run_study.py quickstart.yaml --name longer --set budget.env_steps=100000",
        "python run_study.py scaling.yaml --address auto --time-budget 2h --resume-or-start",
        "python run_study.py --config my_train.py --runners 1,10,46",
        "python run_study.py --config my_train.py --dry-run > my_space.yaml",
    ),
)
def run(
    space_argument: SpaceArgument = None,
    space: Space = None,
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
    address: Address = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="MLflow: http://…, postgresql://…; else MLFLOW_TRACKING_URI, else sqlite:///mlflow.db."),
    ] = None,
    optuna_storage: Annotated[
        str | None,
        typer.Option(help="Database that shows the trials to optuna-dashboard, e.g. postgresql://… or sqlite:///…."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard too; a resume goes on with them.")
    ] = False,
    out: Out = Path("studies"),
    name: Annotated[str | None, typer.Option(help="Name of the study; by default that of the space.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study of that name.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Continue it if there is one, else start: for requeued jobs.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Resume although another host holds the study: you know that its driver is gone."
        ),
    ] = False,
    trials: Trials = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop after so long, e.g. 30m, 2h, 1h30m; start no trial that would not end.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Last stage of a hold-up study, such as race.")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on where the first trials all fail in the same way.")
    ] = False,
    set_: Set = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and start nothing; with --config first the space, for a file."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the logs of Ray and of the trials.")] = False,
    version: Version = False,
) -> None:
    """Run a study, or continue one.

    Exit codes: 0 all trials ended well, 1 some failed, 2 a mistake in the call, 69 Ray did not start on the hosts of a
    job, 70 a fault of this program, 75 stopped and resumable.
    """
    source = _source(space_argument, space, config, runners, config_args, trials)
    from study.records.folder import StudyFolder

    file = find_space(source)
    name = checked_name(name or file.stem)
    begun = (resume or resume_or_start) and StudyFolder(out / name).exists()
    spec = load(source, set_, trials, new=not begun)
    last = None if until is None else checked_stage(until, spec)
    time_budget_s = None if time_budget is None else seconds(time_budget, "--time-budget")
    if dry_run:
        if config is not None:
            write(file.read_text(encoding="utf-8"))
        with with_lines(source, set_):
            _print_plan(terminal(error=config is not None), spec, address, name, source)
        return
    from study.cli.display import Display, print_end
    from study.driver.opening import RunOptions
    from study.driver.run import run_study
    from study.driver.signals import leave

    options = RunOptions(
        name=name,
        out=out,
        address=address,
        tracking_uri=tracking_uri,
        optuna_storage=optuna_storage,
        tensorboard=tensorboard,
        resume=resume or resume_or_start,
        or_start=resume_or_start,
        take_over=take_over,
        time_budget_s=time_budget_s,
        until=last,
        keep_going=keep_going,
        verbose=verbose,
        space=config or str(file),
        space_text=as_run(file, overrides_of(set_, trials)),
    )
    console = terminal()
    display = Display(console)
    again = ["python", "-m", "study", "run", str(StudyFolder(out / name).space_file), "--name", name, "--out", str(out)]
    resume_line = shlex.join([*again, *(["--address", address] if address else []), "--resume"])
    try:
        with with_lines(source, set_):
            result = run_study(spec, options, display=display)
    except KeyboardInterrupt:  # here, since typer makes exit code 130 of it
        then = f"Resume with: {resume_line}" if (out / name).exists() else "Nothing was begun: start it again."
        say(terminal(error=True), f"Ended before the first trial. {then}")
        leave(ExitCode.STOPPED)  # at once: what Ray registered for the end of the interpreter can wait for minutes
    print_end(console, result, resume_line, display.said)
    if result.closed.reason == "stopped":
        leave(result.exit_code)
    raise typer.Exit(result.exit_code)


def _source(
    argument: str | None,
    option: str | None,
    config: str | None,
    runners: str | None,
    arguments: str,
    trials: int | None,
) -> str:
    """Return the space that is meant: named, or made around a script.

    Raises:
        SpaceError: None is named, or two, or a script that cannot be studied.
    """
    if config is None:
        if runners is not None or arguments:
            name = "--config-args" if runners is None else "--runners"
            fix = "In a space write parameters.num_env_runners, and config_args."
            raise wrong_option(name, "belongs to --config", fix=fix)
        return one_space(argument, option)
    if named := argument or option:
        got, fix = f"'{named}' and '{config}'", "Drop one of the two; a space may name a script as `config`."
        raise wrong_option("--config", "takes the place of a space", got=got, fix=fix)
    return space_of_script(config, runners=runners, arguments=arguments, trials=trials)


def _print_plan(console: Console, spec: StudySpec, address: str | None, name: str, source: str) -> None:
    from study.adopted.loading import adopted_by
    from study.cli.display import print_plan
    from study.designs.registry import make_plan, private_shape
    from study.machine.cluster import joined_ray, resolve_address
    from study.planning.plan import remarks
    from study.trial.engine.envs.probing import probe_study, speeds_of

    if spec.script is None:  # a script's environment was made when it was read
        probe_study(spec, source)
    if (joined := resolve_address(address)) is None:
        shape = private_shape(spec)
    else:
        with joined_ray(joined) as shape:
            pass
    adopted = adopted_by(spec)
    speeds = speeds_of(spec.environment) if adopted is None else adopted.speeds
    plan = make_plan(spec, replace(shape, speeds=speeds))
    print_plan(console, plan, spec, name=name)
    for remark in remarks(spec, plan):
        say(console, remark)
