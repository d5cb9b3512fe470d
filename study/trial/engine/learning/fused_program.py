"""The minibatch loop of PPO and A2C as one compiled program. Imports JAX and numpy; knows neither RLlib nor torch.

PyTorch dispatches every operation of every minibatch by itself, which for networks of 64 x 64 takes longer than the
arithmetic. Here forward pass, loss, gradient, clipping and optimizer of all minibatches are one loop that XLA
compiles. A program is compiled once for each shape: rows and minibatches are padded to a few sizes, and coefficients
are arguments.

Whoever calls `update` has called `study.jax_private.use_one_cpu_thread` before.
"""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from study.errors import StudyError
from study.records.files import check_own

_LOGGER = logging.getLogger(__name__)
_SMALL_TENSOR = 2048
"""Numbers of a tensor that is not worth an operation of its own; of no influence on the result."""
_SMALL_VARIANCE = 1e-6
"""RLlib's `SMALL_NUMBER`, in its explained variance."""
_SMALL_DEVIATION = 1e-8
"""What Stable-Baselines3 and CleanRL add to the deviation of a minibatch's advantages."""
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
ACTIVATIONS: dict[str, Any] = {"Tanh": jnp.tanh, "ReLU": jax.nn.relu, "SiLU": jax.nn.silu}
"""Name of the class in `torch.nn` -> the same function."""


class Layer(NamedTuple):
    """One dense layer: the name of its tensors before `.weight` and `.bias`, and the activation behind it."""

    name: str
    activation: str | None = None


class Coefficients(NamedTuple):
    """What may change from one update to the next without a new compilation; what has no limit is inf."""

    lr: Array | float
    vf_lr: Array | float
    grad_clip: Array | float
    """Largest global norm of a gradient."""
    clip_param: float
    vf_clip_range: float
    vf_clip_param: float
    vf_loss_coeff: float
    entropy_coeff: float
    kl_coeff: float


class Rows(NamedTuple):
    """The train batch, single precision, shape (steps, …) each; in the program of a minibatch, shape (…, rows)."""

    observations: Any
    actions: Any
    """Of a categorical policy positions among the outputs."""
    old: Any
    """The policy's outputs before the update."""
    rest: Any
    """(advantage, value target), and the value before the update where `values_clipped`."""
    old_log_probs: Any = None
    """Of the actions; the program adds them."""


class Weights(NamedTuple):
    """Parameters by name, the optimizer's moving averages of each in the order of `decays`, and its steps."""

    parameters: dict[str, Any]
    averages: tuple[dict[str, Any], ...]
    steps: Any


class Result(NamedTuple):
    """What an update did: how many minibatches it computed and left out; the others are of the last minibatch."""

    count: Any
    skipped: Any
    loss: Any
    norm: Any
    """Of its gradient before that was clipped."""
    statistics: Any
    """By RLlib's names."""


def keep_programs() -> None:
    """Keep compiled programs in the user's own cache folder, so that the next process loads them, where that is safe.

    They are machine code, which no study that one receives may bring, and which nobody else may write.
    """
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "runner-scaling-study" / "compiled"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for each in (folder.parent, folder):
            check_own(each, way_out="Remove it.")
    except (OSError, RuntimeError, StudyError) as error:  # a home that is missing, read-only, full or another user's
        _LOGGER.warning("Each process compiles its programs anew, as they cannot be kept: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def padded(length: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, …: at most a third of it is padding."""
    power = 1 << max(length - 1, 0).bit_length()
    return power // 4 * 3 if power >= 4 and length <= power // 4 * 3 else power


class Program(NamedTuple):
    """What is compiled in: networks, distribution, which terms the loss has, and the optimizer. Hashable.

    Arrays inside have their rows last, so that none has to be transposed for a product. Parameters of distributions
    have shape (outputs, rows), log-probabilities, entropies and divergences shape (rows,), in nats.
    """

    policy: tuple[Layer, ...]
    value: tuple[Layer, ...] | None
    """The value function's encoder; None where it shares the policy's."""
    policy_head: tuple[Layer, ...]
    value_head: tuple[Layer, ...]
    log_std: str | None
    """Name of a Gaussian's free logarithms of standard deviations; None where the head gives them."""
    log_std_limit: float | None
    """Their largest absolute value; None without a limit."""
    sizes: tuple[int, ...] | None
    """Choices of each component of a categorical policy; None for a diagonal Gaussian."""
    entropy: bool
    divergence: bool
    """Whether the loss has a bonus for entropy, and a term for the divergence from the old policy."""
    minibatch_advantages: bool
    """Whether advantages are standardised in each minibatch."""
    values_clipped: bool
    """Whether the value loss is the larger error of the value and of the one that moved a bounded way."""
    of_value: tuple[str, ...]
    """Names of the tensors that learn at the value function's own rate."""
    decays: tuple[float, ...]
    """Of the optimizer's moving averages: of gradients and squares for Adam, of squares alone for RMSprop."""
    eps: float

    def update(
        self, weights: Weights, batch: Rows, minibatches: npt.NDArray[np.int32], coefficients: Coefficients
    ) -> tuple[Weights, Result]:
        """Take one step of the optimizer for each minibatch, given by its rows, shape (minibatches, rows).

        A gradient that is not finite is not applied.
        """
        columns, steps, count = batch[:-1], len(batch.rest), len(minibatches)
        widths = tuple(column.shape[1] for column in columns)
        packed = np.zeros((padded(steps), sum(widths)), np.float32)
        np.concatenate(columns, axis=1, out=packed[:steps], casting="same_kind")
        order = np.zeros((padded(count), minibatches.shape[1]), np.int32)
        order[:count] = minibatches
        numbers = jax.tree.map(np.float32, coefficients)
        # A person's own code may have set another device, or double precision, for the whole process.
        with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.enable_x64(False):
            done = _compiled(self, widths, weights, packed, order, np.int32(count), numbers)
            new, result = jax.device_get(done)
        return new, result

    def loss(
        self, parameters: Mapping[str, Array], batch: Rows, coefficients: Coefficients
    ) -> tuple[Array, tuple[Array, Array]]:
        """Return RLlib's loss, a mean over the rows; the distributions' parameters and the values beside it."""
        new, values = self._forward(parameters, batch.observations)
        terms = self.terms(batch, new, values, coefficients)
        weighted = [weight * value for weight, value in terms.values() if weight is not None]
        return jnp.asarray(sum(weighted[1:], start=weighted[0])).mean(), (new, values)

    def terms(
        self, batch: Rows, new: Array, values: Array, coefficients: Coefficients
    ) -> dict[str, tuple[Array | float | None, Array]]:
        """Return RLlib's name of each term -> its weight in the loss and its value for each row.

        What has no weight is reported only, and not computed before the last minibatch.
        """
        advantages, targets = batch.rest[:2]
        if self.minibatch_advantages and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (jnp.std(advantages, ddof=1) + _SMALL_DEVIATION)
        ratio = jnp.exp(self.log_prob(new, batch.actions) - batch.old_log_probs[0])
        clipped = jnp.clip(ratio, 1 - coefficients.clip_param, 1 + coefficients.clip_param)
        errors = loss = (values - targets) ** 2
        if self.values_clipped:
            old = batch.rest[2]
            near = old + jnp.clip(values - old, -coefficients.vf_clip_range, coefficients.vf_clip_range)
            loss = jnp.maximum(errors, (near - targets) ** 2)
        # RLlib reports no divergence either where the loss has none.
        divergence = self._divergence(batch.old, new) if self.divergence else jnp.zeros(())
        return {
            "vf_loss": (coefficients.vf_loss_coeff, jnp.clip(loss, 0.0, coefficients.vf_clip_param)),
            "policy_loss": (1.0, -jnp.minimum(advantages * ratio, advantages * clipped)),
            "entropy": (-coefficients.entropy_coeff if self.entropy else None, self._entropy(new)),
            "mean_kl_loss": (coefficients.kl_coeff if self.divergence else None, divergence),
            "vf_loss_unclipped": (None, errors),
        }

    def _forward(self, parameters: Mapping[str, Array], observations: Array) -> tuple[Array, Array]:
        def through(layers: Sequence[Layer], inputs: Array) -> Array:
            for layer in layers:
                inputs = _product(parameters[f"{layer.name}.weight"], inputs)
                if (bias := parameters.get(f"{layer.name}.bias")) is not None:
                    inputs = inputs + bias[:, None]
                if layer.activation is not None:
                    inputs = ACTIVATIONS[layer.activation](inputs)
            return inputs

        features = through(self.policy, observations)
        outputs = through(self.policy_head, features)
        values = through(self.value_head, features if self.value is None else through(self.value, observations))[0]
        if self.sizes is None:
            if self.log_std is not None:
                mean, log_std = outputs, jnp.broadcast_to(parameters[self.log_std][:, None], outputs.shape)
            else:
                mean, log_std = jnp.split(outputs, 2)
            if self.log_std_limit is not None:
                log_std = jnp.clip(log_std, -self.log_std_limit, self.log_std_limit)
            outputs = jnp.concatenate([mean, log_std])
        return self.normalised(outputs), values

    def normalised(self, outputs: Array) -> Array:
        """Return the parameters of RLlib's distributions: log-probabilities side by side, or means, log deviations."""
        if self.sizes is None:
            return outputs
        ends = np.cumsum(self.sizes)[:-1].tolist()
        return jnp.concatenate([jax.nn.log_softmax(part, axis=0) for part in jnp.split(outputs, ends)])

    def log_prob(self, new: Array, actions: Array) -> Array:
        """Return the log-probabilities of actions."""
        if self.sizes is not None:
            # A product with 0 and 1: the gradient of an index would be a scatter, which is slow on CPUs.
            chosen = (actions[:, None, :] == jnp.arange(len(new), dtype=new.dtype)[:, None]).any(0)
            return jnp.where(chosen, new, 0.0).sum(0)
        mean, log_std = jnp.split(new, 2)
        scaled = (actions - mean) * jnp.exp(-log_std)
        return -(0.5 * scaled**2 + log_std + _HALF_LOG_2PI).sum(0)

    def _entropy(self, new: Array) -> Array:
        if self.sizes is not None:
            return -(jnp.exp(new) * new).sum(0)
        return (jnp.split(new, 2)[1] + (0.5 + _HALF_LOG_2PI)).sum(0)

    def _divergence(self, old: Array, new: Array) -> Array:
        """Return KL(old || new). Where a probability of `new` underflows to zero it stays finite, RLlib's is inf."""
        if self.sizes is not None:
            return (jnp.exp(old) * (old - new)).sum(0)
        (old_mean, old_log_std), (mean, log_std) = jnp.split(old, 2), jnp.split(new, 2)
        log_ratio = old_log_std - log_std
        shift = (old_mean - mean) * jnp.exp(-log_std)
        return (0.5 * (jnp.exp(2 * log_ratio) + shift**2 - 1) - log_ratio).sum(0)

    def stepped(
        self, weights: Weights, gradients: Mapping[str, Array], norm: Array, coefficients: Coefficients
    ) -> Weights:
        """Take one step of the optimizer with the clipped gradients, as RLlib and PyTorch do."""
        decays, limit, steps = self.decays, coefficients.grad_clip, weights.steps + 1
        scale = jnp.where(norm + 1e-6 > limit, limit / (norm + 1e-6), 1.0)
        averages: tuple[dict[str, Any], ...] = tuple({} for _ in decays)
        parameters = {}
        for name, before in weights.parameters.items():
            rate, gradient = coefficients.vf_lr if name in self.of_value else coefficients.lr, scale * gradients[name]
            moments = (gradient, gradient**2)[-len(decays) :]
            for decay, new, old, value in zip(decays, averages, weights.averages, moments, strict=True):
                new[name] = decay * old[name] + (1 - decay) * value
            if len(decays) == 1:
                move = rate * gradient / (jnp.sqrt(averages[0][name]) + self.eps)
            else:
                bias, root = 1 - decays[0] ** steps, jnp.sqrt(1 - decays[1] ** steps)
                move = rate / bias * averages[0][name] / (jnp.sqrt(averages[1][name]) / root + self.eps)
            parameters[name] = before - move
        return Weights(parameters, averages, steps)


# Without this analysis XLA copies the optimizer's state in every minibatch, to read what it is about to overwrite.
@partial(jax.jit, static_argnums=(0, 1), compiler_options={"xla_cpu_copy_insertion_use_region_analysis": True})
def _compiled(
    program: Program,
    widths: tuple[int, ...],
    weights: Weights,
    packed: Array,
    order: Array,
    count: Array,
    coefficients: Coefficients,
) -> tuple[Weights, Result]:
    cuts = np.cumsum(widths).tolist()
    observations, actions, outputs, rest = jnp.split(packed, cuts[:-1], axis=1)
    old = program.normalised(outputs.T)
    old_log_probs = program.log_prob(old, actions.T)
    packed = jnp.concatenate([observations, actions, old.T, rest, old_log_probs[:, None]], axis=1)
    gradient_of = jax.value_and_grad(program.loss, has_aux=True)

    def rows_of(number: Array) -> Rows:
        return Rows(*jnp.split(packed[order[number]].T, cuts))

    def goes_on(state: tuple[Weights, Result]) -> Any:
        return state[1].count < count

    def one(state: tuple[Weights, Result]) -> tuple[Weights, Result]:
        before, result = state
        (loss, seen), gradients = gradient_of(before.parameters, rows_of(result.count), coefficients)
        norm = _norm(gradients)
        finite = jnp.isfinite(norm)
        stepped = program.stepped(before, gradients, norm, coefficients)
        kept = jax.tree.map(partial(jnp.where, finite), stepped, before)
        return kept, Result(result.count + 1, result.skipped + ~finite, loss, norm, seen)

    zero, rows = jnp.zeros((), jnp.int32), order.shape[1]
    # In the loop `statistics` are what the last forward pass gave: they are computed once, at the end.
    unseen = jnp.zeros((widths[2], rows)), jnp.zeros((rows,))
    new, result = lax.while_loop(goes_on, one, (weights, Result(zero, zero, jnp.zeros(()), jnp.zeros(()), unseen)))
    (seen, values), last = result.statistics, rows_of(result.count - 1)
    terms = program.terms(last, seen, values, coefficients)
    statistics = {name: value.mean() for name, (_, value) in terms.items()}
    explained = 1 - jnp.var(last.rest[1] - values, ddof=1) / (jnp.var(last.rest[1], ddof=1) + _SMALL_VARIANCE)
    statistics["vf_explained_var"] = jnp.maximum(-1.0, explained)
    return new, result._replace(statistics=statistics)


@jax.custom_vjp
def _product(weight: Array, inputs: Array) -> Array:
    return weight @ inputs


def _product_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    weight, inputs = saved
    # XLA has a fast kernel (YNNPACK) for every product but one whose left side is transposed. The barrier keeps the
    # transposition of the weight, which is small, apart from the product.
    return gradient @ inputs.T, lax.optimization_barrier(weight.T) @ gradient


_product.defvjp(lambda weight, inputs: (weight @ inputs, (weight, inputs)), _product_backward)


def _norm(gradients: Mapping[str, Array]) -> Array:
    """Return the global norm. Small gradients are joined, since each sum of its own takes a few operations."""
    small = [gradient.ravel() for gradient in gradients.values() if gradient.size < _SMALL_TENSOR]
    parts = [gradient for gradient in gradients.values() if gradient.size >= _SMALL_TENSOR]
    parts += [jnp.concatenate(small)] if small else []
    return jnp.sqrt(sum(jnp.vdot(part, part) for part in parts))
