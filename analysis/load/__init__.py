"""A study as frames, from its folder or from MLflow: declared columns, units, and what is missing. Imports no engine.

data = open_study("studies/quickstart")
data.runs, data.iterations(), data.evaluations(), data.sheet, data.problems
"""

from pathlib import Path

from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, RUN_COLUMNS
from analysis.load.folder import StudyData, from_folder
from study.records.folder import StudyFolder

__all__ = [
    "EVALUATION_COLUMNS",
    "ITERATION_COLUMNS",
    "RUN_COLUMNS",
    "StudyData",
    "from_folder",
    "open_study",
]


def open_study(source: str | Path, *, study: str | None = None) -> StudyData:
    """Read a study from a folder or a tracking URI; `study` is its name or its id in MLflow, where there are several.

    Raises:
        AnalysisError: There is no such study, or nothing in it to show.
        RecordError: The records cannot be trusted.
        ClusterError: The tracking URI does not answer.
    """
    if "://" in str(source):
        from analysis.load.mlflow import from_mlflow  # MLflow takes a second to import

        return from_mlflow(str(source), study=study)
    folder = StudyFolder(Path(source))
    if study is None or (folder.exists() and study in (folder.path.name, folder.identity().name)):
        return from_folder(source)
    return from_folder(folder.path / study)
