"""What somebody else on the hosts could see of a job, looked at again and again while it runs."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.testbed.namespaces import Host, Hosts

PERIOD_S = 0.5
RAY_SERVERS = ("gcs_server", "raylet")


class Watch:
    """Everything seen so far."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.command_lines: set[str] = set()
        self.tokens: set[str] = set()
        """Of the Rays that ran."""
        self.without_token: set[str] = set()
        """Command lines of Ray's servers that ask for none."""
        self.ray_ran_on: set[str] = set()

    def look(self) -> None:
        """Look at the processes."""
        for host in self._hosts.by_name.values():
            for process in host.processes():
                with contextlib.suppress(psutil.Error, OSError):
                    line, settings = " ".join(process.cmdline()), process.environ()
                    self.command_lines.add(line)
                    if process.name() in RAY_SERVERS and settings:  # empty when it is about to end
                        self.ray_ran_on.add(host.name)
                        self._take_token(host, line, settings)

    def _take_token(self, host: Host, line: str, environment: dict[str, str]) -> None:
        token = environment.get("RAY_AUTH_TOKEN", "")
        if path := environment.get("RAY_AUTH_TOKEN_PATH"):
            token = token or (host.root / Path(path).relative_to("/")).read_text().strip()
        if token and environment.get("RAY_AUTH_MODE") == "token":
            self.tokens.add(token)
        else:
            self.without_token.add(line)

    def assert_private(self) -> None:
        """Ray ran on both nodes with tokens, and nothing of it was open to others."""
        assert self.ray_ran_on == {"n1", "n2"}
        assert self.tokens
        assert not self.exposed

    @property
    def exposed(self) -> list[str]:
        """Command lines with a token on them."""
        return [line for line in self.command_lines if any(token in line for token in self.tokens)]


@contextlib.contextmanager
def watching(hosts: Hosts) -> Iterator[Watch]:
    """Watch the hosts meanwhile."""
    watch, over = Watch(hosts), threading.Event()

    def work() -> None:
        while not over.wait(PERIOD_S):
            watch.look()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
