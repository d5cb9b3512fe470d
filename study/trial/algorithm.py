"""The only place where our names become RLlib calls: a setting -> the PPOConfig that runs. Imports RLlib.

What `rllib:` in the space adds is applied last and may not touch what the schema, the timing or the records
rest on.
"""

import difflib
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from study.errors import Fault, SpaceError
from study.parameters import SCALE, Value
from study.spec import EnvironmentSpec, StudySpec
from study.trial.environments import Spaces, env_factory
from study.trial.measured_ppo import MeasuredPPO
from study.trial.runner import MeasuringEnvRunner

_METHODS = (
    "callbacks",
    "debugging",
    "env_runners",
    "environment",
    "experimental",
    "fault_tolerance",
    "framework",
    "learners",
    "python_environment",
    "reporting",
    "resources",
    "rl_module",
    "training",
)
"""Methods of `PPOConfig` that `rllib:` may name."""

_OURS = (
    "algo_class",
    "enable_env_runner_and_connector_v2",
    "enable_rl_module_and_learner",
    "env",
    "env_runner_cls",
    "num_env_runners",
    "num_learners",
    "num_aggregator_actors_per_learner",
    "create_local_env_runner",
    "create_env_on_local_worker",
    "restart_failed_env_runners",
    "ignore_env_runner_failures",
    "restart_failed_sub_environments",
    "merge_env_runner_states",
    "broadcast_env_runner_states",
    "batch_mode",
    "count_steps_by",
    "min_time_s_per_iteration",
    "min_train_timesteps_per_iteration",
    "min_sample_timesteps_per_iteration",
)
"""Attributes of the config that `rllib:` may not change: resources, timing and records rest on them."""


def build_config(spec: StudySpec, *, setting: Mapping[str, Value], seed: int, spaces: Spaces) -> PPOConfig:
    """Return the complete, validated configuration of one trial.

    Args:
        spec: The space.
        setting: Every parameter of `study.parameters` with its value, the scale included.
        seed: Seed of the trial.
        spaces: Spaces of the environment, so that RLlib need not ask a runner for them.

    Raises:
        SpaceError: `rllib:` names something that does not exist, touches what is not its own, or RLlib
            refuses the values.
    """
    config = _base_config(spec, setting, seed, spaces)
    ours = {name: getattr(config, name) for name in _OURS}
    for method, arguments in spec.rllib.items():
        _apply(config, method, arguments)
    changed = [
        name for name in _OURS if getattr(config, name) is not ours[name] and getattr(config, name) != ours[name]
    ]
    if changed:
        got = ", ".join(f"{name}={getattr(config, name)}" for name in changed)
        law = f"must leave what the study itself sets, got {got}."
        raise _error("rllib", law, "Remove it.")
    try:
        config.validate()
    except Exception as error:
        law = f"RLlib must accept the values, got {type(error).__name__}: {' '.join(str(error).split())}"
        raise _error("rllib" if spec.rllib else "parameters", law, "Change the value that it names.") from error
    return config


def _base_config(spec: StudySpec, setting: Mapping[str, Value], seed: int, spaces: Spaces) -> PPOConfig:
    resources = spec.resources
    config = PPOConfig(algo_class=MeasuredPPO)
    config.environment(
        env=_registered(spec.environment),
        observation_space=spaces.observation_space,
        action_space=spaces.action_space,
        disable_env_checking=True,
    )
    config.env_runners(
        env_runner_cls=MeasuringEnvRunner,
        num_env_runners=int(setting[SCALE]),
        num_envs_per_env_runner=int(setting["num_envs_per_env_runner"]),
        gym_env_vectorize_mode="sync",
        num_cpus_per_env_runner=resources.num_cpus_per_env_runner,
        rollout_fragment_length="auto",
        sample_timeout_s=resources.sample_timeout_s,
        # Our connectors hold no state: merging and broadcasting it would be two more calls an iteration.
        merge_env_runner_states=False,
        broadcast_env_runner_states=False,
    )
    config.training(
        train_batch_size_per_learner=int(setting["train_batch_size"]),
        minibatch_size=int(setting["minibatch_size"]),
        num_epochs=int(setting["num_epochs"]),
        lr=setting["lr"],
        gamma=setting["gamma"],
        lambda_=setting["lambda"],
        clip_param=setting["clip_param"],
        entropy_coeff=setting["entropy_coeff"],
        grad_clip=setting["grad_clip"],
        grad_clip_by="global_norm",
        vf_clip_param=setting["vf_clip_param"],
        vf_loss_coeff=setting["vf_loss_coeff"],
        kl_coeff=setting["kl_coeff"],
        kl_target=setting["kl_target"],
    )
    config.rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=list(spec.model.fcnet_hiddens),
            fcnet_activation=spec.model.fcnet_activation,
            vf_share_layers=spec.model.vf_share_layers,
        )
    )
    config.learners(num_learners=0)
    config.resources(
        num_cpus_for_main_process=resources.num_cpus_for_main_process,
        placement_strategy=resources.placement.upper(),
    )
    # A restarted runner would be a different trial: the failure is the result.
    config.fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=False)
    config.debugging(seed=seed, log_level="ERROR")
    return config


def _registered(spec: EnvironmentSpec) -> str:
    """Make the environment known to Ray under a name of its own, and return the name."""
    content = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    name = f"study-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    register_env(name, env_factory(spec))
    return name


def _apply(config: PPOConfig, method: str, arguments: Mapping[str, Any]) -> None:
    place = f"rllib.{method}"
    if method not in _METHODS:
        raise _error(place, f"must be a method of PPOConfig, got '{method}'.", _nearest(method, _METHODS))
    known = _parameters_of(method)
    for name in arguments:
        if name not in known:
            raise _error(f"{place}.{name}", f"unknown argument of PPOConfig.{method}.", _nearest(name, known))
    try:
        getattr(config, method)(**arguments)
    except Exception as error:
        law = f"RLlib must accept {dict(arguments)}, got {type(error).__name__}: {' '.join(str(error).split())}"
        raise _error(place, law, "Change the value.") from error


def _parameters_of(method: str) -> tuple[str, ...]:
    """Return the argument names of a config method, those that it hands to its base class included."""
    signatures = [inspect.signature(getattr(kind, method)) for kind in (PPOConfig, AlgorithmConfig)]
    names = {name for signature in signatures for name in signature.parameters}
    return tuple(sorted(names - {"self", "kwargs"}))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Use one of: {', '.join(known)}."


def _error(place: str, law: str, fix: str) -> SpaceError:
    return SpaceError("space", [Fault(place=place, law=law, fix=fix)])
