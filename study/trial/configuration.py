"""A setting -> the configuration that runs: what a trial sets in that of its experiment, and nothing else.

The batched runner and the fused learner are put in where they can serve the result (`study.trial.parts`); where they
cannot, RLlib's own take their place, and `fallbacks` says why. What only ours can do is then refused. Imports RLlib.
"""

from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPO

from study.errors import Fault, SpaceError, StudyError, TrialError
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value, attribute, set_all
from study.space.rules import fused_alone
from study.space.spec import Execution, StudySpec
from study.trial.engine.learning.rewards import ScaledRewards
from study.trial.engine.sampling.lanes import LaneLayout
from study.trial.experiment import SET_BY_STUDY, Experiment, alone_in_its_process, with_spaces
from study.trial.failures import described
from study.trial.measured import Whole, measured_class, way_to_measure
from study.trial.parts import ADDED, same, set_learner, set_runner

_WITHOUT = "Leave it out, or remove what it names."


def apply(
    experiment: Experiment, spec: StudySpec, *, setting: Mapping[str, Value], seed: int, execution: Execution
) -> AlgorithmConfig:
    """Return the complete, validated configuration of one trial.

    Beside RLlib's options it has these attributes:

    - `env_id`: `environment.id` of the space; `script`: the script's file, or empty.
    - `lane_layout`: The lanes of the trial and the processes that step them.
    - `hosted_runner_cls`: Class of RLlib's runners that a `HostedEnvRunner` holds; None where none is used.
    - `standardization`: `steps`, `rllib` or `none`: what advantages are standardised over.
    - `normalize_rewards`: Whether runners hand over discounted returns, by whose deviation rewards are divided.
    - `fallbacks`: One line for each of our parts that could not serve, and was replaced by RLlib's.
    - `differences`: RLlib's option -> the value that the experiment has and the trial's, as text, of each that differs.

    Args:
        experiment: What is trained; not changed.
        spec: The space.
        setting: Every parameter that has a value, the scale included.
        seed: Seed of the trial.
        execution: Whether every runner is a process of its own.

    Raises:
        SpaceError: RLlib refuses the values, or the space asks for what only a part of ours can do that cannot serve.
        TrialError: It would differ from its experiment in more than the space says.
    """
    try:
        return _applied(experiment, spec, setting=setting, seed=seed, execution=execution)
    except StudyError:
        raise
    except Exception as error:
        where, rule = "rllib" if spec.rllib else "parameters", "RLlib must accept the values"
        rule += f" with the configuration of {experiment.file}" if experiment.file else ""
        got, fix = described(error), "Change the value that it names."
        raise SpaceError.of("space", where=where, rule=rule, got=got, fix=fix) from error


def _applied(
    experiment: Experiment, spec: StudySpec, *, setting: Mapping[str, Value], seed: int, execution: Execution
) -> AlgorithmConfig:
    config = experiment.config.copy(copy_frozen=False)
    layout = lane_layout(spec, int(setting[SCALE]), int(setting["num_envs_per_env_runner"]), execution)
    if spec.environment.process == "own" and layout.most_lanes == 1:
        config.env = alone_in_its_process(str(config.env))
    before = dict(vars(config))  # of the copy: not everything that a script makes equals its copy
    config.env_id, config.script, config.fallbacks = spec.environment.id, experiment.file, []
    config.normalize_rewards = spec.environment.normalize_rewards
    _set_processes(config, spec, layout, execution=execution, seed=seed)
    batched = set_runner(config, experiment.runner_obstacle, asked=spec.runner, hosted=execution == "emulated")
    if not batched:
        _check_runner(spec, experiment.runner_obstacle)
    _set_sampling(config, spec, batched=batched)
    _set_parameters(config, experiment, spec, setting)
    _set_learner(config, experiment, spec)
    config.algo_class = measured_class(config.algo_class, type(config))
    config.differences = _differences(before, config)
    _check_difference(config.differences, experiment, setting, scales_rewards=config.normalize_rewards)
    config.validate()
    return config


def lane_layout(spec: StudySpec, num_env_runners: int, num_envs: int, execution: Execution) -> LaneLayout:
    """Return the lanes of a trial and the processes that step them."""
    emulating = min(spec.resources.emulation_processes, num_env_runners)
    return LaneLayout(
        num_env_runners=num_env_runners,
        num_envs_per_env_runner=num_envs,
        num_processes=num_env_runners if execution == "real" else emulating,
    )


def _set_processes(
    config: AlgorithmConfig, spec: StudySpec, layout: LaneLayout, *, execution: Execution, seed: int
) -> None:
    """Set the lanes and processes of a trial, with their CPUs, the seed, and what happens if a process is lost."""
    resources = spec.resources
    config.lane_layout = layout
    config.env_runners(
        # RLlib counts processes; with none, its main process samples.
        num_env_runners=0 if execution == "emulated" and layout.num_processes == 1 else layout.num_processes,
        num_envs_per_env_runner=layout.most_lanes,
        num_cpus_per_env_runner=resources.num_cpus_per_env_runner,
        num_gpus_per_env_runner=0,
        custom_resources_per_env_runner={},
        sample_timeout_s=resources.sample_timeout_s,
        create_local_env_runner=True,  # an evaluation takes the states of the connectors from it
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


def _check_runner(spec: StudySpec, obstacle: str) -> None:
    """Refuse what RLlib's runner would leave undone."""
    environment = spec.environment
    asked = {
        "environment.backend": ("envpool ", environment.backend != "gymnasium", "Set environment.backend: gymnasium"),
        "environment.normalize_rewards": ("", environment.normalize_rewards, "Leave it out"),
    }
    faults = [
        Fault(
            where=where, rule=f"{what}needs the batched runner, and {obstacle}", fix=f"{fix}, or remove what it names."
        )
        for where, (what, is_asked, fix) in asked.items()
        if is_asked
    ]
    if faults:
        raise SpaceError("space", faults)


def _set_sampling(config: AlgorithmConfig, spec: StudySpec, *, batched: bool) -> None:
    """Set what keeps runners and evaluations as a study times them."""
    # RLlib leaves out the states of runners that are late, so that a busy machine would learn something else.
    config.sync_filters_on_rollout_workers_timeout_s = spec.resources.sample_timeout_s
    if batched:  # its connectors have no states: merging and broadcasting would be two more calls an iteration
        config.env_runners(merge_env_runner_states=spec.traits.asynchronous, broadcast_env_runner_states=False)
    config.evaluation(evaluation_interval=None, evaluation_num_env_runners=0, evaluation_parallel_to_training=False)
    if way_to_measure(config.algo_class) is not Whole:  # an iteration is one step
        config.reporting(
            min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0, min_sample_timesteps_per_iteration=0
        )


def _set_parameters(
    config: AlgorithmConfig, experiment: Experiment, spec: StudySpec, setting: Mapping[str, Value]
) -> None:
    """Set the parameters whose value is not the configuration's own; what runners have is set with the processes."""
    sizes = {"minibatch_size"} & {*spec.traits.parameters}
    if config.total_train_batch_size != setting["train_batch_size"]:
        sizes |= {"train_batch_size"}
    elsewhere = {SCALE, "num_envs_per_env_runner", "train_batch_size", "minibatch_size"}
    changed = {
        name: value
        for name, value in setting.items()
        if name in sizes or (name not in elsewhere and experiment.given.get(name) != value and _has(config, name))
    }
    if "kl_coeff" in changed and (changed["kl_coeff"] > 0 or not issubclass(config.algo_class, PPO)):
        config.training(use_kl_loss=changed["kl_coeff"] > 0)
    set_all(config, changed, env_steps=spec.budget.env_steps)
    if FRAGMENT not in changed and issubclass(config.algo_class, PPO):
        try:
            config.validate_train_batch_size_vs_rollout_fragment_length()
        except ValueError:  # the fragments of all lanes do not make up the batch, not even nearly
            config.env_runners(rollout_fragment_length="auto")


def _has(config: AlgorithmConfig, name: str) -> bool:
    return hasattr(config, attribute(name)) or not PARAMETERS[name].is_argument


def _set_learner(config: AlgorithmConfig, experiment: Experiment, spec: StudySpec) -> None:
    may_be_ours = config.algo_class is PPO and spec.learner != "rllib" and not experiment.learner_obstacle
    known = with_spaces(config) if may_be_ours else config
    obstacle = set_learner(known, experiment.learner_obstacle, asked=spec.learner)
    if known is not config:
        config.fallbacks = known.fallbacks
        if obstacle is None:
            config.learners(learner_class=known.learner_class)
    if obstacle and (alone := list(fused_alone(spec))):
        faults = [
            Fault(where=at, rule=f"{what}needs the fused learner, and {obstacle}", fix=_WITHOUT) for at, what in alone
        ]
        raise SpaceError("space", faults)
    fused = obstacle is None
    config.standardization = spec.standardization_in_use if fused or spec.algorithm != "PPO" else "rllib"
    if not fused and spec.environment.normalize_rewards:
        config.learners(learner_connector=ScaledRewards)


# --- what differs --------------------------------------------------------------------------------------------------


def _differences(before: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, list[str]]:
    after = vars(config)
    return {
        name: [_shown(before[name]), _shown(after[name])]
        for name in sorted(before)
        if name not in ADDED and name != "_is_frozen" and not same(before[name], after[name])
    }


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)[:200]


def _check_difference(
    found: Mapping[str, Any], experiment: Experiment, setting: Mapping[str, Value], *, scales_rewards: bool
) -> None:
    """Refuse a configuration that differs from its experiment's in more than a study sets and its space says."""
    said = {attribute(name) for name, value in setting.items() if experiment.given.get(name) != value}
    said |= {"lr"} if setting.get(END_FRACTION, 1.0) != 1 else set()
    said |= {"_learner_connector"} if scales_rewards else set()
    if more := sorted(found.keys() - SET_BY_STUDY - said):
        rule, fix = "a trial sets what the space says alone", "Report this as a fault of the program."
        raise TrialError(where="start-up", rule=rule, got=", ".join(more), fix=fix)
