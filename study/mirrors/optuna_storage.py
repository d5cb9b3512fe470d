"""Optuna's storage: the trials of a search, for `optuna-dashboard` and for teams. Imports Optuna in `open`.

It makes no proposals: the sampler reads the records (`study.designs.proposals`). Every trial is entered
once it has ended, whole and in one transaction, so that the storage shows what is on record and nothing else: no trial
that a kill left running, none twice. Without `--optuna-storage` the place is a journal file in the study's folder.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import RecordError
from study.mirrors.follower import IMPORTING, Mirror
from study.mirrors.tracking_uri import check_tracking_uri, reached
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, fold_lines, ledger_of
from study.records.records import Line, TrialEnded

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def name_in_storage(identity: StudyIdentity) -> str:
    """Return the name of the study in a database that other studies share: readable, and no other study's."""
    return f"{identity.name}-{identity.study_id}"


class OptunaMirror(Mirror):
    """Sends one study to a database, or to the journal file in its folder."""

    key, name, place = "optuna", "Optuna's storage", "Optuna storage"

    def __init__(self, folder: StudyFolder, address: str) -> None:
        super().__init__(folder, address)
        self._identity = folder.identity()
        self._spec = self._identity.parse()
        self._storage: BaseStorage | None = None
        self._there: set[int] = set()
        """Trials that the storage has."""

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str | None:
        """Return the storage that the study was started with, else its journal file; None where nothing is tuned."""
        identity = folder.identity()
        return identity.optuna_storage or (str(folder.optuna_journal) if identity.parse().tuned else None)

    @classmethod
    def check(cls, address: str) -> str:
        """Return the absolute form of a database, or the path of a journal file."""
        is_journal = address.endswith(".journal") and "://" not in address
        return address if is_journal else check_tracking_uri(address, cls.place)

    def open(self) -> tuple[int, int]:
        """Find or create the study, see what is there, and begin with the first record.

        Raises:
            RecordError: The storage has a trial of this study that has not ended on record.
        """
        with IMPORTING:
            import optuna
            from optuna.storages import RDBStorage

            from study.designs.proposals import TRIAL

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.close()
        self._ledger = Ledger()
        name = name_in_storage(self._identity)
        if "://" in self.address:
            # Before its use, a connection that a restart of the database broke is replaced.
            self._storage = RDBStorage(reached(self.address), engine_kwargs={"pool_pre_ping": True})
        else:
            self._storage = _journal(Path(self.address))
        try:
            self._study = self._storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], name)
        except optuna.exceptions.DuplicatedStudyError:
            self._study = self._storage.get_study_id_from_name(name)
        trials = self._storage.get_all_trials(self._study, deepcopy=False)
        self._there = {trial.user_attrs[TRIAL] for trial in trials if TRIAL in trial.user_attrs}
        ended = {row.trial for row in ledger_of(self.folder.records).rows.values() if row.ended}
        if unknown := sorted(self._there - ended):
            rule, got = "must hold every trial that Optuna's storage shows", f"none of trials {unknown[:5]}"
            fix = (
                "Restore the file from a backup; where the records are right, delete the study "
                f"{name!r} in the storage, and it is built anew."
            )
            raise RecordError(where=str(self.folder.records), rule=rule, got=f"{got}: the records were cut", fix=fix)
        return 0, 0

    def send(self, lines: list[Line]) -> None:
        """Enter the trials that have ended, in the order of the ends, so that the storage numbers them as they came."""
        from study.designs.proposals import trial_of  # with Optuna, which `open` has imported

        for line in lines:
            fold_lines([line], self.folder.records, self._ledger)
            if not isinstance(line.record, TrialEnded):
                continue
            row = self._ledger.rows[line.record.trial]
            if row.ended and row.optuna_number is not None and row.trial not in self._there:
                assert self._storage is not None, "open() comes first"
                self._storage.create_new_trial(self._study, trial_of(self._spec, row))
                self._there.add(row.trial)

    def count_trials(self) -> int:
        """Return the number of the study's trials in the storage, as last seen."""
        return len(self._there)

    def close(self) -> None:
        """Close the connections to the database."""
        if self._storage is not None:
            self._storage.remove_session()
            if (engine := getattr(self._storage, "engine", None)) is not None:
                engine.dispose()
            self._storage = None


def _journal(path: Path) -> "BaseStorage":
    """Open a journal file as its only writer; one that cannot be read is made anew from the records."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # of a mirror that was killed: we would wait for it
    with contextlib.suppress(FileNotFoundError):
        if not path.read_bytes().endswith(b"\n"):  # a torn line, behind which nothing could be read
            path.unlink()
    for is_last in (False, True):
        try:
            storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
            storage.get_all_studies()
            break
        except Exception as error:  # Optuna raises every kind on lines that it did not write
            if is_last or isinstance(error, OSError):
                raise
            path.unlink()
    return storage
