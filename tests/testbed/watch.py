"""What somebody else on the hosts could see of a job, looked at again and again while it runs."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.testbed.namespaces import Host, Hosts

PERIOD_S = 0.5
READ_EVERY = 10
"""Looks between two searches through the files."""
RAY_SERVERS = ("gcs_server", "raylet")
PLACES = ("/home", "/tmp", "/var/tmp", "/dev/shm", "/run")


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
        self.readable: set[str] = set()
        """`host:file` of files with a token that another user can read."""

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

    def read(self) -> None:
        """Look for the tokens in the files, with the rights of a user who has nothing to do with the job."""
        for host in self._hosts.by_name.values() if self.tokens else ():
            search = ("grep", "-rlsF", "-D", "skip", "-f", "-", *PLACES)  # the tokens on no command line here either
            found = host.run(*search, user="other", stdin="\n".join(self.tokens), check=False).stdout
            self.readable |= {f"{host.name}:{file}" for file in found.splitlines()}

    def assert_private(self) -> None:
        """Ray ran on both nodes with tokens, and nothing of it was open to others."""
        assert self.ray_ran_on == {"n1", "n2"}
        assert self.tokens
        assert not self.exposed
        assert not self.readable

    @property
    def exposed(self) -> list[str]:
        """Command lines with a token on them."""
        return [line for line in self.command_lines if any(token in line for token in self.tokens)]


@contextlib.contextmanager
def watching(hosts: Hosts) -> Iterator[Watch]:
    """Watch the hosts meanwhile."""
    watch, over = Watch(hosts), threading.Event()

    def work() -> None:
        looks = 0
        while not over.wait(PERIOD_S):
            watch.look()
            looks += 1
            if looks % READ_EVERY == 0:
                watch.read()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        watch.read()
