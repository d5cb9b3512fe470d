"""Records and MLflow agree, whatever is killed, stopped, deleted or repeated. Real SQLite, a real server."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from study.errors import RecordError, TrackingError
from study.mirrors import mlflow_store
from study.mirrors.mirror import Mirror
from study.mirrors.mirror_cursor import CursorFile
from study.mirrors.mirror_process import MirrorProcess
from study.mirrors.mlflow_mirror import sync
from study.records.folder import StudyFolder
from tests.integration.mlflow_tools import Server, children, expected_points, look, parent, wait_until
from tests.synthetic import (
    append,
    built,
    closed,
    ended,
    iteration,
    make_folder,
    opened,
    started,
    whole_trial,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database with MLflow's tables: making them takes longer than most tests."""
    folder = tmp_path_factory.mktemp("empty")
    sync(make_folder(folder / "demo", f"sqlite:///{folder}/mlflow.db", name="empty"))
    return (folder / "mlflow.db").read_bytes()


@pytest.fixture
def database(tmp_path, empty_database):
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_database)
    return path


@pytest.fixture
def folder(tmp_path, database) -> StudyFolder:
    return make_folder(tmp_path / "demo", f"sqlite:///{database}")


def assert_mirrored(folder: StudyFolder, database, name: str = "demo") -> None:
    """Every point of every attempt is in MLflow, and nothing else; a trial shows its last attempt only."""
    runs, expected = children(database, name), expected_points(folder)
    assert {key: dict(run.points) for key, run in runs.items() if run.points} == {
        key: dict(points) for key, points in expected.items() if points
    }
    latest = {trial: max(attempt for other, attempt in runs if other == trial) for trial, _ in runs}
    for (trial, attempt), run in runs.items():
        assert run.active == (attempt == latest[trial])


def contents(database) -> dict:
    """Return what MLflow holds, without the ids that differ from one rebuild to the next."""
    hidden = {"mlflow.parentRunId"}
    return {
        run.key: (
            run.name,
            run.status,
            run.active,
            run.start,
            run.end,
            run.params,
            {key: value for key, value in run.tags.items() if key not in hidden},
            dict(run.points),
            run.latest,
        )
        for run in look(database)
    }


STORY = [
    opened(),
    *whole_trial(0),
    *whole_trial(1, "failed"),
    *whole_trial(2, "interrupted"),
    closed("stopped"),
    opened(2),
    started(2, 2),
    built(2, 2),
    started(3),
    iteration(2, 1, 2),
    iteration(3, 1),
    *list(whole_trial(2, attempt=2))[3:],
    ended(3, "failed"),
    closed(session=2),
]
"""Two sessions with every kind of end."""


def test_a_study_is_mirrored_completely(folder, database):
    append(folder, *STORY)
    report = sync(folder)
    assert (report.records, report.runs, report.behind) == (len(STORY), 4, 0)
    assert_mirrored(folder, database)
    runs = children(database)
    assert {key: run.status for key, run in runs.items()} == {
        (0, 1): "FINISHED",
        (1, 1): "FAILED",
        (2, 1): "KILLED",
        (2, 2): "FINISHED",
        (3, 1): "FAILED",
    }
    assert runs[2, 1].tags["superseded"] == "true"
    assert runs[1, 1].tags["reason"] == "because of failed"
    assert runs[0, 1].name == "trial 0 · 2 runners"
    assert runs[0, 1].latest["env_steps_per_s"] == 777.0  # the trial's, not the last iteration's
    assert runs[0, 1].tags["timing"] == "oversubscribed"
    assert parent(database).status == "FINISHED"
    assert parent(database).params == {"environment": "CartPole-v1", "algorithm": "PPO", "sampler": "random"}


def test_artifacts_lie_beside_the_database(folder, database):
    append(folder, *STORY)
    sync(folder)
    (space,) = (database.parent / "mlruns").rglob("space.yaml")
    assert space.is_relative_to(database.parent / "mlruns" / "demo")
    names = {path.name for path in space.parent.iterdir()}
    assert names == {
        "space.yaml",
        "study.json",
        "trials.csv",
        "provenance_session_1.json",
        "provenance_session_2.json",
    }


def test_a_sync_takes_the_films_of_policies_along(folder, database):
    append(folder, *STORY)
    sync(folder)
    folder.clips.mkdir()
    for name in ("best.mp4", "best.png", "best.json", ".best.4711.mp4", "notes.txt"):
        (folder.clips / name).write_text(name)
    sync(folder)
    (clips,) = (database.parent / "mlruns").rglob("clips")
    assert {path.name for path in clips.iterdir()} == {"best.mp4", "best.png", "best.json"}


def test_a_repeated_sync_sends_nothing_and_a_lost_cursor_changes_nothing(folder, database):
    append(folder, *STORY)
    sync(folder)
    before = contents(database)
    assert sync(folder).records == 0
    folder.mirror_state.unlink()
    assert sync(folder).records == len(STORY)
    assert contents(database) == before


WRITES = "create_run", "log_batch", "set_terminated", "update_run", "set_tag", "delete_run", "log_artifact"


class _Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def test_a_kill_after_any_call_to_mlflow_loses_and_doubles_nothing(folder, database, tmp_path, monkeypatch):
    """MLflow took the call, and the mirror died before it knew: at every single call of the story."""
    append(folder, *STORY)
    other = make_folder(tmp_path / "undisturbed", f"sqlite:///{tmp_path}/undisturbed.db")
    (tmp_path / "undisturbed.db").write_bytes(database.read_bytes())
    other.records.write_bytes(folder.records.read_bytes())
    other.identity_file.write_bytes(folder.identity_file.read_bytes())
    sync(other, tracking_uri=f"sqlite:///{tmp_path}/undisturbed.db")

    calls = fatal = kills = 0

    def deadly(call):
        def dying(*arguments, **options):
            nonlocal calls
            result = call(*arguments, **options)
            calls += 1
            if calls == fatal:
                raise _Killed
            return result

        return dying

    for name in WRITES:
        monkeypatch.setattr(mlflow_store.MlflowClient, name, deadly(getattr(mlflow_store.MlflowClient, name)))
    monkeypatch.setattr("study.mirrors.mirror._CHUNK", 1)  # the next record is the next chance to die
    file, last, done = CursorFile.of(folder, folder.identity().tracking_uri), None, False
    while not done:
        cursor = file.read()
        seq = -1 if cursor is None else cursor.seq
        calls, fatal, last = 0, fatal + 1 if seq == last else 1, seq
        mirror = Mirror(folder, file)
        try:
            mirror.attach()
            while mirror.step():
                calls, fatal = 0, 1
            mirror.close()
            done = True
        except _Killed:
            kills += 1
    assert kills > 80
    assert_mirrored(folder, database)
    assert contents(database) == contents(tmp_path / "undisturbed.db")


def test_a_run_created_twice_is_kept_once(folder, database, monkeypatch):
    """A creation that timed out for us and succeeded in the server, after we had looked and created again."""
    original = mlflow_store.MlflowClient.create_run

    def twice(*arguments, **options):
        original(*arguments, **options)
        return original(*arguments, **options)

    monkeypatch.setattr(mlflow_store.MlflowClient, "create_run", twice)
    append(folder, *STORY)
    sync(folder)
    runs = [run for run in look(database) if run.tags.get("duplicate") != "true"]
    assert sorted(run.key for run in runs if run.active and run.tags["study.role"] == "trial") == [
        ("id-demo", "trial", "0", "1"),
        ("id-demo", "trial", "1", "1"),
        ("id-demo", "trial", "2", "2"),
        ("id-demo", "trial", "3", "1"),
    ]
    expected = expected_points(folder)
    for run in runs:
        if run.tags["study.role"] == "trial":
            assert run.points == expected[int(run.tags["study.trial"]), int(run.tags["study.attempt"])]


def test_sync_to_another_mlflow_rebuilds_the_study_there(folder, database, tmp_path, empty_database):
    append(folder, *STORY)
    sync(folder)
    (tmp_path / "other.db").write_bytes(empty_database)
    uri = f"sqlite:///{tmp_path}/other.db"
    assert sync(folder, tracking_uri=uri).records == len(STORY)
    assert contents(tmp_path / "other.db") == contents(database)
    assert sync(folder, tracking_uri=uri).records == 0
    append(folder, opened(3), closed(session=3))
    assert sync(folder).records == 2  # each place has its own cursor
    assert sync(folder, tracking_uri=uri).records == 2


def test_a_study_without_an_end_was_killed_and_a_resume_takes_it_up(folder, database):
    append(folder, opened(), *whole_trial(0), started(1), iteration(1, 1))
    sync(folder)
    assert parent(database).status == "KILLED"
    assert children(database)[1, 1].status == "KILLED"
    append(folder, opened(2), ended(1, "interrupted"), *whole_trial(1, attempt=2), closed(session=2))
    sync(folder)
    assert parent(database).status == "FINISHED"
    assert children(database)[1, 2].status == "FINISHED"
    assert_mirrored(folder, database)


def test_sync_beside_a_driver_leaves_the_study_running(folder, database):
    append(folder, opened(), started(0))
    with folder.locked():
        sync(folder)
    assert parent(database).status == "RUNNING"
    assert children(database)[0, 1].status == "RUNNING"


@pytest.mark.parametrize("reason", ["complete", "stopped", "time budget", "error"])
def test_the_end_of_the_study_is_shown(folder, database, reason):
    append(folder, opened(), closed(reason))
    sync(folder)
    expected = {"complete": "FINISHED", "error": "FAILED"}.get(reason, "KILLED")
    assert parent(database).status == expected
    assert parent(database).tags["status"] == reason


def test_a_new_database_in_place_of_the_old_one_is_filled_again(folder, database, empty_database):
    append(folder, *STORY)
    sync(folder)
    before = contents(database)
    mlflow_store.MlflowClient(f"sqlite:///{database}")._tracking_client.store.engine.dispose()
    database.write_bytes(empty_database)
    assert sync(folder).records == len(STORY)
    assert contents(database) == before


def test_a_deleted_experiment_is_restored_without_what_was_superseded(folder, database):
    append(folder, *STORY)
    sync(folder)
    before = contents(database)
    client = mlflow_store.MlflowClient(f"sqlite:///{database}")
    client.delete_experiment(client.get_experiment_by_name("demo").experiment_id)
    append(folder, opened(3), *whole_trial(4), closed(session=3))
    sync(folder)
    assert_mirrored(folder, database)
    after = contents(database)
    trials = [key for key in before if key[1] == "trial"]
    assert {key: after[key] for key in trials} == {key: before[key] for key in trials}


def test_a_trial_that_a_person_deleted_stays_deleted_and_holds_up_nothing(folder, database):
    append(folder, opened(), started(0), iteration(0, 1), started(1))
    with folder.locked():
        sync(folder)
    client = mlflow_store.MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("demo").experiment_id
    (run,) = client.search_runs([experiment], "tags.`study.trial` = '0'")
    client.delete_run(run.info.run_id)
    append(folder, iteration(0, 2), ended(0), iteration(1, 1), ended(1), closed())
    assert sync(folder).runs == 1
    assert not children(database)[0, 1].active
    assert children(database)[1, 1].points == expected_points(folder)[1, 1]


def test_records_that_became_fewer_are_sent_again(folder, database):
    """A power cut takes what was not on the disk, even if MLflow has got it."""
    append(folder, opened(), started(0), iteration(0, 1), iteration(0, 2))
    sync(folder)
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join(lines[:3]))
    append(folder, opened(2), *whole_trial(0, attempt=2), closed(session=2))
    assert sync(folder).records == 3 + 9
    assert children(database)[0, 2].points == expected_points(folder)[0, 2]
    assert not children(database)[0, 1].active


def test_damaged_records_end_a_sync(folder):
    append(folder, opened(), started(0))
    folder.records.write_bytes(b"garbage\n" + folder.records.read_bytes())
    with pytest.raises(RecordError, match="line 1"):
        sync(folder)


def test_studies_of_one_name_share_an_experiment(folder, database, tmp_path):
    second = make_folder(tmp_path / "elsewhere" / "demo", f"sqlite:///{database}")
    text = second.identity_file.read_text().replace("id-demo", "id-second")
    second.identity_file.write_text(text)
    for study in (folder, second):
        append(study, opened(), *whole_trial(0), closed())
        sync(study)
    assert sorted(run.tags["study.id"] for run in look(database)) == [
        "id-demo",
        "id-demo",
        "id-second",
        "id-second",
    ]


def test_more_points_than_a_batch_holds(folder, database):
    append(folder, opened(), *whole_trial(0, length=300), closed())
    sync(folder)
    assert_mirrored(folder, database)


def test_a_slow_server_gets_less_at_a_time(folder, database, monkeypatch):
    original = mlflow_store.MlflowClient.log_batch

    def slow(*arguments, metrics=(), **options):
        if len(metrics) > 100:
            raise TimeoutError
        return original(*arguments, metrics=metrics, **options)

    monkeypatch.setattr(mlflow_store.MlflowClient, "log_batch", slow)
    monkeypatch.setattr("study.mirrors.mlflow_mirror._PAUSE_S", 0.01)
    append(folder, opened(), *whole_trial(0, length=100), closed())
    sync(folder)
    assert_mirrored(folder, database)


def test_kills_at_random_moments_lose_and_double_nothing(server, tmp_path):
    """Over HTTP, while a driver writes. Signals to a whole job do not end the mirror, only SIGKILL does."""
    folder = make_folder(tmp_path / "demo", server.uri, name="kills")
    append(folder, opened())

    def write() -> None:
        for trial in range(12):
            for record in whole_trial(trial, length=12):
                append(folder, record)
                time.sleep(0.05)
        append(folder, closed())

    writer = threading.Thread(target=write)
    writer.start()
    mirror, rng = MirrorProcess(), random.Random(1)
    mirror.start(folder, server.uri)
    mirror.wait_ready()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(mirror.pid, number)
    for _ in range(3):
        time.sleep(rng.uniform(0.5, 1.5))
        os.kill(mirror.pid, signal.SIGKILL)
        mirror.start(folder, server.uri)
        mirror.wait_ready()
    writer.join()
    os.kill(mirror.pid, signal.SIGKILL)  # an instant before `finish`, which starts another one
    report = mirror.finish(30)
    assert report.drained, report
    assert_mirrored(folder, server.database, "kills")
    assert parent(server.database, "kills").status == "FINISHED"
    assert mirror.finish() == report


def test_a_server_that_goes_away_is_caught_up_with(server, tmp_path):
    folder = make_folder(tmp_path / "demo", server.uri, name="outage")
    append(folder, opened(), *whole_trial(0))
    mirror = MirrorProcess()
    mirror.start(folder, server.uri)
    mirror.wait_ready()
    file = CursorFile.of(folder, server.uri)
    wait_until(lambda: (cursor := file.read()) is not None and cursor.seq == 8)
    server.stop()
    append(folder, *whole_trial(1), started(2))
    time.sleep(1.5)
    with pytest.raises(TrackingError, match="must answer within"):
        sync(folder)
    server.start()
    append(folder, *list(whole_trial(2))[1:], closed())
    report = mirror.finish(30)
    assert report.drained, report
    assert_mirrored(folder, server.database, "outage")
    assert "MLflow answers again" in folder.mirror_log.read_text()


def test_finish_beside_a_dead_server_is_bounded_and_says_how_far_behind(tmp_path, database):
    folder = make_folder(tmp_path / "demo", f"sqlite:///{database}")
    append(folder, opened(), closed())
    mirror = MirrorProcess()
    mirror.start(folder, "http://127.0.0.1:9")
    with pytest.raises(TrackingError, match=r"must accept the study, got .*refused.*Fix: start or correct it"):
        mirror.wait_ready(6)
    begin = time.monotonic()
    report = mirror.finish(1)
    assert time.monotonic() - begin < 6
    assert (report.behind, report.drained) == (2, False)
    assert "refused" in report.reason


def test_a_signal_cuts_short_what_a_dead_server_would_take(tmp_path, database):
    folder = make_folder(tmp_path / "demo", f"sqlite:///{database}")
    append(folder, opened(), closed())
    mirror, other = MirrorProcess(), MirrorProcess()
    for each in (mirror, other):
        each.start(folder, "http://127.0.0.1:9")
        each.ask_to_finish(600)
    pids = [mirror.pid, other.pid]
    began = time.monotonic()
    cut = [began + 600]
    threading.Timer(1.0, lambda: cut.insert(0, time.monotonic())).start()
    reports = [each.finish(600, cut=lambda: cut[0]) for each in (mirror, other)]
    assert time.monotonic() < began + 100
    assert [report.behind for report in reports] == [2, 2]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_mirror_waits_until_the_last_one_has_let_go(folder, database):
    append(folder, opened())
    first, second = MirrorProcess(), MirrorProcess()
    for mirror in (first, second):
        mirror.start(folder, folder.identity().tracking_uri)
        if mirror is first:
            mirror.wait_ready()
    with pytest.raises(TrackingError, match="earlier driver has not let go"):
        second.wait_ready(3)
    assert first.finish(10).drained
    second.wait_ready(10)
    append(folder, closed())
    assert second.finish(10).drained
    assert parent(database).status == "FINISHED"


DRIVER = """
import os, signal, sys
from pathlib import Path
from study.records.folder import StudyFolder
from study.mirrors.mirror_process import MirrorProcess
from tests.synthetic import append, opened, started
folder = StudyFolder(Path(sys.argv[1]))
mirror = MirrorProcess()
mirror.start(folder, folder.identity().tracking_uri)
mirror.wait_ready()
append(folder, opened(), started(0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_driver_leaves_a_killed_study_and_its_mirror_lets_go(folder, database):
    subprocess.run([sys.executable, "-c", DRIVER, str(folder.path)], check=False)
    wait_until(lambda: parent(database).status == "KILLED", 20)
    assert children(database)[0, 1].status == "KILLED"
    resumed = MirrorProcess()
    resumed.start(folder, folder.identity().tracking_uri)
    resumed.wait_ready()
    assert parent(database).status == "RUNNING"
    append(folder, opened(2), *whole_trial(0, attempt=2), closed(session=2))
    assert resumed.finish(20).drained
    assert parent(database).status == "FINISHED"
    assert_mirrored(folder, database)
