"""The answer and the files that a command gives to a study's run in MLflow. Imports MLflow only once work begins."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.base import reason_of
from study.mirrors.mlflow_content import NOTE, ROLE, STUDY_ID, cut
from study.mirrors.tracking_uri import asked_uri, check_tracking_uri, set_client_defaults, sqlite_path
from study.records.folder import StudyFolder

if TYPE_CHECKING:
    from mlflow import MlflowClient

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


def attach(
    files: Iterable[Path], root: Path, *, tracking_uri: str, name: str, study_id: str, to: str = ARTIFACTS
) -> str:
    """Copy files inside of `root` to the artifacts of a study's run, in the folder `to`, and return the id of the run.

    Files of equal names are replaced there. `name` is that of the study, and so of its experiment.

    Raises:
        TrackingError: MLflow does not answer, does not know the study, or does not take files.
    """
    with _run_of_study(tracking_uri, name, study_id, f"the files of {to}/") as (client, run_id):
        for file in files:
            inner = file.relative_to(root).parent.as_posix()
            client.log_artifact(run_id, str(file), to if inner == "." else f"{to}/{inner}")
    return run_id


def publish_answer(markdown: str, *, tracking_uri: str, name: str, study_id: str) -> None:
    """Show the answer of a study on the page of its run in MLflow, its first line in the list of experiments.

    They take the place of an earlier answer.

    Raises:
        TrackingError: MLflow does not answer, or does not know the study.
    """
    with _run_of_study(tracking_uri, name, study_id, "the study's answer") as (client, run_id):
        client.set_tag(run_id, NOTE, cut(markdown))
        first_line = cut(markdown.partition("\n")[0].strip("*"))  # the list does not render bold type
        client.set_experiment_tag(client.get_run(run_id).info.experiment_id, NOTE, first_line)


@contextmanager
def _run_of_study(tracking_uri: str, name: str, study_id: str, what: str) -> Iterator[tuple["MlflowClient", str]]:
    """Yield a client and the id of the study's run; `what` it takes stands in the message where it does not."""
    uri = check_tracking_uri(tracking_uri)
    where = f"tracking URI {mask_credentials(uri)}"
    set_client_defaults()
    from mlflow import MlflowClient

    run_id = None
    try:
        if (database := sqlite_path(uri)) is None or database.exists():
            client = MlflowClient(tracking_uri=uri)
            if (run_id := _find_run(client, name, study_id)) is not None:
                yield client, run_id
    except Exception as error:  # MLflow, its databases, proxies and artifact stores raise every kind
        rule, got, fix = f"MLflow must take {what}", reason_of(error), "See to MLflow, then run the same command again."
        raise TrackingError(where=where, rule=rule, got=got, fix=fix) from error
    if run_id is None:
        rule = f"must hold the study {name!r} ({study_id})"
        fix = "Send it there first, by `python -m study sync STUDY --tracking-uri URI`."
        raise TrackingError(where=where, rule=rule, got="none", fix=fix)


def _find_run(client: "MlflowClient", name: str, study_id: str) -> str | None:
    """Return the id of the study's run; None when there is none, or it was deleted."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage != "active":
        return None
    tags = f"tags.`{STUDY_ID}` = '{study_id}' and tags.`{ROLE}` = 'study'"
    runs = client.search_runs([experiment.experiment_id], tags, max_results=1, order_by=["attributes.start_time ASC"])
    return str(runs[0].info.run_id) if runs else None
