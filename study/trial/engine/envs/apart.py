"""Plays an environment in a process of its own, as simulators need that keep state in their process. No Ray, no torch.

Such a simulator returns wrong numbers without an error where several environments share a process;
`study.trial.engine.envs.probing` notices it before the first trial.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium

from study.errors import TrialError

_GOODBYE_S = 5.0
"""Seconds that a process has to close its environment."""


class OwnProcess:
    """A process that calls functions; it sees the same modules as this one.

    Its standard output goes to the standard error of this process, whose own output may be a protocol.
    """

    def __init__(self, *, silent: bool = False) -> None:
        """Start it; where `silent`, what it writes to its standard output is lost."""
        self._line, theirs = Pipe()
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        fd = theirs.fileno()
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({fd})"]
        output = subprocess.DEVNULL if silent else 2
        self._process = subprocess.Popen(command, pass_fds=[fd], env=variables, stdin=subprocess.DEVNULL, stdout=output)
        theirs.close()

    def call(self, function: Callable[..., Any], *args: Any, limit_s: float | None = None) -> Any:
        """Return what a function returns there.

        Raises:
            TrialError: The process ended, or did not answer within `limit_s` seconds, and was ended.
            Exception: Whatever the function raises, with its traceback there as a note.
        """
        try:
            self._line.send((function, args))
            if not self._line.poll(limit_s):
                self._process.kill()
            outcome, value = self._line.recv()
        except (EOFError, OSError) as error:
            rule, got = "the process of an environment must live as long as its trial", self._process.wait()
            fix = "Look for its last words above; a simulator may have ended the process."
            raise TrialError(where="environment.id", rule=rule, got=f"exit code {got}", fix=fix) from error
        if outcome == "raised":
            raise value
        return value

    def close(self) -> None:
        """End the process and the environment in it; a second call does nothing."""
        self._line.close()
        try:
            self._process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_held: list[gymnasium.Env] = []
"""The environment of a process of its own."""


def serve(fd: int) -> None:
    """Call what comes in over the connection, until it is closed: the other end of `OwnProcess`."""
    line = Connection(fd)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            function, args = line.recv()
            try:
                sent = pickle.dumps(("returned", function(*args)))
            except (Exception, SystemExit) as error:  # noqa: BLE001 (raised again at the other end)
                sent = _as_raised(error)
            line.send_bytes(sent)
    for env in _held:
        with contextlib.suppress(Exception):
            env.close()
    sys.stdout.flush()
    os._exit(0)  # threads that an environment leaves behind would hold up the end of the process


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


def _make(make: Callable[[], gymnasium.Env]) -> Any:
    env = make()
    _held.append(env)
    return env.observation_space, env.action_space, env.metadata


def _of_env(method: str, *args: Any, **options: Any) -> Any:
    return getattr(_held[0], method)(*args, **options)


class ApartEnv(gymnasium.Env[Any, Any]):
    """An environment that plays in a process of its own."""

    def __init__(self, make: Callable[[], gymnasium.Env]) -> None:
        """Start the process and make the environment there by `make`, which is pickled; its errors pass through."""
        self._process = OwnProcess()
        try:
            self.observation_space, self.action_space, self.metadata = self._process.call(_make, make)
        except BaseException:
            self._process.close()
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment there."""
        return self._process.call(partial(_of_env, "reset", seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Step the environment there."""
        return self._process.call(_of_env, "step", action)

    def close(self) -> None:
        """Close the environment and end its process."""
        self._process.close()
