"""How a policy acts: observations -> network outputs -> actions -> what the environment takes. NumPy in the loop.

The mathematics are RLlib's (its distributions and its `NormalizeAndClipActions`); what differs is that a
fully connected network is evaluated by NumPy, whose calls cost less than torch's on the few rows of a vector
step, and that the randomness comes from outside, so that it can belong to lanes.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchMLPHead
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action
from scipy.special import ndtri

from study.ray_private import forward_of

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Network = Callable[[Floats], Floats]
"""Observations, shape (rows, *observation) -> inputs of the action distribution, shape (rows, inputs)."""

_ACTIVATIONS: dict[type, Callable[[Floats], Floats]] = {
    torch.nn.Tanh: lambda x: np.tanh(x, out=x),
    torch.nn.ReLU: lambda x: np.maximum(x, 0, out=x),
    torch.nn.SiLU: lambda x: x / (1 + np.exp(-x)),
}


def network_of(module: RLModule) -> Network:
    """Return the policy network of `module` as a function of arrays, by NumPy where it can evaluate it, else by torch.

    It follows weights that are changed in place.
    """
    layers = dense_layers(module)
    if layers is None:
        forward = forward_of(module)

        @torch.inference_mode()
        def by_torch(observations: Floats) -> Floats:
            rows = torch.from_numpy(observations)
            outputs: Floats = forward({Columns.OBS: rows})[Columns.ACTION_DIST_INPUTS].numpy()
            return outputs

        return by_torch
    steps: list[Any] = [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
        if isinstance(layer, torch.nn.Linear)
        else _ACTIVATIONS[type(layer)]
        for layer in layers
    ]
    limit = float(module.pi.log_std_clip_param) if module.pi.clip_log_std else None

    def network(hidden: Floats) -> Floats:
        for step in steps:
            if isinstance(step, tuple):
                hidden = hidden @ step[0]
                hidden += step[1]
            else:
                hidden = step(hidden)
        if limit is not None:
            log_std = hidden[:, hidden.shape[1] // 2 :]
            np.clip(log_std, -limit, limit, out=log_std)
        return hidden

    return network


def dense_layers(module: RLModule) -> list[torch.nn.Module] | None:
    """Return the layers from observation to policy output when NumPy can evaluate all of them, else None."""
    if type(module) is not DefaultPPOTorchRLModule or type(module.pi) is not TorchMLPHead:
        return None
    shared = hasattr(module.encoder, "encoder")
    encoder: Any = module.encoder.encoder if shared else module.encoder.actor_encoder
    if type(encoder) is not TorchMLPEncoder:
        return None
    layers = [*encoder.net.mlp, *module.pi.net.mlp]
    for layer in layers:
        dense = isinstance(layer, torch.nn.Linear) and layer.bias is not None and layer.weight.device.type == "cpu"
        if not dense and type(layer) not in _ACTIVATIONS:
            return None
    return layers


class Choices:
    """How logits become actions: one choice for `Discrete`, several beside each other else. Leading axes are free.

    A decision needs `num_inputs` outputs of the network and `noise_size` uniform numbers.
    """

    def __init__(self, sizes: Sequence[int], *, several: bool) -> None:
        bounds = [0, *itertools.accumulate(sizes)]
        self._parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
        self._several = several
        self.num_inputs = self.noise_size = bounds[-1]

    def noise(self, uniforms: npt.NDArray[np.float64]) -> Array:
        """Turn uniform numbers in (0, 1), shape (..., noise_size), into what `choose` takes, same shape."""
        return -np.log(-np.log(uniforms))  # Gumbel's distribution

    def choose(self, inputs: Floats, noise: Array) -> Array:
        """Draw actions, shape (..., *action), from network outputs, shape (..., num_inputs)."""
        # The largest of logits plus Gumbel noise is distributed as their softmax.
        return self.greedy(inputs + noise)

    def greedy(self, inputs: Floats) -> Array:
        """Return the most probable actions, shape (..., *action)."""
        if self._several:
            return np.stack([inputs[..., part].argmax(axis=-1) for part in self._parts], axis=-1)
        actions: Array = inputs.argmax(axis=-1)
        return actions


class Gaussian:
    """The same as `Choices` for a `Box`: the outputs are all means, then all logarithms of standard deviations."""

    def __init__(self, size: int) -> None:
        self.num_inputs, self.noise_size = 2 * size, size

    def noise(self, uniforms: npt.NDArray[np.float64]) -> Array:
        """See `Choices.noise`."""
        normals: Array = ndtri(uniforms).astype(np.float32)
        return normals

    def choose(self, inputs: Floats, noise: Array) -> Array:
        """See `Choices.choose`."""
        mean, log_std = inputs[..., : self.noise_size], inputs[..., self.noise_size :]
        actions: Array = mean + np.exp(log_std) * noise
        return actions

    def greedy(self, inputs: Floats) -> Array:
        """See `Choices.greedy`."""
        return inputs[..., : self.noise_size].copy()


def action_rule(space: Any) -> Choices | Gaussian:
    """Return the rule of an action space that `are_trainable` accepts."""
    if isinstance(space, Discrete):
        return Choices([int(space.n)], several=False)
    return Choices(space.nvec.tolist(), several=True) if isinstance(space, MultiDiscrete) else Gaussian(space.shape[0])


def scaling_for_environment(space: gymnasium.Space, config: AlgorithmConfig) -> Callable[[Array], Array]:
    """Return what turns a policy's actions into the environment's, as RLlib's `NormalizeAndClipActions` does.

    Actions in [-1, 1] are scaled to the bounds (`normalize_actions`, RLlib's default), or clipped to them.
    """
    if not isinstance(space, Box) or not (config.normalize_actions or config.clip_actions):
        return lambda actions: actions
    change = unsquash_action if config.normalize_actions else clip_action
    return lambda actions: np.asarray(change(actions, space))
