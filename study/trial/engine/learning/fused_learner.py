"""RLlib's PPO update, and A2C's, as one compiled program. Imports RLlib and torch, and JAX when one is built.

Per minibatch RLlib builds dictionaries and distribution objects, logs a dozen metrics and clips and checks gradients
tensor by tensor; here all minibatches of an update are one program (`fused_program`). What is computed is RLlib's: the
same losses, divergence control, clipping and advantages, in the same modules, with the same metrics.
"""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.metrics import (
    MODULE_TRAIN_BATCH_SIZE_MEAN,
    NUM_ENV_STEPS_TRAINED,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    WEIGHTS_SEQ_NO,
)
from torch import Tensor, nn

from study.errors import StudyError, TrialError
from study.jax_private import cpu_device, jax_obstacle, use_one_cpu_thread
from study.records.files import check_own
from study.trial.engine.envs.lane_envs import are_trainable
from study.trial.engine.extensions import ExtendedPPOTorchLearner, RewardScale, num_lanes_in_order, told_of

FloatArray = npt.NDArray[np.float64]
_LOGGER = logging.getLogger(__name__)
_ACTIVATIONS = ("relu", "tanh", "silu", "swish", "linear")
_ROWS_PER_FORWARD = 4096
"""The whole batch goes through the network in pieces of so many rows: hidden layers of a large batch are large."""
_MIN_STD = 1e-4
"""RLlib divides advantages by no smaller standard deviation."""
_RMSPROP_ALPHA, _RMSPROP_EPS = 0.99, 1e-5
"""Of Stable-Baselines3's A2C, with which arXiv 2205.09123 compares PPO."""


# --- what an update learns from: a fragment is a piece of one episode ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """What the episodes contain, one fragment behind the other in every array.

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
    its V(s_(t+1)) is that of the last observation, and zero where the episode terminated. RLlib appends a row to each
    fragment, which repeats the last observation with reward zero and neither ends nor is cut, so that the recursion
    runs on into the *next* fragment. No loss sees these rows, but RLlib standardises over them too.

    Args:
        fragments: The steps.
        values: V of each of the fragments' observations, in return units, shape (steps + fragments,).
        gamma: Discount factor in [0, 1].
        lambda_: Weight of longer returns in [0, 1].

    Returns:
        Advantages in return units, shapes (steps,) and (fragments,).

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16; `GeneralAdvantageEstimation` of RLlib 2.60.
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
    """Return the rows of each minibatch, shape (count, size), going through the steps again and again.

    As RLlib's `MiniBatchCyclicIterator` does, a minibatch that reaches the end of an epoch is filled up from the next.
    The `generator` makes an order for every epoch; None keeps the given order.
    """
    orders = [
        np.arange(steps) if generator is None else generator.permutation(steps)
        for _ in range(math.ceil(count * size / steps))
    ]
    return np.concatenate(orders)[: count * size].reshape(count, size).astype(np.int32)


def fused_obstacle(config: PPOConfig) -> str | None:
    """Return one line saying why `FusedPPOLearner` cannot serve this configuration, or None where it can.

    What of this process stands in the way is said by `jax_obstacle`; other options, and modules and learners of a
    script's own, by `study.trial.parts`, which asks here next.

    Args:
        config: With the spaces of its environment.
    """
    model = config.model_config
    activations = {str(model.get(name, "linear")).lower() for name in ("fcnet_activation", "head_fcnet_activation")}
    obstacles = {
        "there are several learners": config.num_learners > 1,
        "the learner has a GPU": config.num_gpus_per_learner > 0,
        "observations are no vectors": len(config.observation_space.shape or ()) != 1,
        f"the action space is {config.action_space}": not are_trainable(config.action_space),
        "the network has layer normalisation": bool(model.get("fcnet_use_layernorm")),
        f"an activation is none of {', '.join(_ACTIVATIONS)}": not activations <= set(_ACTIVATIONS),
        f"grad_clip_by is {config.grad_clip_by}": bool(config.grad_clip) and config.grad_clip_by != "global_norm",
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


def refusal(obstacle: str) -> TrialError:
    """Return the error where the fused learner is asked for and cannot serve."""
    fix = "Remove what is named, or start a new study with --set learner=rllib."
    return TrialError(where="learner", rule="`fused` must be able to serve", got=obstacle, fix=fix)


class FusedPPOLearner(ExtendedPPOTorchLearner):
    """RLlib's PPO learner, whose minibatches are one compiled program: `fused_program`.

    Checkpoints are those of RLlib's learner. It differs from `PPOTorchLearner` in this:

    - A minibatch holds environment steps only, none of the masked rows that RLlib appends behind each fragment.
      Advantages are standardised over RLlib's rows too, or as the configuration's attribute `standardization` says:
      over `steps` alone, or not at all (`none`). `vf_explained_var` is over environment steps.
    - Every epoch is shuffled, also the first one, by a generator of the learner's own, seeded with `config.seed`.
    - The distributions before the update are computed anew, from the whole batch, instead of being taken from the
      runners, whose forward passes round by their number of rows: a trial learns bit-equally in every layout.
    - With the attribute `optimizer = "rmsprop"` it takes RMSprop instead of Adam, as A2C does.
    - `num_env_steps_trained` counts each environment step once an update, RLlib once for every minibatch.
    - A gradient that is not finite is not applied, with a warning; where the loss is not finite either, the update ends
      there and reports it. RLlib steps with zeros in place of what is not finite.
    """

    _learns_from_connectors = False

    def build(self) -> None:
        """Build module and optimizer, and load the program.

        Raises:
            TrialError: The configuration or the process is one that this learner cannot serve.
        """
        if self.distributed:  # before PyTorch waits for the other learners
            raise refusal("there are several learners")
        if obstacle := jax_obstacle():
            raise refusal(obstacle)
        use_one_cpu_thread()
        from study.trial.engine.learning import fused_program

        self._program = fused_program
        # A configuration of RLlib's own has an option of this name, which only the old API stack reads.
        self._has_own_optimizer = getattr(self.config, "optimizer", None) == "rmsprop"
        super().build()
        config = self.config
        if config.num_learners > 0:
            # "auto" is one CPU. The local learner's process belongs to others too.
            cpus = config.num_cpus_per_learner
            torch.set_num_threads(1 if cpus == "auto" else max(1, int(cpus)))
        self._network = self.module[DEFAULT_MODULE_ID].unwrapped()
        known, space = config.copy(copy_frozen=False), self._network.action_space
        known.environment(observation_space=self._network.observation_space, action_space=space)
        if obstacle := fused_obstacle(known):
            raise refusal(obstacle)
        self.jax_platform = str(cpu_device().platform)
        if (folder := _cache_folder()) is not None:
            fused_program.use_cache(folder)
        # Choices of each component of a categorical policy; None for a Gaussian one.
        choices: Any = (
            [] if isinstance(space, Box) else np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
        )
        self._sizes = tuple(int(size) for size in choices) or None
        self._standardization = getattr(config, "standardization", "rllib")
        if told_of(config, "normalize_rewards"):
            self.reward_scale = RewardScale(config.gamma, num_lanes=num_lanes_in_order(config))
        self._generator = np.random.default_rng(config.seed)

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if self._has_own_optimizer:
            return torch.optim.RMSprop(groups, alpha=_RMSPROP_ALPHA, eps=_RMSPROP_EPS)
        return super()._optimizer(groups)

    def update(
        self,
        *,
        training_data: TrainingData | None = None,
        episodes: list[SingleAgentEpisode] | None = None,
        timesteps: dict[str, Any] | None = None,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Learn from the episodes, which are left as they are, and return RLlib's metrics; arguments are RLlib's.

        Raises:
            ValueError: There is no step to learn from.
        """
        self._check_is_built()
        timesteps = timesteps or {}
        self.before_gradient_based_update(timesteps=timesteps)
        data = training_data or TrainingData(episodes=episodes)
        data.validate()
        data.solve_refs()
        self._weights_seq_no += 1
        columns = self._columns(gather_fragments(data.episodes or []))
        steps = len(columns.rest)
        size = minibatch_size or steps
        minibatches = minibatch_indices(
            steps,
            size=size,
            count=num_total_minibatches or math.ceil(num_epochs * steps / size),
            generator=self._generator if shuffle_batch_per_epoch and minibatch_size else None,
        )
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        coefficients = self._coefficients(optimizer)
        architecture = self._architecture(optimizer, entropy=bool(coefficients.entropy_coeff))
        weights = _weights(self._program, optimizer)
        new, result = self._program.update(architecture, weights, columns, minibatches, coefficients)
        _put_back(new, optimizer)
        self._log(result, size=size, steps=steps)
        self.after_gradient_based_update(timesteps=timesteps)
        results: dict[str, Any] = self.metrics.reduce()
        return results

    # --- what the program gets -------------------------------------------------------------------------------------

    def _columns(self, fragments: Fragments) -> Any:
        """Return the train batch: `fused_program.Columns`."""
        config, steps = self.config, len(fragments.rewards)
        if self.reward_scale is not None:
            pieces = np.split(fragments.rewards, np.cumsum(fragments.lengths)[:-1])
            scaled = np.concatenate(self.reward_scale.scaled(fragments.episode_ids, pieces))
            fragments = replace(fragments, rewards=scaled)
        observations = np.asarray(fragments.observations, dtype=np.float32)
        outputs, predictions = self._forward(torch.from_numpy(observations))
        values = predictions.numpy().astype(np.float64)
        advantages, appended = generalised_advantages(fragments, values, gamma=config.gamma, lambda_=config.lambda_)
        targets = advantages + values[:steps]
        old = (values[:steps],) if told_of(config, "vf_clip_range") else ()
        if self._standardization != "none" and not told_of(config, "minibatch_advantages"):
            rows = np.append(advantages, appended) if self._standardization == "rllib" else advantages
            advantages = (advantages - rows.mean()) / max(_MIN_STD, float(rows.std()))
        actions = np.asarray(fragments.actions).reshape(steps, -1)
        if self._sizes is not None:
            actions = actions + np.cumsum((0, *self._sizes[:-1]))
        return self._program.Columns(
            observations=observations[:steps],
            actions=actions.astype(np.float32),
            outputs=outputs[:steps].numpy(),
            rest=np.stack([advantages, targets, *old], axis=1).astype(np.float32),
        )

    @torch.no_grad()
    def _forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs, shape (rows, outputs), and the values, shape (rows,)."""
        outputs, values = [], []
        for piece in observations.split(_ROWS_PER_FORWARD):
            batch = {Columns.OBS: piece}
            out = self._network.forward_train(batch)
            outputs.append(out[Columns.ACTION_DIST_INPUTS])
            values.append(self._network.compute_values(batch, embeddings=out.get(Columns.EMBEDDINGS)))
        return torch.cat(outputs), torch.cat(values)

    def _coefficients(self, optimizer: torch.optim.Optimizer) -> Any:
        config = self.config
        return self._program.Coefficients(
            lr=float(optimizer.param_groups[0]["lr"]),
            vf_lr=float(optimizer.param_groups[-1]["lr"]),
            grad_clip=config.grad_clip or math.inf,
            clip_param=config.clip_param * self.clip_share,
            vf_clip_range=told_of(config, "vf_clip_range") or math.inf,
            vf_clip_param=config.vf_clip_param,
            vf_loss_coeff=config.vf_loss_coeff,
            entropy_coeff=float(self.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID].get_current_value()),
            kl_coeff=float(self.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID]) if config.use_kl_loss else 0.0,
        )

    def _architecture(self, optimizer: torch.optim.Optimizer, *, entropy: bool) -> Any:
        """Return where each tensor stands in the networks; the optimizer's order of the parameters is the program's."""
        group, *of_value = optimizer.param_groups
        position = {id(parameter): index for index, parameter in enumerate(_parameters(optimizer))}
        encoder, network = self._network.encoder, self._network
        shared, head = bool(getattr(encoder.config, "shared", False)), network.pi
        return self._program.Architecture(
            policy=self._layers(encoder.encoder if shared else encoder.actor_encoder, position),
            value=None if shared else self._layers(encoder.critic_encoder, position),
            policy_head=self._layers(head, position),
            value_head=self._layers(network.vf, position),
            log_std=position[id(head.log_std)] if isinstance(head, TorchFreeLogStdMLPHead) else None,
            log_std_limit=float(head.log_std_clip_param_const) if head.clip_log_std else None,
            sizes=self._sizes,
            entropy=entropy,
            divergence=bool(self.config.use_kl_loss),
            minibatch_advantages=bool(told_of(self.config, "minibatch_advantages")),
            values_clipped=bool(told_of(self.config, "vf_clip_range")),
            first_of_value=len(group["params"]) if of_value else None,
            decays=tuple(group.get("betas") or (group["alpha"],)),
            eps=group["eps"],
        )

    def _layers(self, part: Any, position: dict[int, int]) -> tuple[Any, ...]:
        """Return the dense layers of a network of RLlib's catalog, each with the activation behind it."""
        found: list[Any] = []
        for module in part.net.modules():
            if isinstance(module, nn.Linear):
                bias = None if module.bias is None else position[id(module.bias)]
                found.append(self._program.Dense(position[id(module.weight)], bias))
            elif type(module).__name__ in self._program.ACTIVATIONS:
                found[-1] = found[-1]._replace(activation=type(module).__name__)
            elif not isinstance(module, nn.Sequential) and [*module.parameters(recurse=False)]:
                raise refusal(f"a layer is of the class {type(module).__name__}")
        return tuple(found)

    # --- what it did -----------------------------------------------------------------------------------------------

    def _log(self, result: Any, *, size: int, steps: int) -> None:
        """Log what RLlib logs of an update with minibatches of `size` rows from so many steps."""
        count, module, every = int(result.count), DEFAULT_MODULE_ID, ALL_MODULES
        if skipped := int(result.skipped):
            _LOGGER.warning("%d of %d minibatches had a gradient that is not finite; none was applied.", skipped, count)
        logged = {name: float(value) for name, value in result.statistics.items()}
        logged |= {self.TOTAL_LOSS_KEY: float(result.loss), WEIGHTS_SEQ_NO: self._weights_seq_no}
        if self.config.log_gradients or self.config.grad_clip:
            logged[f"gradients_{DEFAULT_OPTIMIZER}_global_norm"] = float(result.norm)
        self.metrics.log_dict(logged, key=module, window=1)
        self.metrics.log_value((module, MODULE_TRAIN_BATCH_SIZE_MEAN), size, reduce="mean")
        rows = count * size
        for key, value, reduce in (
            ((module, NUM_MODULE_STEPS_TRAINED), rows, "sum"),
            ((every, NUM_MODULE_STEPS_TRAINED), rows, "sum"),
            ((every, NUM_ENV_STEPS_TRAINED), steps, "sum"),
            ((module, NUM_MODULE_STEPS_TRAINED_LIFETIME), rows, "lifetime_sum"),
            ((every, NUM_MODULE_STEPS_TRAINED_LIFETIME), rows, "lifetime_sum"),
            ((every, NUM_ENV_STEPS_TRAINED_LIFETIME), steps, "lifetime_sum"),
        ):
            self.metrics.log_value(key, value, reduce=reduce, with_throughput=key != (module, NUM_MODULE_STEPS_TRAINED))
        self._metrics_all_modules_num_env_steps_trained.inc(value=steps)
        self._metrics_all_modules_num_module_steps_trained.inc(value=rows)


def _cache_folder() -> Path | None:
    """Return the user's own folder of compiled programs, made where it is missing; None where none can be used.

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
        return None
    return folder


# --- weights and the optimizer's state, in PyTorch's names ------------------------------------------------------------


def _averages(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Return PyTorch's names of the means of the gradients, where it keeps them, and of their squares."""
    return ("exp_avg", "exp_avg_sq") if isinstance(optimizer, torch.optim.Adam) else ("square_avg",)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _weights(program: Any, optimizer: torch.optim.Optimizer) -> Any:
    parameters = _parameters(optimizer)
    states = [optimizer.state.get(parameter) or {} for parameter in parameters]
    pairs = list(zip(states, parameters, strict=True))
    return program.Weights(
        parameters=tuple(parameter.detach().numpy() for parameter in parameters),
        averages=tuple(
            tuple(state[name].numpy() if name in state else np.zeros(like.shape, np.float32) for state, like in pairs)
            for name in _averages(optimizer)
        ),
        steps=np.float32(states[0].get("step", 0.0)),
    )


@torch.no_grad()
def _put_back(new: Any, optimizer: torch.optim.Optimizer) -> None:
    for number, parameter in enumerate(_parameters(optimizer)):
        parameter.copy_(torch.from_numpy(np.array(new.parameters[number])))
        averages = zip(_averages(optimizer), new.averages, strict=True)
        state = {name: torch.from_numpy(np.array(values[number])) for name, values in averages}
        optimizer.state[parameter] = {"step": torch.tensor(float(new.steps)), **state}
