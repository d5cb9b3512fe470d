"""Finds out early whether an environment works: in the driver first, then on every node. No Ray, no torch."""

import contextlib
import copy
import functools
import math
import pickle
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from study.errors import SpaceError, StudyError, TrialError
from study.machine.apart import called_apart
from study.machine.shape import Speeds
from study.planning import DEFAULT_FILTERS
from study.space.sections import EnvironmentSpec, NetworkSpec
from study.space.spec import StudySpec
from study.trial.engine.envs.environments import ID, are_trainable, make_env
from study.trial.failures import described, original, within

_TRY = (
    "Try it in Python, as Gymnasium has it: reset(seed=0) returns (observation, info), step(action) returns "
    "(observation, reward, terminated, truncated, info)."
)
_ENDED = functools.partial(
    TrialError, where=ID, rule="the process of an environment must live until it is closed", fix=_TRY
)
PROBE_TIMEOUT_S = 60.0
"""How long the first environment may take to be made, reset and stepped once."""
_ANSWER_S = 60.0
"""Seconds that a process of its own may take beyond what is done there."""
_CHANNELS = (1, 3, 4)
"""Of an image in grey, in colour, and of four frames: no image has so few rows."""


def _called(spec: EnvironmentSpec, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns that plays an environment, a foreign one in a process of its own."""
    if not _is_foreign(spec):
        return function(*args)
    return called_apart(function, *args, limit_s=PROBE_TIMEOUT_S + _ANSWER_S, otherwise=_ENDED)


def _is_foreign(spec: EnvironmentSpec) -> bool:
    return spec.backend == "gymnasium" and not comes_with_gymnasium(spec.id)


def comes_with_gymnasium(env_id: str) -> bool:
    """Return whether an id is of an environment of Gymnasium's own, none of which keeps state in its process."""
    known = gymnasium.registry.get(env_id)
    return known is not None and str(known.entry_point).startswith("gymnasium.envs.")


# --- whether it works ------------------------------------------------------------------------------------------------


class Spaces(NamedTuple):
    """What the network sees, a float32 `Box`, and what it answers: `Discrete`, `MultiDiscrete` or a float `Box`."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space


def probe(spec: EnvironmentSpec, source_name: str, *, apart: bool = False) -> Spaces:
    """Make one environment, reset it, take one step and close it; messages name the file `source_name`.

    With `apart` somebody's own environment is tried in a process of its own.

    Raises:
        SpaceError: The environment cannot be found, made or stepped, or its spaces are not supported.
    """
    try:
        return _called(spec, _probe, spec) if apart else _probe(spec)
    except StudyError as error:
        raise SpaceError(source_name, [error.fault]) from error
    except (Exception, SystemExit) as error:
        where, rule = ID, f"'{spec.id}' must be made with {spec.kwargs}, and closed"
        got, fix = described(error), _TRY
        if isinstance(error, TypeError) and "argument" in str(error):
            where, rule = "environment.kwargs", f"must suit the constructor of '{spec.id}'"
            got, fix = f"{spec.kwargs}: {got}", "Change the arguments."
        raise SpaceError.of(source_name, where=where, rule=rule, got=got, fix=fix) from error


def _probe(spec: EnvironmentSpec) -> Spaces:
    rule = f"'{spec.id}' must be made, reset and stepped within {PROBE_TIMEOUT_S:.0f} s"
    return within(PROBE_TIMEOUT_S, lambda: _tried(spec), otherwise=TrialError(where=ID, rule=rule, fix=_TRY))


def _tried(spec: EnvironmentSpec) -> Spaces:
    with contextlib.closing(make_env(spec)) as env:
        actions, what = getattr(env, "action_space", None), "reset"
        if not are_trainable(actions):
            rule = "actions must be Discrete or MultiDiscrete from 0, or a flat float Box"
            raise TrialError(where=ID, rule=rule, got=str(actions), fix="Wrap the environment so that it takes such.")
        try:
            observation, _ = env.reset(seed=0)
            env.action_space.seed(0)
            what = "step"
            _, reward, _, _, _ = env.step(env.action_space.sample())
        except (Exception, SystemExit) as error:
            rule = f"`{what}` of '{spec.id}' must work"
            raise TrialError(where=ID, rule=rule, got=described(error), fix=_TRY) from error
        shape, rule, got = env.observation_space.shape, "", ""
        if np.shape(observation) != shape:
            rule, got = f"an observation must have the shape {shape} of its space", str(np.shape(observation))
        elif not np.all(np.isfinite(observation)):
            rule = f"observations of '{spec.id}' must be finite, the first one is not"
        elif np.shape(reward) or np.asarray(reward).dtype.kind not in "biuf" or not np.isfinite(reward):
            rule, got = f"rewards of '{spec.id}' must be finite numbers", f"{reward!r} of shape {np.shape(reward)}"
        if rule:
            raise TrialError(where=ID, rule=rule, got=got, fix="Correct the environment.")
        return Spaces(observation_space=env.observation_space, action_space=env.action_space)


def probe_study(spec: StudySpec, source_name: str) -> Spaces:
    """Probe the environment that policies are trained in, and where it differs the one that they are judged in.

    Raises:
        SpaceError: As of `probe` and `check_network`; or policies of the one could not play the other.
    """
    spaces = probe(spec.environment, source_name, apart=True)
    check_network(spec.model, spaces, source_name)
    if not spec.evaluation.kwargs:
        return spaces
    place = "evaluation.kwargs"
    try:
        judged = probe(spec.evaluated_environment, source_name, apart=True)
    except SpaceError as error:
        raise SpaceError(source_name, [replace(fault, where=place) for fault in error.faults]) from error
    trained_on, judged_on = (f"{each.observation_space.shape} and {each.action_space}" for each in (spaces, judged))
    if trained_on != judged_on:
        rule = f"must leave observations and actions what they are in training, {trained_on}"
        raise SpaceError.of(source_name, where=place, rule=rule, got=str(judged_on), fix="Change the arguments.")
    return spaces


def check_network(spec: NetworkSpec, spaces: Spaces, source_name: str) -> None:
    """Raise a `SpaceError` for convolutions over vectors, and for images for which nobody has named convolutions."""
    shape, where = spaces.observation_space.shape, "model.conv_filters"
    images, given = len(shape) == 3, spec.conv_net is not None or spec.conv_filters is not None
    if images and spec.conv_filters is None and shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
        where, rule = ID, "images must have their channels last, (height, width, channels)"
        fix = "Wrap the environment so that it moves them; where these are no channels, give model.conv_filters."
    elif images and not given and not (shape[0] in DEFAULT_FILTERS and shape[0] == shape[1]):
        rule = "must be given: RLlib has its own for squares of 42, 64, 84 and 96 pixels alone"
        fix = "Set model.conv_net, or write for instance [[16, 4, 2], [32, 4, 2], [64, 4, 2]]: filters, kernel, stride."
    elif given and not images:
        where, rule, fix = "model", "convolutions are for images", "Remove conv_net and conv_filters."
    else:
        return
    raise SpaceError.of(source_name, where=where, rule=rule, got=f"observations of shape {shape}", fix=fix)


def why_not_here(error: BaseException, env_id: str) -> tuple[str, str]:
    """Return why an environment cannot be made on this machine, and what to do about it.

    `error` is what making it raised, of itself or by `make_env` or `probe`.
    """
    faults = getattr(error, "faults", None) or ([error.fault] if isinstance(error, StudyError) else [])
    reason = " ".join(fault.problem for fault in faults) or f"{described(original(error))}."
    return reason, f"Install on every node what '{env_id}' needs, and make it work there."


# --- how fast an environment is, and whether several may share a process ---------------------------------------------

PLAY_S, LONGEST_PLAY_S, MOST_STEPS = 0.5, 2.0, 50_000
"""Seconds for which an environment is played, the longer one where no episode has ended by then; steps at most."""
STEPS = 200
"""Steps that are compared, over several episodes where they are short."""
CHECK_S = 10.0
"""Seconds after which no further step is compared: a slow simulator is compared over fewer."""
_FIRST_SEED = 20_260

Sharing = Literal["harmless", "wrong", "unknown"]
"""What several environments in one process do to one another; unknown where even alone an environment does not play
the same episode twice."""


def speeds_of(spec: EnvironmentSpec) -> Speeds | None:
    """Play the environment of a space as `speeds` does; None also where it ends its process."""
    with contextlib.suppress(StudyError):
        found: Speeds | None = _called(spec, speeds, functools.partial(make_env, spec))
        return found
    return None


def speeds(make: Callable[[], gymnasium.Env]) -> Speeds | None:
    """Play an environment for one agent with random actions, for a moment.

    None where its first step fails, which whoever plays it next will report; one that fails later is timed until then.
    """
    with contextlib.suppress(Exception, SystemExit), contextlib.closing(make()) as env:
        env.action_space.seed(0)
        checked = env.spec is None or not comes_with_gymnasium(env.spec.id)  # some of whose bounds are wrong
        began, steps, length, ended, outside = time.monotonic(), 0, 0, list[int](), ""
        with contextlib.suppress(Exception, SystemExit):
            while steps < MOST_STEPS and time.monotonic() - began < (PLAY_S if ended else LONGEST_PLAY_S):
                if not length:
                    env.reset(seed=len(ended))
                observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
                steps, length = steps + 1, length + 1
                if checked and not outside and steps <= STEPS:
                    outside = _outside(env.observation_space, observation)
                if terminated or truncated:
                    ended.append(length)
                    length = 0
        return Speeds(
            step_s=(time.monotonic() - began) / steps,
            episode_steps=sum(ended) / len(ended) if ended else env.spec and env.spec.max_episode_steps,
            observation_shape=tuple(env.observation_space.shape or ()),
            outside=outside,
        )
    return None


def _outside(space: gymnasium.Space, observation: Any) -> str:
    if not isinstance(space, gymnasium.spaces.Box):
        return ""
    places = np.argwhere((observation < space.low) | (observation > space.high))
    if not places.size:
        return ""
    place = tuple(places[0])
    name = ", ".join(map(str, place))
    return f"{observation[place]:g} at place {name}, where {space.low[place]:g} to {space.high[place]:g} are declared"


def sharing_of(spec: EnvironmentSpec) -> Sharing:
    """Find out whether environments of a space may share a process; each play has a process of its own."""
    return sharing(functools.partial(make_env, spec), apart=True) if _is_foreign(spec) else "harmless"


def sharing(make: Callable[[], gymnasium.Env], *, apart: bool) -> Sharing:
    """Find out whether environments that `make` makes, for one agent, may share a process.

    The first `STEPS` steps of a seeded environment, as many as it plays in `CHECK_S`, are played alone and again beside
    a second environment that is seeded differently. Where they differ, they are played alone once more. With `apart`
    each play has a process of its own, to which `make` is pickled.
    """

    def play(beside: bool, steps: int, limit_s: float) -> list[bytes]:
        if not apart:
            return _outcomes(make, beside, steps, limit_s)
        try:
            given, longest_s = (make, beside, steps, limit_s), CHECK_S + _ANSWER_S
            outcomes: list[bytes] = called_apart(_outcomes, *given, limit_s=longest_s, otherwise=_ENDED)
        except StudyError:
            return []
        return outcomes

    alone = play(False, STEPS, CHECK_S)
    if alone == play(True, len(alone), math.inf):
        return "harmless"
    return "wrong" if alone == play(False, len(alone), math.inf) else "unknown"


def _outcomes(make: Callable[[], gymnasium.Env], beside: bool, steps: int, limit_s: float) -> list[bytes]:
    """Return what each of the first steps of an environment brings, pickled; the actions follow from the step.

    An error is an outcome too: whoever plays the environment next will report it. With `beside`, a second environment
    is made before, and stepped before each step. Each has the global generators of Python and NumPy to itself, as among
    hosted runners: to draw from those does no harm.
    """
    end = time.monotonic() + limit_s
    outcomes: list[bytes] = []
    envs: list[gymnasium.Env] = []
    try:
        envs.extend(make() for _ in range(1 + beside))
        ended, episodes, generators = [True] * len(envs), [0] * len(envs), [_generators()] * len(envs)
        while len(outcomes) < steps and time.monotonic() < end:
            for number, env in enumerate(envs):
                other, first = number < len(envs) - 1, None
                random.setstate(generators[number][0])
                np.random.set_state(generators[number][1])  # noqa: NPY002 (environments use it)
                if ended[number]:
                    first, _ = env.reset(seed=_FIRST_SEED + 1_000 * other + episodes[number])
                    first, episodes[number] = copy.deepcopy(first), episodes[number] + 1
                env.action_space.seed(2 * len(outcomes) + other)
                outcome = env.step(env.action_space.sample())[:4]
                ended[number] = bool(outcome[2] or outcome[3])
                generators[number] = _generators()
            outcomes.append(pickle.dumps((first, *outcome)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever the environment raises)
        outcomes.append(type(error).__name__.encode())
    for env in envs:
        with contextlib.suppress(Exception):
            env.close()
    return outcomes


def _generators() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002
