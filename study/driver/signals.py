"""Signals that end a session cleanly within `ANSWER_S`, whatever the main thread does. Imports no Ray.

A thread learns of each signal from a pipe that the interpreter writes to at once: the main thread may be inside of Ray
for a minute, and Ray and Tune install handlers of their own.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import NoReturn

from study.console import say
from study.driver.conductor import Conductor
from study.errors import ExitCode
from study.machine.host import children_of
from study.records.records import StudyClosed

ANSWER_S = 8.0
"""Seconds from the first signal to the end of the process: SLURM sends SIGKILL after 30 s, others after 10 s."""
GIVE_UP_S = 5.0
"""Seconds that Tune and Ray have to end by themselves: where a signal ended Ray too, Tune waits a minute for it."""
_LAST_S = 1.5
"""Seconds of `ANSWER_S` that are left for what comes after the mirrors: tables, the end of the interpreter."""
IMPATIENT_S = 2.0
"""A second signal this soon is the same one, forwarded twice; a later one means now."""


class StopSignals:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a clean end; a second SIGINT or SIGTERM ends the process at once.

    Before there is a conductor, the main thread gets a KeyboardInterrupt: there is nothing to record yet.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        """Take no signal yet."""
        self._closing = threading.Lock()
        self._closed: StudyClosed | None = None
        self._conductor: Conductor | None = None
        self._received: tuple[str, float] | None = None
        """The first signal and when it came, on the clock of `time.monotonic`."""
        self._interrupted = False
        self._timers: list[threading.Timer] = []
        self._undo = contextlib.ExitStack()
        self._spared = children_of(os.getpid())  # which this process had before: they are not the study's

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            read, write = os.pipe()
            os.set_blocking(write, False)
            listener = threading.Thread(target=self._listen, args=[read], name="signals", daemon=True)
            self._undo.callback(listener.join)  # what it has read may still arm a timer
            self._undo.callback(os.close, write)
            self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
            for number in self.NUMBERS:
                self._undo.callback(signal.signal, number, signal.getsignal(number))
            listener.start()
            self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()
        for timer in self._timers:
            timer.cancel()

    def install(self) -> None:
        """Take the signals, again where Ray or Tune took them: both install handlers of their own."""
        if threading.current_thread() is threading.main_thread():
            for number in self.NUMBERS:
                signal.signal(number, self._handle)

    def tell(self, conductor: Conductor) -> None:
        """Pass signals on to the conductor, also one that came before it existed."""
        self._conductor = conductor
        if self._received is not None:
            conductor.end_early("stopped", f"received {self._received[0]}")

    @property
    def deadline(self) -> float:
        """When mirrors must be done, on the clock of `time.monotonic`; infinite where no signal came."""
        return math.inf if self._received is None else self._received[1] + ANSWER_S - _LAST_S

    def check(self) -> None:
        """Interrupt once more where the first interruption was swallowed, as by a destructor or a callback."""
        if self._received is not None and self._conductor is None:
            raise KeyboardInterrupt

    def lose_ray(self, why: str) -> None:
        """End the study because Ray is gone: as by a signal, but from any thread, and as an error."""
        if self._conductor is not None:
            fix = "Fix: look after Ray there, then run the same command with --resume."
            self._conductor.end_early("error", f"{why}. {fix}")
            self._arm(GIVE_UP_S, self._give_up)

    def close(self, conductor: Conductor) -> StudyClosed:
        """Record the end of the session once Tune has returned; from now on no signal changes how it ended."""
        with self._closing:
            if self._closed is None:
                self._closed = conductor.close()
        return self._closed

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the main thread where no conductor can end the session; `_listen` does the rest."""
        if self._conductor is None and self._closed is None and not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt

    def _listen(self, pipe: int) -> None:
        """Read the numbers of signals until the other end of the pipe is closed."""
        while numbers := os.read(pipe, 64):
            for number in numbers:
                if number in self.NUMBERS:
                    self._receive(signal.Signals(number))
        os.close(pipe)

    def _receive(self, received: signal.Signals) -> None:
        now = time.monotonic()
        if self._received is not None:
            if received != signal.SIGUSR1 and now - self._received[1] > IMPATIENT_S:
                self._leave(f"Received {received.name} again; ended at once.")
            return
        self._received = received.name, now
        if self._conductor is not None and self._closed is None:
            self._conductor.end_early("stopped", f"received {received.name}")
        else:
            what = "the study has ended and is being written" if self._closed else "ending before the first trial"
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more
                say(f"Received {received.name}; {what}. Again to end at once.", error=True)
        self._arm(ANSWER_S, lambda: self._leave("The session did not end in time."))
        self._arm(GIVE_UP_S, self._give_up)

    def _arm(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append(timer := threading.Timer(seconds, act))
        timer.daemon = True
        timer.start()

    def _give_up(self) -> None:
        """Record the end and leave; the main thread is inside Ray and does not come back."""
        if self._conductor is None:
            return
        with self._closing:  # never let go: a main thread that comes back now waits here for the end of the process
            if self._closed is None:
                try:
                    self._closed = self._conductor.close()
                finally:
                    stop = self._conductor.stop
                    self._leave(f"Ray did not end in time{f' ({stop.detail})' if stop else ''}.")

    def _leave(self, why: str) -> None:
        """End this process and all that it started, whatever its main thread does."""
        try:
            say(f"{why}\nNothing recorded is lost: run the same command with --resume-or-start.", error=True)
        finally:
            leave(ExitCode.STOPPED, spared=self._spared)


def leave(code: ExitCode, *, spared: Collection[int] = ()) -> NoReturn:
    """End this process at once, and what it has started but for `spared`: the processes of a private Ray, mirrors."""
    try:
        _kill(children_of(os.getpid()) - set(spared))
    finally:
        os._exit(code)


def _kill(processes: Collection[int]) -> None:
    """Kill processes and all below them, each before its children can notice that it is gone."""
    for process in processes:
        below = children_of(process)
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
        _kill(below)
