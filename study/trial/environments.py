"""Makes the environment that a space names, and finds out early when that cannot work. No Ray, no torch.

A Gymnasium id, or `module:Class` of the user's own. Every environment leaves here with flat float32
observations, since the network is fully connected.
"""

import difflib
import importlib
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_error
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TimeLimit

from study.errors import Fault, SpaceError, TrialError
from study.spec import EnvironmentSpec
from study.trial.deadline import within

ID, KWARGS = "environment.id", "environment.kwargs"
PROBE_TIMEOUT_S = 60.0
"""How long the first environment may take to be made, reset and stepped once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """What the network sees and what it answers.

    Attributes:
        observation_space: A flat float32 `Box`, shape (features,).
        action_space: `Discrete`, `MultiDiscrete` or a float `Box`.
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space


class _Unusable(Exception):  # noqa: N818 (carries a fault; `probe` turns it into the error that people see)
    """Why an environment cannot be made."""

    def __init__(self, place: str, law: str, fix: str) -> None:
        super().__init__(f"{place}: {law} Fix: {fix}")
        self.fault = Fault(place=place, law=law, fix=fix)


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes the environment wherever it is unpickled; RLlib calls it with a context that it ignores."""

    spec: EnvironmentSpec

    def __call__(self, context: Any = None) -> gymnasium.Env:
        """Return a new environment."""
        return make_env(self.spec)


def env_factory(spec: EnvironmentSpec) -> EnvFactory:
    """Return a picklable maker of the environment."""
    return EnvFactory(spec)


def make_env(spec: EnvironmentSpec) -> gymnasium.Env:
    """Return one environment with flat float32 observations.

    Whatever the environment's own constructor raises passes through.
    """
    maker = _find(spec.id)
    if maker is None:
        limit = spec.max_episode_steps
        env = gymnasium.make(spec.id, max_episode_steps=limit, disable_env_checker=True, **spec.kwargs)
    else:
        env = maker(**spec.kwargs)
        if not isinstance(env, gymnasium.Env):
            got = f"must make a gymnasium.Env, got {type(env).__name__}."
            raise _Unusable(ID, got, "Derive the class from gymnasium.Env.")
        if spec.max_episode_steps is not None:
            env = TimeLimit(env, spec.max_episode_steps)
    return _flat(env)


def _find(env_id: str) -> Any:
    """Return the user's own class, or None when `env_id` is one that Gymnasium knows."""
    module_name, colon, name = env_id.partition(":")
    if not colon:
        if env_id not in gymnasium.registry:
            _check_registered(env_id)
        return None
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            fix = "Check the spelling; it is imported from the directory in which the study was started."
            raise _Unusable(ID, f"the module must exist, got '{module_name}'.", fix) from error
        law = f"module '{module_name}' needs '{missing}', which is not installed."
        raise _Unusable(ID, law, f"Install {missing} on every node.") from error
    if hasattr(module, name):
        return getattr(module, name)
    if env_id in gymnasium.registry or name in gymnasium.registry:
        return None  # Gymnasium's own `module:Id`: import the module, then look up the id
    near = difflib.get_close_matches(name, dir(module), n=1)
    fix = f"Did you mean '{module_name}:{near[0]}'?" if near else "Name a class of that module."
    raise _Unusable(ID, f"module '{module_name}' has no '{name}'.", fix)


def _check_registered(env_id: str) -> None:
    try:
        gymnasium.spec(env_id)  # also finds `Acrobot`, which means its newest version
    except gymnasium_error.Error as error:
        near = difflib.get_close_matches(env_id, gymnasium.registry, n=1, cutoff=0.5)
        fix = f"Did you mean '{near[0]}'?" if near else "Use an id of Gymnasium, or module:Class of your own."
        raise _Unusable(ID, f"no such environment, got '{env_id}'.", fix) from error


def _flat(env: gymnasium.Env) -> gymnasium.Env:
    space = env.observation_space
    if not (isinstance(space, Box) and len(space.shape) == 1):
        if not space.is_np_flattenable:
            law = f"observations must be arrays of a fixed size, got {space}."
            raise _Unusable(ID, law, "Wrap the environment so that it returns a Box.")
        env = FlattenObservation(env)
    if env.observation_space.dtype != np.float32:
        env = DtypeObservation(env, np.float32)
    return env


def probe(spec: EnvironmentSpec, source_name: str) -> Spaces:
    """Make one environment, reset it, take one step and close it.

    Args:
        spec: The environment.
        source_name: Name of the space file, for the message.

    Raises:
        SpaceError: The environment cannot be found, made or stepped, or its spaces are not supported.
    """
    try:
        slow = f"'{spec.id}' must be made, reset and stepped within {PROBE_TIMEOUT_S:.0f} s."
        return within(PROBE_TIMEOUT_S, lambda: _probe(spec), otherwise=slow)
    except TrialError as error:
        fault = Fault(place=ID, law=str(error), fix="Try it in Python: make the environment and reset it.")
    except _Unusable as unusable:
        raise SpaceError(source_name, [unusable.fault]) from unusable
    except gymnasium_error.DependencyNotInstalled as error:
        fault = Fault(
            place=ID, law=f"a dependency of '{spec.id}' is missing: {error}.", fix="Install it on every node."
        )
    except TypeError as error:
        law = f"must suit the constructor of '{spec.id}', got {spec.kwargs}: {error}."
        fault = Fault(place=KWARGS, law=law, fix="Change the arguments.")
    except Exception as error:
        law = f"'{spec.id}' must be made with {spec.kwargs}, got {type(error).__name__}: {error}."
        fault = Fault(place=ID, law=law, fix="Try it in Python: make the environment and reset it.")
        raise SpaceError(source_name, [fault]) from error
    raise SpaceError(source_name, [fault])


def _probe(spec: EnvironmentSpec) -> Spaces:
    env = make_env(spec)
    try:
        _check_action_space(env.action_space)
        _try_step(env, spec.id)
        return Spaces(observation_space=env.observation_space, action_space=env.action_space)
    finally:
        env.close()


def _check_action_space(space: gymnasium.Space) -> None:
    if isinstance(space, Discrete) and space.start == 0:
        return
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1 and not np.any(space.start):
        return
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and len(space.shape) == 1:
        return
    law = f"actions must be Discrete or MultiDiscrete from 0, or a flat float Box, got {space}."
    raise _Unusable(ID, law, "Wrap the environment so that it takes such actions.")


def _try_step(env: gymnasium.Env, env_id: str) -> None:
    what = "reset"
    try:
        observation, _ = env.reset(seed=0)
        env.action_space.seed(0)
        what = "step"
        _, reward, _, _, _ = env.step(env.action_space.sample())
    except Exception as error:
        law = f"`{what}` of '{env_id}' must work, got {type(error).__name__}: {error}."
        raise _Unusable(ID, law, "Try it in Python: make the environment, reset it and step it.") from error
    if np.shape(observation) != env.observation_space.shape:
        shape = env.observation_space.shape
        law = f"an observation must have the shape {shape} of its space, got {np.shape(observation)}."
        raise _Unusable(ID, law, "Correct `observation_space`.")
    if not np.isfinite(float(reward)):
        raise _Unusable(ID, f"rewards of '{env_id}' must be finite, got {reward}.", "Correct the environment.")
