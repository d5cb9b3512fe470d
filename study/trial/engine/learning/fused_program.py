"""The minibatch loop of PPO and A2C as one compiled program. Imports JAX and numpy; knows neither RLlib nor torch.

PyTorch dispatches every operation of every minibatch by itself, which for networks of 64 x 64 takes longer than the
arithmetic. Here forward pass, loss, gradient, clipping and optimizer of all minibatches are one loop that XLA
compiles. A program is compiled once for each shape: rows and minibatches are padded to a few sizes, and coefficients
are arguments. Compiled programs are kept in the user's cache folder, so that the next process loads them.

Whoever calls `update` has called `study.jax_private.use_one_cpu_thread` before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from study.jax_private import cpu_device

Floats = npt.NDArray[np.float32]
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
"""Of Adam, as in PyTorch."""
RMSPROP_ALPHA, RMSPROP_EPS = 0.99, 1e-5
"""Of Stable-Baselines3's A2C, with which arXiv 2205.09123 compares PPO."""
_SMALL = 2048
"""Numbers of a tensor that is not worth an operation of its own; of no influence on the result."""
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
ACTIVATIONS: dict[str, Any] = {
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "ELU": jax.nn.elu,
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
    "GELU": partial(jax.nn.gelu, approximate=False),
}
"""Name of the class in `torch.nn` -> the same function."""


def use_cache(folder: Path) -> None:
    """Keep compiled programs in a folder, which is there and which only this user may write to."""
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


@dataclass(frozen=True, slots=True)
class Dense:
    """One dense layer: positions of its tensors among the parameters, and the activation behind it."""

    weight: int
    bias: int | None
    activation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What is compiled in: networks, distribution, which terms the loss has, and how a step is taken. Hashable.

    Attributes:
        policy: Layers of the policy's encoder.
        value: Layers of the value function's encoder; None where both share the policy's.
        policy_head: Layers behind the policy's encoder.
        value_head: Layers behind the value function's encoder.
        log_std: Position of a Gaussian's free logarithms of standard deviations; None where the head gives them.
        log_std_limit: Their largest absolute value; None without a limit.
        sizes: Choices of each component of a categorical policy; None for a diagonal Gaussian.
        entropy: Whether the loss has an entropy bonus.
        divergence: Whether the loss has a term for the divergence from the old policy.
        clip_by: What of the gradients is limited: `global_norm`, the `norm` of each tensor, or each `value`.
        optimizer: `adam` or `rmsprop`.
    """

    policy: tuple[Dense, ...]
    value: tuple[Dense, ...] | None
    policy_head: tuple[Dense, ...]
    value_head: tuple[Dense, ...]
    log_std: int | None
    log_std_limit: float | None
    sizes: tuple[int, ...] | None
    entropy: bool
    divergence: bool
    clip_by: str
    optimizer: str


class Coefficients(NamedTuple):
    """What may change from one update to the next without a new compilation."""

    lr: Array | float
    grad_clip: Array | float
    """The limit of what `clip_by` names; inf without one."""
    clip_param: float
    vf_clip_param: float
    vf_loss_coeff: float
    entropy_coeff: float
    kl_coeff: float


class Columns(NamedTuple):
    """The train batch, single precision, one row for each environment step.

    Attributes:
        observations: Shape (steps, numbers).
        actions: Positions of the chosen actions among the outputs, or the actions, shape (steps, components).
        old: Parameters of the distributions before the update, shape (steps, outputs).
        rest: Old log-probability, advantage, value target; shape (steps, 3).
    """

    observations: Any
    actions: Any
    old: Any
    rest: Any


class Weights(NamedTuple):
    """Parameters with the optimizer's state; `steps` is the number of its steps so far.

    `first` is Adam's mean of the gradients, which RMSprop has not: then it is empty. `second` is that of their squares.
    """

    parameters: tuple[Any, ...]
    first: tuple[Any, ...]
    second: tuple[Any, ...]
    steps: Any


class Result(NamedTuple):
    """What an update did, beside its weights; the last minibatch is that whose loss is reported.

    Attributes:
        count: Minibatches that were computed.
        skipped: Those whose gradient was not finite, which were not applied.
        loss: Of the last minibatch.
        norm: Norm of its gradient before it was clipped.
        new: Parameters of its action distributions, shape (outputs, rows).
        values: Its values, shape (rows,).
    """

    count: Any
    skipped: Any
    loss: Any
    norm: Any
    new: Any
    values: Any


def update(
    architecture: Architecture,
    weights: Weights,
    columns: Columns,
    minibatches: npt.NDArray[np.int32],
    coefficients: Coefficients,
) -> tuple[Weights, Result]:
    """Take one step of the optimizer for each minibatch.

    Ends at a minibatch whose loss and gradient are not finite. A gradient that is not finite is not applied.

    Args:
        architecture: What is compiled in.
        weights: Where to begin.
        columns: The train batch.
        minibatches: Rows of each minibatch, shape (minibatches, rows).
        coefficients: Of the loss and of the optimizer.

    Returns:
        The new weights as numpy arrays, and what was done.
    """
    steps, count = len(columns.rest), len(minibatches)
    packed = np.zeros((padded(steps), sum(column.shape[1] for column in columns)), np.float32)
    np.concatenate(columns, axis=1, out=packed[:steps])
    order = np.zeros((padded(count), minibatches.shape[1]), np.int32)
    order[:count] = minibatches
    widths = tuple(column.shape[1] for column in columns)
    numbers = jax.tree.map(np.float32, coefficients)
    # A person's own code may have set another device, or double precision, for the whole process.
    with jax.default_device(cpu_device()), jax.enable_x64(False):
        done = _compiled(architecture, widths, weights, packed, order, np.int32(count), numbers)
        new, result = jax.device_get(done)
    return new, result


def padded(length: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, …: at most a third of it is padding."""
    power = 1 << max(length - 1, 0).bit_length()
    return power // 4 * 3 if power >= 4 and length <= power // 4 * 3 else power


# Without this analysis XLA copies the optimizer's state in every minibatch, to read what it is about to overwrite.
@partial(jax.jit, static_argnums=(0, 1), compiler_options={"xla_cpu_copy_insertion_use_region_analysis": True})
def _compiled(
    architecture: Architecture,
    widths: tuple[int, ...],
    weights: Weights,
    packed: Array,
    order: Array,
    count: Array,
    coefficients: Coefficients,
) -> tuple[Weights, Result]:
    cuts = np.cumsum(widths)[:-1].tolist()
    gradient_of = jax.value_and_grad(partial(_loss, architecture), has_aux=True)
    rows, outputs = order.shape[1], widths[2]

    def goes_on(state: tuple[Weights, Result]) -> Array:
        _, result = state
        broken = ~jnp.isfinite(result.loss) & ~jnp.isfinite(result.norm)
        going: Array = (result.count < count) & ~broken
        return going

    def one(state: tuple[Weights, Result]) -> tuple[Weights, Result]:
        before, result = state
        batch = Columns(*jnp.split(packed[order[result.count]].T, cuts))
        (loss, (new, values)), gradients = gradient_of(before.parameters, batch, coefficients)
        norm = _norm(gradients)
        after = _stepped(architecture, before, gradients, norm, coefficients)
        finite = jnp.isfinite(norm)
        kept = jax.tree.map(partial(jnp.where, finite), after, before)
        return kept, Result(
            count=result.count + 1,
            skipped=result.skipped + ~finite,
            loss=loss,
            norm=norm,
            new=new,
            values=values,
        )

    zero = jnp.zeros((), jnp.int32)
    nothing = Result(zero, zero, jnp.zeros(()), jnp.zeros(()), jnp.zeros((outputs, rows)), jnp.zeros((rows,)))
    end: tuple[Weights, Result] = lax.while_loop(goes_on, one, (weights, nothing))
    return end


# Within the loop all arrays of a minibatch have the shape (numbers, rows): then none of them has to be transposed for a
# product, and what is done to each row is done to contiguous numbers.


def _loss(
    architecture: Architecture, parameters: Sequence[Array], batch: Columns, coefficients: Coefficients
) -> tuple[Array, tuple[Array, Array]]:
    """Return RLlib's loss, a mean over the rows; the distributions' parameters and the values beside it."""
    new, values = _forward(architecture, parameters, batch.observations)
    old_log_probs, advantages, targets = batch.rest
    ratio = jnp.exp(_log_prob(architecture, new, batch.actions) - old_log_probs)
    clipped = jnp.clip(ratio, 1 - coefficients.clip_param, 1 + coefficients.clip_param)
    surrogate = jnp.minimum(advantages * ratio, advantages * clipped)
    errors = jnp.clip((values - targets) ** 2, 0.0, coefficients.vf_clip_param)
    losses = coefficients.vf_loss_coeff * errors - surrogate
    if architecture.entropy:
        losses = losses - coefficients.entropy_coeff * _entropy(architecture, new)
    if architecture.divergence:
        losses = losses + coefficients.kl_coeff * _divergence(architecture, batch.old, new)
    return losses.mean(), (new, values)


def _forward(architecture: Architecture, parameters: Sequence[Array], observations: Array) -> tuple[Array, Array]:
    features = _dense(architecture.policy, parameters, observations)
    own = architecture.value
    value_features = features if own is None else _dense(own, parameters, observations)
    outputs = _dense(architecture.policy_head, parameters, features)
    values = _dense(architecture.value_head, parameters, value_features)[0]
    if architecture.sizes is not None:
        ends = np.cumsum(architecture.sizes)[:-1].tolist()
        return jnp.concatenate([jax.nn.log_softmax(part, axis=0) for part in jnp.split(outputs, ends)]), values
    if architecture.log_std is not None:
        mean, log_std = outputs, jnp.broadcast_to(parameters[architecture.log_std][:, None], outputs.shape)
    else:
        mean, log_std = jnp.split(outputs, 2)
    if architecture.log_std_limit is not None:
        log_std = jnp.clip(log_std, -architecture.log_std_limit, architecture.log_std_limit)
    return jnp.concatenate([mean, log_std]), values


def _dense(layers: Sequence[Dense], parameters: Sequence[Array], inputs: Array) -> Array:
    for layer in layers:
        inputs = _product(parameters[layer.weight], inputs)
        if layer.bias is not None:
            inputs = inputs + parameters[layer.bias][:, None]
        if layer.activation is not None:
            inputs = ACTIVATIONS[layer.activation](inputs)
    return inputs


@jax.custom_vjp
def _product(weight: Array, inputs: Array) -> Array:
    return weight @ inputs


def _product_forward(weight: Array, inputs: Array) -> tuple[Array, tuple[Array, Array]]:
    return weight @ inputs, (weight, inputs)


def _product_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    weight, inputs = saved
    # XLA has a fast kernel (YNNPACK) for every product but one whose left side is transposed. The barrier keeps the
    # transposition of the weight, which is small, apart from the product.
    return gradient @ inputs.T, lax.optimization_barrier(weight.T) @ gradient


_product.defvjp(_product_forward, _product_backward)


def _log_prob(architecture: Architecture, new: Array, actions: Array) -> Array:
    if architecture.sizes is not None:
        # A product with 0 and 1: the gradient of an index would be a scatter, which is slow on CPUs.
        chosen = (actions[:, None, :] == jnp.arange(len(new), dtype=new.dtype)[:, None]).any(0)
        return jnp.where(chosen, new, 0.0).sum(0)
    mean, log_std = jnp.split(new, 2)
    scaled = (actions - mean) * jnp.exp(-log_std)
    return -(0.5 * scaled**2 + log_std + _HALF_LOG_2PI).sum(0)


def _entropy(architecture: Architecture, new: Array) -> Array:
    if architecture.sizes is not None:
        return -(jnp.exp(new) * new).sum(0)
    return (jnp.split(new, 2)[1] + (0.5 + _HALF_LOG_2PI)).sum(0)


def _divergence(architecture: Architecture, old: Array, new: Array) -> Array:
    """Return KL(old || new) of each row, nats."""
    if architecture.sizes is not None:
        return (jnp.exp(old) * (old - new)).sum(0)
    (old_mean, old_log_std), (mean, log_std) = jnp.split(old, 2), jnp.split(new, 2)
    log_ratio = old_log_std - log_std
    shift = (old_mean - mean) * jnp.exp(-log_std)
    return (0.5 * (jnp.exp(2 * log_ratio) + shift**2 - 1) - log_ratio).sum(0)


def _norm(gradients: Sequence[Array]) -> Array:
    """Return the global norm. Small gradients are joined, since each sum of its own takes a few operations."""
    small = [gradient.ravel() for gradient in gradients if gradient.size < _SMALL]
    parts = [gradient for gradient in gradients if gradient.size >= _SMALL]
    parts += [jnp.concatenate(small)] if small else []
    return jnp.sqrt(sum(jnp.vdot(part, part) for part in parts))


def _stepped(
    architecture: Architecture, weights: Weights, gradients: Sequence[Array], norm: Array, coefficients: Coefficients
) -> Weights:
    """Take one step of the optimizer with the clipped gradients, as RLlib and PyTorch do."""
    clipped = _clipped(architecture.clip_by, gradients, norm, coefficients.grad_clip)
    return (_rmsprop if architecture.optimizer == "rmsprop" else _adam)(weights, clipped, coefficients.lr)


def _clipped(by: str, gradients: Sequence[Array], norm: Array, limit: Array | float) -> tuple[Array, ...]:
    if by == "value":
        return tuple(jnp.clip(gradient, -limit, limit) for gradient in gradients)
    if by == "norm":
        return tuple(limit / jnp.maximum(_norm([gradient]), limit) * gradient for gradient in gradients)
    scale = jnp.where(norm + 1e-6 > limit, limit / (norm + 1e-6), 1.0)
    return tuple(scale * gradient for gradient in gradients)


def _adam(weights: Weights, gradients: Sequence[Array], lr: Array | float) -> Weights:
    steps = weights.steps + 1
    rate = lr / (1 - _BETA1**steps)
    root = jnp.sqrt(1 - _BETA2**steps)
    first = tuple(_BETA1 * m + (1 - _BETA1) * g for m, g in zip(weights.first, gradients, strict=True))
    second = tuple(_BETA2 * v + (1 - _BETA2) * g**2 for v, g in zip(weights.second, gradients, strict=True))
    parameters = tuple(
        p - rate * m / (jnp.sqrt(v) / root + _EPS) for p, m, v in zip(weights.parameters, first, second, strict=True)
    )
    return Weights(parameters, first, second, steps)


def _rmsprop(weights: Weights, gradients: Sequence[Array], lr: Array | float) -> Weights:
    second = tuple(
        RMSPROP_ALPHA * v + (1 - RMSPROP_ALPHA) * g**2 for v, g in zip(weights.second, gradients, strict=True)
    )
    parameters = tuple(
        p - lr * g / (jnp.sqrt(v) + RMSPROP_EPS) for p, g, v in zip(weights.parameters, gradients, second, strict=True)
    )
    return Weights(parameters, (), second, weights.steps + 1)
