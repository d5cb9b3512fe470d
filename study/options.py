"""Options that several commands share, and what they mean for a space. Imports no engine."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from study.errors import Fault, SpaceError
from study.records.folder import NAME
from study.space.parsing import load_space
from study.space.space_file import read_space
from study.space.spec import StudySpec

_SPACE = "Space file: a path, or the name of one in search_spaces/."
Space = Annotated[str | None, typer.Option("--space", help=_SPACE)]
SpaceArgument = Annotated[str | None, typer.Argument(metavar="[SPACE]", help="The same as --space.")]
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
    int | None, typer.Option(min=1, help="Number of trials; with --resume extends the study. Not for hold-up studies.")
]


def one_space(argument: str | None, option: str | None) -> str:
    """Return the space that the command line names, by its place or by `--space`.

    Raises:
        SpaceError: It names none, or two.
    """
    if argument is not None and option is not None and argument != option:
        law, fix = f"must be named once, got '{argument}' and '{option}'.", "Drop one of the two."
    elif (space := option or argument) is not None:
        return space
    else:
        law, fix = "must be given, got none.", "Name a file, or one of search_spaces/: --space quickstart.yaml."
    raise SpaceError("command line", [Fault(where="--space", rule=law, fix=fix)])


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


def load(space: str, given: list[str] | None, replicate: int | None, trials: int | None) -> StudySpec:
    """Return the space as the command line changes it.

    Raises:
        SpaceError: It is wrong; names every fault.
    """
    return load_space(space, overrides=all_overrides(space, given, replicate, trials))


def all_overrides(space: str, given: list[str] | None, replicate: int | None, trials: int | None) -> list[str]:
    """Return the changes of a space: `--replicate` and `--trials` are short for some of its values."""
    overrides = list(given or [])
    if trials is not None:
        overrides.append(f"search.num_trials={trials}")
    if replicate is not None:
        from study.designs.registry import design_of  # with NumPy, which help need not wait for

        spec = load_space(space, overrides=overrides)
        overrides += design_of(spec).replicate(spec, replicate)
    return overrides


def as_run(file: Path, given: list[str] | None, replicate: int | None, trials: int | None) -> str:
    """Return the space file with a note of what the command line changed."""
    changes = all_overrides(str(file), given, replicate, trials)
    note = "".join(f"# --set {change}\n" for change in changes)
    return (f"# Changed on the command line:\n{note}" if changes else "") + file.read_text()


def checked_name(name: str) -> str:
    """Return a study's name, which becomes a folder's.

    Raises:
        SpaceError: It cannot be one.
    """
    if not NAME.fullmatch(name):
        law = f"letters, digits, '.', '_' and '-' only, got '{name}'."
        raise SpaceError("command line", [Fault(where="--name", rule=law, fix="Choose another name.")])
    return name


def checked_stage(text: str, spec: StudySpec) -> str:
    """Return a stage of the study's protocol.

    Raises:
        SpaceError: It has no such stage.
    """
    from study.designs.registry import design_of

    stages = design_of(spec).stages
    if not stages:
        law, fix = f"only a hold-up study has stages, got '{text}'.", "Drop it, or give the space a holdup section."
    elif text not in stages:
        law, fix = f"one of {', '.join(stages)}, got '{text}'.", "Name a stage."
    else:
        return text
    raise SpaceError("command line", [Fault(where="--until", rule=law, fix=fix)])


def seconds(text: str, place: str) -> float:
    """Return a duration: `45s`, `90m`, `1h30m`, or as batch systems write it, `2:00:00` (hours, minutes, seconds).

    Raises:
        SpaceError: It is something else, or zero.
    """
    clock = re.fullmatch(r"(\d+):([0-5]?\d):([0-5]?\d)", text.strip())
    words = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    match = clock or words
    parts = [float(part or 0) for part in match.groups()] if match else []
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()) and float(text) > 0:
        law, fix = f"needs a unit, got '{text}'.", f"Write {text}s, {text}m or {text}h."
        raise SpaceError("command line", [Fault(where=place, rule=law, fix=fix)])
    if not any(parts):
        law = f"a duration above zero, got '{text}'."
        raise SpaceError("command line", [Fault(where=place, rule=law, fix="Write 45s, 30m, 2h, 1h30m or 2:00:00.")])
    return parts[0] * 3600 + parts[1] * 60 + parts[2]
