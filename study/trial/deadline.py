"""Runs a function that might hang, with a time limit. Imports the standard library only."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from study.errors import StudyError

Result = TypeVar("Result")


class SteadyThread:
    """A daemon thread that runs functions one after another.

    Some environments may be used only in the thread that made them. When a call hangs, the thread is abandoned; the end
    of the process does not wait for it. Code that never releases the interpreter lock cannot be timed out.

    Attributes:
        stuck: Whether a call did not end in time; from then on nothing more is run.
    """

    def __init__(self) -> None:
        self.stuck = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="steady").start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def within(self, timeout_s: float, function: Callable[[], Result], *, otherwise: StudyError) -> Result:
        """Return what `function` returns, or raise what it raises.

        Raises:
            StudyError: `otherwise`: `function` did not end in time, or an earlier one did not.
        """
        if self.stuck:
            raise otherwise
        outcome: Future[Result] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001 (handed over to the caller's thread)
                outcome.set_exception(error)

        self._calls.put(run)
        if not wait([outcome], timeout_s).done:
            self.stuck = True
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
