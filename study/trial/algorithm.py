"""The only place where our names become RLlib calls: a setting -> the configuration that runs. Imports RLlib.

What `rllib:` in the space adds is applied last and may not touch what the schema, the timing or the records
rest on. The batched runner and the fused learner are put in where they can serve the result; where they cannot,
RLlib's own take their place, and `StudyConfig.fallbacks` says why. What only ours can do is then refused.
"""

import dataclasses
import difflib
import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env

from study.errors import Fault, SpaceError
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value, attribute
from study.space.rules import fused_alone
from study.space.sections import EnvironmentSpec, NetworkSpec
from study.space.spec import Execution, StudySpec
from study.trial.engine.envs.environments import EnvFactory
from study.trial.engine.envs.probing import Spaces
from study.trial.engine.learning.asynchronous_learner import CountingAPPOLearner, CountingIMPALALearner
from study.trial.engine.learning.encoders import CONV_NET, NATURE_FILTERS, NORMALIZE, StudyCatalog
from study.trial.engine.learning.fused_learner import FusedPPOLearner, learner_for
from study.trial.engine.learning.rewards import ScaledRewards
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner, batched_obstacle
from study.trial.engine.sampling.hosted_runner import HostedEnvRunner
from study.trial.engine.sampling.lanes import LaneLayout
from study.trial.engine.sampling.runner import StockEnvRunner
from study.trial.measured_algorithm import StudyConfig
from study.trial.measured_async import MeasuredAPPO, MeasuredIMPALA
from study.trial.measured_ppo import MeasuredPPO, StudyPPOConfig

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
"""Methods of `AlgorithmConfig` that `rllib:` may name."""

_WITHOUT = "Leave it out, or remove what it names."

_OURS = (
    "algo_class",
    "enable_env_runner_and_connector_v2",
    "enable_rl_module_and_learner",
    "env",
    "env_runner_cls",
    "_learner_class",
    "framework_str",
    "num_env_runners",
    "num_envs_per_env_runner",
    "rollout_fragment_length",
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
    "use_env_runner_state_server",
    "broadcast_interval",
    "vtrace",
)
"""Attributes of the config that `rllib:` may not change: resources, timing and records rest on them."""


def build_config(
    spec: StudySpec, *, setting: Mapping[str, Value], seed: int, spaces: Spaces, execution: Execution
) -> StudyConfig:
    """Return the complete, validated configuration of one trial.

    Args:
        spec: The space.
        setting: Every parameter of `study.space.parameters` with its value, the scale included.
        seed: Seed of the trial.
        spaces: Spaces of the environment, so that RLlib need not ask a runner for them.
        execution: Whether every runner is a process of its own.

    Raises:
        SpaceError: `rllib:` names something that does not exist, touches what is not its own, or RLlib
            refuses the values.
    """
    layout = lane_layout(spec, int(setting[SCALE]), int(setting["num_envs_per_env_runner"]), execution)
    config = _base_config(spec, setting, seed, spaces, layout, execution)
    ours = {name: getattr(config, name) for name in _OURS if hasattr(config, name)}
    for method, arguments in spec.rllib.items():
        _apply(config, method, arguments)
    changed = [name for name in ours if getattr(config, name) is not ours[name] and getattr(config, name) != ours[name]]
    if changed:
        got = ", ".join(f"{name}={getattr(config, name)}" for name in changed)
        rule = "must leave what the study itself sets"
        raise SpaceError.of("space", where="rllib", rule=rule, got=str(got), fix="Remove it.")
    _choose_runner(config, spec, execution)
    _choose_learner(config, spec)
    try:
        config.validate()
    except Exception as error:
        where, rule = "rllib" if spec.rllib else "parameters", "RLlib must accept the values"
        got, fix = f"{type(error).__name__}: {' '.join(str(error).split())}", "Change the value that it names."
        raise SpaceError.of("space", where=where, rule=rule, got=got, fix=fix) from error
    return config


def lane_layout(spec: StudySpec, num_env_runners: int, num_envs: int, execution: Execution) -> LaneLayout:
    """Return the lanes of a trial and the processes that step them."""
    emulating = min(spec.resources.emulation_processes, num_env_runners)
    return LaneLayout(
        num_env_runners=num_env_runners,
        num_envs_per_env_runner=num_envs,
        num_processes=num_env_runners if execution == "real" else emulating,
    )


def set_processes(
    config: AlgorithmConfig, spec: StudySpec, layout: LaneLayout, *, execution: Execution, seed: int
) -> None:
    """Set the lanes and processes of a trial, with their CPUs, the seed, and what happens if a process is lost."""
    resources = spec.resources
    config.lane_layout = layout
    config.env_runners(
        # RLlib counts processes; with none, its main process samples.
        num_env_runners=0 if execution == "emulated" and layout.num_processes == 1 else layout.num_processes,
        num_envs_per_env_runner=max(len(layout.lanes_of(process)) for process in range(layout.num_processes)),
        num_cpus_per_env_runner=resources.num_cpus_per_env_runner,
        num_gpus_per_env_runner=0,
        custom_resources_per_env_runner={},
        sample_timeout_s=resources.sample_timeout_s,
        create_local_env_runner=True,  # an evaluation of a script takes the states of the connectors from it
    )
    config.learners(
        num_learners=resources.num_learners,
        num_cpus_per_learner=resources.num_cpus_per_learner if resources.num_learners else "auto",
        num_gpus_per_learner=resources.num_gpus_per_learner,
        num_aggregator_actors_per_learner=0,
    )
    config.resources(
        num_cpus_for_main_process=resources.num_cpus_for_main_process, placement_strategy=resources.placement.upper()
    )
    # A restarted runner would be a different trial: the failure is the result.
    config.fault_tolerance(
        restart_failed_env_runners=False, ignore_env_runner_failures=False, restart_failed_sub_environments=False
    )
    # RLlib's thread that watches the machine holds up the end of a trial; the study measures by itself.
    config.debugging(seed=seed, log_level="ERROR", log_sys_usage=False)


def _choose_runner(config: StudyConfig, spec: StudySpec, execution: Execution) -> None:
    obstacle = batched_obstacle(config) if spec.runner == "batched" else None
    if obstacle and spec.environment.backend != "gymnasium":
        fix = "Set environment.backend: gymnasium, or remove what it names."
        where, rule = "environment.backend", f"envpool needs the batched runner, and {obstacle}"
        raise SpaceError.of("space", where=where, rule=rule, fix=fix)
    if obstacle and spec.environment.normalize_rewards:
        where, rule = "environment.normalize_rewards", f"needs the batched runner, and {obstacle}"
        raise SpaceError.of("space", where=where, rule=rule, fix=_WITHOUT)
    if obstacle:
        config.fallbacks.append(f"runner: RLlib's stock runner instead of the batched one: {obstacle}")
    set_runner(config, BatchedEnvRunner if spec.runner == "batched" and not obstacle else StockEnvRunner, execution)


def set_runner(config: AlgorithmConfig, runner: type, execution: Execution) -> None:
    """Set the class that samples; where runners are emulated, one of RLlib's is hosted, many in a process."""
    hosted = execution == "emulated" and runner is not BatchedEnvRunner
    config.hosted_runner_cls = runner if hosted else None
    config.env_runner_cls = HostedEnvRunner if hosted else runner


def _choose_learner(config: StudyConfig, spec: StudySpec) -> None:
    config.standardization = "none"
    if not isinstance(config, StudyPPOConfig):
        config.learners(learner_class=CountingAPPOLearner if spec.algorithm == "APPO" else CountingIMPALALearner)
        return
    learner, obstacle = learner_for(config, spec.learner)
    if obstacle:
        faults = [
            Fault(where=place, rule=f"{what}needs the fused learner, and {obstacle}", fix=_WITHOUT)
            for place, what in fused_alone(spec)
        ]
        if faults:
            raise SpaceError("space", faults)
        config.fallbacks.append(f"learner: RLlib's own learner instead of the fused one: {obstacle}")
    if learner is FusedPPOLearner:
        config.standardization = spec.standardization_in_use
    else:
        config.standardization = "rllib"
        if spec.environment.normalize_rewards:
            config.learners(learner_connector=ScaledRewards)
    config.learners(learner_class=learner)


def _base_config(
    spec: StudySpec,
    setting: Mapping[str, Value],
    seed: int,
    spaces: Spaces,
    layout: LaneLayout,
    execution: Execution,
) -> StudyConfig:
    config = _new_config(spec, setting)
    config.env_id = spec.environment.id
    config.environment(
        env=_registered(spec.environment, waits=execution == "real"),
        observation_space=spaces.observation_space,
        action_space=spaces.action_space,
        disable_env_checking=True,
    )
    set_processes(config, spec, layout, execution=execution, seed=seed)
    config.env_runners(
        gym_env_vectorize_mode="sync",
        rollout_fragment_length=int(setting[FRAGMENT]) if FRAGMENT in setting else "auto",
        # Our connectors hold no state: merging and broadcasting it would be two more calls an iteration. What an
        # asynchronous algorithm merges is what its runners sent, which is none.
        merge_env_runner_states=spec.traits.asynchronous,
        broadcast_env_runner_states=False,
    )
    config.training(
        # RLlib's sizes are those of one learner, ours those of the trial.
        train_batch_size_per_learner=int(setting["train_batch_size"]) // max(spec.resources.num_learners, 1),
        grad_clip_by="global_norm",
        **{attribute(name): setting[name] for name, each in PARAMETERS.items() if each.is_argument and name in setting},
    )
    config.training(lr=learning_rate(spec, setting))
    config.normalize_rewards = spec.environment.normalize_rewards
    network = _network(spec.model, spaces)
    if spec.environment.normalize_observations:
        network[NORMALIZE] = True
    config.rl_module(model_config=network)
    if network.keys() & {NORMALIZE, CONV_NET}:
        module_class = config.get_default_rl_module_spec().module_class
        # Here again: RLlib merges its defaults into the one of the configuration only.
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, catalog_class=StudyCatalog))
    return config


def learning_rate(spec: StudySpec, setting: Mapping[str, Value]) -> Value | list[list[Value]]:
    """Return the learning rate, or RLlib's schedule of (env steps, learning rate)."""
    fraction = setting.get(END_FRACTION, 1.0)
    if fraction == 1:
        return setting["lr"]
    assert spec.budget.env_steps is not None  # a rule of the space
    return [[0, setting["lr"]], [spec.budget.env_steps, setting["lr"] * fraction]]


def _new_config(spec: StudySpec, setting: Mapping[str, Value]) -> StudyConfig:
    """Return the algorithm's configuration with what only this algorithm has."""
    config: StudyConfig
    if spec.traits.asynchronous:
        config = (MeasuredAPPO if spec.algorithm == "APPO" else MeasuredIMPALA).get_default_config()
        if spec.algorithm == "APPO":
            config.training(use_kl_loss=setting["kl_coeff"] > 0)
        # One iteration is one step, which ends by itself: see `study.trial.measured_async`.
        config.reporting(min_time_s_per_iteration=None)
        return config
    config = MeasuredPPO.get_default_config()
    if spec.algorithm == "A2C":
        config.optimizer = "rmsprop"
        # RLlib's own runner may step more than was asked, which must not become a second update. In the one update no
        # ratio differs from 1, and squared errors are not clipped.
        config.training(minibatch_size=None, clip_param=1.0, vf_clip_param=math.inf, kl_target=1.0)
    else:
        config.training(minibatch_size=int(setting["minibatch_size"]) // max(spec.resources.num_learners, 1))
    return config


def _network(spec: NetworkSpec, spaces: Spaces) -> dict[str, Any]:
    hiddens, activation = list(spec.fcnet_hiddens), spec.fcnet_activation
    if len(spaces.observation_space.shape) == 1:
        flat = DefaultModelConfig(
            fcnet_hiddens=hiddens, fcnet_activation=activation, vf_share_layers=spec.vf_share_layers
        )
        return dataclasses.asdict(flat)
    # RLlib ignores `fcnet_hiddens` behind convolutions; the layers of the heads are what a reader means by it.
    images = DefaultModelConfig(
        conv_filters=[list(each) for each in NATURE_FILTERS] if spec.conv_net == "nature" else spec.conv_filters,
        head_fcnet_hiddens=hiddens,
        head_fcnet_activation=activation,
        vf_share_layers=spec.vf_share_layers,
    )
    named = {CONV_NET: spec.conv_net} if spec.conv_net == "impala" else {}
    return {**dataclasses.asdict(images), **named}


def _registered(spec: EnvironmentSpec, *, waits: bool) -> str:
    """Make the environment known to Ray under a name of its own, and return the name."""
    content = json.dumps([spec.model_dump(mode="json"), waits], sort_keys=True)
    name = f"study-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    register_env(name, EnvFactory(spec, waits=waits))
    return name


def _apply(config: StudyConfig, method: str, arguments: Mapping[str, Any]) -> None:
    place, kind = f"rllib.{method}", _rllib_class(config).__name__
    if method not in _METHODS:
        rule, fix = f"must be a method of {kind}", _nearest(method, _METHODS)
        raise SpaceError.of("space", where=place, rule=rule, got=f"'{method}'", fix=fix)
    known = _parameters_of(config, method)
    for name in arguments:
        if name not in known:
            rule, fix = f"unknown argument of {kind}.{method}", _nearest(name, known)
            raise SpaceError.of("space", where=f"{place}.{name}", rule=rule, fix=fix)
    try:
        getattr(config, method)(**arguments)
    except Exception as error:
        rule = f"RLlib must accept {dict(arguments)}"
        got = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise SpaceError.of("space", where=place, rule=rule, got=got, fix="Change the value.") from error


def _parameters_of(config: StudyConfig, method: str) -> tuple[str, ...]:
    """Return the argument names of a config method, those that it hands to its base classes included."""
    kinds = (kind for kind in type(config).__mro__ if issubclass(kind, AlgorithmConfig))
    signatures = [inspect.signature(getattr(kind, method)) for kind in kinds]
    names = {name for signature in signatures for name in signature.parameters}
    return tuple(sorted(names - {"self", "kwargs"}))


def _rllib_class(config: StudyConfig) -> type:
    """Return RLlib's own class of a configuration."""
    return next(kind for kind in type(config).__mro__ if kind.__module__.startswith("ray.rllib.algorithms."))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Use one of: {', '.join(known)}."
