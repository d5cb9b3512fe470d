"""A study's trials in an Optuna storage: those on record, each once, whatever is killed or away. On SQLite."""

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from study.designs.proposals import value_of
from study.driver.opening import RunOptions, new_identity, resumed_identity
from study.errors import TrackingError
from study.mirrors.mlflow_mirror import identity_text
from study.mirrors.optuna_storage import OptunaMirror
from study.mirrors.process import sync
from study.records.derived import pack
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.records import TrialStarted
from tests import holdup
from tests.driven import Session
from tests.spaces import spec, throughput_spec
from tests.synthetic import append, make_folder, opened
from tests.values import replace


def make(path, storage, space=None):
    space = space or spec(execution="real", search__sampler="tpe")
    identity = {"study_id": "s", "created": 1_700_000_000.0, "optuna_storage": storage}
    return make_folder(path, of=space, **identity), space


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path}/optuna.db"


def shown(storage, name="demo-s"):
    return optuna.load_study(study_name=name, storage=storage).trials


def test_trials_that_optuna_was_not_asked_for_are_not_shown(tmp_path, storage):
    space = holdup.holdup_spec()
    records = list(holdup.study_records(space))
    folder = holdup.write_study(tmp_path / "demo", space, records)
    folder.write(replace(folder.identity(), optuna_storage=storage), "")
    started = [record for record in records if isinstance(record, TrialStarted)]
    asked = {record.trial for record in started if record.optuna_number is not None}
    assert 0 < len(asked) < len(started)
    sync(OptunaMirror(folder))
    assert {trial.user_attrs["trial"] for trial in shown(storage, "demo-id-demo")} == asked


def test_the_storage_shows_every_trial_as_the_sampler_knows_it(tmp_path, storage):
    folder, space = make(tmp_path / "demo", storage, spec(execution="real"))
    session = Session(folder.path, space)
    session.iterate(failed := session.conductor.next_trial().trial)
    session.conductor.end(failed, "failed", "planted")
    session.run_all()
    sync(OptunaMirror(folder))
    rows, trials = session.conductor.ledger.rows, shown(storage)
    for trial in trials:
        row = rows[trial.user_attrs["trial"]]
        assert trial.params == {**row.proposed, "num_env_runners": row.num_env_runners}
        assert trial.value == value_of(space, row)
        assert trial.user_attrs["seed"] == row.seed
        assert trial.datetime_start <= trial.datetime_complete
    assert [trial.state for trial in trials] == [TrialState.FAIL] + [TrialState.COMPLETE] * 5


@pytest.mark.parametrize("left", [b"garbage\n", b'{"op_code": 4, "wor', b""])
def test_without_a_storage_the_study_has_a_journal_that_is_made_anew(tmp_path, left):
    assert not OptunaMirror(make(tmp_path / "times", None, throughput_spec())[0]).address  # nothing is tuned
    folder, space = make(tmp_path / "at 10:00" / "demo", None)  # which is no URI
    Session(folder.path, space).run_all()
    sync(OptunaMirror(folder))
    folder.optuna_journal.write_bytes(folder.optuna_journal.read_bytes() + left)
    folder.optuna_journal.with_name("optuna.journal.lock").touch()  # of a mirror that was killed
    sync(OptunaMirror(folder))
    journal = JournalStorage(JournalFileBackend(str(folder.path / "optuna.journal")))
    assert len(optuna.load_study(study_name="demo-s", storage=journal).trials) == 6


def test_a_storage_that_knows_more_than_the_records_is_made_anew(tmp_path, storage):
    folder, space = make(tmp_path / "demo", storage)
    Session(folder.path, space).run_all()
    sync(OptunaMirror(folder))
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join(lines[:-9]))
    sync(OptunaMirror(folder))
    left = {row.trial for row in ledger_of(folder.records).rows.values() if row.ended}
    assert 0 < len(left) < 6
    assert {trial.user_attrs["trial"] for trial in shown(storage)} == left


def test_the_storage_is_part_of_what_a_study_is(tmp_path):
    space = spec()
    options = RunOptions(
        name="demo",
        out=tmp_path,
        tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
        optuna_storage="postgresql://me:se/cret@db/optuna",
    )
    folder = StudyFolder(tmp_path / "demo")
    identity = new_identity(space, options)
    folder.prepare()
    folder.write(identity, "environment: {}\n")
    assert folder.identity() == identity
    assert "se/cret" in folder.identity_file.read_text()
    assert folder.identity_file.stat().st_mode & 0o077 == 0
    arguments = {**identity.spec, "config_args": "--hf-token se/cret"}
    assert "cret" not in identity_text(replace(identity, spec=arguments))
    assert resumed_identity(folder, space, RunOptions(name="demo", out=tmp_path, resume=True)) == identity
    other = RunOptions(name="demo", out=tmp_path, resume=True, optuna_storage="postgresql://me:other@db/optuna")
    assert resumed_identity(folder, space, other) == replace(identity, optuna_storage=other.optuna_storage)
    append(folder, opened())
    packed = pack(folder, tmp_path / "packed")
    assert packed.identity().optuna_storage is None
    with pytest.raises(TrackingError, match="Optuna storage: must begin with one of"):
        new_identity(space, RunOptions(name="demo", out=tmp_path, optuna_storage="http://127.0.0.1:5000"))
