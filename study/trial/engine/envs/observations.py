"""What the network sees of an environment: images in [0, 1], everything else flat. No Ray, no torch.

The same for both backends, for training and for evaluation.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.wrappers import DtypeObservation, FlattenObservation

from study.errors import Fault

Floats = npt.NDArray[np.float32]

_BRIGHTEST = 255


class Unusable(Exception):  # noqa: N818 (carries a fault; `probe` turns it into the error that people see)
    """Why an environment cannot be used."""

    def __init__(self, place: str, law: str, fix: str) -> None:
        super().__init__(place, law, fix)  # all three, so that it can be pickled
        self.fault = Fault(where=place, rule=law, fix=fix)

    def __str__(self) -> str:
        return str(self.fault)


def observed(env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment with float32 observations: an image, a 3-D array, or a flat array.

    A 3-D uint8 `Box` keeps its shape, scaled to [0, 1]; a 3-D float `Box` stays as it is. Anything else becomes
    flat, shape (features,).

    Raises:
        Unusable: Observations have no fixed size, or the environment does not say what they are.
    """
    space = getattr(env, "observation_space", None)
    if not isinstance(space, gymnasium.Space):
        law = f"must have an `observation_space` once it is made, got {space}."
        raise Unusable("environment.id", law, "Set it in the environment's class or constructor, and `action_space`.")
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
    law = f"observations must be arrays of a fixed size, got {space}."
    return Unusable("environment.id", law, "Wrap the environment so that it returns a Box.")


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
        """Choose the conversion.

        Args:
            space: Observations of one environment, as EnvPool declares them.

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
            low, high = _flat_bounds(space)
            self.space = Box(low, high, dtype=np.float32)

    def __call__(self, batch: Any) -> npt.NDArray[Any]:
        """Return the observations, shape (envs, *space.shape).

        Args:
            batch: What EnvPool returned: an array, or a dictionary of arrays, with a first dimension (envs,).
        """
        if self._image:
            if self._channels_first and np.ndim(batch) == 4:
                batch = np.moveaxis(batch, 1, 3)
            return scaled(batch)
        if isinstance(self._raw, Box) and self._raw.shape == self.space.shape:
            return np.asarray(batch)
        return _flat(self._raw, batch)


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


def _flat_bounds(space: gymnasium.Space) -> tuple[Floats, Floats]:
    if isinstance(space, (Dict, Tuple)):
        parts = space.values() if isinstance(space, Dict) else space
        bounds = [_flat_bounds(part) for part in parts]
        return np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds])
    if isinstance(space, Box):
        low, high = _bounds(space)
        return low.reshape(-1), high.reshape(-1)
    if isinstance(space, (Discrete, MultiBinary)):
        size = int(space.n) if isinstance(space, Discrete) else int(np.prod(space.shape))
        return np.zeros(size, np.float32), np.ones(size, np.float32)
    raise _no_array(space)


def _bounds(space: Box) -> tuple[Floats, Floats]:
    """Return the bounds of a `Box`, corrected.

    Where EnvPool means no lower bound it says 1.2e-38: the smallest positive float is what C++ calls `min`.
    """
    low = np.asarray(space.low)
    unbounded = np.isin(low, (np.finfo(np.float32).tiny, np.finfo(np.float64).tiny))
    with np.errstate(over="ignore"):  # a float64 bound beyond float32 means none
        return np.where(unbounded, -np.inf, low).astype(np.float32), np.asarray(space.high).astype(np.float32)
