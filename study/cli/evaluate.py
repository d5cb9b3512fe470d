"""`evaluate`: what a policy gets, in numbers and a film, or as JSON. No engine."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from study.console import say, terminal, write_json
from study.options import AsJson, command_app, examples, wrong_option
from study.text import count, significant

if TYPE_CHECKING:
    from study.evaluating.playing import Evaluated

app = command_app()


@app.command(
    epilog=examples(
        "python -m study evaluate studies/quickstart",
        "python -m study evaluate studies/quickstart --seed 1 --episodes 200 --video film.mp4",
        "python -m study evaluate my_space.yaml --random --episodes 200",
    ),
)
def evaluate(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY|SPACE", help="Folder of a study: its best policy. With --random a space or a study."
        ),
    ],
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
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Film it from the first episode on, 20 s at most, as .mp4 (needs imageio-ffmpeg). In the study's "
            "clips/ it goes to MLflow with the next `sync`.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play a recorded policy, or a random one: its return over episodes, a film of it.

    With defaults it plays the trial's final evaluation again, which must give the returns on record.
    """
    from study.evaluating.playing import evaluate_policy, find_policy, random_policy

    if random and (trial is not None or stochastic is not None):
        option = "--trial" if trial is not None else "--stochastic/--deterministic"
        raise wrong_option(option, rule="belongs to a recorded policy", got="--random too", fix="Drop one.")
    evaluated = evaluate_policy(
        random_policy(path) if random else find_policy(path, trial),
        episodes=episodes,
        seed=seed,
        stochastic=stochastic,
        video=video,
    )
    if as_json:
        write_json(evaluated.to_json())
    else:
        print_numbers(terminal(), evaluated)


def print_numbers(console: Console, evaluated: "Evaluated") -> None:
    """Print what the policy got, and what that means and does not mean."""
    policy, spec, returns, mean = evaluated.policy, evaluated.spec, evaluated.returns, evaluated.mean
    n, is_random = len(returns), policy.row is None
    how = "random" if is_random else "drawn" if evaluated.stochastic else "greedy"
    first = f" from episode {policy.first_episode:,} on" if policy.first_episode else ""
    say(console, policy.title)
    say(console, f"{count(n, f'{how} episode')} of {spec.environment.id}, seed {spec.evaluation.seed}{first}\n")
    interval = f" [{significant(mean.low)}, {significant(mean.high)}], 95 % interval over {n:,} episodes"
    lines = {
        "mean return": significant(mean.value) + (interval if mean.has_interval else " (no interval)"),
        "median": significant(median(returns)),
        "range": f"{significant(min(returns))} to {significant(max(returns))}",
    }
    if (solved := evaluated.solved) is not None:
        share = f"{solved.value:.0%} [{solved.low:.0%}, {solved.high:.0%}]"
        target = f"{spec.environment.target:,g} or above"
        lines["solved"] = f"{evaluated.num_solved:,} of {n:,} at the target of {target}: {share}"
    lines["cut"] = f"{evaluated.num_cut:,} of {n:,} had not ended at evaluation.max_episode_steps"
    for name, value in lines.items():
        say(console, f"{name:<12} {value}")
    own = policy.spec.evaluation.seed
    if is_random and mean.rounded is None:
        say(console, "\nOne episode has no interval and is no floor. More: --episodes 200")
    elif is_random:
        say(console, "\nNothing was learnt: actions were drawn uniformly. Under `environment` in the space:")
        say(console, f"floor: {mean.rounded:.12g}  # random policy: {mean:.4g}")
    elif evaluated.as_recorded:
        say(console, "\nThese are the returns of the trial's last evaluation on record, episode by episode.")
    elif evaluated.as_recorded is False:
        other = "another CPU that rounds otherwise, or an environment that does not follow its seed"
        say(console, f"\nThese are not the returns on record: other versions, {other}.")
    if policy.chosen_among > 1 and spec.evaluation.seed == own:
        chosen = f"The best of {policy.chosen_among:,} trials on these very episodes, which flatters it."
        say(console, f"{chosen} For episodes that nothing was chosen by: --seed {own + 1}")

    if evaluated.film is not None:
        say(console, f"Film: {evaluated.film}")
