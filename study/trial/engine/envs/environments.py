"""Makes the environment that a space names, and finds out early when that cannot work. No Ray, no torch.

A Gymnasium id, `module:Class` of the user's own, or an EnvPool task. Every environment leaves here with float32
observations: images in [0, 1], everything else flat.
"""

import copy
import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_error
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.wrappers import TimeLimit

from study.errors import Fault, SpaceError, TrialError
from study.space.procgen import game_meant
from study.space.spec import EnvironmentSpec, NetworkSpec, StudySpec
from study.trial.deadline import within
from study.trial.engine.envs.envpool_envs import EnvPoolEnv
from study.trial.engine.envs.lane_checks import LaneError, checked_reward
from study.trial.engine.envs.layers import StepLoad, layered
from study.trial.engine.envs.observations import Unusable, observed
from study.trial.engine.envs.plugins import load_plugins_for, package_of
from study.trial.failures import described

ID, KWARGS = "environment.id", "environment.kwargs"
_ALIKE = 0.7
"""How alike an id must be to be proposed, as `difflib` counts: -v5 alone makes many ids half alike."""
_API = {
    "reset": "Write it as Gymnasium has it: reset(*, seed=None, options=None) returns (observation, info).",
    "step": "Write it as Gymnasium has it: step(action) returns (observation, reward, terminated, truncated, info).",
}
_OTHER_API = ("unpack", "unexpected keyword argument 'seed'")
"""Words of what Python says where `reset` or `step` takes or returns something else."""
PROBE_TIMEOUT_S = 60.0
"""How long the first environment may take to be made, reset and stepped once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """What the network sees and what it answers.

    Attributes:
        observation_space: A float32 `Box`. An image, shape (height, width, channels), in [0, 1]; another 3-D
            array of floats as it is; anything else flat, shape (features,).
        action_space: `Discrete`, `MultiDiscrete` or a float `Box`.
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes the environment wherever it is unpickled; RLlib calls it with a context that it ignores.

    Attributes:
        spec: The environment.
        waits: Whether each step takes `step_wait_ms` and `step_cpu_ms` longer, as it is meant for training.
    """

    spec: EnvironmentSpec
    waits: bool = False

    def __call__(self, context: Any = None) -> gymnasium.Env:
        """Return a new environment."""
        env = make_env(self.spec)
        return _Heavy(env, self.load) if self.load else env

    @property
    def load(self) -> StepLoad:
        """What each step of an environment costs besides itself."""
        if not self.waits:
            return StepLoad()
        return StepLoad(wait_s=self.spec.step_wait_ms / 1000, cpu_s=self.spec.step_cpu_ms / 1000)


def env_factory(spec: EnvironmentSpec, *, waits: bool = False) -> EnvFactory:
    """Return a picklable maker of the environment."""
    return EnvFactory(spec, waits)


class _Heavy(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, load: StepLoad) -> None:
        super().__init__(env)
        self._load = load

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        self._load.bear()
        return outcome


def make_env(spec: EnvironmentSpec, *, render_mode: str | None = None) -> gymnasium.Env:
    """Return one environment with float32 observations, as `Spaces` says. It never waits.

    Whatever the environment's own constructor raises passes through.

    Args:
        spec: The environment.
        render_mode: Gymnasium's; an environment of EnvPool has none, and draws nothing whatever is asked.

    Raises:
        Unusable: There is no such environment, or it cannot be trained on.
    """
    if spec.backend == "envpool":
        return EnvPoolEnv(spec)
    maker = _find(spec.id)
    kwargs = spec.kwargs if render_mode is None else {**spec.kwargs, "render_mode": render_mode}
    if maker is None:
        return layered(observed(_registered(spec, kwargs)), spec)
    # Nothing else is called: any function of any module would do what its name in a space file says.
    if not isinstance(maker, type) or not issubclass(maker, gymnasium.Env):
        got = f"must make a gymnasium.Env, got {getattr(maker, '__name__', type(maker).__name__)}."
        raise Unusable(ID, got, "Name a class that is derived from gymnasium.Env.")
    if any(base.__name__ == "MultiAgentEnv" for base in maker.__mro__):  # RLlib's, which nothing here imports
        got = f"must be for one agent, got the MultiAgentEnv {maker.__name__}."
        raise Unusable(ID, got, "Use an environment for one agent.")
    env = maker(**kwargs)
    if spec.max_episode_steps is not None:
        env = TimeLimit(env, spec.max_episode_steps)
    return layered(observed(env), spec)


def _registered(spec: EnvironmentSpec, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    """Return an environment of Gymnasium's registry without the wrappers that check the caller at every step."""
    name = spec.id.rpartition(":")[2]
    known = copy.copy(gymnasium.spec(name))
    known.order_enforce = False
    return gymnasium.make(known, max_episode_steps=spec.max_episode_steps, disable_env_checker=True, **kwargs)


def _find(env_id: str) -> Any:
    """Return the user's own class, or None when `env_id` is one that Gymnasium knows."""
    module_name, colon, name = env_id.partition(":")
    if not colon:
        if env_id not in gymnasium.registry:
            _check_registered(env_id)
        return None
    if not all(part.isidentifier() for part in module_name.split(".")):
        law = f"what is before the colon must be a module's name, got '{module_name}'."
        raise Unusable(ID, law, "Write module:Class, or package.module:Class; start the study in the module's folder.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            fix = "Check the spelling; it is imported from the directory in which the study was started."
            law = f"the module must exist, got '{module_name}'."
            raise Unusable(ID, law, package_of(env_id) or _procgen_meant(env_id) or fix) from error
        law = f"module '{module_name}' needs '{missing}', which is not installed."
        raise Unusable(ID, law, f"Install {missing} on every node.") from error
    if hasattr(module, name):
        return getattr(module, name)
    if env_id in gymnasium.registry or name in gymnasium.registry:
        return None  # Gymnasium's own `module:Id`: import the module, then look up the id
    near = difflib.get_close_matches(name, dir(module), n=1)
    fix = f"Did you mean '{module_name}:{near[0]}'?" if near else "Name a class of that module."
    raise Unusable(ID, f"module '{module_name}' has no '{name}'.", fix)


def _check_registered(env_id: str) -> None:
    try:
        load_plugins_for(env_id)
        gymnasium.spec(env_id)
    except gymnasium_error.Error as error:
        law = f"no such environment, got '{env_id}'."
        if (install := package_of(env_id)) is not None:
            raise Unusable(ID, law, install) from error
        if isinstance(error, gymnasium_error.NamespaceNotFound):
            namespace = env_id.partition("/")[0]
            fix = f"Check the spelling, or install the package that registers {namespace}/…, on every node."
            raise Unusable(ID, law, fix) from error
        near = difflib.get_close_matches(env_id, gymnasium.registry, n=1, cutoff=_ALIKE)
        fix = f"Did you mean '{near[0]}'?" if near else "Use an id of Gymnasium, or module:Class of your own."
        raise Unusable(ID, law, _procgen_meant(env_id) or fix) from error


def _procgen_meant(env_id: str) -> str | None:
    """Return the fix for an id that names a game of Procgen as others write it."""
    game = game_meant(env_id)
    return None if game is None else f"Did you mean '{game}'?"


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
        fault = Fault(where=ID, rule=str(error), fix="Try it in Python: make the environment and reset it.")
    except Unusable as unusable:
        raise SpaceError(source_name, [unusable.fault]) from unusable
    except gymnasium_error.DependencyNotInstalled as error:
        fault = Fault(
            where=ID, rule=f"a dependency of '{spec.id}' is missing: {error}.", fix="Install it on every node."
        )
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "argument" in str(error):
            law = f"must suit the constructor of '{spec.id}', got {spec.kwargs}: {described(error)}."
            fault = Fault(where=KWARGS, rule=law, fix="Change the arguments.")
        else:
            law = f"'{spec.id}' must be made with {spec.kwargs}, got {described(error)}."
            fault = Fault(where=ID, rule=law, fix="Try it in Python: make the environment and reset it.")
        raise SpaceError(source_name, [fault]) from error
    raise SpaceError(source_name, [fault])


def probe_study(spec: StudySpec, source_name: str) -> Spaces:
    """Probe the environment that policies are trained in, and where it differs the one that they are judged in.

    Raises:
        SpaceError: As of `probe` and `check_network`; or policies of the one could not play the other.
    """
    spaces = probe(spec.environment, source_name)
    check_network(spec.model, spaces, source_name)
    if not spec.evaluation.kwargs:
        return spaces
    place = "evaluation.kwargs"
    try:
        judged = probe(spec.evaluated_environment, source_name)
    except SpaceError as error:
        raise SpaceError(source_name, [replace(fault, where=place) for fault in error.faults]) from error
    trained_on, judged_on = (f"{each.observation_space.shape} and {each.action_space}" for each in (spaces, judged))
    if trained_on != judged_on:
        law = f"must leave observations and actions what they are in training, {trained_on}, got {judged_on}."
        raise SpaceError(source_name, [Fault(where=place, rule=law, fix="Change the arguments.")])
    return spaces


_DEFAULT_SQUARES = (10, 42, 64, 84, 96)
"""Sizes of images for which RLlib has convolutions of its own, pixels."""
_CHANNELS = (1, 3, 4)
"""Of an image in grey, in colour, and of four frames: no image has so few rows."""


def check_network(spec: NetworkSpec, spaces: Spaces, source_name: str) -> None:
    """Refuse convolutions for vectors, and images for which nobody has named convolutions.

    Raises:
        SpaceError: Names `model.conv_filters` or `model.conv_net`, or `environment.id` where channels come first.
    """
    shape = spaces.observation_space.shape
    if len(shape) == 3 and spec.conv_filters is None and shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
        law = f"images must have their channels last, (height, width, channels), got shape {shape}."
        fix = "Wrap the environment so that it moves them; where these are no channels, give model.conv_filters."
        raise SpaceError(source_name, [Fault(where=ID, rule=law, fix=fix)])
    if len(shape) != 3 and spec.conv_net is not None:
        law = f"convolutions are for images, got observations of shape {shape}."
        raise SpaceError(source_name, [Fault(where="model.conv_net", rule=law, fix="Remove it.")])
    square = shape[0] in _DEFAULT_SQUARES and shape[0] == shape[1] if len(shape) == 3 else False
    if len(shape) != 3 and spec.conv_filters is not None:
        law, fix = (
            f"must be left out where observations are no images, got observations of shape {shape}.",
            "Remove it.",
        )
    elif len(shape) == 3 and spec.conv_filters is None and spec.conv_net is None and not square:
        law = f"must be given for images of shape {shape}: RLlib has its own for squares of 42, 64, 84 and 96 pixels."
        fix = "Set model.conv_net, or write for instance [[16, 4, 2], [32, 4, 2], [64, 4, 2]]: filters, kernel, stride."
    else:
        return
    raise SpaceError(source_name, [Fault(where="model.conv_filters", rule=law, fix=fix)])


def _probe(spec: EnvironmentSpec) -> Spaces:
    env = make_env(spec)
    try:
        _check_action_space(getattr(env, "action_space", None))
        _try_step(env, spec.id)
        return Spaces(observation_space=env.observation_space, action_space=env.action_space)
    finally:
        env.close()


def _check_action_space(space: Any) -> None:
    if isinstance(space, Discrete) and space.start == 0:
        return
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1 and not np.any(space.start):
        return
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and len(space.shape) == 1:
        return
    law = f"actions must be Discrete or MultiDiscrete from 0, or a flat float Box, got {space}."
    raise Unusable(ID, law, "Wrap the environment so that it takes such actions.")


def _try_step(env: gymnasium.Env, env_id: str) -> None:
    what = "reset"
    try:
        observation, _ = env.reset(seed=0)
        env.action_space.seed(0)
        what = "step"
        _, reward, _, _, _ = env.step(env.action_space.sample())
    except (Exception, SystemExit) as error:
        other_api = isinstance(error, (TypeError, ValueError)) and any(word in str(error) for word in _OTHER_API)
        fix = _API[what] if other_api else "Try it in Python: make the environment, reset it and step it."
        raise Unusable(ID, f"`{what}` of '{env_id}' must work, got {described(error)}.", fix) from error
    if np.shape(observation) != env.observation_space.shape:
        shape = env.observation_space.shape
        law = f"an observation must have the shape {shape} of its space, got {np.shape(observation)}."
        raise Unusable(ID, law, "Correct `observation_space`.")
    if not np.all(np.isfinite(observation)):
        law = f"observations of '{env_id}' must be finite, the first one is not."
        raise Unusable(ID, law, "Correct the environment.")
    try:
        finite = np.isfinite(checked_reward(reward, 0, 1))
    except LaneError as error:
        law = f"rewards of '{env_id}' must be numbers, got {reward!r} of shape {np.shape(reward)}."
        raise Unusable(ID, law, "Correct the environment.") from error
    if not finite:
        raise Unusable(ID, f"rewards of '{env_id}' must be finite, got {reward}.", "Correct the environment.")
