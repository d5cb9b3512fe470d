"""Stores for teams on a real PostgreSQL, which ends as in a crash in the middle of a study, and comes back."""

import sys
import threading
import time

import optuna
import psutil
import pytest
from sqlalchemy.exc import OperationalError

from study.mirrors.process import MirrorProcess
from study.mirrors.tracking_uri import reach, refusal
from study.records.records import read_lines
from study.text import mask_credentials
from tests import postgresql
from tests.integration.mlflow_tools import assert_mirrored, parent
from tests.synthetic import append, closed, make_folder, opened, whole_trial
from tests.waiting import until


@pytest.fixture(scope="module")
def database():
    with postgresql.running() as server:
        yield server


@pytest.mark.minutes
def test_a_crash_of_postgresql_in_mid_study_loses_and_doubles_nothing(database, tmp_path, monkeypatch):
    """MLflow's tables and Optuna's, directly, while a driver writes; the driver never waits for either."""
    monkeypatch.chdir(tmp_path)  # MLflow keeps artifacts in the working directory when no server does
    uri, storage = database.create("mlflow"), database.create("optuna_crash")
    folder = make_folder(tmp_path / "demo", uri, optuna_storage=storage, name="crash")
    append(folder, opened())
    mirrors = MirrorProcess(folder)
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
    meanwhile = writer.is_alive()
    until(lambda: "OperationalError" in folder.mirror_log.read_text())
    database.start()
    writer.join()
    reports = mirrors.finish(60)
    assert not any(report.reason for report in reports), reports
    assert meanwhile, "the crash came after the study"
    assert slowest[0] < 2, "the driver waited for a database"
    assert_mirrored(folder, uri, "crash")
    assert parent(uri, "crash").status == "FINISHED"
    trials = optuna.load_study(study_name="crash-id-crash", storage=storage).trials
    assert sorted(trial.user_attrs["trial"] for trial in trials if trial.state.is_finished()) == list(range(10))
    for file in tmp_path.rglob("*"):  # the password stands in one file, which nobody else may read
        assert not file.is_file() or (b"s3cr" in file.read_bytes()) == (file == folder.identity_file), file
    assert folder.identity_file.stat().st_mode & 0o077 == folder.path.stat().st_mode & 0o077 == 0


def test_what_a_database_refuses_or_lacks_is_said_without_the_password(database, monkeypatch):
    for old, new, reason in (
        ("s3cr", "wrong", "password authentication failed"),
        ("/postgres", "/nowhere", "does not exist"),
        ("127.0.0.1:", "127.0.0.1:1", ""),
    ):
        with pytest.raises((OperationalError, ValueError)) as refused:
            reach(uri := database.uri().replace(old, new))
        said = str(refusal(refused.value, uri))
        assert reason in said
        assert mask_credentials(uri) in said
        assert "s3cr" not in said
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError) as missing:
        reach(database.uri())
    assert "[postgresql]" in refusal(missing.value, database.uri()).fix
