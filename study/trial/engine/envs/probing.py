"""Finds out early whether an environment works: in the driver first, then on every node. No Ray, no torch."""

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_error
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from study.errors import SpaceError
from study.space.sections import EnvironmentSpec, NetworkSpec
from study.space.spec import StudySpec
from study.trial.deadline import within
from study.trial.engine.envs.apart import EnvProcess
from study.trial.engine.envs.environments import ID, make_env
from study.trial.engine.envs.wrappers import LaneError, Unusable, checked_reward
from study.trial.failures import causes, described, original

KWARGS = "environment.kwargs"
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


def probe(spec: EnvironmentSpec, source_name: str) -> Spaces:
    """Make one environment, reset it, take one step and close it; messages name the file `source_name`.

    Raises:
        SpaceError: The environment cannot be found, made or stepped, or its spaces are not supported.
    """
    trying = "Try it in Python: make the environment and reset it."
    rule = f"'{spec.id}' must be made, reset and stepped within {PROBE_TIMEOUT_S:.0f} s"
    slow = Unusable(where=ID, rule=rule, fix=trying)
    try:
        return within(PROBE_TIMEOUT_S, lambda: _probe(spec), otherwise=slow)
    except Unusable as unusable:
        raise SpaceError(source_name, [unusable.fault]) from unusable
    except gymnasium_error.DependencyNotInstalled as error:
        rule = f"a dependency of '{spec.id}' is missing: {error}"
        raise SpaceError.of(source_name, where=ID, rule=rule, fix="Install it on every node.") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "argument" in str(error):
            rule, got = f"must suit the constructor of '{spec.id}'", f"{spec.kwargs}: {described(error)}"
            raise SpaceError.of(source_name, where=KWARGS, rule=rule, got=got, fix="Change the arguments.") from error
        rule = f"'{spec.id}' must be made with {spec.kwargs}"
        raise SpaceError.of(source_name, where=ID, rule=rule, got=described(error), fix=trying) from error


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
        rule = f"must leave observations and actions what they are in training, {trained_on}"
        raise SpaceError.of(source_name, where=place, rule=rule, got=str(judged_on), fix="Change the arguments.")
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
    if len(shape) != 3:
        for name in ("conv_net", "conv_filters"):
            if getattr(spec, name) is not None:
                where, rule, fix = f"model.{name}", "convolutions are for images", "Remove it."
                raise SpaceError.of(source_name, where=where, rule=rule, got=f"observations of shape {shape}", fix=fix)
        return
    if spec.conv_filters is not None:
        return
    if shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
        fix = "Wrap the environment so that it moves them; where these are no channels, give model.conv_filters."
        rule = "images must have their channels last, (height, width, channels)"
        raise SpaceError.of(source_name, where=ID, rule=rule, got=f"shape {shape}", fix=fix)
    if spec.conv_net is None and not (shape[0] in _DEFAULT_SQUARES and shape[0] == shape[1]):
        where = "model.conv_filters"
        rule = f"must be given for images of shape {shape}: RLlib has its own for squares of 42, 64, 84 and 96 pixels"
        fix = "Set model.conv_net, or write for instance [[16, 4, 2], [32, 4, 2], [64, 4, 2]]: filters, kernel, stride."
        raise SpaceError.of(source_name, where=where, rule=rule, fix=fix)


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
    rule = "actions must be Discrete or MultiDiscrete from 0, or a flat float Box"
    raise Unusable(where=ID, rule=rule, got=str(space), fix="Wrap the environment so that it takes such actions.")


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
        rule = f"`{what}` of '{env_id}' must work"
        raise Unusable(where=ID, rule=rule, got=str(described(error)), fix=fix) from error
    if np.shape(observation) != env.observation_space.shape:
        shape = env.observation_space.shape
        rule = f"an observation must have the shape {shape} of its space"
        raise Unusable(where=ID, rule=rule, got=str(np.shape(observation)), fix="Correct `observation_space`.")
    if not np.all(np.isfinite(observation)):
        rule = f"observations of '{env_id}' must be finite, the first one is not"
        raise Unusable(where=ID, rule=rule, fix="Correct the environment.")
    try:
        finite = np.isfinite(checked_reward(reward, 0, 1))
    except LaneError as error:
        got, fix = f"{reward!r} of shape {np.shape(reward)}", "Correct the environment."
        raise Unusable(where=ID, rule=f"rewards of '{env_id}' must be numbers", got=got, fix=fix) from error
    if not finite:
        rule = f"rewards of '{env_id}' must be finite"
        raise Unusable(where=ID, rule=rule, got=str(reward), fix="Correct the environment.")


# --- an environment that works in the driver and not on a node -------------------------------------------------------


def why_not_here(error: BaseException, env_id: str) -> tuple[str, str]:
    """Return why an environment cannot be made on this machine, and what to do about it.

    `error` is what making it raised, of itself or by `make_env` or `probe`.
    """
    module, colon, _ = env_id.partition(":")
    absent = _missing_module(error)
    if colon and absent and (module == absent or module.startswith(f"{absent}.")):
        return f"module '{absent}' is not installed there.", f"Install {absent} on every node."
    if absent:
        what = f"module '{module}'" if colon else f"'{env_id}'"
        return f"{what} needs '{absent}', which is not installed.", f"Install {absent} on every node."
    if _caused_by(error, gymnasium_error.UnregisteredEnv):
        return f"no environment '{env_id}' is known there.", "Install the package that registers it on every node."
    if isinstance(error, Unusable):
        return error.fault.problem, error.fault.fix
    if isinstance(error, SpaceError):
        return " ".join(fault.problem for fault in error.faults), error.faults[0].fix
    return f"{described(original(error))}.", "Make the environment work on every node."


def _missing_module(error: BaseException) -> str | None:
    found = _caused_by(error, ModuleNotFoundError)
    return found.name if isinstance(found, ModuleNotFoundError) else None


def _caused_by(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    return next((cause for cause in causes(error) if isinstance(cause, kind)), None)


# --- an environment that keeps state in its process ------------------------------------------------------------------

STEPS = 200
"""Steps that are compared, over several episodes where they are short."""
CHECK_S = 10.0
"""Seconds after which no further step is compared: a slow simulator is compared over fewer."""
_ANSWER_S = 60.0
"""Seconds that the check waits for one answer."""
_FIRST_SEED = 20_260
_OWN_OF_GYMNASIUM = "gymnasium.envs."

Sharing = Literal["harmless", "wrong", "unknown"]
"""What several environments in one process do to one another; unknown where even alone an environment does not play
the same episode twice."""


def sharing_of(spec: EnvironmentSpec) -> Sharing:
    """Find out whether environments of a space may share a process; each play has a process of its own."""
    if spec.backend != "gymnasium" or comes_with_gymnasium(spec.id):
        return "harmless"
    return sharing(functools.partial(make_env, spec), functools.partial(EnvProcess, _ANSWER_S))


def sharing(make: Callable[[], gymnasium.Env], host: Callable[[], "EnvProcess | Here"]) -> Sharing:
    """Find out whether environments that `make` makes may share a process.

    The first `STEPS` steps of a seeded environment, as many as it plays in `CHECK_S`, are played alone and again beside
    a second environment that is seeded differently. Where they differ, they are played alone once more. An error is an
    outcome like an observation: whoever plays the environment next will report it.

    Args:
        make: Makes an environment for one agent.
        host: Makes what holds the environments of a play.
    """
    end = time.monotonic() + CHECK_S
    alone = _outcomes(host, make, end=end)
    if _equal(alone, _outcomes(host, make, beside=True, steps=len(alone))):
        return "harmless"
    return "wrong" if _equal(alone, _outcomes(host, make, steps=len(alone))) else "unknown"


class Here:
    """Holds environments in this process, as `EnvProcess` does in another."""

    def __init__(self) -> None:
        self._envs: dict[int, gymnasium.Env] = {}

    def call(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what `method` of environment `number` returns; `make` makes it."""
        if method == "make":
            env = self._envs[number] = args[0]()
            return env.observation_space, env.action_space, env.metadata
        return getattr(self._envs[number], method)(*args, **kwargs)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()


def in_own_processes(spec: StudySpec) -> StudySpec:
    """Return the space whose environments have a process each."""
    return spec.model_copy(update={"environment": spec.environment.model_copy(update={"process": "own"})})


def comes_with_gymnasium(env_id: str) -> bool:
    """Return whether an id is of an environment of Gymnasium's own, none of which keeps state in its process."""
    known = gymnasium.registry.get(env_id)
    return known is not None and str(known.entry_point).startswith(_OWN_OF_GYMNASIUM)


def _outcomes(
    host: Callable[[], "EnvProcess | Here"],
    make: Callable[[], gymnasium.Env],
    *,
    beside: bool = False,
    steps: int = STEPS,
    end: float = math.inf,
) -> list[tuple[Any, ...]]:
    """Return what the first steps of environment 0 bring, up to its first error; the actions follow from the step.

    Args:
        host: As of `sharing`.
        make: As of `sharing`.
        beside: Whether an environment 1 in the same process is stepped before each step.
        steps: How many, at most.
        end: When to stop, as `time.monotonic` counts.
    """
    numbers = (1, 0) if beside else (0,)
    episodes = dict.fromkeys(numbers, 0)
    ended = dict.fromkeys(numbers, True)
    outcomes: list[tuple[Any, ...]] = []
    with contextlib.closing(host()) as process:
        try:
            for number in numbers:
                _, action_space, _ = process.call(number, "make", make)
            while len(outcomes) < steps and time.monotonic() < end:
                first: Any = None
                for number in numbers:
                    if ended[number]:
                        seed = _FIRST_SEED + 1_000 * number + episodes[number]
                        episodes[number] += 1
                        first, _ = process.call(number, "reset", seed=seed)
                    action_space.seed(2 * len(outcomes) + number)
                    outcome = process.call(number, "step", action_space.sample())[:4]
                    ended[number] = bool(outcome[2]) or bool(outcome[3])
                outcomes.append((first, *outcome))
        except Exception as error:  # noqa: BLE001 (whatever the environment raises)
            outcomes.append((type(error).__name__,))
    return outcomes


def _equal(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    return all(
        len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
        for left, right in itertools.zip_longest(one, other, fillvalue=())
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
