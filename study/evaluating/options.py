"""The command `evaluate`: its options. Imports no engine."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from study.console import SteadyConsole, write
from study.errors import Fault, SpaceError

FORMATS = ("text", "json")


class WithFilm(TyperCommand):
    """Lets `--video` stand alone: the film then goes to the study's own folder for them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put an empty name behind a `--video` that has none."""
        given: list[str] = []
        for word, following in zip(args, [*args[1:], "-"], strict=False):
            given.append(word)
            if word == "--video" and (following.startswith("-") or Path(following).is_dir()):
                given.append("")
        return super().parse_args(ctx, given)


def evaluate(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="STUDY|CHECKPOINT|SPACE",
            help="Folder of a study: its best policy; or of a checkpoint: that one. With --random a space or a study.",
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Policy of this trial of the study, not of its best.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Space of a checkpoint outside of a study, or with --random: a path, or a name in search_spaces/."
        ),
    ] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes to play; by default as the space says.")] = None,
    stochastic: Annotated[
        bool | None,
        typer.Option(
            "--stochastic/--deterministic",
            help="Draw actions as in the training, or take the most probable ones; by default as the space says.",
        ),
    ] = None,
    random: Annotated[
        bool,
        typer.Option("--random", help="Uniformly random actions in place of a policy: what a space's floor should be."),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**28 - 1,
            help="Seed of the episodes, and of actions that are drawn; the same seed gives the same episodes. By "
            "default that of the study's own evaluations.",
        ),
    ] = None,
    video: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE]",
            help="Film the first 3 episodes, 20 s at most, as .mp4 or .gif, with a picture beside it; without a name "
            "in the study's clips/, for its report and MLflow.",
        ),
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Show the first 3 episodes in a window.")] = False,
    attach: Annotated[
        bool, typer.Option("--attach", help="Give the film to the MLflow that the study was started with.")
    ] = False,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow that gets the film instead.")] = None,
    format_: Annotated[str, typer.Option("--format", help="text; json: all returns, for programs.")] = "text",
) -> None:
    """Play a recorded policy, or a random one: its return over episodes, a film of it, a window.

    With defaults it plays the trial's final evaluation again, which must give the returns on record.
    """
    if format_ not in FORMATS:
        law = f"one of {', '.join(FORMATS)}, got '{format_}'."
        raise SpaceError("command line", [Fault(where="--format", rule=law, fix="Choose one of them.")])
    if path is None and random and space is not None:
        path, space = Path(space), None
    if path is None:
        law, fix = "must be given, got none.", "Name the folder of a study, such as studies/quickstart."
        raise SpaceError("command line", [Fault(where="STUDY", rule=law, fix=fix)])
    from study.evaluating.command import Asked, Evaluated, evaluate_policy
    from study.evaluating.view import print_film, print_numbers, to_json

    console = SteadyConsole(width=None if sys.stdout.isatty() else 140)

    def tell(evaluated: Evaluated) -> None:
        if format_ == "text":
            print_numbers(console, evaluated)

    asked = Asked(
        path=path,
        trial=trial,
        space=space,
        episodes=episodes,
        stochastic=stochastic,
        random=random,
        seed=seed,
        video=video,
        render=render,
        attach=attach,
        tracking_uri=tracking_uri,
    )
    evaluated = evaluate_policy(asked, told=tell)
    if format_ == "json":
        write(to_json(evaluated))
    elif evaluated.film is not None:
        print_film(console, evaluated.film, evaluated.attached)
