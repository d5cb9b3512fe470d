"""An MLflow server that goes away in mid-study: the study does not notice, and MLflow has everything afterwards."""

import re
import time

import pytest

from study.records.folder import StudyFolder
from study.records.records import Iteration, TrialEnded
from tests.e2e.commands import SPACE, assert_whole, command, kill, records, run, start, study
from tests.integration.mlflow_tools import Server, assert_mirrored, children, parent
from tests.waiting import until

LONGER = SPACE.replace("env_steps: 800", "env_steps: 3000").replace("num_trials: 4", "num_trials: 2")


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "space.yaml").write_text(LONGER)
    return folder


def words(server):
    return command("--space", "space.yaml", "--tracking-uri", server.uri)


def folder(place):
    return place / "studies" / "space"


def wait_for_iterations(place, process, count):
    """Wait until the study has recorded so many iterations."""

    def come_so_far():
        assert process.poll() is None, (place / "log").read_text()
        file = folder(place) / "records.jsonl"
        return file.exists() and sum(isinstance(record, Iteration) for record in records(folder(place))) >= count

    until(come_so_far, timeout_s=120)


def end_of(process, place):
    code = process.wait(timeout=240)
    return code, (place / "log").read_text()


def assert_complete(place, database):
    """MLflow has every value of every attempt exactly once, nothing else, and shows the summary of each trial."""
    assert_mirrored(StudyFolder(folder(place)), database, "space")
    shown = children(database, "space")
    for record in records(folder(place)):
        if isinstance(record, TrialEnded):
            summary = {name: value for name, value in record.summary.items() if value is not None}
            assert summary.items() <= shown[record.trial, record.attempt].latest.items()
    assert parent(database, "space").status == "FINISHED"


@pytest.mark.minutes
def test_a_study_does_not_notice_that_mlflow_was_away(place, server):
    with (place / "log").open("w") as log:
        process = start(words(server), place, log)
    wait_for_iterations(place, process, 2)
    server.stop()
    before = len(records(folder(place)))
    time.sleep(10)
    meanwhile = len(records(folder(place))) - before
    server.start()
    code, said = end_of(process, place)
    assert code == 0, said
    assert meanwhile > 0, "the study stood still while MLflow was away"
    assert "Traceback" not in said
    assert "catch up with" not in said
    assert_whole(folder(place), server.uri, 2)
    assert_complete(place, server.database)


@pytest.mark.heavy
def test_a_resume_goes_on_while_mlflow_is_away_and_says_how_to_catch_up(place, server):
    """It says how much is missing and what to do; that does it."""
    with (place / "log").open("w") as log:
        process = start(words(server), place, log)
    wait_for_iterations(place, process, 2)
    server.stop()
    kill(process)
    done = run([*words(server), "--resume"], place)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "MLflow does not answer; the study goes on" in said
    assert "Traceback" not in said
    assert [record.attempt for record in records(folder(place)) if record.kind == "trial_started"].count(2) == 1
    found = re.search(r"MLflow lacks up to (\d+) records \(.+\); catch up with: python -m study sync (\S+)", said)
    assert found, said
    assert 0 < int(found[1]) <= len(records(folder(place)))
    server.start()
    synced = run(study("sync", found[2]), place)
    assert synced.returncode == 0, synced.stderr
    assert re.search(rf"\b{found[1]}\b", synced.stdout), (found[1], synced.stdout)
    assert_whole(folder(place), server.uri, 2)
    assert_complete(place, server.database)
