"""Stores for teams on a real PostgreSQL: MLflow directly and behind its server, Optuna's storage, and a crash between.

PostgreSQL ends as in a crash, in the middle of a study, and comes back: no trial fails, and everything is there once.
"""

import sys
import threading
import time

import optuna
import psutil
import pytest
from sqlalchemy.exc import OperationalError

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.process import MirrorProcess
from study.mirrors.tracking_uri import reached, refusal
from study.records.records import read_lines
from tests import postgresql
from tests.integration.mlflow_tools import assert_mirrored, parent
from tests.synthetic import append, closed, make_folder, opened, whole_trial
from tests.waiting import until


@pytest.fixture(scope="module")
def database():
    with postgresql.running() as server:
        yield server


@pytest.fixture(scope="module")
def mlflow_uri(database):
    """A database that MLflow has made its tables in, which takes longer than most tests."""
    return database.create("mlflow")


def numbers_in(storage, name):
    trials = optuna.load_study(study_name=name, storage=storage).trials
    assert all(trial.state.is_finished() for trial in trials)
    return sorted(trial.user_attrs["trial"] for trial in trials)


@pytest.mark.minutes
def test_a_crash_of_postgresql_in_mid_study_loses_and_doubles_nothing(database, mlflow_uri, tmp_path, monkeypatch):
    """MLflow's tables and Optuna's, directly, while a driver writes; the driver never waits for either."""
    monkeypatch.chdir(tmp_path)  # MLflow keeps artifacts in the working directory when no server does
    storage = database.create("optuna_crash")
    folder = make_folder(tmp_path / "demo", mlflow_uri, optuna_storage=storage, name="crash")
    append(folder, opened())
    mirrors = MirrorProcess(folder, {"mlflow": mlflow_uri, "optuna": storage})
    for key in mirrors.mirrors:
        mirrors.wait_ready(key)
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
    time.sleep(2)
    meanwhile = writer.is_alive()
    database.start()
    writer.join()
    reports = mirrors.finish(60)
    assert all(report.drained for report in reports), reports
    assert meanwhile, "the crash came after the study"
    assert slowest[0] < 2, "the driver waited for a database"
    assert_mirrored(folder, mlflow_uri, "crash")
    assert parent(mlflow_uri, "crash").status == "FINISHED"
    assert numbers_in(storage, "crash-id-crash") == list(range(10))
    assert "OperationalError" in folder.mirror_log.read_text()
    assert_no_password(tmp_path, folder)


def assert_no_password(place, folder):
    """The password stands in one file, which nobody else may read."""
    for file in place.rglob("*"):
        if file.is_file() and file != folder.identity_file:
            assert b"s3cr" not in file.read_bytes(), file
    assert "s3cr" in folder.identity_file.read_text()
    assert folder.identity_file.stat().st_mode & 0o077 == 0
    assert folder.path.stat().st_mode & 0o077 == 0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda uri: uri.replace("s3cr", "wrong"), "password authentication failed"),
        (lambda uri: uri.replace("/postgres", "/nowhere"), "does not exist"),
        (lambda uri: uri.replace("127.0.0.1:", "127.0.0.1:1"), "."),
    ],
    ids=["password", "database", "port"],
)
def test_a_first_start_with_a_wrong_uri_is_refused_at_once_with_the_reason(database, tmp_path, change, reason):
    """MLflow by itself would try for minutes and say nothing."""
    uri = change(database.uri())
    folder = make_folder(tmp_path / "demo", uri, optuna_storage=uri)
    append(folder, opened())
    mirrors = MirrorProcess(folder, {"mlflow": uri, "optuna": uri})
    for key in mirrors.mirrors:
        with pytest.raises(TrackingError, match=rf"must take the study's records, got .*{reason}") as error:
            mirrors.wait_ready(key, 90)
        assert "no answer within" not in str(error.value)
        assert mask_credentials(uri) in str(error.value)
        assert "s3cr" not in str(error.value)
    mirrors.finish(0)


def test_what_a_database_lacks_is_named(database, monkeypatch):
    limited = reached(f"{database.uri()}?connect_timeout=3")
    assert limited.startswith(f"{database.uri()}?connect_timeout=3&keepalives_idle=")
    assert limited.count("connect_timeout") == 1
    with pytest.raises(OperationalError, match="password authentication failed"):
        reached(database.uri().replace("s3cr", "wrong"))
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError) as missing:
        reached(database.uri())
    assert "[postgresql]" in refusal(missing.value, database.uri()).fix
