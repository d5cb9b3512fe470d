"""Signals that end a study cleanly. Pure but for the process's handlers."""

import signal
import sys
import threading
from types import FrameType
from typing import Any

from study.conductor import Conductor


class StopSignals:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a clean end; a second SIGINT or SIGTERM ends the process at once."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self._conductor: Conductor | None = None
        self._received: str | None = None
        self._before: dict[int, Any] = {}

    def tell(self, conductor: Conductor) -> None:
        """Pass signals on to the conductor, also one that came before it existed."""
        self._conductor = conductor
        if self._received is not None:
            conductor.end_early("stopped", f"received {self._received}")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number != signal.SIGUSR1:
            raise KeyboardInterrupt
        self._received = signal.Signals(number).name
        if self._conductor is not None:
            self._conductor.end_early("stopped", f"received {self._received}")
        else:
            sys.stderr.write(f"Received {self._received}; ending once Ray is up. Again to end at once.\n")

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
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
