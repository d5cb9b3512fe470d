"""What only MLflow's mirror promises: a run is seen once, whoever repeats, deletes or is slow. Real SQLite.

What every mirror promises is `tests/contract/test_mirrors.py`.
"""

import sqlite3
import subprocess
import sys
import threading
import time

import psutil
import pytest
from mlflow import MlflowClient

import analysis
from study.cli.commands import sync_study
from study.errors import TrackingError
from study.mirrors import mlflow_mirror
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.process import MirrorProcess, sync
from study.records.files import held
from study.records.folder import StudyFolder
from tests.integration.mlflow_tools import (
    answering_server,
    assert_mirrored,
    children,
    expected_points,
    look,
    parent,
)
from tests.spaces import spec
from tests.synthetic import append, closed, ended, iteration, make_folder, opened, started, sync_mlflow, whole_trial
from tests.values import replace
from tests.waiting import until


@pytest.fixture
def database(tmp_path, empty_database):
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_database)
    return path


@pytest.fixture
def folder(tmp_path, database) -> StudyFolder:
    space = spec().model_copy(update={"description": "mine <img src=x onerror=alert(1)> ![a](http://evil)"})
    return make_folder(tmp_path / "demo", f"sqlite:///{database}", space)


STORY = [
    *(opened(), *whole_trial(0), *whole_trial(1, "failed"), *whole_trial(2, "interrupted"), closed("stopped")),
    *(opened(2), *whole_trial(2, attempt=2), *whole_trial(3, "failed"), closed(session=2)),
]
"""Two sessions with every kind of end."""


def test_a_study_and_its_trials_are_shown_as_they_ended(folder, database):
    append(folder, *STORY)
    sync_mlflow(folder)
    assert_mirrored(folder, database)
    runs = children(database)
    ends = {(0, 1): "FINISHED", (1, 1): "FAILED", (2, 1): "KILLED", (2, 2): "FINISHED", (3, 1): "FAILED"}
    assert {key: run.status for key, run in runs.items()} == ends
    assert runs[1, 1].tags["reason"] == "because of failed"
    assert runs[0, 1].latest["env_steps_per_s"] == 777.0  # the trial's, not the last iteration's
    study = parent(database)
    assert (study.status, study.latest) == ("FINISHED", {})
    assert study.params == {"environment": "CartPole-v1", "algorithm": "PPO", "sampler": "random"}
    assert study.tags["mlflow.source.name"] == "python -m study run demo.yaml"
    assert study.tags["mlflow.note.content"].startswith("mine &lt;img src=x onerror=alert(1)> ![a]\\(")
    (identity,) = (database.parent / "mlruns" / "demo").rglob("study.json")  # beside the database
    assert {path.name for path in identity.parent.iterdir()} == {"study.json", "trials.csv", "records.jsonl.xz"}


def test_the_answer_and_the_films_come_with_a_sync(folder, database):
    append(folder, *STORY)
    folder.clips.mkdir()
    (folder.clips / "best.mp4").write_text("film")
    assert [said for said in sync_study(folder) if said.startswith("MLflow is up to date")]
    assert list((database.parent / "mlruns").rglob("clips/best.mp4"))
    assert analysis.open(folder.path).answer().sentence in parent(database).tags["mlflow.note.content"]
    mirror = MlflowMirror(folder)
    mirror.answer = "**Another answer.**\n\n" + "x" * 9000
    sync(mirror)
    note = parent(database).tags["mlflow.note.content"]
    assert note.startswith("**Another answer.**")
    assert len(note) == 8000  # MLflow's limit
    append(folder, opened(3), replace(ended(3, "failed"), reason="x" * 9000))
    sync_mlflow(folder)
    (listed,) = MlflowClient(f"sqlite:///{database}").search_experiments(filter_string="name = 'demo'")
    assert listed.tags["mlflow.note.content"] == "Another answer."


def test_a_run_created_twice_is_kept_once(folder, database, monkeypatch):
    """A creation that timed out for us and succeeded in the server, after we had looked and created again."""
    original = MlflowClient.create_run

    def twice(*arguments, **options):
        original(*arguments, **options)
        return original(*arguments, **options)

    monkeypatch.setattr(MlflowClient, "create_run", twice)
    append(folder, *STORY)
    sync_mlflow(folder)
    runs = {run.key[2:]: run for run in look(database) if run.active}
    assert sorted(runs) == [("", ""), ("0", "1"), ("1", "1"), ("2", "2"), ("3", "1")]
    assert len(runs) == sum(run.active for run in look(database))
    for (trial, attempt), wanted in expected_points(folder).items():
        assert (trial, attempt) == (2, 1) or runs[str(trial), str(attempt)].points == wanted


@pytest.mark.parametrize(("reason", "status"), [("until", "FINISHED"), ("time budget", "KILLED"), ("error", "FAILED")])
def test_the_end_of_a_study_is_shown_and_a_sync_beside_its_driver_leaves_it_running(folder, database, reason, status):
    append(folder, opened(), started(0))
    with held(folder.path):
        sync_mlflow(folder)
    assert (parent(database).status, children(database)[0, 1].status) == ("RUNNING", "RUNNING")
    append(folder, closed(reason))
    sync_mlflow(folder)
    assert (parent(database).status, parent(database).tags["status"]) == (status, reason)


def test_what_a_person_deleted_stays_deleted_but_for_the_study_s_own_run(folder, database):
    append(folder, opened(), *whole_trial(0), started(1), iteration(1, 1))
    with held(folder.path):
        sync_mlflow(folder)
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("demo").experiment_id
    for text in ("tags.`study.trial` = '1'", "tags.`study.role` = 'study'"):
        (run,) = client.search_runs([experiment], text)
        client.delete_run(run.info.run_id)
    append(folder, iteration(1, 2), ended(1), *whole_trial(2), closed())
    sync_mlflow(folder)
    assert not children(database)[1, 1].active
    assert children(database)[2, 1].points == expected_points(folder)[2, 1]
    (study,) = client.search_runs([experiment], "tags.`study.role` = 'study'")
    assert (study.info.status, study.info.run_id != run.info.run_id) == ("FINISHED", True)
    client.delete_experiment(experiment)
    with pytest.raises(TrackingError, match="Fix: Restore it with `mlflow experiments restore`"):
        sync_mlflow(folder)


def test_an_mlflow_of_another_version_or_that_asks_for_a_password_is_refused_at_once(database, tmp_path):
    older = tmp_path / "older.db"  # MLflow looks at a database once per process
    older.write_bytes(database.read_bytes())
    with sqlite3.connect(older) as connection:
        connection.execute("update alembic_version set version_num = '451aebb31d03'")
    began = time.monotonic()
    with pytest.raises(TrackingError, match="Back the database up, then run `mlflow db upgrade"):
        sync_mlflow(make_folder(tmp_path / "older", f"sqlite:///{older}"))
    refused = pytest.raises(TrackingError, match=r"401.*Fix: Set MLFLOW_TRACKING_USERNAME")
    with answering_server(401, b"You are not authenticated") as (uri, _), refused:
        sync_mlflow(make_folder(tmp_path / "refused", uri))
    assert time.monotonic() - began < 20


def test_more_points_than_a_batch_of_mlflow_holds_arrive(folder, database):
    append(folder, opened(), *whole_trial(0, length=300), closed())
    sync_mlflow(folder)
    assert_mirrored(folder, database)


def test_a_signal_cuts_short_what_a_dead_server_would_take_and_the_other_places_get_all(tmp_path):
    folder = make_folder(tmp_path / "demo", "http://127.0.0.1:9")
    folder.make_tensorboard()
    append(folder, opened(), closed())
    mirrors = MirrorProcess(folder)
    for key in ("tensorboard", "optuna"):
        mirrors.wait_ready(key)
    with pytest.raises(TrackingError, match=r"must take the study's records.*Fix: "):
        mirrors.wait_ready("mlflow")
    assert "Error" in folder.mirror_log.read_text()
    pid, began = mirrors.pid, time.monotonic()
    cut = [began + 600]
    threading.Timer(10.0, lambda: cut.insert(0, time.monotonic())).start()
    reports = {report.name: report.behind for report in mirrors.finish(600, cut=lambda: cut[0])}
    assert time.monotonic() < began + 100
    assert reports == {"MLflow": 2, "Optuna's storage": 0, "TensorBoard's folder": 0}
    assert not psutil.pid_exists(pid)


DRIVER = """
import os, signal, sys
from pathlib import Path
from study.records.folder import StudyFolder
from study.mirrors.process import MirrorProcess, sync
from tests.synthetic import append, opened, started
folder = StudyFolder(Path(sys.argv[1]))
mirror = MirrorProcess(folder)
mirror.wait_ready("mlflow")
append(folder, opened(), started(0))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.minutes
def test_a_killed_driver_leaves_a_killed_study_and_its_mirror_lets_go(folder, database):
    subprocess.run([sys.executable, "-c", DRIVER, str(folder.path)], check=False)
    until(lambda: parent(database).status == "KILLED")
    assert children(database)[0, 1].status == "KILLED"
    resumed = MirrorProcess(folder)
    resumed.wait_ready("mlflow")
    until(lambda: parent(database).status == "RUNNING")  # an instant after it is ready
    append(folder, opened(2), *whole_trial(0, attempt=2), closed(session=2))
    assert not resumed.finish(20)[-1].reason
    assert parent(database).status == "FINISHED"
    assert_mirrored(folder, database)


def test_a_new_database_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    path, search = tmp_path / "mlflow.db", MlflowClient.search_experiments

    def killed(client, **arguments):
        search(client, **arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "search_experiments", killed)
        with pytest.raises(KeyboardInterrupt):
            mlflow_mirror.create_database(path)
    assert not list(tmp_path.iterdir())
    mlflow_mirror.create_database(path)
    assert [path] == list(tmp_path.iterdir())
    before = path.read_bytes()
    mlflow_mirror.create_database(path)
    assert path.read_bytes() == before
    assert [each.name for each in MlflowClient(f"sqlite:///{path}").search_experiments()] == ["Default"]
