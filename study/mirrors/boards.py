"""TensorBoard's event files and Optuna's storage, for which the engines are imported when they are opened."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from study.metrics import CUSTOM, METRICS
from study.mirrors.mirror import Mirror
from study.mirrors.tracking_uri import reach
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import ledger_of
from study.records.records import Line, TrialEnded, TrialStarted

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def tag_of(name: str) -> str:
    """Return the tag of a metric: its section and its name; TensorBoard shows a section of cards for each."""
    return name if name.startswith(CUSTOM) else f"{METRICS[name].section}/{name}"


class TensorBoardMirror(Mirror):
    """Writes one study to event files, a folder for each trial, below the study's own; needs no TensorBoard.

    Event files can be continued and not amended, so that each mirror writes them anew; the first event of a file lets a
    TensorBoard that reads meanwhile drop what it has seen. Metrics, names and steps are those of MLflow.
    """

    key, name, place = "tensorboard", "TensorBoard's folder", "TensorBoard folder"

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(folder)
        self._writers: dict[int, Any] = {}
        """Trial -> what writes the file of its latest attempt."""

    @property
    def address(self) -> str:
        """The study's folder of event files; empty where it keeps none."""
        return str(self.folder.tensorboard) if self.folder.tensorboard.is_dir() else ""

    def open(self) -> None:
        """Begin with the first record."""
        names = ("event_file_writer", "summary", "proto.event_pb2")
        self._files, self._summary, self._event = (import_module(f"tensorboardX.{name}") for name in names)
        self.close()
        self.folder.make_tensorboard()

    def send(self, lines: list[Line]) -> None:
        """Write what follows from some records."""
        for line, points in self.shown(lines):
            record, trial = line.record, getattr(line.record, "trial", -1)
            if isinstance(record, TrialStarted):
                self._start(record, line.time)
            elif (writer := self._writers.get(trial)) is not None:
                for point in points:
                    summary = self._summary.scalar(tag_of(point.key), point.value)
                    event = self._event.Event(wall_time=point.time_ms / 1000, step=point.step, summary=summary)
                    writer.write_event(event)
                if isinstance(record, TrialEnded):
                    self._writers.pop(trial).close()
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _start(self, record: TrialStarted, began: float) -> None:
        """Begin the attempt's file, in place of those of earlier attempts and mirrors."""
        if (earlier := self._writers.pop(record.trial, None)) is not None:
            earlier.close()
        path = self.folder.tensorboard / f"trial_{record.trial:05d}_r{record.num_env_runners}_s{record.seed}"
        path.mkdir(exist_ok=True)
        for file in path.glob("events.out.tfevents.*.study"):
            file.unlink(missing_ok=True)
        writer = self._files.EventsWriter(str(path / "events"), f".{record.attempt:05d}.study")
        first = self._event.SessionLog(status=self._event.SessionLog.START)
        writer.write_event(self._event.Event(wall_time=began, session_log=first))
        self._writers[record.trial] = writer


def name_in_storage(identity: StudyIdentity) -> str:
    """Return the name of the study in a database that other studies share: readable, and no other study's."""
    return f"{identity.name}-{identity.study_id}"


class OptunaMirror(Mirror):
    """Sends one study to a database, or to the journal file in its folder, for `optuna-dashboard`.

    Every trial is entered once it has ended, whole and in one transaction, so that the storage shows what is on record
    and nothing else. It makes no proposals: the sampler reads the records (`study.designs.proposals`).
    """

    key, name, place = "optuna", "Optuna's storage", "Optuna storage"

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(folder)
        self._storage: BaseStorage | None = None

    @property
    def address(self) -> str:
        """The storage that the study was started with, else its journal file; empty where nothing is tuned."""
        return self.identity.optuna_storage or (str(self.folder.optuna_journal) if self.spec.tuned else "")

    def open(self) -> None:
        """Find or create the study, see what is there, and begin with the first record.

        What follows from no record is made anew: the journal, and a study with trials that have not ended on record.
        """
        import optuna
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        from study.designs.proposals import TRIAL

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.close()
        if "://" in self.address:
            reach(self.address)
            # Before its use, a connection that a restart of the database broke is replaced.
            storage: BaseStorage = RDBStorage(self.address, engine_kwargs={"pool_pre_ping": True})
        else:  # its only writer; behind a torn line nothing could be read
            for file in (self.folder.optuna_journal, self.folder.path / "optuna.journal.lock"):
                file.unlink(missing_ok=True)
            lock = JournalFileOpenLock(self.address)
            storage = JournalStorage(JournalFileBackend(self.address, lock_obj=lock))
        self._storage, directions, name = (
            storage,
            [optuna.study.StudyDirection.MAXIMIZE],
            name_in_storage(self.identity),
        )
        try:
            self._study = storage.create_new_study(directions, name)
        except optuna.exceptions.DuplicatedStudyError:
            self._study = storage.get_study_id_from_name(name)
        trials = storage.get_all_trials(self._study, deepcopy=False)
        self._there = {trial.user_attrs[TRIAL] for trial in trials if TRIAL in trial.user_attrs}
        if self._there - {row.trial for row in ledger_of(self.folder.records).rows.values() if row.ended}:
            storage.delete_study(self._study)
            self._study, self._there = storage.create_new_study(directions, name), set()

    def send(self, lines: list[Line]) -> None:
        """Enter the trials that have ended, in the order of the ends, so that the storage numbers them as they came."""
        from study.designs.proposals import trial_of  # with Optuna, which `open` has imported

        assert self._storage is not None, "open() comes first"
        ends = [record for line, _ in self.shown(lines) if isinstance(record := line.record, TrialEnded)]
        for row in [self.ledger.rows[end.trial] for end in ends if end.status != "interrupted"]:
            if row.optuna_number is not None and row.trial not in self._there:
                self._storage.create_new_trial(self._study, trial_of(self.spec, row))
                self._there.add(row.trial)

    def close(self) -> None:
        """Close the connections to the database."""
        if self._storage is not None:
            self._storage.remove_session()
            if (engine := getattr(self._storage, "engine", None)) is not None:
                engine.dispose()
            self._storage = None
