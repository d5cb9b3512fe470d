"""One entrance for every place a study can be: a folder, or an MLflow tracking URI. Imports no engine until it must."""

from pathlib import Path

from analysis.load.folder import from_folder
from analysis.load.study_data import StudyData
from study.records.folder import StudyFolder


def open_study(source: str | Path, *, study: str | None = None, histories: bool | None = None) -> StudyData:
    """Read a study from wherever it is.

    Args:
        source: A study folder, or an MLflow tracking URI such as `sqlite:///mlflow.db` or `http://host:5000`.
        study: Name of the study or experiment in MLflow, or id of the study there; or name of the study in a folder
            of studies. Not needed where there is one.
        histories: Of a study in MLflow, whether to read the metric histories of every run, which the means of the
            phases need; None: where there are few.

    Raises:
        AnalysisError: There is no such study, or nothing in it to show.
        RecordError: The records cannot be trusted.
        TrackingError: The tracking URI does not answer.
    """
    if "://" in str(source):
        from analysis.load.mlflow_source import from_mlflow  # MLflow takes a second to import

        return from_mlflow(str(source), study=study, histories=histories)
    folder = StudyFolder(Path(source))
    if study is None or (folder.exists() and study in (folder.path.name, folder.identity().name)):
        return from_folder(source)
    return from_folder(folder.path / study)
