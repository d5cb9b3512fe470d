"""Makes a script's environment as RLlib makes it, and plays it with random actions. Imports RLlib.

The returns of a random policy are a search's `floor`.
"""

import copy
import importlib
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from study.ray_private import maker_of
from study.trial.engine.sampling.lanes import random_action_seed

ALL = "__all__"
"""RLlib's key for an episode as a whole, among those of its agents."""


def make_environment(config: AlgorithmConfig, environments: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return one environment of a configuration.

    `environments` says what makes those that the script has registered and Ray does not know here.

    Raises:
        Exception: Whatever making it raises.
    """
    context = EnvContext(config.env_config, worker_index=1, vector_index=0, num_workers=1)
    if str(config.gym_env_vectorize_mode) == "vector_entry_point":  # RLlib says so many to what makes a vector
        context["num_envs"] = 1
    if callable(config.env):
        return config.env(context)
    name = str(config.env)
    if (maker := environments.get(name) or maker_of(name)) is not None:
        return maker(context)
    if name.startswith("ale_py:ALE/"):
        gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.make(name, **dict(context))


def play_randomly(
    environment: Any, *, episodes: int, seed: int, most_s: float, max_episode_steps: int
) -> dict[str, Any]:
    """Play episodes with actions drawn from the action space.

    Args:
        environment: Of Gymnasium, or RLlib's for several agents.
        episodes: How many.
        seed: Episode i is reset with `seed + i`; the actions follow from seed, episode and step.
        most_s: After so many seconds no further episode begins.
        max_episode_steps: A longer episode is cut.

    Returns:
        `returns`, undiscounted, the sum over agents; `num_cut`, episodes that did not end.
    """
    returns, num_cut, end = [], 0, time.monotonic() + most_s
    for number in range(episodes):
        if time.monotonic() > end:
            break
        observation, _ = environment.reset(seed=seed + number)
        total, step, ended = 0.0, 0, False
        while not ended and step < max_episode_steps:
            action = random_action(environment, observation, random_action_seed(seed, number, step))
            observation, reward, terminated, truncated, _ = environment.step(action)
            total += counted(reward)
            ended, step = has_ended(terminated, truncated), step + 1
        returns.append(total)
        num_cut += not ended
    environment.close()
    return {"returns": returns, "num_cut": num_cut}


def counted(reward: Any, agent: str | None = None) -> float:
    """Return the reward of a step: of several agents the sum, or that of one, who may be absent in it."""
    if isinstance(reward, Mapping):
        return float(sum(value for name, value in reward.items() if agent in (None, str(name))))
    return float(np.sum(reward))


def has_ended(*flags: Any) -> bool:
    """Return whether an episode is over by one of the flags of a step, of one agent, of several or of a vector."""
    return any(bool(flag.get(ALL) if isinstance(flag, Mapping) else np.any(flag)) for flag in flags)


def random_action(environment: Any, observation: Any, seed: int) -> Any:
    """Return a random action, which follows from the seed; of several agents those of all that act now."""
    several = environment.unwrapped
    if not isinstance(several, MultiAgentEnv):
        return _drawn(environment.action_space, observation, seed)
    return {
        agent: _drawn(several.get_action_space(agent), seen, (seed + place) % 2**64)
        for place, (agent, seen) in enumerate(observation.items())
    }


def _drawn(space: gymnasium.Space, observation: Any, seed: int) -> Any:
    """Return a random action; of those that are allowed where the observation says which, as RLlib's examples do."""
    own = copy.deepcopy(space)  # an environment may draw from its space too
    own.seed(seed)
    mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
    if mask is None or not isinstance(space, gymnasium.spaces.Discrete):
        return own.sample()
    return own.sample(mask=np.asarray(mask, dtype=np.int8))
