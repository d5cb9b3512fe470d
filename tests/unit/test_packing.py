"""A packed study says what the study says, and nothing of the machine."""

import lzma

import pytest

from study.errors import RecordError
from study.records.folder import StudyFolder
from study.records.log import RecordLog
from study.records.packing import pack, unpacked
from study.records.records import Iteration, StudyOpened, read_lines
from tests.synthetic import append, closed, iteration, make_folder, opened, whole_trial
from tests.values import replace


@pytest.fixture
def folder(tmp_path):
    made = make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/secret/mlflow.db")
    record = opened()
    words = [
        "/home/someone/run_study.py",
        "--out",
        "/scratch/x/studies",
        f"--tracking-uri=sqlite:///{tmp_path}/m.db",
        "30m",
    ]
    append(made, replace(record, provenance={**record.provenance, "command": words}), *whole_trial(0), closed())
    return made


def test_the_records_are_the_same_but_for_paths(folder, tmp_path):
    packed = pack(folder, tmp_path / "copy")
    before, after = (list(read_lines(each.records)) for each in (folder, packed))
    assert [line.time for line in before] == [line.time for line in after]
    assert [line.record for line in before[1:]] == [line.record for line in after[1:]]
    first = after[0].record
    assert isinstance(first, StudyOpened)
    assert first.provenance["command"][0] == "run_study.py"
    assert first.provenance["command"][2] == "studies"
    assert first.provenance["command"][4] == "30m"
    assert packed.identity().digest == folder.identity().digest
    texts = [lzma.decompress(packed.packed_records.read_bytes()).decode(), packed.identity_file.read_text()]
    for text in texts:
        assert "someone" not in text
        assert "scratch" not in text
        assert str(tmp_path) not in text


@pytest.mark.parametrize(
    "given",
    [
        {"config_args": "--hf-token s3cret"},
        {"config_kwargs": {"hf_token": "s3cret"}},
        {"config_args": 2, "config_kwargs": {"hub": {"hf_token": '"s3cret'}}},
        {"script": {"settings": {"env_config": {"hf_token": "s3cret"}}}},
    ],
)
def test_a_secret_among_a_script_s_arguments_is_not_published(folder, tmp_path, given):
    identity = folder.identity()
    folder.rewrite(replace(identity, spec={**identity.spec, **given}))
    with pytest.raises(RecordError, match="must hold no secret") as refused:
        pack(folder, tmp_path / "copy")
    assert "s3cret" not in str(refused.value)
    assert not (tmp_path / "copy").exists()


def test_fewer_digits_change_iterations_by_less_than_they_say(folder, tmp_path):
    append(folder, iteration(0, 4, iteration_time_s=0.123456789012, kl=None))
    packed = pack(folder, tmp_path / "copy", digits=7)
    before, after = (list(read_lines(each.records)) for each in (folder, packed))
    assert after[-1].record.metrics["iteration_time_s"] == 0.1234568
    assert after[-1].record.metrics["kl"] is None
    for one, other in zip(before[1:], after[1:], strict=True):
        if isinstance(one.record, Iteration):
            for name, value in one.record.metrics.items():
                assert other.record.metrics[name] == (None if value is None else pytest.approx(value, rel=1e-6))
        else:
            assert one.record == other.record


def test_a_packed_study_is_not_written_to(folder, tmp_path):
    packed = pack(folder, tmp_path / "copy")
    with pytest.raises(RecordError, match=r"can be read only\. Fix: Copy the folder"):
        unpacked(packed)
    assert unpacked(folder) is folder


def test_a_target_that_holds_something_is_refused(folder, tmp_path):
    pack(folder, tmp_path / "copy")
    with pytest.raises(RecordError, match="needs an empty folder"):
        pack(folder, tmp_path / "copy")


def test_unpacking_brings_back_a_study_that_can_go_on(folder, tmp_path):
    packed = pack(folder, tmp_path / "copy")
    raw = lzma.decompress(packed.packed_records.read_bytes())
    packed.packed_records.unlink()
    (packed.path / "records.jsonl").write_bytes(raw)
    with RecordLog(StudyFolder(packed.path).records) as log:
        assert log.append(closed()).seq == len(list(read_lines(folder.records)))
