"""Makes the environment that a space names, as policies see it, and steps several as the lanes of one process.

A Gymnasium id, `module:Class` of the user's own, or an EnvPool task. Observations become float32: images in [0, 1],
everything else flat; the same for training and for evaluation. No Ray, no torch; EnvPool is imported when needed.
"""

import copy
import difflib
import functools
import importlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import error as gymnasium_error
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TimeLimit, TransformObservation

from study.errors import TrialError
from study.space.sections import EnvironmentSpec, is_procgen, task_of

Array = npt.NDArray[Any]
Finals = list[tuple[int, Array]]
"""(lane, last observation of the episode that ended), in the order of the lanes."""

ID = "environment.id"
_BRIGHTEST = 255
_ALIKE = 0.7
"""How alike an id must be to be proposed, as `difflib` counts: -v5 alone makes many ids half alike."""


# --- one environment -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes the environment wherever it is unpickled; of RLlib's context it heeds `render_mode` alone."""

    spec: EnvironmentSpec
    wait_s: float = 0.0
    """Seconds that each step takes longer, in training alone."""

    def __call__(self, context: Any = None) -> gymnasium.Env:
        """Return a new environment."""
        env = make_env(self.spec, render_mode=(context or {}).get("render_mode"))
        return _Waiting(env, self.wait_s) if self.wait_s else env


class _Waiting(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, wait_s: float) -> None:
        super().__init__(env)
        self._wait_s = wait_s

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        time.sleep(self._wait_s)
        return outcome


def make_env(spec: EnvironmentSpec, *, render_mode: str | None = None) -> gymnasium.Env:
    """Return one environment with float32 observations, which never waits; those of EnvPool cannot draw.

    Raises:
        TrialError: There is no such environment, or it cannot be trained on.
        Exception: Whatever the environment's own constructor raises.
    """
    if spec.backend == "envpool":
        return EnvPoolEnv(spec)
    maker = _class_of(spec.id)
    kwargs = spec.kwargs if render_mode is None else {**spec.kwargs, "render_mode": render_mode}
    if maker is None:  # of Gymnasium's registry, without the wrappers that check the caller at every step
        known = copy.copy(gymnasium.spec(spec.id.rpartition(":")[2]))
        known.order_enforce = False
        env = gymnasium.make(known, max_episode_steps=spec.max_episode_steps, disable_env_checker=True, **kwargs)
        return observed(env)
    # Nothing else is called: any function of any module would do what its name in a space file says.
    if not (isinstance(maker, type) and issubclass(maker, gymnasium.Env)):
        got = str(getattr(maker, "__name__", type(maker).__name__))
        fix = "Name a class for one agent that is derived from gymnasium.Env."
        raise TrialError(where=ID, rule="must make a gymnasium.Env for one agent", got=got, fix=fix)
    env = maker(**kwargs)
    return observed(env if spec.max_episode_steps is None else TimeLimit(env, spec.max_episode_steps))


def _class_of(env_id: str) -> Any:
    """Return what `module:Class` names; None where Gymnasium knows the id, which that module may have registered."""
    module_name, colon, name = env_id.rpartition(":")
    fix = "Write module:Class of your own, or module:Id of a package that registers it, as ale_py:ALE/Pong-v5."
    known: Iterable[str] = gymnasium.registry
    if colon:
        try:
            module = importlib.import_module(module_name)
        except (ModuleNotFoundError, TypeError, ValueError) as error:  # the others: it is no module's name
            missing = getattr(error, "name", None) or module_name
            rule = f"module '{missing}' must be there, which '{env_id}' needs"
            fix = "Check the spelling: it is imported from the directory in which the study was started, or installed."
            raise TrialError(where=ID, rule=rule, fix=fix) from error
        if hasattr(module, name):
            return getattr(module, name)
        known = [*gymnasium.registry, *dir(module)]
    try:
        gymnasium.spec(name)
    except gymnasium_error.Error as error:
        if near := difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE):
            fix = f"Did you mean '{module_name}{colon}{near[0]}'?"
        raise TrialError(where=ID, rule="no such environment", got=f"'{env_id}'", fix=fix) from error
    return None


# --- what a policy sees and answers ----------------------------------------------------------------------------------


def are_trainable(actions: Any) -> bool:
    """Return whether a policy can answer actions of a space: Discrete or MultiDiscrete from 0, or a flat float Box."""
    if isinstance(actions, Discrete):
        return bool(actions.start == 0)
    if isinstance(actions, MultiDiscrete):
        return len(actions.shape) == 1 and not np.any(actions.start)
    return isinstance(actions, Box) and np.issubdtype(actions.dtype, np.floating) and len(actions.shape) == 1


def observed(env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment with float32 observations: an image in [0, 1], a 3-D array of floats as it is, or flat.

    Raises:
        TrialError: Observations have no fixed size, or the environment does not say what they are.
    """
    space: Any = getattr(env, "observation_space", None)
    if _is_image(space):
        return TransformObservation(env, _scaled, Box(0.0, 1.0, space.shape, np.float32))
    if not isinstance(space, Box) or not _keeps_its_shape(space):
        try:
            flattens = bool(space.is_np_flattenable)
        except (AttributeError, NotImplementedError):  # no space; one of somebody's own, such as the texts of MiniGrid
            flattens = False
        if not flattens:
            rule = "must have an `observation_space` of arrays of a fixed size"
            fix = "Wrap the environment so that it has a Box; several agents are trained by a script (`config`)."
            raise TrialError(where=ID, rule=rule, got=str(space), fix=fix)
        env = FlattenObservation(env)
    return env if env.observation_space.dtype == np.float32 else DtypeObservation(env, np.float32)


def _is_image(space: Any) -> bool:
    """Return whether observations are images: three dimensions of bytes."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8


def _keeps_its_shape(space: Box) -> bool:
    """Return whether observations have one dimension, or three of floats."""
    return len(space.shape) == 1 or (len(space.shape) == 3 and np.issubdtype(space.dtype, np.floating))


def _scaled(images: Any) -> Any:
    """Return bytes as numbers in [0, 1], in the same shape."""
    return np.divide(images, _BRIGHTEST, dtype=np.float32)


# --- lanes -----------------------------------------------------------------------------------------------------------


def make_lane_envs(
    make: Callable[[], gymnasium.Env] | EnvFactory, seeds: Sequence[int]
) -> "GymnasiumLanes | EnvPoolLanes":
    """Make lanes, each with the seed of its first reset; whatever `make_env` raises passes through.

    Tasks of EnvPool are stepped together, but for those that wait.
    """
    if isinstance(make, EnvFactory) and make.spec.backend == "envpool" and not make.wait_s:
        return EnvPoolLanes(make.spec, seeds)
    return GymnasiumLanes(make, seeds)


class GymnasiumLanes:
    """Some lanes of a trial, stepped in a plain loop; `EnvPoolLanes` does the same over EnvPool.

    Gymnasium's vector environments merge infos, copy observations and allocate at every step; here each lane writes
    straight into the arrays of whoever samples. `observation_space` and `action_space` are those of one environment.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], seeds: Sequence[int]) -> None:
        """Make one environment for each seed, of its first reset; observations must be arrays of a fixed shape."""
        self.num_envs = len(seeds)
        self._envs = [make() for _ in seeds]
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self._seeds: list[int] | None = list(seeds)

    def reset(self, observations: Array) -> None:
        """Start a new episode in every lane, the first time with its seed; write what is seen, (num_envs, *shape)."""
        for lane, env in enumerate(self._envs):
            observation, _ = env.reset(seed=self._seeds[lane] if self._seeds else None)
            observations[lane] = self._fitting(observation)
        self._seeds = None

    def step(self, actions: Array, observations: Array, rewards: Array, terminated: Array, truncated: Array) -> Finals:
        """Step the first m lanes; a lane whose episode ended is reset at once, without a seed.

        Args:
            actions: Ready for the environments, shape (m, *action shape), m <= num_envs.
            observations: Receives what is seen, shape (m, *shape), float32; of a lane whose episode ended the first
                observation of the next one.
            rewards: Receives the rewards, shape (m,), float32.
            terminated: Receives whether the environment ended the episode, shape (m,), bool.
            truncated: Receives whether the episode was cut, shape (m,), bool.

        Raises:
            ValueError: An observation does not fit the space, or a reward is not one number.
        """
        finals: Finals = []
        outcomes: list[tuple[float, bool, bool]] = []
        # A copy: an environment may keep its action, and the caller may use the array again.
        rows = np.array(actions, self.action_space.dtype)
        for lane, (env, action) in enumerate(zip(self._envs, rows, strict=False)):
            observation, reward, ends, cut, _ = env.step(action)
            observation = self._fitting(observation)
            if not isinstance(reward, float) and np.shape(reward):
                raise ValueError(f"a reward must be one number, got shape {np.shape(reward)}")
            outcomes.append((float(reward), bool(ends), bool(cut)))
            if ends or cut:
                finals.append((lane, np.array(observation, np.float32)))
                observation = self._fitting(env.reset()[0])
            observations[lane] = observation
        if outcomes:
            rewards[:], terminated[:], truncated[:] = zip(*outcomes, strict=True)
        return finals

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        while self._envs:
            self._envs.pop().close()

    def _fitting(self, observation: Any) -> Array:
        array, shape = np.asarray(observation, np.float32), self.observation_space.shape
        if array.shape != shape:
            raise ValueError(f"an observation must fit its space, got shape {array.shape}, the space says {shape}")
        return array


# --- EnvPool, written in C++ -----------------------------------------------------------------------------------------
#
# Facts about EnvPool 1.2 that this rests on, each tested in `tests/contract`:
#
# - `seed` may be a list. Environment i then plays what a pool of one with that seed plays, whatever else the
#   pool holds: lane -> seed holds exactly, in every layout. A pool cannot be seeded again.
# - `step(actions, env_id)` and `reset(env_id)` touch only the environments named, and answer in that order.
# - Of an episode that ends in its last allowed step, EnvPool says `truncated` only.

_OURS = ("num_envs", "batch_size", "num_threads", "max_num_players", "seed", "env_seed", "max_episode_steps")
"""Arguments of a pool that the study sets."""
_INT_MAX = 2**31 - 1
"""EnvPool's way to say that episodes have no limit."""


class EnvPoolLanes:
    """Lanes over one pool of an EnvPool task, as `GymnasiumLanes`; lane i has seed i, however lanes are spread.

    Images come with their channels first, (C, H, W), or last; they leave with the channels last.
    """

    def __init__(self, spec: EnvironmentSpec, seeds: Sequence[int] = ()) -> None:
        """Look the task up, and make the pool where its lanes have seeds, shape (num_envs,), each below 2^31.

        Raises:
            TrialError: EnvPool is not installed or does not know the task, the task does not take these arguments, is
                for several players or does not show one array, or a library of the system is missing.
        """
        name, kwargs = task_of(spec.id, spec.kwargs) if is_procgen(spec.id) else (spec.id, dict(spec.kwargs))
        other = "Use an id of EnvPool, or `backend: gymnasium`."
        try:
            import envpool

            if name not in (known := envpool.list_all_envs()):
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                fix = f"Did you mean '{near[0]}'?" if near else other
                raise TrialError(where=ID, rule="EnvPool has no such environment", got=f"'{name}'", fix=fix)
            if taken := sorted(set(kwargs) & set(_OURS)):
                raise TypeError(f"the study sets {', '.join(taken)} itself")
            task: Any = envpool.make_spec(name, **kwargs)
        except ImportError as error:  # EnvPool's own words name another package; the linker's name the library
            rule, got = f"what '{spec.id}' needs of EnvPool must be installed", str(error.__cause__ or error)
            fix = "On every node: pip install 'envpool>=1.2.5,<2', for Procgen on Debian apt install libqt5gui5."
            raise TrialError(where="environment.backend", rule=rule, got=got, fix=fix) from error
        except TypeError as error:  # of C++ types, all signatures follow
            rule, got = f"must suit '{spec.id}'", str(error).partition(" The following")[0].rstrip(".")
            got, fix = f"{spec.kwargs}: {got}", "Change the arguments."
            raise TrialError(where="environment.kwargs", rule=rule, got=got, fix=fix) from error
        with warnings.catch_warnings(action="ignore"):  # of bounds of float64 for float32
            self._raw: Any = task.gymnasium_observation_space
        if task.config.max_num_players != 1 or not isinstance(self._raw, Box):
            rule, got = "must be for one player, whose observations are one array", f"'{spec.id}' with {self._raw}"
            raise TrialError(where=ID, rule=rule, got=got, fix=other)
        self.observation_space, self.action_space = self._seen_space(), task.gymnasium_action_space
        self._limit: int = spec.max_episode_steps or task.config.max_episode_steps
        # One step more than allowed, so that `terminated` in the last allowed step is the environment's own.
        # With `episodic_life` a reset goes on with the same game unless EnvPool itself saw the limit.
        episodic = getattr(task.config, "episodic_life", False)
        kwargs["max_episode_steps"] = self._limit if episodic else min(self._limit + 1, _INT_MAX)
        self._make = functools.partial(envpool.make, name, env_type="gymnasium", num_threads=1, **kwargs)
        if seeds:
            self.seed(seeds)

    def seed(self, seeds: Sequence[int]) -> None:
        """Make the pool, which is stepped by one thread."""
        self.num_envs, self._lanes = len(seeds), np.arange(len(seeds), dtype=np.int32)
        self._pool: Any = self._make(num_envs=len(seeds), seed=list(seeds))
        with warnings.catch_warnings(action="ignore"):
            _ = self._pool.observation_space  # the pool makes it once, at the latest in its first reset

    def _seen_space(self) -> Box:
        raw, self._channels_first = self._raw, False
        if _is_image(raw):
            depth, height, width = raw.shape
            # EnvPool does not say which order an image has: a picture is larger than its number of channels.
            self._channels_first = depth < min(height, width)
            return Box(0.0, 1.0, (height, width, depth) if self._channels_first else raw.shape, np.float32)
        shape = raw.shape if _keeps_its_shape(raw) else (math.prod(raw.shape),)
        return Box(-np.inf, np.inf, shape, np.float32)  # EnvPool's own bounds are wrong where it means none

    def _seen(self, batch: Any) -> Any:
        """Return what the network sees of what EnvPool shows of several environments, shape (envs, *shape)."""
        if _is_image(self._raw):
            return _scaled(np.moveaxis(batch, 1, 3) if self._channels_first else batch)
        return np.asarray(batch, np.float32).reshape(len(batch), *self.observation_space.shape)

    def first_observations(self, lanes: Array | None = None) -> Any:
        """Begin new episodes in some lanes, or in all, and return what is seen, shape (lanes, *shape)."""
        return self._seen(self._pool.reset(self._lanes if lanes is None else lanes)[0])

    def outcomes(self, actions: Array) -> tuple[Array, Any, Any, Any]:
        """Step the first lanes; return observations, rewards, and whether each episode terminated and was cut."""
        batch, rewards, terminated, cut, info = self._pool.step(actions, self._lanes[: len(actions)])
        return self._seen(batch), rewards, terminated, cut | (info["elapsed_step"] >= self._limit)

    def reset(self, observations: Array) -> None:
        """See `GymnasiumLanes.reset`."""
        observations[:] = self.first_observations()

    def step(self, actions: Array, observations: Array, rewards: Array, terminated: Array, truncated: Array) -> Finals:
        """See `GymnasiumLanes.step`."""
        if not len(actions):
            return []
        observations[:], rewards[:], terminated[:], truncated[:] = self.outcomes(actions)
        ended = self._lanes[: len(actions)][terminated | truncated]
        finals = [(int(lane), observations[lane].copy()) for lane in ended]
        if ended.size:
            observations[ended] = self.first_observations(ended)
        return finals

    def close(self) -> None:
        """See `GymnasiumLanes.close`."""
        self._pool = None


class EnvPoolEnv(gymnasium.Env[Array, Any]):
    """One environment of EnvPool, for whoever wants Gymnasium's interface.

    A reset with a seed makes a new pool, since a pool cannot be seeded again: under a millisecond for most
    tasks, but 0.2 s for an Atari game.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Look the task up; the first reset makes the pool."""
        self._lane, self._is_seeded = EnvPoolLanes(spec), False
        self.observation_space, self.action_space = self._lane.observation_space, self._lane.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; without a seed the one that follows in this pool."""
        super().reset(seed=seed)
        if seed is not None or not self._is_seeded:
            self._lane.seed([int(self.np_random.integers(2**31)) if seed is None else seed])
            self._is_seeded = True
        return self._lane.first_observations()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        seen, reward, ends, cut = self._lane.outcomes(np.asarray(action)[np.newaxis])
        return seen[0], float(reward[0]), bool(ends[0]), bool(cut[0]), {}
