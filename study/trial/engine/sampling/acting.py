"""How a policy acts: observations -> network outputs -> actions -> what the environment takes. NumPy in the loop.

The mathematics are RLlib's (its distributions and its `NormalizeAndClipActions`); what differs is that a
fully connected network is evaluated by NumPy, whose calls cost less than torch's on the few rows of a vector
step, and that the randomness comes from outside, so that it can belong to lanes.
"""

import abc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchMLPHead
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action
from scipy.special import ndtri

from study.ray_private import forward_of
from study.trial.engine.learning.encoders import LARGEST, NormalizedEncoder, ObservationNormalizer

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
    """Return the policy network of `module` as a function of arrays; it follows the module's weights.

    Must be called anew when the module's parameters are replaced rather than changed in place.
    """
    layers = dense_layers(module)
    if layers is None:
        return _TorchNetwork(module)
    clip = float(module.pi.log_std_clip_param) if module.pi.clip_log_std else None
    return _DenseNetwork(layers, log_std_clip=clip)


class _DenseNetwork:
    def __init__(self, layers: Sequence[torch.nn.Module], *, log_std_clip: float | None) -> None:
        self._layers = [_as_arrays(layer) for layer in layers]
        self._log_std_clip = log_std_clip

    def __call__(self, observations: Floats) -> Floats:
        hidden = observations
        for layer in self._layers:
            if isinstance(layer, tuple):
                weight, bias = layer
                hidden = hidden @ weight
                hidden += bias
            else:
                hidden = layer(hidden)
        if self._log_std_clip is not None:
            log_std = hidden[:, hidden.shape[1] // 2 :]
            np.clip(log_std, -self._log_std_clip, self._log_std_clip, out=log_std)
        return hidden


def _as_arrays(layer: torch.nn.Module) -> Any:
    """Return a dense layer as (weight, bias), another one as a function of arrays."""
    if isinstance(layer, torch.nn.Linear):
        return layer.weight.detach().numpy().T, layer.bias.detach().numpy()
    if isinstance(layer, ObservationNormalizer):
        scale, shift = (part.numpy() for part in layer.scale_and_shift())
        return lambda x: np.clip(x * scale + shift, -LARGEST, LARGEST)
    return _ACTIVATIONS[type(layer)]


class _TorchNetwork:
    def __init__(self, module: RLModule) -> None:
        self._forward = forward_of(module)
        parameter = next(iter(module.parameters()), None)
        self._device = "cpu" if parameter is None else parameter.device

    def __call__(self, observations: Floats) -> Floats:
        with torch.inference_mode():
            rows = torch.from_numpy(observations).to(self._device)
            outputs: Floats = self._forward({Columns.OBS: rows})[Columns.ACTION_DIST_INPUTS].cpu().numpy()
            return outputs


def dense_layers(module: RLModule) -> list[torch.nn.Module] | None:
    """Return the layers from observation to policy output when NumPy can evaluate all of them, else None."""
    if type(module) is not DefaultPPOTorchRLModule or type(module.pi) is not TorchMLPHead:
        return None
    shared = hasattr(module.encoder, "encoder")
    encoder: Any = module.encoder.encoder if shared else module.encoder.actor_encoder
    first = []
    if type(encoder) is NormalizedEncoder:
        first, encoder = [encoder.normalizer], encoder.inner
    if type(encoder) is not TorchMLPEncoder:
        return None
    layers = [*encoder.net.mlp, *module.pi.net.mlp]
    for layer in layers:
        dense = isinstance(layer, torch.nn.Linear) and layer.bias is not None and layer.weight.device.type == "cpu"
        if not dense and type(layer) not in _ACTIVATIONS:
            return None
    return [*first, *layers]


class ActionRule(abc.ABC):
    """How outputs of the network become actions of one kind of space. Leading axes are free: `...`."""

    num_inputs: int
    """Outputs of the network that a decision needs."""
    noise_size: int
    """Uniform numbers that a decision needs."""

    def noise(self, uniforms: npt.NDArray[np.float64]) -> Array:
        """Turn uniform numbers in (0, 1), shape (..., noise_size), into what `choose` takes, same shape."""
        return -np.log(-np.log(uniforms))  # Gumbel's distribution

    def choose(self, inputs: Floats, noise: Array) -> Array:
        """Draw actions, shape (..., *action), from network outputs, shape (..., num_inputs)."""
        # The largest of logits plus Gumbel noise is distributed as their softmax.
        return self.greedy(inputs + noise)

    @abc.abstractmethod
    def greedy(self, inputs: Floats) -> Array:
        """Return the most probable actions, shape (..., *action)."""

    @abc.abstractmethod
    def log_prob(self, inputs: Floats, actions: Array) -> Floats:
        """Return the log-probability of actions, shape (...)."""


def action_rule(space: gymnasium.Space) -> ActionRule:
    """Return the rule of an action space.

    Raises:
        ValueError: The space is not one of Discrete, MultiDiscrete (both from 0) and flat float Box.
    """
    if isinstance(space, Discrete) and space.start == 0:
        return _Discrete(int(space.n))
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return _MultiDiscrete(space.nvec)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and len(space.shape) == 1:
        return _Box(space.shape[0])
    raise ValueError(f"action_rule: must be Discrete or MultiDiscrete from 0, or a flat float Box, got {space}.")


class _Discrete(ActionRule):
    def __init__(self, num_actions: int) -> None:
        self.num_inputs = self.noise_size = num_actions

    def greedy(self, inputs: Floats) -> Array:
        actions: Array = inputs.argmax(axis=-1)
        return actions

    def log_prob(self, inputs: Floats, actions: Array) -> Floats:
        shifted = inputs - inputs.max(axis=-1, keepdims=True)
        taken = np.take_along_axis(shifted, actions[..., np.newaxis], axis=-1)[..., 0]
        log_probs: Floats = taken - np.log(np.exp(shifted).sum(axis=-1))
        return log_probs


class _MultiDiscrete(ActionRule):
    def __init__(self, nvec: npt.NDArray[np.int64]) -> None:
        self._parts = [_Discrete(int(num_actions)) for num_actions in nvec]
        bounds = [0, *np.cumsum(nvec).tolist()]
        self._slices = [slice(*pair) for pair in itertools.pairwise(bounds)]
        self.num_inputs = self.noise_size = bounds[-1]

    def greedy(self, inputs: Floats) -> Array:
        return np.stack([inputs[..., part].argmax(axis=-1) for part in self._slices], axis=-1)

    def log_prob(self, inputs: Floats, actions: Array) -> Floats:
        terms = [
            rule.log_prob(inputs[..., part], actions[..., index])
            for index, (rule, part) in enumerate(zip(self._parts, self._slices, strict=True))
        ]
        log_probs: Floats = np.sum(terms, axis=0)
        return log_probs


class _Box(ActionRule):
    def __init__(self, size: int) -> None:
        self.num_inputs, self.noise_size = 2 * size, size

    def noise(self, uniforms: npt.NDArray[np.float64]) -> Array:
        normals: Array = ndtri(uniforms).astype(np.float32)
        return normals

    def choose(self, inputs: Floats, noise: Array) -> Array:
        mean, log_std = inputs[..., : self.noise_size], inputs[..., self.noise_size :]
        actions: Array = mean + np.exp(log_std) * noise
        return actions

    def greedy(self, inputs: Floats) -> Array:
        return inputs[..., : self.noise_size].copy()

    def log_prob(self, inputs: Floats, actions: Array) -> Floats:
        mean, log_std = inputs[..., : self.noise_size], inputs[..., self.noise_size :]
        terms = -0.5 * ((actions - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        log_probs: Floats = terms.sum(axis=-1)
        return log_probs


def scaling_for_environment(
    space: gymnasium.Space, *, normalize_actions: bool, clip_actions: bool
) -> Callable[[Array], Array]:
    """Return what turns a policy's actions into the environment's, as RLlib's `NormalizeAndClipActions` does.

    Args:
        space: The environment's action space.
        normalize_actions: Whether actions in [-1, 1] are scaled to the bounds (RLlib's default).
        clip_actions: Whether actions are clipped to the bounds when they are not scaled.
    """
    if isinstance(space, Box) and normalize_actions:
        return lambda actions: np.asarray(unsquash_action(actions, space))
    if isinstance(space, Box) and clip_actions:
        return lambda actions: np.asarray(clip_action(actions, space))
    return lambda actions: actions
