"""What a PPO update learns from: episodes -> flat arrays, advantages, minibatches. Imports RLlib.

A fragment is a piece of one episode; its steps lie one behind the other in every array, the fragments in the order in
which they were given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """What the episodes contain.

    Attributes:
        episode_ids: Of each fragment.
        observations: Before each step, then the last one of each fragment; shape (steps + fragments, numbers).
        actions: Shape (steps, …).
        rewards: Shape (steps,).
        lengths: Steps of each fragment, shape (fragments,), > 0, with sum `steps`.
        terminated: Whether the episode terminated with the fragment's last step, shape (fragments,).
    """

    episode_ids: tuple[str, ...]
    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    rewards: FloatArray
    lengths: npt.NDArray[np.int64]
    terminated: npt.NDArray[np.bool_]


def gather_fragments(episodes: Sequence[SingleAgentEpisode]) -> Fragments:
    """Gather the episodes' arrays, whose lookback buffers hold steps of earlier batches, into new ones.

    Raises:
        ValueError: There is no step.
    """
    filled = [episode if episode.is_numpy else episode.to_numpy() for episode in episodes if len(episode)]
    if not filled:
        raise ValueError("episodes: must hold at least one step, got none.")
    observations = [_own(episode.observations) for episode in filled]
    return Fragments(
        episode_ids=tuple(episode.id_ for episode in filled),
        observations=np.concatenate([*(each[:-1] for each in observations), *(each[-1:] for each in observations)]),
        actions=np.concatenate([_own(episode.actions) for episode in filled]),
        rewards=np.concatenate([_own(episode.rewards) for episode in filled], dtype=np.float64, casting="unsafe"),
        lengths=np.array([len(episode) for episode in filled], dtype=np.int64),
        terminated=np.array([episode.is_terminated for episode in filled], dtype=np.bool_),
    )


def _own(buffer: InfiniteLookbackBuffer) -> npt.NDArray[Any]:
    """Return a buffer's content behind its lookback, as a view."""
    content: npt.NDArray[Any] = buffer.data[buffer.lookback :]
    return content


def generalised_advantages(
    fragments: Fragments, values: FloatArray, *, gamma: float, lambda_: float
) -> tuple[FloatArray, FloatArray]:
    """Return the advantage of every step, and of every row that RLlib appends; a step's target adds its value.

    A_t = d_t + gamma lambda A_(t+1), with d_t = r_t + gamma V(s_(t+1)) - V(s_t). A fragment's last step has no A_(t+1);
    its V(s_(t+1)) is that of the last observation, and zero where the episode terminated.

    RLlib appends a row to each fragment in its train batch. It repeats the last observation with reward zero and is
    marked neither terminated nor truncated, so that the recursion runs on into the first step of the *next* fragment.
    No loss sees these rows, but RLlib standardises over them too.

    Args:
        fragments: The steps.
        values: V of each of the fragments' observations, in return units, shape (steps + fragments,).
        gamma: Discount factor in [0, 1].
        lambda_: Weight of longer returns in [0, 1].

    Returns:
        Advantages in return units, shapes (steps,) and (fragments,).

    Source:
        Schulman et al. 2016, arXiv:1506.02438, equation 16; `GeneralAdvantageEstimation` and
        `AddOneTsToEpisodesAndTruncate` of RLlib 2.60.
    """
    steps, appended = len(fragments.rewards), np.cumsum(fragments.lengths + 1) - 1
    is_step = np.ones(len(values), dtype=np.bool_)
    is_step[appended] = False
    own, rewards = np.empty(len(values)), np.zeros(len(values))
    own[is_step], own[appended], rewards[is_step] = values[:steps], values[steps:], fragments.rewards
    last, following = appended - 1, np.append(own[1:], 0.0)
    following[last[fragments.terminated]] = 0.0
    decay = np.full(len(values), gamma * lambda_)
    decay[last] = 0.0
    # A loop over Python floats is an order of magnitude faster than one over array elements.
    advantages = (rewards + gamma * following - own).tolist()
    running, factors = 0.0, decay.tolist()
    for row in range(len(advantages) - 1, -1, -1):
        advantages[row] = running = advantages[row] + factors[row] * running
    return np.array(advantages)[is_step], np.array(advantages)[appended]


def minibatch_indices(
    steps: int, *, size: int, count: int, generator: np.random.Generator | None
) -> npt.NDArray[np.int32]:
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
        np.arange(steps) if generator is None else generator.permutation(steps)
        for _ in range(math.ceil(count * size / steps))
    ]
    return np.concatenate(orders)[: count * size].reshape(count, size).astype(np.int32)
