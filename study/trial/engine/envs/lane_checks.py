"""What an environment may return, and how a lane says that it did not. Imports NumPy only.

NumPy would spread a (1,) observation over all features without a word.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

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
