"""Rewards in units of the deviation of the discounted returns so far, for either learner. Imports RLlib."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from study.trial.engine.learning.batches import FloatArray, own

_EPSILON, _LARGEST = 1e-8, 10.0
"""As Stable-Baselines3's `VecNormalize` has them."""


class RewardScale:
    """Divides rewards as Stable-Baselines3's `VecNormalize` does. It belongs to the learner, which sees all of them."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._returns = RunningMeanStd()
        self._discounted: dict[str, float] = {}
        """Of each episode in the last batch: r(t) + gamma r(t-1) + gamma^2 r(t-2) + … up to its last step t."""

    def scaled(self, episode_ids: Sequence[str], rewards: Sequence[FloatArray]) -> list[FloatArray]:
        """Learn from the rewards of a batch, and return them scaled and clipped.

        Args:
            episode_ids: Of each piece of an episode; every episode that goes on has one in each batch.
            rewards: Of each piece, shape (steps,), not empty; the pieces of an episode in time order.
        """
        from scipy.signal import lfilter  # half a second of every process that starts, and few studies need it

        before, returns = self._discounted, []
        now: dict[str, float] = {}
        for name, piece in zip(episode_ids, rewards, strict=True):
            start = self._gamma * now.get(name, before.get(name, 0.0))
            discounted, _ = lfilter([1.0], [1.0, -self._gamma], piece, zi=[start])
            now[name] = float(discounted[-1])
            returns.append(discounted)
        self._discounted = now
        self._returns.update(np.concatenate(returns))
        deviation = math.sqrt(float(self._returns.var) + _EPSILON)
        return [np.clip(piece / deviation, -_LARGEST, _LARGEST) for piece in rewards]


class ScaledRewards(ConnectorV2):
    """Lets RLlib's own learner learn from scaled rewards: set as `learner_connector`, for one learner."""

    def __init__(self, *spaces: Any, gamma: float, **options: Any) -> None:
        super().__init__(*spaces, **options)
        self._scale = RewardScale(gamma)

    def __call__(self, *, episodes: Sequence[SingleAgentEpisode], batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Replace the rewards of the episodes, which the pieces behind this one read.

        RLlib has appended a row to each episode before, with reward 0, and a number to its id.
        """
        filled = [episode for episode in episodes if len(episode) > 1]
        rewards = [np.asarray(own(episode.rewards)[:-1], np.float64) for episode in filled]
        names = [episode.id_.rpartition("_")[0] for episode in filled]
        for episode, scaled in zip(filled, self._scale.scaled(names, rewards), strict=True):
            lookback = episode.rewards.data[: episode.rewards.lookback]
            episode.rewards.data = np.concatenate([lookback, scaled, [0.0]])
        return batch
