"""What commands share: how their help looks, common options, and what these mean for a space. Imports no engine."""

import atexit
import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from study.adopted.loading import load_space, with_script, words
from study.console import say, terminal, write
from study.errors import SpaceError
from study.records.folder import NAME, NAME_RULE
from study.space.space_file import SHIPPED, read_space, written
from study.space.spec import StudySpec


def command_app(help_text: str | None = None) -> typer.Typer:
    """Return an empty group of commands, in the style of all of them."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def examples(*commands: str) -> str:
    """Return the end of a command's help: how it may be typed."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def space_names(incomplete: str) -> list[str]:
    """Return the spaces that a shell offers: the shipped ones and those in this folder."""
    files = [*SHIPPED.glob("*.yaml"), *Path().glob("*.yaml")]
    return sorted({file.name for file in files if file.name.startswith(incomplete)})


def study_folders(incomplete: str) -> list[str]:
    """Return the studies that a shell offers: those in `studies/` and in the folder that is being typed."""
    parent = Path(incomplete if incomplete.endswith("/") else incomplete + "x").parent
    found = [*Path("studies").glob("*/study.json"), *parent.glob("*/study.json")]
    return sorted({str(file.parent) for file in found if str(file.parent).startswith(incomplete)})


_SPACE = "Space file: a path, or the name of one in search_spaces/."
Space = Annotated[str | None, typer.Option("--space", metavar="SPACE", help=_SPACE, autocompletion=space_names)]
SpaceArgument = Annotated[
    str | None, typer.Argument(metavar="[SPACE]", help="The same as --space.", autocompletion=space_names)
]
Study = Annotated[
    Path, typer.Argument(help="Folder of the study, such as studies/quickstart.", autocompletion=study_folders)
]
Out = Annotated[Path, typer.Option(help="Folder that holds the studies.")]


def _print_version(asked: bool) -> None:
    if asked:
        write(f"{version('runner-scaling-study')}\n")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray to join: auto, or host:port. Without it RAY_ADDRESS if set, else a private local Ray ('local')."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a value of the space, by its dotted key. May be repeated."
    ),
]
Replicate = Annotated[
    int | None,
    typer.Option(min=0, help="Repeat the study with other seeds: those of the sampler and of all trials, by number."),
]
Trials = Annotated[
    int | None,
    typer.Option(min=1, help="Number of trials; a resumed study is extended to it. Not for hold-up studies."),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE[:NAME]",
        help="An RLlib script in place of a space; its code runs up to where it would train. NAME: an AlgorithmConfig "
        "in it, or a function that returns one.",
    ),
]
ConfigArgs = Annotated[
    str, typer.Option("--config-args", help="Arguments of the script, as one text: '--num-agents 2'.")
]
ConfigTimeout = Annotated[
    str, typer.Option("--config-timeout", help="How long the script may take to come to its training.")
]
Runners = Annotated[
    str | None,
    typer.Option("--runners", metavar="N,N,…", help="With --config: the numbers of environment runners, as 1,10,46."),
]


def wrong_option(option: str, rule: str, *, got: object = "", fix: str) -> SpaceError:
    """Return the error of one option or argument of a command."""
    return SpaceError.of("command line", where=option, rule=rule, got=str(got), fix=fix)


def one_space(argument: str | None, option: str | None) -> str:
    """Return the space that the command line names, by its place or by `--space`.

    Raises:
        SpaceError: It names none, or two.
    """
    if argument and option and argument != option:
        got = f"'{argument}' and '{option}'"
        raise wrong_option("--space", "must be named once", got=got, fix="Keep one of them.")
    if named := argument or option:
        return named
    fix = "Name a file, or one of search_spaces/: --space quickstart.yaml."
    raise wrong_option("--space", "must be given", got="none", fix=fix)


def asked_space(
    argument: str | None,
    option: str | None,
    config: str | None,
    *,
    runners: str | None,
    arguments: str,
    timeout: str,
    trials: int | None,
) -> str:
    """Return the space that the command line names; one around the script of `--config` is written into a file.

    Raises:
        SpaceError: It names none, or two, or a script that cannot be studied.
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
    from study.adopted.loading import read_script, script_file
    from study.adopted.writing import not_varied, space_text

    scales = sorted({int(part) for part in (runners or "").split(",") if re.fullmatch(" *[1-9][0-9]{0,9} *", part)})
    if len(scales) < len(runners.split(",") if runners is not None else ()):
        rule, fix = "must be distinct numbers of runners above zero", "Write for instance --runners 1,10,46."
        raise wrong_option("--runners", rule, got=f"'{runners}'", fix=fix)
    given, limit = words(arguments, "--config-args"), seconds(timeout, "--config-timeout")
    script_file(config, where="--config")  # before it is said to run
    say_that_it_runs(config)
    adopted = read_script(config, args=given, timeout_s=limit, where="--config")
    facts, console = adopted.facts, terminal(error=True)
    say(console, f"Found {facts.algorithm} on {facts.environment} ({facts.found_as}).")
    if settings := ", ".join(facts.settings):
        say(console, f"Beside the parameters of a study it sets {settings}.")
    if variables := ", ".join(adopted.variables):
        say(console, f"It sets {variables} in its environment: so do the trials.")
    for remark in not_varied(facts):
        say(console, remark)
    folder = Path(tempfile.mkdtemp(prefix="study-space-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', Path(config.partition('.py')[0]).name)}.yaml"
    text = space_text(facts, config=config, args=arguments, runners=tuple(scales), trials=trials)
    file.write_text(text, encoding="utf-8")
    return str(file)


_SAID: set[str] = set()
"""Scripts of which this command has said that it runs them."""


def say_that_it_runs(script: str) -> None:
    """Say once that the code of a script runs now."""
    if script not in _SAID:
        _SAID.add(script)
        text = f"Running the code of {script} in a process of its own, up to where it would train. No Ray starts."
        say(terminal(error=True), text)


@contextlib.contextmanager
def with_lines(space: str, given: list[str] | None) -> Iterator[None]:
    """Let faults that are found after the space was read name their line in it."""
    source = read_space(space, overrides=given or [])
    try:
        yield
    except SpaceError as error:
        faults = [replace(each, line=each.line or source.line_of(each.where)) for each in error.faults]
        name = source.name if error.source == "space" else error.source
        raise SpaceError(name, faults) from error


def load(
    space: str,
    given: list[str] | None,
    replicate: int | None,
    trials: int | None,
    *,
    timeout: str | None = None,
    new: bool = True,
) -> StudySpec:
    """Return the space as the command line changes it; a script that it names is run, and the person reads so.

    Raises:
        SpaceError: It is wrong; names every fault.
    """
    source = read_space(space, overrides=given or [])
    if isinstance(script := source.content.get("config"), str):
        say_that_it_runs(script)
        if timeout is not None:  # read here, within this limit; what is read is not run again
            with_script(source, timeout_s=seconds(timeout, "--config-timeout"))
    return load_space(space, overrides=all_overrides(space, given, replicate, trials), new=new)


def all_overrides(space: str, given: list[str] | None, replicate: int | None, trials: int | None) -> list[str]:
    """Return the changes of a space: `--replicate` and `--trials` are short for some of its values."""
    overrides = list(given or [])
    if trials is not None:
        overrides.append(f"search.num_trials={trials}")
    if replicate is not None:
        from study.designs.registry import design_of  # with NumPy, which help need not wait for

        spec = load_space(space, overrides=overrides, new=False)  # the whole is checked by whoever asked
        overrides += design_of(spec).replicate(spec, replicate)
    return overrides


def as_run(file: Path, given: list[str] | None, replicate: int | None, trials: int | None) -> str:
    """Return the space as it is run: the file, or where the command line changes it, its content with the changes."""
    changes = all_overrides(str(file), given, replicate, trials)
    if not changes:
        return file.read_text(encoding="utf-8-sig")
    header = f"# {file.name}, with what the command line changed."
    return written(read_space(file, overrides=changes).content, header=header)


def checked_name(name: str) -> str:
    """Return a study's name, which becomes a folder's.

    Raises:
        SpaceError: It cannot be one.
    """
    if not NAME.fullmatch(name):
        raise wrong_option("--name", NAME_RULE, got=f"'{name}'", fix="Choose another name.")
    return name


def checked_stage(text: str, spec: StudySpec) -> str:
    """Return a stage of the study.

    Raises:
        SpaceError: It has no such stage.
    """
    from study.designs.registry import design_of

    stages = design_of(spec).stages
    if text in stages:
        return text
    rule, fix = f"must be one of {', '.join(stages)}", "Name a stage."
    if not stages:
        rule, fix = "only a study with stages (hold-up) takes it", "Drop it, or give the space a holdup section."
    raise wrong_option("--until", rule, got=f"'{text}'", fix=fix)


def seconds(text: str, place: str) -> float:
    """Return a duration: `45s`, `90m`, `1h30m`, or as batch systems write it, `2:00:00` or `1-12:00:00`.

    Raises:
        SpaceError: It is something else, or zero.
    """
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text.strip())
    words = re.fullmatch(r"()(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    match = clock or words
    parts = [float(part or 0) for part in match.groups()] if match else []
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()) and float(text) > 0:
        raise wrong_option(place, "needs a unit", got=f"'{text}'", fix=f"Write {text}s, {text}m or {text}h.")
    if not any(parts):
        fix = "Write 45s, 30m, 2h, 1h30m or 2:00:00."
        raise wrong_option(place, "must be a duration above zero", got=f"'{text}'", fix=fix)
    days, hours, minutes, rest = parts
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
