"""The process that writes event files beside a driver: it follows, and may be killed at any moment."""

import os
import random
import signal
import time

from study.mirrors.mirror_process import MirrorProcess
from study.mirrors.mirror_target import TENSORBOARD
from tests.event_files import assert_files_follow, event_files, expected, scalars
from tests.integration.mlflow_tools import wait_until
from tests.synthetic import append, closed, make_folder, opened, whole_trial


def shown(folder):
    return {name: scalars(file) for name, file in event_files(folder).items()}


def test_a_process_follows_the_study_and_survives_kills(tmp_path):
    rng = random.Random(0)
    folder = make_folder(tmp_path / "demo", "sqlite:////nowhere.db")
    append(folder, opened(), *whole_trial(0))
    mirror = MirrorProcess(TENSORBOARD)
    mirror.start(folder, str(folder.tensorboard))
    mirror.wait_ready()
    wait_until(lambda: shown(folder) == expected(folder))
    for trial in (1, 2, 3):
        append(folder, *whole_trial(trial, "interrupted" if trial == 2 else "finished", length=200))
        time.sleep(rng.uniform(0, 1.2))
        os.kill(mirror.pid, signal.SIGKILL)
        mirror.start(folder, str(folder.tensorboard))
    append(folder, *whole_trial(2, attempt=2), closed())
    report = mirror.finish(30)
    assert report.drained, report
    assert_files_follow(folder)
    assert folder.mirror_log.read_text() == ""


def test_a_folder_that_cannot_be_written_is_named_and_caught_up_with(tmp_path):
    folder = make_folder(tmp_path / "demo", "sqlite:////nowhere.db")
    append(folder, opened(), *whole_trial(0), closed())
    folder.tensorboard.write_text("in its place")
    mirror = MirrorProcess(TENSORBOARD)
    mirror.start(folder, str(folder.tensorboard))
    report = mirror.finish(5)
    assert report.behind == 9
    assert "must be a folder that can be written" in report.reason
    folder.tensorboard.unlink()
    mirror.start(folder, str(folder.tensorboard))
    assert mirror.finish(20).drained
    assert_files_follow(folder)
