"""`evaluate`: options into an `EvaluationRequest`, then numbers, a film; or JSON. No engine."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from study.console import say, terminal, write_json
from study.options import AsJson, command_app, examples, study_folders, wrong_option
from study.text import count, number

if TYPE_CHECKING:
    from study.evaluating.film import Film
    from study.evaluating.playing import Evaluated
    from study.records.folder import StudyFolder

app = command_app()


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


@app.command(
    cls=WithFilm,
    epilog=examples(
        "python -m study evaluate studies/quickstart",
        "python -m study evaluate studies/quickstart --seed 1 --episodes 200 --video film.gif",
        "python -m study evaluate my_space.yaml --random --episodes 200",
    ),
)
def evaluate(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="STUDY|SPACE",
            help="Folder of a study: its best policy. With --random a space or a study.",
            autocompletion=study_folders,
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Policy of this trial of the study, not of its best.")
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
    as_json: AsJson = False,
) -> None:
    """Play a recorded policy, or a random one: its return over episodes, a film of it.

    With defaults it plays the trial's final evaluation again, which must give the returns on record.
    """
    if path is None:
        fix = "Name the folder of a study, such as studies/quickstart."
        raise wrong_option("STUDY", rule="must be given", got="none", fix=fix)
    from study.evaluating.playing import EvaluationRequest, evaluate_policy

    console = terminal()
    request = EvaluationRequest(
        path=path,
        trial=trial,
        episodes=episodes,
        stochastic=stochastic,
        random=random,
        seed=seed,
        video=video,
    )
    show = (lambda _: None) if as_json else (lambda evaluated: print_numbers(console, evaluated))
    evaluated = evaluate_policy(request, on_numbers=show)
    if as_json:
        write_json(evaluated.to_json())
    elif evaluated.film is not None:
        print_film(console, evaluated.film, evaluated.policy.study)


def print_numbers(console: Console, evaluated: "Evaluated") -> None:
    """Print what the policy got."""
    spec = evaluated.spec
    how = "random" if evaluated.policy.row is None else "drawn" if evaluated.stochastic else "greedy"
    first = f" from episode {number:,} on" if (number := evaluated.policy.first_episode) else ""
    played = count(len(evaluated.returns), f"{how} episode")
    say(console, evaluated.policy.title)
    say(console, f"{played} of {spec.environment.id}, seed {spec.evaluation.seed}{first}\n")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in _lines(evaluated):
        table.add_row(name, value)
    console.print(table)
    say(console, "")
    for sentence in _remarks_on_random(evaluated) if evaluated.policy.row is None else _remarks(evaluated):
        say(console, sentence)


def print_film(console: Console, film: "Film", study: "StudyFolder | None") -> None:
    """Print where the film is and what it shows."""
    size, cut = film.file.stat().st_size / 1e3, sum(not shot.whole for shot in film.shots)
    shown = f"episodes 1 to {len(film.shots)}" if len(film.shots) > 1 else "episode 1"
    end = ", not all to their end" if cut else ""
    length = f"{film.seconds:.1f} s, {size:,.0f} kB"
    say(console, f"Film: {film.file} ({shown}{end}; {length}); a picture of it: {film.poster}")
    if film.unlike:
        numbers = ", ".join(str(episode + 1) for episode in film.unlike)
        say(
            console,
            f"What is seen of episode {numbers} is not what was counted: the environment does not follow its seed. "
            "Fix: draw from its np_random alone.",
        )
    if study is not None and film.file.parent.resolve() == study.clips.resolve():
        say(console, f"To bring it to MLflow: python -m study sync {study.path}")


def _lines(evaluated: "Evaluated") -> Iterator[tuple[str, str]]:
    returns, mean, solved = evaluated.returns, evaluated.mean, evaluated.solved
    n, target = len(returns), evaluated.spec.environment.target
    known = f"{mean.value:,.2f} [{mean.low:,.2f}, {mean.high:,.2f}], 95 % interval over {n:,} episodes"
    yield "mean return", known if mean.has_interval else f"{mean:,.2f}"
    yield "median", number(median(returns), ",.2f")
    yield "range", f"{min(returns):,.2f} to {max(returns):,.2f}"
    if solved is not None:
        share = f"{solved.value:.0%} [{solved.low:.0%}, {solved.high:.0%}]"
        yield "solved", f"{evaluated.num_solved:,} of {n:,} at the target of {target:,g} or above: {share}"
    yield "cut", f"{evaluated.num_cut:,} of {n:,} had not ended at evaluation.max_episode_steps"


def _remarks(evaluated: "Evaluated") -> Iterator[str]:
    """Yield what the numbers mean and do not mean."""
    policy, own = evaluated.policy, evaluated.policy.spec.evaluation.seed
    if evaluated.as_recorded:
        yield (
            "These are the returns of the trial's last evaluation on record, episode by episode. The return in tables "
            "is the mean over all evaluations in the last tenth of the budget."
        )
    elif evaluated.as_recorded is False:
        yield (
            "These are not the returns on record: other versions, another CPU that rounds otherwise, or an "
            "environment that does not follow its seed."
        )
    if policy.chosen_among > 1 and evaluated.spec.evaluation.seed == own:
        yield (
            f"The best of {policy.chosen_among:,} trials on these very episodes, which flatters it. For episodes that "
            f"nothing was chosen by: --seed {own + 1}"
        )


def _remarks_on_random(evaluated: "Evaluated") -> Iterator[str]:
    """Yield what was played, how the space's floor compares, and at last the line that may replace it."""
    yield "Every action was drawn from the action space, uniformly between its bounds: nothing was learnt."
    mean, own = evaluated.mean, evaluated.spec.environment.floor
    floor = mean.rounded
    if floor is None:
        yield "One episode has no interval and is no floor. More: --episodes 200"
        return
    if own is not None:
        where = "within" if mean.low <= own <= mean.high else "outside of"
        yield f"The space's own floor of {own:,g} is {where} the interval."
    yield "\nUnder `environment` in the space:"
    yield f"floor: {floor:.12g}  # random policy: {mean:.4g}"
