"""The study folder never touches what is not its own; a packed copy of it says the same, and nothing of the machine."""

import json
import lzma
import os
from pathlib import Path

import pytest

from study.errors import RecordError
from study.records import folder as folder_module
from study.records.derived import pack
from study.records.folder import StudyFolder, StudyIdentity, unpack_policy
from study.records.records import RecordLog, read_lines
from tests import synthetic
from tests.driven import policy
from tests.values import replace

IDENTITY = StudyIdentity(
    format=1, study_id="a", name="n", created=0.0, tracking_uri="sqlite:////x", space="s", spec={}, digest="d"
)


@pytest.fixture
def folder(tmp_path):
    return StudyFolder(tmp_path / "studies" / "n")


@pytest.mark.parametrize("file", ["chapter1.tex", "records.jsonl", "space.yaml"])
def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path, file):
    (tmp_path / file).write_text("precious")
    with pytest.raises(RecordError, match="needs an empty folder"):
        StudyFolder(tmp_path).prepare()
    assert (tmp_path / file).read_text() == "precious"


def test_forgetting_a_first_start_removes_its_own_files_only(folder, tmp_path, monkeypatch):
    folder.prepare()
    folder.make_tensorboard()
    (folder.path / ".study.json.0a1b2c3d.draft").write_text("{")
    folder.prepare()  # after a kill before the identity was written
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: os.strerror(28) and (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(RecordError, match="full"):
            folder.write(IDENTITY, "space")
    folder.write(IDENTITY, "space")
    mine = ["mine.txt", ".space.yaml.swp"]
    for name in mine:
        (folder.path / name).write_text("precious")
    folder.forget()
    assert {entry.name for entry in folder.path.iterdir()} == set(mine)
    for name in mine:
        (folder.path / name).unlink()
    folder.forget()
    assert not (tmp_path / "studies").exists()


def test_only_the_owner_may_look_into_a_study(folder):
    folder.path.mkdir(parents=True)
    folder.path.chmod(0o755)  # it was open to others
    folder.prepare()
    folder.write(IDENTITY, "space")
    assert folder.path.stat().st_mode & 0o077 == folder.identity_file.stat().st_mode & 0o077 == 0
    assert folder.identity() == IDENTITY
    folder.identity_file.write_text(json.dumps(json.loads(folder.identity_file.read_text()) | {"format": 2, "ray": 3}))
    with pytest.raises(RecordError, match=r"of format 1, got format 2\. Fix: Use the version"):
        folder.identity()


def test_a_power_cut_takes_no_name_of_what_was_written(folder, monkeypatch):
    """A file that is on the disk is lost where its name in the folder is not."""
    names, sync = {}, os.fsync

    def synced(number):
        place = Path(f"/proc/self/fd/{number}").readlink()
        if place.is_dir():
            names[place] = {entry.name for entry in place.iterdir()}
        sync(number)

    monkeypatch.setattr(os, "fsync", synced)
    folder.prepare()
    folder.write(IDENTITY, "space")
    RecordLog(folder.records).close()
    unpack_policy(policy({"weights": b"abc"}), folder.checkpoint(0))
    assert folder.path.name in names[folder.path.parent]
    assert names[folder.path] == {entry.name for entry in folder.path.iterdir()}
    assert names[folder.checkpoints] == {"trial_00000"}


def test_a_resume_writes_the_space_file_that_a_killed_first_start_left_out(folder, monkeypatch):
    folder.prepare()

    def killed(path, text):
        write(path, text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        write = folder_module.write_atomically
        patched.setattr(folder_module, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.write(IDENTITY, "space")
    assert (folder.exists(), folder.space_file.exists()) == (True, False)
    folder.write(changed := replace(IDENTITY, tracking_uri="sqlite:////y"), "space")
    folder.write(changed, "another")
    assert folder.identity() == changed
    assert folder.space_file.read_text() == "space"


def test_a_packed_study_has_the_same_records_but_for_paths_and_can_go_on_once_it_is_unpacked(tmp_path):
    study = synthetic.make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/secret/mlflow.db")
    words = ["/home/someone/run_study.py", "--out", "/scratch/x/studies", f"--tracking-uri=sqlite:///{tmp_path}/m.db"]
    begun = synthetic.opened()
    begun = replace(begun, provenance={**begun.provenance, "command": [*words, "30m"]})
    synthetic.append(study, begun, *synthetic.whole_trial(0), synthetic.closed())
    packed = pack(study, tmp_path / "copy")
    before, after = (list(read_lines(each.records)) for each in (study, packed))
    assert [line.time for line in before] == [line.time for line in after]
    assert [line.record for line in before[1:]] == [line.record for line in after[1:]]
    command = ["run_study.py", "--out", "studies", "--tracking-uri=sqlite:m.db", "30m"]
    assert after[0].record.provenance["command"] == command
    assert packed.identity().digest == study.identity().digest
    raw = lzma.decompress(packed.packed_records.read_bytes())
    assert not any(word in raw.decode() + packed.identity_file.read_text() for word in ("someone", "scratch", "secret"))
    with pytest.raises(RecordError, match=r"can be read only\. Fix: Copy the folder"):
        packed.check_unpacked()
    with pytest.raises(RecordError, match="needs an empty folder"):
        pack(study, tmp_path / "copy")
    packed.packed_records.unlink()
    (packed.path / "records.jsonl").write_bytes(raw)
    packed.check_unpacked()
    with RecordLog(packed.records) as log:
        assert log.append(synthetic.opened(2)).seq == len(before)
    identity = study.identity()
    for given in ({"config_args": "--hf-token s3cret"}, {"config_kwargs": {"hub": {"hf_token": '"s3cret'}}}):
        study.write(replace(identity, spec={**identity.spec, **given}), "")
        with pytest.raises(RecordError, match="must hold no secret"):
            pack(study, tmp_path / "secret")
        assert not (tmp_path / "secret").exists()
