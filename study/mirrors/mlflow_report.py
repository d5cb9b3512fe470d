"""The answer and the files that a command gives to a study's run in MLflow. Imports MLflow only once work begins."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.mlflow_content import NOTE, STUDY, cut, key_tags, search_text
from study.mirrors.tracking_uri import answering, asked_uri, check_tracking_uri, set_client_defaults, sqlite_path
from study.records.folder import StudyFolder

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ARTIFACTS = "report"
"""Folder among the run's artifacts."""
NOT_ASKED = "Not attached to MLflow. To attach it: --attach (the study's own MLflow), or --tracking-uri."


def asked_place(folder: StudyFolder, tracking_uri: str | None, *, attach: bool) -> str | None:
    """Return the MLflow that the person asked a command on a study to write to; None where they asked for none.

    Raises:
        RecordError: There is no study, or the study's own MLflow is meant and others may have written its folder.
    """
    if (named := asked_uri(tracking_uri)) is not None or not attach:
        return named
    identity = folder.identity()
    folder.check_owner()
    return identity.tracking_uri


def attach(files: Iterable[Path], root: Path, *, tracking_uri: str, name: str, study_id: str) -> str:
    """Copy files inside of `root` to the artifacts of a study's run, and return the id of the run.

    Files of equal names are replaced there. `name` is that of the study, and so of its experiment.

    Raises:
        TrackingError: MLflow does not answer, does not know the study, or does not take files.
    """
    with _run_of_study(tracking_uri, name, study_id) as (client, run):
        for file in files:
            client.log_artifact(run.info.run_id, str(file), str(Path(ARTIFACTS) / file.relative_to(root).parent))
    return str(run.info.run_id)


def publish_answer(markdown: str, *, tracking_uri: str, name: str, study_id: str) -> None:
    """Show the answer of a study on the page of its run in MLflow, its first line in the list of experiments.

    They take the place of an earlier answer.

    Raises:
        TrackingError: MLflow does not answer, or does not know the study.
    """
    with _run_of_study(tracking_uri, name, study_id) as (client, run):
        client.set_tag(run.info.run_id, NOTE, cut(markdown))
        first_line = cut(markdown.partition("\n")[0].strip("*"))  # the list does not render bold type
        client.set_experiment_tag(run.info.experiment_id, NOTE, first_line)


@contextmanager
def _run_of_study(tracking_uri: str, name: str, study_id: str) -> Iterator[tuple["MlflowClient", "Run"]]:
    """Yield a client and the study's run.

    Raises:
        TrackingError: There is none, or it was deleted; or MLflow refuses what is then asked of it.
    """
    uri = check_tracking_uri(tracking_uri)
    set_client_defaults()
    from mlflow import MlflowClient

    runs: list[Run] = []
    with answering(uri):
        if (database := sqlite_path(uri)) is None or database.exists():
            client = MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(name)
            if experiment is not None and experiment.lifecycle_stage == "active":
                text = search_text(key_tags(study_id, STUDY))
                runs = client.search_runs([experiment.experiment_id], text, order_by=["attributes.start_time ASC"])
        if not runs:
            rule = f"must hold the study {name!r} ({study_id})"
            fix = "Send it there first, by `python -m study sync STUDY --tracking-uri URI`."
            raise TrackingError(where=f"tracking URI {mask_credentials(uri)}", rule=rule, got="none", fix=fix)
        yield client, runs[0]
