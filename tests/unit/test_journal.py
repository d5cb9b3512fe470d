"""The journal of one writer: what it writes is what Optuna's own backend writes, and a full disk tears no line."""

import os

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from study.mirrors.journal import SoleWriterBackend


def written(path, backend):
    study = optuna.create_study(storage=JournalStorage(backend(str(path))), study_name="s", direction="maximize")
    for number in range(3):
        trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
        trial.set_user_attr("trial", number)
        study.tell(trial, 0.5 * number)
    return study


def test_optunas_own_backend_reads_it(tmp_path):
    study = written(tmp_path / "journal", SoleWriterBackend)
    again = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(tmp_path / "journal"))))
    assert [(trial.number, trial.value, trial.params, trial.user_attrs) for trial in again.trials] == [
        (trial.number, trial.value, trial.params, trial.user_attrs) for trial in study.trials
    ]
    assert [trial.value for trial in again.trials] == [0.0, 0.5, 1.0]


def test_it_takes_no_lock_and_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("not in Tune's event loop")

    monkeypatch.setattr(os, "fsync", never)
    monkeypatch.setattr(os, "symlink", never)
    assert len(written(tmp_path / "journal", SoleWriterBackend).trials) == 3


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    study = written(tmp_path / "journal", SoleWriterBackend)
    whole, write = (tmp_path / "journal").read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, raw: write(file, raw[:7]))
    with pytest.raises(OSError, match="No space left"):
        study.ask()
    monkeypatch.undo()
    assert (tmp_path / "journal").read_bytes() == whole
