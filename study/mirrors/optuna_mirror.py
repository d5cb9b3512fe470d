"""A study's trials in a database of Optuna's, for `optuna-dashboard` and for teams. Imports Optuna.

The driver never asks this database: it works with the journal in the study's folder. A process of its own
(`study.mirrors.mirror_worker`) follows the records and enters every trial once it has ended, whole and in one
transaction, so that the database shows what is on record and nothing else: no trial that a kill left running, none
twice. It may be away at any time and for any length of time.
"""

from optuna import logging
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection

from study.designs.search.outcome import TRIAL, Outcomes, directions_of
from study.errors import RecordError
from study.mirrors.database import reach
from study.mirrors.tracking_uri import with_time_limits
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.records import read_lines
from study.records.state import fold_lines

_CHUNK = 50
"""Most trials between two looks at the driver's orders."""


def name_in_storage(identity: StudyIdentity) -> str:
    """Return the name of the study in a database that other studies share: readable, and no other study's."""
    return f"{identity.name}-{identity.study_id}"


class OptunaMirror:
    """One study's way into one database. The caller holds the lock of `study.mirrors.mirror_target`."""

    def __init__(self, folder: StudyFolder, storage: str) -> None:
        """Take up the records; the database is not asked yet.

        Raises:
            RecordError: The records cannot be trusted.
        """
        logging.set_verbosity(logging.WARNING)
        self._folder, self._uri = folder, storage
        self._identity = folder.identity()
        self._spec = self._identity.parse()
        self._ledger, self._offset, self._seq = Ledger(), 0, 0
        self._outcomes = Outcomes(self._spec, self._ledger.rows)
        self._storage: RDBStorage | None = None
        self._study = -1
        self._there: set[int] = set()
        """Trials that the database has."""
        self._take_in()

    @property
    def attached(self) -> bool:
        """Whether the study was found or created."""
        return self._storage is not None

    @property
    def behind(self) -> int:
        """Ended trials that the database has not got."""
        self._take_in()
        return len(self._due())

    def attach(self) -> None:
        """Find or create the study, and see what is there.

        Raises:
            TrackingError: Python has no driver for the database, or it is not encoded in UTF8.
            RecordError: The database has a trial of this study that has not ended on record.
        """
        self._detach()
        uri = with_time_limits(self._uri)
        reach(uri, "Optuna storage")
        # Before its use, a connection that a restart of the database broke is replaced.
        self._storage = RDBStorage(uri, engine_kwargs={"pool_pre_ping": True})
        try:
            self._study = self._find_or_create(self._storage)
            trials = self._storage.get_all_trials(self._study, deepcopy=False)
            self._there = {trial.user_attrs[TRIAL] for trial in trials if TRIAL in trial.user_attrs}
            self._check_records()
        except Exception:
            self._detach()
            raise

    def set_running(self) -> None:
        """Do nothing: Optuna's studies have no status."""

    def step(self) -> int:
        """Enter some of the trials that have ended and return their number; 0 when all are there.

        Whatever the database raises when it is away passes through; attach again, and call again.

        Raises:
            RecordError: The records cannot be trusted.
        """
        if self._storage is None:
            raise RuntimeError("attach() comes first")  # a mistake of ours, not of a person's
        self._take_in()
        due = self._due()[:_CHUNK]
        try:
            for row in due:
                self._storage.create_new_trial(self._study, self._outcomes.trial(row))
                self._there.add(row.trial)
        except Exception:
            self._detach()  # perhaps it was entered, and the answer was lost: look before the next try
            raise
        return len(due)

    def close(self) -> None:
        """Let go of the database."""
        self._detach()

    def count_trials(self) -> int:
        """Return the number of the study's trials in the database, as last seen."""
        return len(self._there)

    def _find_or_create(self, storage: RDBStorage) -> int:
        directions = [StudyDirection[direction.upper()] for direction in directions_of(self._spec)]
        name = name_in_storage(self._identity)
        try:
            return storage.create_new_study(directions, name)
        except DuplicatedStudyError:
            return storage.get_study_id_from_name(name)

    def _take_in(self) -> None:
        """Read what was recorded since."""
        for line in read_lines(self._folder.records, offset=self._offset, first_seq=self._seq):
            fold_lines([line], self._folder.records, self._ledger)
            self._offset, self._seq = line.end, line.seq + 1

    def _due(self) -> list[TrialRow]:
        """Return the trials to enter, in the order of their ends, so that the storage numbers them as they came."""
        due = [
            row
            for row in self._ledger.rows.values()
            if row.ended and row.optuna_number is not None and row.trial not in self._there
        ]
        return sorted(due, key=lambda row: (row.ended_at or 0.0, row.trial))

    def _check_records(self) -> None:
        name = name_in_storage(self._identity)
        ended = {row.trial for row in self._ledger.rows.values() if row.ended}
        if unknown := sorted(self._there - ended):
            raise RecordError(
                f"{self._folder.records}: must hold every trial that Optuna's storage shows, got none of trial "
                f"{', '.join(map(str, unknown[:5]))}: the records were cut, or another copy of this study was run. "
                f"Fix: restore the file from a backup; where the records are right, delete the study {name!r} in the "
                "storage, and it is built anew."
            )

    def _detach(self) -> None:
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
            self._storage = None
