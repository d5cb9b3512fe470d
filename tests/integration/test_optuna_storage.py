"""What only Optuna's storage promises: it shows what the sampler knows, and its address belongs to the study."""

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from study.designs.proposals import value_of
from study.driver.opening import RunOptions, new_identity, resumed_identity
from study.errors import TrackingError
from study.mirrors.mirror import OptunaMirror
from study.mirrors.mlflow_mirror import identity_text
from study.mirrors.process import sync
from study.records.folder import StudyFolder, pack
from study.records.records import TrialStarted
from tests import holdup
from tests.driven import Session
from tests.spaces import spec, throughput_spec
from tests.synthetic import append, make_folder, opened
from tests.values import replace


def test_the_storage_shows_every_trial_as_the_sampler_knows_it(tmp_path):
    space, storage = spec(execution="real"), f"sqlite:///{tmp_path}/optuna.db"
    folder = make_folder(tmp_path / "demo", of=space, optuna_storage=storage)
    session = Session(folder.path, space)
    session.iterate(failed := session.conductor.next_trial().trial)
    session.conductor.end(failed, "failed", "planted")
    session.run_all()
    sync(OptunaMirror(folder))
    trials = optuna.load_study(study_name="demo-id-demo", storage=storage).trials
    for trial in trials:
        row = session.conductor.ledger.rows[trial.user_attrs["trial"]]
        assert trial.params == {**row.proposed, "num_env_runners": row.num_env_runners}
        assert (trial.value, trial.user_attrs["seed"]) == (value_of(space, row), row.seed)
        assert trial.datetime_start <= trial.datetime_complete
    assert [trial.state for trial in trials] == [TrialState.FAIL] + [TrialState.COMPLETE] * 5


@pytest.mark.parametrize("left", [b"garbage\n", b'{"op_code": 4, "wor', b""])
def test_a_journal_is_made_anew_and_shows_what_optuna_was_asked_for(tmp_path, left):
    assert not OptunaMirror(make_folder(tmp_path / "times", of=throughput_spec())).address  # nothing is tuned
    records = list(holdup.study_records(space := holdup.holdup_spec()))
    folder = holdup.write_study(tmp_path / "at 10:00" / "demo", space, records)  # which is no URI
    started = [record for record in records if isinstance(record, TrialStarted)]
    asked = {record.trial for record in started if record.optuna_number is not None}
    assert 0 < len(asked) < len(started)
    for _ in range(2):
        sync(OptunaMirror(folder))
        journal = JournalStorage(JournalFileBackend(str(folder.path / "optuna.journal")))
        trials = optuna.load_study(study_name="demo-id-demo", storage=journal).trials
        assert {trial.user_attrs["trial"] for trial in trials} == asked
        assert len(trials) == len(asked)
        folder.optuna_journal.write_bytes(folder.optuna_journal.read_bytes() + left)
        folder.optuna_journal.with_name("optuna.journal.lock").touch()  # of a mirror that was killed


def test_the_storage_is_part_of_what_a_study_is(tmp_path):
    space, uri, storage = spec(), f"sqlite:///{tmp_path}/mlflow.db", "postgresql://me:se/cret@db/optuna"
    identity = new_identity(space, RunOptions(name="demo", out=tmp_path, tracking_uri=uri, optuna_storage=storage))
    folder = StudyFolder(tmp_path / "demo")
    folder.prepare()
    folder.write(identity, "environment: {}\n")
    arguments = {**identity.spec, "config_args": "--hf-token se/cret"}
    assert "cret" not in identity_text(replace(identity, spec=arguments))
    assert resumed_identity(folder, space, RunOptions(name="demo", out=tmp_path, resume=True)) == identity
    other = RunOptions(name="demo", out=tmp_path, resume=True, optuna_storage="postgresql://me:other@db/optuna")
    assert resumed_identity(folder, space, other) == replace(identity, optuna_storage=other.optuna_storage)
    append(folder, opened())
    assert pack(folder, tmp_path / "packed").identity().optuna_storage is None
    with pytest.raises(TrackingError, match="Optuna storage: must begin with one of"):
        new_identity(space, RunOptions(name="demo", out=tmp_path, optuna_storage="http://127.0.0.1:5000"))
