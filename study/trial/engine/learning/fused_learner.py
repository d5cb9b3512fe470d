"""RLlib's PPO update, and A2C's, as one compiled program. Imports RLlib and torch, and JAX when one is built.

Per minibatch RLlib builds dictionaries and distribution objects, logs a dozen metrics and clips and checks gradients
tensor by tensor; here all minibatches of an update are one program (`fused_program`). What is computed is RLlib's: the
same losses, divergence control, clipping and advantages, in the same modules, with the same metrics.
"""

import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_KL_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER, ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import (
    MODULE_TRAIN_BATCH_SIZE_MEAN,
    NUM_ENV_STEPS_TRAINED,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    WEIGHTS_SEQ_NO,
)
from ray.rllib.utils.numpy import SMALL_NUMBER
from torch import Tensor, nn

from study.errors import StudyError, TrialError
from study.jax_private import cpu_device, jax_obstacle, use_one_cpu_thread
from study.ray_private import option
from study.records.files import check_own
from study.trial.engine.learning.advantages import FloatArray, generalised_advantages, phantom_advantages
from study.trial.engine.learning.batches import Batch, Fragments, gather_fragments, minibatch_indices
from study.trial.engine.learning.distributions import Categoricals, distribution_for
from study.trial.engine.learning.encoders import NormalizedEncoder, StudyCatalog, normalizers_of
from study.trial.engine.learning.rewards import ReturnScale

_LOGGER = logging.getLogger(__name__)
_ACTIVATIONS = ("relu", "tanh", "elu", "silu", "swish", "sigmoid", "gelu", "linear")
_ROWS_PER_FORWARD = 4096
"""The whole batch goes through the network in pieces of so many rows: hidden layers of a large batch are large."""
_MIN_STD = 1e-4
"""RLlib divides advantages by no smaller standard deviation."""


def fused_obstacle(config: PPOConfig) -> str | None:
    """Return one line saying why `FusedPPOLearner` cannot serve this configuration, or None where it can.

    What of this process stands in the way is said by `jax_obstacle`. Several modules, and a learner of a script's own,
    are not asked about: `study.trial.parts` lets neither through.

    Args:
        config: With the spaces of its environment.
    """
    model, spec = config.model_config, option(config, "rl_module_spec")
    default = config.get_default_rl_module_spec().module_class
    activations = {str(model.get(name, "linear")).lower() for name in ("fcnet_activation", "head_fcnet_activation")}
    obstacles = {
        "there are several learners": config.num_learners > 1,
        "the learner has a GPU": config.num_gpus_per_learner > 0,
        "observations are no vectors": len(config.observation_space.shape or ()) != 1,
        f"the action space is {config.action_space}": distribution_for(config.action_space) is None,
        "the module is not RLlib's default one": spec is not None and spec.module_class not in (None, default),
        "the networks are of a catalog of one's own": spec is not None
        and spec.catalog_class not in (None, PPOCatalog, StudyCatalog),
        "the module is recurrent": bool(model.get("use_lstm")),
        "the network has layer normalisation": bool(model.get("fcnet_use_layernorm")),
        f"an activation is none of {', '.join(_ACTIVATIONS)}": not activations <= set(_ACTIVATIONS),
        "learner_connector is set": option(config, "learner_connector") is not None,
        "add_default_connectors_to_learner_pipeline is off": not config.add_default_connectors_to_learner_pipeline,
        "torch_compile_learner is on": config.torch_compile_learner,
        "_torch_grad_scaler_class is set": option(config, "torch_grad_scaler_class") is not None,
        "_torch_lr_scheduler_classes is set": option(config, "torch_lr_scheduler_classes") is not None,
        "use_critic is off": not config.use_critic,
        "use_gae is off": not config.use_gae,
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


def refusal(obstacle: str) -> TrialError:
    """Return the error where the fused learner is asked for and cannot serve."""
    fix = "Remove what is named, or start a new study with --set learner=rllib."
    return TrialError(where="learner", rule="`fused` must be able to serve", got=obstacle, fix=fix)


class FusedPPOLearner(PPOTorchLearner):
    """RLlib's PPO learner, whose minibatches are one compiled program: `fused_program`.

    Weights and the optimizer's state stay in the module and its optimizer, so that checkpoints are those of RLlib's
    learner. `fused_obstacle` says which configurations it can serve. It differs from `PPOTorchLearner` in this:

    - A minibatch holds environment steps only. RLlib's holds some of the rows that it appended behind each fragment
      and masks them, so that its minibatches are smaller than asked for and its gradient steps more, the more so the
      shorter the fragments.
    - Advantages are standardised over environment steps. The attribute `standardization = "rllib"` of the
      configuration includes RLlib's appended rows instead, so that full-batch updates equal RLlib's.
    - Every epoch is shuffled, also the first one, which RLlib leaves in the order of the episodes; by a generator of
      the learner's own, seeded with `config.seed`, which whatever else happens in the process cannot disturb.
    - The distributions before the update are computed anew, from the whole batch, instead of being taken from the
      runners. The update then depends on observations, actions and rewards alone, and not on how many rows a runner's
      forward pass had: a trial learns bit-equally in every layout of processes.
    - With `optimizer = "rmsprop"` it is RMSprop instead of Adam, and with `standardization = "none"` advantages stay
      as they are: A2C has both.
    - `vf_explained_var` is over environment steps; RLlib includes its appended rows.
    - `num_env_steps_trained` counts each environment step once an update; RLlib counts the whole batch once for every
      minibatch.
    - A minibatch whose gradient is not finite is not applied, with a warning; where its loss is not finite either, the
      update ends there, and that loss and its statistics are what is reported. RLlib steps with zeros in place of what
      is not finite. `torch_skip_nan_gradients` has no effect.
    """

    standardization = "steps"
    """What advantages are standardised over where the configuration does not say."""

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
        super().build()
        if self.config.num_learners > 0:
            # "auto" is one CPU. The local learner's process belongs to others too.
            cpus = self.config.num_cpus_per_learner
            torch.set_num_threads(1 if cpus == "auto" else max(1, int(cpus)))
        self._network = self.module[DEFAULT_MODULE_ID].unwrapped()
        known = self.config.copy(copy_frozen=False)
        known.environment(observation_space=self._network.observation_space, action_space=self._network.action_space)
        if obstacle := fused_obstacle(known):
            raise refusal(obstacle)
        try:
            self.jax_platform = str(cpu_device().platform)
        except RuntimeError as error:
            raise refusal(f"JAX has no CPU here: {error}") from error
        if (folder := _cache_folder()) is not None:
            fused_program.use_cache(folder)
        distribution = distribution_for(self._network.action_space)
        assert distribution is not None  # says `fused_obstacle`
        self._distribution = distribution
        self._standardization = getattr(self.config, "standardization", self.standardization)
        self._return_scale = ReturnScale()
        self._generator = torch.Generator()
        if self.config.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(self.config.seed)

    def configure_optimizers_for_module(self, module_id: str, config: PPOConfig | None = None) -> None:
        """Register RLlib's Adam, or A2C's RMSprop; RLlib controls the learning rate."""
        if not self._takes_rmsprop:
            super().configure_optimizers_for_module(module_id, config)
            return
        assert config is not None
        parameters, program = self.get_parameters(self.module[module_id]), self._program
        optimizer = torch.optim.RMSprop(parameters, alpha=program.RMSPROP_ALPHA, eps=program.RMSPROP_EPS)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
        )

    @property
    def _takes_rmsprop(self) -> bool:
        # A configuration of RLlib's own has an option of this name, which only the old API stack reads.
        return getattr(self.config, "optimizer", None) == "rmsprop"

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
        """Learn from the episodes, which are left as they are, and return RLlib's metrics.

        Args:
            training_data: What a `LearnerGroup` hands over; must hold episodes.
            episodes: The same, without a `LearnerGroup`.
            timesteps: Lifetime counts for RLlib's schedules, steps.
            num_total_minibatches: Minibatches over all epochs; 0 derives them from `num_epochs`.
            num_epochs: How often every step is learnt from.
            minibatch_size: Steps per gradient; None takes all of them, in order.
            shuffle_batch_per_epoch: Whether every epoch has an order of its own.

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
        fragments = gather_fragments(data.episodes or [])
        if fragments.discounted is not None:
            self._return_scale.add(fragments.discounted)
            fragments = replace(fragments, rewards=self._return_scale.scaled(fragments.rewards))
        batch = self._make_batch(fragments)
        size = minibatch_size or len(batch)
        minibatches = minibatch_indices(
            len(batch),
            size=size,
            count=num_total_minibatches or math.ceil(num_epochs * len(batch) / size),
            generator=self._generator if shuffle_batch_per_epoch and minibatch_size else None,
        )
        self._learn(batch, minibatches)
        # After the update: its samples were drawn with what the normalisers knew before.
        for normalizer in normalizers_of(self._network):
            normalizer.add(batch.observations)
        self.after_gradient_based_update(timesteps=timesteps)
        results: dict[str, Any] = self.metrics.reduce()
        return results

    def _make_batch(self, fragments: Fragments) -> Batch:
        steps = len(fragments.rewards)
        observations = torch.from_numpy(np.asarray(fragments.observations, dtype=np.float32))
        inputs, values = self._forward(observations)
        actions = self._distribution.actions(fragments.actions)
        old = self._distribution.normalised(inputs[:steps])
        advantages, targets = self._advantages(values.numpy().astype(np.float64), fragments)
        return Batch(
            observations=observations[:steps],
            actions=actions,
            old=old,
            old_log_probs=self._distribution.log_prob(old, actions),
            advantages=torch.from_numpy(advantages.astype(np.float32)),
            targets=torch.from_numpy(targets.astype(np.float32)),
        )

    @torch.no_grad()
    def _forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs, shape (rows, inputs), and the values, shape (rows,)."""
        inputs, values = [], []
        for piece in observations.split(_ROWS_PER_FORWARD):
            batch = {Columns.OBS: piece}
            outputs = self._network.forward_train(batch)
            inputs.append(outputs[Columns.ACTION_DIST_INPUTS])
            values.append(self._network.compute_values(batch, embeddings=outputs.get(Columns.EMBEDDINGS)))
        return torch.cat(inputs), torch.cat(values)

    def _advantages(self, values: FloatArray, fragments: Fragments) -> tuple[FloatArray, FloatArray]:
        """Return advantages, standardised where they are to be, and value targets, both of shape (steps,)."""
        steps = len(fragments.rewards)
        before, bootstrap = values[:steps], values[steps:]
        discounts = {"gamma": self.config.gamma, "lambda_": self.config.lambda_}
        advantages = generalised_advantages(
            values=before,
            bootstrap=bootstrap,
            rewards=fragments.rewards,
            lengths=fragments.lengths,
            terminated=fragments.terminated,
            **discounts,
        )
        targets = advantages + before
        if self._standardization == "none":
            return advantages, targets
        reference = advantages
        if self._standardization == "rllib":
            phantoms = phantom_advantages(
                advantages=advantages, values=before, bootstrap=bootstrap, lengths=fragments.lengths, **discounts
            )
            reference = np.concatenate([advantages, phantoms])
        return (advantages - reference.mean()) / max(_MIN_STD, float(reference.std())), targets

    def _learn(self, batch: Batch, minibatches: Tensor) -> None:
        """Take one step for each minibatch, given by its rows, and log what was done."""
        program, config = self._program, self.config
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        (group,) = optimizer.param_groups
        entropy_coeff = self.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID].get_current_value()
        kl_coeff = self.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID] if config.use_kl_loss else 0.0
        coefficients = program.Coefficients(
            lr=float(group["lr"]),
            grad_clip=config.grad_clip or math.inf,
            clip_param=config.clip_param,
            vf_clip_param=config.vf_clip_param,
            vf_loss_coeff=config.vf_loss_coeff,
            entropy_coeff=float(entropy_coeff),
            kl_coeff=float(kl_coeff),
        )
        index = minibatches.numpy().astype(np.int32)
        new, result = program.update(
            self._architecture(group["params"], entropy=bool(coefficients.entropy_coeff)),
            _weights(program, optimizer),
            self._columns(batch),
            index,
            coefficients,
        )
        _put_back(new, optimizer)
        count, skipped = int(result.count), int(result.skipped)
        if skipped:
            _LOGGER.warning("%d of %d minibatches had a gradient that is not finite; none was applied.", skipped, count)
        last = batch.rows(minibatches[count - 1])
        outputs, values = torch.from_numpy(np.array(result.new)).T, torch.from_numpy(np.array(result.values))
        losses = self._statistics(last, outputs, values)
        losses |= {self.TOTAL_LOSS_KEY: float(result.loss), WEIGHTS_SEQ_NO: self._weights_seq_no}
        if config.log_gradients or (config.grad_clip and config.grad_clip_by == "global_norm"):
            losses[f"gradients_{DEFAULT_OPTIMIZER}_global_norm"] = float(result.norm)
        self.metrics.log_dict(losses, key=DEFAULT_MODULE_ID, window=1)
        self._log_counts(num_minibatches=count, num_rows=count * index.shape[1], num_steps=len(batch))

    def _columns(self, batch: Batch) -> Any:
        normalizer = next(normalizers_of(self._network), None)
        with torch.no_grad():
            seen = batch.observations if normalizer is None else normalizer(batch.observations)
            rest = torch.stack([batch.old_log_probs, batch.advantages, batch.targets], dim=1)
        return self._program.Columns(
            *(part.float().numpy() for part in (seen, batch.actions, batch.old, rest)),
        )

    def _architecture(self, parameters: list[Tensor], *, entropy: bool) -> Any:
        """Return where each tensor stands in the networks; the optimizer's order of the parameters is the program's."""
        position = {id(parameter): index for index, parameter in enumerate(parameters)}
        encoder, network, config = self._network.encoder, self._network, self.config
        shared = bool(getattr(encoder.config, "shared", False))
        policy = encoder.encoder if shared else encoder.actor_encoder

        def layers(part: nn.Module) -> tuple[Any, ...]:
            return _layers(self._program, part, position)

        head = network.pi
        free = isinstance(head, TorchFreeLogStdMLPHead)
        return self._program.Architecture(
            policy=layers(_inner(policy)),
            value=None if shared else layers(_inner(encoder.critic_encoder)),
            policy_head=layers(head.net),
            value_head=layers(network.vf.net),
            log_std=position[id(head.log_std)] if free else None,
            log_std_limit=float(head.log_std_clip_param_const) if head.clip_log_std else None,
            sizes=self._distribution.sizes if isinstance(self._distribution, Categoricals) else None,
            entropy=entropy,
            divergence=bool(config.use_kl_loss),
            clip_by=config.grad_clip_by if config.grad_clip else "global_norm",
            optimizer="rmsprop" if self._takes_rmsprop else "adam",
        )

    @torch.no_grad()
    def _statistics(self, rows: Batch, new: Tensor, values: Tensor) -> dict[str, float]:
        """Return RLlib's statistics of one minibatch.

        Args:
            rows: The minibatch.
            new: Parameters of its action distributions in the step's forward pass, shape (rows, inputs).
            values: Its values there, shape (rows,).
        """
        config, distribution = self.config, self._distribution
        ratio = torch.exp(distribution.log_prob(new, rows.actions) - rows.old_log_probs)
        clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
        surrogate = torch.minimum(rows.advantages * ratio, rows.advantages * clipped)
        errors = (values - rows.targets).square()
        # RLlib reports no divergence either where the loss has none.
        kl = distribution.kl(rows.old, new) if config.use_kl_loss else torch.zeros(1)
        return {
            POLICY_LOSS_KEY: -float(surrogate.mean()),
            VF_LOSS_KEY: float(errors.clamp(0.0, config.vf_clip_param).mean()),
            LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: float(errors.mean()),
            LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: _explained_variance(rows.targets.double(), values.double()),
            ENTROPY_KEY: float(distribution.entropy(new).mean()),
            LEARNER_RESULTS_KL_KEY: float(kl.mean()),
        }

    def _log_counts(self, *, num_minibatches: int, num_rows: int, num_steps: int) -> None:
        log = self.metrics.log_value
        log((DEFAULT_MODULE_ID, MODULE_TRAIN_BATCH_SIZE_MEAN), num_rows / num_minibatches, reduce="mean")
        log((DEFAULT_MODULE_ID, NUM_MODULE_STEPS_TRAINED), num_rows, reduce="sum")
        for key, value in (
            ((DEFAULT_MODULE_ID, NUM_MODULE_STEPS_TRAINED_LIFETIME), num_rows),
            ((ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME), num_rows),
            ((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), num_steps),
        ):
            log(key, value, reduce="lifetime_sum", with_throughput=True)
        log((ALL_MODULES, NUM_MODULE_STEPS_TRAINED), num_rows, reduce="sum", with_throughput=True)
        log((ALL_MODULES, NUM_ENV_STEPS_TRAINED), num_steps, reduce="sum", with_throughput=True)
        self._metrics_all_modules_num_env_steps_trained.inc(value=num_steps)
        self._metrics_all_modules_num_module_steps_trained.inc(value=num_rows)


def _explained_variance(targets: Tensor, values: Tensor) -> float:
    """Return max(-1, 1 - Var(target - value) / Var(target)); nan for a single row."""
    if len(targets) < 2:
        return math.nan
    explained = 1 - float((targets - values).var() / (targets.var() + SMALL_NUMBER))
    return -1.0 if explained < -1.0 else explained


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


def _inner(encoder: nn.Module) -> nn.Module:
    """Return an encoder's network, without the normaliser before it."""
    inner: Any = encoder.inner if isinstance(encoder, NormalizedEncoder) else encoder
    net: nn.Module = inner.net
    return net


def _layers(program: Any, part: nn.Module, position: dict[int, int]) -> tuple[Any, ...]:
    """Return the dense layers of a network of RLlib's catalog, each with the activation behind it."""
    found: list[Any] = []
    for module in part.modules():
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else position[id(module.bias)]
            found.append(program.Dense(position[id(module.weight)], bias))
        elif type(module).__name__ in program.ACTIVATIONS:
            found[-1] = program.Dense(found[-1].weight, found[-1].bias, type(module).__name__)
        elif not isinstance(module, nn.Sequential) and [*module.parameters(recurse=False)]:
            raise ValueError(f"module: must be of dense layers for learner: fused, got {type(module).__name__}.")
    return tuple(found)


def _weights(program: Any, optimizer: torch.optim.Optimizer) -> Any:
    (group,) = optimizer.param_groups
    parameters: list[Tensor] = group["params"]
    states = [optimizer.state.get(parameter) or {} for parameter in parameters]

    def moments(name: str) -> tuple[Any, ...]:
        return tuple(
            state[name].numpy() if name in state else np.zeros(parameter.shape, np.float32)
            for state, parameter in zip(states, parameters, strict=True)
        )

    return program.Weights(
        parameters=tuple(parameter.detach().numpy() for parameter in parameters),
        first=moments("exp_avg") if isinstance(optimizer, torch.optim.Adam) else (),
        second=moments(_second(optimizer)),
        steps=np.float32(states[0].get("step", 0.0)),
    )


def _second(optimizer: torch.optim.Optimizer) -> str:
    """Return PyTorch's name of the mean of squared gradients."""
    return "exp_avg_sq" if isinstance(optimizer, torch.optim.Adam) else "square_avg"


@torch.no_grad()
def _put_back(new: Any, optimizer: torch.optim.Optimizer) -> None:
    (group,) = optimizer.param_groups
    for number, parameter in enumerate(group["params"]):
        parameter.copy_(torch.from_numpy(np.array(new.parameters[number])))
        state = {
            "step": torch.tensor(float(new.steps)),
            _second(optimizer): torch.from_numpy(np.array(new.second[number])),
        }
        if new.first:
            state["exp_avg"] = torch.from_numpy(np.array(new.first[number]))
        optimizer.state[parameter] = state
