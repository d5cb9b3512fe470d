"""What a policy sees of an environment, and several environments stepped as the lanes of one process. No Ray, no torch.

Observations become float32: images in [0, 1], everything else flat; the same for training and for evaluation.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TransformObservation

from study.errors import Fault, StudyError

Array = npt.NDArray[Any]
Finals = list[tuple[int, Array]]
"""(lane, last observation of the episode that ended), in the order of the lanes."""

ID = "environment.id"
_BRIGHTEST = 255


class Unusable(StudyError):  # noqa: N818 (`probe` turns it into the error that people see)
    """Why an environment cannot be used."""

    @property
    def fault(self) -> Fault:
        """The same as a fault of the space."""
        return Fault(where=self.where, rule=self.rule, got=self.got, fix=self.fix)


# --- what a policy sees and answers ----------------------------------------------------------------------------------


def are_trainable(actions: Any) -> bool:
    """Return whether a policy can answer actions of a space: Discrete or MultiDiscrete from 0, or a flat float Box."""
    if isinstance(actions, Discrete):
        return bool(actions.start == 0)
    if isinstance(actions, MultiDiscrete):
        return len(actions.shape) == 1 and not np.any(actions.start)
    return isinstance(actions, Box) and np.issubdtype(actions.dtype, np.floating) and len(actions.shape) == 1


def observed(env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment with float32 observations: an image, a 3-D array, or a flat array.

    A 3-D uint8 `Box` keeps its shape, scaled to [0, 1]; a 3-D float `Box` stays as it is. Anything else becomes
    flat, shape (features,).

    Raises:
        Unusable: Observations have no fixed size, or the environment does not say what they are.
    """
    space = getattr(env, "observation_space", None)
    if not isinstance(space, gymnasium.Space):
        rule = "must have an `observation_space` once it is made"
        fix = "Set it in the environment's class or constructor, and `action_space`."
        raise Unusable(where=ID, rule=rule, got=str(space), fix=fix)
    if is_image(space):
        return TransformObservation(env, scaled, Box(0.0, 1.0, space.shape, np.float32))
    if not is_vector_or_block(space):
        try:
            flattens = bool(space.is_np_flattenable)
        except NotImplementedError:  # a space of somebody's own, such as the texts of MiniGrid
            flattens = False
        if not flattens:
            rule, fix = "observations must be arrays of a fixed size", "Wrap the environment so that it returns a Box."
            raise Unusable(where=ID, rule=rule, got=str(space), fix=fix)
        env = FlattenObservation(env)
    return env if env.observation_space.dtype == np.float32 else DtypeObservation(env, np.float32)


def is_image(space: gymnasium.Space) -> bool:
    """Return whether observations are images: three dimensions of bytes."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


def is_vector_or_block(space: gymnasium.Space) -> bool:
    """Return whether observations keep their shape: one dimension, or three of floats."""
    if not isinstance(space, Box):
        return False
    return len(space.shape) == 1 or (len(space.shape) == 3 and np.issubdtype(space.dtype, np.floating))


def scaled(images: Any) -> npt.NDArray[np.float32]:
    """Return bytes as numbers in [0, 1], in the same shape."""
    numbers: npt.NDArray[np.float32] = np.divide(images, _BRIGHTEST, dtype=np.float32)
    return numbers


# --- lanes -----------------------------------------------------------------------------------------------------------


class GymnasiumLanes:
    """Some lanes of a trial, stepped in a plain loop; `EnvPoolLanes` does the same over EnvPool.

    Gymnasium's vector environments merge infos, copy observations and allocate at every step; here each lane writes
    straight into the arrays of whoever samples.

    Attributes:
        num_envs: Number of lanes.
        observation_space: Of one environment: a float32 `Box`.
        action_space: Of one environment.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], seeds: Sequence[int]) -> None:
        """Make one environment for each seed, of its first reset; observations must be arrays of a fixed shape."""
        self.num_envs = len(seeds)
        self._envs: list[gymnasium.Env] = []
        try:
            for _ in seeds:
                self._envs.append(make())
        except BaseException:
            self.close()
            raise
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self._seeds: list[int] | None = list(seeds)
        self._steps = [env.step for env in self._envs]
        self._lengths = [0] * self.num_envs
        # Gymnasium's own environments are up to a tenth faster with Python's numbers than with NumPy's. Others get
        # np.int64, as from `action_space.sample()`: they may use its methods.
        own = all(type(env.unwrapped).__module__.startswith("gymnasium.") for env in self._envs)
        self._python_ints = own and isinstance(self.action_space, Discrete)

    def reset(self, observations: Array) -> None:
        """Start a new episode in every lane: the first time with the lanes' seeds, later without.

        Args:
            observations: Receives the first observations, shape (num_envs, *shape), float32.

        Raises:
            ValueError: An observation does not fit the space. This and what an environment itself raises have a note
                that names the lane and the step.
        """
        lane = 0
        try:
            for lane in range(self.num_envs):
                observations[lane] = self._first_observation(lane, self._seeds[lane] if self._seeds else None)
        except Exception as error:
            error.add_note(self._place(lane))
            raise
        self._seeds = None

    def step(self, actions: Array, observations: Array, rewards: Array, terminated: Array, truncated: Array) -> Finals:
        """Step the first `len(actions)` lanes; the others stay as they are.

        A lane whose episode ended is reset at once, without a seed.

        Args:
            actions: Ready for the environments, shape (m, *action shape), m <= num_envs.
            observations: Receives the observations, shape (m, *shape), float32. Of a lane whose episode ended it
                is the first one of the next episode.
            rewards: Receives the rewards, shape (m,), float32.
            terminated: Receives whether the environment ended the episode, shape (m,), bool.
            truncated: Receives whether the episode was cut, shape (m,), bool.

        Raises:
            ValueError: An observation does not fit the space, or a reward is not one number. This and what an
                environment itself raises have a note that names the lane and the step.
        """
        finals: Finals = []
        row_rewards: list[float] = []
        row_terminated: list[bool] = []
        row_truncated: list[bool] = []
        lengths, shape, ndarray = self._lengths, self.observation_space.shape, np.ndarray
        # A copy: an environment may keep its action, and the caller may use the array again.
        rows = np.array(actions, self.action_space.dtype)
        row_actions: Iterable[Any] = rows.tolist() if self._python_ints else rows
        lane = 0
        try:
            for lane, step, action in zip(itertools.count(), self._steps, row_actions, strict=False):
                lengths[lane] += 1
                observation, reward, ends, cut, _ = step(action)
                if type(observation) is not ndarray or observation.shape != shape:
                    observation = self._fitting(observation)
                if not isinstance(reward, float) and np.shape(reward):
                    raise ValueError(f"a reward must be one number, got shape {np.shape(reward)}")
                row_rewards.append(float(reward))
                row_terminated.append(bool(ends))
                row_truncated.append(bool(cut))
                if ends or cut:
                    finals.append((lane, np.array(observation, np.float32)))
                    observation = self._first_observation(lane, None)
                observations[lane] = observation
        except Exception as error:
            error.add_note(self._place(lane))
            raise
        rewards[:], terminated[:], truncated[:] = row_rewards, row_terminated, row_truncated
        return finals

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        self._steps = []
        while self._envs:
            self._envs.pop().close()

    def _first_observation(self, lane: int, seed: int | None) -> Array:
        self._lengths[lane] = 0
        env = self._envs[lane]
        observation, _ = env.reset() if seed is None else env.reset(seed=seed)
        return self._fitting(observation)

    def _fitting(self, observation: Any) -> Array:
        array, shape = np.asarray(observation, np.float32), self.observation_space.shape
        if array.shape != shape:
            raise ValueError(f"an observation must fit its space, got shape {array.shape}, the space says {shape}")
        return array

    def _place(self, lane: int) -> str:
        """Name the lane, from 0 within its process, and the step of its episode, 0 for the reset."""
        return f"This happened in lane {lane}, step {self._lengths[lane]} of its episode."
