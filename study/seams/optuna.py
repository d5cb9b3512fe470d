"""Seams of Optuna."""

from typing import TYPE_CHECKING

from study.seams.base import Seam, has, uses

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

_OPTUNA = ">=5,<6"

TRIAL_BY_NUMBER = Seam(
    name="optuna-trial-by-number",
    distribution="optuna",
    versions=_OPTUNA,
    does="take up a running trial again by its number",
    why="The public way reads all trials of the study for one of them.",
    upstream="https://github.com/optuna/optuna/issues/5647",
    needs=(
        uses("optuna.study:Study", "_storage", "_study_id"),
        uses("optuna.trial:FrozenTrial", "_trial_id"),
        has("optuna.trial:Trial.__init__", "self", "study", "trial_id"),
        has("optuna.storages:BaseStorage.get_trial_id_from_study_id_trial_number", "self", "study_id", "trial_number"),
    ),
)
JOURNAL_FILE = Seam(
    name="optuna-journal-file",
    distribution="optuna",
    versions=_OPTUNA,
    does="write Optuna's journal without its lock and its waiting for the disk",
    why="The study folder is locked already, and what a power cut takes from the journal is added from the records.",
    needs=(
        uses("optuna.storages.journal:JournalFileBackend", "_file_path"),
        has("optuna.storages.journal:JournalFileBackend.append_logs", "self", "logs"),
    ),
)
SEAMS = (TRIAL_BY_NUMBER, JOURNAL_FILE)


def trial_of(study: "Study", frozen: "FrozenTrial") -> "Trial":
    """Return the running trial that a storage knows."""
    from optuna.trial import Trial

    return Trial(study, frozen._trial_id)


def trial_with_number(study: "Study", number: int) -> "Trial":
    """Return the running trial with a number, without reading the others."""
    from optuna.trial import Trial

    return Trial(study, study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number))
