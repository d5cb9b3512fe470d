"""The study folder never touches what is not its own."""

import json
import os
from pathlib import Path

import pytest

from study.driver.opening import RunOptions, continuing, write_identity
from study.errors import RecordError
from study.records import folder as folder_module
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import ledger_of
from study.records.log import RecordLog
from tests import synthetic
from tests.values import replace

IDENTITY = StudyIdentity(
    format=1, study_id="a", name="n", created=0.0, tracking_uri="sqlite:////x", space="s", spec={}, digest="d"
)


@pytest.mark.parametrize("file", ["chapter1.tex", "records.jsonl", "space.yaml"])
def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path, file):
    (tmp_path / file).write_text("precious")
    with pytest.raises(RecordError, match="needs an empty folder"):
        StudyFolder(tmp_path).prepare()
    assert (tmp_path / file).read_text() == "precious"


def test_forgetting_a_first_start_removes_its_own_files_only(tmp_path):
    folder = StudyFolder(tmp_path / "studies" / "n")
    folder.prepare()
    folder.create(IDENTITY, "space")
    mine = ["mine.txt", ".space.yaml.swp"]
    for name in mine:
        (folder.path / name).write_text("precious")
    folder.forget()
    assert {entry.name for entry in folder.path.iterdir()} == set(mine)
    for name in mine:
        (folder.path / name).unlink()
    folder.forget()
    assert not (tmp_path / "studies").exists()


def test_only_the_owner_may_look_into_a_study(tmp_path):
    folder = StudyFolder(tmp_path / "n")
    folder.path.mkdir()
    folder.path.chmod(0o755)  # it was open to others
    folder.prepare()
    folder.create(IDENTITY, "space")
    assert folder.path.stat().st_mode & 0o077 == 0
    assert folder.identity_file.stat().st_mode & 0o077 == 0
    assert folder.identity() == IDENTITY


def test_a_study_of_a_later_version_is_not_called_damaged(tmp_path):
    folder = StudyFolder(tmp_path / "n")
    folder.prepare()
    folder.create(IDENTITY, "space")
    later = json.loads(folder.identity_file.read_text()) | {"format": 2, "ray": "3.0"}
    folder.identity_file.write_text(json.dumps(later))
    with pytest.raises(RecordError, match=r"this version reads format 1, got 2\. Fix: Use the version"):
        folder.identity()


def test_an_open_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "chmod", refuse)  # that of an owner alone
    with pytest.raises(RecordError, match=r"must be writable \(Operation not permitted\)\. Fix: Choose"):
        StudyFolder(tmp_path).prepare()


def test_a_first_start_that_was_killed_or_met_a_full_disk_is_no_obstacle(tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path / "n")
    folder.prepare()
    for draft in (".study.json.0a1b2c3d.draft", ".space.yaml.0a1b2c3d.draft"):
        (folder.path / draft).write_text("{")  # killed
    folder.prepare()
    folder.forget()
    assert not folder.path.exists()

    def full(number):
        raise OSError(28, "No space left on device")

    folder.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RecordError, match="No space left on device"):
            folder.create(IDENTITY, "space")
    assert not list(folder.path.iterdir())


def test_a_power_cut_takes_no_name_of_what_was_written(tmp_path, monkeypatch):
    """A file that is on the disk is lost where its name in the folder is not."""
    names, sync = {}, os.fsync

    def synced(number):
        place = Path(f"/proc/self/fd/{number}").readlink()
        if place.is_dir():
            names[place] = {entry.name for entry in place.iterdir()}
        sync(number)

    monkeypatch.setattr(os, "fsync", synced)
    folder, policy = StudyFolder(tmp_path / "n"), tmp_path / "policy"
    policy.mkdir()
    folder.prepare()
    folder.create(IDENTITY, "space")
    RecordLog(folder.records).close()
    folder_module.unpack_policy(folder_module.archived(policy), folder.checkpoint(0))
    assert folder.path.name in names[tmp_path]
    assert names[folder.path] == {entry.name for entry in folder.path.iterdir()}
    assert names[folder.checkpoints] == {"trial_00000"}


def test_a_resume_writes_the_space_file_that_a_killed_first_start_left_out(tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path / "n")
    folder.prepare()
    options = RunOptions(name="n", space_text="environment: {}\n", resume=True)
    with monkeypatch.context() as patched:
        write = folder_module.write_atomically
        patched.setattr(folder_module, "write_atomically", lambda path, text: write(path, text) or killed())
        with pytest.raises(KeyboardInterrupt):
            folder.create(IDENTITY, options.space_text)
    assert folder.exists()
    assert not folder.space_file.exists()
    write_identity(folder, IDENTITY, options, resumed=True)
    assert folder.space_file.read_text() == options.space_text
    write_identity(folder, IDENTITY, replace(options, space_text="another"), resumed=True)
    assert folder.space_file.read_text() == options.space_text


def killed():
    raise KeyboardInterrupt


ENDED = [*synthetic.whole_trial(2, attempt=2), synthetic.closed()]


@pytest.mark.parametrize(
    ("records", "asked", "line"),
    [
        ([synthetic.closed("stopped")], 4, "Continuing: 2 of 4 trials ended; 1 runs again."),
        (ENDED, 3, "Complete: 3 of 3 trials ended. A higher --trials extends it."),
        (ENDED, None, "Complete: 3 of 3 trials ended."),
    ],
)
def test_a_resume_says_how_far_the_study_is(tmp_path, records, asked, line):
    folder = synthetic.make_folder(tmp_path / "demo")
    synthetic.append(folder, replace(synthetic.opened(), num_trials=3), *synthetic.whole_trial(0))
    synthetic.append(folder, *synthetic.whole_trial(1, "failed"), *synthetic.whole_trial(2, "interrupted"), *records)
    spec = folder.identity().parse()
    spec = spec.model_copy(update={"search": spec.search.model_copy(update={"num_trials": asked})})
    assert continuing(spec, ledger_of(folder.records)) == line
