"""What every mirror promises: each record arrives, to the effect of exactly once, whatever is killed or away.

The places are real: MLflow on SQLite, Optuna's journal, event files of TensorBoard.
"""

import contextlib
import fcntl
import os
import signal

import optuna
import pytest
from mlflow import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from study.cli.commands import sync as sync_command
from study.errors import ClusterError, RecordError
from study.mirrors import mirror as mirror_module
from study.mirrors import process
from study.mirrors.mirror import OptunaMirror, TensorBoardMirror
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.process import MirrorProcess, mirrors_of, sync
from study.records.ledger import ledger_of
from study.records.records import TrialStarted
from tests import holdup
from tests.event_files import assert_files_follow, event_files, scalars
from tests.integration.mlflow_tools import assert_mirrored, children, look, parent
from tests.spaces import throughput_spec
from tests.synthetic import append, closed, ended, iteration, make_folder, opened, started, whole_trial
from tests.waiting import until


class Mlflow:
    """An MLflow on SQLite."""

    kind = MlflowMirror
    names = ("create_run", "log_batch", "set_terminated", "update_run", "set_tag", "delete_run", "log_artifact")
    writes = tuple((MlflowClient, name) for name in names)

    def __init__(self, place):
        self.path = self.database = place / "mlflow.db"

    def shown(self, folder):
        """Return all that the place holds, without what differs from one rebuild to the next."""
        return {run.key: run for run in look(self.database)}

    def assert_follows(self, folder):
        """The place holds what the records say, by a second implementation, and nothing else."""
        assert_mirrored(folder, self.database)
        state, names = ledger_of(folder.records), {"finished": "FINISHED", "failed": "FAILED", "complete": "FINISHED"}
        shown = {trial: run.status for (trial, _), run in children(self.database).items()}
        assert shown == {trial: names.get(row.status, "KILLED") for trial, row in state.rows.items()}
        assert parent(self.database).status == names.get(state.closed and state.closed.reason, "KILLED")


class Optuna:
    """The journal in the study's folder, as `optuna-dashboard` opens it."""

    kind = OptunaMirror
    writes = ((JournalStorage, "create_new_study"), (JournalStorage, "create_new_trial"))

    def __init__(self, place):
        self.path = place / "demo" / "optuna.journal"

    def trials(self, folder):
        journal = JournalStorage(JournalFileBackend(str(folder.optuna_journal)))
        trials = optuna.load_study(study_name="demo-id-demo", storage=journal).trials
        found = {each.user_attrs["trial"]: each for each in trials}
        assert len(found) == len(trials), "a trial is there twice"
        return found

    def shown(self, folder):
        return {
            number: (each.state, each.values, each.params, each.user_attrs, each.datetime_complete)
            for number, each in self.trials(folder).items()
        }

    def assert_follows(self, folder):
        rows = {number: row for number, row in ledger_of(folder.records).rows.items() if row.ended}
        trials = self.trials(folder)
        assert {number: each.params["lr"] for number, each in trials.items()} == {
            number: row.proposed["lr"] for number, row in rows.items()
        }
        for number, row in rows.items():
            assert trials[number].values == ([row.summary["score"]] if row.status == "finished" else None)
            assert trials[number].state == (TrialState.COMPLETE if row.status == "finished" else TrialState.FAIL)
        by_number = sorted(trials, key=lambda number: trials[number].number)
        assert by_number == sorted(rows, key=lambda number: rows[number].ended_at)


class TensorBoard:
    """Event files below the study's folder."""

    kind = TensorBoardMirror
    writes = ((mirror_module, "write_events"),)

    def __init__(self, place):
        self.path = place / "demo" / "tensorboard"

    def shown(self, folder):
        return {name: (scalars(file), file.name[-12:]) for name, file in event_files(folder).items()}

    def assert_follows(self, folder):
        assert_files_follow(folder)


PLACES = (Mlflow, Optuna, TensorBoard)
STORY = (
    *(opened(), *whole_trial(0, length=2), *whole_trial(1, "failed", length=1)),
    *(*whole_trial(2, "interrupted", length=1), closed("stopped")),
    *(opened(2), started(2, 2), started(3), iteration(2, 1, 2), iteration(3, 1), ended(3, "failed")),
    *(iteration(2, 2, 2), ended(2, attempt=2), closed(session=2)),
)
"""Two sessions: a trial that finished, two that failed, one that was interrupted and ran again."""


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__)
def make(request, empty_database):
    """Return a function that makes a study's folder and its place."""

    def make(path):
        path.mkdir(exist_ok=True)
        (path / "mlflow.db").write_bytes(empty_database)
        place = request.param(path)
        folder = make_folder(path / "demo", f"sqlite:///{path}/mlflow.db")
        if request.param is TensorBoard:
            folder.make_tensorboard()
        return folder, place

    return make


@pytest.fixture
def study(make, tmp_path):
    return make(tmp_path)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(process, "POLL_S", 0.05)
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def follow(mirror):
    while mirror.step():
        pass


@contextlib.contextmanager
def writing(place, change):
    """Replace every call that writes to the place by `change(call)`."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in place.writes:
            patch.setattr(owner, name, change(getattr(owner, name)))
        yield


def away(call):
    def refusing(*_, **__):
        raise ConnectionError("away")

    return refusing


def test_a_study_is_shown_completely_and_a_repetition_changes_nothing(study):
    folder, place = study
    append(folder, *STORY)
    whole = folder.records.read_bytes()
    folder.records.write_bytes(whole + b'{"schema":1,"seq')  # a line that is being written
    assert place.kind(folder).behind == len(STORY)
    folder.records.write_bytes(whole)
    assert sync(place.kind(folder)) == len(STORY)
    place.assert_follows(folder)
    before = place.shown(folder)
    assert sync(place.kind(folder)) == 0
    assert place.shown(folder) == before
    place.kind(folder).state_file.unlink()
    assert sync(place.kind(folder)) == len(STORY)
    assert place.shown(folder) == before


class _Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("fault", [_Killed, TimeoutError])
def test_a_kill_or_a_lost_answer_after_any_write_loses_and_doubles_nothing(make, tmp_path, monkeypatch, fault):
    """The place took the call and the mirror never knew: at every call, whatever came before."""
    folder, place = make(tmp_path / "killed")
    append(folder, *STORY)
    other, undisturbed = make(tmp_path / "whole")
    other.records.write_bytes(folder.records.read_bytes())
    other.identity_file.write_bytes(folder.identity_file.read_bytes().replace(b"/killed/", b"/whole/"))
    sync(place.kind(other))
    calls = fatal = kills = 0

    def deadly(call):
        def dying(*arguments, **options):
            nonlocal calls
            result = call(*arguments, **options)
            calls += 1
            if calls == fatal:
                raise fault
            return result

        return dying

    monkeypatch.setattr(place.kind, "chunk", 1)  # the next record is the next chance to die
    last, done, mirror = None, False, place.kind(folder)
    with writing(place, deadly):
        while not done:
            if fault is _Killed:
                mirror = place.kind(folder)
            # MLflow's cursor says what is there; event files and the journal begin anew.
            further = place.kind is MlflowMirror and mirror.behind != last
            calls, fatal, last = 0, 1 if further else fatal + 1, mirror.behind
            assert kills < 2000
            try:
                while mirror.step():
                    calls, fatal = (0, 1) if place.kind is MlflowMirror else (calls, fatal)
                mirror.end()
                done = True
            except fault:
                kills += 1
    assert kills >= {OptunaMirror: 5, TensorBoardMirror: 20, MlflowMirror: 60}[place.kind]
    place.assert_follows(folder)
    assert place.shown(folder) == undisturbed.shown(other)


def test_a_place_that_is_away_gets_everything_once_it_is_back(study):
    folder, place = study
    append(folder, *STORY[:6])
    mirror = place.kind(folder)
    follow(mirror)
    append(folder, *STORY[6:])
    with writing(place, away):
        with pytest.raises(ConnectionError):
            follow(mirror)
        assert mirror.behind > 0
        with pytest.raises(ClusterError, match=r"must take the study's records, got ConnectionError: away"):
            sync(place.kind(folder))
    follow(mirror)
    assert mirror.behind == 0
    mirror.end()
    place.assert_follows(folder)


def test_records_that_became_fewer_are_followed_anew(study):
    """A power cut takes what was not on the disk, even if the place has got it."""
    folder, place = study
    append(folder, opened(), started(0), iteration(0, 1), iteration(0, 2))
    mirror = place.kind(folder)
    follow(mirror)
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join(lines[:3]))
    mirror = place.kind(folder)
    follow(mirror)
    append(folder, opened(2), *whole_trial(0, attempt=2), closed(session=2))
    follow(mirror)
    if place.kind is not MlflowMirror:  # which shows of the attempt that was replaced what it had got
        place.assert_follows(folder)


@pytest.mark.parametrize("chunk", [1, 500])
@pytest.mark.parametrize("damage", [b"garbage\n", b"garbage"])
def test_damaged_records_are_named_and_not_sent_again(study, monkeypatch, chunk, damage):
    folder, place = study
    append(folder, opened(), started(0))
    folder.records.write_bytes(folder.records.read_bytes() + damage)
    monkeypatch.setattr(place.kind, "chunk", chunk)
    calls = iter([place.kind.open])  # one alone: to begin anew would meet the damage again, for ever
    monkeypatch.setattr(place.kind, "open", lambda self: next(calls)(self))
    with pytest.raises(RecordError, match="line 3"):
        sync(place.kind(folder))


def test_only_one_process_sends_and_a_sync_says_what_became_of_each_place(tmp_path, monkeypatch, capsys):
    folder = make_folder(tmp_path / "demo", "sqlite:///mlflow.db")
    folder.make_tensorboard()
    append(folder, opened())
    with (folder.path / ".mirror.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match=r"only one process.*Fix: "):
            sync(mirrors_of(folder)[0])

    def catch_up(mirror):
        if isinstance(mirror, TensorBoardMirror):
            return 2
        raise ClusterError(f"{mirror.name} is away.")

    monkeypatch.setattr("study.mirrors.process.sync", catch_up)
    with pytest.raises(ClusterError, match="MLflow is away"):
        sync_command(folder.path)
    said = ["TensorBoard's folder is up to date: 2 records sent.", "Optuna's journal is away."]
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize("left", [b"garbage\n", b'{"op_code": 4, "wor', b""])
def test_a_journal_is_made_anew_and_shows_what_optuna_was_asked_for(tmp_path, left):
    assert not OptunaMirror(make_folder(tmp_path / "times", of=throughput_spec())).address  # nothing is tuned
    records = list(holdup.study_records(space := holdup.holdup_spec()))
    folder = holdup.write_study(tmp_path / "demo", space, records)
    started = [record for record in records if isinstance(record, TrialStarted)]
    asked = {record.trial for record in started if record.optuna_number is not None}
    assert 0 < len(asked) < len(started)
    for _ in range(2):
        sync(OptunaMirror(folder))
        assert Optuna(tmp_path).trials(folder).keys() == asked
        folder.optuna_journal.write_bytes(folder.optuna_journal.read_bytes() + left)
        folder.optuna_journal.with_name("optuna.journal.lock").touch()  # of a mirror that was killed


WATCH = """
import os, sys

def watch(event, arguments):
    if event == "import" and arguments[0] in ("mlflow", "optuna"):
        os.write(log, f"{{arguments[0]}}:{{os.getpriority(os.PRIO_PROCESS, 0)}} ".encode())

log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(watch)
"""
"""Code that notes the nice value with which a process imports the libraries of its mirrors."""


@pytest.mark.minutes
def test_one_process_follows_a_driver_for_all_places_and_is_replaced_where_it_is_killed(
    tmp_path, empty_database, monkeypatch
):
    """Signals to a whole job do not end it, only SIGKILL does. It lets trials go first once its libraries are there."""
    (tmp_path / "mlflow.db").write_bytes(empty_database)
    folder = make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")
    folder.make_tensorboard()
    append(folder, opened(), *whole_trial(0, length=12))
    (tmp_path / "sitecustomize.py").write_text(WATCH.format(log=str(tmp_path / "imports")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    mirrors = MirrorProcess(folder)
    mirrors.wait_ready()
    here = os.getpriority(os.PRIO_PROCESS, 0)
    until(lambda: os.getpriority(os.PRIO_PROCESS, mirrors.pid) > here)  # trials go first
    assert set((tmp_path / "imports").read_text().split()) == {f"mlflow:{here}", f"optuna:{here}"}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(mirrors.pid, number)
    append(folder, *whole_trial(1, length=12))
    append(folder, closed())
    os.kill(mirrors.pid, signal.SIGKILL)  # an instant before `finish`, which starts another one
    assert mirrors.finish(60) == []
    assert mirrors.finish(0) == []
    for kind in PLACES:
        kind(tmp_path).assert_follows(folder)
