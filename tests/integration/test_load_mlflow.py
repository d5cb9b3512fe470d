"""A study read from a real MLflow is the study of its folder, as far as it was sent; what is none is refused."""

import json
import lzma
import sqlite3
from contextlib import closing

import pandas as pd
import pytest
from mlflow import MlflowClient

import analysis
from analysis import load
from study.errors import AnalysisError, RecordError, TrackingError
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.records import read_lines
from tests import holdup, synthetic
from tests.integration.mlflow_tools import Server
from tests.script_facts import facts, script_spec
from tests.synthetic import sync_mlflow


@pytest.fixture
def uri(tmp_path, empty_database):
    (tmp_path / "mlflow.db").write_bytes(empty_database)
    return f"sqlite:///{tmp_path}/mlflow.db"


def search(path, uri):
    """A finished, a failed, a repeated and a running trial, with secrets in what the study was started with."""
    secret = facts(settings={"env_config": {"hf_token": "s3cret"}})
    folder, its = synthetic.make_folder(path, uri, script_spec(secret, config_args="--hf-token s3cret -n 2")), synthetic
    first = (its.opened(), *its.whole_trial(0), *its.whole_trial(1, "failed"), its.started(2), its.iteration(2, 1))
    second = (its.opened(2), *its.whole_trial(2, attempt=2), its.started(3), its.built(3), its.closed("stopped", 2))
    synthetic.append(folder, *first, its.ended(2, "interrupted"), *second)
    return folder


def staged(path, uri):
    """A complete study in stages."""
    space = holdup.holdup_spec()
    folder = holdup.write_study(path, space, holdup.study_records(space))
    folder.identity_file.write_text(json.dumps(json.loads(folder.identity_file.read_text()) | {"tracking_uri": uri}))
    return folder


def assert_same(mine, truth):
    """Every frame, every estimate, the answer and what is known of the study are equal."""
    for name in ("trials", "curves", "evaluations"):
        pd.testing.assert_frame_equal(getattr(mine, name), getattr(truth, name), check_exact=True)
    pd.testing.assert_frame_equal(mine.estimates(), truth.estimates(), check_exact=True)
    assert mine.answer().sentence == truth.answer().sentence


@pytest.mark.parametrize("make", [search, staged])
def test_every_frame_is_equal_from_the_folder_and_from_mlflow(tmp_path, uri, make):
    folder = make(tmp_path / "demo", uri)
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
    folder = synthetic.make_folder(tmp_path / "demo", uri)
    mirror, clock = MlflowMirror(folder), [1000.0]
    monkeypatch.setattr("study.mirrors.mlflow_mirror.time.monotonic", lambda: clock[0])

    def sent(*records):
        synthetic.append(folder, *records)
        while mirror.step():
            pass

    def as_of(number):
        """Return the study as it was after some of its records."""
        copy = synthetic.make_folder(tmp_path / f"of {number}", uri, created=folder.identity().created)
        copy.records.write_bytes(b"".join(folder.records.read_bytes().splitlines(keepends=True)[:number]))
        return analysis.open(copy.path)

    sent(synthetic.opened())
    assert analysis.open(uri).trials.empty
    sent(*synthetic.whole_trial(0), synthetic.started(1))
    assert analysis.open(uri).trials.empty, "nothing was due"
    clock[0] += 61
    mirror.step()
    first = len(list(read_lines(folder.records)))
    sent(synthetic.iteration(1, 1), synthetic.ended(1))
    mine, truth = analysis.open(uri), as_of(first)
    assert_same(mine, truth)
    assert mine.trials["status"].tolist() == ["finished", "running"]
    (said,) = [problem for problem in mine.problems if "MLflow has the study's records until" in problem]
    assert truth.data.sheet["last_record"] in said
    sent(synthetic.closed())
    mirror.end()
    mine = analysis.open(uri)
    assert_same(mine, analysis.open(folder.path))
    assert not any("MLflow has" in problem for problem in mine.problems)
    sent(synthetic.opened(2))  # at once: else the study would be taken for ended
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
    assert "none that can be read from here" in refused(AnalysisError, uri)
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("demo").experiment_id], "tags.`study.role` = 'study'")
    client.delete_tag(run.info.run_id, "study.records")
    said = refused(AnalysisError, uri)
    assert "a version before 0.14.0 sent the study" in said
    assert "python -m study sync" in said
    sync_mlflow(folder)
    assert len(load.open_study(uri).runs) == 4


def test_studies_are_told_apart_by_names_and_ids_and_names_are_suggested(tmp_path, uri):
    for name in ("demo", "second"):
        folder = synthetic.make_folder(tmp_path / name, uri, study_id=f"id-{name}")
        synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), synthetic.closed())
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
    synthetic.make_folder(tmp_path / "demo", uri)
    assert "must be an MLflow database" in refused(TrackingError, f"sqlite:///{tmp_path}/absent.db")
    assert not (tmp_path / "absent.db").exists()
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table notes (text)")
    before = other.read_bytes()
    assert "must be an MLflow database, got no such table" in refused(TrackingError, f"sqlite:///{other}")
    assert other.read_bytes() == before
    assert "Connection refused" in refused(TrackingError, "http://127.0.0.1:9", study="demo")
    refused(TrackingError, "ftp://somewhere/else")
