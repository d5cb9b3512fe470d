"""Networks that tests cut: a proxy that swallows what it is given, and a host behind a wire of its own."""

import contextlib
import os
import select
import socket
import subprocess
import threading
from typing import Self


class Proxy:
    """Passes bytes to a port of the loopback interface; while it is cut it keeps connections open and passes none."""

    def __init__(self, port: int) -> None:
        self._port, self._open, self._ended = port, threading.Event(), threading.Event()
        self._open.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._open.set()
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._open.wait()
        with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", self._port)) as far:
            other = {near: far, far: near}
            while not self._ended.is_set():
                for ready in select.select([near, far], [], [], 1)[0]:
                    block = ready.recv(65536)
                    self._open.wait()
                    if not block:
                        return
                    other[ready].sendall(block)


class Wire:
    """A network namespace that one wire ties to this machine; needs root."""

    def __init__(self) -> None:
        number = os.getpid() % 10_000
        self.name, self._bridge, self._plug = f"chaos{number}", f"cb{number}", f"cp{number}"
        self._net = f"10.{180 + number % 60}.{number % 250}"
        self.outside, self.inside = f"{self._net}.1", f"{self._net}.2"

    @property
    def within(self) -> list[str]:
        """Words that run a command behind the wire."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        _ip("link", "set", self._plug, "down")

    def mend(self) -> None:
        _ip("link", "set", self._plug, "up")

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.outside}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        _ip("netns", "add", self.name)
        _ip("link", "add", self._plug, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._plug, "master", self._bridge)
        _ip("link", "set", self._plug, "up")
        _ip("-n", self.name, "addr", "add", f"{self.inside}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.name, "link", "set", device, "up")
        _ip("-n", self.name, "route", "add", "default", "via", self.outside)
        return self

    def __exit__(self, *_: object) -> None:
        for words in (("netns", "delete", self.name), ("link", "delete", self._bridge), ("link", "delete", self._plug)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
