"""Signals that end a study cleanly, and the way out when Ray has died of the same signal. Changes handlers only."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from study.conductor import Conductor
from study.errors import ExitCode
from study.tracking.records import StudyClosed

GIVE_UP_S = 20.0
"""A signal to the whole process group ends Ray too, and then Tune waits a minute for it and exits without a word."""
IMPATIENT_S = 2.0
"""A second signal this soon is the same one, forwarded twice; a later one means now."""


class StopSignals:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a clean end; a second SIGINT or SIGTERM ends the process at once."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, close: Callable[[Conductor], StudyClosed]) -> None:
        """Take no signal yet.

        Args:
            close: Records the end of the session; also from another thread, when Tune does not return.
        """
        self._close = close
        self._closing = threading.Lock()
        self._closed: StudyClosed | None = None
        self._conductor: Conductor | None = None
        self._received: tuple[str, float] | None = None
        self._before: dict[int, Any] = {}
        self._watchdog: threading.Timer | None = None

    def tell(self, conductor: Conductor) -> None:
        """Pass signals on to the conductor, also one that came before it existed."""
        self._conductor = conductor
        if self._received is not None:
            conductor.end_early("stopped", f"received {self._received[0]}")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if self._received is not None:
            if number != signal.SIGUSR1 and now - self._received[1] > IMPATIENT_S:
                raise KeyboardInterrupt
            return
        self._received = name, now
        if self._closed is not None:
            sys.stderr.write(f"Received {name}; the study has ended and is being written. Again to end at once.\n")
            return
        if self._conductor is None:
            sys.stderr.write(f"Received {name}; ending once Ray is up. Again to end at once.\n")
            return
        self._conductor.end_early("stopped", f"received {name}")
        self._arm(self._conductor)

    def lose_ray(self, why: str) -> None:
        """End the study because Ray is gone: as by a signal, but from any thread, and as an error."""
        if self._conductor is not None:
            self._conductor.end_early(
                "error", f"{why}. Fix: look after Ray there, then run the same command with --resume."
            )
            self._arm(self._conductor)

    def _arm(self, conductor: Conductor) -> None:
        """Give Tune so long to end by itself, from the first reason on."""
        if self._watchdog is not None or self._closed is not None:
            return
        self._watchdog = threading.Timer(GIVE_UP_S, self._give_up, [conductor])
        self._watchdog.daemon = True
        self._watchdog.start()

    def _give_up(self, conductor: Conductor) -> None:
        """Record the end and leave; the main thread is inside Ray and does not come back."""
        with self._closing:  # never let go: a main thread that comes back now waits here for the end of the process
            if self._closed is not None:
                return
            try:
                self._closed = self._close(conductor)
                reason = f" ({conductor.stop.detail})" if conductor.stop and conductor.stop.reason == "error" else ""
                sys.stderr.write(
                    f"Ray did not end in time{reason}. Nothing recorded is lost: run the same command with --resume.\n"
                )
                sys.stderr.flush()
            finally:
                os._exit(ExitCode.STOPPED)

    def close(self, conductor: Conductor) -> StudyClosed:
        """Record the end of the session once Tune has returned; from now on no signal changes how it ended."""
        with self._closing:
            if self._closed is None:
                self._closed = self._close(conductor)
        self._disarm()
        return self._closed

    def _disarm(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

    def install(self) -> None:
        """Take the signals, again where Ray or Tune took them: both install handlers of their own."""
        if threading.current_thread() is threading.main_thread():
            for number in self.NUMBERS:
                signal.signal(number, self._handle)

    def __enter__(self) -> "StopSignals":
        self._before = {number: signal.getsignal(number) for number in self.NUMBERS}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
