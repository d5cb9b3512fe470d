"""Evaluation of a policy with parts of a person's own: own modules, connectors with state, recurrent networks, agents.

RLlib's own env runner of the configuration plays, without exploration unless the space says `stochastic`: only it knows
every connector and every state. The environments are wrapped, so that episode e has the same seed as in
`study.trial.evaluation`, is cut at the same step, and has as its return the sum of the environment's own rewards. Of
several agents the returns are added up, or one agent's is taken. Imports RLlib and torch.
"""

import contextlib
import copy
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorWrapper
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from study.errors import StudyError, TrialError
from study.ray_private import freeze_filters, merged_connectors
from study.space.spec import StudySpec
from study.trial.engine.sampling.lanes import evaluation_seeds, random_action_seed
from study.trial.evaluation import EvaluationResult, played_apart
from study.trial.failures import described, original
from study.trial.script_environment import ALL, counted, has_ended, random_action

MAX_SIDE_BY_SIDE = 8
"""Episodes played side by side: the runner's work for each step is nearly the same for eight environments as for one.
The same number in a trial and when its policy plays again, so that connectors see the same."""

State = dict[str, Any]
"""What `EnvRunner.set_state` takes: the numbers of the modules, and the states of both connector pipelines."""


def state_of(algorithm: Algorithm) -> State:
    """Return what a runner must know to act as the policy does now: weights, and the states of the connectors."""
    modules = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
    learnt = algorithm.learner_group.get_state(components=[modules], inference_only=True)[COMPONENT_LEARNER]
    # RLlib merges the states of all runners into those of the local one, or into those that its state server holds.
    connectors = algorithm.env_runner_group.local_env_runner.get_state(not_components=COMPONENT_RL_MODULE)
    connectors |= merged_connectors(algorithm, timeout_s=algorithm.config.sample_timeout_s)
    return {**connectors, COMPONENT_RL_MODULE: learnt[COMPONENT_RL_MODULE]}


def evaluate_script(
    config: AlgorithmConfig,
    state: State | None,
    spec: StudySpec,
    *,
    keep_actions: int = 0,
    first_episode: int = 0,
    beside: EnvRunner | None = None,
) -> EvaluationResult:
    """Play `spec.evaluation.episodes` episodes on the fixed evaluation seeds with RLlib's runner of a configuration.

    What the configuration's own `evaluation_config` says holds, such as another `env_config`.

    Args:
        config: Of the algorithm; not changed.
        state: Of `state_of`; None plays random actions, each of which depends on seed, episode and step alone.
        spec: The space.
        keep_actions: Episodes, from the first, whose actions are returned.
        first_episode: Number of the first episode, which chooses the seeds.
        beside: The evaluation runner of the algorithm that trains, if it has one. What an algorithm of the script's
            own puts on that, such as an actor that callbacks use, the runner that plays has too.

    Raises:
        TrialError: A reward is not finite, the environment, a connector, a module or a callback raised, there is no
            such agent, or the evaluation took longer than `resources.sample_timeout_s`.
    """
    started, episodes = time.perf_counter(), spec.evaluation.episodes
    games = _Games(
        seeds=evaluation_seeds(spec.evaluation.seed, episodes, first_episode=first_episode),
        first_episode=first_episode,
        limit=spec.evaluation.max_episode_steps,
        agent=spec.evaluation.agent,
        keep_actions=keep_actions,
    )
    played_apart(lambda: _play(config, state, spec, games, beside), spec)
    played = [games.played[episode] for episode in range(episodes)]
    return EvaluationResult(
        returns=tuple(game.total for game in played),
        num_cut=sum(game.cut for game in played),
        eval_time_s=time.perf_counter() - started,
        seeds=games.seeds,
        actions=tuple(tuple(game.actions) for game in played[:keep_actions]),
    )


def _play(
    config: AlgorithmConfig,
    state: State | None,
    spec: StudySpec,
    games: "_Games",
    beside: EnvRunner | None,
) -> None:
    """Play every episode of `games`."""
    num_envs = min(MAX_SIDE_BY_SIDE, len(games.seeds))
    try:
        with runner_of(config, num_envs=num_envs, explore=spec.evaluation.stochastic) as runner:
            for name, value in ({} if beside is None else vars(beside)).items():
                vars(runner).setdefault(name, value)
            _seed_generators(spec.evaluation.seed)
            if state is None:
                _play_at_random(runner, games, spec.evaluation.seed)
                return
            runner.set_state(state)
            together = _wrap(runner, games)
            while len(games.played) < len(games.seeds):
                runner.sample(num_episodes=len(games.seeds) if together else 1, explore=spec.evaluation.stochastic)
    except StudyError:
        raise
    except Exception as error:
        if games.fault is not None:  # RLlib hides it in an error of its own
            raise games.fault from error
        rule, got = "the policy must play, with its connectors and callbacks", described(original(error))
        fix = "See the traceback: it names the line."
        if isinstance(original(error), AttributeError):
            fix += " What an algorithm of the script's own gives to its runners is here only while it trains, and only "
            fix += "if it gives it to those of its `eval_env_runner_group` too."
        raise TrialError(where="evaluation", rule=rule, got=got, fix=fix) from error


@contextlib.contextmanager
def runner_of(
    config: AlgorithmConfig, *, num_envs: int = 1, explore: bool = False, **env_config: Any
) -> Iterator[EnvRunner]:
    """Yield RLlib's runner of a configuration, or the configuration's own, with environments in this process.

    Args:
        config: Of the algorithm; not changed.
        num_envs: Environments. An environment that is a vector by itself is made with one.
        explore: Whether actions are drawn.
        env_config: What is given to the environment besides what the configuration says.
    """
    playing = config.get_evaluation_config_object() or config.copy(copy_frozen=False)
    own_vector = str(playing.gym_env_vectorize_mode) == "vector_entry_point"
    changes: dict[str, Any] = {
        "env_config": {**playing.env_config, **env_config},
        "num_env_runners": 0,
        "create_env_on_local_worker": True,
        "num_envs_per_env_runner": 1 if own_vector else num_envs,
        "gym_env_vectorize_mode": "vector_entry_point" if own_vector else "sync",
        "explore": explore,
        "restart_failed_sub_environments": False,  # its episode would count as another one
        "use_env_runner_state_server": False,
    }
    for name, value in changes.items():
        setattr(playing, name, value)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Overriding environment")  # RLlib registers it for each runner
        runner: EnvRunner = _runner_class(config)(config=playing, worker_index=0, num_workers=0)
    try:
        freeze_filters(runner)
        yield runner
    finally:
        runner.stop()


@contextlib.contextmanager
def drawing_environment(
    config: AlgorithmConfig, render_mode: str, *, agent: str | None = None
) -> Iterator[gymnasium.Env]:
    """Yield an environment of a configuration that draws, with one number as its reward.

    Args:
        config: Of the algorithm; not changed.
        render_mode: What the environment is given as `render_mode`.
        agent: Whose rewards are counted, where several agents act; None: the sum over all.
    """
    with runner_of(config, render_mode=render_mode) as runner:
        yield _OneReward(runner.env.unwrapped.envs[0], agent)


class _OneReward(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, agent: str | None) -> None:
        super().__init__(env)
        self._agent = agent

    def step(self, action: Any) -> tuple[Any, float, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, counted(reward, self._agent), terminated, truncated, info


def _runner_class(config: AlgorithmConfig) -> type[EnvRunner]:
    """Return the class of the runners without what a study adds to it."""
    own: type[EnvRunner] | None = getattr(config, "hosted_runner_cls", None) or config.env_runner_cls
    if own is None:
        own = MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner
    return next(each for each in own.__mro__ if not each.__module__.startswith("study."))


def _seed_generators(seed: int) -> None:
    """Seed the global generators, from which modules draw and many an environment, as the same call did before."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is exactly what is meant)
    torch.manual_seed(seed)


# --- what is counted ---------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Game:
    """An episode, as far as it was played."""

    episode: int
    total: float = 0.0
    steps: int = 0
    cut: bool = False
    actions: list[Any] = field(default_factory=list)


@dataclass
class _Games:
    """The episodes of an evaluation: those to be played, and those that were.

    Attributes:
        first_episode: Number of the first one, for messages: the others here are counted from 0.
        fault: What went wrong in an environment.
    """

    seeds: tuple[int, ...]
    first_episode: int
    limit: int
    agent: str | None
    keep_actions: int
    played: dict[int, _Game] = field(default_factory=dict)
    begun: int = 0
    fault: TrialError | None = None

    def begin(self) -> _Game | None:
        """Return the next episode; None where all have begun."""
        if self.begun == len(self.seeds):
            return None
        self.begun += 1
        return _Game(episode=self.begun - 1)

    def see(self, game: _Game, action: Any, reward: Any, *, ended: bool) -> None:
        """Count a step."""
        game.steps += 1
        if game.episode < self.keep_actions:
            game.actions.append(copy.deepcopy(action))
        game.total += counted(reward, self.agent)
        if not np.isfinite(game.total):
            raise self.failed(game, rule="rewards must be finite", got=str(reward), fix="Correct the environment.")
        game.cut = not ended and game.steps >= self.limit
        if ended or game.cut:
            self.played[game.episode] = game

    def check_agent(self, agents: Sequence[Any]) -> None:
        """Refuse the name of an agent that there is not."""
        if self.agent is not None and self.agent not in map(str, agents):
            known = ", ".join(map(str, agents)) or "none: one agent acts"
            rule, fix = f"must be one of the agents ({known})", "Name one, or leave it out for the sum over all."
            raise TrialError(where="evaluation.agent", rule=rule, got=repr(self.agent), fix=fix)

    def call(self, what: str, game: _Game, function: Callable[[], Any]) -> Any:
        """Return what a function of the environment returns."""
        try:
            return function()
        except Exception as error:
            rule = f"`{what}` must not fail"
            raise self.failed(game, rule=rule, got=described(error), fix="Correct the environment.") from error

    def failed(self, game: _Game, *, rule: str, got: str, fix: str) -> TrialError:
        """Keep what went wrong, and return it."""
        got = f"{got} at step {game.steps} of episode {self.first_episode + game.episode}"
        self.fault = TrialError(where="evaluation", rule=rule, got=got, fix=fix)
        return self.fault


def _wrap(runner: EnvRunner, games: _Games) -> bool:
    """Let the runner play the episodes of `games`; return whether all in one call, side by side."""
    vector = runner.env.unwrapped
    if hasattr(vector, "envs"):
        games.check_agent(getattr(vector.envs[0].unwrapped, "possible_agents", ()))
        vector.envs = type(vector.envs)(_Counted(env, games) for env in vector.envs)
        return True
    games.check_agent(())
    runner.env = _CountedVector(runner.env, games)
    return False


class _Counted(gymnasium.Wrapper):
    """An environment of one agent or several that plays the next episode at each reset, and stands still after all."""

    def __init__(self, env: gymnasium.Env, games: _Games) -> None:
        super().__init__(env)
        self._games = games
        self._game: _Game | None = None
        self._first: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode with its own seed."""
        self._game = self._games.begin()
        if self._game is None:
            return self._first, {}
        seed = self._games.seeds[self._game.episode]
        observation, info = self._games.call("reset", self._game, lambda: self.env.reset(seed=seed, options=options))
        self._first = copy.deepcopy(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step, and cut the episode where it has lasted long enough."""
        game = self._game
        if game is None:
            several = isinstance(self._first, dict) and hasattr(self.env.unwrapped, "possible_agents")
            nothing = dict.fromkeys(self._first, 0.0) if several else 0.0
            return self._first, nothing, *([{ALL: False}] * 2 if several else [False] * 2), {}
        observation, reward, terminated, truncated, info = self._games.call("step", game, lambda: self.env.step(action))
        several = isinstance(terminated, Mapping)
        self._games.see(game, action, reward, ended=has_ended(terminated, truncated))
        if game.cut and several:
            # Truncation would need an observation of each agent, and those that wait for their turn have none.
            terminated = {**terminated, ALL: True}
        elif game.cut:
            truncated = True
        return observation, reward, terminated, truncated, info


class _CountedVector(VectorWrapper):
    """A person's own vector environment with one environment in it: each reset begins the next episode."""

    def __init__(self, env: Any, games: _Games) -> None:
        super().__init__(env)
        self._games = games
        self._game: _Game | None = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Begin the next episode with its own seed."""
        self._game = game = self._games.begin()
        assert game is not None  # a call of the runner plays one episode
        return self._games.call(
            "reset", game, lambda: self.env.reset(seed=[self._games.seeds[game.episode]], options=options)
        )

    def step(self, actions: Any) -> Any:
        """Take a step, and cut the episode where it has lasted long enough."""
        game = self._game
        assert game is not None
        observations, rewards, terminated, truncated, infos = self._games.call(
            "step", game, lambda: self.env.step(actions)
        )
        self._games.see(game, actions, rewards[0], ended=has_ended(terminated, truncated))
        return observations, rewards, terminated, np.array([bool(truncated[0]) or game.cut]), infos


# --- a random policy ----------------------------------------------------------------------------------------------


def _play_at_random(runner: EnvRunner, games: _Games, seed: int) -> None:
    """Play every episode with actions of the action space's own sampling."""
    together = _wrap(runner, games)
    env = runner.env.unwrapped.envs[0] if together else runner.env
    while (episode := len(games.played)) < len(games.seeds):
        observation, _ = env.reset()
        for step in range(games.limit):
            draw = random_action_seed(seed, games.first_episode + episode, step)
            observation, *_ = env.step(random_action(env, observation, draw))
            if episode in games.played:
                break
