"""Mathematics of RLlib's three default action distributions, on plain tensors. Imports torch, gymnasium and numpy.

RLlib's classes build `torch.distributions` objects and normalise the logits again for every quantity; here a network's
outputs are normalised once, and log-probability, entropy and divergence share the result: the `parameters`, of shape
(rows, inputs) as the outputs. Those three are in nats and of shape (rows,).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Categoricals:
    """Independent categorical distributions: one for `Discrete`, several for `MultiDiscrete`.

    The parameters are the log-probabilities of all components side by side.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self._offsets = np.cumsum((0, *self.sizes[:-1]))

    def normalised(self, inputs: Tensor) -> Tensor:
        """Return log-probabilities for logits."""
        if len(self.sizes) == 1:
            return torch.log_softmax(inputs, -1)
        return torch.cat([torch.log_softmax(part, -1) for part in inputs.split(self.sizes, -1)], -1)

    def actions(self, actions: Any) -> Tensor:
        """Return the positions among the parameters, shape (rows, components), of actions (rows,) or of that shape."""
        array = np.asarray(actions, dtype=np.int64)
        return torch.from_numpy(array.reshape(len(array), len(self.sizes)) + self._offsets)

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probability of all components together."""
        return parameters.gather(-1, actions).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the sum of the components' entropies."""
        return -(parameters.exp() * parameters).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the sum of the components' divergences KL(old || new).

        Where a probability of `new` underflows to zero it stays finite; RLlib reports inf there.
        """
        return (old.exp() * (old - new)).sum(-1)


class DiagonalGaussian:
    """Independent normal distributions; the parameters are all means, then all logarithms of standard deviations."""

    def normalised(self, inputs: Tensor) -> Tensor:
        """Return `inputs`: nothing is to be normalised."""
        return inputs

    def actions(self, actions: Any) -> Tensor:
        """Return the actions in single precision, shape (rows, components)."""
        return torch.from_numpy(np.asarray(actions, dtype=np.float32))

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density of all components together."""
        mean, log_std = parameters.chunk(2, -1)
        scaled = (actions - mean) * torch.exp(-log_std)
        return -(0.5 * scaled.square() + log_std + _HALF_LOG_2PI).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the sum of the components' entropies."""
        log_std = parameters.chunk(2, -1)[1]
        return (log_std + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the sum of the components' divergences KL(old || new)."""
        old_mean, old_log_std = old.chunk(2, -1)
        mean, log_std = new.chunk(2, -1)
        log_ratio = old_log_std - log_std
        shift = (old_mean - mean) * torch.exp(-log_std)
        return (0.5 * (torch.exp(2 * log_ratio) + shift.square() - 1) - log_ratio).sum(-1)


def distribution_for(space: Any) -> Categoricals | DiagonalGaussian | None:
    """Return the distribution that RLlib would use for an action space; None where it is none of these."""
    if isinstance(space, Discrete):
        return Categoricals([int(space.n)])
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        return Categoricals(space.nvec.tolist())
    if isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return DiagonalGaussian()
    return None
