"""A setting -> the configuration that runs: what a trial sets in that of its experiment, and nothing else.

The batched runner and the fused learner are put in where they can serve the result (`study.trial.parts`); where they
cannot, RLlib's own take their place, and `fallbacks` says why. What only ours can do is then refused. Imports RLlib.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPO

from study.errors import Fault, SpaceError, StudyError
from study.space.parameters import FRAGMENT, PARAMETERS, SCALE, Value, attribute, set_all
from study.space.spec import Execution, StudySpec
from study.trial.engine import extensions
from study.trial.engine.sampling.lanes import LaneLayout
from study.trial.experiment import Experiment, with_spaces
from study.trial.failures import described
from study.trial.measured import Whole, measured_class, way_to_measure
from study.trial.parts import ADDED, same, set_learner, set_runner


def apply(
    experiment: Experiment, spec: StudySpec, *, setting: Mapping[str, Value], seed: int, execution: Execution
) -> AlgorithmConfig:
    """Return the complete, validated configuration of one trial.

    Beside RLlib's options it has these attributes:

    - `env_id`: `environment.id` of the space; `script`: the script's file, or empty.
    - `lane_layout`: The lanes of the trial and the processes that step them.
    - `hosted_runner_cls`: Class of RLlib's runners that a `HostedEnvRunner` holds; None where none is used.
    - `standardization`: `steps`, `rllib` or `none`: what advantages are standardised over.
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
        TrialError: The space asks for the fused learner, and this process cannot have it.
    """
    try:
        return _applied(experiment, spec, setting, seed, execution)
    except StudyError:
        raise
    except Exception as error:
        where, rule = "rllib" if spec.rllib else "parameters", "RLlib must accept the values"
        rule += f" with the configuration of {experiment.file}" if experiment.file else ""
        got, fix = described(error), "Change the value that it names."
        raise SpaceError.of("space", where=where, rule=rule, got=got, fix=fix) from error


def _applied(
    experiment: Experiment, spec: StudySpec, setting: Mapping[str, Value], seed: int, execution: Execution
) -> AlgorithmConfig:
    config = experiment.config.copy(copy_frozen=False)
    layout = LaneLayout(
        num_env_runners=int(setting[SCALE]),
        num_envs_per_env_runner=int(setting["num_envs_per_env_runner"]),
        emulated=execution == "emulated",
    )
    before = dict(vars(config))  # of the copy: not everything that a script makes equals its copy
    config.env_id, config.script, config.fallbacks = spec.environment.id, experiment.file, []
    _set_processes(config, spec, layout, seed=seed)
    batched = set_runner(config, experiment.runner_obstacle, asked=spec.runner, hosted=execution == "emulated")
    if not batched and spec.environment.backend != "gymnasium":
        why = f"needs the batched runner, and {experiment.runner_obstacle}"
        _refuse([("environment.backend", "envpool ")], why)
    _set_sampling(config, spec, batched=batched)
    _set_parameters(config, experiment, spec, setting)
    _set_learner(config, experiment, spec)
    extensions.install(config)
    config.algo_class = measured_class(config.algo_class, type(config))
    config.differences = {
        name: [_shown(before[name]), _shown(value)]
        for name, value in sorted(vars(config).items())
        if name in before and name not in ADDED and name != "_is_frozen" and not same(before[name], value)
    }
    config.validate()
    return config


def _refuse(asked: Iterable[tuple[str, str]], why: str) -> None:
    """Refuse what RLlib's own part would leave undone."""
    fix = "Leave it out, or remove what it names."
    if faults := [Fault(where=where, rule=f"{what}{why}", fix=fix) for where, what in asked]:
        raise SpaceError("space", faults)


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)[:200]


def _set_processes(config: AlgorithmConfig, spec: StudySpec, layout: LaneLayout, *, seed: int) -> None:
    """Set the lanes and processes of a trial, with their CPUs, the seed, and what happens if a process is lost."""
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


def _set_sampling(config: AlgorithmConfig, spec: StudySpec, *, batched: bool) -> None:
    """Set what keeps runners and evaluations as a study times them."""
    # RLlib leaves out the states of runners that are late, so that a busy machine would learn something else.
    config.sync_filters_on_rollout_workers_timeout_s = spec.resources.sample_timeout_s
    if batched:  # its connectors have no states: merging and broadcasting would be two more calls an iteration
        config.env_runners(merge_env_runner_states=spec.traits.asynchronous, broadcast_env_runner_states=False)
    config.evaluation(
        evaluation_interval=None,
        evaluation_num_env_runners=0,
        evaluation_parallel_to_training=False,
        # RLlib takes "auto" beside a training alone, and evaluates nothing itself.
        evaluation_duration=10 if config.evaluation_duration == "auto" else config.evaluation_duration,
    )
    if way_to_measure(config.algo_class) is not Whole:  # an iteration is one step
        config.reporting(
            min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0, min_sample_timesteps_per_iteration=0
        )


def _set_parameters(
    config: AlgorithmConfig, experiment: Experiment, spec: StudySpec, setting: Mapping[str, Value]
) -> None:
    """Set the parameters whose value is not the configuration's own; what runners have is set with the processes."""

    def has(name: str) -> bool:
        return hasattr(config, attribute(name)) or not PARAMETERS[name].is_argument

    sizes = {"minibatch_size"} & {*spec.traits.parameters}
    if config.total_train_batch_size != setting["train_batch_size"]:
        sizes |= {"train_batch_size"}
    elsewhere = {SCALE, "num_envs_per_env_runner", "train_batch_size", "minibatch_size"}
    changed = {
        name: value
        for name, value in setting.items()
        if name in sizes or (name not in elsewhere and experiment.given.get(name) != value and has(name))
    }
    if "kl_coeff" in changed and (changed["kl_coeff"] > 0 or not issubclass(config.algo_class, PPO)):
        config.training(use_kl_loss=changed["kl_coeff"] > 0)
    set_all(config, changed, env_steps=spec.budget.env_steps)
    if FRAGMENT not in changed and issubclass(config.algo_class, PPO):
        try:
            config.validate_train_batch_size_vs_rollout_fragment_length()
        except ValueError:  # the fragments of all lanes do not make up the batch, not even nearly
            config.env_runners(rollout_fragment_length="auto")


def _set_learner(config: AlgorithmConfig, experiment: Experiment, spec: StudySpec) -> None:
    may_be_ours = config.algo_class is PPO and spec.learner != "rllib" and not experiment.learner_obstacle
    known = with_spaces(config) if may_be_ours else config
    obstacle = set_learner(known, experiment.learner_obstacle, asked=spec.learner)
    if known is not config:
        config.fallbacks = known.fallbacks
        if obstacle is None:
            config.learners(learner_class=known.learner_class)
    if obstacle and spec.algorithm == "A2C":  # RLlib's learner has another optimizer, and standardises
        _refuse([("algorithm", "`A2C` ")], f"needs the fused learner, and {obstacle}")
    ours = obstacle is None or spec.algorithm != "PPO"
    config.standardization = spec.standardization_in_use if ours else "rllib"
