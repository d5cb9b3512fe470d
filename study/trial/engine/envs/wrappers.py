"""What stands between an environment and a learner: conversion and checks. No Ray, no torch.

Observations become float32: images in [0, 1], everything else flat. The same for training and for evaluation.
"""

import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TransformObservation

from study.errors import Fault, StudyError

_BRIGHTEST = 255


class Unusable(StudyError):  # noqa: N818 (`probe` turns it into the error that people see)
    """Why an environment cannot be used."""

    @property
    def fault(self) -> Fault:
        """The same as a fault of the space."""
        return Fault(where=self.where, rule=self.rule, got=self.got, fix=self.fix)


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
        raise Unusable(where="environment.id", rule=rule, got=str(space), fix=fix)
    if is_image(space):
        return TransformObservation(env, scaled, Box(0.0, 1.0, space.shape, np.float32))
    if not is_vector_or_block(space):
        try:
            flattens = bool(space.is_np_flattenable)
        except NotImplementedError:  # a space of somebody's own, such as the texts of MiniGrid
            flattens = False
        if not flattens:
            rule, fix = "observations must be arrays of a fixed size", "Wrap the environment so that it returns a Box."
            raise Unusable(where="environment.id", rule=rule, got=str(space), fix=fix)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step costs besides itself: seconds to wait."""

    wait_s: float

    def bear(self, steps: int = 1) -> None:
        """Wait as for so many steps."""
        time.sleep(steps * self.wait_s)
