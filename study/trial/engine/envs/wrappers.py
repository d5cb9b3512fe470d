"""What stands between an environment and a learner: conversion, repeated actions, stacks, checks. No Ray, no torch.

Observations become float32: images in [0, 1], everything else flat. The same for both backends, for training and for
evaluation.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple, flatten_space
from gymnasium.wrappers import DtypeObservation, FlattenObservation

from study.errors import Fault, StudyError
from study.space.sections import EnvironmentSpec

Floats = npt.NDArray[np.float32]

_BRIGHTEST = 255


class Unusable(StudyError):  # noqa: N818 (`probe` turns it into the error that people see)
    """Why an environment cannot be used."""

    @property
    def fault(self) -> Fault:
        """The same as a fault of the space."""
        return Fault(where=self.where, rule=self.rule, got=self.got, fix=self.fix)


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
        raise Unusable(where="environment.id", rule=rule, got=str(space), fix=fix)
    if is_image(space):
        return _Image(env)
    if not (isinstance(space, Box) and (len(space.shape) == 1 or _is_block(space))):
        if not _flattens(space):
            raise _no_array(space)
        env = FlattenObservation(env)
    if env.observation_space.dtype != np.float32:
        env = DtypeObservation(env, np.float32)
    return env


def is_image(space: gymnasium.Space) -> bool:
    """Return whether observations are images: three dimensions of bytes."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


def _is_block(space: Box) -> bool:
    return len(space.shape) == 3 and np.issubdtype(space.dtype, np.floating)


def _flattens(space: gymnasium.Space) -> bool:
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:  # a space of somebody's own, such as the texts of MiniGrid
        return False


def _no_array(space: gymnasium.Space) -> Unusable:
    rule, fix = "observations must be arrays of a fixed size", "Wrap the environment so that it returns a Box."
    return Unusable(where="environment.id", rule=rule, got=str(space), fix=fix)


def scaled(images: npt.NDArray[np.uint8]) -> Floats:
    """Return bytes as numbers in [0, 1], in the same shape."""
    return np.divide(images, _BRIGHTEST, dtype=np.float32)


class _Image(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = Box(0.0, 1.0, env.observation_space.shape, np.float32)

    def observation(self, observation: Any) -> Floats:
        return scaled(np.asarray(observation))


class PoolObservations:
    """Turns what an EnvPool returns for several environments into what the network sees.

    Images come with their channels first, (C, H, W), or last; they leave with the channels last.

    Attributes:
        space: Of one environment: float32, shape (H, W, C), (…, …, …) or (features,).
    """

    def __init__(self, space: gymnasium.Space) -> None:
        """Choose the conversion for the observations of one environment, as EnvPool declares them.

        Raises:
            Unusable: Observations have no fixed size.
        """
        self._raw = space
        self._image = is_image(space)
        if self._image:
            depth, height, width = space.shape
            # EnvPool does not say which order an image has: a picture is larger than its number of channels.
            self._channels_first = depth < min(height, width)
            shape = (height, width, depth) if self._channels_first else space.shape
            self.space = Box(0.0, 1.0, shape, np.float32)
        elif isinstance(space, Box) and (len(space.shape) == 1 or _is_block(space)):
            self.space = Box(*_bounds(space), dtype=np.float32)
        else:
            if not all(isinstance(part, (Box, Discrete, MultiBinary)) for part in _parts(space)):
                raise _no_array(space)
            self.space = Box(*_bounds(flatten_space(space)), dtype=np.float32)

    def __call__(self, batch: Any) -> npt.NDArray[Any]:
        """Return the observations, shape (envs, *space.shape), of EnvPool's: (envs, …), or a dictionary of such."""
        if self._image:
            if self._channels_first and np.ndim(batch) == 4:
                batch = np.moveaxis(batch, 1, 3)
            return scaled(batch)
        if isinstance(self._raw, Box) and self._raw.shape == self.space.shape:
            return np.asarray(batch)
        return _flat(self._raw, batch)


def _parts(space: gymnasium.Space) -> list[gymnasium.Space]:
    """Return the spaces in nested dictionaries and tuples."""
    inner = space.values() if isinstance(space, Dict) else space if isinstance(space, Tuple) else None
    return [space] if inner is None else [part for each in inner for part in _parts(each)]


def _flat(space: gymnasium.Space, batch: Any) -> npt.NDArray[Any]:
    """Return the observations side by side, shape (envs, features), in the order of `gymnasium.spaces.flatten`."""
    if isinstance(space, Dict):
        return np.concatenate([_flat(part, batch[key]) for key, part in space.items()], axis=1, dtype=np.float32)
    if isinstance(space, Tuple):
        parts = zip(space, batch, strict=True)
        return np.concatenate([_flat(part, values) for part, values in parts], axis=1, dtype=np.float32)
    values = np.asarray(batch)
    if isinstance(space, Discrete):
        return np.asarray(values.reshape(-1, 1) - space.start == np.arange(space.n), np.float32)
    return values.reshape(len(values), -1)


def _bounds(space: Box) -> tuple[Floats, Floats]:
    """Return the bounds of a `Box`, corrected.

    Where EnvPool means no lower bound it says 1.2e-38: the smallest positive float is what C++ calls `min`.
    """
    low = np.asarray(space.low)
    unbounded = np.isin(low, (np.finfo(np.float32).tiny, np.finfo(np.float64).tiny))
    with np.errstate(over="ignore"):  # a float64 bound beyond float32 means none
        return np.where(unbounded, -np.inf, low).astype(np.float32), np.asarray(space.high).astype(np.float32)


# --- repeated actions, stacked observations, a heavy step ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step costs besides itself.

    Attributes:
        wait_s: Seconds to wait.
        cpu_s: Seconds to compute, of CPU time: on a busy machine it takes longer.
    """

    wait_s: float = 0.0
    cpu_s: float = 0.0

    def __bool__(self) -> bool:
        return self.wait_s > 0 or self.cpu_s > 0

    def bear(self, steps: int = 1) -> None:
        """Wait and compute as for so many steps."""
        if self.cpu_s:
            end = time.thread_time() + steps * self.cpu_s
            while time.thread_time() < end:
                pass
        if self.wait_s:
            time.sleep(steps * self.wait_s)


def layered(env: gymnasium.Env, spec: EnvironmentSpec) -> gymnasium.Env:
    """Return an environment of float32 observations with what `spec` puts around it."""
    if spec.action_repeat > 1:
        env = _Repeated(env, spec.action_repeat)
    return _Stacked(env, spec.frame_stack) if spec.frame_stack > 1 else env


class _Repeated(gymnasium.Wrapper):
    """Takes every action several times, to the end of the episode at the most; rewards are added up."""

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class _Stacked(gymnasium.Wrapper):
    """Puts the last observations side by side along the last axis, the newest last; an episode begins with copies."""

    def __init__(self, env: gymnasium.Env, number: int) -> None:
        super().__init__(env)
        space = env.observation_space
        low, high = (np.concatenate([bound] * number, axis=-1) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=np.float32)
        # Copies: an environment may write its next observation into the same array.
        self._last: deque[Floats] = deque(maxlen=number)

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self._last.extend([np.array(observation)] * (self._last.maxlen or 1))
        return self._seen(), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._last.append(np.array(observation))
        return self._seen(), reward, terminated, truncated, info

    def _seen(self) -> Floats:
        return np.concatenate(self._last, axis=-1)


# --- what an environment may return in a lane ------------------------------------------------------------------------

_NUMBERS = "biuf"
"""Kinds of dtypes that are numbers: bool, int, unsigned, float."""


class LaneError(ValueError):
    """An environment returned what no learner can use."""


def where(lane: int, step: int) -> str:
    """Name a place: the lane, from 0 within its process, and the step of its episode, 0 for the reset."""
    return f"lane {lane}, step {step} of its episode"


def checked_observation(observation: Any, shape: tuple[int, ...] | None, lane: int, step: int) -> npt.NDArray[Any]:
    """Return the observation as an array.

    Raises:
        LaneError: Its shape is not that of the space, or it does not consist of numbers.
    """
    array = np.asarray(observation)
    if array.shape != shape:
        raise LaneError(
            f"{where(lane, step)}: an observation must fit its space, got shape {array.shape}, the space says {shape}."
        )
    if array.dtype.kind not in _NUMBERS:
        raise LaneError(f"{where(lane, step)}: an observation must consist of numbers, got dtype {array.dtype}.")
    return array


def checked_reward(reward: Any, lane: int, step: int) -> float:
    """Return the reward as a float.

    Raises:
        LaneError: It is not one number.
    """
    array = np.asarray(reward)
    if array.shape == () and array.dtype.kind in _NUMBERS:
        return float(array)
    got = f"shape {array.shape}" if array.shape else repr(reward)
    raise LaneError(f"{where(lane, step)}: a reward must be one number, got {got}.")
