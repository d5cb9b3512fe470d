"""The 16 Procgen games, `procgen:coinrun` and so on, with levels to train on and others to be tested on. Pure.

Source: Cobbe et al., "Leveraging procedural generation to benchmark reinforcement learning", arXiv 1912.01588: training
on 200 levels of the easy and 500 of the hard distribution, tests on others. The games are EnvPool's.
"""

from collections.abc import Mapping
from typing import Any

PREFIX = "procgen:"
GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot", "heist", "jumper"),
    *("leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
TRAINING_LEVELS = {"easy": 200, "hard": 500}
NUM_TEST_LEVELS = 100_000
"""Levels to be tested on, which follow those of training; the paper tests on all there are."""
MAX_LEVELS = 10**9
"""Of `num_levels` and of `start_level`: with the levels to be tested on, their sum stays within 32 bits."""


def is_procgen(env_id: str) -> bool:
    """Return whether an id names a Procgen game: `procgen:coinrun`."""
    return env_id.startswith(PREFIX)


def task_of(env_id: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return EnvPool's task and its arguments: where levels are not given, those of training."""
    arguments = dict(kwargs)
    mode = str(arguments.pop("distribution_mode", "easy"))
    levels = {"num_levels": TRAINING_LEVELS[mode], "start_level": 0}
    return f"{env_id.removeprefix(PREFIX).capitalize()}{mode.capitalize()}-v0", {**levels, **arguments}


def tested_on(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the levels that follow those of training, where nothing else is said."""
    _, training = task_of(PREFIX, kwargs)
    if training["num_levels"] == 0:
        return {}  # trained on all levels, and so tested on them
    return {"num_levels": NUM_TEST_LEVELS, "start_level": training["start_level"] + training["num_levels"]}
