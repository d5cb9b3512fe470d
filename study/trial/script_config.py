"""A person's own configuration as a trial runs it: the script's, with what the study sets. Imports RLlib.

The configuration travels as bytes. The script's own module goes by value: it need not be importable where a trial
runs; an environment registered under a name lives in the registry of one cluster, so its creator travels too.
"""

import types
from collections.abc import Mapping
from typing import Any

from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPO
from ray.rllib.algorithms.impala import IMPALA
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.tune.registry import register_env

from study.errors import TrialError
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value, attribute
from study.space.spec import Execution, StudySpec
from study.trial.algorithm import lane_layout, learning_rate, set_processes, set_runner
from study.trial.engine.learning.asynchronous_learner import CountingLearner
from study.trial.engine.learning.fused_learner import FusedPPOLearner, learner_for
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.runner import AsRLlib, StockEnvRunner, StockMultiAgentEnvRunner
from study.trial.measured_async import MeasuredAsynchronousAlgorithm
from study.trial.measured_ppo import MeasuredPPO
from study.trial.measured_whole import MeasuredWhole
from study.trial.script_engine import names, same
from study.trial.script_environment import make_environment

_NEVER = 10**9
"""Iterations between evaluations of RLlib's own: more than a trial has."""

# --- as bytes ------------------------------------------------------------------------------------------------------


def pickled(
    config: AlgorithmConfig,
    *,
    environments: Mapping[str, Any] | None = None,
    by_value: types.ModuleType | None = None,
) -> bytes:
    """Return a configuration as bytes.

    Args:
        config: As the script made it; it need not be validated.
        environments: Name -> function of an `EnvContext`, of every environment that the script has registered.
        by_value: The script's own module, whose classes and functions travel with the configuration.

    Raises:
        Exception: What cannot be pickled, as cloudpickle says it.
    """
    if by_value is not None:
        cloudpickle.register_pickle_by_value(by_value)
    try:
        content: bytes = cloudpickle.dumps({"config": config, "environments": dict(environments or {})})
        return content
    finally:
        if by_value is not None:
            cloudpickle.unregister_pickle_by_value(by_value)


def unpickled(content: bytes) -> AlgorithmConfig:
    """Return a configuration, and make its environments known to Ray."""
    parts = cloudpickle.loads(content)
    for name, creator in parts["environments"].items():
        register_env(name, creator)
    config: AlgorithmConfig = parts["config"]
    return config


# --- the configuration of a trial ----------------------------------------------------------------------------------


def adopted_config(
    spec: StudySpec, base: AlgorithmConfig, *, setting: Mapping[str, Value], seed: int, execution: Execution
) -> AlgorithmConfig:
    """Return the script's configuration with what the study sets.

    It has the attributes of `StudyConfig` too.

    Args:
        spec: The space.
        base: The script's configuration, with the spaces of its environment where it has one agent; not changed.
        setting: Every parameter that the script or the space gives a value to, the scale included.
        seed: Seed of the trial.
        execution: Whether every runner is a process of its own.

    Raises:
        TrialError: It would differ from the script in more.
    """
    assert spec.script is not None
    config = base.copy(copy_frozen=False)
    script = dict(vars(config))  # of the copy: not everything that a script makes equals its copy
    config.env_id, config.normalize_rewards = spec.environment.id, False
    config.script, config.fallbacks = spec.script.source.file, []
    runner = _runner(spec, config)
    layout = lane_layout(spec, int(setting[SCALE]), int(setting["num_envs_per_env_runner"]), execution)
    set_processes(config, spec, layout, execution=execution, seed=seed)
    _set_sampling(config, spec, batched=runner is BatchedEnvRunner)
    _set_parameters(config, spec, setting)
    set_runner(config, runner, execution)
    learner = _learner(spec, config)
    if learner is not None:
        config.learners(learner_class=learner)
    config.algo_class = _measured(config.algo_class, type(config))
    config.standardization = spec.standardization_in_use if learner is FusedPPOLearner else "rllib"
    config.differs_from_script = differences_to_script(script, config)
    _check_difference(config.differs_from_script, spec, setting)
    config.validate()
    return config


def _runner(spec: StudySpec, config: AlgorithmConfig) -> type:
    """Return the runner; note why it is RLlib's own, or the script's, where the space asks for ours."""
    assert spec.script is not None
    missing = spec.script.runner_obstacle
    if missing and spec.runner == "batched":
        config.fallbacks.append(f"runner: RLlib's own instead of the batched one: {missing}")
    return _own_runner(config) if missing or spec.runner == "stock" else BatchedEnvRunner


def _learner(spec: StudySpec, config: AlgorithmConfig) -> type | None:
    """Return the learner where it is not the script's; note why it is another than the space asks for.

    It depends on all that the study sets, which `config` must have.
    """
    assert spec.script is not None
    if config.algo_class is PPO:
        if spec.learner == "rllib":
            return None
        missing = spec.script.learner_obstacle or learner_for(_with_spaces(config), spec.learner)[1]
        if missing:
            config.fallbacks.append(f"learner: RLlib's own instead of the fused one: {missing}")
        return None if missing else FusedPPOLearner
    if issubclass(_algorithm(config.algo_class), MeasuredAsynchronousAlgorithm):
        return type(f"Counting{config.learner_class.__name__}", (CountingLearner, config.learner_class), {})
    return None


def _with_spaces(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a configuration with the spaces of its environment."""
    if config.observation_space is not None:
        return config
    known, environment = config.copy(copy_frozen=False), make_environment(config)
    known.environment(observation_space=environment.observation_space, action_space=environment.action_space)
    environment.close()
    return known


def _own_runner(config: AlgorithmConfig) -> type:
    """Return RLlib's runner, or the script's own, that measures itself."""
    given = config.env_runner_cls
    plain: type[AsRLlib] = StockMultiAgentEnvRunner if config.is_multi_agent else StockEnvRunner
    if given is None or given in (SingleAgentEnvRunner, MultiAgentEnvRunner):
        return plain
    # An evaluation takes the first class that is not of this package: the name of the module is not left to Python.
    return type(f"Measured{given.__name__}", (plain, given), {"__module__": __name__})


def _algorithm(algo_class: type) -> type:
    """Return the class that measures an algorithm: by its phases where its training step is the one that is known."""
    step = algo_class.training_step  # type: ignore[attr-defined]
    if issubclass(algo_class, (APPO, IMPALA)):
        return (
            MeasuredAsynchronousAlgorithm
            if step is IMPALA.training_step or step is APPO.training_step
            else MeasuredWhole
        )
    return MeasuredPPO if issubclass(algo_class, PPO) and step is PPO.training_step else MeasuredWhole


def _measured(algo_class: type, kind: type[AlgorithmConfig]) -> type:
    """Return an algorithm's class that measures itself; its empty configuration is of the script's kind."""
    members = {"get_default_config": classmethod(lambda _: kind())}
    return type(f"Measured{algo_class.__name__}", (_algorithm(algo_class), algo_class), members)


def _set_sampling(config: AlgorithmConfig, spec: StudySpec, *, batched: bool) -> None:
    """Set what keeps runners and evaluations as a study times them."""
    # RLlib leaves out the states of runners that are late, so that a busy machine would learn something else.
    config.sync_filters_on_rollout_workers_timeout_s = spec.resources.sample_timeout_s
    if batched:  # its connectors have no states: merging and broadcasting would be two more calls an iteration
        config.env_runners(merge_env_runner_states=spec.traits.asynchronous, broadcast_env_runner_states=False)
    # Only where an interval is given has an algorithm evaluation runners, on which its own `setup` can put things.
    own_setup = not config.algo_class.setup.__module__.startswith("ray.rllib.algorithms.")
    config.evaluation(
        evaluation_interval=_NEVER if own_setup else None,
        evaluation_num_env_runners=0,
        evaluation_parallel_to_training=False,
    )
    if _algorithm(config.algo_class) is not MeasuredWhole:  # an iteration is one step
        config.reporting(
            min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0, min_sample_timesteps_per_iteration=0
        )


def _set_parameters(config: AlgorithmConfig, spec: StudySpec, setting: Mapping[str, Value]) -> None:
    """Set the parameters whose value is not the script's."""
    assert spec.script is not None
    learners, script = max(spec.resources.num_learners, 1), spec.script.defaults
    changed = {name: value for name, value in setting.items() if name not in script or script[name] != value}
    batch = int(setting["train_batch_size"])
    if config.total_train_batch_size != batch:
        config.training(train_batch_size_per_learner=batch // learners)
    if "minibatch_size" in setting:
        config.training(minibatch_size=int(setting["minibatch_size"]) // learners)
    values = {
        attribute(name): value
        for name, value in changed.items()
        if PARAMETERS[name].is_argument and hasattr(config, attribute(name))
    }
    if "kl_coeff" in values:
        values["use_kl_loss"] = values["kl_coeff"] > 0
    if values:
        config.training(**values)
    if "lr" in changed or setting.get(END_FRACTION, 1.0) != 1:
        config.training(lr=learning_rate(spec, setting))
    if FRAGMENT in changed:
        config.env_runners(rollout_fragment_length=int(setting[FRAGMENT]))
    elif spec.script.base_algorithm == "PPO":
        try:
            config.validate_train_batch_size_vs_rollout_fragment_length()
        except ValueError:  # the fragments of all lanes do not make up the batch, not even nearly
            config.env_runners(rollout_fragment_length="auto")


def _check_difference(found: Mapping[str, Any], spec: StudySpec, setting: Mapping[str, Value]) -> None:
    """Refuse a configuration that differs from the script in more than a study sets and its space says.

    Raises:
        TrialError: Names the options.
    """
    assert spec.script is not None
    script = spec.script.defaults
    said = {attribute(name) for name, value in setting.items() if script.get(name) != value}
    if setting.get(END_FRACTION, 1.0) != 1:
        said.add("lr")
    if more := sorted(found.keys() - SET_ALWAYS - said):
        rule, fix = (
            "a trial differs from the script in what the space says alone",
            "Report this as a fault of the program.",
        )
        raise TrialError(where="start-up", rule=rule, got=", ".join(more), fix=fix)


SET_ALWAYS = names(
    "algo_class env_runner_cls _learner_class seed log_level log_sys_usage num_env_runners num_envs_per_env_runner",
    "num_cpus_per_env_runner num_gpus_per_env_runner custom_resources_per_env_runner sample_timeout_s num_learners",
    "create_local_env_runner sync_filters_on_rollout_workers_timeout_s",
    "num_cpus_per_learner num_gpus_per_learner num_aggregator_actors_per_learner num_cpus_for_main_process",
    "placement_strategy restart_failed_env_runners ignore_env_runner_failures restart_failed_sub_environments",
    "evaluation_interval evaluation_num_env_runners evaluation_parallel_to_training min_time_s_per_iteration",
    "min_train_timesteps_per_iteration min_sample_timesteps_per_iteration merge_env_runner_states",
    "broadcast_env_runner_states _train_batch_size_per_learner minibatch_size use_kl_loss rollout_fragment_length",
)
"""Options that a study may set whatever its space says: processes, seeds, evaluation, losses, and what sizes need."""


def differences_to_script(before: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, list[str]]:
    """Return RLlib's option -> the script's value and the study's, as text, of each that differs."""
    after = vars(config)
    return {
        name: [_shown(before[name]), _shown(after[name])]
        for name in sorted(before)
        if name in after and name != "_is_frozen" and not same(before[name], after[name])
    }


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)[:200]
