"""EnvPool's environments, written in C++, behind the same seam as Gymnasium's. EnvPool is imported when needed.

Facts about EnvPool 1.2 that this rests on, each tested in `tests/contract`:

- `seed` may be a list. Environment i then plays what a pool of one with that seed plays, whatever else the
  pool holds: lane -> seed holds exactly, in every layout. A pool cannot be seeded again.
- `step(actions, env_id)` and `reset(env_id)` touch only the environments named, and answer in that order.
- Left alone, an environment that ended takes its next action as a reset.
- Of an episode that ends in its last allowed step, EnvPool says `truncated` only.
"""

import difflib
import functools
import time
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from study.space.sections import EnvironmentSpec, is_procgen, task_of
from study.trial.engine.envs.lane_envs import ID, Finals, Unusable, is_image, is_vector_or_block, scaled

Array = npt.NDArray[Any]

_OURS = ("num_envs", "batch_size", "num_threads", "max_num_players", "seed", "env_seed", "max_episode_steps")
"""Arguments of a pool that the study sets."""
_INT_MAX = 2**31 - 1
"""EnvPool's way to say that episodes have no limit."""


class PoolObservations:
    """Turns what an EnvPool returns for several environments, shape (envs, …), into what the network sees.

    Images come with their channels first, (C, H, W), or last; they leave with the channels last.

    Attributes:
        space: Of one environment: float32, shape (H, W, C), (…, …, …) or (features,).
    """

    def __init__(self, space: gymnasium.Space) -> None:
        """Choose the conversion for the observations of one environment, as EnvPool declares them.

        Raises:
            Unusable: Observations are no images, arrays or choices.
        """
        self._raw, self._channels_first = space, False
        if isinstance(space, Discrete):
            self.space = Box(0.0, 1.0, (int(space.n),), np.float32)
        elif is_image(space):
            depth, height, width = space.shape or (0, 0, 0)
            # EnvPool does not say which order an image has: a picture is larger than its number of channels.
            self._channels_first = depth < min(height, width)
            self.space = Box(0.0, 1.0, (height, width, depth) if self._channels_first else space.shape, np.float32)
        elif isinstance(space, Box):
            # Where EnvPool means no lower bound it says 1.2e-38: the smallest positive float is what C++ calls `min`.
            unbounded = np.isin(space.low, (np.finfo(np.float32).tiny, np.finfo(np.float64).tiny))
            with np.errstate(over="ignore"):  # a float64 bound beyond float32 means none
                bounds = [np.where(unbounded, -np.inf, space.low).astype(np.float32), space.high.astype(np.float32)]
            self.space = Box(*bounds) if is_vector_or_block(space) else Box(*(each.ravel() for each in bounds))
        else:
            rule, fix = "observations must be one array where EnvPool steps", "Use `backend: gymnasium`."
            raise Unusable(where=ID, rule=rule, got=str(space), fix=fix)

    def __call__(self, batch: Any) -> Array:
        """Return the observations, shape (envs, *space.shape)."""
        if isinstance(self._raw, Discrete):  # one-hot
            return np.asarray(np.reshape(batch, (-1, 1)) - self._raw.start == np.arange(self._raw.n), np.float32)
        if is_image(self._raw):
            return scaled(np.moveaxis(batch, 1, 3) if self._channels_first else batch)
        return np.asarray(batch, np.float32).reshape(len(batch), *self.space.shape)


class PoolTask:
    """What an EnvPool task is, before any pool is made.

    Attributes:
        observations: What the network sees of it.
        action_space: Of one environment.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Look the task up.

        Raises:
            Unusable: EnvPool is not installed or does not know the task, the task does not take these arguments or
                has several players, or a library of the system is missing.
        """
        try:
            import envpool
        except ImportError as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name == "envpool"
            rule = "envpool is not installed." if absent else f"envpool cannot be imported, got: {error}."
            fix = "Run `pip install 'envpool>=1.2.5,<2'`; where it has no wheel, set environment.backend: gymnasium."
            raise Unusable(where="environment.backend", rule=rule, fix=fix) from error
        procgen = is_procgen(spec.id)
        self._id, kwargs = task_of(spec.id, spec.kwargs) if procgen else (spec.id, dict(spec.kwargs))
        if self._id not in (known := envpool.list_all_envs()):
            near = difflib.get_close_matches(self._id, known, n=1, cutoff=0.5)
            fix = f"Did you mean '{near[0]}'?" if near else "Use an id of EnvPool, or `backend: gymnasium`."
            raise Unusable(where=ID, rule="EnvPool has no such environment", got=f"'{self._id}'", fix=fix)
        if taken := sorted(set(kwargs) & set(_OURS)):
            rule = f"the study sets {', '.join(taken)} itself"
            raise Unusable(where="environment.kwargs", rule=rule, got=str(kwargs), fix="Leave them out.")
        try:
            task: Any = envpool.make_spec(self._id, **kwargs)
        except ImportError as error:  # EnvPool's own words name another package; the linker's name the library
            missing = str(error.__cause__ or error)
            qt = procgen or "libQt5" in missing
            fix = "On Debian: apt install libqt5gui5, on every node." if qt else "Install it on every node."
            rule = f"'{spec.id}' needs a library of the system"
            raise Unusable(where=ID, rule=rule, got=missing, fix=fix) from error
        except TypeError as error:  # of C++ types, all signatures follow
            rule, got = f"must suit '{spec.id}'", str(error).partition(" The following")[0].rstrip(".")
            got, fix = f"{spec.kwargs}: {got}", "Change the arguments."
            raise Unusable(where="environment.kwargs", rule=rule, got=got, fix=fix) from error
        if task.config.max_num_players != 1:
            rule, got = f"'{spec.id}' must have one player", str(task.config.max_num_players)
            raise Unusable(where=ID, rule=rule, got=got, fix="Use a task for one player.")
        with warnings.catch_warnings(action="ignore"):  # of bounds of float64 for float32
            self.observations = PoolObservations(task.gymnasium_observation_space)
            self.action_space: gymnasium.Space = task.gymnasium_action_space
        self._limit: int = spec.max_episode_steps or task.config.max_episode_steps
        # One step more than allowed, so that `terminated` in the last allowed step is the environment's own.
        # With `episodic_life` a reset goes on with the same game unless EnvPool itself saw the limit.
        episodic = getattr(task.config, "episodic_life", False)
        kwargs["max_episode_steps"] = self._limit if episodic else min(self._limit + 1, _INT_MAX)
        self._make = functools.partial(envpool.make, self._id, env_type="gymnasium", num_threads=1, **kwargs)

    def pool(self, seeds: Sequence[int]) -> Any:
        """Return a pool of one environment per seed, stepped by one thread."""
        pool = self._make(num_envs=len(seeds), seed=list(seeds))
        with warnings.catch_warnings(action="ignore"):
            _ = pool.observation_space  # the pool makes it once, at the latest in its first reset
        return pool

    def step(self, pool: Any, *actions: Any) -> tuple[Array, Any, Any, Any]:
        """Step a pool; return observations, rewards, and whether each episode terminated and was cut."""
        batch, rewards, terminated, cut, info = pool.step(*actions)
        return self.observations(batch), rewards, terminated, cut | (info["elapsed_step"] >= self._limit)


class EnvPoolLanes:
    """Lanes over one pool, as `GymnasiumLanes`; `seeds[i]` is the seed of lane i, however lanes are spread."""

    def __init__(self, spec: EnvironmentSpec, seeds: Sequence[int], *, wait_s: float) -> None:
        """Make the pool, with the seeds of its lanes, shape (num_envs,), each below 2^31.

        Raises:
            Unusable: The task cannot be made.
        """
        self._task, self._wait_s = PoolTask(spec), wait_s
        self.num_envs = len(seeds)
        self.observation_space: gymnasium.Space = self._task.observations.space
        self.action_space = self._task.action_space
        self._pool: Any = self._task.pool(seeds)
        self._lanes = np.arange(self.num_envs, dtype=np.int32)

    def reset(self, observations: Array) -> None:
        """See `GymnasiumLanes.reset`."""
        observations[:] = self._first_observations(self._lanes)

    def step(self, actions: Array, observations: Array, rewards: Array, terminated: Array, truncated: Array) -> Finals:
        """See `GymnasiumLanes.step`; where EnvPool itself raises, the note names all lanes that were stepped."""
        if not len(actions):
            return []
        lanes = self._lanes[: len(actions)]
        try:
            outcome = self._task.step(self._pool, actions, lanes)
        except Exception as error:
            error.add_note(f"This happened in a step of lanes 0 to {len(lanes) - 1}.")
            raise
        observations[:], rewards[:], terminated[:], truncated[:] = outcome
        ended = lanes[terminated | truncated]
        finals: Finals = []
        if ended.size:
            finals = [(int(lane), observations[lane].copy()) for lane in ended]
            observations[ended] = self._first_observations(ended)
        if self._wait_s:
            time.sleep(len(lanes) * self._wait_s)
        return finals

    def close(self) -> None:
        """See `GymnasiumLanes.close`."""
        self._pool = None

    def _first_observations(self, lanes: npt.NDArray[np.int32]) -> Array:
        return self._task.observations(self._pool.reset(lanes)[0])


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
        self._task = PoolTask(spec)
        self._pool: Any = None
        self.observation_space, self.action_space = self._task.observations.space, self._task.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; without a seed the one that follows in this pool."""
        super().reset(seed=seed)
        if seed is not None or self._pool is None:
            self._pool = self._task.pool([int(self.np_random.integers(2**31)) if seed is None else seed])
        return self._task.observations(self._pool.reset()[0])[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        seen, reward, ends, cut = self._task.step(self._pool, np.asarray(action)[np.newaxis])
        return seen[0], float(reward[0]), bool(ends[0]), bool(cut[0]), {}

    def close(self) -> None:
        """Let the pool go."""
        self._pool = None
