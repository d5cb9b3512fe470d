"""RLlib's PPO update, and A2C's, as one compiled program. Imports RLlib and torch, and JAX when one is built.

Per minibatch RLlib builds dictionaries and distribution objects, logs a dozen metrics and clips and checks gradients
tensor by tensor; here all minibatches of an update are one program (`fused_program`). What is computed is RLlib's: the
same losses, divergence control, clipping and advantages, in the same modules, with the same metrics.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from ray.rllib.utils import metrics as names
from torch import Tensor, nn

from study.errors import TrialError
from study.jax_private import jax_obstacle, use_one_cpu_thread
from study.trial.engine.envs.environments import are_trainable
from study.trial.engine.extensions import ExtendedPPOTorchLearner

FloatArray = npt.NDArray[np.float64]
_LOGGER = logging.getLogger(__name__)
_ACTIVATIONS = ("relu", "tanh", "silu", "swish", "linear")
_ROWS_PER_FORWARD = 4096
"""The whole batch goes through the network in pieces of so many rows: hidden layers of a large batch are large."""
_MIN_STD = 1e-4
"""RLlib divides advantages by no smaller standard deviation."""
_RMSPROP_ALPHA, _RMSPROP_EPS = 0.99, 1e-5
"""Of Stable-Baselines3's A2C, with which arXiv 2205.09123 compares PPO."""


# --- what an update learns from ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TrainBatch:
    """The pieces of episodes behind each other, in RLlib's rows: the steps of a piece, then one that RLlib appends."""

    episode_ids: tuple[str, ...]
    """Of each piece."""
    observations: npt.NDArray[Any]
    """Before each step, and behind it the last one of the piece; shape (rows, numbers)."""
    actions: npt.NDArray[Any]
    """Shape (steps, …)."""
    rewards: FloatArray
    """Shape (rows,), 0 in appended rows."""
    appended: npt.NDArray[np.int64]
    """Rows that are no steps, one for each piece, shape (pieces,)."""
    terminated: npt.NDArray[np.bool_]
    """Whether the episode terminated with the piece's last step, shape (pieces,)."""

    @classmethod
    def of(cls, episodes: Sequence[SingleAgentEpisode]) -> "TrainBatch":
        """Gather the arrays of episodes, whose lookback buffers hold steps of earlier batches, into new ones."""
        filled = [episode if episode.is_numpy else episode.to_numpy() for episode in episodes if len(episode)]
        observations, actions, rewards = (
            [buffer.data[buffer.lookback :] for buffer in (getattr(episode, name) for episode in filled)]
            for name in ("observations", "actions", "rewards")
        )
        return cls(
            episode_ids=tuple(episode.id_ for episode in filled),
            observations=np.concatenate(observations, dtype=np.float32, casting="unsafe"),
            actions=np.concatenate(actions),
            rewards=np.concatenate([np.append(each, 0.0) for each in rewards], dtype=np.float64, casting="unsafe"),
            appended=np.cumsum([len(each) for each in observations]) - 1,
            terminated=np.array([episode.is_terminated for episode in filled], dtype=np.bool_),
        )

    @property
    def is_step(self) -> npt.NDArray[np.bool_]:
        """Whether each row is a step, shape (rows,)."""
        found = np.ones(len(self.rewards), dtype=np.bool_)
        found[self.appended] = False
        return found

    def advantages(self, values: FloatArray, *, gamma: float, lambda_: float) -> FloatArray:
        """Return the advantage of every row in return units, shape (rows,), by the values of its observations.

        A_t = d_t + gamma lambda A_(t+1), with d_t = r_t + gamma V(s_(t+1)) - V(s_t). A piece's last step has no
        A_(t+1), and V is zero behind it where the episode terminated. An appended row has reward zero and neither ends
        nor is cut: the recursion runs on into the *next* piece. Only RLlib's standardisation sees these rows.

        Source: Schulman et al. 2016, arXiv:1506.02438, equation 16; `GeneralAdvantageEstimation` of RLlib 2.60.
        """
        last, following = self.appended - 1, np.append(values[1:], 0.0)
        following[last[self.terminated]] = 0.0
        decay = np.full(len(values), gamma * lambda_)
        decay[last] = 0.0
        # A loop over Python floats is an order of magnitude faster than one over array elements.
        advantages = (self.rewards + gamma * following - values).tolist()
        running, factors = 0.0, decay.tolist()
        for row in range(len(advantages) - 1, -1, -1):
            advantages[row] = running = advantages[row] + factors[row] * running
        return np.array(advantages)


def minibatch_indices(
    steps: int, *, size: int, count: int, generator: np.random.Generator | None
) -> npt.NDArray[np.int32]:
    """Return the rows of each minibatch, shape (count, size), of one order for each epoch by the `generator`.

    As in RLlib's `MiniBatchCyclicIterator` a minibatch that reaches the end of an epoch is filled up from the next.
    """
    orders = [
        np.arange(steps) if generator is None else generator.permutation(steps)
        for _ in range(math.ceil(count * size / steps))
    ]
    return np.concatenate(orders)[: count * size].reshape(count, size).astype(np.int32)


def fused_obstacle(config: PPOConfig) -> str | None:
    """Return why `FusedPPOLearner` cannot serve a configuration, with its spaces, in one line; None where it can.

    `jax_obstacle` says it of this process, `study.trial.configuration` of other options and of a script's own parts.
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
    """RLlib's PPO learner, whose minibatches are one compiled program: `fused_program`. Checkpoints are RLlib's.

    It differs from `PPOTorchLearner` in this:

    - A minibatch holds environment steps only, none of the rows that RLlib appends. Advantages are standardised over
      those rows too, or as the configuration's attribute `standardization` says: over `steps`, or not at all (`none`).
    - Every epoch is shuffled, also the first one, by a generator of the learner's own, seeded with `config.seed`.
    - The distributions before the update are computed anew from the whole batch: runners' forward passes round by
      their number of rows, and a trial learns bit-equally in every layout.
    - With the attribute `optimizer = "rmsprop"` it takes RMSprop instead of Adam, as A2C does.
    - `num_env_steps_trained` counts each environment step once an update, RLlib once for every minibatch.
    - A gradient that is not finite is not applied, with a warning. RLlib puts zeros in place of what is not finite.
    """

    def build(self) -> None:
        """Build module and optimizer, and load the program, for a configuration without a `fused_obstacle`.

        Raises:
            TrialError: JAX cannot be used in this process.
        """
        if obstacle := jax_obstacle():
            raise refusal(obstacle)
        use_one_cpu_thread()
        from study.trial.engine.learning import fused_program

        self._program = fused_program
        super().build()
        self._network = self.module[DEFAULT_MODULE_ID].unwrapped()
        fused_program.keep_programs()
        space, self._sizes = self._network.action_space, None
        """Choices of each component of a categorical policy; None for a Gaussian one."""
        if not isinstance(space, Box):
            choices = [space.n] if isinstance(space, Discrete) else space.nvec
            self._sizes = tuple(int(size) for size in choices)
        self._standardization = getattr(self.config, "standardization", "rllib")
        self._generator = np.random.default_rng(self.config.seed)

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        # A configuration of RLlib's own has an option of this name, which only the old API stack reads.
        if getattr(self.config, "optimizer", None) == "rmsprop":
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
        """Learn from the episodes, which are left as they are, and return RLlib's metrics; arguments are RLlib's."""
        self._check_is_built()
        timesteps = timesteps or {}
        self.before_gradient_based_update(timesteps=timesteps)
        data = training_data or TrainingData(episodes=episodes)
        data.validate()
        data.solve_refs()
        self._weights_seq_no += 1
        rows = self._rows(TrainBatch.of(data.episodes or []))
        steps = len(rows.rest)
        size = minibatch_size or steps
        minibatches = minibatch_indices(
            steps,
            size=size,
            count=num_total_minibatches or math.ceil(num_epochs * steps / size),
            generator=self._generator if shuffle_batch_per_epoch and minibatch_size else None,
        )
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        parameters = dict(self._network.named_parameters())
        program, coefficients = self._program_of(optimizer, parameters)
        new, result = program.update(self._weights(parameters, optimizer), rows, minibatches, coefficients)
        self._put_back(new, parameters, optimizer)
        self._log(result, size=size, steps=steps)
        self.after_gradient_based_update(timesteps=timesteps)
        results: dict[str, Any] = self.metrics.reduce()
        return results

    def _rows(self, batch: TrainBatch) -> Any:
        """Return the steps of a train batch: `fused_program.Rows`."""
        config, is_step = self.config, batch.is_step
        if self.reward_scale is not None:
            pieces = [piece[:-1] for piece in np.split(batch.rewards, batch.appended[:-1] + 1)]
            batch.rewards[is_step] = np.concatenate(self.reward_scale.scaled(batch.episode_ids, pieces))
        outputs, values = self._forward(torch.from_numpy(batch.observations))
        advantages = batch.advantages(values, gamma=config.gamma, lambda_=config.lambda_)
        targets = advantages + values
        old = (values[is_step],) if self.told.get("vf_clip_range") else ()
        if self._standardization != "none" and not self.told.get("minibatch_advantages"):
            counted = advantages if self._standardization == "rllib" else advantages[is_step]
            advantages = (advantages - counted.mean()) / max(_MIN_STD, float(counted.std()))
        actions = batch.actions.reshape(len(batch.actions), -1)
        if self._sizes is not None:
            actions = actions + np.cumsum((0, *self._sizes[:-1]))
        return self._program.Rows(
            observations=batch.observations[is_step],
            actions=actions.astype(np.float32),
            old=outputs[is_step],
            rest=np.stack([advantages[is_step], targets[is_step], *old], axis=1).astype(np.float32),
        )

    @torch.no_grad()
    def _forward(self, observations: Tensor) -> tuple[npt.NDArray[np.float32], FloatArray]:
        """Return the policy's outputs, shape (rows, outputs), and the values, shape (rows,)."""
        outputs, values = [], []
        for piece in observations.split(_ROWS_PER_FORWARD):
            batch = {Columns.OBS: piece}
            out = self._network.forward_train(batch)
            outputs.append(out[Columns.ACTION_DIST_INPUTS])
            values.append(self._network.compute_values(batch, embeddings=out.get(Columns.EMBEDDINGS)))
        return torch.cat(outputs).numpy(), torch.cat(values).numpy().astype(np.float64)

    def _program_of(self, optimizer: torch.optim.Optimizer, parameters: dict[str, Tensor]) -> tuple[Any, Any]:
        """Return `fused_program.Program` of this module and loss, and what may change between two updates."""
        config, network, (group, *others) = self.config, self._network, optimizer.param_groups
        encoder, head = network.encoder, network.pi
        of_value = {id(parameter) for each in others for parameter in each["params"]}
        shared = bool(getattr(encoder.config, "shared", False))
        entropy = float(self.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID].get_current_value())
        program = self._program.Program(
            policy=self._layers(encoder.encoder if shared else encoder.actor_encoder),
            value=None if shared else self._layers(encoder.critic_encoder),
            policy_head=self._layers(head),
            value_head=self._layers(network.vf),
            log_std="pi.log_std" if isinstance(head, TorchFreeLogStdMLPHead) else None,
            log_std_limit=float(head.log_std_clip_param_const) if head.clip_log_std else None,
            sizes=self._sizes,
            entropy=bool(entropy),
            divergence=bool(config.use_kl_loss),
            minibatch_advantages=bool(self.told.get("minibatch_advantages")),
            values_clipped=bool(self.told.get("vf_clip_range")),
            of_value=tuple(name for name, parameter in parameters.items() if id(parameter) in of_value),
            decays=tuple(group.get("betas") or (group["alpha"],)),
            eps=group["eps"],
        )
        return program, self._program.Coefficients(
            lr=float(group["lr"]),
            vf_lr=float(optimizer.param_groups[-1]["lr"]),
            grad_clip=config.grad_clip or math.inf,
            clip_param=config.clip_param * self.clip_share,
            vf_clip_range=self.told.get("vf_clip_range") or math.inf,
            vf_clip_param=config.vf_clip_param,
            vf_loss_coeff=config.vf_loss_coeff,
            entropy_coeff=entropy,
            kl_coeff=float(self.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID]) if config.use_kl_loss else 0.0,
        )

    def _layers(self, part: Any) -> tuple[Any, ...]:
        """Return the dense layers of a network of RLlib's catalog, each with the activation behind it."""
        paths = {id(module): name for name, module in self._network.named_modules()}
        found: list[Any] = []
        for module in part.net.modules():
            kind = type(module).__name__
            if isinstance(module, nn.Linear):
                found.append(self._program.Layer(paths[id(module)]))
            elif kind in self._program.ACTIVATIONS:
                found[-1] = found[-1]._replace(activation=kind)
            elif not isinstance(module, nn.Sequential) and [*module.parameters(recurse=False)]:
                raise refusal(f"a layer is of the class {kind}")
        return tuple(found)

    def _log(self, result: Any, *, size: int, steps: int) -> None:
        """Log what RLlib logs of an update with minibatches of `size` rows from so many steps."""
        count, module, every = int(result.count), DEFAULT_MODULE_ID, ALL_MODULES
        if skipped := int(result.skipped):
            _LOGGER.warning("%d of %d minibatches had a gradient that is not finite; none was applied.", skipped, count)
        logged = {name: float(value) for name, value in result.statistics.items()}
        logged |= {self.TOTAL_LOSS_KEY: float(result.loss), names.WEIGHTS_SEQ_NO: self._weights_seq_no}
        if self.config.log_gradients or self.config.grad_clip:
            logged[f"gradients_{DEFAULT_OPTIMIZER}_global_norm"] = float(result.norm)
        self.metrics.log_dict(logged, key=module, window=1)
        self.metrics.log_value((module, names.MODULE_TRAIN_BATCH_SIZE_MEAN), size, reduce="mean")
        rows = count * size
        for place, name, number in (
            (module, names.NUM_MODULE_STEPS_TRAINED, rows),
            (every, names.NUM_MODULE_STEPS_TRAINED, rows),
            (every, names.NUM_ENV_STEPS_TRAINED, steps),
        ):
            self.metrics.log_value((place, name), number, reduce="sum", with_throughput=place == every)
            self.metrics.log_value((place, f"{name}_lifetime"), number, reduce="lifetime_sum", with_throughput=True)

    def _weights(self, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> Any:
        states = {name: optimizer.state.get(parameter) or {} for name, parameter in parameters.items()}

        def of(average: str) -> dict[str, Any]:
            zeros = {name: np.zeros(parameter.shape, np.float32) for name, parameter in parameters.items()}
            return zeros | {name: state[average].numpy() for name, state in states.items() if state}

        return self._program.Weights(
            parameters={name: parameter.detach().numpy() for name, parameter in parameters.items()},
            averages=tuple(of(average) for average in _averages(optimizer)),
            steps=np.float32(next(iter(states.values())).get("step", 0.0)),
        )

    @torch.no_grad()
    def _put_back(self, new: Any, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(np.array(new.parameters[name])))
            averages = zip(_averages(optimizer), new.averages, strict=True)
            state = {average: torch.from_numpy(np.array(values[name])) for average, values in averages}
            optimizer.state[parameter] = {"step": torch.tensor(float(new.steps)), **state}


def _averages(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Return PyTorch's names of the means of the gradients, where it keeps them, and of their squares."""
    return ("exp_avg", "exp_avg_sq") if isinstance(optimizer, torch.optim.Adam) else ("square_avg",)
