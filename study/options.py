"""What commands share: how their help looks, common options, and what these mean for a space. Imports no engine."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from study.console import write
from study.errors import SpaceError
from study.records.folder import NAME
from study.space.parsing import load_space
from study.space.space_file import SHIPPED, read_space
from study.space.spec import StudySpec

FORMER = {"--seed": "--replicate", "--format": "--json"}
"""Former option -> the one that commands without it have in its place."""


class Command(TyperCommand):
    """A command that answers a former option with its new name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse former options, then parse as usual."""
        known = {name for parameter in self.params for name in parameter.opts}
        for word in args[: args.index("--")] if "--" in args else args:
            option = word.partition("=")[0]
            if option in FORMER and option not in known and FORMER[option] in known:
                ctx.fail(f"No such option: {option}. Did you mean {FORMER[option]}?")
        return super().parse_args(ctx, args)


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
Space = Annotated[str | None, typer.Option("--space", help=_SPACE, autocompletion=space_names)]
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
    int | None, typer.Option(min=1, help="Number of trials; with --resume extends the study. Not for hold-up studies.")
]


def wrong_option(option: str, rule: str, *, got: object = "", fix: str, code: str) -> SpaceError:
    """Return the error of one option or argument of a command."""
    return SpaceError.of("command line", where=option, rule=rule, got=str(got), fix=fix, code=code)


def one_space(argument: str | None, option: str | None) -> str:
    """Return the space that the command line names, by its place or by `--space`.

    Raises:
        SpaceError: It names none, or two.
    """
    if argument is not None and option is not None and argument != option:
        got, fix = f"'{argument}' and '{option}'", "Drop one of the two."
        raise wrong_option("--space", "must be named once", got=got, fix=fix, code="two-spaces")
    if (space := option or argument) is not None:
        return space
    fix = "Name a file, or one of search_spaces/: --space quickstart.yaml."
    raise wrong_option("--space", "must be given", got="none", fix=fix, code="no-space")


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
        rule = "must consist of letters, digits, '.', '_' and '-'"
        raise wrong_option("--name", rule, got=f"'{name}'", fix="Choose another name.", code="name")
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
    raise wrong_option("--until", rule, got=f"'{text}'", fix=fix, code="stage")


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
        fix = f"Write {text}s, {text}m or {text}h."
        raise wrong_option(place, "needs a unit", got=f"'{text}'", fix=fix, code="no-unit")
    if not any(parts):
        fix = "Write 45s, 30m, 2h, 1h30m or 2:00:00."
        raise wrong_option(place, "must be a duration above zero", got=f"'{text}'", fix=fix, code="duration")
    return parts[0] * 3600 + parts[1] * 60 + parts[2]
