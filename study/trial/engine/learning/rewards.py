"""Rewards in units of the deviation of the discounted returns so far, for either learner. Imports RLlib and torch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.numpy import SMALL_NUMBER

from study.trial.engine.learning.advantages import FloatArray
from study.trial.engine.learning.batches import DISCOUNTED, own
from study.trial.engine.learning.encoders import LARGEST, RunningMoments


class ReturnScale:
    """Divides rewards as Stable-Baselines3's VecNormalize does."""

    def __init__(self) -> None:
        self._returns = RunningMoments(())

    def add(self, discounted: FloatArray) -> None:
        """Add the discounted returns of a batch, shape (steps,)."""
        self._returns.add(torch.from_numpy(discounted))

    def scaled(self, rewards: FloatArray) -> FloatArray:
        """Return rewards divided by the deviation of the returns so far, clipped; same shape."""
        deviation = math.sqrt(float(self._returns.variance) + SMALL_NUMBER)
        return np.clip(rewards / deviation, -LARGEST, LARGEST)


class ScaledRewards(ConnectorV2):
    """Lets RLlib's own learner learn from scaled rewards: set as `learner_connector`, for one learner.

    The runners hand over the discounted returns. RLlib has appended a row to each episode before, with reward 0.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._scale = ReturnScale()

    def __call__(self, *, episodes: Sequence[SingleAgentEpisode], batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Replace the rewards of the episodes, which the pieces behind this one read."""
        filled = [episode for episode in episodes if len(episode) > 1]
        self._scale.add(np.concatenate([own(each.extra_model_outputs[DISCOUNTED])[:-1] for each in filled]))
        for episode in filled:
            episode.rewards.data = self._scale.scaled(episode.rewards.data)
        return batch
