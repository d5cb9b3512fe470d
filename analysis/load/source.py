"""One entrance for every place a study can be: a folder, or an MLflow tracking URI. Imports no engine until it must."""

from pathlib import Path

from analysis.load.folder import from_folder
from analysis.load.study_data import StudyData


def open_study(source: str | Path, *, study: str | None = None, histories: bool | None = None) -> StudyData:
    """Read a study from wherever it is.

    Args:
        source: A study folder, or an MLflow tracking URI such as `sqlite:///mlflow.db` or `http://host:5000`.
        study: Name of the study or experiment in MLflow, or of the study in a folder of studies; not needed where
            there is one.
        histories: Of a study in MLflow, whether to read the metric histories of every run; None: where there are few.

    Raises:
        AnalysisError: There is no such study, or nothing in it to show.
        RecordError: The records cannot be trusted.
        TrackingError: The tracking URI does not answer.
    """
    if "://" in str(source):
        return from_mlflow(str(source), study=study, histories=histories)
    inside = study is not None and not (Path(source) / "study.json").exists()
    return from_folder(Path(source) / str(study) if inside else source)


def from_mlflow(
    tracking_uri: str, experiment: str | None = None, study: str | None = None, *, histories: bool | None = None
) -> StudyData:
    """Read a study from MLflow: one of ours, or an experiment of other people's RLlib scripts.

    Args:
        tracking_uri: Where MLflow is.
        experiment: Name of the experiment.
        study: Name or id of one of our studies; its experiment has its name.
        histories: Whether to read the history of the timed metrics of every run, which the means of the phases need;
            None reads them where there are few runs.

    Raises:
        AnalysisError: There is no such experiment or study, several and none was named, or nothing in it to show.
        TrackingError: The tracking URI does not answer.
    """
    from analysis.load.mlflow_source import read_experiment  # MLflow takes a second to import

    return read_experiment(tracking_uri, experiment=experiment, study=study, histories=histories)
