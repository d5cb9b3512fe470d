"""Notices that this driver's Ray is gone, before Ray ends the process for it, or never does. Standard library only.

A driver that cannot reach Ray's head for a minute is ended by Ray, from inside its core, with no record of the end and
an exit code that says nothing; one that has lost the raylet of its own machine waits for ever. Who watches for himself
can close the records and say why.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

PERIOD_S = 2.0
"""How often Ray is looked at."""
PATIENCE_S = 30.0
"""How long it may be away: Ray itself gives up after 60 s (`RAY_gcs_rpc_server_reconnect_timeout_s`)."""


class RayWatch:
    """Watches, in a thread, whether Ray's servers still take connections. Use as a context manager."""

    def __init__(self, servers: Mapping[str, str], on_lost: Callable[[str], None]) -> None:
        """Watch nothing yet.

        Args:
            servers: What each server is to this driver -> host:port.
            on_lost: Called once, in another thread, with what happened.
        """
        self._servers, self._on_lost, self._ended = dict(servers), on_lost, threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True, name="ray watch").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        seen = dict.fromkeys(self._servers, time.monotonic())
        while not self._ended.wait(PERIOD_S):
            for name, address in self._servers.items():
                if answers(address):
                    seen[name] = time.monotonic()
                elif time.monotonic() - seen[name] > PATIENCE_S and not self._ended.is_set():
                    self._on_lost(f"{name} ({address}) has not answered for {PATIENCE_S:g} s")
                    return


def answers(address: str) -> bool:
    """Return whether host:port takes a connection."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=PERIOD_S):
        return True
    return False
