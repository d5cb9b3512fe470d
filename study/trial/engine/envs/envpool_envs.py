"""EnvPool's environments, written in C++, behind the same seam as Gymnasium's. EnvPool is imported when needed.

Facts about EnvPool 1.2 that this rests on, each tested in `tests/contract`:

- `seed` may be a list. Environment i then plays what a pool of one with that seed plays, whatever else the
  pool holds: lane -> seed holds exactly, in every layout. A pool cannot be seeded again.
- `step(actions, env_id)` and `reset(env_id)` touch only the environments named, and answer in that order.
- Left alone, an environment that ended takes its next action as a reset.
- Of an episode that ends in its last allowed step, EnvPool says `truncated` only.
"""

import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple, flatten_space

from study.space.sections import EnvironmentSpec, is_procgen, task_of
from study.trial.engine.envs.wrappers import (
    LaneError,
    StepLoad,
    Unusable,
    is_image,
    is_vector_or_block,
    no_array,
    scaled,
)

Array = npt.NDArray[Any]

_OURS = ("num_envs", "batch_size", "num_threads", "max_num_players", "seed", "env_seed", "max_episode_steps")
"""Arguments of a pool that the study sets."""
_INT_MAX = 2**31 - 1
"""EnvPool's way to say that episodes have no limit."""


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
        self._raw, self._image, self._channels_first = space, is_image(space), False
        if self._image:
            depth, height, width = space.shape
            # EnvPool does not say which order an image has: a picture is larger than its number of channels.
            self._channels_first = depth < min(height, width)
            shape = (height, width, depth) if self._channels_first else space.shape
            self.space = Box(0.0, 1.0, shape, np.float32)
            return
        self._flat = not is_vector_or_block(space)
        if self._flat and not all(isinstance(part, (Box, Discrete, MultiBinary)) for part in _parts(space)):
            raise no_array(space)
        known = flatten_space(space) if self._flat else space
        low = np.asarray(known.low)
        # Where EnvPool means no lower bound it says 1.2e-38: the smallest positive float is what C++ calls `min`.
        unbounded = np.isin(low, (np.finfo(np.float32).tiny, np.finfo(np.float64).tiny))
        with np.errstate(over="ignore"):  # a float64 bound beyond float32 means none
            low, high = (each.astype(np.float32) for each in (np.where(unbounded, -np.inf, low), known.high))
        self.space = Box(low, high, dtype=np.float32)

    def __call__(self, batch: Any) -> Array:
        """Return the observations, shape (envs, *space.shape), of EnvPool's: (envs, …), or a dictionary of such."""
        if self._image:
            return scaled(np.moveaxis(batch, 1, 3) if self._channels_first and np.ndim(batch) == 4 else batch)
        return _flattened(self._raw, batch) if self._flat else np.asarray(batch)


def _parts(space: gymnasium.Space) -> list[gymnasium.Space]:
    """Return the spaces in nested dictionaries and tuples."""
    inner = space.values() if isinstance(space, Dict) else space if isinstance(space, Tuple) else None
    return [space] if inner is None else [part for each in inner for part in _parts(each)]


def _flattened(space: gymnasium.Space, batch: Any) -> Array:
    """Return the observations side by side, shape (envs, features), in the order of `gymnasium.spaces.flatten`."""
    if isinstance(space, (Dict, Tuple)):
        parts = space.items() if isinstance(space, Dict) else enumerate(space)
        return np.concatenate([_flattened(part, batch[key]) for key, part in parts], axis=1, dtype=np.float32)
    values = np.asarray(batch)
    if isinstance(space, Discrete):
        return np.asarray(values.reshape(-1, 1) - space.start == np.arange(space.n), np.float32)
    return values.reshape(len(values), -1)


class PoolTask:
    """What an EnvPool task is, before any pool is made.

    Attributes:
        observations: What the network sees of it.
        action_space: Of one environment.
        limit: Steps after which an episode is truncated.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Look the task up.

        Raises:
            Unusable: EnvPool is not installed or does not know the task, the task does not take these arguments or
                has several players, or a library of the system is missing.
        """
        where, self._envpool = "environment.id", _envpool()
        procgen = is_procgen(spec.id)
        self._id, self._kwargs = task_of(spec.id, spec.kwargs) if procgen else (spec.id, spec.kwargs)
        if self._id not in (known := self._envpool.list_all_envs()):
            near = difflib.get_close_matches(self._id, known, n=1, cutoff=0.5)
            fix = f"Did you mean '{near[0]}'?" if near else "Use an id of EnvPool, or `backend: gymnasium`."
            raise Unusable(where=where, rule="EnvPool has no such environment", got=f"'{self._id}'", fix=fix)
        if taken := sorted(set(self._kwargs) & set(_OURS)):
            rule, got = f"the study sets {', '.join(taken)} itself", str(self._kwargs)
            raise Unusable(where="environment.kwargs", rule=rule, got=got, fix="Leave them out.")
        try:
            task = self._envpool.make_spec(self._id, **self._kwargs)
        except ImportError as error:  # EnvPool's own words name another package; the linker's name the library
            missing = str(error.__cause__ or error)
            qt = procgen or "libQt5" in missing
            fix = "On Debian: apt install libqt5gui5, on every node." if qt else "Install it on every node."
            rule = f"'{spec.id}' needs a library of the system"
            raise Unusable(where=where, rule=rule, got=missing, fix=fix) from error
        except TypeError as error:  # of C++ types, all signatures follow
            got = f"{spec.kwargs}: {str(error).partition(' The following')[0].rstrip('.')}"
            rule, fix = f"must suit '{spec.id}'", "Change the arguments."
            raise Unusable(where="environment.kwargs", rule=rule, got=got, fix=fix) from error
        if task.config.max_num_players != 1:
            rule, got = f"'{spec.id}' must have one player", str(task.config.max_num_players)
            raise Unusable(where=where, rule=rule, got=got, fix="Use a task for one player.")
        with _lowered_precision():
            self.observations = PoolObservations(task.gymnasium_observation_space)
            self.action_space: gymnasium.Space = task.gymnasium_action_space
        self.limit: int = spec.max_episode_steps or task.config.max_episode_steps
        # One step more than allowed, so that `terminated` in the last allowed step is the environment's own.
        # With `episodic_life` a reset goes on with the same game unless EnvPool itself saw the limit.
        self._pool_limit = self.limit if getattr(task.config, "episodic_life", False) else min(self.limit + 1, _INT_MAX)

    def pool(self, seeds: Sequence[int]) -> Any:
        """Return a pool of one environment per seed, stepped by one thread."""
        pool = self._envpool.make(
            self._id,
            env_type="gymnasium",
            num_envs=len(seeds),
            num_threads=1,
            seed=list(seeds),
            max_episode_steps=self._pool_limit,
            **self._kwargs,
        )
        with _lowered_precision():
            _ = pool.observation_space  # the pool makes it once, at the latest in its first reset
        return pool


@contextmanager
def _lowered_precision() -> Iterator[None]:
    """Silence what Gymnasium says where EnvPool makes a space of float32 from bounds of float64."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Box (low|high)'s precision lowered by casting")
        yield


def _envpool() -> ModuleType:
    try:
        import envpool
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "envpool"
        rule = "envpool is not installed." if absent else f"envpool cannot be imported, got: {error}."
        fix = "Run `pip install 'envpool>=1.2.5,<2'`; where it has no wheel, set environment.backend: gymnasium."
        raise Unusable(where="environment.backend", rule=rule, fix=fix) from error
    module: ModuleType = envpool
    return module


class EnvPoolLanes:
    """`LaneEnvs` over one pool.

    `seeds[i]` is the seed of lane i, however lanes are spread over processes: see the top of this file.
    """

    def __init__(self, spec: EnvironmentSpec, seeds: Sequence[int], *, load: StepLoad | None = None) -> None:
        """Make the pool, with the seeds of its lanes, shape (num_envs,), each below 2^31.

        Raises:
            Unusable: The task cannot be made.
        """
        self._task, self._load = PoolTask(spec), load or StepLoad()
        self.num_envs = len(seeds)
        self.observation_space: gymnasium.Space = self._task.observations.space
        self.action_space = self._task.action_space
        self._pool: Any = self._task.pool(seeds)
        self._lanes = np.arange(self.num_envs, dtype=np.int32)

    def reset(self, observations: Array) -> None:
        """See `LaneEnvs.reset`."""
        observations[:] = self._first_observations(self._lanes)

    def step(
        self, actions: Array, observations: Array, rewards: Array, terminated: Array, truncated: Array
    ) -> list[tuple[int, Array]]:
        """See `LaneEnvs.step`; where EnvPool itself raises, the note names all lanes that were stepped."""
        if not len(actions):
            return []
        lanes = self._lanes[: len(actions)]
        try:
            batch, rewards[:], terminated[:], cut, info = self._pool.step(actions, lanes)
        except Exception as error:
            error.add_note(f"This happened in a step of lanes 0 to {len(lanes) - 1}.")
            raise
        observations[:] = self._checked(batch, lanes)
        np.logical_or(cut, info["elapsed_step"] >= self._task.limit, out=truncated)
        ended = lanes[terminated | truncated]
        finals: list[tuple[int, Array]] = []
        if ended.size:
            finals = [(int(lane), observations[lane].copy()) for lane in ended]
            observations[ended] = self._first_observations(ended)
        if self._load:
            self._load.bear(len(lanes))
        return finals

    def close(self) -> None:
        """See `LaneEnvs.close`."""
        self._pool = None

    def _first_observations(self, lanes: npt.NDArray[np.int32]) -> Array:
        try:
            batch, _ = self._pool.reset(lanes)
        except Exception as error:
            error.add_note(f"This happened in the reset of lanes {', '.join(map(str, lanes))}.")
            raise
        return self._checked(batch, lanes)

    def _checked(self, batch: Any, lanes: npt.NDArray[np.int32]) -> Array:
        array, shape = self._task.observations(batch), self.observation_space.shape
        if array.shape != (len(lanes), *(shape or ())):
            got = f"got shape {array.shape[1:]}, the space says {shape}"
            raise LaneError(f"lanes {', '.join(map(str, lanes))}: an observation must fit its space, {got}.")
        return array


class EnvPoolEnv(gymnasium.Env[Array, Any]):
    """One environment of EnvPool, for whoever wants Gymnasium's interface.

    A reset with a seed makes a new pool, since a pool cannot be seeded again: under a millisecond for most
    tasks, but 0.2 s for an Atari game.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Look the task up; the first reset makes the pool.

        Raises:
            Unusable: EnvPool is not installed, or does not know the task.
        """
        task = PoolTask(spec)
        self.observation_space, self.action_space = task.observations.space, task.action_space
        self._spec = spec
        self._lane: EnvPoolLanes | None = None
        self._following: Array | None = None
        """First observation of the next episode, which a lane begins at once."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; without a seed the one that follows in this pool."""
        super().reset(seed=seed)
        if seed is not None or self._lane is None:
            self.close()
            self._lane = EnvPoolLanes(self._spec, [int(self.np_random.integers(2**31)) if seed is None else seed])
        first, self._following = self._following, None
        if first is None:
            row = np.empty((1, *(self.observation_space.shape or ())), np.float32)
            self._lane.reset(row)
            first = row[0]
        return first, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        if self._lane is None or self._following is not None:
            raise RuntimeError("EnvPoolEnv.step: an episode must have been started, got none. Fix: call reset().")
        row = np.empty((1, *(self.observation_space.shape or ())), np.float32)
        rewards, terminated, truncated = np.empty(1, np.float32), np.empty(1, bool), np.empty(1, bool)
        finals = self._lane.step(np.asarray(action)[np.newaxis], row, rewards, terminated, truncated)
        observation = row[0]
        if finals:
            self._following, (_, observation) = observation, finals[0]
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Let the pool go."""
        self._lane, self._following = None, None
