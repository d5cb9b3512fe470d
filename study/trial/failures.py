"""What goes wrong in a trial: the cause of an error in one line, and calls that hang. Imports no engine.

RLlib and Ray wrap what a person's code raises; the line of that code is found again.
"""

import queue
import re
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from study.errors import StudyError
from study.ray_private import died_alone

Result = TypeVar("Result")

TRACEBACKS = "the study's folder, tracebacks/"
"""Where the driver keeps what Ray says of a failed trial."""
_LONGEST = 300
"""Characters of a message that are shown; the traceback has them all."""


class RunnerStartError(Exception):
    """The constructor of a runner failed: `runner and place: rule, got value. Fix: action.`, on one line."""


def of_runner(error: BaseException) -> str:
    """Return the message of a `RunnerStartError`, or nothing where there is none.

    Ray (2.60) hands it over as it is, or as the last line of a traceback in a message of its own.
    """
    _, found, message = f"{type(error).__name__}: {error}".rpartition(f"{RunnerStartError.__name__}: ")
    return message.partition("\n")[0].strip() if found else ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, each once: chains that people build may be closed."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__


def original(error: BaseException) -> BaseException:
    """Return the exception that says what happened: RLlib raises an empty one from what an environment raised."""
    return next((cause for cause in causes(error) if str(cause)), error)


def was_lost(error: BaseException | None) -> bool:
    """Return whether an error comes from a process or node that died, other than by an exception in a constructor."""
    from ray import exceptions as of_ray

    process = (of_ray.RayActorError, of_ray.WorkerCrashedError, of_ray.ObjectLostError)
    lost = (*process, of_ray.NodeDiedError, of_ray.LocalRayletDiedError)
    return any(isinstance(each, lost) and not getattr(each, "actor_init_failed", False) for each in causes(error))


def node_was_lost(error: BaseException) -> bool:
    """Return whether an error comes from a node that died or is out of reach, not from a process that died alone."""
    from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError

    return any(
        isinstance(cause, (ActorUnavailableError, NodeDiedError))
        or (isinstance(cause, ActorDiedError) and not died_alone(getattr(cause, "actor_id", None)))
        for cause in causes(error)
    )


_OF_PYTHON = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib"))
_OF_PACKAGES = {"site-packages", "dist-packages"}
_OURS = str(Path(__file__).parents[1].resolve())
_REMOTE_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def place_of(error: BaseException) -> str:
    """Return `file.py, line 12, in step`, the last line of a person's own code that an error came through, or nothing.

    An error of another process brings its traceback as text.
    """
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    frames += _REMOTE_FRAME.findall("\n".join([str(error), *getattr(error, "__notes__", ())]))
    for file, line, name in reversed(frames):
        path = Path(file).resolve()
        known = _OF_PACKAGES & {*path.parts} or str(path).startswith((*_OF_PYTHON, _OURS))
        if not file.startswith("<") and not known:
            return f"{Path(file).name}, line {line}, in {name}"
    return ""


def described(error: BaseException) -> str:
    """Return `Type: message (file.py, line 12, in step)` on one line of bounded length, without a full stop.

    A remote traceback says what happened in its last line, any other message in its first ones.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    remote = any(line.startswith("File ") for line in lines)
    message = lines[-1] if remote else " ".join(lines)
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} …"
    what, place = f"{type(error).__name__}: {message}".rstrip(".: "), place_of(error)
    return f"{what} ({place})" if place else what


# --- calls that hang -------------------------------------------------------------------------------------------------


class SteadyThread:
    """A daemon thread that runs functions one after another; one that hangs is abandoned with the thread.

    Some environments may be used only in the thread that made them. Code that never releases the interpreter lock
    cannot be timed out.
    """

    def __init__(self) -> None:
        self._stuck = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="steady").start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def within(self, timeout_s: float, function: Callable[[], Result], *, otherwise: StudyError) -> Result:
        """Return what `function` returns, or raise what it raises; `otherwise` where it, or an earlier one, is late."""
        if self._stuck:
            raise otherwise
        outcome: Future[Result] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001 (handed over to the caller's thread)
                outcome.set_exception(error)

        self._calls.put(run)
        if not wait([outcome], timeout_s).done:
            self._stuck = True
            raise otherwise
        return outcome.result()

    def end(self) -> None:
        """Let the thread end after what it runs."""
        self._calls.put(None)


def within(timeout_s: float, function: Callable[[], Result], *, otherwise: StudyError) -> Result:
    """Return what `function` returns, run in a thread of its own; errors as of `SteadyThread.within`."""
    thread = SteadyThread()
    try:
        return thread.within(timeout_s, function, otherwise=otherwise)
    finally:
        thread.end()
