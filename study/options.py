"""What commands share: how their help looks, common options, and what these mean for a space. Imports no engine."""

import atexit
import contextlib
import functools
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from study.adopted.loading import load_space, words
from study.console import say, terminal, write
from study.errors import SpaceError
from study.records.folder import NAME, NAME_RULE
from study.space.space_file import read_space, written
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


def _print_version(asked: bool) -> None:
    if asked:
        write(f"{version('runner-scaling-study')}\n")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
Space = Annotated[
    str | None,
    typer.Option("--space", metavar="SPACE", help="Space file: a path, or the name of one in search_spaces/."),
]
SpaceArgument = Annotated[str | None, typer.Argument(metavar="[SPACE]", help="The same as --space.")]
Study = Annotated[Path, typer.Argument(help="Folder of the study, such as studies/quickstart.")]
Out = Annotated[Path, typer.Option(help="Folder that holds the studies.")]
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
Trials = Annotated[
    int | None,
    typer.Option(min=1, help="Number of trials; a resumed study is extended to it. Not for hold-up studies."),
]


def wrong_option(option: str, rule: str, *, got: object = "", fix: str) -> SpaceError:
    """Return the error of one option or argument of a command."""
    return SpaceError.of("command line", where=option, rule=rule, got=str(got), fix=fix)


# --- spaces -----------------------------------------------------------------------------------------------------------


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


def space_of_script(config: str, *, runners: str | None, arguments: str, trials: int | None) -> str:
    """Return a file with a space around the script of `--config`, which is run up to where it would train.

    Raises:
        SpaceError: The script, or an option, is wrong.
    """
    from study.adopted.loading import read_script, remarks, space_text

    numbers = [] if runners is None else runners.split(",")
    scales = sorted({int(part) for part in numbers if re.fullmatch(" *[1-9][0-9]{0,9} *", part)})
    if len(scales) < len(numbers):
        rule, fix = "must be distinct numbers of runners above zero", "Write for instance --runners 1,10,46."
        raise wrong_option("--runners", rule, got=f"'{runners}'", fix=fix)
    given = words(arguments, "--config-args")
    say_that_it_runs(config)
    adopted = read_script(config, args=given, where="--config")
    for remark in remarks(adopted.facts):
        say(terminal(error=True), remark)
    folder = Path(tempfile.mkdtemp(prefix="study-space-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', Path(config.partition('.py')[0]).name)}.yaml"
    text = space_text(adopted.facts, config=config, args=arguments, runners=tuple(scales), trials=trials)
    file.write_text(text, encoding="utf-8")
    return str(file)


@functools.cache
def say_that_it_runs(script: str) -> None:
    """Say once that the code of a script runs now."""
    text = f"Running the code of {script} in a process of its own, up to where it would train. No Ray starts."
    say(terminal(error=True), text)


@contextlib.contextmanager
def with_lines(space: str, given: list[str] | None) -> Iterator[None]:
    """Let faults that are found after the space was read name their line in it."""
    try:
        yield
    except SpaceError as error:
        source = read_space(space, overrides=given or [])
        faults = [replace(each, line=each.line or source.line_of(each.where)) for each in error.faults]
        raise SpaceError(source.name if error.source == "space" else error.source, faults) from error


def load(space: str, given: list[str] | None, trials: int | None, *, new: bool = True) -> StudySpec:
    """Return the space as the command line changes it; a script that it names is run, and the person reads so.

    Raises:
        SpaceError: It is wrong; names every fault.
    """
    if isinstance(script := read_space(space, overrides=given or []).content.get("config"), str):
        say_that_it_runs(script)
    return load_space(space, overrides=overrides_of(given, trials), new=new)


def overrides_of(given: list[str] | None, trials: int | None) -> list[str]:
    """Return the changes of a space: `--trials` is short for one of them."""
    return [*(given or []), *([] if trials is None else [f"search.num_trials={trials}"])]


def as_run(file: Path, changes: list[str]) -> str:
    """Return the space as it is run: the file, or where the command line changes it, its content with the changes.

    Then without the file's comments, which may say something else of a value that was changed.
    """
    if not changes:
        return file.read_text(encoding="utf-8-sig")
    header = f"# {file.name}, with what the command line changed."
    return written(read_space(file, overrides=changes).content, header=header)


# --- single values ----------------------------------------------------------------------------------------------------


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
    number = r"(\d+(?:\.\d+)?)"
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text.strip())
    match = clock or re.fullmatch(rf"()(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip())
    parts = [float(part or 0) for part in match.groups()] if match else []
    if not any(parts):
        fix = "Write 45s, 30m, 2h, 1h30m or 2:00:00."
        raise wrong_option(place, "must be a duration above zero", got=f"'{text}'", fix=fix)
    days, hours, minutes, rest = parts
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
