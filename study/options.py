"""What commands share: how their help looks, common options, and what these mean for a space. Imports no engine."""

import atexit
import contextlib
import functools
import inspect
import re
import shutil
import tempfile
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from study.adopted.loading import with_script, words
from study.console import say
from study.errors import SpaceError, wrong_option
from study.space.parsing import Source, parse_space, read_space, written
from study.space.spec import StudySpec

SPACE = typer.Option("--space", metavar="SPACE", help="Space file: a path, or the name of one in search_spaces/.")
Space = Annotated[str | None, SPACE]
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
Study = Annotated[Path, typer.Argument(help="Folder of the study, such as studies/quickstart.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the plan and start nothing; with --config first the space, for a file."),
]
Trial = Annotated[int | None, typer.Option(min=0, help="Trial that is meant; by default the best of the study.")]


def command_app(help_text: str | None = None) -> typer.Typer:
    """Return an empty group of commands, in the style of all of them."""
    return typer.Typer(help=help_text, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def examples(*commands: str) -> str:
    """Return the end of a command's help: how it may be typed."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def with_options_of(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command that takes `**options` have, besides its own, those that stand with the fields of a class."""

    def extended(function: Callable[..., None]) -> Callable[..., None]:
        signature, hints = inspect.signature(function), typing.get_type_hints(kind, include_extras=True)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        fields = [
            each.replace(kind=each.KEYWORD_ONLY, annotation=hints[each.name])
            for each in inspect.signature(kind).parameters.values()
            if typing.get_origin(hints[each.name]) is Annotated
        ]
        function.__signature__ = signature.replace(parameters=[*own, *fields])  # type: ignore[attr-defined]
        return function

    return extended


# --- spaces -----------------------------------------------------------------------------------------------------------


def space_of_script(config: str, *, runners: str | None, arguments: str, trials: int | None) -> str:
    """Return a file with a space around the script of `--config`, which is run up to where it would train."""
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
        say(remark, error=True)
    folder = Path(tempfile.mkdtemp(prefix="study-space-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', Path(config.partition('.py')[0]).name)}.yaml"
    text = space_text(adopted.facts, config=config, args=arguments, runners=tuple(scales), trials=trials)
    file.write_text(text, encoding="utf-8")
    return str(file)


@functools.cache
def say_that_it_runs(script: str) -> None:
    """Say once that the code of a script runs now."""
    say(f"Running the code of {script} in a process of its own, up to where it would train. No Ray starts.", error=True)


class Asked(NamedTuple):
    """A space as the command line changes it."""

    source: Source
    spec: StudySpec
    text: str
    """As it is run: the file, or, without comments that may be wrong now, its changed content."""


def load(space: str, given: list[str] | None, trials: int | None) -> Asked:
    """Read a space and change it; a script that it names is run, which is said. `--trials` is one of the changes."""
    changes = [*(given or []), *([] if trials is None else [f"search.num_trials={trials}"])]
    source = read_space(space, overrides=changes)
    if isinstance(script := source.content.get("config"), str):
        say_that_it_runs(script)
    file = Path(source.name)
    changed = written(source.content, header=f"# {file.name}, with what the command line changed.") if changes else ""
    return Asked(source, parse_space(with_script(source)), changed or file.read_text(encoding="utf-8-sig"))


@contextlib.contextmanager
def with_lines(source: Source) -> Iterator[None]:
    """Let faults that are found after a space was read name their line in it."""
    try:
        yield
    except SpaceError as error:
        faults = [replace(each, line=each.line or source.line_of(each.where)) for each in error.faults]
        raise SpaceError(source.name if error.source == "space" else error.source, faults) from error


def check_stage(text: str | None, spec: StudySpec) -> None:
    """Refuse a stage that a study does not have; None is fine."""
    from study.designs.registry import design_of

    stages = design_of(spec).stages
    if text is not None and text not in stages:
        rule = f"must be one of {', '.join(stages)}" if stages else "only a study with stages (hold-up) takes it"
        raise wrong_option("--until", rule, got=f"'{text}'", fix="Name a stage, or drop it.")


def seconds(text: str, place: str) -> float:
    """Return a duration: `45s`, `90m`, `1h30m`, or as batch systems write it, `2:00:00` or `1-12:00:00`."""
    number = r"(\d+(?:\.\d+)?)"
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text.strip())
    match = clock or re.fullmatch(rf"()(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip())
    parts = [float(part or 0) for part in match.groups()] if match else []
    if not any(parts):
        fix = "Write 45s, 30m, 2h, 1h30m or 2:00:00."
        raise wrong_option(place, "must be a duration above zero", got=f"'{text}'", fix=fix)
    days, hours, minutes, rest = parts
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
