"""A study folder -> `StudyData`, in one pass over its records. No engine."""

from functools import partial
from pathlib import Path

from analysis.load.frames import Trials, iterations_frame
from analysis.load.problems import folder_problems
from analysis.load.sheet import kind_of, spec_of, study_sheet
from analysis.load.study_data import StudyData
from study.errors import AnalysisError
from study.records.folder import StudyFolder, meant_by


def from_folder(path: str | Path) -> StudyData:
    """Read a study folder, packed or not, finished or not.

    Raises:
        AnalysisError: There is no study, or it has not begun.
        RecordError: The records cannot be trusted.
    """
    folder = StudyFolder(Path(path))
    if not folder.exists():
        mlflow = "a tracking URI such as sqlite:///mlflow.db and the study's name"
        raise AnalysisError(
            where=str(path),
            rule="must be the folder of a study",
            got="none (study.json is missing)",
            fix=meant_by(folder.path) or f"Give for instance studies/quickstart, or {mlflow}.",
        )
    identity = folder.identity()
    spec, unread = spec_of(identity)
    if not folder.records.exists():
        raise AnalysisError(
            where=str(path),
            rule="a study must have records",
            got="none (records.jsonl is missing)",
            fix="Wait for its first trial, or restore the file.",
        )
    trials = Trials(identity, folder.records)
    if not trials.sessions:
        raise AnalysisError(
            where=str(path),
            rule="a study needs a session",
            got=f"none yet ({trials.num_lines} other records)",
            fix="Wait until it has begun, or restore records.jsonl from a backup.",
        )
    runs = trials.runs_frame()
    return StudyData(
        name=identity.name,
        source=str(path),
        kind=kind_of(identity, {row.stage for row in trials.rows}),
        runs=runs,
        sheet=study_sheet(
            identity,
            trials.sessions,
            counts=trials.ledger.counts(),
            num_trials=max(trials.ledger.num_trials, len(runs)),
        ),
        problems=(
            *unread,
            *folder_problems(runs, trials, results=folder.records.name),
        ),
        spec=spec,
        iterations=partial(iterations_frame, folder.records),
        read_evaluations=trials.evaluations_frame,
        ledger=trials.ledger,
        folder=folder,
    )
