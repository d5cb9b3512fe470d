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

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
"""Of Adam, as in PyTorch."""
RMSPROP_ALPHA, RMSPROP_EPS = 0.99, 1e-5
"""Of Stable-Baselines3's A2C, with which arXiv 2205.09123 compares PPO."""
_SMALL_TENSOR = 2048
"""Numbers of a tensor that is not worth an operation of its own; of no influence on the result."""
_SMALL_VARIANCE = 1e-6
"""RLlib's `SMALL_NUMBER`, in its explained variance."""
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
    optimizer: str


class Coefficients(NamedTuple):
    """What may change from one update to the next without a new compilation.

    `grad_clip` is the largest global norm of a gradient; inf without a limit.
    """

    lr: Array | float
    grad_clip: Array | float
    clip_param: float
    vf_clip_param: float
    vf_loss_coeff: float
    entropy_coeff: float
    kl_coeff: float


class Columns(NamedTuple):
    """The train batch, single precision, shape (steps, …) each.

    `actions` of a categorical policy are positions among the outputs, `outputs` are the policy's before the update, and
    `rest` is (advantage, value target).
    """

    observations: Any
    actions: Any
    outputs: Any
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
    """What an update did, beside its weights.

    `count` minibatches were computed, of which `skipped` had a gradient that is not finite. The others are of the last
    minibatch: its loss, the norm of its gradient before that was clipped, and its statistics by RLlib's names.
    """

    count: Any
    skipped: Any
    loss: Any
    norm: Any
    statistics: Any


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
    widths = tuple(column.shape[1] for column in columns)
    packed = np.zeros((padded(steps), sum(widths)), np.float32)
    np.concatenate(columns, axis=1, out=packed[:steps], casting="same_kind")
    order = np.zeros((padded(count), minibatches.shape[1]), np.int32)
    order[:count] = minibatches
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


class _Minibatch(NamedTuple):
    """Rows of the train batch; `old` are the distributions' parameters before the update.

    All arrays have the shape (numbers, rows): then none of them has to be transposed for a product, and what is done to
    each row is done to contiguous numbers.
    """

    observations: Array
    actions: Array
    old: Array
    rest: Array
    old_log_probs: Array


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
    observations, actions, outputs, rest = jnp.split(packed, np.cumsum(widths)[:-1].tolist(), axis=1)
    old = _normalised(architecture, outputs.T)
    old_log_probs = _log_prob(architecture, old, actions.T)
    packed = jnp.concatenate([observations, actions, old.T, rest, old_log_probs[:, None]], axis=1)
    cuts = np.cumsum(widths).tolist()
    gradient_of = jax.value_and_grad(partial(_loss, architecture), has_aux=True)

    def goes_on(state: tuple[Weights, Result]) -> Array:
        _, result = state
        broken = ~jnp.isfinite(result.loss) & ~jnp.isfinite(result.norm)
        going: Array = (result.count < count) & ~broken
        return going

    def one(state: tuple[Weights, Result]) -> tuple[Weights, Result]:
        before, result = state
        batch = _Minibatch(*jnp.split(packed[order[result.count]].T, cuts))
        (loss, seen), gradients = gradient_of(before.parameters, batch, coefficients)
        norm = _norm(gradients)
        finite = jnp.isfinite(norm)
        kept = jax.tree.map(
            partial(jnp.where, finite), _stepped(architecture, before, gradients, norm, coefficients), before
        )
        return kept, Result(result.count + 1, result.skipped + ~finite, loss, norm, seen)

    zero, rows = jnp.zeros((), jnp.int32), order.shape[1]
    # In the loop `statistics` are what the last forward pass gave: they are computed once, at the end.
    unseen = jnp.zeros((widths[2], rows)), jnp.zeros((rows,))
    new, result = lax.while_loop(goes_on, one, (weights, Result(zero, zero, jnp.zeros(()), jnp.zeros(()), unseen)))
    last = _Minibatch(*jnp.split(packed[order[result.count - 1]].T, cuts))
    new_distributions, values = result.statistics
    statistics = _statistics(architecture, last, new_distributions, values, coefficients)
    return new, Result(result.count, result.skipped, result.loss, result.norm, statistics)


def _loss(
    architecture: Architecture, parameters: Sequence[Array], batch: _Minibatch, coefficients: Coefficients
) -> tuple[Array, tuple[Array, Array]]:
    """Return RLlib's loss, a mean over the rows; the distributions' parameters and the values beside it."""
    new, values = _forward(architecture, parameters, batch.observations)
    errors = jnp.clip((values - batch.rest[1]) ** 2, 0.0, coefficients.vf_clip_param)
    losses = coefficients.vf_loss_coeff * errors - _surrogate(architecture, batch, new, coefficients)
    if architecture.entropy:
        losses = losses - coefficients.entropy_coeff * _entropy(architecture, new)
    if architecture.divergence:
        losses = losses + coefficients.kl_coeff * _divergence(architecture, batch.old, new)
    return losses.mean(), (new, values)


def _surrogate(architecture: Architecture, batch: _Minibatch, new: Array, coefficients: Coefficients) -> Array:
    ratio = jnp.exp(_log_prob(architecture, new, batch.actions) - batch.old_log_probs[0])
    clipped = jnp.clip(ratio, 1 - coefficients.clip_param, 1 + coefficients.clip_param)
    return jnp.minimum(batch.rest[0] * ratio, batch.rest[0] * clipped)


def _statistics(
    architecture: Architecture, batch: _Minibatch, new: Array, values: Array, coefficients: Coefficients
) -> dict[str, Array]:
    """Return means over the rows of a minibatch; what `_loss` returned beside its loss is `new` and `values`."""
    targets = batch.rest[1]
    errors = (values - targets) ** 2
    explained = 1 - jnp.var(targets - values, ddof=1) / (jnp.var(targets, ddof=1) + _SMALL_VARIANCE)
    # RLlib reports no divergence either where the loss has none.
    kl = _divergence(architecture, batch.old, new).mean() if architecture.divergence else jnp.zeros(())
    return {
        "policy_loss": -_surrogate(architecture, batch, new, coefficients).mean(),
        "vf_loss": jnp.clip(errors, 0.0, coefficients.vf_clip_param).mean(),
        "vf_loss_unclipped": errors.mean(),
        "vf_explained_var": jnp.maximum(-1.0, explained),
        "entropy": _entropy(architecture, new).mean(),
        "mean_kl_loss": kl,
    }


# --- networks --------------------------------------------------------------------------------------------------------


def _forward(architecture: Architecture, parameters: Sequence[Array], observations: Array) -> tuple[Array, Array]:
    features = _dense(architecture.policy, parameters, observations)
    own = architecture.value
    value_features = features if own is None else _dense(own, parameters, observations)
    outputs = _dense(architecture.policy_head, parameters, features)
    values = _dense(architecture.value_head, parameters, value_features)[0]
    if architecture.sizes is None:
        if architecture.log_std is not None:
            mean, log_std = outputs, jnp.broadcast_to(parameters[architecture.log_std][:, None], outputs.shape)
        else:
            mean, log_std = jnp.split(outputs, 2)
        if (limit := architecture.log_std_limit) is not None:
            log_std = jnp.clip(log_std, -limit, limit)
        outputs = jnp.concatenate([mean, log_std])
    return _normalised(architecture, outputs), values


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


# --- distributions: parameters of shape (outputs, rows), results of shape (rows,), nats ------------------------------


def _normalised(architecture: Architecture, outputs: Array) -> Array:
    """Return the parameters of RLlib's distributions: log-probabilities side by side, or means and log deviations."""
    if architecture.sizes is None:
        return outputs
    ends = np.cumsum(architecture.sizes)[:-1].tolist()
    return jnp.concatenate([jax.nn.log_softmax(part, axis=0) for part in jnp.split(outputs, ends)])


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
    """Return KL(old || new). Where a probability of `new` underflows to zero it stays finite; RLlib has inf there."""
    if architecture.sizes is not None:
        return (jnp.exp(old) * (old - new)).sum(0)
    (old_mean, old_log_std), (mean, log_std) = jnp.split(old, 2), jnp.split(new, 2)
    log_ratio = old_log_std - log_std
    shift = (old_mean - mean) * jnp.exp(-log_std)
    return (0.5 * (jnp.exp(2 * log_ratio) + shift**2 - 1) - log_ratio).sum(0)


# --- a step ----------------------------------------------------------------------------------------------------------


def _norm(gradients: Sequence[Array]) -> Array:
    """Return the global norm. Small gradients are joined, since each sum of its own takes a few operations."""
    small = [gradient.ravel() for gradient in gradients if gradient.size < _SMALL_TENSOR]
    parts = [gradient for gradient in gradients if gradient.size >= _SMALL_TENSOR]
    parts += [jnp.concatenate(small)] if small else []
    return jnp.sqrt(sum(jnp.vdot(part, part) for part in parts))


def _stepped(
    architecture: Architecture, weights: Weights, gradients: Sequence[Array], norm: Array, coefficients: Coefficients
) -> Weights:
    """Take one step of the optimizer with the clipped gradients, as RLlib and PyTorch do."""
    lr, limit = coefficients.lr, coefficients.grad_clip
    scale = jnp.where(norm + 1e-6 > limit, limit / (norm + 1e-6), 1.0)
    clipped = [scale * gradient for gradient in gradients]
    steps = weights.steps + 1
    if architecture.optimizer == "rmsprop":
        second = _moved(weights.second, [g**2 for g in clipped], RMSPROP_ALPHA)
        moves = [lr * g / (jnp.sqrt(v) + RMSPROP_EPS) for g, v in zip(clipped, second, strict=True)]
        first: tuple[Array, ...] = ()
    else:
        first = _moved(weights.first, clipped, _BETA1)
        second = _moved(weights.second, [g**2 for g in clipped], _BETA2)
        rate, root = lr / (1 - _BETA1**steps), jnp.sqrt(1 - _BETA2**steps)
        moves = [rate * m / (jnp.sqrt(v) / root + _EPS) for m, v in zip(first, second, strict=True)]
    parameters = tuple(p - move for p, move in zip(weights.parameters, moves, strict=True))
    return Weights(parameters, first, second, steps)


def _moved(means: Sequence[Array], values: Sequence[Array], share: float) -> tuple[Array, ...]:
    """Return moving averages, of which `share` is what they were."""
    return tuple(share * mean + (1 - share) * value for mean, value in zip(means, values, strict=True))
