"""A study's trials in an Optuna storage: those on record, each once, whatever is killed or away. On SQLite."""

import json

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from study.cli.syncing import sync_optuna, sync_study
from study.driver.opening import RunOptions, new_identity, resumed_identity
from study.errors import RecordError, TrackingError
from study.mirrors.mirror_content import identity_text
from study.mirrors.mirror_process import MirrorProcess
from study.mirrors.mirror_target import OPTUNA
from study.mirrors.optuna_mirror import OptunaMirror, name_in_storage
from study.records.folder import StudyFolder, StudyIdentity
from study.records.packing import pack
from study.records.records import TrialStarted
from tests import holdup
from tests.integration.mlflow_tools import wait_until
from tests.spaces import spec
from tests.synthetic import append, opened
from tests.unit.test_conductor import Session, optuna_trials


def make(path, storage, space=None):
    """Create a study whose journal's name is that of `Session`."""
    space = space or spec(execution="real", search__sampler="tpe")
    folder = StudyFolder(path)
    folder.prepare()
    identity = StudyIdentity(
        format=1,
        study_id="s",
        name="demo",
        created=1_700_000_000.0,
        tracking_uri="sqlite:////nowhere.db",
        space="space.yaml",
        spec=space.to_json(),
        digest=space.digest(),
        optuna_storage=storage,
    )
    folder.create(identity, "environment: {}\n")
    return folder, space


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path}/optuna.db"


def shown(storage, name="demo-s"):
    return optuna.load_study(study_name=name, storage=storage).trials


def content(trials):
    """Return what Optuna knows of each trial, but for its own numbers and clocks."""
    found = {trial.user_attrs["trial"]: trial for trial in trials}
    assert len(found) == len(trials)
    return {
        number: (trial.state, trial.values, trial.params, trial.distributions, trial.user_attrs, trial.constraints)
        for number, trial in found.items()
    }


@pytest.mark.parametrize("objective", [pytest.param("final_return", marks=pytest.mark.heavy), "return_and_cpu_s"])
def test_the_storage_shows_what_the_journal_knows(tmp_path, storage, objective):
    folder, space = make(tmp_path / "demo", storage, spec(execution="real", search__objective=objective))
    session = Session(folder.path, space)
    session.iterate(trial := session.conductor.next_trial().trial)
    session.conductor.end(trial, "failed", "planted")
    session.run_all()
    assert sync_optuna(folder, storage) == (6, 6)
    assert sync_optuna(folder, storage) == (0, 6)
    assert content(shown(storage)) == content(optuna_trials(folder.path))
    ended = [trial.user_attrs["trial"] for trial in shown(storage)]
    assert ended[0] == trial  # in the order of their ends
    assert all(trial.datetime_start <= trial.datetime_complete for trial in shown(storage))
    loaded = optuna.load_study(study_name="demo-s", storage=storage)
    assert len(loaded.directions) == (1 if objective == "final_return" else 2)


def test_trials_that_optuna_was_not_asked_for_are_not_shown(tmp_path, storage):
    space = holdup.holdup_spec()
    records = list(holdup.study_records(space))
    folder = holdup.write_study(tmp_path / "demo", space, records)
    started = [record for record in records if isinstance(record, TrialStarted)]
    asked = {record.trial for record in started if record.optuna_number is not None}
    assert 0 < len(asked) < len(started)
    assert sync_optuna(folder, storage) == (len(asked), len(asked))
    assert {trial.user_attrs["trial"] for trial in shown(storage, "demo-id-demo")} == asked


def test_a_trial_under_way_is_shown_when_it_has_ended(tmp_path, storage):
    folder, space = make(tmp_path / "demo", storage)
    session = Session(folder.path, space)
    first = session.conductor.next_trial().trial
    assert sync_optuna(folder, storage) == (0, 0)
    session.finish(first)
    assert sync_optuna(folder, storage) == (1, 1)
    assert [trial.state for trial in shown(storage)] == [TrialState.COMPLETE]


def test_an_answer_that_was_lost_doubles_nothing(tmp_path, storage, monkeypatch):
    """The database took the trial, and the mirror never heard of it: at every single trial."""
    folder, space = make(tmp_path / "demo", storage)
    Session(folder.path, space).run_all()
    original = RDBStorage.create_new_trial

    def deaf(self, *arguments, **options):
        original(self, *arguments, **options)
        raise ConnectionError("lost")

    monkeypatch.setattr(RDBStorage, "create_new_trial", deaf)
    mirror = OptunaMirror(folder, storage)
    for left in range(6, 0, -1):
        mirror.attach()
        assert mirror.behind == left
        with pytest.raises(ConnectionError):
            mirror.step()
        assert not mirror.attached
    mirror.attach()
    assert (mirror.step(), mirror.behind) == (0, 0)
    mirror.close()
    assert sorted(trial.user_attrs["trial"] for trial in shown(storage)) == list(range(6))


def test_studies_of_one_name_share_a_storage(tmp_path, storage):
    for number in (1, 2):
        folder, space = make(tmp_path / str(number) / "demo", storage)
        identity = json.loads(folder.identity_file.read_text()) | {"study_id": f"id{number}"}
        folder.identity_file.write_text(json.dumps(identity))
        Session(folder.path, space).run_all()
        assert name_in_storage(folder.identity()) == f"demo-id{number}"
        sync_optuna(folder, storage)
    assert sorted(optuna.get_all_study_names(storage)) == ["demo-id1", "demo-id2"]
    assert [len(shown(storage, f"demo-id{number}")) for number in (1, 2)] == [6, 6]


def test_a_storage_that_knows_more_than_the_records_is_not_followed(tmp_path, storage):
    folder, space = make(tmp_path / "demo", storage)
    Session(folder.path, space).run_all()
    sync_optuna(folder, storage)
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join(lines[:-9]))
    with pytest.raises(RecordError, match=r"must hold every trial that Optuna's storage shows.*Fix: "):
        sync_optuna(folder, storage)
    optuna.delete_study(study_name="demo-s", storage=storage)  # the way out where the records are right
    sent, there = sync_optuna(folder, storage)
    assert sent == there < 6


@pytest.mark.heavy
def test_a_process_follows_the_study_and_survives_kills(tmp_path, storage):
    folder, space = make(tmp_path / "demo", storage)
    session = Session(folder.path, space)
    mirror = MirrorProcess(OPTUNA)
    mirror.start(folder, storage)
    mirror.wait_ready()
    for _ in range(2):
        session.finish(session.conductor.next_trial().trial)
    wait_until(lambda: len(shown(storage)) == 2)
    mirror.start(folder, storage)  # the first process is let go, or killed
    session.run_all()
    report = mirror.finish(30)
    assert report.drained, report
    assert content(shown(storage)) == content(optuna_trials(folder.path))


@pytest.mark.heavy
def test_a_storage_that_is_away_is_named_and_caught_up_with(tmp_path):
    """A folder in place of the database stands for a server that refuses."""
    place = tmp_path / "optuna.db"
    storage = f"sqlite:///{place}"
    folder, space = make(tmp_path / "demo", storage)
    session = Session(folder.path, space)
    place.mkdir()
    mirror = MirrorProcess(OPTUNA)
    mirror.start(folder, storage)
    wait_until(lambda: "OperationalError" in folder.mirror_log.read_text(), 60)
    with pytest.raises(TrackingError, match=r"Optuna's storage must accept the study, got OperationalError.*Fix: "):
        mirror.wait_ready(1)
    session.run_all()
    report = mirror.finish(3)
    assert (report.behind, report.drained) == (6, False)
    assert "unable to open database file" in report.reason
    place.rmdir()
    assert sync_study(folder, optuna_storage=storage) == ["Optuna's storage is up to date: 6 trials sent, 6 there."]


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
    folder.create(identity, "environment: {}\n")
    assert folder.identity() == identity
    assert "se/cret" in folder.identity_file.read_text()
    assert folder.identity_file.stat().st_mode & 0o077 == 0
    assert "cret" not in identity_text(identity)
    assert resumed_identity(folder, space, RunOptions(name="demo", out=tmp_path, resume=True)) == identity
    other = RunOptions(name="demo", out=tmp_path, resume=True, optuna_storage="postgresql://me:other@db/optuna")
    with pytest.raises(RecordError, match=r"--optuna-storage: a study keeps the one it began with \(postgresql://\*"):
        resumed_identity(folder, space, other)
    append(folder, opened())
    packed = pack(folder, tmp_path / "packed")
    assert packed.identity().optuna_storage is None
    with pytest.raises(TrackingError, match="Optuna storage: must be a database"):
        new_identity(space, RunOptions(name="demo", out=tmp_path, optuna_storage="http://127.0.0.1:5000"))


def test_a_study_without_a_storage_is_as_it_was(tmp_path):
    identity = new_identity(spec(), RunOptions(name="demo", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db"))
    assert "optuna_storage" not in identity.to_json()
