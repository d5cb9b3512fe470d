"""What event files hold of a trial, and which of them a mirror leaves alone.

That the points follow from the records, whatever happened before, is `tests/contract/test_mirrors.py`.
"""

import math

import pytest

from study.errors import RecordError
from study.metrics import METRICS
from study.mirrors.tensorboard import TensorBoardMirror
from tests.event_files import assert_files_follow, event_files, read_events, scalars
from tests.synthetic import append, evaluation, iteration, make_folder, opened, started, whole_trial


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")


def follow(folder):
    """Do what a mirror that has just been started does, up to the end of the records."""
    mirror = TensorBoardMirror(folder)
    while mirror.step():
        pass
    assert mirror.behind == 0
    return mirror


def test_a_trial(folder):
    absent = {"vf_loss": math.inf, "entropy": None}
    append(folder, opened(), *whole_trial(0, "interrupted"), started(0, 2), iteration(0, 9))  # the last one is late
    append(folder, *list(whole_trial(0, attempt=2))[1:-2], iteration(0, 4, 2, **absent), evaluation(0, 4, 2))
    follow(folder)
    (file,) = event_files(folder).values()
    assert file.parent == folder.tensorboard / "trial_00000_r2_s5"
    points = {tag: [(step, value) for step, value, _ in found] for tag, found in scalars(file).items()}
    steps = (400, 800, 1200, 1600)
    assert points == {
        "time/startup_time_s": [(0, 3.5)],
        "time/iteration_time_s": [(step, 0.5) for step in steps],
        "runners/train_batch_size_actual": [(step, 400.0) for step in steps],
        "runners/num_episodes": [(400, 0.0), (800, 1.0), (1200, 2.0), (1600, 3.0)],
        "learner/kl": [
            (step, pytest.approx(value)) for step, value in zip(steps, (0.01, 0.02, 0.03, 0.04), strict=True)
        ],
        "return/training_return": [(800, 60.0), (1200, 45.0), (1600, 40.0)],  # no episode, no return
        "speed/env_steps_per_s": [(step, 800.0) for step in steps],
        "speed/wall_time_s": [(400, 0.5), (800, 1.0), (1200, 1.5), (1600, 2.0)],
        "speed/env_steps": [(step, float(step)) for step in steps],
        "return/eval_return": [(1600, 30.0)],
    }
    assert {metric.section for metric in METRICS.values() if metric.mirrored} == {
        *(tag.partition("/")[0] for tag in points),
        "target",
        "machine",
    }


def test_a_resume_writes_what_had_not_ended_anew_and_leaves_complete_files_alone(folder):
    append(folder, opened(), *whole_trial(0), started(3), iteration(3, 1), opened(2), started(3, 2), iteration(3, 1, 2))
    follow(folder).close()
    (folder.tensorboard / "trial_00000_r2_s5" / "notes.txt").write_text("mine")
    before = {name: file.stat().st_mtime_ns for name, file in event_files(folder).items()}
    append(folder, opened(3), iteration(3, 3, 2))
    follow(folder)
    after = {name: file.stat().st_mtime_ns for name, file in event_files(folder).items()}
    assert [name for name in before if after[name] != before[name]] == ["trial_00003_r2_s5"]
    assert (folder.tensorboard / "trial_00000_r2_s5" / "notes.txt").exists()
    assert_files_follow(folder)
    for file in event_files(folder).values():
        assert [each.step for each in read_events(file) if each.HasField("session_log")] == [0]


def test_something_in_their_place_is_named(folder):
    assert TensorBoardMirror.address_of(folder) == ""
    folder.tensorboard.write_text("mine")
    with pytest.raises(RecordError, match=r"must be a folder that can be written.*Fix: "):
        folder.make_tensorboard()
