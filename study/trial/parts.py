"""Which runner samples and which learner learns, and why: one check for a space, a script and `study.fast`.

The batched runner and the fused learner serve where they do the same as RLlib's. Which options of a configuration they
honour is listed here by name: an option that is in no list, and does not have RLlib's default, leaves RLlib's own part
where it is. Imports RLlib.
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
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from study.jax_private import jax_obstacle
from study.ray_private import maker_of, option
from study.trial.engine import extensions
from study.trial.engine.envs.environments import EnvFactory
from study.trial.engine.learning.asynchronous_learner import CountingLearner
from study.trial.engine.learning.fused_learner import FusedPPOLearner, fused_obstacle, refusal
from study.trial.engine.sampling.acting import action_rule
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.runner import HostedEnvRunner, StockEnvRunner, StockMultiAgentEnvRunner

_PLAIN: Mapping[type, type[AlgorithmConfig]] = {PPO: PPOConfig, APPO: APPOConfig, IMPALA: IMPALAConfig}
"""RLlib's algorithms that our runner samples for, with their configurations."""
_ABSENT = object()


def names(*lines: str) -> frozenset[str]:
    """Return the words of some lines."""
    return frozenset(name for line in lines for name in line.split())


ADDED = names("env_id script lane_layout hosted_runner_cls standardization optimizer fallbacks differences")
"""Attributes that a study adds to a configuration; see `study.trial.configuration.apply`."""

_ANYWHERE = names(
    "_is_frozen _is_atari _validate_config algo_class env env_config observation_space action_space seed",
    "num_env_runners num_envs_per_env_runner num_learners num_cpus_per_env_runner num_cpus_per_learner",
    "num_gpus_per_learner num_cpus_for_main_process num_gpus num_aggregator_actors_per_learner",
    "simple_optimizer placement_strategy train_batch_size _train_batch_size_per_learner sample_timeout_s log_level",
    "log_sys_usage logger_creator logger_config disable_env_checking validate_env_runners_after_construction",
    "create_local_env_runner create_env_on_local_worker restart_failed_env_runners ignore_env_runner_failures",
    "max_num_env_runner_restarts delay_between_env_runner_restarts_s",
    "num_consecutive_env_runner_failures_tolerance env_runner_health_probe_timeout_s",
    "env_runner_restore_timeout_s min_time_s_per_iteration min_train_timesteps_per_iteration",
    "min_sample_timesteps_per_iteration metrics_num_episodes_for_smoothing",
    "metrics_episode_collection_timeout_s keep_per_episode_custom_metrics log_gradients",
    "checkpoint_trainable_policies_only export_native_model_files callbacks_class callbacks_on_algorithm_init",
    "callbacks_on_train_result callbacks_on_checkpoint_loaded callbacks_on_evaluate_start",
    "callbacks_on_evaluate_end callbacks_on_environment_created callbacks_on_episode_created",
    "callbacks_on_episode_start callbacks_on_episode_step callbacks_on_episode_end callbacks_on_sample_end",
    "evaluation_interval evaluation_duration evaluation_duration_unit evaluation_num_env_runners",
    "evaluation_config evaluation_parallel_to_training evaluation_sample_timeout_s",
    "evaluation_force_reset_envs_before_iteration evaluation_auto_duration_max_env_steps_per_sample",
    "evaluation_auto_duration_min_env_steps_per_sample custom_evaluation_function _model_config",
    "_rl_module_spec policies _prior_exploration_config explore gamma lambda_ lr grad_clip grad_clip_by",
    "num_epochs minibatch_size shuffle_batch_per_epoch clip_param vf_clip_param vf_loss_coeff entropy_coeff",
    "kl_coeff kl_target use_kl_loss normalize_actions clip_actions rollout_fragment_length",
    "merge_env_runner_states broadcast_env_runner_states sync_filters_on_rollout_workers_timeout_s",
    "add_default_connectors_to_module_to_env_pipeline",
)
"""Options that our runner and learner honour, that a study sets by itself, or that change neither sampling nor
learning. What must have a certain value is asked for below."""

_OF_A_LEARNER = names(
    "use_critic use_gae torch_compile_learner torch_compile_learner_what_to_compile torch_compile_learner_dynamo_mode",
    "torch_compile_learner_dynamo_backend torch_skip_nan_gradients _torch_grad_scaler_class",
    "_torch_lr_scheduler_classes add_default_connectors_to_learner_pipeline",
)
"""Options that RLlib's own learners alone honour, which take what our runner samples."""

_OF_V_TRACE = names(
    "vtrace vtrace_clip_rho_threshold vtrace_clip_pg_rho_threshold circular_buffer_num_batches",
    "circular_buffer_iterations_per_batch target_network_update_freq broadcast_interval tau",
    "learner_queue_size timeout_s_sampler_manager timeout_s_aggregator_manager target_worker_clipping",
    "use_env_runner_state_server",
)
"""Options of APPO and IMPALA that concern their learner alone."""

_OF_NETWORKS = frozenset(DefaultModelConfig.__dataclass_fields__)


# --- the check -----------------------------------------------------------------------------------------------------


def runner_obstacle(config: AlgorithmConfig) -> str | None:
    """Return in one line why the batched runner cannot do the same as RLlib's; None when it can.

    Args:
        config: With the spaces of its environment, where it has one agent; without what a trial sets.
    """
    if obstacle := next(_of_any(config, _OF_A_LEARNER), None):
        return obstacle
    functions = [value for name, value in vars(config).items() if name.startswith("callbacks_on_")]
    if config.callbacks_class is not RLlibCallback or any(functions):  # even those of the algorithm may reach into it
        return "callbacks are the script's own"
    if config.explore is not True:
        return "explore is off"
    space = config.observation_space
    vector = isinstance(space, Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64)
    if not vector and not makes_its_own(config):
        return f"it takes vectors of floats, got {_short(space)}"
    if config.algo_class is PPO and config.rollout_fragment_length != "auto":
        return "rollout_fragment_length is set"
    try:
        action_rule(config.action_space)
    except ValueError:
        return f"it takes Discrete, MultiDiscrete and flat Box actions, got {config.action_space}"
    return None if config.add_default_connectors_to_module_to_env_pipeline else "it needs RLlib's default connectors"


def learner_obstacle(config: AlgorithmConfig) -> str | None:
    """Return in one line why the fused learner cannot do the same as RLlib's; None when it can.

    The study sets the number of learners and their GPUs; the space's own are asked about where it is read.

    Args:
        config: With the spaces of its environment, where it has one agent.
    """
    if config.algo_class is not PPO:
        return f"it has the update of PPO, the algorithm is {_name(config.algo_class)}"
    local = config.copy(copy_frozen=False).learners(num_learners=0, num_gpus_per_learner=0)
    return next(_of_any(config), None) or fused_obstacle(local)


def makes_its_own(config: AlgorithmConfig) -> bool:
    """Return whether the environment is of this project: float32 observations, as its runner and evaluation take them.

    Known where the environment is registered.
    """
    return isinstance(config.env, str) and isinstance(maker_of(config.env), EnvFactory)


def _of_any(config: AlgorithmConfig, others: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what neither our runner nor our learner can serve, or but for `others` one of them."""
    plain = _PLAIN.get(config.algo_class)
    if plain is None:
        yield f"the algorithm is {_name(config.algo_class)}"
        return
    if type(config) is not plain:  # it may have a learner or a module of its own by default
        yield f"the configuration is of the class {type(config).__name__}"
    if config.is_multi_agent:
        yield "there are several agents"
    known = _ANYWHERE | others | ADDED | (_OF_V_TRACE if plain is not PPOConfig else frozenset())
    defaults = vars(plain())
    for name, value in sorted(vars(config).items()):
        if name == "learner_config_dict" and value.keys() <= {*extensions.OF_LEARNER, *extensions.OF_RUNNERS}:
            continue
        if name not in known and not same(value, defaults.get(name, _ABSENT)):
            yield f"{name.lstrip('_')} is not RLlib's default"
    yield from _of_module(config)


def _of_module(config: AlgorithmConfig) -> Iterator[str]:
    spec, default = option(config, "rl_module_spec"), config.get_default_rl_module_spec()
    own = spec is not None and (
        type(spec) is not RLModuleSpec
        or spec.module_class not in (None, default.module_class)
        or spec.catalog_class not in (None, default.catalog_class)
        or getattr(spec, "load_state_path", None) is not None
        or not (spec.model_config is spec.observation_space is spec.action_space is None)
        or spec.inference_only
        or spec.learner_only
    )
    try:
        model = {"own": True} if own else dict(config.model_config)
    except Exception:  # noqa: BLE001 (whatever a person's specification is)
        own = True
    if own:
        yield "the module is the script's own"
        return
    if model.get("use_lstm"):
        yield "the module is recurrent"
    defaults = type(config)().model_config
    foreign = [
        name for name in sorted(model.keys() - _OF_NETWORKS) if not same(model[name], defaults.get(name, _ABSENT))
    ]
    if foreign:
        yield f"model_config has {', '.join(foreign)}"


# --- the choice ----------------------------------------------------------------------------------------------------


def set_runner(config: AlgorithmConfig, obstacle: str, *, asked: str, hosted: bool) -> bool:
    """Set the class that samples; return whether it is the batched one, and note why not where the space asks for it.

    Args:
        config: Of a trial.
        obstacle: Of `runner_obstacle`, or empty.
        asked: `runner` of the space.
        hosted: Whether many of RLlib's runners share a process, as where runners are emulated.
    """
    config.hosted_runner_cls = None
    if asked == "batched" and not obstacle:
        config.env_runner_cls = BatchedEnvRunner
        return True
    if asked == "batched":
        config.fallbacks.append(f"runner: RLlib's own instead of the batched one: {obstacle}")
    own: type = StockMultiAgentEnvRunner if config.is_multi_agent else StockEnvRunner
    given = config.env_runner_cls
    if given is not None and given not in (SingleAgentEnvRunner, MultiAgentEnvRunner):
        # An evaluation takes the first class that is not of this package: the name of the module is not left to Python.
        own = type(f"Measured{given.__name__}", (own, given), {"__module__": __name__})
    config.env_runner_cls, config.hosted_runner_cls = (HostedEnvRunner, own) if hosted else (own, None)
    return False


def set_learner(config: AlgorithmConfig, obstacle: str, *, asked: str) -> str | None:
    """Set the class that learns; note why it is not the fused one where the space asks for that.

    Args:
        config: Complete, with the spaces of its environment.
        obstacle: Of `learner_obstacle` for the configuration without what the study sets, or empty.
        asked: `learner` of the space.

    Returns:
        None where it is the fused one, else why not; empty where the space asks for RLlib's.

    Raises:
        TrialError: The space asks for the fused one, and this process cannot have it.
    """
    if issubclass(config.algo_class, IMPALA):
        # Where the training step is RLlib's own, the learner's thread is watched.
        known = config.algo_class.training_step in (IMPALA.training_step, APPO.training_step)
        if known and not issubclass(config.learner_class, CountingLearner):
            own = config.learner_class
            config.learners(learner_class=type(f"Counting{own.__name__}", (CountingLearner, own), {}))
        return ""
    if config.algo_class is not PPO or asked == "rllib":
        return ""
    obstacle = obstacle or fused_obstacle(config) or ""
    not_here = "" if obstacle else jax_obstacle() or ""
    if not_here and asked == "fused":
        raise refusal(not_here)
    if reason := obstacle or not_here:
        config.fallbacks.append(f"learner: RLlib's own learner instead of the fused one: {reason}")
        return reason
    config.learners(learner_class=FusedPPOLearner)
    return None


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


def _short(space: Any) -> str:
    return f"Box of shape {space.shape}, {space.dtype}" if isinstance(space, Box) else space_text(space)[:80]


def space_text(space: Any) -> str:
    """Return the text of a space on one line, without an address in memory; empty where there is none."""
    return "" if space is None else re.sub(" at 0x[0-9a-f]+", "", " ".join(str(space).split()))
