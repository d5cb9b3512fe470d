"""What MLflow's mirror alone promises; and that a study read from MLflow is that of its folder, as far as it was sent.

What every mirror promises is `tests/contract/test_mirrors.py`.
"""

import lzma
import math
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pandas as pd
import psutil
import pytest
from mlflow import MlflowClient

import analysis
from analysis import load
from study.cli.commands import sync as sync_command
from study.errors import AnalysisError, ClusterError, RecordError
from study.mirrors import mlflow_mirror
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.process import MirrorProcess, mirrors_of, sync
from study.records.files import held
from study.records.records import read_lines
from tests.contract.test_mirrors import STORY
from tests.integration.mlflow_tools import Server, assert_mirrored, children, expected_points, look, parent
from tests.scripts import facts, script_spec
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
def uri(database):
    return f"sqlite:///{database}"


@pytest.fixture
def folder(tmp_path, uri):
    space = spec().model_copy(update={"description": "mine <img src=x onerror=alert(1)> ![a](http://evil)"})
    return make_folder(tmp_path / "demo", uri, space)


# --- what it shows ---------------------------------------------------------------------------------------------------


def test_a_study_is_shown_as_it_ended_with_its_answer_and_films(folder, database, uri, capsys):
    append(folder, *STORY, opened(3), *whole_trial(4, length=300), closed(session=3))  # more points than a batch holds
    sync_mlflow(folder)
    assert_mirrored(folder, database)
    assert children(database)[0, 1].latest["env_steps_per_s"] == 777.0  # the trial's, not the last iteration's
    assert parent(database).latest == {}
    assert parent(database).tags["mlflow.note.content"].startswith("mine &lt;img src=x onerror=alert(1)> ![a]\\(")
    (identity,) = (database.parent / "mlruns" / "demo").rglob("study.json")  # beside the database
    assert {path.name for path in identity.parent.iterdir()} == {"study.json", "trials.csv", "records.jsonl.xz"}
    folder.clips.mkdir()
    (folder.clips / "best.mp4").write_text("film")
    sync_command(folder.path)
    assert "MLflow is up to date" in capsys.readouterr().out
    assert list((database.parent / "mlruns").rglob("clips/best.mp4"))
    assert analysis.open(folder.path).answer().sentence in parent(database).tags["mlflow.note.content"]
    mirror = MlflowMirror(folder)
    mirror.answer = "**Another answer.**\n\n" + "x" * 9000
    sync(mirror)
    note = parent(database).tags["mlflow.note.content"]
    assert note.startswith("**Another answer.**")
    assert len(note) == 8000  # MLflow's limit
    append(folder, opened(4), replace(ended(4, "failed"), reason="x" * 9000))
    sync_mlflow(folder)
    (listed,) = MlflowClient(uri).search_experiments(filter_string="name = 'demo'")
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
    runs = {run.key[2:]: run for run in look(database)}
    assert sorted(runs) == [("", ""), ("0", "1"), ("1", "1"), ("2", "2"), ("3", "1")]
    assert len(runs) == len(look(database))
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


def test_what_a_person_deleted_comes_back_where_it_goes_on(folder, database):
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
    assert children(database).keys() == {(0, 1), (1, 1), (2, 1)}  # the one that went on is there again
    assert children(database)[2, 1].points == expected_points(folder)[2, 1]
    (study,) = client.search_runs([experiment], "tags.`study.role` = 'study'")
    assert (study.info.status, study.info.run_id != run.info.run_id) == ("FINISHED", True)
    client.delete_experiment(experiment)
    with pytest.raises(ClusterError, match="Fix: Restore it with `mlflow experiments restore`"):
        sync_mlflow(folder)


def test_an_mlflow_of_another_version_is_refused_at_once(database, tmp_path):
    older = tmp_path / "older.db"  # MLflow looks at a database once per process
    older.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute("update alembic_version set version_num = '451aebb31d03'")
    with pytest.raises(ClusterError, match="Back the database up, then run `mlflow db upgrade"):
        sync_mlflow(make_folder(tmp_path / "older", f"sqlite:///{older}"))


def test_a_signal_cuts_short_what_a_dead_server_would_take_and_the_other_places_get_all(tmp_path):
    folder = make_folder(tmp_path / "demo", "http://someone:PLANTED@127.0.0.1:9")
    folder.make_tensorboard()
    append(folder, opened(), closed())
    mirrors = MirrorProcess(folder)
    with pytest.raises(ClusterError, match=r"must take the study's records.*Fix: ") as refused:
        mirrors.wait_ready()
    assert "Error" in folder.mirror_log.read_text()
    pid, began = mirrors.pid, time.monotonic()
    others = [mirror for mirror in mirrors_of(folder) if mirror.name != "MLflow"]
    lacks = mirrors.finish(600, cut=lambda: math.inf if any(mirror.behind for mirror in others) else 0.0)
    assert time.monotonic() < began + 100
    assert [lack.partition(" (")[0] for lack in lacks] == ["MLflow lacks up to 2 records"]
    assert not psutil.pid_exists(pid)
    assert "PLANTED" not in f"{refused.value} {lacks}"
    files = [file for file in tmp_path.rglob("*") if file.is_file() and b"PLANTED" in file.read_bytes()]
    assert files == [folder.identity_file]


DRIVER = """
import os, signal, sys
from pathlib import Path
from study.records.folder import StudyFolder
from study.mirrors.process import MirrorProcess, sync
from tests.synthetic import append, opened, started
folder = StudyFolder(Path(sys.argv[1]))
mirror = MirrorProcess(folder)
mirror.wait_ready()
append(folder, opened(), started(0))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.minutes
def test_a_killed_driver_leaves_a_killed_study_and_its_mirror_lets_go(folder, database):
    subprocess.run([sys.executable, "-c", DRIVER, str(folder.path)], check=False)
    until(lambda: parent(database).status == "KILLED")
    assert children(database)[0, 1].status == "KILLED"
    resumed = MirrorProcess(folder)
    resumed.wait_ready()
    until(lambda: parent(database).status == "RUNNING")  # an instant after it is ready
    append(folder, opened(2), *whole_trial(0, attempt=2), closed(session=2))
    assert resumed.finish(60) == []
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


# --- what is read from it --------------------------------------------------------------------------------------------


def search(path, uri):
    """A finished, a failed, a repeated and a running trial, with secrets in what the study was started with."""
    secret = facts(settings={"env_config": {"hf_token": "s3cret"}})
    folder = make_folder(path, uri, script_spec(secret, config_args="--hf-token s3cret -n 2"))
    interrupted = (started(2), iteration(2, 1), ended(2, "interrupted"), opened(2), *whole_trial(2, attempt=2))
    append(folder, opened(), *whole_trial(0), *whole_trial(1, "failed"), *interrupted)
    append(folder, *list(whole_trial(3))[:2], closed("stopped", 2))
    return folder


def assert_same(mine, truth):
    """Every frame, every estimate, the answer and what is known of the study are equal."""
    for name in ("trials", "curves", "evaluations"):
        pd.testing.assert_frame_equal(getattr(mine, name), getattr(truth, name), check_exact=True)
    pd.testing.assert_frame_equal(mine.estimates(), truth.estimates(), check_exact=True)
    assert mine.answer().sentence == truth.answer().sentence


def test_every_frame_is_equal_from_the_folder_and_from_mlflow(tmp_path, uri):
    folder = search(tmp_path / "demo", uri)
    sync_mlflow(folder)
    assert_same(analysis.open(uri, folder.identity().name), analysis.open(folder.path))
    mine, truth = load.open_study(uri), load.from_folder(folder.path)
    assert (mine.name, mine.kind, mine.source) == (truth.name, truth.kind, uri)
    secret = {"config_args", "script"}
    assert mine.spec.model_dump(exclude=secret) == truth.spec.model_dump(exclude=secret)
    assert mine.sheet == truth.sheet
    assert set(truth.problems) <= set(mine.problems)
    assert not mine.is_running
    assert "s3cret" not in "".join(str(file.read_bytes()) for file in (tmp_path / "mlruns").rglob("*.json"))


def test_a_study_that_runs_is_read_as_far_as_it_was_sent_which_is_said(tmp_path, uri, monkeypatch):
    """While its mirror follows it; what comes within a minute of an upload waits for the next one."""
    folder = make_folder(tmp_path / "demo", uri)
    mirror, clock = MlflowMirror(folder), [1000.0]
    monkeypatch.setattr("study.mirrors.mlflow_mirror.time.monotonic", lambda: clock[0])

    def sent(*records):
        append(folder, *records)
        while mirror.step():
            pass

    def as_of(number):
        """Return the study as it was after some of its records."""
        copy = make_folder(tmp_path / f"of {number}", uri, created=folder.identity().created)
        copy.records.write_bytes(b"".join(folder.records.read_bytes().splitlines(keepends=True)[:number]))
        return analysis.open(copy.path)

    sent(opened())
    assert analysis.open(uri).trials.empty
    sent(*whole_trial(0), started(1))
    assert analysis.open(uri).trials.empty, "nothing was due"
    clock[0] += 61
    mirror.step()
    first = len(list(read_lines(folder.records)))
    sent(iteration(1, 1), ended(1))
    mine, truth = analysis.open(uri), as_of(first)
    assert_same(mine, truth)
    assert mine.trials["status"].tolist() == ["finished", "running"]
    (said,) = [problem for problem in mine.problems if "MLflow has the study's records until" in problem]
    assert truth.data.sheet["last_record"] in said
    sent(closed())
    mirror.end()
    mine = analysis.open(uri)
    assert_same(mine, analysis.open(folder.path))
    assert not any("MLflow has" in problem for problem in mine.problems)
    sent(opened(2))  # at once: else the study would be taken for ended
    assert any("still running" in problem for problem in analysis.open(uri).problems)


@pytest.mark.minutes
def test_a_server_that_keeps_the_artifacts_serves_as_well(tmp_path):
    with Server(tmp_path / "server") as server:
        folder = search(tmp_path / "demo", server.uri)
        sync_mlflow(folder)
        assert_same(analysis.open(server.uri, "demo"), analysis.open(folder.path))


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(error, uri, *arguments, **options):
    with pytest.raises(error) as raised:
        load.open_study(uri, *arguments, **options)
    assert "\n" not in str(raised.value)
    assert "Fix: " in str(raised.value)
    return str(raised.value)


def test_records_that_are_not_there_or_are_damaged_are_named_and_a_sync_brings_them(tmp_path, uri):
    folder = search(tmp_path / "demo", uri)
    sync_mlflow(folder)
    (file,) = (tmp_path / "mlruns").rglob("records.jsonl.xz")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "experiment 'demo'/records.jsonl.xz: must be a complete file that can be read" in refused(RecordError, uri)
    file.write_bytes(lzma.compress(b"<html>\n"))
    assert "experiment 'demo'/records.jsonl.xz: line 1" in refused(RecordError, uri)
    file.unlink()
    said = refused(AnalysisError, uri)
    assert "none that can be read from here" in said and "python -m study sync" in said
    sync_mlflow(folder)
    assert len(load.open_study(uri).runs) == 4


def test_studies_are_told_apart_by_names_and_ids_and_names_are_suggested(tmp_path, uri):
    for name in ("demo", "second"):
        folder = make_folder(tmp_path / name, uri, study_id=f"id-{name}")
        append(folder, opened(), *whole_trial(0), closed())
        sync_mlflow(folder)
    for name in ("demo", None):
        assert "must be named, by its name or its id, got 2" in refused(AnalysisError, uri, study=name)
    assert load.open_study(uri, study="id-second").sheet["study_id"] == "id-second"
    assert "Did you mean 'demo'?" in refused(AnalysisError, uri, study="dmeo")
    assert "Choose one of demo" in refused(AnalysisError, uri, study="nothing alike")
    client = MlflowClient(tracking_uri=uri)
    theirs = client.create_experiment("theirs")
    run = client.create_run(theirs).info.run_id
    client.log_metric(run, "num_env_steps_sampled_lifetime", 4000.0, step=1)
    assert "must be one that exists, got 'theirs'" in refused(AnalysisError, uri, study="theirs")


def test_places_that_hold_no_study_are_refused_and_left_as_they_are(tmp_path, uri):
    assert "must hold a study of this project, got none" in refused(AnalysisError, uri)
    make_folder(tmp_path / "demo", uri)
    assert "must be an MLflow database" in refused(ClusterError, f"sqlite:///{tmp_path}/absent.db")
    assert not (tmp_path / "absent.db").exists()
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table notes (text)")
    before = other.read_bytes()
    assert "must be an MLflow database, got no such table" in refused(ClusterError, f"sqlite:///{other}")
    assert other.read_bytes() == before
    assert "Connection refused" in refused(ClusterError, "http://127.0.0.1:9", study="demo")
    refused(ClusterError, "ftp://somewhere/else")
