"""Studies read back from a real MLflow store, as the mirror wrote them; what is no study of ours is refused."""

import contextlib
import json
import shutil
import sqlite3
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from analysis import load
from study.errors import AnalysisError, TrackingError
from study.metrics import METRICS
from study.mirrors import mlflow_content
from study.records.folder import StudyFolder
from study.space.parameters import PARAMETERS
from tests import holdup, synthetic
from tests.synthetic import sync_mlflow
from tests.values import replace


@pytest.fixture
def uri(tmp_path, empty_database):
    (tmp_path / "mlflow.db").write_bytes(empty_database)
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture(scope="module")
def mirrored_once(tmp_path_factory, empty_database):
    """A place with a study that has a failed, a repeated and a running trial, and its mirror."""
    place = tmp_path_factory.mktemp("mirrored")
    (place / "mlflow.db").write_bytes(empty_database)
    folder = synthetic.make_folder(place / "demo", f"sqlite:///{place}/mlflow.db")
    clocked = {"sampling_time_s": 0.3, "learning_time_s": 0.1, "sync_time_s": 0.05, "cpu_pressure": 0.25}
    clocked |= {"policy_lag": 1.5, "overlap_time_s": 0.2, "num_gradient_updates": 20}  # of APPO and IMPALA
    synthetic.append(
        folder,
        synthetic.opened(),
        synthetic.started(0),
        synthetic.built(0),
        *(
            synthetic.iteration(0, at, iteration_time_s=0.5 + at, peak_rss_mb=90.0 + at, **clocked)
            for at in (1, 2, 3, 4)
        ),
        synthetic.evaluation(0, 4),
        synthetic.ended(0),
        *synthetic.whole_trial(1, "failed"),
        synthetic.started(2),
        synthetic.iteration(2, 1),
        synthetic.ended(2, "interrupted"),
        synthetic.opened(2),
        *synthetic.whole_trial(2, attempt=2),
        synthetic.started(3),
        synthetic.built(3),
        synthetic.closed("stopped", 2),
    )
    sync_mlflow(folder)
    return place


_PLACES = (("experiments", "artifact_location"), ("runs", "artifact_uri"))
"""Columns of MLflow's tables with paths of files."""


@pytest.fixture
def mirrored(tmp_path, uri, mirrored_once):
    """The study, and its mirror at `uri`, as if they had been made there."""
    shutil.copytree(mirrored_once, tmp_path, dirs_exist_ok=True)
    before, here = str(mirrored_once), str(tmp_path)
    for file in tmp_path.rglob("*.json"):
        file.write_text(file.read_text().replace(before, here))
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        for table, column in _PLACES:
            database.execute(f"update {table} set {column} = replace({column}, ?, ?)", (before, here))
    return StudyFolder(tmp_path / "demo")


HELD = (
    *(name for name in PARAMETERS),
    *(name for name, metric in METRICS.items() if metric.grain == "trial"),
    *("study", "trial", "attempt", "status", "reason", "stage", "variant", "digest", "baseline", "seed", "execution"),
    *("stands_for_runners", "num_nodes", "nodes", "iterations", "timed_iterations", "timed_env_steps", "timed_s"),
    *("iteration_time_s", "sampling_time_s", "slowest_runner_time_s", "learning_time_s", "sync_time_s"),
    *("cpu_pressure", "peak_rss_mb", "policy_lag", "overlap_time_s", "num_gradient_updates"),
)
"""What the mirror holds of a run."""


def assert_held(mine: pd.DataFrame, truth: pd.DataFrame, names=HELD):
    for name in set(names) - {"status"}:
        pd.testing.assert_series_equal(mine[name], truth[name], check_exact=False, rtol=1e-12)
    # What was left open is called interrupted by the mirror, once no driver is at work.
    assert mine["status"].tolist() == truth["status"].replace("running", "interrupted").tolist()
    for name in ("started", "ended"):  # MLflow keeps milliseconds
        known = mine[name].notna()
        assert (abs(mine[name] - truth[name])[known] <= 0.0006).all()


@pytest.mark.parametrize("anew", [False, True])
def test_a_study_that_an_earlier_version_mirrored_is_read_and_goes_on(tmp_path, uri, monkeypatch, anew):
    folder, of_today = synthetic.make_folder(tmp_path / "demo", uri), mlflow_content.trial_params

    def of_0_12_0(*of_trial):
        return {"anchor" if name == "baseline" else name: value for name, value in of_today(*of_trial).items()}

    begun = [replace(record, anchor="mine") for record in (synthetic.started(0), synthetic.started(1))]
    synthetic.append(folder, synthetic.opened(), begun[0], synthetic.ended(0), begun[1], synthetic.started(2))
    with monkeypatch.context() as earlier:
        earlier.setattr(mlflow_content, "trial_params", of_0_12_0)
        sync_mlflow(folder)
    assert load.open_study(uri).runs["baseline"].fillna("").tolist() == ["mine", "mine", ""]
    synthetic.append(folder, synthetic.ended(1), synthetic.ended(2), replace(synthetic.started(3), anchor="yours"))
    if anew:
        (folder.path / "mirror.json").unlink()
    sync_mlflow(folder)
    assert load.open_study(uri).runs["baseline"].fillna("").tolist() == ["mine", "mine", "", "yours"]


def test_our_study_is_the_same_as_from_its_folder(mirrored, uri):
    mine, truth = load.open_study(uri), load.from_folder(mirrored.path)
    assert_held(mine.runs, truth.runs)
    assert mine.runs["timing"].tolist() == truth.runs["timing"].tolist()
    assert (mine.name, mine.kind, mine.source) == ("demo", "search", uri)
    assert mine.spec == truth.spec
    assert truth.space_file == str(mirrored.space_file)  # a command reads what the study was run with, `--set` included
    assert mine.space_file == mirrored.identity().space
    assert mine.runs["learner_threads"].tolist() == truth.runs["learner_threads"].tolist() == [2] * 4
    assert mine.runs["num_cpus"].tolist() == truth.runs["num_cpus"].tolist() == [3] * 4
    assert mine.runs.loc[0, "rest_time_s"] == pytest.approx(np.mean([2.5, 3.5, 4.5]) - 0.45)
    assert mine.runs["fingerprint"].tolist() == truth.runs["fingerprint"].tolist()
    assert json.loads(mine.runs["fingerprint"][0])["effective_learner"] == {"learner_class": "LeanPPOLearner"}
    said = " ".join(mine.problems)
    for word in (
        "CPU time per iteration",
        "'stopped'",
        "1 of 4 trials failed",
        "No trial has a measured clock",
    ):
        assert word in said
    keys = {"created", "counts", "sessions", "first_record", "last_record"}
    assert {key: mine.sheet[key] for key in mine.sheet.keys() - keys} == {
        key: truth.sheet[key] for key in truth.sheet.keys() - keys
    }
    first, other = (datetime.fromisoformat(each.sheet["first_record"]) for each in (mine, truth))
    assert (
        abs(first - other).total_seconds() < 60
    )  # the folder's is that of the session, a moment before its first trial
    assert [each["session"] for each in mine.sheet["sessions"]] == [1, 2]


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"num_learners": "two"}', "{", "[" * 4000, '{"learner_class": "\\ud800"}']
)
def test_what_was_read_back_is_missing_or_damaged(mirrored, uri, text):
    client = MlflowClient(tracking_uri=uri)
    before = load.open_study(uri)
    assert not any("read back" in problem for problem in before.problems)
    found = client.search_runs([client.get_experiment_by_name("demo").experiment_id], "tags.`study.role` = 'trial'")
    for run in found:
        if not text:
            client.delete_tag(run.info.run_id, "effective")  # as before 0.6.0
        elif run.data.tags["study.trial"] != "1":
            client.set_tag(run.info.run_id, "effective", text)
    after = load.open_study(uri)
    assert any("read back from the built algorithms of" in problem for problem in after.problems)
    fingerprints, known = ([json.loads(each) for each in data.runs["fingerprint"]] for data in (after, before))
    if text:  # what came up in the same way is the same work
        assert fingerprints == known
    else:
        assert after.runs["learner_threads"].isna().all()
        for less, whole in zip(fingerprints, known, strict=True):
            assert "effective_learner" not in less and less.items() <= whole.items()


def test_histories_are_read_on_demand(mirrored, uri):
    mine, truth = load.open_study(uri, histories=False), load.from_folder(mirrored.path)
    assert mine.runs["sampling_time_s"].isna().all()
    assert any("were not read" in problem for problem in mine.problems)
    # The latest value of a trial that has ended is its summary, total over total.
    assert mine.runs["env_steps_per_s"].tolist()[:3] == [777.0] * 3
    got, wanted = mine.iterations(), truth.iterations()
    shared = [name for name in got if name == "trial" or got[name].notna().any()]
    assert {"iteration", "env_steps", "wall_time_s", "iteration_time_s", "kl", "cpu_pressure"} <= set(shared)
    assert got["training_return"].iloc[:4].tolist() == [pd.NA, 60.0, 45.0, 40.0]
    for name in set(shared) - {
        "rest_time_s",
        "training_return",
    }:  # the invented records leave these out or inconsistent
        pd.testing.assert_series_equal(got[name], wanted[name], check_exact=False, rtol=1e-12)
    evaluations = mine.evaluations()
    columns = ["trial", "env_steps", "wall_time_s", "eval_return"]
    pd.testing.assert_frame_equal(evaluations[columns], truth.evaluations()[columns])


def test_a_staged_study_keeps_its_stages(tmp_path, uri):
    spec = holdup.holdup_spec()
    records = holdup.study_records(spec, until="race 1")
    folder = holdup.write_study(tmp_path / "staged", spec, records)
    identity = json.loads(folder.identity_file.read_text()) | {"tracking_uri": uri}
    folder.identity_file.write_text(json.dumps(identity))
    sync_mlflow(folder)
    mine, truth = load.open_study(uri, study="demo"), load.open_study(folder.path)
    assert (mine.kind, truth.kind) == ("holdup", "holdup")
    assert_held(mine.runs, truth.runs)


def test_times_follow_from_the_latest_values_where_batches_are_equal(tmp_path, uri):
    folder = synthetic.make_folder(tmp_path / "demo", uri)
    records = [synthetic.opened()]
    for trial, last in ((0, 400.0), (1, 200.0)):  # the second one's last batch was cut short
        clocks, steps = [9.0, 1.0, 2.0, 3.0], [400.0, 400.0, 400.0, last]
        records += [synthetic.started(trial), synthetic.built(trial)]
        for number, (clock, batch) in enumerate(zip(clocks, steps, strict=True), start=1):
            each = synthetic.iteration(trial, number, iteration_time_s=clock, train_batch_size_actual=batch)
            records.append(replace(each, env_steps=int(sum(steps[:number])), wall_time_s=sum(clocks[:number])))
        summary = {"wall_time_s": 15.0, "env_steps": int(sum(steps)), "env_steps_per_s": sum(steps[1:]) / 6.0}
        records.append(replace(synthetic.ended(trial), summary=summary))
    synthetic.append(folder, *records, synthetic.closed())
    sync_mlflow(folder)
    truth, mine = load.from_folder(folder.path).runs, load.open_study(uri, histories=False).runs
    assert mine["env_steps_per_s"].tolist() == truth["env_steps_per_s"].tolist() == [200.0, pytest.approx(1000 / 6)]
    for name in ("iterations", "timed_iterations", "timed_env_steps", "timed_s", "iteration_time_s"):
        assert (mine.loc[0, name], mine.loc[1, name]) == (truth.loc[0, name], pd.NA)
    assert truth.loc[0, "iteration_time_s"] == 2.0
    assert mine["sampling_time_s"].isna().all()


def test_without_artifacts_the_tags_are_told_apart_from_what_is_not_known(mirrored, uri, tmp_path):
    for file in (tmp_path / "mlruns").rglob("*.json"):
        file.unlink()
    mine = load.open_study(uri)
    assert mine.spec is None
    assert any("study.json cannot be read" in problem for problem in mine.problems)
    assert mine.runs["num_cpus"].isna().all()
    assert mine.sheet["environment"] == {"id": "CartPole-v1"}
    assert mine.sheet["commit"] == "abc"
    assert mine.sheet["versions"] == {"ray": "2.60.0"}
    assert_held(mine.runs, load.from_folder(mirrored.path).runs)


def test_deleted_and_superseded_runs_are_left_out(mirrored, uri):
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("demo")
    before = load.open_study(uri).runs
    for run in client.search_runs([experiment.experiment_id], run_view_type=2):  # the deleted ones, as a restored
        client.restore_run(run.info.run_id)  # experiment brings them back
    after = load.open_study(uri)
    pd.testing.assert_frame_equal(after.runs, before)
    assert any("earlier attempts" in problem for problem in after.problems)


@pytest.mark.parametrize(
    ("which", "tag", "texts"),
    [
        ("study.role` = 'study", "session", ("x", "0", "-1", "9" * 5000)),
        ("study.role` = 'study", "num_trials", ("many",)),
        ("study.trial` = '0", "study.attempt", ("first", "9" * 5000)),
        ("study.trial` = '1", "reason", ("", "\n")),
        ("study.trial` = '1", "study.trial", ("9" * 30,)),
    ],
)
def test_a_changed_tag_costs_no_study(mirrored, uri, which, tag, texts):
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("demo")
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`{which}'")
    for text in texts:
        client.set_tag(run.info.run_id, tag, text)
        runs = load.open_study(uri).runs
        assert len(runs) == (3 if tag == "study.trial" else 4)
        assert runs["attempt"].tolist()[:1] == [1]


@pytest.mark.parametrize(
    ("name", "changes", "missing"),
    [
        ("provenance_session_2", {"cluster": [1], "provenance": [1]}, False),
        ("provenance_session_2", {"provenance": {"git": "x", "time": 7}}, False),
        ("provenance_session_1", {"provenance": {"git": {"commit": 7}}}, False),
        ("study", {"spec": []}, True),
        ("study", {"created": "x"}, True),
        ("study", {"name": 7}, True),
    ],
)
def test_an_artifact_that_somebody_has_changed_is_not_believed(mirrored, uri, tmp_path, name, changes, missing):
    (file,) = (tmp_path / "mlruns").rglob(f"{name}.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    data = load.open_study(uri)
    assert any("study.json cannot be read" in problem for problem in data.problems) == missing
    assert data.sheet["commit"] == "abc"
    assert len(data.runs) == 4


def test_studies_of_one_name_are_told_apart_by_their_ids(mirrored, tmp_path, uri):
    other = synthetic.make_folder(tmp_path / "other", uri)
    content = json.loads(other.identity_file.read_text()) | {"study_id": "second"}
    other.identity_file.write_text(json.dumps(content))
    synthetic.append(other, synthetic.opened(), *synthetic.whole_trial(0, length=2), synthetic.closed())
    sync_mlflow(other)
    with pytest.raises(AnalysisError, match=r"must be named by its id, got 2.*id-demo.*second"):
        load.open_study(uri, study="demo")
    assert len(load.open_study(uri, study="second").runs) == 1
    assert len(load.open_study(uri, study="id-demo").runs) == 4
    with pytest.raises(AnalysisError, match=r"experiment or study 'third', got none"):
        load.open_study(uri, study="third")


def test_a_study_that_has_not_begun(tmp_path, uri):
    folder = synthetic.make_folder(tmp_path / "demo", uri)
    synthetic.append(folder, synthetic.opened())
    sync_mlflow(folder)
    with pytest.raises(AnalysisError, match="needs a trial, got none yet"):
        load.open_study(uri)


# Places where nothing can be read.


def test_an_experiment_of_others_is_refused_in_one_line(uri):
    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("theirs")).info.run_id
    client.log_metric(run, "num_env_steps_sampled_lifetime", 4000.0, step=1)
    client.create_experiment("bare")
    for name in ("theirs", "bare", None):
        with pytest.raises(AnalysisError, match=r": must hold a study of this project \(since version 0.13.0") as error:
            load.open_study(uri, study=name)
        assert "\n" not in str(error.value)


def test_names_are_looked_up_and_suggested(mirrored, uri):
    with pytest.raises(AnalysisError, match=r"experiment or study 'dmeo', got none. Fix: Did you mean 'demo'\?"):
        load.open_study(uri, study="dmeo")
    with pytest.raises(AnalysisError, match=r"'nothing alike', got none. Fix: Give one of 'demo'"):
        load.open_study(uri, study="nothing alike")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("theirs")
    client.create_run(experiment)
    with pytest.raises(AnalysisError, match=r"one study must be named, got 2 experiments: .*'demo'"):
        load.open_study(uri)
    client.delete_experiment(experiment)
    with pytest.raises(AnalysisError, match=r"'theirs' must not be deleted.*mlflow experiments restore"):
        load.open_study(uri, study="theirs")
    assert load.open_study(uri).name == "demo"


def test_a_store_without_runs(uri):
    with pytest.raises(AnalysisError, match="a study needs a run, got a store without any"):
        load.open_study(uri)


def test_places_that_do_not_answer(tmp_path):
    with pytest.raises(TrackingError, match=r"must name an existing database, got no file.*Fix"):
        load.open_study(f"sqlite:///{tmp_path}/absent.db")
    assert not (tmp_path / "absent.db").exists()
    (tmp_path / "text.db").write_text("no database, but long enough to be looked at as one. " * 20)
    with pytest.raises(TrackingError, match=r"must be an MLflow database, got file is not a database"):
        load.open_study(f"sqlite:///{tmp_path}/text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("create table cats (name text)")
    with pytest.raises(TrackingError, match=r"must be an MLflow database, got one without experiments"):
        load.open_study(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(TrackingError, match=r"127.0.0.1:9: a server must answer"):
        load.open_study("http://127.0.0.1:9", study="demo")
    with pytest.raises(TrackingError, match=r"must begin with one of"):
        load.open_study("ftp://somewhere/else")


def test_a_parameter_that_is_no_number_is_named(mirrored, uri, tmp_path):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("update params set value = 'fast' where key = 'lr'")
    with pytest.raises(
        ValueError, match=r"run 'trial 0 · 2 runners' \(.*\): parameter lr must be a number, got 'fast'"
    ):
        load.open_study(uri)


def test_a_database_of_another_version_says_so(uri, tmp_path, mirrored):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("update alembic_version set version_num = '451aebb31d03'")
    copy = tmp_path / "older.db"
    copy.write_bytes((tmp_path / "mlflow.db").read_bytes())  # MLflow looks at a database once per process
    with pytest.raises(TrackingError, match=r"another version. Fix: Back it up, then run `mlflow db upgrade"):
        load.open_study(f"sqlite:///{copy}")


def test_cpus_that_the_space_does_not_explain_are_not_claimed(tmp_path, uri):
    folder = synthetic.make_folder(tmp_path / "demo", uri)
    records = [synthetic.opened()]
    for trial, runners, reserved in ((0, 2, 21.0), (1, 2, 21.2), (2, 2, 20.9), (3, 4, 49.0)):  # in seven seconds
        length = [synthetic.iteration(trial, at) for at in range(1, 6)]
        end = synthetic.ended(trial)
        end = replace(end, summary=end.summary | {"cpu_s_reserved": reserved})
        records += [synthetic.started(trial, runners=runners), synthetic.built(trial), *length, end]
    holdup.write_records(folder, records)  # a second between two of them
    sync_mlflow(folder)
    assert load.open_study(uri).runs["num_cpus"].tolist() == [3, 3, 3, pd.NA]  # 7 CPUs are not 1 + 4


def test_cells_with_learners_of_their_own_are_other_workloads(tmp_path, uri):
    folder = synthetic.make_folder(tmp_path / "demo", uri)
    varied = [replace(each := synthetic.started(at), setting=each.setting | {"num_learners": at}) for at in (0, 2)]
    holdup.write_records(folder, [synthetic.opened(), *varied])
    sync_mlflow(folder)
    runs = load.open_study(uri).runs
    assert runs["num_learners"].tolist() == [0, 2]
    assert runs["num_cpus"].tolist() == [3, 5]
    assert [json.loads(text)["num_learners"] for text in runs["fingerprint"]] == [0, 2]
