"""Greedy evaluation in the main process, outside every training time. Imports RLlib's module API and torch.

Episode number e always has evaluation seed e. Several episodes are played side by side. A trial plays episodes from 0
on; in the confirmation of a hold-up study each trial begins at a number of its own. Actions are chosen and scaled as by
RLlib's connectors with `explore=False`, and no random generator of the training is used. With `evaluation.stochastic`
the policy draws its actions, as in training; the noise depends on the episode and its step alone. The same holds for
the actions of a random policy, which needs no module.
"""

import contextlib
import copy
import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import TrialError
from study.space.sections import EnvironmentSpec
from study.space.spec import StudySpec
from study.trial.deadline import Result, within
from study.trial.engine.envs.classic import ClassicTasks
from study.trial.engine.envs.environments import EnvFactory, judged_in
from study.trial.engine.envs.lane_envs import steps_together
from study.trial.engine.sampling.acting import action_rule, dense_layers, scaling_for_environment
from study.trial.engine.sampling.lanes import LaneNoise, evaluation_seeds, random_action_seed
from study.trial.failures import described

MAX_LANES = 64
"""Episodes played side by side; more would cost memory and hardly save time."""

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Policy = Callable[[Floats, Sequence[tuple[int, int]]], npt.NDArray[Any]]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The outcome of one episode."""

    total: float
    cut: bool
    actions: tuple[Any, ...]


def evaluate(
    module: RLModule,
    spec: StudySpec,
    *,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    keep_actions: int = 0,
    first_episode: int = 0,
) -> EvaluationResult:
    """Play `spec.evaluation.episodes` episodes on the fixed evaluation seeds, greedily or as `stochastic` there says.

    Args:
        module: The policy; not changed.
        spec: The space.
        normalize_actions: Whether the policy's actions in [-1, 1] are scaled to the bounds (RLlib's default).
        clip_actions: Whether actions are clipped to the bounds when they are not scaled.
        keep_actions: Episodes, from the first, whose actions are returned.
        first_episode: Number of the first episode, which chooses the seeds.

    Raises:
        TrialError: A reward or an output of the policy is not finite, the environment raised, or the
            evaluation took longer than `resources.sample_timeout_s`.
    """

    def policy_in(space: gymnasium.Space) -> Policy:
        scale = scaling_for_environment(space, normalize_actions=normalize_actions, clip_actions=clip_actions)
        if spec.evaluation.stochastic:
            return _drawing(module, space, scale, spec.evaluation.seed)
        return _greedy(module, space, scale)

    return _evaluate(policy_in, spec, keep_actions, first_episode)


def evaluate_random(spec: StudySpec, *, keep_actions: int = 0) -> EvaluationResult:
    """Play the same episodes as `evaluate` with actions of the action space's own sampling.

    That is uniform over Discrete and MultiDiscrete, and over a Box between its bounds; where a Box has none, Gymnasium
    draws normal or exponential numbers. An action depends on `spec.evaluation.seed`, the episode and its step alone.

    Raises:
        TrialError: As of `evaluate`.
    """
    return _evaluate(lambda space: _random(space, spec.evaluation.seed), spec, keep_actions)


def _evaluate(
    policy_in: Callable[[gymnasium.Space], Policy], spec: StudySpec, keep_actions: int, first_episode: int = 0
) -> EvaluationResult:
    """Play the evaluation episodes with the policy that `policy_in` makes for their action space."""
    started, episodes = time.perf_counter(), spec.evaluation.episodes
    seeds = evaluation_seeds(spec.evaluation.seed, episodes, first_episode=first_episode)

    def play() -> list[_Outcome]:
        tasks = _tasks(spec, min(MAX_LANES, episodes))
        try:
            game = _Game(tasks, seeds, first_episode, limit=spec.evaluation.max_episode_steps, keep=keep_actions)
            return game.play(policy_in(tasks.action_space))
        finally:
            tasks.close()

    outcomes = played_apart(play, spec)
    return EvaluationResult(
        returns=tuple(outcome.total for outcome in outcomes),
        num_cut=sum(outcome.cut for outcome in outcomes),
        eval_time_s=time.perf_counter() - started,
        seeds=seeds,
        actions=tuple(outcome.actions for outcome in outcomes[:keep_actions]),
    )


def played_apart(play: Callable[[], Result], spec: StudySpec) -> Result:
    """Return what playing the episodes returns, which leaves the global generators as they were.

    Raises:
        TrialError: It took longer than `resources.sample_timeout_s`.
    """
    timeout_s = spec.resources.sample_timeout_s
    late = TrialError(
        where="evaluation",
        rule=f"{spec.evaluation.episodes} episodes must end within sample_timeout_s={timeout_s:g} s, they did not",
        fix="Raise resources.sample_timeout_s, lower evaluation.episodes or evaluation.max_episode_steps, or look for "
        "an environment that hangs.",
        code="evaluation-late",
    )
    with _undisturbed_randomness():
        return within(timeout_s, play, otherwise=late)


def _tasks(spec: StudySpec, number: int) -> "ClassicTasks | _OneByOne":
    """Return environments of which each plays an episode of its own."""
    environment = judged_in(spec.evaluated_environment)
    together = None if environment.kwargs else _together(environment.model_dump_json(), number)
    make = EnvFactory(environment)
    return together or _OneByOne([make() for _ in range(number)])


@functools.lru_cache(maxsize=1)
def _together(environment: str, number: int) -> ClassicTasks | None:
    """Return environments that arrays can step, for all evaluations of a process: a reset leaves nothing behind."""
    make = EnvFactory(EnvironmentSpec.model_validate_json(environment))
    return ClassicTasks([make() for _ in range(number)]) if steps_together(make) else None


class _OneByOne:
    """Any environments, with the methods of `ClassicTasks`."""

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        self._envs, self.num_envs = envs, len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space

    def reset(self, index: int, seed: int) -> npt.NDArray[Any]:
        try:
            observation, _ = self._envs[index].reset(seed=seed)
        except Exception as error:
            raise _FailedError("reset", index) from error
        return self._checked(observation, index)

    def step(
        self, chosen: Integers, actions: npt.NDArray[Any], observations: Floats
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        rewards, terminated, truncated = [], [], []
        for row, (index, action) in enumerate(zip(chosen.tolist(), actions, strict=True)):
            try:
                observation, reward, ends, cut, _ = self._envs[index].step(action)
                rewards.append(float(reward))
            except Exception as error:
                raise _FailedError("step", index) from error
            # As the sampler's arrays in training: many an environment declares float32 and returns float64, which no
            # network takes.
            observations[row] = self._checked(observation, index)
            terminated.append(bool(ends))
            truncated.append(bool(cut))
        return np.array(rewards), np.array(terminated), np.array(truncated)

    def _checked(self, observation: Any, index: int) -> npt.NDArray[Any]:
        if not np.isfinite(observation).all():
            raise _NotFiniteError("observations", "nan or inf", index)
        return np.asarray(observation)

    def close(self) -> None:
        for env in self._envs:
            env.close()


class _FailedError(Exception):
    """(method, environment) that raised; why is its cause."""


class _NotFiniteError(Exception):
    """(what, got, environment) of a number that no evaluation can use."""


class _Game:
    """Plays the episodes; an environment whose episode ended takes the next seed."""

    def __init__(
        self, tasks: ClassicTasks | _OneByOne, seeds: Sequence[int], first_episode: int, *, limit: int, keep: int
    ) -> None:
        self._tasks, self._first, self._limit = tasks, first_episode, limit
        self._waiting = iter(enumerate(seeds))
        self._observations = np.empty((tasks.num_envs, *(tasks.observation_space.shape or ())), np.float32)
        self._episodes = np.zeros(tasks.num_envs, np.int64)
        self._steps = np.zeros(tasks.num_envs, np.int64)
        self._totals = np.zeros(tasks.num_envs)
        self._actions: dict[int, list[Any]] = {episode: [] for episode in range(min(keep, len(seeds)))}
        self._outcomes: list[_Outcome | None] = [None] * len(seeds)

    def play(self, policy: Policy) -> list[_Outcome]:
        """Return the outcome of each seed."""
        try:
            active = np.array([index for index in range(self._tasks.num_envs) if self._start(index)])
            while active.size:
                active = active[self._advance(policy, active)]
        except _FailedError as error:
            what, index = error.args
            cause: Any = error.__cause__
            rule, code = f"`{what}` must not fail", "evaluation-environment-failed"
            raise self.failed(
                index, rule=rule, got=described(cause), fix="Correct the environment.", code=code
            ) from cause
        except _NotFiniteError as error:
            what, number, index = error.args
            rule, code = f"{what} must be finite", "evaluation-not-finite"
            raise self.failed(index, rule=rule, got=number, fix="Correct the environment.", code=code) from None
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _start(self, index: int) -> bool:
        """Begin the next episode in an environment; return whether there is one."""
        following = next(self._waiting, None)
        if following is None:
            return False
        self._episodes[index], seed = following
        self._steps[index], self._totals[index] = 0, 0.0
        self._observations[index] = self._tasks.reset(index, seed)
        return True

    def _advance(self, policy: Policy, active: Integers) -> npt.NDArray[np.bool_]:
        """Take one step in the active environments; return which of them go on."""
        episodes, steps = self._episodes[active], self._steps[active]
        places = list(zip((self._first + episodes).tolist(), steps.tolist(), strict=True))
        actions = policy(self._observations[active], places)
        for episode, action in zip(episodes.tolist(), actions, strict=True) if self._actions else ():
            if episode in self._actions:
                self._actions[episode].append(np.array(action))
        seen = np.empty((active.size, *self._observations.shape[1:]), np.float32)
        self._steps[active] += 1
        rewards, terminated, truncated = self._tasks.step(active, actions, seen)
        self._observations[active] = seen
        totals = self._totals[active] + rewards
        self._totals[active] = totals
        if not np.isfinite(totals).all():
            wrong = int(np.flatnonzero(~np.isfinite(totals))[0])
            raise _NotFiniteError("rewards", str(rewards[wrong]), int(active[wrong]))
        ended = terminated | truncated
        cut = ~ended & (self._steps[active] >= self._limit)
        going: npt.NDArray[np.bool_] = ~(ended | cut)
        for row in np.flatnonzero(~going).tolist():
            episode = int(episodes[row])
            self._outcomes[episode] = _Outcome(
                total=float(totals[row]), cut=bool(cut[row]), actions=tuple(self._actions.pop(episode, ()))
            )
            going[row] = self._start(int(active[row]))
        return going

    def failed(self, index: int, *, rule: str, got: str, fix: str, code: str = "") -> TrialError:
        """Return what went wrong in an environment, with its step and episode."""
        got = f"{got} at step {self._steps[index]} of episode {self._first + self._episodes[index]}"
        return TrialError(where="evaluation", rule=rule, got=got, fix=fix, code=code)


def _greedy(module: RLModule, space: gymnasium.Space, scale: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Policy:
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
) -> Policy:
    """Return the policy with exploration; number i of an episode's noise depends on seed, episode and i alone."""
    rule, noises = action_rule(space), dict[int, LaneNoise]()

    def policy(observations: Floats, places: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
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

    return policy


def _random(space: gymnasium.Space, seed: int) -> Policy:
    """Return a policy that ignores observations."""
    own = copy.deepcopy(space)  # an environment may draw from its space too

    def draw(episode: int, step: int) -> Any:
        own.seed(random_action_seed(seed, episode, step))
        return own.sample()

    return lambda _, places: np.stack([draw(*place) for place in places])


def _inputs(forward: Callable[[dict[str, Any]], dict[str, Any]], observations: Floats) -> Floats:
    """Return the inputs of the action distribution, shape (lanes, inputs)."""
    with torch.inference_mode():
        inputs: Floats = forward({Columns.OBS: torch.from_numpy(observations)})[Columns.ACTION_DIST_INPUTS].numpy()
    if not np.isfinite(inputs).all():
        where, rule = "evaluation", "the policy must answer finite numbers, it does not: the training diverged"
        raise TrialError(where=where, rule=rule, fix="Lower lr, clip_param or num_epochs.", code="policy-not-finite")
    return inputs


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
