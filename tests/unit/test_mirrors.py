"""What mirrors show of a record, by values worked out by hand, and which addresses are refused before anything starts.

That every place gets all of it, whatever is killed or away, is `tests/contract/test_mirrors.py`.
"""

import math
import socket

import pytest

from study.errors import ClusterError, RecordError
from study.metrics import METRICS
from study.mirrors import mlflow_mirror as content
from study.mirrors.mirror import TensorBoardMirror, points_of, tag_of
from study.mirrors.tracking_uri import ask_mlflow, check_tracking_uri
from study.records.records import Line
from tests.event_files import assert_files_follow, event_files, read_events
from tests.integration.mlflow_tools import answering_server
from tests.spaces import spec
from tests.synthetic import append, built, ended, fold, iteration, make_folder, opened, started, whole_trial
from tests.values import replace

URI = "postgresql://me:secret@db/mlflow"


def ledger(*records):
    return fold((record, float(moment)) for moment, record in enumerate(records))


def points(record, *before):
    found = points_of(Line(seq=0, time=1.234, record=record, end=1), ledger(*before).rows[record.trial])
    assert len({point.key for point in found}) == len(found)
    return found


def values(record, *before):
    return {point.key: point.value for point in points(record, *(before or (started(0),)))}


def test_an_iteration_has_what_is_finite_and_known():
    absent = {"kl": math.nan, "entropy": math.inf, "surprise": 1.0}
    assert values(iteration(0, 3, **absent)) == {
        "training_return": 45.0,  # 90 / 2
        "env_steps_per_s": 800.0,
        "iteration_time_s": 0.5,
        "train_batch_size_actual": 400.0,
        "num_episodes": 2.0,
        "wall_time_s": 1.5,
        "env_steps": 1200.0,
    }
    assert {(point.time_ms, point.step) for point in points(iteration(0, 3), started(0))} == {(1234, 1200)}
    assert "training_return" not in values(iteration(0, 1))  # no episode has ended


def test_the_summary_comes_behind_the_last_iteration_and_repeats_nothing_of_it():
    *before, end = whole_trial(0)
    assert {(point.time_ms, point.step) for point in points(end, *before)} == {(5001, 1200)}  # the clock was set back
    assert values(end, *before) == {"env_steps_per_s": 777.0, "final_return": 30.0, "score": 0.5}  # wall_time_s is said
    same = replace(end, summary={"env_steps_per_s": 800.0, "env_steps": 1200, "wall_time_s": 1.5, "score": 0.5})
    assert values(same, *before) == {"score": 0.5}


def test_a_run_of_mlflow_says_what_a_trial_or_a_study_was_and_how_it_ended():
    row = ledger(started(7, runners=46)).rows[7]
    assert content.trial_params(row, spec()) == {
        **{"num_env_runners": 46, "train_batch_size": 400, "lr": 0.00025, "seed": 5, "baseline": "none"},
        **{"execution": "real", "environment": "CartPole-v1", "algorithm": "PPO", "sampler": "random"},
    }
    parts = {"runner_class": "StockEnvRunner", "learner_class": "PPOTorchLearner"}
    rows = ledger(
        *(started(0), built(0), ended(0), started(1), replace(built(1), effective=parts), ended(1, "failed"))
    ).rows
    assert content.trial_tags(rows[0], ended=False) == {
        **{"engine": "unknown", "status": "finished", "checkpoint": "checkpoints/trial_00000"},
        **{"timing": "oversubscribed", "timing_reason": "3 processes on 2 cores", "reason": ""},
    }
    failed = content.trial_tags(rows[1], ended=False)
    assert (failed["reason"], failed["engine"]) == ("because of failed", "RLlib's own")
    tags = content.study_tags(spec(), ledger(opened()), ended=False)
    assert (tags["mlflow.source.git.commit"], tags["status"]) == ("abc", "running")
    assert tags["mlflow.source.name"] == "python -m study run demo.yaml"
    assert content.study_tags(spec(), ledger(opened()), ended=True)["status"] == "killed"


def test_event_files_are_written_anew_and_leave_others_alone(tmp_path):
    folder = make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")
    assert TensorBoardMirror(folder).address == ""
    folder.tensorboard.write_text("mine")
    with pytest.raises(RecordError, match=r"must be a folder that can be written.*Fix: "):
        folder.make_tensorboard()
    folder.tensorboard.unlink()
    append(folder, opened(), *whole_trial(0), started(3), iteration(3, 1), opened(2), started(3, 2), iteration(3, 1, 2))
    for records in ([], [opened(3), iteration(3, 3, 2)]):
        append(folder, *records)
        mirror = TensorBoardMirror(folder)
        while mirror.step():
            pass
        (folder.tensorboard / "trial_00000_r2_s5" / "notes.txt").touch()
    assert mirror.behind == 0
    assert (folder.tensorboard / "trial_00000_r2_s5" / "notes.txt").exists()
    assert_files_follow(folder)
    for file in event_files(folder).values():
        assert [each.step for each in read_events(file) if each.HasField("session_log")] == [0]
    sections = {tag_of(metric.name).partition("/")[0] for metric in METRICS.values() if metric.section}
    assert sections == {"time", "runners", "learner", "return", "speed", "target", "machine"}


# --- addresses -------------------------------------------------------------------------------------------------------


def refusal(check, *arguments):
    with pytest.raises(ClusterError) as refused:
        check(*arguments)
    assert refused.value.fix
    return refused.value


def test_a_path_of_sqlite_becomes_absolute_and_a_server_is_not_contacted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, absolute in {
        "sqlite:///a.db": f"sqlite:///{tmp_path}/a.db",
        "sqlite:///./a.db?timeout=9": f"sqlite:///{tmp_path}/a.db?timeout=9",
        f"sqlite+pysqlite:///{tmp_path}//a.db?a=///a.db": f"sqlite+pysqlite:///{tmp_path}/a.db?a=///a.db",
        "postgresql+psycopg://me:secret@nowhere.invalid/x": "postgresql+psycopg://me:secret@nowhere.invalid/x",
    }.items():
        assert check_tracking_uri(given) == absolute


@pytest.mark.parametrize(
    ("uri", "rule"),
    [
        ("sqlite://", "must name a file that you can write"),
        ("sqlite:///:memory:", "must name a file that you can write"),
        ("sqlite:///{}/nowhere/mlflow.db", "must name a file that you can write"),
        ("sqlite:///{}", "must name a file that you can write"),
        ("mlruns", "must begin with one of sqlite, postgresql"),
    ],
)
def test_what_can_be_no_store_is_refused(tmp_path, uri, rule):
    assert refusal(check_tracking_uri, uri.format(tmp_path)).rule.startswith(rule)


@pytest.mark.parametrize(
    ("status", "body", "got", "fix"),
    [
        (403, b"Invalid Host header - possible DNS rebinding attack detected", "403", "--allowed-hosts"),
        (401, b"You are not authenticated", "401", "MLFLOW_TRACKING_TOKEN"),
        (403, b'{"error_code": "PERMISSION_DENIED"}', "PERMISSION_DENIED", "MLFLOW_TRACKING_TOKEN"),
        (503, b"", "503", "Start or correct it"),
        (404, b"not here", "404", "Start or correct it"),
        (200, b"<html>Welcome to nginx</html>", "JSON", "Start or correct it"),
    ],
)
def test_a_server_that_cannot_work_is_refused(status, body, got, fix):
    with answering_server(status, body) as (uri, _):
        error = refusal(ask_mlflow, uri)
    assert (error.rule, error.where) == ("must take the study's records", f"MLflow {uri}")
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
