"""Where the batched runner and the fused learner do the same as RLlib's: one check for a script and for `study.fast`.

Which options of a configuration they honour is listed here by name: an option that is in no list, and does not have
RLlib's default, leaves RLlib's own part where it is. Imports RLlib.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPO, APPOConfig
from ray.rllib.algorithms.impala import IMPALA, IMPALAConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from study.ray_private import option
from study.trial.engine import extensions
from study.trial.engine.envs.environments import are_trainable
from study.trial.engine.learning.fused_learner import fused_obstacle

_PLAIN: Mapping[type, type[AlgorithmConfig]] = {PPO: PPOConfig, APPO: APPOConfig, IMPALA: IMPALAConfig}
"""RLlib's algorithms that our runner samples for, with their configurations."""
_ABSENT = object()


# --- options ---------------------------------------------------------------------------------------------------------


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_OUR_PARTS = _names(
    "env_runner_cls _learner_class num_gpus_per_env_runner custom_resources_per_env_runner",
    "restart_failed_sub_environments",
)
"""Options that a study sets always, and that our parts do not honour."""

SET_BY_STUDY = _OUR_PARTS | _names(
    "algo_class seed log_level log_sys_usage num_env_runners num_envs_per_env_runner num_cpus_per_env_runner",
    "sample_timeout_s num_learners create_local_env_runner sync_filters_on_rollout_workers_timeout_s",
    "num_cpus_per_learner num_gpus_per_learner num_aggregator_actors_per_learner num_cpus_for_main_process",
    "placement_strategy restart_failed_env_runners ignore_env_runner_failures",
    "evaluation_interval evaluation_num_env_runners evaluation_parallel_to_training min_time_s_per_iteration",
    "min_train_timesteps_per_iteration min_sample_timesteps_per_iteration merge_env_runner_states",
    "broadcast_env_runner_states _train_batch_size_per_learner minibatch_size use_kl_loss rollout_fragment_length",
)
"""Options that a study may set whatever its space says: processes, seeds, evaluation, losses, and what sizes need."""

_ANYWHERE = (SET_BY_STUDY - _OUR_PARTS) | _names(
    "_is_frozen _is_atari _validate_config env env_config observation_space action_space num_gpus simple_optimizer",
    "train_batch_size disable_env_checking validate_env_runners_after_construction create_env_on_local_worker",
    "max_num_env_runner_restarts delay_between_env_runner_restarts_s env_runner_restore_timeout_s",
    "num_consecutive_env_runner_failures_tolerance env_runner_health_probe_timeout_s logger_creator logger_config",
    "keep_per_episode_custom_metrics log_gradients checkpoint_trainable_policies_only export_native_model_files",
    "custom_evaluation_function _model_config _rl_module_spec policies _prior_exploration_config explore",
    "gamma lambda_ lr grad_clip grad_clip_by num_epochs shuffle_batch_per_epoch clip_param vf_clip_param vf_loss_coeff",
    "entropy_coeff kl_coeff kl_target normalize_actions clip_actions add_default_connectors_to_module_to_env_pipeline",
)
"""Options that our runner and learner honour, that a study sets by itself, or that change neither sampling nor
learning, beside those that begin as `_OF_RLLIB_ALONE` says. What must have a certain value is asked for below."""
_OF_RLLIB_ALONE = re.compile("callbacks_|evaluation_|metrics_")
"""Callbacks are asked about below, and a study evaluates by itself."""


# --- the check -----------------------------------------------------------------------------------------------------


def runner_obstacle(config: AlgorithmConfig) -> str | None:
    """Return in one line why the batched runner cannot do the same as RLlib's; None when it can.

    `config` has the spaces of its environment, where that is of one agent, and not what a trial sets.
    """
    if obstacle := next(_of_any(config), None):
        return obstacle
    functions = [value for name, value in vars(config).items() if name.startswith("callbacks_on_")]
    if config.callbacks_class is not RLlibCallback or any(functions):  # even those of the algorithm may reach into it
        return "callbacks are the script's own"
    if config.explore is not True:
        return "explore is off"
    space = config.observation_space
    vector = isinstance(space, Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64)
    if not vector:
        return f"it takes vectors of floats, got {_name(type(space))} of shape {getattr(space, 'shape', None)}"
    if config.algo_class is PPO and config.rollout_fragment_length != "auto":
        return "rollout_fragment_length is set"
    if not are_trainable(config.action_space):
        return f"it takes Discrete, MultiDiscrete and flat Box actions, got {config.action_space}"
    return None if config.add_default_connectors_to_module_to_env_pipeline else "it needs RLlib's default connectors"


def learner_obstacle(config: AlgorithmConfig) -> str | None:
    """Return in one line why the fused learner cannot do the same as RLlib's; None when it can.

    The study sets the number of learners and their GPUs; the space's own are asked about where it is read.
    """
    if config.algo_class is not PPO:
        return f"it has the update of PPO, the algorithm is {_name(config.algo_class)}"
    local = config.copy(copy_frozen=False).learners(num_learners=0, num_gpus_per_learner=0)
    return next(_of_any(config), None) or fused_obstacle(local)


def _of_any(config: AlgorithmConfig) -> Iterator[str]:
    """Yield what neither part can serve."""
    plain = _PLAIN.get(config.algo_class)
    if plain is None:
        yield f"the algorithm is {_name(config.algo_class)}"
        return
    if type(config) is not plain:  # it may have a learner or a module of its own by default
        yield f"the configuration is of the class {type(config).__name__}"
    if config.is_multi_agent:
        yield "there are several agents"
    defaults = vars(plain())
    for name, value in sorted(vars(config).items()):
        if name == "learner_config_dict" and value.keys() <= {*extensions.OF_LEARNER, *extensions.OF_RUNNERS}:
            continue
        honoured = name in _ANYWHERE or _OF_RLLIB_ALONE.match(name)
        if not honoured and not same(value, defaults.get(name, _ABSENT)):
            yield f"{name.lstrip('_')} is not RLlib's default"
    yield from _of_module(config)


def _of_module(config: AlgorithmConfig) -> Iterator[str]:
    spec = option(config, "rl_module_spec")
    if spec is not None and not same(spec, RLModuleSpec()):
        yield "the module is the script's own"
        return
    model = dict(config.model_config)
    if model.get("use_lstm"):
        yield "the module is recurrent"
    defaults, names = type(config)().model_config, sorted(model.keys() - DefaultModelConfig.__dataclass_fields__.keys())
    if foreign := [name for name in names if not same(model[name], defaults.get(name, _ABSENT))]:
        yield f"model_config has {', '.join(foreign)}"


# --- values --------------------------------------------------------------------------------------------------------


def same(value: Any, other: Any) -> bool:
    """Return whether two values of any kind are equal; what cannot be compared is not."""
    if value is other:
        return True
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:  # noqa: BLE001 (values of any kind)
        return False


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
