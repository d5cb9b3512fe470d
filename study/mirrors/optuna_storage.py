"""Optuna's storage: the trials of a search, for `optuna-dashboard` and for teams. Imports Optuna in `open`.

It makes no proposals: the sampler reads the records (`study.designs.proposals`). Every trial is entered
once it has ended, whole and in one transaction, so that the storage shows what is on record and nothing else: no trial
that a kill left running, none twice. Without `--optuna-storage` the place is a journal file in the study's folder.
"""

from typing import TYPE_CHECKING

from study.mirrors.mirror import IMPORTING, Mirror
from study.mirrors.tracking_uri import reached
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

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(folder)
        self._identity = folder.identity()
        self._spec = self._identity.parse()
        self._storage: BaseStorage | None = None

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str:
        """Return the storage that the study was started with, else its journal file; empty where nothing is tuned."""
        identity = folder.identity()
        return identity.optuna_storage or (str(folder.optuna_journal) if identity.parse().tuned else "")

    def open(self) -> tuple[int, int]:
        """Find or create the study, see what is there, and begin with the first record.

        What follows from no record is made anew: the journal, and a study with trials that have not ended on record.
        """
        with IMPORTING:
            import optuna
            from optuna.storages import JournalStorage, RDBStorage
            from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

            from study.designs.proposals import TRIAL

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.close()
        self._ledger, name = Ledger(), name_in_storage(self._identity)
        if "://" in self.address:
            # Before its use, a connection that a restart of the database broke is replaced.
            self._storage = RDBStorage(reached(self.address), engine_kwargs={"pool_pre_ping": True})
        else:  # its only writer; behind a torn line nothing could be read
            for file in (self.folder.optuna_journal, self.folder.path / "optuna.journal.lock"):
                file.unlink(missing_ok=True)
            lock = JournalFileOpenLock(self.address)
            self._storage = JournalStorage(JournalFileBackend(self.address, lock_obj=lock))
        directions = [optuna.study.StudyDirection.MAXIMIZE]
        try:
            self._study = self._storage.create_new_study(directions, name)
        except optuna.exceptions.DuplicatedStudyError:
            self._study = self._storage.get_study_id_from_name(name)
        trials = self._storage.get_all_trials(self._study, deepcopy=False)
        self._there = {trial.user_attrs[TRIAL] for trial in trials if TRIAL in trial.user_attrs}
        if self._there - {row.trial for row in ledger_of(self.folder.records).rows.values() if row.ended}:
            self._storage.delete_study(self._study)
            self._study, self._there = self._storage.create_new_study(directions, name), set()
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

    def close(self) -> None:
        """Close the connections to the database."""
        if self._storage is not None:
            self._storage.remove_session()
            if (engine := getattr(self._storage, "engine", None)) is not None:
                engine.dispose()
            self._storage = None
