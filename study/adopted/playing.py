"""Makes a script's environment as RLlib makes it, and plays it with random actions. Imports RLlib.

Runs in the process that reads the script. The returns of a random policy are a search's `floor`.
"""

import importlib
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from study.seams.ray import maker_of


def make_environment(config: AlgorithmConfig, environments: Mapping[str, Any]) -> Any:
    """Return one environment of a configuration.

    Args:
        config: The configuration.
        environments: Name -> what makes it, of those that the script has registered.

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
        seed: Episode i is reset with `seed + i`; the actions follow from it too.
        most_s: After so many seconds no further episode begins.
        max_episode_steps: A longer episode is cut.

    Returns:
        `returns`, undiscounted, the sum over agents; `num_cut`, episodes that did not end.
    """
    several = environment.unwrapped if isinstance(environment.unwrapped, MultiAgentEnv) else None
    returns, num_cut, end = [], 0, time.monotonic() + most_s
    for number in range(episodes):
        if time.monotonic() > end:
            break
        if several is None:
            total, ended = _play_one(environment, seed + number, max_episode_steps)
        else:
            total, ended = _play_several(several, seed + number, max_episode_steps)
        returns.append(total)
        num_cut += not ended
    environment.close()
    return {"returns": returns, "num_cut": num_cut}


def _play_one(environment: gymnasium.Env, seed: int, most: int) -> tuple[float, bool]:
    observation, _ = environment.reset(seed=seed)
    environment.action_space.seed(seed)
    total = 0.0
    for _ in range(most):
        action = _drawn(environment.action_space, observation)
        observation, reward, terminated, truncated, _ = environment.step(action)
        total += float(np.sum(reward))
        if terminated or truncated:
            return total, True
    return total, False


def _play_several(environment: MultiAgentEnv, seed: int, most: int) -> tuple[float, bool]:
    observations, _ = environment.reset(seed=seed)
    spaces = {agent: environment.get_action_space(agent) for agent in environment.possible_agents}
    for number, space in enumerate(spaces.values()):
        space.seed(seed + number)
    total = 0.0
    for _ in range(most):
        actions = {agent: _drawn(spaces[agent], observation) for agent, observation in observations.items()}
        observations, rewards, terminated, truncated, _ = environment.step(actions)
        total += float(sum(rewards.values()))
        if terminated.get("__all__") or truncated.get("__all__"):
            return total, True
    return total, False


def _drawn(space: gymnasium.Space, observation: Any) -> Any:
    """Return a random action; of those that are allowed where the observation says which, as RLlib's examples do."""
    mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
    if mask is None or not isinstance(space, gymnasium.spaces.Discrete):
        return space.sample()
    return space.sample(mask=np.asarray(mask, dtype=np.int8))
