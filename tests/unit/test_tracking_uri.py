"""Which addresses of MLflow and of Optuna's storage are refused before anything starts, and as what."""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from study.errors import TrackingError
from study.mirrors.tracking_uri import (
    ask_mlflow,
    check_optuna_storage,
    check_tracking_uri,
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


def refusal(check, uri, **options):
    with pytest.raises(TrackingError) as refused:
        check(uri, **options)
    assert refused.value.fix
    return refused.value


def test_a_path_of_sqlite_becomes_absolute_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for check in (check_tracking_uri, check_optuna_storage):
        assert check("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
        assert check("sqlite:///a.db?timeout=9") == f"sqlite:///{tmp_path}/a.db?timeout=9"
        assert check(check("sqlite:///a.db")) == f"sqlite:///{tmp_path}/a.db"
        assert check("sqlite:///./a.db") == f"sqlite:///{tmp_path}/a.db"
        assert (
            check(f"sqlite+pysqlite:///{tmp_path}//a.db?a=///a.db") == f"sqlite+pysqlite:///{tmp_path}/a.db?a=///a.db"
        )


@pytest.mark.parametrize(
    ("uri", "rule"),
    [
        ("sqlite://", "must name a file that you can write"),
        ("sqlite:///:memory:", "must name a file that you can write"),
        ("sqlite:///{}/nowhere/mlflow.db", "must name a file that you can write"),
        ("sqlite:///{}", "must name a file that you can write"),
        ("mlruns", "must begin with one of sqlite, http, https, postgresql, mysql, mssql"),
        ("postgresql://[db", "must be a URI"),
    ],
)
def test_what_cannot_be_an_mlflow_is_refused(tmp_path, uri, rule):
    assert refusal(check_tracking_uri, uri.format(tmp_path)).rule.startswith(rule)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "optuna.journal", "mssql://db/x", "sqlite:///:memory:"])
def test_what_cannot_be_an_optuna_storage_is_refused(uri):
    assert refusal(check_optuna_storage, uri).where == "Optuna storage"


def test_a_database_server_is_not_contacted():
    uri = "postgresql+psycopg://user:secret@nowhere.invalid/mlflow"
    assert check_tracking_uri(uri) == check_optuna_storage(uri) == uri


@pytest.mark.parametrize(
    ("status", "body", "got", "fix"),
    [
        (403, b"Invalid Host header - possible DNS rebinding attack detected", "403", "--allowed-hosts"),
        (401, b"You are not authenticated", "401", "MLFLOW_TRACKING_TOKEN"),
        (403, b'{"error_code": "PERMISSION_DENIED"}', "PERMISSION_DENIED", "MLFLOW_TRACKING_TOKEN"),
        (503, b"", "503", "Start or correct it"),
        (302, b"", "302", "name where it leads"),
        (404, b"not here", "404", "Start or correct it"),
        (200, b"<html>Welcome to nginx</html>", "JSON", "Start or correct it"),
    ],
)
def test_a_server_that_cannot_work_is_refused(status, body, got, fix):
    with server(status, body) as (uri, _):
        error = refusal(ask_mlflow, uri)
    assert (error.rule, error.where) == ("must take the study's records", f"tracking URI {uri}")
    assert got in error.got
    assert fix in error.fix


def test_nobody_and_a_silent_server_are_refused_in_time(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "timed out" in refusal(ask_mlflow, uri).got
    assert "refused" in refusal(ask_mlflow, uri).got


@pytest.mark.parametrize("body", [b'{"experiments": []}', b"{}"])  # the default experiment may be deleted
def test_a_server_is_asked_once_by_mlflow_s_client_whose_settings_do_not_stay(monkeypatch, body):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    before = dict(os.environ)
    with server(200, body) as (uri, seen):
        assert check_tracking_uri(f"{uri}/") == uri
        ask_mlflow(uri)
    assert [(each["path"], each.get("Authorization")) for each in seen] == [(PROBE, "Bearer abc")]
    assert dict(os.environ) == before


PROBE = "/api/2.0/mlflow/experiments/search"


def test_a_lost_connection_to_postgresql_is_given_up_in_time():
    limited = with_time_limits("postgresql://team@db/mlflow?connect_timeout=3&sslmode=require")
    assert limited.startswith("postgresql://team@db/mlflow?connect_timeout=3&sslmode=require&keepalives_idle=")
    assert limited.count("connect_timeout") == 1
    assert "?connect_timeout=10&" in with_time_limits("postgresql+psycopg2://team@db/mlflow")
    for uri in ("sqlite:////x.db", "http://db:5000", "mysql://db/x", "postgresql+pg8000://db/x"):
        assert with_time_limits(uri) == uri
