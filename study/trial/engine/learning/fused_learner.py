"""The lean learner with its minibatches in one compiled program. Imports RLlib and torch, and JAX when one is built."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead
from torch import Tensor, nn

from study.errors import StudyError, TrialError
from study.jax_private import cpu_device, jax_obstacle, use_one_cpu_thread
from study.ray_private import option
from study.records.files import check_own
from study.trial.engine.learning.batches import Batch
from study.trial.engine.learning.distributions import Categoricals
from study.trial.engine.learning.encoders import NormalizedEncoder, StudyCatalog, normalizers_of
from study.trial.engine.learning.lean_learner import (
    LeanPPOLearner,
    UpdateOutcome,
    UpdateSettings,
    lean_obstacle,
)

_LOGGER = logging.getLogger(__name__)
_ACTIVATIONS = ("relu", "tanh", "elu", "silu", "swish", "sigmoid", "gelu", "linear")


def fused_obstacle(config: PPOConfig) -> str | None:
    """Return one line saying why `FusedPPOLearner` cannot serve this configuration, or None where it can.

    What of this process stands in the way is said by `jax_obstacle`.
    """
    model, spec = config.model_config, option(config, "rl_module_spec")
    default = config.get_default_rl_module_spec().module_class
    activations = {str(model.get(name, "linear")).lower() for name in ("fcnet_activation", "head_fcnet_activation")}
    obstacles = {
        "there are several learners": config.num_learners > 1,
        "the learner has a GPU": config.num_gpus_per_learner > 0,
        "observations are no vectors": len(config.observation_space.shape or ()) != 1,
        "the module is not RLlib's default one": spec is not None and spec.module_class not in (None, default),
        "the networks are of a catalog of one's own": spec is not None
        and spec.catalog_class not in (None, PPOCatalog, StudyCatalog),
        "the network has layer normalisation": bool(model.get("fcnet_use_layernorm")),
        f"an activation is none of {', '.join(_ACTIVATIONS)}": not activations <= set(_ACTIVATIONS),
        f"grad_clip_by is {config.grad_clip_by}": bool(config.grad_clip) and config.grad_clip_by != "global_norm",
        "the optimizer is not Adam": getattr(config, "optimizer", None) == "rmsprop",
    }
    return lean_obstacle(config) or next((reason for reason, holds in obstacles.items() if holds), None)


def fused_or_lean(config: PPOConfig, asked: str, fallbacks: list[str]) -> type[LeanPPOLearner]:
    """Return the fused learner where it can serve, else the lean one.

    Args:
        config: Complete, with its spaces; the lean learner can serve it.
        asked: `learner` of the space, `fused` or `auto`.
        fallbacks: Gets a line where the lean one stands in for what was asked.

    Raises:
        TrialError: The space asks for the fused one, and this process cannot have it: other trials of the study may.
    """
    without, not_here = fused_obstacle(config), jax_obstacle()
    if not_here and not without and asked == "fused":
        raise _refusal(not_here)
    # Of what the configuration alone decides all trials of a space say the same, so that `auto` keeps still.
    if (without and asked == "fused") or (not_here and not without):
        fallbacks.append(f"learner: the lean learner instead of the fused one: {without or not_here}")
    return LeanPPOLearner if without or not_here else FusedPPOLearner


def _refusal(obstacle: str) -> TrialError:
    where, rule = "learner", "`fused` must be able to serve"
    fix = "Remove what is named, or start a new study with --set learner=lean."
    return TrialError(where=where, rule=rule, got=obstacle, fix=fix, code="fused-cannot-serve")


class FusedPPOLearner(LeanPPOLearner):
    """The lean learner, whose minibatches are one compiled program: `fused_program`.

    It takes the same steps on the same rows in the same order, and differs in the last bits of the weights. Weights
    and Adam's state stay in the module and its optimizer, so that checkpoints are those of RLlib's learner.
    `fused_obstacle` says which configurations it can serve.
    """

    def build(self) -> None:
        """Build module and optimizer, and read the networks' layout.

        Raises:
            ValueError: The module is one that the lean learner cannot serve.
            TrialError: The configuration or the process is one that this learner cannot serve.
        """
        if self.distributed:  # before PyTorch waits for the other learners
            raise _refusal("there are several learners")
        super().build()
        known = self.config.copy(copy_frozen=False)
        known.environment(observation_space=self._network.observation_space, action_space=self._network.action_space)
        if obstacle := fused_obstacle(known) or jax_obstacle():
            raise _refusal(obstacle)
        use_one_cpu_thread()
        from study.trial.engine.learning import fused_program

        try:
            self.jax_platform = str(cpu_device().platform)
        except RuntimeError as error:
            raise _refusal(f"JAX has no CPU here: {error}") from error
        if (folder := _cache_folder()) is not None:
            fused_program.use_cache(folder)
        self._program = fused_program

    def _learn(self, batch: Batch, minibatches: tuple[Tensor, ...], settings: UpdateSettings) -> UpdateOutcome:
        """Take one step for each minibatch, given by its rows."""
        program = self._program
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        (group,) = optimizer.param_groups
        parameters: list[Tensor] = group["params"]
        index = torch.stack(minibatches).numpy().astype(np.int32)
        new, result = program.update(
            self._architecture(parameters, settings),
            _weights(program, optimizer, parameters),
            self._columns(batch),
            index,
            program.Coefficients(
                lr=float(group["lr"]),
                grad_clip=settings.grad_clip or float("inf"),
                clip_param=settings.clip_param,
                vf_clip_param=settings.vf_clip_param,
                vf_loss_coeff=settings.vf_loss_coeff,
                entropy_coeff=settings.entropy_coeff,
                kl_coeff=settings.kl_coeff or 0.0,
            ),
        )
        _put_back(new, optimizer, parameters)
        count, skipped = int(result.count), int(result.skipped)
        if skipped:
            _LOGGER.warning("%d of %d minibatches had a gradient that is not finite; none was applied.", skipped, count)
        last = batch.rows(torch.from_numpy(index[count - 1].astype(np.int64)))
        new_of_last, values = torch.from_numpy(np.array(result.new)).T, torch.from_numpy(np.array(result.values))
        return UpdateOutcome(
            loss=self._parts(last, new_of_last, values, settings),
            total_loss=float(result.loss),
            gradient_norm=float(result.norm),
            num_minibatches=count,
            num_rows=count * index.shape[1],
        )

    def _columns(self, batch: Batch) -> Any:
        observations = batch.observations
        normalizer = next(normalizers_of(self._network), None)
        with torch.no_grad():
            seen = observations if normalizer is None else normalizer(observations)
            rest = torch.stack([batch.old_log_probs, batch.advantages, batch.targets], dim=1)
        return self._program.Columns(
            *(part.float().numpy() for part in (seen, batch.actions, batch.old, rest)),
        )

    def _architecture(self, parameters: list[Tensor], settings: UpdateSettings) -> Any:
        """Return where each tensor stands in the networks; the optimizer's order of the parameters is the program's."""
        position = {id(parameter): index for index, parameter in enumerate(parameters)}
        encoder, network = self._network.encoder, self._network
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
            entropy=bool(settings.entropy_coeff),
            divergence=settings.kl_coeff is not None,
        )


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


def _weights(program: Any, optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> Any:
    states = [optimizer.state.get(parameter) or {} for parameter in parameters]

    def moments(name: str) -> tuple[Any, ...]:
        return tuple(
            state[name].numpy() if name in state else np.zeros(parameter.shape, np.float32)
            for state, parameter in zip(states, parameters, strict=True)
        )

    steps = np.float32(states[0].get("step", 0.0))
    values = tuple(parameter.detach().numpy() for parameter in parameters)
    return program.Weights(values, moments("exp_avg"), moments("exp_avg_sq"), steps)


@torch.no_grad()
def _put_back(new: Any, optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> None:
    for parameter, value, first, second in zip(parameters, new.parameters, new.first, new.second, strict=True):
        parameter.copy_(torch.from_numpy(np.array(value)))
        optimizer.state[parameter] = {
            "step": torch.tensor(float(new.steps)),
            "exp_avg": torch.from_numpy(np.array(first)),
            "exp_avg_sq": torch.from_numpy(np.array(second)),
        }
