"""Environments that keep state in their process: found before the first trial, and given processes of their own.

A simulator that exists once in a process returns wrong numbers without an error where several environments share a
process. `sharing_of` plays one seeded episode alone and again beside a second environment; where the two differ,
`ApartEnv` plays every environment in a process of its own. No Ray, no torch.
"""

import contextlib
import itertools
import math
import os
import pickle
import subprocess
import sys
import time
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from study.errors import TrialError
from study.space.sections import EnvironmentSpec
from study.space.spec import StudySpec

STEPS = 200
"""Steps that are compared, over several episodes where they are short."""
CHECK_S = 10.0
"""Seconds after which no further step is compared: a slow simulator is compared over fewer."""
_ANSWER_S = 60.0
"""Seconds that the check waits for one answer."""
_FIRST_SEED = 20_260
_OWN_OF_GYMNASIUM = "gymnasium.envs."
_SERVE = "from study.trial.engine.envs.apart import serve; serve({fd})"
_GOODBYE_S = 5.0
"""Seconds that a process has to close its environment."""


class EnvProcess:
    """A process of its own that holds environments.

    Its standard output goes to the standard error of this process, whose own output may be a protocol.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        """Start the process; it sees the same modules as this one, and has `limit_s` for each answer."""
        self._limit_s = limit_s
        self._line, theirs = Pipe()
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        command = [sys.executable, "-c", _SERVE.format(fd=theirs.fileno())]
        fd = theirs.fileno()
        self._process = subprocess.Popen(command, pass_fds=[fd], env=variables, stdin=subprocess.DEVNULL, stdout=2)
        theirs.close()

    def call(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what `method` of environment `number` returns; `make` makes the environment of a specification.

        Raises:
            TrialError: The process ended.
            Exception: Whatever the environment raises, with its traceback there as a note.
        """
        try:
            self._line.send((number, method, args, kwargs))
            if not self._line.poll(self._limit_s):
                self._process.kill()
            outcome, value = self._line.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            rule, got = "the process of an environment must live as long as its trial", f"exit code {code}"
            fix = "Look for its last words above; a simulator may have ended the process."
            raise TrialError(where="environment.id", rule=rule, got=got, fix=fix) from error
        if outcome == "raised":
            raise value
        return value

    def close(self) -> None:
        """End the process and the environments in it; a second call does nothing."""
        self._line.close()
        try:
            self._process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(fd: int) -> None:
    """Hold environments and do what comes in over the connection, until it is closed: the other end of `EnvProcess`."""
    from study.trial.engine.envs.environments import make_env

    envs: dict[int, gymnasium.Env] = {}
    line = Connection(fd)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            number, method, args, kwargs = line.recv()
            try:
                if method == "make":
                    env = envs[number] = make_env(*args, **kwargs)
                    answer: Any = (env.observation_space, env.action_space, env.metadata)
                else:
                    answer = getattr(envs[number], method)(*args, **kwargs)
                sent = pickle.dumps(("returned", answer))
            except (Exception, SystemExit) as error:  # noqa: BLE001 (raised again at the other end)
                sent = _as_raised(error)
            line.send_bytes(sent)
    for env in envs.values():
        env.close()


def _as_raised(error: BaseException) -> bytes:
    """Return the pickle of an error; of its text alone where it cannot be pickled or made again."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        sent = pickle.dumps(("raised", error))
        pickle.loads(sent)
    except Exception:  # noqa: BLE001 (whatever the error's own class does)
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.add_note("\n".join(error.__notes__))
        return pickle.dumps(("raised", told))
    return sent


class ApartEnv(gymnasium.Env[Any, Any]):
    """An environment of a specification that plays in a process of its own."""

    def __init__(self, spec: EnvironmentSpec, *, render_mode: str | None = None) -> None:
        """Start the process and make the environment there; errors as of `make_env`."""
        self._process = EnvProcess()
        self.render_mode = render_mode
        try:
            made = self._process.call(0, "make", spec, render_mode=render_mode)
        except BaseException:
            self._process.close()
            raise
        self.observation_space, self.action_space, self.metadata = made

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment there."""
        return self._process.call(0, "reset", seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step the environment there."""
        return self._process.call(0, "step", action)

    def render(self) -> Any:
        """Return a picture of the environment there."""
        return self._process.call(0, "render")

    def close(self) -> None:
        """Close the environment and end its process."""
        self._process.close()


# --- the check before the first trial --------------------------------------------------------------------------------

Sharing = Literal["harmless", "wrong", "unknown"]
"""What several environments in one process do to one another; unknown where even alone an environment does not play
the same episode twice."""


def sharing_of(spec: EnvironmentSpec) -> Sharing:
    """Find out whether environments of this kind may share a process.

    The first `STEPS` steps of a seeded environment, as many as it plays in `CHECK_S`, are played in a process of its
    own, and in another one beside a second environment that is seeded differently. Where they differ, they are played
    alone once more. An error is an outcome like an observation: whoever plays the environment next will report it.
    """
    if spec.backend != "gymnasium" or _comes_with_gymnasium(spec.id):
        return "harmless"
    end = time.monotonic() + CHECK_S
    alone = _outcomes(spec, end=end)
    if _equal(alone, _outcomes(spec, beside=True, steps=len(alone))):
        return "harmless"
    return "wrong" if _equal(alone, _outcomes(spec, steps=len(alone))) else "unknown"


def in_own_processes(spec: StudySpec) -> StudySpec:
    """Return the space whose environments have a process each."""
    return spec.model_copy(update={"environment": spec.environment.model_copy(update={"process": "own"})})


def _comes_with_gymnasium(env_id: str) -> bool:
    known = gymnasium.registry.get(env_id)
    return known is not None and str(known.entry_point).startswith(_OWN_OF_GYMNASIUM)


def _outcomes(
    spec: EnvironmentSpec, *, beside: bool = False, steps: int = STEPS, end: float = math.inf
) -> list[tuple[Any, ...]]:
    """Return what the first steps of environment 0 bring, up to its first error; the actions follow from the step.

    Args:
        spec: The environment.
        beside: Whether an environment 1 in the same process is stepped before each step.
        steps: How many, at most.
        end: When to stop, as `time.monotonic` counts.
    """
    numbers = (1, 0) if beside else (0,)
    episodes = dict.fromkeys(numbers, 0)
    ended = dict.fromkeys(numbers, True)
    outcomes: list[tuple[Any, ...]] = []
    with contextlib.closing(EnvProcess(_ANSWER_S)) as process:
        try:
            for number in numbers:
                _, action_space, _ = process.call(number, "make", spec)
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
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
