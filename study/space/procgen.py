"""The 16 Procgen games by the names that people use, with levels to train on and others to be tested on. Pure.

Source: Cobbe et al., "Leveraging procedural generation to benchmark reinforcement learning", arXiv 1912.01588: training
on 200 levels of the easy and 500 of the hard distribution, tests on others. The games are EnvPool's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

PREFIX = "procgen:"
_NAMES = """
bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja plunder
starpilot
"""
GAMES = tuple(_NAMES.split())
TRAINING_LEVELS = {"easy": 200, "hard": 500}
NUM_TEST_LEVELS = 100_000
"""Levels to be tested on, which follow those of training; the paper tests on all there are."""
MAX_LEVELS = 10**9
"""Of `num_levels` and of `start_level`: with the levels to be tested on, their sum stays within 32 bits."""


def is_procgen(env_id: str) -> bool:
    """Return whether an id names a Procgen game: `procgen:coinrun`, or `procgen:procgen-coinrun-v0` as elsewhere."""
    return env_id.startswith(PREFIX)


def game_meant(env_id: str) -> str | None:
    """Return our id of a game that `env_id` names in another spelling, such as `procgen-coinrun-v0`; else None."""
    game = game_of(env_id.lower())
    return PREFIX + game if game in GAMES else None


def task_of(env_id: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return EnvPool's task and its arguments: where levels are not given, those of training."""
    mode = mode_of(kwargs)
    levels = {"num_levels": TRAINING_LEVELS[mode], "start_level": 0}
    others = {name: value for name, value in kwargs.items() if name != "distribution_mode"}
    return f"{game_of(env_id).capitalize()}{mode.capitalize()}-v0", {**levels, **others}


def tested_on(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the levels that follow those of training, where nothing else is said."""
    _, training = task_of(PREFIX + GAMES[0], kwargs)
    if training["num_levels"] == 0:
        return {}  # trained on all levels, and so tested on them
    return {"num_levels": NUM_TEST_LEVELS, "start_level": training["start_level"] + training["num_levels"]}


def game_of(env_id: str) -> str:
    """Return the name of the game that an id names, known or not."""
    name = env_id.removeprefix(PREFIX).removeprefix("procgen-")
    return name.removesuffix("-v0")


def mode_of(kwargs: Mapping[str, Any]) -> str:
    """Return the distribution of levels that the arguments of an environment ask for."""
    return str(kwargs.get("distribution_mode", "easy"))


def wrong_levels(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the arguments that EnvPool would take for something else, each with what it must be.

    It takes a `num_levels` of 0 or less for all levels, and then ignores `start_level`.
    """
    if mode_of(kwargs) not in TRAINING_LEVELS:
        yield "distribution_mode", "easy or hard"
    for name in ("num_levels", "start_level"):
        if type(value := kwargs.get(name, 0)) is not int or not 0 <= value <= MAX_LEVELS:
            yield name, f"a whole number from 0 to {MAX_LEVELS}"
    if kwargs.get("num_levels") == 0 and kwargs.get("start_level"):
        yield "start_level", "left out where num_levels is 0, which means all levels"
