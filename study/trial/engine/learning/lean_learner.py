"""RLlib's PPO update without RLlib's work around each minibatch. Imports RLlib and torch.

Per minibatch RLlib builds dictionaries and distribution objects, logs a dozen metrics and clips and checks gradients
tensor by tensor; here a minibatch is an index, a forward pass, a loss, a backward pass and a step. What is computed is
RLlib's: the same losses, divergence control, clipping and advantages, in the same modules, with the same metrics.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_KL_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
)
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER, ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.core.learner.training_data import TrainingData
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
from ray.rllib.utils.torch_utils import convert_to_torch_tensor
from torch import Tensor

from study.ray_private import option
from study.trial.engine.learning import lean_private as foreach
from study.trial.engine.learning.advantages import FloatArray, generalised_advantages, phantom_advantages
from study.trial.engine.learning.batches import Batch, Fragments, gather_fragments, minibatch_indices, parts_of
from study.trial.engine.learning.distributions import distribution_for
from study.trial.engine.learning.encoders import LARGEST, RunningMoments, normalizers_of
from study.trial.engine.learning.lean_private import forward_train_of

_LOGGER = logging.getLogger(__name__)
_ROWS_PER_FORWARD = 4096
"""The whole batch goes through the network in pieces of so many rows: hidden layers over images are large."""
_MIN_STD = 1e-4
"""RLlib divides advantages by no smaller standard deviation."""
_KINDS = (TorchCategorical, TorchMultiCategorical, TorchDiagGaussian)
_RMSPROP_ALPHA, _RMSPROP_EPS = 0.99, 1e-5
"""Of Stable-Baselines3's A2C, with which arXiv 2205.09123 compares PPO."""


def lean_obstacle(config: PPOConfig) -> str | None:
    """Return one line saying why `LeanPPOLearner` cannot serve this configuration, or None where it can.

    Needs no more than a configuration with its spaces set. A custom module is looked at when the learner is built.
    Several modules, and a learner of a script's own, are not asked about: `script_engine` lets neither through.
    """
    obstacles = {
        "learner_connector is set": option(config, "learner_connector") is not None,
        "add_default_connectors_to_learner_pipeline is off": not config.add_default_connectors_to_learner_pipeline,
        "torch_compile_learner is on": config.torch_compile_learner,
        "_torch_grad_scaler_class is set": option(config, "torch_grad_scaler_class") is not None,
        "_torch_lr_scheduler_classes is set": option(config, "torch_lr_scheduler_classes") is not None,
        "use_critic is off": not config.use_critic,
        "use_gae is off": not config.use_gae,
        f"the action space is {config.action_space}": distribution_for(config.action_space) is None,
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchLoss:
    """What the loss of a minibatch and its statistics are made of, each of shape (rows,) or (rows, inputs)."""

    rows: Batch
    new: Tensor
    values: Tensor
    surrogate: Tensor
    squared_error: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """What stays the same during one update."""

    share: float
    """Weight of this learner's gradient; the weights of all learners add up to 1."""
    grad_clip: float | None
    grad_clip_by: str
    clip_param: float
    vf_clip_param: float
    vf_loss_coeff: float
    entropy_coeff: float
    kl_coeff: float | None
    """None without a divergence term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """What one update did."""

    loss: MinibatchLoss
    """Of the last minibatch, or of the first one whose loss is not finite."""
    total_loss: float
    gradient_norm: float
    num_minibatches: int
    num_rows: int


class LeanPPOLearner(PPOTorchLearner):
    """RLlib's PPO learner, without RLlib's work around each minibatch.

    It learns from `SingleAgentEpisode`s with any number of learners and on their device. It differs from
    `PPOTorchLearner` in this:

    - A minibatch holds environment steps only. RLlib's holds some of the rows that it appended behind each fragment
      and masks them, so that its minibatches are smaller than asked for and its gradient steps more, the more so the
      shorter the fragments.
    - Advantages are standardised over environment steps. The attribute `standardization = "rllib"` of the
      configuration includes RLlib's appended rows instead, so that full-batch updates equal RLlib's.
    - Every epoch is shuffled, also the first one, which RLlib leaves in the order of the episodes; by a generator of
      the learner's own, seeded with `config.seed`, which whatever else happens in the process cannot disturb.
    - The distributions before the update are computed anew, in one pass over the whole batch, instead of being taken
      from the runners. The update then depends on observations, actions and rewards alone, and not on how many rows a
      runner's forward pass had: a trial learns bit-equally in every layout of processes.
    - Adam runs fused, which changes the last bits of the weights. With `optimizer = "rmsprop"` it is RMSprop instead,
      and with `standardization = "none"` advantages stay as they are: A2C has both.
    - `vf_explained_var` is over environment steps; RLlib includes its appended rows.
    - `num_env_steps_trained` counts each environment step once an update; RLlib counts the whole batch once for every
      minibatch.
    - A minibatch whose gradient is not finite is not applied, with a warning; where its loss is not finite either, the
      update ends there, and that loss and its statistics are what is reported. RLlib steps with zeros in place of what
      is not finite. The check costs one number read from the device per minibatch; `torch_skip_nan_gradients` has no
      effect.
    """

    def build(self) -> None:
        """Build module and optimizer.

        Raises:
            ValueError: The module is one that this learner cannot serve.
        """
        super().build()
        if self.config.num_learners > 0:
            # "auto" is one CPU, or none beside a GPU. The local learner's process belongs to others too.
            cpus = self.config.num_cpus_per_learner
            torch.set_num_threads(1 if cpus == "auto" else max(1, int(cpus)))
        self._standardization = getattr(self.config, "standardization", "steps")
        self._network = self.module[DEFAULT_MODULE_ID].unwrapped()
        self._forward_network = forward_train_of(self._network)
        kind = self._network.get_train_action_dist_cls()
        distribution = distribution_for(self._network.action_space)
        if distribution is None or not issubclass(kind, _KINDS) or self._network.is_stateful():
            raise ValueError(
                f"module: must be stateless, with a categorical or diagonal Gaussian policy, got "
                f"{type(self._network).__name__} with {kind.__name__}. Fix: use PPOTorchLearner."
            )
        self._distribution = distribution
        self._returns = RunningMoments(())
        """Moments of the discounted returns so far, by which rewards may be divided."""
        self._generator = torch.Generator()
        if self.config.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(self.config.seed)

    def configure_optimizers_for_module(self, module_id: str, config: PPOConfig | None = None) -> None:
        """Register a fused Adam, or A2C's RMSprop; RLlib controls the learning rate."""
        assert config is not None
        parameters = self.get_parameters(self._module[module_id])
        optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, fused=True)
        if getattr(self.config, "optimizer", "adam") == "rmsprop":
            optimizer = torch.optim.RMSprop(parameters, alpha=_RMSPROP_ALPHA, eps=_RMSPROP_EPS)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
        )

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
        config = self.config.get_config_for_module(DEFAULT_MODULE_ID)
        fragments = self._with_scaled_rewards(gather_fragments(data.episodes or []))
        batch = self._make_batch(fragments, config)
        steps = len(batch)
        size = minibatch_size or steps
        minibatches = minibatch_indices(
            steps,
            size=size,
            count=num_total_minibatches or self._agreed(math.ceil(num_epochs * steps / size)),
            generator=self._generator if shuffle_batch_per_epoch and minibatch_size else None,
            device=self._device,
        )
        # Gradients are means over rows; shards of a whole batch may differ in length.
        share = 1 / max(self.config.num_learners, 1) if minibatch_size else steps / self._over_learners([steps])[0]
        settings = self._settings(config, share)
        outcome = self._learn(batch, minibatches, settings)
        self._show_observations(batch)
        self._log_losses(outcome, settings, log_gradients=config.log_gradients)
        self._log_counts(outcome, steps)
        self.after_gradient_based_update(timesteps=timesteps)
        results: dict[str, Any] = self.metrics.reduce()
        return results

    def _settings(self, config: PPOConfig, share: float) -> UpdateSettings:
        return UpdateSettings(
            share=share,
            grad_clip=config.grad_clip,
            grad_clip_by=config.grad_clip_by,
            clip_param=config.clip_param,
            vf_clip_param=config.vf_clip_param,
            vf_loss_coeff=config.vf_loss_coeff,
            entropy_coeff=float(self.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID].get_current_value()),
            kl_coeff=self.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID].item() if config.use_kl_loss else None,
        )

    def _with_scaled_rewards(self, fragments: Fragments) -> Fragments:
        """Divide rewards by the deviation of the discounted returns so far, where the runners hand those over."""
        if fragments.discounted is None:
            return fragments
        self._returns.add(*self._moments(torch.from_numpy(fragments.discounted)))
        deviation = math.sqrt(float(self._returns.variance) + SMALL_NUMBER)
        return replace(fragments, rewards=np.clip(fragments.rewards / deviation, -LARGEST, LARGEST))

    def _show_observations(self, batch: Batch) -> None:
        """Let the normalisers see the batch: after the update, since its samples were drawn with what they knew."""
        normalizers = list(normalizers_of(self._network))
        if normalizers:
            moments = self._moments(batch.observations.double())
            for normalizer in normalizers:
                normalizer.add(*moments)

    def _moments(self, values: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return number, mean and summed squared deviations over the rows of all learners, in double precision."""
        (count,) = self._over_learners([float(len(values))])
        mean = self._sum_over_learners(values.sum(dim=0)) / count
        return count, mean, self._sum_over_learners((values - mean).square().sum(dim=0))

    def _sum_over_learners(self, values: Tensor) -> Tensor:
        if self.distributed:
            values = values.to(self._device)
            torch.distributed.all_reduce(values)
        return values

    def _forward(self, observations: Any) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs, shape (rows, inputs), and the values, shape (rows,)."""
        batch = {Columns.OBS: observations}
        outputs = self._forward_network(batch)
        values = self._network.compute_values(batch, embeddings=outputs.get(Columns.EMBEDDINGS))
        return outputs[Columns.ACTION_DIST_INPUTS], values

    def _make_batch(self, fragments: Fragments, config: PPOConfig) -> Batch:
        steps = len(fragments.rewards)
        observations = convert_to_torch_tensor(fragments.observations, device=self._device)
        inputs, values = self._forward_all(observations, steps + len(fragments.lengths))
        actions = self._distribution.actions(fragments.actions).to(self._device)
        old = self._distribution.normalised(inputs[:steps])
        advantages, targets = self._advantages(values.cpu().numpy().astype(np.float64), fragments, config)
        return Batch(
            observations=parts_of(observations, slice(steps)),
            actions=actions,
            old=old,
            old_log_probs=self._distribution.log_prob(old, actions),
            advantages=torch.from_numpy(advantages.astype(np.float32)).to(self._device),
            targets=torch.from_numpy(targets.astype(np.float32)).to(self._device),
        )

    @torch.no_grad()
    def _forward_all(self, observations: Any, rows: int) -> tuple[Tensor, Tensor]:
        self._network.eval()
        pieces = []
        for start in range(0, rows, _ROWS_PER_FORWARD):
            piece = slice(start, start + _ROWS_PER_FORWARD)
            pieces.append(self._forward(parts_of(observations, piece)))
        self._network.train()
        inputs, values = zip(*pieces, strict=True)
        return torch.cat(inputs), torch.cat(values)

    def _advantages(self, values: FloatArray, fragments: Fragments, config: PPOConfig) -> tuple[FloatArray, FloatArray]:
        """Return advantages, standardised where they are to be, and value targets, both of shape (steps,)."""
        steps = len(fragments.rewards)
        before, bootstrap = values[:steps], values[steps:]
        discounts = {"gamma": config.gamma, "lambda_": config.lambda_}
        advantages = generalised_advantages(
            values=before,
            bootstrap=bootstrap,
            rewards=fragments.rewards,
            lengths=fragments.lengths,
            terminated=fragments.terminated,
            **discounts,
        )
        if self._standardization == "none":
            return advantages, advantages + before
        reference = advantages
        if self._standardization == "rllib":
            phantoms = phantom_advantages(
                advantages=advantages, values=before, bootstrap=bootstrap, lengths=fragments.lengths, **discounts
            )
            reference = np.concatenate([advantages, phantoms])
        total, rows = self._over_learners([reference.sum(), len(reference)])
        mean = total / rows
        (squares,) = self._over_learners([np.square(reference - mean).sum()])
        return (advantages - mean) / max(_MIN_STD, math.sqrt(squares / rows)), advantages + before

    def _learn(self, batch: Batch, minibatches: tuple[Tensor, ...], settings: UpdateSettings) -> UpdateOutcome:
        """Take one step for each minibatch, given by its rows."""
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        count = rows = skipped = 0
        for index in minibatches:
            for parameter in parameters:
                parameter.grad = None
            total, loss = self._loss(batch.rows(index), settings)
            total.backward()
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            total = self._average(gradients, total, settings.share) if self.distributed else total.detach()
            norm = _clip(gradients, settings.grad_clip, settings.grad_clip_by)
            count, rows = count + 1, rows + len(index)
            if math.isfinite(norm):
                optimizer.step()
            else:
                skipped += 1
                if not torch.isfinite(total):
                    break
        if skipped:
            _LOGGER.warning("%d of %d minibatches had a gradient that is not finite; none was applied.", skipped, count)
        return UpdateOutcome(
            loss=loss, total_loss=float(total), gradient_norm=norm, num_minibatches=count, num_rows=rows
        )

    def _loss(self, rows: Batch, settings: UpdateSettings) -> tuple[Tensor, MinibatchLoss]:
        """Return the loss of a minibatch, a mean over its rows, and what it is made of."""
        inputs, values = self._forward(rows.observations)
        new = self._distribution.normalised(inputs)
        parts = self._parts(rows, new, values, settings)
        losses = settings.vf_loss_coeff * parts.squared_error.clamp(0.0, settings.vf_clip_param) - parts.surrogate
        if settings.entropy_coeff:
            losses = losses - settings.entropy_coeff * self._distribution.entropy(new)
        if settings.kl_coeff is not None:
            losses = losses + settings.kl_coeff * self._distribution.kl(rows.old, new)
        return losses.mean(), parts

    def _parts(self, rows: Batch, new: Tensor, values: Tensor, settings: UpdateSettings) -> MinibatchLoss:
        ratio = torch.exp(self._distribution.log_prob(new, rows.actions) - rows.old_log_probs)
        clipped = ratio.clamp(1 - settings.clip_param, 1 + settings.clip_param)
        surrogate = torch.minimum(rows.advantages * ratio, rows.advantages * clipped)
        squared_error = (values - rows.targets).square()
        return MinibatchLoss(rows=rows, new=new, values=values, surrogate=surrogate, squared_error=squared_error)

    def _average(self, gradients: Sequence[Tensor], loss: Tensor, share: float) -> Tensor:
        """Average gradients over the learners in place, and return the averaged loss: all learners see the same."""
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.detach().reshape(1)]) * share
        torch.distributed.all_reduce(flat)
        *averaged, total = flat.split([*(gradient.numel() for gradient in gradients), 1])
        for gradient, average in zip(gradients, averaged, strict=True):
            gradient.copy_(average.view_as(gradient))
        mean: Tensor = total.squeeze(0)
        return mean

    def _over_learners(self, values: list[float]) -> list[float]:
        """Return sums over all learners, in double precision."""
        if not self.distributed:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(sums)
        totals: list[float] = sums.tolist()
        return totals

    def _agreed(self, count: int) -> int:
        """Return the largest count among the learners: each must take part in every reduction.

        RLlib hands the same number to all of them, but rounded down, and 0 stands for none.
        """
        if not self.distributed:
            return count
        largest = torch.tensor(count, device=self._device)
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        return int(largest)

    @torch.no_grad()
    def _statistics(self, loss: MinibatchLoss, settings: UpdateSettings) -> dict[str, float]:
        """Return RLlib's statistics of one minibatch, averaged over all learners."""
        # RLlib reports no divergence either where the loss has none.
        kl = loss.new.new_zeros(1) if settings.kl_coeff is None else self._distribution.kl(loss.rows.old, loss.new)
        means = [
            -loss.surrogate.mean(),
            loss.squared_error.clamp(0.0, settings.vf_clip_param).mean(),
            loss.squared_error.mean(),
            self._distribution.entropy(loss.new).mean(),
            kl.mean(),
        ]
        own = (torch.stack(means).double() * settings.share).tolist()
        policy, value, unclipped, entropy, mean_kl = self._over_learners(own)
        return {
            POLICY_LOSS_KEY: policy,
            VF_LOSS_KEY: value,
            LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: unclipped,
            LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: self._explained_variance(loss),
            ENTROPY_KEY: entropy,
            LEARNER_RESULTS_KL_KEY: mean_kl,
        }

    def _explained_variance(self, loss: MinibatchLoss) -> float:
        """Return max(-1, 1 - Var(target - value) / Var(target)) over the rows of all learners."""
        targets = loss.rows.targets.double()
        errors = targets - loss.values.double()
        rows, target_sum, error_sum = self._over_learners([len(targets), float(targets.sum()), float(errors.sum())])
        target_squares, error_squares = self._over_learners(
            [
                float((part - total / rows).square().sum())
                for part, total in ((targets, target_sum), (errors, error_sum))
            ]
        )
        if rows < 2:
            return math.nan
        # RLlib divides both by rows - 1 and adds its small number to the variance below.
        explained = 1 - error_squares / (target_squares + SMALL_NUMBER * (rows - 1))
        return -1.0 if explained < -1.0 else explained

    def _log_losses(self, outcome: UpdateOutcome, settings: UpdateSettings, *, log_gradients: bool) -> None:
        values = self._statistics(outcome.loss, settings)
        values |= {self.TOTAL_LOSS_KEY: outcome.total_loss, WEIGHTS_SEQ_NO: self._weights_seq_no}
        if log_gradients or (settings.grad_clip and settings.grad_clip_by == "global_norm"):
            values[f"gradients_{DEFAULT_OPTIMIZER}_global_norm"] = outcome.gradient_norm
        self.metrics.log_dict(values, key=DEFAULT_MODULE_ID, window=1)

    def _log_counts(self, outcome: UpdateOutcome, steps: int) -> None:
        log = self.metrics.log_value
        log(
            (DEFAULT_MODULE_ID, MODULE_TRAIN_BATCH_SIZE_MEAN), outcome.num_rows / outcome.num_minibatches, reduce="mean"
        )
        log((DEFAULT_MODULE_ID, NUM_MODULE_STEPS_TRAINED), outcome.num_rows, reduce="sum")
        for key, value in (
            ((DEFAULT_MODULE_ID, NUM_MODULE_STEPS_TRAINED_LIFETIME), outcome.num_rows),
            ((ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME), outcome.num_rows),
            ((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), steps),
        ):
            log(key, value, reduce="lifetime_sum", with_throughput=True)
        log((ALL_MODULES, NUM_MODULE_STEPS_TRAINED), outcome.num_rows, reduce="sum", with_throughput=True)
        log((ALL_MODULES, NUM_ENV_STEPS_TRAINED), steps, reduce="sum", with_throughput=True)
        self._metrics_all_modules_num_env_steps_trained.inc(value=steps)
        self._metrics_all_modules_num_module_steps_trained.inc(value=outcome.num_rows)


def _clip(gradients: list[Tensor], limit: float | None, by: str) -> float:
    """Clip gradients in place as RLlib's `clip_gradients` does, and return their global norm before."""
    norms = foreach.norms(gradients)
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    if not limit or not math.isfinite(norm):
        return norm
    if by == "global_norm":
        if norm + 1e-6 > limit:
            foreach.scale(gradients, limit / (norm + 1e-6))
    elif by == "norm":
        foreach.scale(gradients, [limit / max(own, limit) for own in torch.stack(norms).tolist()])
    else:
        foreach.clamp(gradients, limit)
    return norm
