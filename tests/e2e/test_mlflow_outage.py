"""An MLflow server that goes away in mid-study: the study does not notice, and MLflow has everything afterwards."""

import re
import time

import pytest

from study.records.folder import StudyFolder
from study.records.records import TrialEnded
from tests.e2e.commands import SPACE, run, study
from tests.e2e.drivers import Driver
from tests.integration.mlflow_tools import Server, assert_mirrored, children, parent

LONGER = SPACE.replace("env_steps: 800", "env_steps: 3000").replace("num_trials: 4", "num_trials: 2")


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def driver(tmp_path, server):
    place = tmp_path / "work"
    place.mkdir()
    driver = Driver(place, space=LONGER)
    driver.uri = server.uri
    yield driver
    driver.stop()


def assert_complete(driver, database):
    """MLflow has every value of every attempt exactly once, nothing else, and shows the summary of each trial."""
    assert_mirrored(StudyFolder(driver.folder), database, "space")
    shown = children(database, "space")
    for record in driver.records():
        if isinstance(record, TrialEnded):
            summary = {name: value for name, value in record.summary.items() if value is not None}
            assert summary.items() <= shown[record.trial, record.attempt].latest.items()
    assert parent(database, "space").status == "FINISHED"


@pytest.mark.minutes
def test_a_study_does_not_notice_that_mlflow_was_away(driver, server):
    driver.start("--tracking-uri", server.uri)
    driver.wait_for("iteration", 2)
    server.stop()
    before = len(driver.records())
    time.sleep(10)
    meanwhile = len(driver.records()) - before
    server.start()
    assert driver.end() == 0, driver.said
    assert meanwhile > 0, "the study stood still while MLflow was away"
    assert "Traceback" not in driver.said
    assert "catch up with" not in driver.said
    driver.assert_whole(2)
    assert_complete(driver, server.database)


@pytest.mark.heavy
def test_a_resume_goes_on_while_mlflow_is_away_and_says_how_to_catch_up(driver, server):
    """It says how much is missing and what to do; that does it."""
    driver.start("--tracking-uri", server.uri)
    driver.wait_for("iteration", 2)
    server.stop()
    driver.kill()
    assert driver.run("--tracking-uri", server.uri) == 0, driver.said
    assert "MLflow does not answer; the study goes on" in driver.said
    assert "Traceback" not in driver.said
    assert [record.attempt for record in driver.records() if record.kind == "trial_started"].count(2) == 1
    found = re.search(
        r"MLflow lacks up to (\d+) records \(.+\); catch up with: python -m study sync (\S+)", driver.said
    )
    assert found, driver.said
    assert 0 < int(found[1]) <= len(driver.records())
    server.start()
    synced = run(study("sync", found[2]), driver.place)
    assert synced.returncode == 0, synced.stderr
    assert re.search(rf"\b{found[1]}\b", synced.stdout), (found[1], synced.stdout)
    driver.assert_whole(2)
    assert_complete(driver, server.database)
