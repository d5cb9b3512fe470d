"""Event files for TensorBoard: what they hold, and that they follow from the records, whatever happened before."""

import math
import os
import struct

import pytest

from study.cli import syncing
from study.cli.syncing import sync_study
from study.driver.opening import RunOptions, new_identity
from study.errors import RecordError
from study.mirrors.event_file import EventFile, frame
from study.mirrors.mlflow_mirror import SyncReport
from study.mirrors.tensorboard_mirror import TensorBoardMirror
from study.records.folder import StudyFolder
from study.records.state import check_files
from tests.event_files import assert_files_follow, event_files, hparams_of, read_events, scalars, texts
from tests.spaces import spec
from tests.synthetic import append, closed, ended, evaluation, iteration, make_folder, opened, started, whole_trial


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")


def follow(folder):
    """Do what a mirror that has just been started does, up to the end of the records."""
    mirror = TensorBoardMirror(folder)
    mirror.attach()
    while mirror.step():
        pass
    assert mirror.behind == 0
    return mirror


def content(folder):
    return {name: file.read_bytes() for name, file in event_files(folder).items()}


RECORDS = (
    *(opened(), *whole_trial(0), started(1, runners=46), iteration(1, 1), ended(1, "failed")),
    *(*whole_trial(2, "interrupted"), started(3), iteration(3, 1), opened(2), started(3, 2), iteration(3, 1, 2)),
    *(iteration(3, 2, 2), evaluation(3, 2, 2), *whole_trial(2, attempt=2, length=2), closed(session=2)),
)
"""A trial that finished, one that failed, one that was interrupted and one that a kill took, both run again."""


def test_a_record_has_the_published_checksums():
    """Source of the first: RFC 3720, B.4, CRC-32C of 32 zero bytes; the masks are those of the TFRecord format."""
    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert struct.unpack("<I", frame(bytes(32))[-4:]) == (masked,)
    assert frame(b"abc")[:8] == b"\x03" + bytes(7)


def test_a_trial(folder):
    append(folder, opened(), *whole_trial(0), closed())
    follow(folder)
    (file,) = event_files(folder).values()
    assert file.relative_to(folder.path).as_posix() == ("tensorboard/trial_00000_r2_s5/events.out.tfevents.00001.study")
    assert_files_follow(folder)
    points = {tag: [(step, value) for step, value, _ in found] for tag, found in scalars(file).items()}
    assert points == {
        "startup_time_s": [(0, 3.5)],
        "iteration_time_s": [(400, 0.5), (800, 0.5), (1200, 0.5)],
        "train_batch_size_actual": [(400, 400.0), (800, 400.0), (1200, 400.0)],
        "num_episodes": [(400, 0.0), (800, 1.0), (1200, 2.0)],
        "kl": [(step, pytest.approx(value)) for step, value in ((400, 0.01), (800, 0.02), (1200, 0.03))],
        "training_return": [(800, 60.0), (1200, 45.0)],  # no episode, no return
        "env_steps_per_s": [(400, 800.0), (800, 800.0), (1200, 800.0)],  # said by the iteration, not again at the end
        "wall_time_s": [(400, 0.5), (800, 1.0), (1200, 1.5)],
        "env_steps": [(400, 400.0), (800, 800.0), (1200, 1200.0)],
        "eval_return": [(1200, 30.0)],
        "final_return": [(1200, 30.0)],
        "score": [(1200, 0.5)],
    }


def test_what_is_absent_or_not_finite_is_left_out(folder):
    append(folder, opened(), started(0), iteration(0, 1, kl=math.nan, vf_loss=math.inf, entropy=None))
    follow(folder)
    (file,) = event_files(folder).values()
    assert not {"kl", "vf_loss", "entropy", "rest_time_s"} & scalars(file).keys()
    assert_files_follow(folder)


def test_the_hparams_tab_gets_settings_and_results(folder):
    append(folder, *RECORDS)
    follow(folder)
    files = event_files(folder)
    assert list(files) == ["trial_00000_r2_s5", "trial_00001_r46_s5", "trial_00002_r2_s5", "trial_00003_r2_s5"]
    found = hparams_of(files["trial_00001_r46_s5"])
    values = found["_hparams_/session_start_info"].session_start_info.hparams
    assert (values["num_env_runners"].number_value, values["lr"].number_value) == (46, 0.00025)
    assert (values["seed"].number_value, values["execution"].string_value) == (5, "real")
    columns = found["_hparams_/experiment"].experiment
    assert {each.name for each in columns.hparam_infos} == set(values)
    assert [each.name.tag for each in columns.metric_infos] == ["final_return", "score", "env_steps_per_s"]
    states = {name: hparams_of(file).get("_hparams_/session_end_info") for name, file in files.items()}
    assert [each and each.session_end_info.status for each in states.values()] == [1, 2, 1, None]
    said = texts(files["trial_00001_r46_s5"])["outcome/text_summary"]
    assert "| reason | because of failed |" in said
    assert "| timing | oversubscribed |" in texts(files["trial_00000_r2_s5"])["built/text_summary"]
    assert "effective" not in texts(files["trial_00000_r2_s5"])["built/text_summary"]  # JSON for our own reader


def test_interrupted_attempts_are_not_shown(folder):
    append(folder, *RECORDS)
    follow(folder)
    assert_files_follow(folder)
    for file in event_files(folder).values():
        for found in scalars(file).values():
            steps = [step for step, _, _ in found]
            assert steps == sorted(set(steps))
    restarts = [
        [each.step for each in read_events(file) if each.HasField("session_log")]
        for file in event_files(folder).values()
    ]
    assert restarts == [[], [], [0], [0]]  # tells a TensorBoard at work to drop what it has read


def test_an_attempt_replaces_the_one_before_while_the_mirror_works(folder):
    append(folder, opened(), *whole_trial(0, "interrupted"))
    mirror = follow(folder)
    assert_files_follow(folder)
    append(folder, opened(2), started(0, 2), iteration(0, 1, 2))
    assert mirror.step() == 3
    assert [file.name for file in event_files(folder).values()] == ["events.out.tfevents.00002.study"]
    assert_files_follow(folder)


def test_files_are_the_same_whether_written_at_once_or_with_a_kill_after_every_record(tmp_path):
    once = make_folder(tmp_path / "once", "sqlite:////nowhere.db")
    append(once, *RECORDS)
    follow(once)
    kills = make_folder(tmp_path / "kills", "sqlite:////nowhere.db")
    lines = once.records.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        kills.records.write_bytes(b"".join(lines[:count]) + b'{"schema":'[: count % 7])  # the next line is under way
        follow(kills)
        assert_files_follow(kills)
    assert content(kills) == content(once)


def test_what_a_kill_left_is_completed_and_anything_else_is_replaced(folder):
    append(folder, *RECORDS)
    follow(folder)
    whole = content(folder)
    name, file = next(iter(event_files(folder).items()))
    raw = whole[name]
    place = file.stat().st_ino
    for left in (
        *(raw[:cut] for cut in range(0, len(raw), 97)),
        *(raw + b"more", raw[:500] + bytes(300), bytes(len(raw)), b"x" + raw[1:], raw[:700] + b"x" + raw[701:]),
    ):
        file.write_bytes(left)
        follow(folder)
        assert content(folder) == whole
    assert file.stat().st_ino == place  # a TensorBoard that has it open goes on reading


def test_a_second_look_writes_nothing(folder):
    append(folder, *RECORDS)
    follow(folder)
    for file in event_files(folder).values():
        os.utime(file, (1, 1))
    follow(folder)
    assert {file.stat().st_mtime for file in event_files(folder).values()} == {1}


def test_trials_that_the_records_do_not_know_go_and_files_of_others_stay(folder):
    append(folder, *RECORDS)
    follow(folder)
    mine = folder.tensorboard / "trial_00000_r2_s5" / "notes.txt"
    mine.write_text("mine")
    other = folder.tensorboard / "trial_mine"
    other.mkdir()
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(lines[0])
    follow(folder)
    assert sorted(folder.tensorboard.glob("*/*")) == [mine]


def test_a_disk_that_fails_loses_nothing(folder, monkeypatch):
    append(folder, *RECORDS)
    mirror = TensorBoardMirror(folder)
    mirror.attach()
    original, calls = EventFile.write, []

    def full(self, *, complete):
        calls.append(1)
        if len(calls) == 3:
            with self._path.open("ab") as file:
                file.write(bytes(self._missing[:100]))
            raise OSError(28, "No space left on device")
        original(self, complete=complete)

    monkeypatch.setattr(EventFile, "write", full)
    with pytest.raises(OSError, match="No space"):
        while mirror.step():
            pass
    assert not mirror.attached
    mirror.attach()
    while mirror.step():
        pass
    assert_files_follow(folder)


def test_files_that_are_removed_under_a_mirror_are_made_again(folder):
    append(folder, opened(), started(0), iteration(0, 1))
    mirror = follow(folder)
    (file,) = event_files(folder).values()
    file.unlink()
    append(folder, iteration(0, 2))
    with pytest.raises(FileNotFoundError):
        mirror.step()
    mirror.attach()
    while mirror.step():
        pass
    assert_files_follow(folder)


def test_records_that_became_shorter_are_followed_anew(folder):
    append(folder, opened(), started(0), iteration(0, 1), iteration(0, 2))
    mirror = follow(folder)
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join(lines[:-1]))  # the disk took the last line back
    mirror.step()
    assert mirror.step() == 0
    assert_files_follow(folder)


def test_records_that_cannot_be_trusted_are_named(folder):
    append(folder, opened(), started(0))
    folder.records.write_bytes(folder.records.read_bytes() + b"garbage\n")
    mirror = TensorBoardMirror(folder)
    mirror.attach()
    with pytest.raises(RecordError, match=r"line 3: must be JSON.*Fix: "):
        mirror.step()


def test_sync_writes_them_on_request_and_from_then_on(folder, monkeypatch):
    monkeypatch.setattr(syncing, "sync_mlflow", lambda *_, **__: SyncReport(records=0, runs=0, behind=0))
    append(folder, opened(), *whole_trial(0), closed())
    assert len(sync_study(folder)) == 1
    assert not folder.tensorboard.exists()
    said = "TensorBoard's event files are up to date: 9 records read, 1 trials there."
    assert sync_study(folder, tensorboard=True) == [said]
    append(folder, opened(2), *whole_trial(1), closed(session=2))
    assert sync_study(folder)[1:] == ["TensorBoard's event files are up to date: 18 records read, 2 trials there."]
    assert_files_follow(folder)
    assert len(sync_study(folder, tracking_uri=f"sqlite:///{folder.path}/copy.db")) == 1


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
