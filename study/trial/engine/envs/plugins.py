"""Environments that installed packages register by an entry point. No Ray, no torch.

Until 1.0 Gymnasium loaded the group `gymnasium.envs` by itself; packages declare it still. Each entry point is named
after the namespace of its ids, or `__root__`, and leads to a function that registers them.
"""

import contextlib
import re
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from gymnasium.envs.registration import namespace

GROUP = "gymnasium.envs"
_NO_NAMESPACE = ("__root__", "__internal__")


@dataclass(frozen=True, slots=True)
class _Package:
    """A package that registers environments when it is imported: what pip calls it, its module, and its ids."""

    name: str
    module: str
    ids: str


_PACKAGES = (
    _Package("ale-py", "ale_py", r"ALE/|\w+NoFrameskip-v4|\w+Deterministic-v4"),
    _Package("minigrid", "minigrid", r"MiniGrid-|BabyAI-"),
    _Package("miniworld", "miniworld", r"MiniWorld-"),
    _Package("gymnasium-robotics", "gymnasium_robotics", r"(Fetch|Hand|Adroit|Franka|PointMaze|AntMaze)"),
    _Package("highway-env", "highway_env", r"(highway|merge|roundabout|parking|intersection|racetrack)-"),
    _Package("shimmy[dm-control]", "shimmy", r"dm_control/"),
)


def package_of(env_id: str) -> str | None:
    """Return how to get at the environments of a well-known package; None where nobody here knows it.

    Args:
        env_id: An id of Gymnasium, `module:Id`, or the name of a module.
    """
    module, colon, _ = env_id.partition(":")
    for package in _PACKAGES:
        if module == package.module if colon else re.match(package.ids, env_id):
            install = f"Run `pip install '{package.name}'` on every node"
            if colon:
                return f"{install}."
            write = f"rite {package.module}:{env_id}, which imports the package first."
            return f"W{write}" if find_spec(package.module) else f"{install}, and w{write}"
    return None


def load_plugins_for(env_id: str) -> None:
    """Let the installed packages that may know an id register what they have.

    What a package raises meanwhile passes through.

    Args:
        env_id: `Name-v0` or `Namespace/Name-v0`.
    """
    own, slash, _ = env_id.partition("/")
    for plugin in metadata.entry_points(group=GROUP):
        if plugin.name == own if slash else plugin.name in _NO_NAMESPACE:
            with namespace(own) if slash else contextlib.nullcontext():
                plugin.load()()
