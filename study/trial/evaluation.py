"""A policy plays the evaluation episodes in the main process, outside every training time. Imports RLlib and torch.

Episode number e always has evaluation seed e, is cut at the same step, and has as its return the sum of the
environment's own rewards: of several agents the sum. A trial plays episodes from 0 on; in the confirmation of a hold-up
study each trial begins at a number of its own. Without exploration unless the space says `stochastic`; no random
generator of the training is used.

Every policy plays in lanes: environments that take the next episode when one is over, and count. Where the environment
and the network are this project's, or actions are random, they are stepped here, many side by side with one forward
pass for all; noise depends on the episode and its step alone. Else RLlib's own env runner of the configuration steps
them: only it knows every connector and every state.
"""

import contextlib
import copy
import functools
import itertools
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from study.errors import RecordError, StudyError, TrialError
from study.ray_private import freeze_filters
from study.space.spec import StudySpec
from study.text import one_line
from study.trial.engine import extensions
from study.trial.engine.sampling.acting import action_rule, network_of, scaling_for_environment
from study.trial.engine.sampling.lanes import LaneNoise, evaluation_seeds, random_action_seed
from study.trial.engine.sampling.runner import generators_now, seed_globally, set_generators
from study.trial.experiment import make_environment, with_spaces
from study.trial.failures import TRACEBACKS, described, original, within
from study.trial.policy import MODULES, State

MAX_LANES = 64
"""Episodes that are played side by side here; more would cost memory and hardly save time."""
MAX_SIDE_BY_SIDE = 8
"""Episodes that RLlib's runner plays side by side: its work for each step is nearly the same for eight environments as
for one. The same number in a trial and when its policy plays again, so that connectors see the same."""
ALL = "__all__"
"""RLlib's key for an episode as a whole, among those of its agents."""
DRAWS = "rgb_array"
"""The render mode of an environment that gives pictures."""
_TALKATIVE = ("ray._common.deprecation", "ray.rllib.algorithms.algorithm_config")
"""Loggers of RLlib that tell of its own deprecated calls, and of its new API stack."""
Film = Callable[[gymnasium.Env], gymnasium.Env]


class EvaluationResult(NamedTuple):
    """The outcome of an evaluation."""

    returns: tuple[float, ...]
    """Undiscounted return of each episode, in the order of the seeds."""
    num_cut: int
    """Episodes that did not end and were cut at `evaluation.max_episode_steps`."""
    eval_time_s: float


def evaluate(
    config: AlgorithmConfig, state: State | None, spec: StudySpec, *, first_episode: int = 0, film: Film | None = None
) -> EvaluationResult:
    """Play `spec.evaluation.episodes` episodes on the fixed evaluation seeds.

    What the configuration's own `evaluation_config` says holds, such as another `env_config`.

    Args:
        config: What was trained, of `configuration_of`.
        state: Of `study.trial.policy`; None plays random actions, which depend on seed, episode and step alone.
        spec: The space.
        first_episode: Number of the first episode, which chooses the seeds.
        film: Wraps the environment of the first episode.

    Raises:
        RecordError: The numbers of `state` are of another network.
        TrialError: A reward or an output of the policy is not finite, the environment, a connector, a module or a
            callback raised, or it took longer than `resources.sample_timeout_s`.
    """
    torch.set_num_threads(spec.resources.num_cpus_for_main_process)  # another number can round another last digit
    started, episodes = time.perf_counter(), _Episodes(spec, first=first_episode)
    timeout_s = spec.resources.sample_timeout_s
    rule = f"{spec.evaluation.episodes} episodes must end within sample_timeout_s={timeout_s:g} s, they did not"
    fix = "Raise it, lower evaluation.episodes or max_episode_steps, or look for an environment that hangs."
    late = TrialError(where="evaluation", rule=rule, fix=fix)
    play: Callable[..., None] = _play if state is None or _is_plain(config, spec) else _play_by_runner
    generators = generators_now()
    try:
        within(timeout_s, lambda: play(config, state, spec, episodes, film), otherwise=late)
    except StudyError:
        raise
    except Exception as error:
        if episodes.fault is None:
            rule, got = "the policy must play, with its connectors and callbacks", described(original(error))
            fix = f"Its traceback is in {TRACEBACKS}."
            raise TrialError(where="evaluation", rule=rule, got=got, fix=fix) from error
    finally:
        set_generators(generators)  # a user's environment may draw from them
    if episodes.fault is not None:  # not from RLlib's error, which was raised from it and hides it: no closed chain
        raise episodes.fault
    return EvaluationResult(
        returns=tuple(each.total for each in episodes.all),
        num_cut=sum(each.cut for each in episodes.all),
        eval_time_s=time.perf_counter() - started,
    )


def _is_plain(config: AlgorithmConfig, spec: StudySpec) -> bool:
    """Return whether a policy can be played here, as the batched runner samples: without RLlib's runner."""
    given = config.evaluation_config or {}
    environment_alone = isinstance(given, Mapping) and given.keys() <= {"env", "env_config", "explore"}
    return environment_alone and not config.is_multi_agent and not (spec.script and spec.script.runner_obstacle)


def _worker_index(spec: StudySpec) -> int:
    """Return the number of the runner that judges: no other runner's, and the same in every trial of a study."""
    scales: list[int] = [*spec.scales, *(spec.holdup.unseen_scales if spec.holdup else ())]
    return 1 + max(scales)


def _maker(config: AlgorithmConfig, index: int, *, draws: bool) -> Callable[..., gymnasium.Env]:
    """Return what makes the environments of the runner with this number, one after another."""
    playing, numbers = _of_evaluation(config), itertools.count()
    if draws:
        playing.env_config = {**playing.env_config, "render_mode": DRAWS}
    return lambda _=None: make_environment(playing, worker_index=index, vector_index=next(numbers))


# --- episodes and lanes ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Episode:
    number: int
    seed: int
    total: float = 0.0
    steps: int = 0
    cut: bool = False
    over: bool = False


class _Episodes:
    """The episodes of an evaluation, in the order of the seeds, which its lanes take one after another."""

    def __init__(self, spec: StudySpec, *, first: int) -> None:
        seeds = evaluation_seeds(spec.evaluation.seed, spec.evaluation.episodes, first_episode=first)
        self.all = [_Episode(number, seed) for number, seed in enumerate(seeds, start=first)]
        self.waiting, self.limit = iter(self.all), spec.evaluation.max_episode_steps
        self.fault: TrialError | None = None
        """What went wrong in an environment."""


class _Lane(gymnasium.Wrapper):
    """An environment of one agent or several that plays the next episode at each reset, and stands still after all."""

    def __init__(self, env: gymnasium.Env, episodes: _Episodes) -> None:
        super().__init__(env)
        self._episodes = episodes
        self.episode: _Episode | None = None
        self._first: Any = None
        self.seen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode with its own seed."""
        self.episode = episode = next(self._episodes.waiting, None)
        if episode is None:
            return self._first, {}
        self.seen, info = self._call("reset", lambda: self.env.reset(seed=episode.seed, options=options))
        self._first = copy.deepcopy(self.seen)
        return self.seen, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step, count it, and cut the episode where it has lasted long enough."""
        episode = self.episode
        if episode is None:
            several = isinstance(self._first, dict) and hasattr(self.env.unwrapped, "possible_agents")
            nothing = dict.fromkeys(self._first, 0.0) if several else 0.0
            return self._first, nothing, *([{ALL: False}] * 2 if several else [False] * 2), {}
        episode.steps += 1
        self.seen, reward, terminated, truncated, info = self._call("step", lambda: self.env.step(action))
        # NumPy's sum takes as long as many an environment's step.
        gained: Any = sum(reward.values()) if isinstance(reward, Mapping) else reward
        episode.total += float(gained if isinstance(gained, (float, int)) else np.sum(gained))
        if not math.isfinite(episode.total):
            raise self.failed("rewards must be finite", str(reward))
        ended = any(flag.get(ALL) if isinstance(flag, Mapping) else flag for flag in (terminated, truncated))
        episode.cut = not ended and episode.steps >= self._episodes.limit
        episode.over = ended or episode.cut
        if episode.cut and isinstance(terminated, Mapping):
            # Truncation would need an observation of each agent, and those that wait for their turn have none.
            terminated = {**terminated, ALL: True}
        elif episode.cut:
            truncated = True
        return self.seen, reward, terminated, truncated, info

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except StudyError:
            raise
        except Exception as error:
            raise self.failed(f"`{what}` must not fail", described(error)) from error

    def failed(self, rule: str, got: str) -> TrialError:
        """Return the error of what this environment does wrong in this step."""
        number, step = self.place
        got = f"{got} at step {step} of episode {number}"
        self._episodes.fault = TrialError(where="evaluation", rule=rule, got=got, fix="Correct the environment.")
        return self._episodes.fault

    @property
    def place(self) -> tuple[int, int]:
        """Number of the episode, and of the steps that were taken in it."""
        assert self.episode is not None
        return self.episode.number, self.episode.steps


def _lanes(envs: Sequence[gymnasium.Env], episodes: _Episodes, film: Film | None) -> list[_Lane]:
    filmed = [film(env) for env in envs[:1]] if film else envs[:1]
    return [_Lane(env, episodes) for env in (*filmed, *envs[1:])]


# --- played here -----------------------------------------------------------------------------------------------------


def _play(
    config: AlgorithmConfig, state: State | None, spec: StudySpec, episodes: _Episodes, film: Film | None
) -> None:
    """Play with a network's actions side by side, or random ones one by one."""
    make = _maker(config, _worker_index(spec), draws=film is not None)
    most = 1 if state is None else _side_by_side(config, spec)
    with contextlib.ExitStack() as made:
        envs = [made.enter_context(contextlib.closing(make())) for _ in range(min(most, len(episodes.all)))]
        lanes = _lanes(envs, episodes, film)
        choose = _random_actions(spec.evaluation.seed) if state is None else _policy(config, state, spec, lanes[0])
        for lane in lanes:
            lane.reset()
        while active := [lane for lane in lanes if lane.episode is not None]:
            for lane, action in zip(active, choose(active), strict=True):
                lane.step(action)
                if lane.episode is not None and lane.episode.over:
                    lane.reset()


def _side_by_side(config: AlgorithmConfig, spec: StudySpec) -> int:
    if spec.environment.process == "own":
        return 1
    if spec.script is None:
        return MAX_LANES
    return MAX_SIDE_BY_SIDE if spec.script.sharing == "harmless" else int(config.num_envs_per_env_runner)


def _policy(config: AlgorithmConfig, state: State, spec: StudySpec, lane: _Lane) -> Callable[[Sequence[_Lane]], Any]:
    """Return what chooses the actions of lanes by a network, on inputs normalised as at the moment of `state`."""
    network, space = network_of(module_of(config, state)), lane.action_space
    moments = extensions.frozen_statistics(state.get(COMPONENT_ENV_TO_MODULE_CONNECTOR, {}))
    rule, scale, draws = action_rule(space), scaling_for_environment(space, config), spec.evaluation.stochastic
    # Number i of an episode's noise depends on seed, episode and i alone. Runners are numbered from 1, so that no lane
    # of a training has this noise.
    noise_of = functools.cache(lambda episode: LaneNoise(spec.evaluation.seed, 0, episode))

    def choose(lanes: Sequence[_Lane]) -> Any:
        # As the sampler's arrays in training: many an environment declares float32 and returns float64, which no
        # network takes.
        rows = np.stack([lane.seen for lane in lanes], dtype=np.float32, casting="unsafe")
        for lane, row in zip(lanes, rows, strict=True):
            if not np.isfinite(row).all():
                raise lane.failed("observations must be finite", "nan or inf")
        inputs = network(rows if moments is None else extensions.scaled_by(rows, *moments))
        if not np.isfinite(inputs).all():
            must = "the policy must answer finite numbers, it does not: the training diverged"
            raise TrialError(where="evaluation", rule=must, fix="Lower lr, clip_param or num_epochs.")
        if not draws:
            return scale(rule.greedy(inputs))
        size, places = rule.noise_size, [lane.place for lane in lanes]
        drawn = np.stack([noise_of(episode).uniforms(step * size, size) for episode, step in places])
        return scale(rule.choose(inputs, rule.noise(drawn)))

    return choose


def module_of(config: AlgorithmConfig, state: State) -> RLModule:
    """Return the network of a study with the numbers of a policy, without its value function, as the runners have it.

    Raises:
        RecordError: The numbers are of another network than the space's.
    """
    config = with_spaces(config)
    weights = {name: torch.from_numpy(np.array(each)) for name, each in state[MODULES][DEFAULT_MODULE_ID].items()}
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    both = (config.observation_space, config.action_space)
    with torch.random.fork_rng(devices=()):
        module: RLModule = config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: both}, inference_only=True).build()
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:  # which names what differs
        rule, got = "the policy must fit the environment and the network of the space", one_line(str(error), 300)
        fix = "Name the space that it was trained in."
        raise RecordError(where="checkpoint", rule=rule, got=got, fix=fix) from error
    return module


def _random_actions(seed: int) -> Callable[[Sequence[_Lane]], list[Any]]:
    """Return what draws actions that follow from seed, episode and step; of several agents of all that act now."""

    @functools.cache
    def own_space(lane: _Lane, agent: Any) -> gymnasium.Space:  # environments may draw from theirs
        return copy.deepcopy(lane.action_space if agent is None else lane.unwrapped.get_action_space(agent))

    def drawn(lane: _Lane, agent: Any = None, number: int = 0) -> Any:
        space = own_space(lane, agent)
        space.seed((random_action_seed(seed, *lane.place) + number) % 2**64)
        return space.sample()

    def of_lane(lane: _Lane) -> Any:
        if not isinstance(lane.unwrapped, MultiAgentEnv):
            return drawn(lane)
        return {agent: drawn(lane, agent, number) for number, agent in enumerate(lane.seen)}

    return lambda lanes: [of_lane(lane) for lane in lanes]


# --- played by RLlib's runner ----------------------------------------------------------------------------------------


def _play_by_runner(
    config: AlgorithmConfig, state: State, spec: StudySpec, episodes: _Episodes, film: Film | None
) -> None:
    explore = spec.evaluation.stochastic
    if extensions.frozen_statistics(state.get(COMPONENT_ENV_TO_MODULE_CONNECTOR, {})) is not None:
        config = config.copy(copy_frozen=False).env_runners(env_to_module_connector=extensions.normalized_observations)
    num_envs = min(_side_by_side(config, spec), len(episodes.all))
    index, draws = _worker_index(spec), film is not None
    with runner_of(config, index=index, num_envs=num_envs, explore=explore, draws=draws) as runner:
        seed_globally(spec.evaluation.seed)  # modules draw from these generators, and many an environment
        vector = runner.env.unwrapped
        vector.envs = type(vector.envs)(_lanes(vector.envs, episodes, film))
        runner.set_state(state)
        while not all(each.over for each in episodes.all):
            runner.sample(num_episodes=len(episodes.all), explore=explore)


@contextlib.contextmanager
def runner_of(
    config: AlgorithmConfig, *, index: int = 1, num_envs: int = 1, explore: bool = False, draws: bool = False
) -> Iterator[EnvRunner]:
    """Yield RLlib's runner of a configuration, or the configuration's own, with environments in this process.

    Their `worker_index` is `index`.
    """
    playing = _of_evaluation(config)
    changes: dict[str, Any] = {
        "env": _maker(config, index, draws=draws),  # RLlib would give one context, with one `env_config`, to all
        "num_env_runners": 0,
        "create_env_on_local_worker": True,
        "num_envs_per_env_runner": num_envs,
        "gym_env_vectorize_mode": "sync",
        "explore": explore,
        "restart_failed_sub_environments": False,  # its episode would count as another one
        "use_env_runner_state_server": False,
    }
    vars(playing).update(changes)
    kind: type[EnvRunner] = config.env_runner_cls or (
        MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Overriding environment")  # RLlib registers it for each runner
        runner = kind(config=playing, worker_index=0, num_workers=0)
    try:
        freeze_filters(runner)
        yield runner
    finally:
        runner.stop()


def _of_evaluation(config: AlgorithmConfig) -> AlgorithmConfig:
    return config.get_evaluation_config_object() or config.copy(copy_frozen=False)
