"""What an update learns from: episodes -> flat arrays -> tensors -> minibatches. Imports RLlib's episodes and torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from torch import Tensor

from study.trial.engine.learning.advantages import BoolArray, FloatArray, IntArray

DISCOUNTED = "discounted_return"
"""Column of an episode: r(t) + gamma r(t-1) + gamma^2 r(t-2) + …, back to its first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """What the episodes contain: the steps of all fragments one behind the other."""

    observations: npt.NDArray[Any]
    """Shape (steps + fragments, numbers): before each step, then the last one of each fragment."""
    actions: npt.NDArray[Any]
    rewards: FloatArray
    lengths: IntArray
    terminated: BoolArray
    discounted: FloatArray | None = None
    """Discounted return of each step's episode up to it, where the runners hand it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The train batch, or rows of it."""

    observations: Tensor
    """Shape (steps, numbers)."""
    actions: Tensor
    old: Tensor
    """Parameters of the action distributions before the update, shape (steps, inputs)."""
    old_log_probs: Tensor
    advantages: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, index: Tensor) -> "Batch":
        """Return the rows at `index`, shape (rows,)."""
        return Batch(**{each.name: getattr(self, each.name)[index] for each in fields(self)})


def gather_fragments(episodes: Sequence[SingleAgentEpisode]) -> Fragments:
    """Gather the episodes' arrays, whose lookback buffers hold steps of earlier batches, into new ones.

    Raises:
        ValueError: There is no step.
    """
    filled = [episode if episode.is_numpy else episode.to_numpy() for episode in episodes if len(episode)]
    if not filled:
        raise ValueError("episodes: must hold at least one step, got none.")
    observations = [own(episode.observations) for episode in filled]
    return Fragments(
        observations=np.concatenate([*(each[:-1] for each in observations), *(each[-1:] for each in observations)]),
        actions=np.concatenate([own(episode.actions) for episode in filled]),
        rewards=np.concatenate([own(episode.rewards) for episode in filled], dtype=np.float64, casting="unsafe"),
        lengths=np.array([len(episode) for episode in filled], dtype=np.int64),
        terminated=np.array([episode.is_terminated for episode in filled], dtype=np.bool_),
        discounted=np.concatenate([own(each.extra_model_outputs[DISCOUNTED]) for each in filled])
        if DISCOUNTED in filled[0].extra_model_outputs
        else None,
    )


def own(buffer: InfiniteLookbackBuffer) -> npt.NDArray[Any]:
    """Return a buffer's content behind its lookback, as a view."""
    content: npt.NDArray[Any] = buffer.data[buffer.lookback :]
    return content


def minibatch_indices(steps: int, *, size: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Return the rows of each minibatch, going through the steps again and again.

    As RLlib's `MiniBatchCyclicIterator` does, a minibatch that reaches the end of an epoch is filled up from the next.

    Args:
        steps: Steps in the batch, > 0.
        size: Rows of every minibatch; may exceed `steps`.
        count: Number of minibatches, > 0.
        generator: Makes an order for every epoch; None keeps the given order.

    Returns:
        Indices in [0, steps), shape (count, size).
    """
    orders = [
        torch.arange(steps) if generator is None else torch.randperm(steps, generator=generator)
        for _ in range(math.ceil(count * size / steps))
    ]
    return torch.cat(orders)[: count * size].view(count, size)
