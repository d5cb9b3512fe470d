"""A setting -> the configuration that runs: what a trial sets in that of its study, and nothing else.

The batched runner and the fused learner are put in where they do the same as RLlib's; where they do not, RLlib's own
stay, and `fallbacks` says why. What only ours can do is then refused. `study.fast` is the same choice for anybody's
PPO, in plain RLlib. Imports RLlib.
"""

import logging
import re
from collections.abc import Mapping
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

from study.errors import SpaceError, StudyError
from study.jax_private import jax_obstacle
from study.ray_private import option
from study.space.parameters import FRAGMENT, PARAMETERS, SCALE, Value, attribute, set_all
from study.space.spec import Execution, StudySpec
from study.trial.engine import extensions
from study.trial.engine.envs.environments import are_trainable
from study.trial.engine.learning.asynchronous_learner import CountingLearner
from study.trial.engine.learning.fused_learner import FusedPPOLearner, fused_obstacle, refusal
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.lanes import LaneLayout
from study.trial.engine.sampling.runner import StockEnvRunner, StockMultiAgentEnvRunner
from study.trial.experiment import with_spaces
from study.trial.failures import described
from study.trial.measured import Overlapping, Whole, measured_class, way_to_measure

_LOGGER = logging.getLogger("study.fast")


def apply(
    base: AlgorithmConfig, spec: StudySpec, *, setting: Mapping[str, Value], seed: int, execution: Execution
) -> AlgorithmConfig:
    """Return the complete, validated configuration of one trial, with attributes of ours beside RLlib's options.

    `script`: the script's file, or empty; `fallbacks`: a line for each of our parts that cannot serve; `lane_layout`:
    the lanes, and the processes that step them; `hosted`: whether the main process hosts RLlib's remote runners;
    `standardization`: `steps`, `rllib` or `none`, what advantages are standardised over; `optimizer`: of A2C.

    `base`, of `configuration_of`, is not changed; `setting` holds every parameter with a value, the scale included.

    Raises:
        SpaceError: RLlib refuses the values, or the space asks for what only a part of ours can do that cannot serve.
        TrialError: The space asks for the fused learner, and this process cannot have it.
    """
    try:
        return _applied(base.copy(copy_frozen=False), spec, setting, seed, is_emulated=execution == "emulated")
    except StudyError:
        raise
    except Exception as error:
        of_script = f" with the configuration of {spec.script.source.file}" if spec.script else ""
        rule, got, fix = f"RLlib must accept the values{of_script}", described(error), "Change the value that it names."
        raise SpaceError.of("space", where="parameters", rule=rule, got=got, fix=fix) from error


def _applied(
    config: AlgorithmConfig, spec: StudySpec, setting: Mapping[str, Value], seed: int, *, is_emulated: bool
) -> AlgorithmConfig:
    facts = spec.script
    runners, lanes = int(setting[SCALE]), int(setting["num_envs_per_env_runner"])
    config.env_id, config.script, config.fallbacks = spec.environment.id, facts.source.file if facts else "", []
    batched = _set_runner(config, spec, facts.runner_obstacle if facts else "")
    layout = LaneLayout(num_env_runners=runners, num_envs_per_env_runner=lanes, emulated=is_emulated and batched)
    config.hosted = is_emulated and not batched
    _set_processes(config, spec, layout, seed=seed)
    _set_parameters(config, spec, setting)
    obstacle = set_learner(config, facts.learner_obstacle if facts else "", asked=spec.learner)
    if obstacle and spec.algorithm == "A2C":  # RLlib's learner has another optimizer, and standardises
        rule = f"`A2C` needs the fused learner, and {obstacle}"
        raise SpaceError.of("space", where="algorithm", rule=rule, fix="Take another algorithm.")
    ours = obstacle is None or spec.algorithm != "PPO"
    config.standardization = spec.standardization_in_use if ours else "rllib"
    extensions.install(config)
    config.algo_class = measured_class(config.algo_class, type(config))
    config.validate()
    return config


def _set_processes(config: AlgorithmConfig, spec: StudySpec, layout: LaneLayout, *, seed: int) -> None:
    """Set a trial's lanes, processes and seed, and what keeps runners and evaluations as a study times them."""
    resources = spec.resources
    config.lane_layout = layout
    config.env_runners(
        # RLlib counts processes; with none, its main process samples.
        num_env_runners=0 if layout.emulated else layout.num_env_runners,
        num_envs_per_env_runner=len(layout.lanes_of(0)),
        num_cpus_per_env_runner=resources.num_cpus_per_env_runner,
        num_gpus_per_env_runner=0,
        custom_resources_per_env_runner={},
        sample_timeout_s=resources.sample_timeout_s,
        create_local_env_runner=True,  # an evaluation takes the states of the connectors from it
    )
    # RLlib leaves out the states of runners that are late, so that a busy machine would learn something else.
    config.sync_filters_on_rollout_workers_timeout_s = resources.sample_timeout_s
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
    config.evaluation(
        evaluation_interval=None,
        evaluation_num_env_runners=0,
        evaluation_parallel_to_training=False,
        # RLlib takes "auto" beside a training alone, and evaluates nothing itself.
        evaluation_duration=10 if config.evaluation_duration == "auto" else config.evaluation_duration,
    )
    if way_to_measure(config.algo_class) is not Whole:  # an iteration is one step
        no_steps = {"min_train_timesteps_per_iteration": 0, "min_sample_timesteps_per_iteration": 0}
        config.reporting(min_time_s_per_iteration=None, **no_steps)


def _set_parameters(config: AlgorithmConfig, spec: StudySpec, setting: Mapping[str, Value]) -> None:
    """Set the parameters whose value is not the configuration's own; what runners have is set with the processes."""
    own: dict[str, Any] = {} if spec.script is None else dict(spec.script.defaults)
    own |= {name: setting[name] for name in (SCALE, "num_envs_per_env_runner")}
    own |= {"train_batch_size": config.total_train_batch_size, "minibatch_size": None}
    known = {name for name, each in PARAMETERS.items() if each.set is not None or hasattr(config, attribute(name))}
    known -= {"minibatch_size"} - {*spec.traits.parameters}
    changed = {name: value for name, value in setting.items() if name in known and own.get(name) != value}
    if "kl_coeff" in changed and (changed["kl_coeff"] > 0 or not issubclass(config.algo_class, PPO)):
        config.training(use_kl_loss=changed["kl_coeff"] > 0)
    set_all(config, changed, env_steps=spec.budget.env_steps)
    if FRAGMENT not in changed and issubclass(config.algo_class, PPO):
        try:
            config.validate_train_batch_size_vs_rollout_fragment_length()
        except ValueError:  # the fragments of all lanes do not make up the batch, not even nearly
            config.env_runners(rollout_fragment_length="auto")


# --- the parts -------------------------------------------------------------------------------------------------------


def _set_runner(config: AlgorithmConfig, spec: StudySpec, obstacle: str) -> bool:
    """Set the class that samples; return whether it is the batched runner, for which there may be an `obstacle`."""
    if spec.runner == "batched" and not obstacle:
        config.env_runner_cls = BatchedEnvRunner
        # Its connectors have no states: merging and broadcasting would be two more calls an iteration.
        config.env_runners(merge_env_runner_states=spec.traits.asynchronous, broadcast_env_runner_states=False)
        return True
    if spec.runner == "batched":
        config.fallbacks.append(f"runner: RLlib's own instead of the batched one: {obstacle}")
    own: type = StockMultiAgentEnvRunner if config.is_multi_agent else StockEnvRunner
    given = config.env_runner_cls
    if given is not None and given not in (SingleAgentEnvRunner, MultiAgentEnvRunner):
        # An evaluation takes the first class that is not of this package: the name of the module is not left to Python.
        own = type(f"Measured{given.__name__}", (own, given), {"__module__": __name__})
    config.env_runner_cls = own
    return False


def set_learner(config: AlgorithmConfig, obstacle: str, *, asked: str) -> str | None:
    """Set the class that learns; return why it is not the fused one, which is empty where nobody asks for that.

    `obstacle` is that of `learner_obstacle` without what the study sets, or empty; `asked` is `learner` of the space.
    A `TrialError` says that the space asks for the fused one, and that this process cannot have it.
    """
    if issubclass(config.algo_class, IMPALA):
        if way_to_measure(config.algo_class) is Overlapping:
            own = config.learner_class
            config.learners(learner_class=type(f"Counting{own.__name__}", (CountingLearner, own), {}))
        return ""
    if config.algo_class is not PPO or asked == "rllib":
        return ""
    reason = obstacle or fused_obstacle(with_spaces(config)) or ""
    if not reason and (reason := jax_obstacle() or "") and asked == "fused":
        raise refusal(reason)
    if reason:
        config.fallbacks.append(f"learner: RLlib's own learner instead of the fused one: {reason}")
        return reason
    config.learners(learner_class=FusedPPOLearner)
    return None


def fast(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a copy of a configuration with the batched runner and the fused learner where they serve.

    It works with `build_algo` and `tune.Tuner`; checkpoints are RLlib's. What stays RLlib's own is logged as a warning
    by the logger `study.fast`, with the reason. Evaluations of RLlib's own (`evaluation_interval`) keep its runner.

    Args:
        config: Of PPO, complete, since what is set afterwards is not looked at. Not changed.

    Raises:
        SpaceError: It is of another algorithm: none of its parts can be replaced here.
        Exception: Whatever making the environment raises, which is made once where nobody has said its spaces.
    """
    if config.algo_class is not PPO:
        got = str(getattr(config.algo_class, "__name__", config.algo_class))
        rule, fix = "must be of RLlib's PPO", "Train it as it is."
        raise SpaceError.of("study.fast", where="config", rule=rule, got=got, fix=fix)
    known, quick = with_spaces(config), config.copy(copy_frozen=False)
    own_runner = runner_obstacle(known)
    own_learner = learner_obstacle(known) or fused_obstacle(known) or jax_obstacle()
    if own_runner is None:
        own, evaluated = {"env_runner_cls": config.env_runner_cls}, config.evaluation_config  # RLlib's counts episodes
        if isinstance(evaluated, AlgorithmConfig):
            evaluated = evaluated.copy(copy_frozen=False).env_runners(**own)
        else:
            evaluated = {**(evaluated or {}), **own}
        quick.env_runners(env_runner_cls=BatchedEnvRunner).evaluation(evaluation_config=evaluated)
    if own_learner is None:
        quick.learners(learner_class=FusedPPOLearner)
    extensions.install(quick)
    for part, obstacle in (("runner", own_runner), ("learner", own_learner)):
        if obstacle:
            _LOGGER.warning("RLlib's own %s stays: %s.", part, obstacle)
    return quick


# --- where our parts do the same as RLlib's --------------------------------------------------------------------------
#
# An option that is in no list below, and does not have RLlib's default, leaves RLlib's own part where it is.

_PLAIN: Mapping[type, type[AlgorithmConfig]] = {PPO: PPOConfig, APPO: APPOConfig, IMPALA: IMPALAConfig}
"""RLlib's algorithms that our runner samples for, with their configurations."""
_ABSENT = object()


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


def runner_obstacle(config: AlgorithmConfig) -> str | None:
    """Return in one line why the batched runner cannot do the same as RLlib's; None when it can.

    `config` has the spaces of its environment, where that is of one agent, and not what a trial sets.
    """
    if obstacle := _of_any(config):
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
    return _of_any(config) or fused_obstacle(local)


def _of_any(config: AlgorithmConfig) -> str | None:
    """Return what neither part can serve."""
    plain = _PLAIN.get(config.algo_class)
    if plain is None:
        return f"the algorithm is {_name(config.algo_class)}"
    if type(config) is not plain:  # it may have a learner or a module of its own by default
        return f"the configuration is of the class {type(config).__name__}"
    if config.is_multi_agent:
        return "there are several agents"
    defaults = vars(plain())
    for name, value in sorted(vars(config).items()):
        if name == "learner_config_dict" and value.keys() <= {*extensions.OF_LEARNER, *extensions.OF_RUNNERS}:
            continue
        honoured = name in _ANYWHERE or _OF_RLLIB_ALONE.match(name)
        if not honoured and not same(value, defaults.get(name, _ABSENT)):
            return f"{name.lstrip('_')} is not RLlib's default"
    spec = option(config, "rl_module_spec")
    if spec is not None and not same(spec, RLModuleSpec()):
        return "the module is the script's own"
    model = dict(config.model_config)
    if model.get("use_lstm"):
        return "the module is recurrent"
    own, names = plain().model_config, sorted(model.keys() - DefaultModelConfig.__dataclass_fields__.keys())
    foreign = [name for name in names if not same(model[name], own.get(name, _ABSENT))]
    return f"model_config has {', '.join(foreign)}" if foreign else None


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
