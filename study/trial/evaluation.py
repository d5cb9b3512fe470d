"""A policy plays the evaluation episodes in the main process, outside every training time. Imports RLlib and torch.

Episode number e always has evaluation seed e, is cut at the same step, and has as its return the sum of the
environment's own rewards: of several agents the sum, or one agent's. A trial plays episodes from 0 on; in the
confirmation of a hold-up study each trial begins at a number of its own. Without exploration unless the space says
`stochastic`; no random generator of the training is used. Two players count by the same `_Games`:

- Where the environment and the network are this project's, many lanes side by side with one forward pass for all. Noise
  depends on the episode and its step alone.
- Else RLlib's own env runner of the configuration: only it knows every connector and every state.
"""

import contextlib
import copy
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import VectorWrapper
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from study.errors import StudyError, TrialError
from study.ray_private import freeze_filters
from study.space.spec import StudySpec
from study.trial.deadline import within
from study.trial.engine.envs.environments import EnvFactory, judged_in
from study.trial.engine.sampling.acting import action_rule, dense_layers, scaling_for_environment
from study.trial.engine.sampling.lanes import LaneNoise, evaluation_seeds, random_action_seed
from study.trial.experiment import Experiment, make_environment
from study.trial.failures import TRACEBACKS, described, original
from study.trial.policy import State, module_of, read_state

MAX_LANES = 64
"""Episodes that our player plays side by side; more would cost memory and hardly save time."""
MAX_SIDE_BY_SIDE = 8
"""Episodes that RLlib's runner plays side by side: its work for each step is nearly the same for eight environments as
for one. The same number in a trial and when its policy plays again, so that connectors see the same."""
ALL = "__all__"
"""RLlib's key for an episode as a whole, among those of its agents."""

Floats = npt.NDArray[np.float32]
Choose = Callable[[Floats, Sequence[tuple[int, int]]], npt.NDArray[Any]]
"""Observations, shape (lanes, features), and (episode, step) of each lane -> actions for the environments, shape
(lanes, …)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """The outcome of an evaluation.

    Attributes:
        returns: Undiscounted return of each episode, shape (episodes,), in the order of the seeds.
        num_cut: Episodes that did not end and were cut at `evaluation.max_episode_steps`.
        eval_time_s: Wall time.
        seeds: Environment seed of each episode, shape (episodes,).
        actions: Of the first episodes, as many as were to be kept: what the environment was given at each step.
    """

    returns: tuple[float, ...]
    num_cut: int
    eval_time_s: float
    seeds: tuple[int, ...] = ()
    actions: tuple[tuple[Any, ...], ...] = ()


def evaluate(
    experiment: Experiment,
    state: State | None,
    spec: StudySpec,
    *,
    keep_actions: int = 0,
    first_episode: int = 0,
    beside: EnvRunner | None = None,
) -> EvaluationResult:
    """Play `spec.evaluation.episodes` episodes on the fixed evaluation seeds.

    What the configuration's own `evaluation_config` says holds, such as another `env_config`.

    Args:
        experiment: What was trained.
        state: Of `study.trial.policy.state_of`; None plays random actions, each of which depends on seed, episode and
            step alone.
        spec: The space.
        keep_actions: Episodes, from the first, whose actions are returned.
        first_episode: Number of the first episode, which chooses the seeds.
        beside: The evaluation runner of the algorithm that trains, if it has one. What an algorithm of a script's own
            puts on that, such as an actor that callbacks use, the runner that plays has too.

    Raises:
        TrialError: A reward or an output of the policy is not finite, the environment, a connector, a module or a
            callback raised, there is no such agent, or it took longer than `resources.sample_timeout_s`.
    """
    config = experiment.config
    if experiment.judged is not None and not experiment.runner_obstacle:
        return evaluate_module(
            None if state is None else module_of(experiment, state),
            spec,
            normalize_actions=bool(config.normalize_actions),
            clip_actions=bool(config.clip_actions),
            keep_actions=keep_actions,
            first_episode=first_episode,
        )

    def play(games: _Games) -> None:
        _play_by_runner(config, state, spec, games, beside)

    return _evaluated(play, spec, keep_actions, first_episode)


def evaluate_checkpoint(
    experiment: Experiment, checkpoint: Path | None, spec: StudySpec, *, keep_actions: int, first_episode: int
) -> EvaluationResult:
    """Play a policy that a trial has left, as it did; without a checkpoint play random actions.

    Raises:
        RecordError: The checkpoint cannot be read, or its network is another one.
        TrialError: As of `evaluate`; the policy may not fit a script.
    """
    # One thread more or less can round another last digit: as many as the trial had.
    torch.set_num_threads(spec.resources.num_cpus_for_main_process)
    state = None if checkpoint is None else read_state(checkpoint)
    return evaluate(experiment, state, spec, keep_actions=keep_actions, first_episode=first_episode)


def evaluate_module(
    module: RLModule | None,
    spec: StudySpec,
    *,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    keep_actions: int = 0,
    first_episode: int = 0,
) -> EvaluationResult:
    """Play the episodes with a plain network in an environment of this project, as `evaluate` does.

    Args:
        module: The policy; not changed. None: actions of the action space's own sampling. That is uniform over
            Discrete and MultiDiscrete, and over a Box between its bounds; where a Box has none, Gymnasium draws normal
            or exponential numbers.
        spec: The space.
        normalize_actions: Whether the policy's actions in [-1, 1] are scaled to the bounds (RLlib's default).
        clip_actions: Whether actions are clipped to the bounds when they are not scaled.
        keep_actions: Episodes, from the first, whose actions are returned.
        first_episode: Number of the first episode, which chooses the seeds.

    Raises:
        TrialError: As of `evaluate`.
    """

    def play(games: _Games) -> None:
        make = EnvFactory(judged_in(spec.evaluated_environment))
        number = 1 if module is None else min(MAX_LANES, len(games.seeds))
        with contextlib.ExitStack() as made:
            lanes = [_Lane(made.enter_context(contextlib.closing(make())), games, finite=True) for _ in range(number)]
            if module is None:
                _play_at_random(lanes[0], games, spec.evaluation.seed)
                return
            space = lanes[0].env.action_space
            scale = scaling_for_environment(space, normalize_actions=normalize_actions, clip_actions=clip_actions)
            draws = spec.evaluation.stochastic
            _play_lanes(
                _drawing(module, space, scale, spec.evaluation.seed) if draws else _greedy(module, space, scale), lanes
            )

    return _evaluated(play, spec, keep_actions, first_episode)


def _evaluated(
    play: Callable[["_Games"], None], spec: StudySpec, keep_actions: int, first_episode: int
) -> EvaluationResult:
    """Return what came of the episodes that `play` plays, which leaves the global generators as they were.

    Raises:
        TrialError: It took longer than `resources.sample_timeout_s`.
    """
    started, episodes, timeout_s = time.perf_counter(), spec.evaluation.episodes, spec.resources.sample_timeout_s
    games = _Games(
        seeds=evaluation_seeds(spec.evaluation.seed, episodes, first_episode=first_episode),
        first_episode=first_episode,
        limit=spec.evaluation.max_episode_steps,
        agent=spec.evaluation.agent,
        keep_actions=keep_actions,
    )
    late = TrialError(
        where="evaluation",
        rule=f"{episodes} episodes must end within sample_timeout_s={timeout_s:g} s, they did not",
        fix="Raise resources.sample_timeout_s, lower evaluation.episodes or evaluation.max_episode_steps, or look for "
        "an environment that hangs.",
    )
    with _undisturbed_randomness():
        within(timeout_s, lambda: play(games), otherwise=late)
    played = [games.played[episode] for episode in range(episodes)]
    return EvaluationResult(
        returns=tuple(game.total for game in played),
        num_cut=sum(game.cut for game in played),
        eval_time_s=time.perf_counter() - started,
        seeds=games.seeds,
        actions=tuple(tuple(game.actions) for game in played[:keep_actions]),
    )


@contextlib.contextmanager
def _undisturbed_randomness() -> Iterator[None]:
    """Leave the global generators as they were: a user's environment may draw from them."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 (the global generator is exactly what is meant)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


# --- what is counted -----------------------------------------------------------------------------------------------


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
        first_episode: Number of the first one, for messages and noise: the others here are counted from 0.
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

    def step(self, game: _Game, env: Any, action: Any) -> Any:
        """Return what the environment returns for an action, which is counted."""
        game.steps += 1
        if game.episode < self.keep_actions:
            game.actions.append(copy.deepcopy(action))
        return self.call("step", game, lambda: env.step(action))

    def see(self, game: _Game, reward: Any, *, ended: bool) -> None:
        """Count the reward of a step, and its episode where that is over."""
        game.total += counted(reward, self.agent)
        if not math.isfinite(game.total):
            raise self.failed(game, rule="rewards must be finite", got=str(reward))
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
            raise self.failed(game, rule=f"`{what}` must not fail", got=described(error)) from error

    def failed(self, game: _Game, *, rule: str, got: str) -> TrialError:
        """Keep what went wrong, and return it."""
        got = f"{got} at step {game.steps} of episode {self.first_episode + game.episode}"
        self.fault = TrialError(where="evaluation", rule=rule, got=got, fix="Correct the environment.")
        return self.fault


def counted(reward: Any, agent: str | None = None) -> float:
    """Return the reward of a step: of several agents the sum, or that of one, who may be absent in it."""
    if isinstance(reward, (float, int)):  # nearly always; NumPy's sum takes as long as many an environment's step
        return float(reward)
    if isinstance(reward, Mapping):
        return float(sum(value for name, value in reward.items() if agent in (None, str(name))))
    return float(np.sum(reward))


def has_ended(*flags: Any) -> bool:
    """Return whether an episode is over by one of the flags of a step, of one agent, of several or of a vector."""
    for flag in flags:
        if flag is False:
            continue
        if flag is True or bool(flag.get(ALL) if isinstance(flag, Mapping) else np.any(flag)):
            return True
    return False


class _Lane(gymnasium.Wrapper):
    """An environment of one agent or several that plays the next episode at each reset, and stands still after all."""

    def __init__(self, env: gymnasium.Env, games: _Games, *, finite: bool = False) -> None:
        """Wrap an environment; `finite`: its observations are arrays that must be finite."""
        super().__init__(env)
        self._games, self._finite = games, finite
        self._game: _Game | None = None
        self._first: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode with its own seed."""
        self._game = game = self._games.begin()
        if game is None:
            return self._first, {}
        own = self._games.seeds[game.episode]
        observation, info = self._games.call("reset", game, lambda: self.env.reset(seed=own, options=options))
        self._first = copy.deepcopy(observation)
        self._see(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step, and cut the episode where it has lasted long enough."""
        game = self._game
        if game is None:
            several = isinstance(self._first, dict) and hasattr(self.env.unwrapped, "possible_agents")
            nothing = dict.fromkeys(self._first, 0.0) if several else 0.0
            return self._first, nothing, *([{ALL: False}] * 2 if several else [False] * 2), {}
        observation, reward, terminated, truncated, info = self._games.step(game, self.env, action)
        self._see(observation)
        self._games.see(game, reward, ended=has_ended(terminated, truncated))
        if game.cut and isinstance(terminated, Mapping):
            # Truncation would need an observation of each agent, and those that wait for their turn have none.
            terminated = {**terminated, ALL: True}
        elif game.cut:
            truncated = True
        return observation, reward, terminated, truncated, info

    def _see(self, observation: Any) -> None:
        self.seen = observation
        if self._finite and not np.isfinite(observation).all():
            assert self._game is not None
            raise self._games.failed(self._game, rule="observations must be finite", got="nan or inf")

    @property
    def place(self) -> tuple[int, int]:
        """Number of the episode and of its next step."""
        assert self._game is not None
        return self._games.first_episode + self._game.episode, self._game.steps

    def begin(self) -> bool:
        """Begin the next episode; return whether there is one."""
        self.reset()
        return self._game is not None

    def go_on(self, action: Any) -> bool:
        """Take a step, and begin the next episode where this one is over; return whether there is one."""
        _, _, terminated, truncated, _ = self.step(action)
        return self.begin() if terminated or truncated else True


# --- our player ----------------------------------------------------------------------------------------------------


def _play_lanes(choose: Choose, lanes: Sequence[_Lane]) -> None:
    """Play all episodes; a lane whose episode ended takes the next one."""
    active = [lane for lane in lanes if lane.begin()]
    while active:
        # As the sampler's arrays in training: many an environment declares float32 and returns float64, which no
        # network takes.
        observations = np.stack([lane.seen for lane in active], dtype=np.float32, casting="unsafe")
        actions = choose(observations, [lane.place for lane in active])
        active = [lane for lane, action in zip(active, actions, strict=True) if lane.go_on(action)]


def _greedy(module: RLModule, space: gymnasium.Space, scale: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Choose:
    """Return the policy without exploration, its actions ready for the environment."""
    rule, layers = action_rule(space), dense_layers(module)

    def through_layers(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what `forward_inference` returns, by the same layers, without RLlib's work around each."""
        hidden = batch[Columns.OBS]
        for layer in layers or ():
            hidden = layer(hidden)
        return {Columns.ACTION_DIST_INPUTS: hidden}

    forward = through_layers if layers else module.forward_inference
    return lambda observations, _: scale(rule.greedy(_inputs(forward, observations)))


def _drawing(
    module: RLModule, space: gymnasium.Space, scale: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], seed: int
) -> Choose:
    """Return the policy with exploration; number i of an episode's noise depends on seed, episode and i alone."""
    rule, noises = action_rule(space), dict[int, LaneNoise]()

    def choose(observations: Floats, places: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
        inputs = _inputs(module.forward_exploration, observations)
        uniforms = np.stack(
            [
                # Runners are numbered from 1, so that no lane of a training has this noise.
                noises.setdefault(episode, LaneNoise(seed, 0, episode)).uniforms(
                    step * rule.noise_size, rule.noise_size
                )
                for episode, step in places
            ]
        )
        return scale(rule.choose(inputs, rule.noise(uniforms)))

    return choose


def _inputs(forward: Callable[[dict[str, Any]], dict[str, Any]], observations: Floats) -> Floats:
    """Return the inputs of the action distribution, shape (lanes, inputs)."""
    with torch.inference_mode():
        inputs: Floats = forward({Columns.OBS: torch.from_numpy(observations)})[Columns.ACTION_DIST_INPUTS].numpy()
    if not np.isfinite(inputs).all():
        where, rule = "evaluation", "the policy must answer finite numbers, it does not: the training diverged"
        raise TrialError(where=where, rule=rule, fix="Lower lr, clip_param or num_epochs.")
    return inputs


# --- RLlib's runner ------------------------------------------------------------------------------------------------


def _play_by_runner(
    config: AlgorithmConfig, state: State | None, spec: StudySpec, games: _Games, beside: EnvRunner | None
) -> None:
    """Play every episode of `games`."""
    shared = spec.script is None or spec.script.sharing == "harmless"
    most = MAX_SIDE_BY_SIDE if shared else int(config.num_envs_per_env_runner)  # no more than the script has
    num_envs = min(most, len(games.seeds))
    try:
        with runner_of(config, num_envs=num_envs, explore=spec.evaluation.stochastic) as runner:
            for name, value in ({} if beside is None else vars(beside)).items():
                vars(runner).setdefault(name, value)
            _seed_generators(spec.evaluation.seed)
            together = _wrap(runner, games)
            if state is None:
                _play_at_random(runner.env.unwrapped.envs[0] if together else runner.env, games, spec.evaluation.seed)
                return
            runner.set_state(state)
            while len(games.played) < len(games.seeds):
                runner.sample(num_episodes=len(games.seeds) if together else 1, explore=spec.evaluation.stochastic)
    except StudyError:
        raise
    except Exception as error:
        if games.fault is not None:  # RLlib hides it in an error of its own
            raise games.fault from error
        rule, got = "the policy must play, with its connectors and callbacks", described(original(error))
        fix = f"Its traceback is in {TRACEBACKS}."
        if isinstance(original(error), AttributeError):
            fix += " What an algorithm of the script's own gives to its runners is here only while it trains, and only "
            fix += "if it gives it to those of its `eval_env_runner_group` too."
        raise TrialError(where="evaluation", rule=rule, got=got, fix=fix) from error


@contextlib.contextmanager
def runner_of(config: AlgorithmConfig, *, num_envs: int = 1, explore: bool = False) -> Iterator[EnvRunner]:
    """Yield RLlib's runner of a configuration, or the configuration's own, with environments in this process.

    Args:
        config: Of the algorithm; not changed.
        num_envs: Environments. An environment that is a vector by itself is made with one.
        explore: Whether actions are drawn.
    """
    playing = _of_evaluation(config)
    own_vector = str(playing.gym_env_vectorize_mode) == "vector_entry_point"
    changes: dict[str, Any] = {
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
    playing = _of_evaluation(config)
    playing.env_config = {**playing.env_config, "render_mode": render_mode}
    with contextlib.closing(make_environment(playing)) as env:
        yield _OneReward(env, agent)


def _of_evaluation(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a copy with what the configuration says of evaluations."""
    return config.get_evaluation_config_object() or config.copy(copy_frozen=False)


class _OneReward(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, agent: str | None) -> None:
        super().__init__(env)
        self._agent = agent

    def step(self, action: Any) -> tuple[Any, float, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, counted(reward, self._agent), terminated, truncated, info


def _seed_generators(seed: int) -> None:
    """Seed the global generators, from which modules draw and many an environment, as the same call did before."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is exactly what is meant)
    torch.manual_seed(seed)


def _wrap(runner: EnvRunner, games: _Games) -> bool:
    """Let the runner play the episodes of `games`; return whether all in one call, side by side."""
    vector = runner.env.unwrapped
    if hasattr(vector, "envs"):
        games.check_agent(getattr(vector.envs[0].unwrapped, "possible_agents", ()))
        vector.envs = type(vector.envs)(_Lane(env, games) for env in vector.envs)
        return True
    games.check_agent(())
    runner.env = _CountedVector(runner.env, games)
    return False


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
        observations, rewards, terminated, truncated, infos = self._games.step(game, self.env, actions)
        self._games.see(game, rewards[0], ended=has_ended(terminated, truncated))
        return observations, rewards, terminated, np.array([bool(truncated[0]) or game.cut]), infos


# --- a random policy -----------------------------------------------------------------------------------------------


def _play_at_random(env: Any, games: _Games, seed: int) -> None:
    """Play every episode in an environment that counts, with actions of the action space's own sampling."""
    actions = RandomActions(env)
    while (episode := len(games.played)) < len(games.seeds):
        observation, _ = env.reset()
        for step in range(games.limit):
            observation, *_ = env.step(
                actions.draw(observation, random_action_seed(seed, games.first_episode + episode, step))
            )
            if episode in games.played:
                break


class RandomActions:
    """Actions that follow from a seed; of several agents those of all that act now."""

    def __init__(self, environment: Any) -> None:
        """Draw for an environment of Gymnasium, or RLlib's for several agents."""
        self._environment = environment
        self._spaces: dict[Any, gymnasium.Space] = {}

    def draw(self, observation: Any, seed: int) -> Any:
        """Return an action, or agent -> action."""
        several = self._environment.unwrapped
        if not isinstance(several, MultiAgentEnv):
            return self._drawn(None, self._environment.action_space, observation, seed)
        return {
            agent: self._drawn(agent, several.get_action_space(agent), seen, (seed + place) % 2**64)
            for place, (agent, seen) in enumerate(observation.items())
        }

    def _drawn(self, agent: Any, space: gymnasium.Space, observation: Any, seed: int) -> Any:
        """Return an action; of those that are allowed where the observation says which, as RLlib's examples do."""
        if agent not in self._spaces:  # a copy: an environment may draw from its space too
            self._spaces[agent] = copy.deepcopy(space)
        own = self._spaces[agent]
        own.seed(seed)
        mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
        if mask is None or not isinstance(space, gymnasium.spaces.Discrete):
            return own.sample()
        return own.sample(mask=np.asarray(mask, dtype=np.int8))
