"""Which tracking URIs are refused before anything starts, and with which way out."""

import http.server
import json
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.tracking_uri import (
    check_optuna_storage,
    check_tracking_uri,
    is_database_server,
    sqlite_path,
    with_time_limits,
)


@contextmanager
def server(status: int, body: bytes) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answer every POST so; yield the address and the headers seen."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append({"path": self.path, **dict(self.headers)})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", seen
        listening.shutdown()
        thread.join()


def test_a_relative_sqlite_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_tracking_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"
    assert check_tracking_uri("sqlite:///mlflow.db?timeout=9") == f"sqlite:///{tmp_path}/mlflow.db?timeout=9"


def test_an_absolute_sqlite_path_stays(tmp_path):
    uri = f"sqlite:///{tmp_path}/a.db"
    assert check_tracking_uri(uri) == uri
    assert check_tracking_uri(check_tracking_uri(uri)) == uri


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_sqlite_without_a_file_is_refused(uri):
    with pytest.raises(TrackingError, match=r"must keep its data in a file.*Fix: "):
        check_tracking_uri(uri)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(TrackingError, match=r"folder must exist.*nowhere.*Fix: "):
        check_tracking_uri(f"sqlite:///{tmp_path}/nowhere/mlflow.db")


def test_a_folder_in_place_of_the_database_is_refused(tmp_path):
    with pytest.raises(TrackingError, match="must name a file"):
        check_tracking_uri(f"sqlite:///{tmp_path}")


def test_a_read_only_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)  # a test may run as root
    with pytest.raises(TrackingError, match=r"must be writable.*Fix: chmod"):
        check_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("uri", ["mlruns", "./mlruns", "/data/mlruns", "file:///data/mlruns"])
def test_the_file_store_is_refused(uri):
    with pytest.raises(TrackingError, match=r"got the folder .*Fix: Use sqlite:///mlflow.db"):
        check_tracking_uri(uri)


def test_an_unknown_scheme_is_refused_with_those_known():
    with pytest.raises(TrackingError, match=r"one of sqlite, http, https, postgresql.*got 'gopher:"):
        check_tracking_uri("gopher://host")


def test_a_database_server_is_left_to_mlflow():
    uri = "postgresql+psycopg://user:secret@nowhere.invalid/mlflow"
    assert check_tracking_uri(uri) == uri


def test_a_healthy_server_is_accepted():
    with server(200, b'{"experiments": []}') as (uri, seen):
        assert check_tracking_uri(uri + "/") == uri
    assert [request["path"] for request in seen] == ["/api/2.0/mlflow/experiments/search"]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            403,
            b"Invalid Host header - possible DNS rebinding attack detected",
            r"this host name.*--allowed-hosts",
        ),
        (403, b"Permission denied", "MLFLOW_TRACKING_USERNAME"),
        (500, b"oops", r"must be healthy, got HTTP 500\. Fix: Look at the server's log"),
        (503, b"", "must be healthy, got HTTP 503"),
        (404, b"not here", "must be an MLflow server, got HTTP 404"),
        (200, b"<html>Welcome to nginx</html>", "must be an MLflow server, got an answer that begins"),
        (200, b'{"hello": 1}', "must be an MLflow server"),
        (200, b"3", "must be an MLflow server"),
    ],
)
def test_a_server_that_cannot_work_is_refused(status, body, message):
    with server(status, body) as (uri, _), pytest.raises(TrackingError, match=message) as refusal:
        check_tracking_uri(uri)
    assert uri in str(refusal.value)
    assert "Fix: " in str(refusal.value)


def test_a_server_that_asks_for_credentials_is_left_to_mlflow():
    with server(401, b"") as (uri, _):
        assert check_tracking_uri(uri) == uri


def test_nobody_listening_is_refused():
    with server(200, b"") as (uri, _):
        pass
    with pytest.raises(TrackingError, match=r"must answer within 3 s, got .*refused.*Fix: Start it"):
        check_tracking_uri(uri)


def test_a_silent_server_is_refused_in_time():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TrackingError, match=r"must answer within 0\.2 s, got timed out"):
            check_tracking_uri(uri, timeout_s=0.2)


def test_user_and_password_are_sent_as_mlflow_sends_them(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "unused")
    with server(200, json.dumps({"experiments": []}).encode()) as (uri, seen):
        check_tracking_uri(uri)
    assert seen[0]["Authorization"] == "Basic " + b64encode(b"me:secret").decode()


def test_a_token_is_sent_as_mlflow_sends_it(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    with server(200, b'{"experiments": []}') as (uri, seen):
        check_tracking_uri(uri)
    assert seen[0]["Authorization"] == "Bearer abc"


def test_credentials_are_masked():
    assert mask_credentials("see postgresql://me:pw@host/db now") == "see postgresql://***@host/db now"
    assert mask_credentials("http://host:5000/a@b") == "http://host:5000/a@b"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:p/w@host/db", "postgresql://***@host/db"),
        ("postgresql+psycopg://me:p@w@host:5432/db", "postgresql+psycopg://***@host:5432/db"),
        ("mysql+pymysql://me:pw@host/db", "mysql+pymysql://***@host/db"),
        ("postgresql://host/db?user=me&password=pw&connect_timeout=5", None),
        ("postgresql://host/db?sslpassword=pw", None),
        ("'postgresql://me:p/w@h/d' and 'postgresql://me:pw@h'", "'postgresql://***@h/d' and 'postgresql://***@h'"),
    ],
)
def test_passwords_of_databases_are_masked_however_they_are_written(uri, shown):
    masked = mask_credentials(uri)
    assert "pw" not in masked
    assert "p/w" not in masked
    assert "p@w" not in masked
    assert shown is None or masked == shown


def test_an_optuna_storage_is_a_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_optuna_storage("sqlite:///optuna.db") == f"sqlite:///{tmp_path}/optuna.db"
    assert check_optuna_storage("postgresql://team@db/optuna") == "postgresql://team@db/optuna"
    for uri in (
        "http://127.0.0.1:5000",
        "optuna.journal",
        "mssql://db/optuna",
        "sqlite:///:memory:",
        "postgresql://[db",
    ):
        with pytest.raises(TrackingError, match=r"Optuna storage: .*Fix: "):
            check_optuna_storage(uri)


def test_a_lost_connection_to_postgresql_is_given_up_in_time():
    limited = with_time_limits("postgresql://team@db/mlflow?connect_timeout=3&sslmode=require")
    assert limited.startswith("postgresql://team@db/mlflow?connect_timeout=3&sslmode=require&keepalives_idle=")
    assert limited.count("connect_timeout") == 1
    assert "?connect_timeout=10&" in with_time_limits("postgresql+psycopg2://team@db/mlflow")
    for uri in ("sqlite:////x.db", "http://db:5000", "mysql://db/x", "postgresql+pg8000://db/x"):
        assert with_time_limits(uri) == uri
    assert is_database_server("postgresql://db/x")
    assert not is_database_server("sqlite:////x.db")


def test_sqlite_path():
    assert str(sqlite_path("sqlite:////data/mlflow.db")) == "/data/mlflow.db"
    assert sqlite_path("http://host") is None


def test_the_driver_does_not_import_mlflow():
    modules = "tracking_uri", "process", "mlflow_mirror", "optuna_storage", "tensorboard"
    imports = "; ".join(f"import study.mirrors.{module}" for module in modules)
    code = f"import sys; {imports}; sys.exit(bool({{'mlflow', 'ray', 'torch', 'optuna'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
