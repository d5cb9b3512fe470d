"""Which addresses of MLflow and of Optuna's storage are refused before anything starts, and as what."""

import socket

import pytest

from study.errors import TrackingError
from study.mirrors.tracking_uri import ask_mlflow, check_tracking_uri
from tests.integration.mlflow_tools import answering_server

OPTUNA = "Optuna storage"


def refusal(check, *arguments):
    with pytest.raises(TrackingError) as refused:
        check(*arguments)
    assert refused.value.fix
    return refused.value


@pytest.mark.parametrize("place", ["tracking URI", OPTUNA])
def test_a_path_of_sqlite_becomes_absolute_and_a_server_is_not_contacted(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    for given, absolute in {
        "sqlite:///a.db": f"sqlite:///{tmp_path}/a.db",
        "sqlite:///./a.db?timeout=9": f"sqlite:///{tmp_path}/a.db?timeout=9",
        f"sqlite:///{tmp_path}/a.db": f"sqlite:///{tmp_path}/a.db",
        f"sqlite+pysqlite:///{tmp_path}//a.db?a=///a.db": f"sqlite+pysqlite:///{tmp_path}/a.db?a=///a.db",
        "postgresql+psycopg://me:secret@nowhere.invalid/x": "postgresql+psycopg://me:secret@nowhere.invalid/x",
    }.items():
        assert check_tracking_uri(given, place) == absolute


@pytest.mark.parametrize(
    ("uri", "place", "rule"),
    [
        ("sqlite://", "tracking URI", "must name a file that you can write"),
        ("sqlite:///:memory:", OPTUNA, "must name a file that you can write"),
        ("sqlite:///{}/nowhere/mlflow.db", "tracking URI", "must name a file that you can write"),
        ("sqlite:///{}", "tracking URI", "must name a file that you can write"),
        ("mlruns", "tracking URI", "must begin with one of sqlite, postgresql"),
        ("postgresql://[db", "tracking URI", "must begin with one of"),
        ("http://127.0.0.1:5000", OPTUNA, "must begin with one of sqlite, postgresql"),
    ],
)
def test_what_can_be_no_store_is_refused(tmp_path, uri, place, rule):
    error = refusal(check_tracking_uri, uri.format(tmp_path), place)
    assert error.rule.startswith(rule)
    assert error.where == place


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
    with answering_server(status, body) as (uri, _):
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


@pytest.mark.parametrize("body", [b'{"experiments": []}', b"{}"])
def test_a_server_without_experiments_will_do_and_is_asked_once(monkeypatch, body):
    """The default experiment may be deleted, and a user may have no rights on those of others."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    with answering_server(200, body) as (uri, seen):
        assert check_tracking_uri(f"{uri}/") == uri
        ask_mlflow(uri)
    asked = [(each["path"], each.get("Authorization")) for each in seen]
    assert asked == [("/api/2.0/mlflow/experiments/search", "Bearer abc")]
