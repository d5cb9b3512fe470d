"""Seams of RLlib.

Methods of ours that replace a private one of RLlib stay in their classes and carry `@overrides(SEAM)`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from study.seams.base import Seam, has, uses

_seam = functools.partial(Seam, distribution="ray", versions="==2.60.*")
_GROUP = "ray.rllib.env.env_runner_group:EnvRunnerGroup"
_LEARNERS = "ray.rllib.core.learner.learner_group:LearnerGroup"
_MANAGER = "ray.rllib.utils.actor_manager:FaultTolerantActorManager"
_RUNNER = "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner"
_RUNNER_OF_SEVERAL = "ray.rllib.env.multi_agent_env_runner:MultiAgentEnvRunner"
_LEARNER = "ray.rllib.core.learner.torch.torch_learner:TorchLearner"
_IMPALA = "ray.rllib.algorithms.impala.impala_learner:IMPALALearner"
_CONFIG = "ray.rllib.algorithms.algorithm_config:AlgorithmConfig"

ACTORS = _seam(
    name="rllib-actors",
    does="reach the actors of runners and learners one by one: to watch them, to ask one at a time, to kill them",
    why="The groups' public calls leave out actors that are slow or dead.",
    upstream="https://github.com/ray-project/ray/issues/63302 (late samples are dropped silently)",
    needs=(
        uses(_GROUP, "_worker_manager"),
        uses(_LEARNERS, "_worker_manager"),
        has(f"{_MANAGER}.actors", "self"),
        has(f"{_MANAGER}.actor_ids", "self"),
        has(f"{_MANAGER}.remove_actor", "self", "actor_id"),
        has(f"{_MANAGER}.clear", "self"),
    ),
)
KEPT_RUNNERS = _seam(
    name="rllib-kept-runners",
    does="build an algorithm whose runners live in processes that are up already",
    why="RLlib offers no way to hand actors over; starting 46 of them takes longer than a trial of a throughput study.",
    needs=(
        has("ray.rllib.algorithms.algorithm:EnvRunnerGroup"),
        has(f"{_GROUP}.add_workers", "self", "num_workers", "validate"),
        has(f"{_MANAGER}.add_actors", "self", "actors"),
        uses(_GROUP, "_worker_manager", "_remote_config_obj_ref", "_tune_trial_id"),
    ),
)
FOLDER = _seam(
    name="rllib-folder",
    does="give an algorithm a folder that is removed with it",
    why="RLlib would leave an empty folder in the user's home for each trial.",
    upstream="https://github.com/ray-project/ray/issues/46592",
    needs=(
        has("ray.rllib.algorithms.algorithm:Algorithm._setup_logdir", "self"),
        uses("ray.rllib.algorithms.algorithm:Algorithm", "_logdir"),
    ),
)
LANE_SEEDS = _seam(
    name="rllib-lane-seeds",
    does="reset the environments of a stock runner with a seed of each lane's own",
    why="RLlib seeds environment i of runner w with seed + w + i, so that neighbouring runners play the same episodes.",
    upstream="https://github.com/ray-project/ray/issues/46986",
    needs=(
        has(f"{_RUNNER}._try_env_reset", "self", "seed", "options"),
        has(f"{_RUNNER_OF_SEVERAL}._try_env_reset", "self", "seed", "options"),
        uses(_RUNNER, "_seed"),
        uses(_RUNNER_OF_SEVERAL, "_seed"),
    ),
)
ENDED_EPISODES = _seam(
    name="rllib-ended-episodes",
    does="read the returns of the episodes that ended in a stock runner's sample",
    why="RLlib reports means of them, smoothed; sums and counts cannot be computed from these.",
    needs=(
        uses(_RUNNER, "_done_episodes_for_metrics", "_ongoing_episodes_for_metrics"),
        uses(_RUNNER_OF_SEVERAL, "_done_episodes_for_metrics", "_ongoing_episodes_for_metrics"),
    ),
)
BATCHED_RUNNER = _seam(
    name="rllib-batched-runner",
    does="keep the counters, and fetch the weights, that RLlib's own `sample` keeps and fetches",
    why="The batched runner replaces `sample` as a whole.",
    needs=(
        has(f"{_RUNNER}._log_env_steps", "self", "metric", "num_steps"),
        has(f"{_RUNNER}._increase_sampled_metrics", "self", "num_steps", "num_episodes_completed"),
        uses(
            _RUNNER,
            "_metrics_num_env_steps_sampled",
            "_needs_initial_reset",
            "_weights_seq_no",
            "_env_runner_state_server",
        ),
    ),
)
RUNNER_OPTIONS = _seam(
    name="rllib-options",
    does="see whether a user has set options that the batched runner or the fused learner cannot serve",
    why="`AlgorithmConfig` keeps them in private attributes.",
    needs=(
        uses(
            _CONFIG,
            "_env_to_module_connector",
            "_module_to_env_connector",
            "_learner_connector",
            "_learner_class",
            "_model_config",
            "_rl_module_spec",
            "_torch_grad_scaler_class",
            "_torch_lr_scheduler_classes",
        ),
    ),
)
FORWARD = _seam(
    name="rllib-forward",
    does="call a module's networks without the checks around `forward_exploration`",
    why="The checks cost as much as a small network, at every step.",
    needs=(has("ray.rllib.core.rl_module.torch.torch_rl_module:TorchRLModule._forward", "self", "batch", "kwargs"),),
)
FUSED_LEARNER = _seam(
    name="rllib-fused-learner",
    does="keep the counters and states that RLlib's own `Learner.update` keeps",
    why="The fused learner replaces `update` as a whole.",
    needs=(
        has(f"{_LEARNER}._check_is_built", "self", "error"),
        has(f"{_LEARNER}._check_component", "self", "name", "components", "not_components"),
        uses(
            _LEARNER,
            "_weights_seq_no",
            "_metrics_all_modules_num_env_steps_trained",
            "_metrics_all_modules_num_module_steps_trained",
        ),
    ),
)
CONNECTOR = _seam(
    name="rllib-learner-connector",
    does="read gamma and lambda where RLlib's learner uses them",
    why="What was asked is compared with what runs; the connector of a learner is a private attribute.",
    needs=(uses(_LEARNER, "_learner_connector"),),
)
LEARNER_THREAD = _seam(
    name="rllib-learner-thread",
    does="notice the end of an asynchronous learner's thread, count its work, and wait until it has none",
    why="RLlib hands batches to a thread and does not look after it: a dead one lets the algorithm wait for ever.",
    upstream="https://github.com/ray-project/ray/issues/36801 (the thread's death, on the old API stack)",
    needs=(
        uses(_IMPALA, "_agg_event", "_submitted_updates", "_learner_thread", "_learner_thread_in_queue"),
        uses("ray.rllib.algorithms.appo.appo_learner:APPOLearner", "_learner_thread_in_queue"),
        uses("ray.rllib.algorithms.impala.impala_learner:_LearnerThread", "_update_method"),
    ),
)
POLICY_LAG = _seam(
    name="rllib-policy-lag",
    does="add up how many updates old the policy was that a sample was drawn with",
    why="RLlib logs its own measure of it, smoothed.",
    needs=(has(f"{_LEARNER}._compute_off_policyness", "self", "batch"), uses(_LEARNER, "_weights_seq_no")),
)
ASYNCHRONOUS_SAMPLES = _seam(
    name="rllib-asynchronous-samples",
    does="ask the runners of APPO and IMPALA, and wait for their samples",
    why="RLlib polls, and drops samples that come late.",
    upstream="https://github.com/ray-project/ray/issues/63302",
    needs=(has("ray.rllib.algorithms.impala:IMPALA._sample_and_get_connector_states", "self"),),
)
STATE_SERVER = _seam(
    name="rllib-state-server",
    does="read the states of connectors that APPO and IMPALA have merged",
    why="With `use_env_runner_state_server` RLlib gives them to its runners alone, by an actor of its own.",
    needs=(
        uses("ray.rllib.algorithms.impala:IMPALA", "_env_runner_state_server"),
        has("ray.rllib.env.env_runner_state_server:EnvRunnerStateServer.pull", "self"),
    ),
)
ENCODERS = _seam(
    name="rllib-encoders",
    does="build encoders that normalise observations, and IMPALA's convolutions, in RLlib's modules",
    why="The catalog's method for it, and the forward pass of an encoder, have an underscore.",
    needs=(
        has(
            "ray.rllib.algorithms.ppo.ppo_catalog:PPOCatalog._get_encoder_config",
            "observation_space",
            "model_config_dict",
            "action_space",
        ),
        has("ray.rllib.core.models.torch.base:TorchModel._forward", "self", "input_dict", "kwargs"),
    ),
)
OBSERVATION_FILTERS = _seam(
    name="rllib-observation-filters",
    does="keep RLlib's filters of observations as they are while a policy is evaluated",
    why="RLlib's `MeanStdFilter` goes on to collect what it sees in evaluations.",
    needs=(
        uses(_RUNNER, "_env_to_module"),
        uses(_RUNNER_OF_SEVERAL, "_env_to_module"),
        uses("ray.rllib.connectors.env_to_module.mean_std_filter:MeanStdFilter", "_update_stats"),
    ),
)


def actors_of(group: Any) -> dict[int, Any]:
    """Return number -> actor of a group: runners are numbered from 1, learners from 0."""
    actors: dict[int, Any] = group._worker_manager.actors()
    return actors


def take_actors(group: Any) -> list[Any]:
    """Return the actors of a group in their order, and leave it without them."""
    manager = group._worker_manager
    return [manager.remove_actor(number) for number in sorted(manager.actor_ids())]


def kill_actors(group: Any) -> None:
    """End the processes of a group."""
    group._worker_manager.clear()


@contextlib.contextmanager
def runners_in(actors: Sequence[Any]) -> Iterator[None]:
    """Let the algorithm that is built meanwhile make its runners in these processes, by their method `renew`.

    Replaces the class `EnvRunnerGroup` in RLlib's module for a while: not for two threads at once.

    Args:
        actors: As many as the algorithm has runners.
    """
    import ray
    from ray.rllib.algorithms import algorithm
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    class Renewed(EnvRunnerGroup):
        def add_workers(self, num_workers: int, validate: bool = False) -> None:
            renewals = [
                actor.renew.remote(
                    config=self._remote_config_obj_ref,
                    worker_index=number,
                    num_workers=num_workers,
                    tune_trial_id=self._tune_trial_id,
                    spaces=None,
                )
                for number, actor in enumerate(actors, start=1)
            ]
            ray.get(renewals)
            self._worker_manager.add_actors(list(actors))

    algorithm.EnvRunnerGroup = Renewed
    try:
        yield
    finally:
        algorithm.EnvRunnerGroup = EnvRunnerGroup


def option(config: Any, name: str) -> Any:
    """Return the value of a private option of a configuration, such as `learner_connector`; None when it is not set."""
    return getattr(config, f"_{name}")


def forward_of(module: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the forward pass of a module without RLlib's checks."""
    forward: Callable[[dict[str, Any]], dict[str, Any]] = module._forward
    return forward


def connector_pieces(learner: Any) -> list[Any]:
    """Return the pieces of a learner's connector in their order."""
    return [*learner._learner_connector]


def merged_connectors(algorithm: Any, *, timeout_s: float) -> dict[str, Any]:
    """Return the states of connectors that the runners of an algorithm fetch; empty where they are given them."""
    import ray
    from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR

    server = getattr(algorithm, "_env_runner_state_server", None)
    state = {} if server is None else ray.get(server.pull.remote(), timeout=timeout_s) or {}
    names = (COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR)
    return {name: state[name] for name in names if name in state}


def freeze_filters(runner: Any) -> None:
    """Let the filters of observations of an env runner stay as they are."""
    from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter

    for piece in runner._env_to_module.connectors:
        if isinstance(piece, MeanStdFilter):
            piece._update_stats = False


def wrap_update(thread: Any, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let a learner's thread call `wrapper(update)` in place of RLlib's `update`."""
    thread._update_method = wrapper(thread._update_method)
