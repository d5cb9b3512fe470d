"""Event files for TensorBoard: what they hold, and that they follow from the records, whatever happened before."""

import math

import pytest

from study.cli.sync import sync_study
from study.driver.opening import RunOptions, new_identity
from study.errors import RecordError
from study.metrics import METRICS
from study.mirrors.tensorboard import TensorBoardMirror, tag_of
from study.records.folder import StudyFolder, check_files
from tests.event_files import assert_files_follow, event_files, hparams_of, read_events, scalars, texts
from tests.spaces import spec
from tests.synthetic import append, closed, ended, evaluation, iteration, make_folder, opened, started, whole_trial
from tests.values import replace


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")


def follow(folder):
    """Do what a mirror that has just been started does, up to the end of the records."""
    mirror = TensorBoardMirror(folder, str(folder.tensorboard))
    while mirror.step():
        pass
    assert mirror.behind == 0
    return mirror


RECORDS = (
    *(opened(), *whole_trial(0), started(1, runners=46), iteration(1, 1), ended(1, "failed")),
    *(*whole_trial(2, "interrupted"), started(3), iteration(3, 1), opened(2), started(3, 2), iteration(3, 1, 2)),
    *(iteration(3, 2, 2), evaluation(3, 2, 2), *whole_trial(2, attempt=2, length=2), closed(session=2)),
)
"""A trial that finished, one that failed, one that was interrupted and one that a kill took, both run again."""


def test_a_trial(folder):
    append(folder, opened(), *whole_trial(0), closed())
    follow(folder)
    (file,) = event_files(folder).values()
    assert file.parent == folder.tensorboard / "trial_00000_r2_s5"
    assert file.name.startswith("events.out.tfevents.")
    assert_files_follow(folder)
    points = {tag: [(step, value) for step, value, _ in found] for tag, found in scalars(file).items()}
    assert points == {
        "time/startup_time_s": [(0, 3.5)],
        "time/iteration_time_s": [(400, 0.5), (800, 0.5), (1200, 0.5)],
        "runners/train_batch_size_actual": [(400, 400.0), (800, 400.0), (1200, 400.0)],
        "runners/num_episodes": [(400, 0.0), (800, 1.0), (1200, 2.0)],
        "learner/kl": [(step, pytest.approx(value)) for step, value in ((400, 0.01), (800, 0.02), (1200, 0.03))],
        "return/training_return": [(800, 60.0), (1200, 45.0)],  # no episode, no return
        "speed/env_steps_per_s": [
            (400, 800.0),
            (800, 800.0),
            (1200, 800.0),
        ],  # said by the iteration, not again at the end
        "speed/wall_time_s": [(400, 0.5), (800, 1.0), (1200, 1.5)],
        "speed/env_steps": [(400, 400.0), (800, 800.0), (1200, 1200.0)],
        "return/eval_return": [(1200, 30.0)],
        "return/final_return": [(1200, 30.0)],
        "return/score": [(1200, 0.5)],
    }


def test_a_late_record_of_an_attempt_that_is_over_is_not_written_to_the_file_of_the_next(folder):
    append(folder, opened(), started(0), iteration(0, 1), started(0, 2), iteration(0, 2), iteration(0, 1, 2))
    follow(folder)
    (file,) = event_files(folder).values()
    assert [step for step, _, _ in scalars(file)["time/iteration_time_s"]] == [400]


def test_metrics_are_shown_in_few_sections():
    sections = {metric.section for metric in METRICS.values() if metric.mirrored}
    assert sections == {"return", "speed", "target", "machine", "time", "runners", "learner"}
    assert tag_of("kl") == "learner/kl"


def test_what_is_absent_or_not_finite_is_left_out(folder):
    append(folder, opened(), started(0), iteration(0, 1, kl=math.nan, vf_loss=math.inf, entropy=None))
    follow(folder)
    (file,) = event_files(folder).values()
    names = {tag.partition("/")[2] for tag in scalars(file)}
    assert not {"kl", "vf_loss", "entropy", "rest_time_s"} & names
    assert_files_follow(folder)


def test_the_hparams_tab_gets_settings_and_results(folder):
    cut = replace(evaluation(4, 1), num_cut=1)
    append(folder, *RECORDS, opened(3), started(4), cut, cut, ended(4))
    follow(folder)
    files = event_files(folder)
    assert list(files) == [
        "trial_00000_r2_s5",
        "trial_00001_r46_s5",
        "trial_00002_r2_s5",
        "trial_00003_r2_s5",
        "trial_00004_r2_s5",
    ]
    found = hparams_of(files["trial_00001_r46_s5"])
    values = found["_hparams_/session_start_info"].session_start_info.hparams
    assert (values["num_env_runners"].number_value, values["lr"].number_value) == (46, 0.00025)
    assert (values["seed"].number_value, values["execution"].string_value) == (5, "real")
    columns = found["_hparams_/experiment"].experiment
    assert {each.name for each in columns.hparam_infos} == set(values)
    assert [each.name.tag for each in columns.metric_infos] == [
        "return/final_return",
        "return/score",
        "speed/env_steps_per_s",
    ]
    states = {name: hparams_of(file).get("_hparams_/session_end_info") for name, file in files.items()}
    assert [each and each.session_end_info.status for each in states.values()] == [1, 2, 1, None, 1]
    said = texts(files["trial_00001_r46_s5"])["outcome/text_summary"]
    assert "| reason | because of failed |" in said
    assert "| episodes_cut | 2 of 6 |" in texts(files["trial_00004_r2_s5"])["outcome/text_summary"]
    assert "| timing | oversubscribed |" in texts(files["trial_00000_r2_s5"])["built/text_summary"]
    assert "effective" not in texts(files["trial_00000_r2_s5"])["built/text_summary"]  # JSON for our own reader


def test_files_that_are_removed_under_a_mirror_are_made_again(folder):
    append(folder, opened(), started(0), iteration(0, 1))
    mirror = follow(folder)
    (file,) = event_files(folder).values()
    file.unlink()
    append(folder, iteration(0, 2))
    with pytest.raises(FileNotFoundError):
        mirror.step()
    while mirror.step():
        pass
    assert_files_follow(folder)


def test_a_complete_attempt_is_not_written_again_and_files_of_others_stay(folder):
    append(folder, *RECORDS)
    follow(folder)
    mine = folder.tensorboard / "trial_00000_r2_s5" / "notes.txt"
    mine.write_text("mine")
    files = {name: (file, file.stat().st_mtime_ns) for name, file in event_files(folder).items()}
    follow(folder)
    again = {name: (file, file.stat().st_mtime_ns) for name, file in event_files(folder).items()}
    assert {name for name in files if files[name] != again[name]} <= {"trial_00003_r2_s5"}  # which is under way
    assert mine.exists()
    assert_files_follow(folder)
    for file in event_files(folder).values():
        assert [each.step for each in read_events(file) if each.HasField("session_log")] == [0]


def test_sync_writes_them_on_request_and_from_then_on(folder):
    append(folder, opened(), *whole_trial(0), closed())
    said = "TensorBoard's folder is up to date: 9 records sent, 1 trials there."
    assert not folder.tensorboard.exists()
    assert TensorBoardMirror.address_of(folder) is None
    assert list(sync_study(folder, tensorboard=True)) == [said]
    assert TensorBoardMirror.address_of(folder) == str(folder.tensorboard)
    assert_files_follow(folder)


def test_the_wish_is_kept_beside_the_identity_and_not_in_it(tmp_path):
    options = RunOptions(name="demo", out=tmp_path, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", tensorboard=True)
    identity = new_identity(spec(), options)
    assert "tensorboard" not in identity.to_json()
    folder = StudyFolder(tmp_path / "demo")
    folder.prepare()
    folder.make_tensorboard()
    folder.prepare()  # after a kill before the identity was written
    folder.create(identity, "environment: {}\n")
    check_files(folder)
    folder.forget()
    assert not folder.path.exists()


def test_something_in_its_place_is_named(folder):
    folder.tensorboard.write_text("mine")
    with pytest.raises(RecordError, match="tensorboard must be a folder"):
        check_files(folder)
    with pytest.raises(RecordError, match=r"must be a folder that can be written.*Fix: "):
        folder.make_tensorboard()
