"""`adopt`: the space of a study around a person's own RLlib script, to be edited. Imports no engine."""

from typing import Annotated

import typer

from study.console import write
from study.options import ConfigArgs, ConfigTimeout, Runners, asked_script, command_app, examples

app = command_app()


@app.command(
    epilog=examples(
        "python -m study adopt my_train.py > my_space.yaml",
        "python -m study adopt my_train.py:make_config --runners 1,10,46 > my_space.yaml",
        "python -m study adopt my_train.py --config-args '--num-agents 2' > my_space.yaml",
    ),
)
def adopt(
    config: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:NAME]",
            help="The script. NAME: an AlgorithmConfig in it, or a function that returns one, or one of several by "
            "its number.",
        ),
    ],
    config_args: ConfigArgs = "",
    config_timeout: ConfigTimeout = "60s",
    runners: Runners = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials.")] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of a random policy, which measure the floor; 0 leaves it out.")
    ] = 200,
) -> None:
    """Print a space around the values of a script that trains with RLlib.

    The script's code runs in a process of its own, up to where it would train; no Ray starts.
    """
    text = asked_script(
        config,
        arguments=config_args,
        timeout=config_timeout,
        runners=runners,
        trials=trials,
        episodes=episodes,
    )
    write(text)
