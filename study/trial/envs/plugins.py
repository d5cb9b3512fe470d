"""Environments that installed packages register by an entry point. No Ray, no torch.

Until 1.0 Gymnasium loaded the group `gymnasium.envs` by itself; packages declare it still. Each entry point is named
after the namespace of its ids, or `__root__`, and leads to a function that registers them.
"""

import contextlib
from importlib import metadata

from gymnasium.envs.registration import namespace

GROUP = "gymnasium.envs"
_NO_NAMESPACE = ("__root__", "__internal__")


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
