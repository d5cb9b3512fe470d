"""Generalised advantage estimation over a list of episode fragments, as RLlib does it. Imports numpy only.

A fragment is a piece of one episode, from one environment lane; its steps lie one behind the other in every array, the
fragments in the order in which they were given.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def generalised_advantages(
    *,
    values: FloatArray,
    bootstrap: FloatArray,
    rewards: FloatArray,
    lengths: IntArray,
    terminated: BoolArray,
    gamma: float,
    lambda_: float,
) -> FloatArray:
    """Return the advantage of every step; the value target of a step is its advantage plus its value.

    A_t = d_t + gamma lambda A_(t+1), with d_t = r_t + gamma V(s_(t+1)) - V(s_t). A fragment's last step has no A_(t+1);
    its V(s_(t+1)) is the bootstrap value, and zero where the episode terminated.

    Args:
        values: V of the observation before each step, shape (steps,), in return units.
        bootstrap: V of each fragment's last observation, shape (fragments,), in return units.
        rewards: Reward of each step, shape (steps,).
        lengths: Steps of each fragment, shape (fragments,), > 0, with sum `steps`.
        terminated: Whether the episode terminated with the fragment's last step, shape (fragments,).
        gamma: Discount factor in [0, 1].
        lambda_: Weight of longer returns in [0, 1].

    Returns:
        Advantages in return units, shape (steps,).

    Source:
        Schulman et al. 2016, arXiv:1506.02438, equation 16; `compute_value_targets` of RLlib 2.60.
    """
    last = np.cumsum(lengths) - 1
    following = np.append(values[1:], 0.0)
    following[last] = np.where(terminated, 0.0, bootstrap)
    decay = np.full(len(values), gamma * lambda_)
    decay[last] = 0.0
    residuals = (rewards + gamma * following - values).tolist()
    # A loop over Python floats is an order of magnitude faster than one over array elements.
    advantages = [0.0] * len(residuals)
    running = 0.0
    factors = decay.tolist()
    for step in range(len(residuals) - 1, -1, -1):
        running = residuals[step] + factors[step] * running
        advantages[step] = running
    return np.array(advantages)


def phantom_advantages(
    *,
    advantages: FloatArray,
    values: FloatArray,
    bootstrap: FloatArray,
    lengths: IntArray,
    gamma: float,
    lambda_: float,
) -> FloatArray:
    """Return the advantages of the rows that RLlib appends to its train batch, one behind each fragment.

    RLlib's row repeats the last observation with reward zero and is marked neither terminated nor truncated, so the
    recursion runs on into the first step of the *next* fragment. No loss sees these rows, but RLlib standardises over
    them too; they are computed here for comparison with RLlib only.

    Args:
        advantages: Advantages of the steps, shape (steps,).
        values: V before each step, shape (steps,).
        bootstrap: V of each fragment's last observation, shape (fragments,).
        lengths: Steps of each fragment, shape (fragments,), > 0.
        gamma: Discount factor in [0, 1].
        lambda_: Weight of longer returns in [0, 1].

    Returns:
        Advantages in return units, shape (fragments,).

    Source:
        `AddOneTsToEpisodesAndTruncate` and `GeneralAdvantageEstimation` of RLlib 2.60.
    """
    first_of_next = np.cumsum(lengths)[:-1]
    following = gamma * values[first_of_next] + gamma * lambda_ * advantages[first_of_next]
    return np.append(following, 0.0) - bootstrap
