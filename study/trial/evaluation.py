"""Greedy evaluation in the main process, outside every training time. Imports RLlib's module API and torch.

Episode number e always has evaluation seed e. Several episodes are played side by side. A trial plays episodes from 0
on; in the confirmation of a hold-up study each trial begins at a number of its own. Actions are chosen and scaled as by
RLlib's connectors with `explore=False`, and no random generator of the training is used. With `evaluation.stochastic`
the policy draws its actions, as in training; the noise depends on the episode and its step alone. The same holds for
the actions of a random policy, which needs no module.
"""

import contextlib
import copy
import math
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
from study.space.spec import StudySpec
from study.trial.deadline import Result, within
from study.trial.engine.envs.environments import EnvFactory, judged_in
from study.trial.engine.sampling.acting import action_rule, dense_layers, scaling_for_environment
from study.trial.engine.sampling.lanes import LaneNoise, evaluation_seeds, random_action_seed
from study.trial.failures import described

MAX_LANES = 64
"""Episodes played side by side; more would cost memory and hardly save time."""

Floats = npt.NDArray[np.float32]
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
        make = EnvFactory(judged_in(spec.evaluated_environment))
        with contextlib.ExitStack() as made:
            envs = [made.enter_context(contextlib.closing(make())) for _ in range(min(MAX_LANES, episodes))]
            lanes = [_Lane(env, spec.evaluation.max_episode_steps, first_episode + keep_actions) for env in envs]
            return _play(policy_in(envs[0].action_space), lanes, list(enumerate(seeds, first_episode)))

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
    )
    with _undisturbed_randomness():
        return within(timeout_s, play, otherwise=late)


def _play(policy: Policy, lanes: Sequence["_Lane"], episodes: Sequence[tuple[int, int]]) -> list[_Outcome]:
    """Return the outcome of each episode (number, seed); a lane whose episode ended takes the next one."""
    outcomes: dict[int, _Outcome] = {}
    waiting = iter(episodes)
    active = [lane for lane in lanes if lane.start(next(waiting, None))]
    while active:
        # As the sampler's arrays in training: many an environment declares float32 and returns float64, which no
        # network takes.
        observations = np.stack([lane.observation for lane in active], dtype=np.float32, casting="unsafe")
        actions = policy(observations, [(lane.episode, lane.steps) for lane in active])
        going = []
        for lane, action in zip(active, actions, strict=True):
            outcome = lane.step(action)
            if outcome is not None:
                outcomes[lane.episode] = outcome
            if outcome is None or lane.start(next(waiting, None)):
                going.append(lane)
        active = going
    return [outcomes[episode] for episode, _ in episodes]


class _Lane:
    """One environment with the episode that it plays."""

    def __init__(self, env: gymnasium.Env, limit: int, keep_below: int) -> None:
        self._env, self._limit = env, limit
        self._keep_below = keep_below
        """Number of the first episode whose actions are not kept."""

    def start(self, following: tuple[int, int] | None) -> bool:
        """Begin the episode (number, seed); return whether there is one."""
        if following is None:
            return False
        self.episode, seed = following
        self.steps, self._total = 0, 0.0
        self._actions: list[Any] = []
        with self._named("reset"):
            observation, _ = self._env.reset(seed=seed)
        self._see(observation)
        return True

    def step(self, action: Any) -> _Outcome | None:
        """Take one step; return the outcome of the episode where it ends."""
        self.steps += 1
        if self.episode < self._keep_below:
            self._actions.append(np.array(action))
        with self._named("step"):
            observation, reward, terminated, truncated, _ = self._env.step(action)
            self._total += float(reward)
        self._see(observation)
        if not math.isfinite(self._total):
            raise self._failed("rewards must be finite", str(reward))
        ended = bool(terminated or truncated)
        if not ended and self.steps < self._limit:
            return None
        return _Outcome(total=self._total, cut=not ended, actions=tuple(self._actions))

    def _see(self, observation: npt.NDArray[Any]) -> None:
        if not np.isfinite(observation).all():
            raise self._failed("observations must be finite", "nan or inf")
        self.observation = observation

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Let what the environment raises name the step and the episode."""
        try:
            yield
        except Exception as error:
            raise self._failed(f"`{what}` must not fail", described(error)) from error

    def _failed(self, rule: str, got: str) -> TrialError:
        got = f"{got} at step {self.steps} of episode {self.episode}"
        return TrialError(where="evaluation", rule=rule, got=got, fix="Correct the environment.")


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
        raise TrialError(where=where, rule=rule, fix="Lower lr, clip_param or num_epochs.")
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
