"""Puts a report among the artifacts of a study's parent run. Imports MLflow only once work begins."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.base import reason_of
from study.mirrors.mlflow_content import ROLE, STUDY_ID
from study.mirrors.tracking_uri import asked_uri, check_tracking_uri, set_client_defaults, sqlite_path
from study.records.folder import StudyFolder
from study.records.trust import is_made_here

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = "report"
"""Folder among the run's artifacts."""
NOT_ASKED = "Not attached to MLflow: add --attach for the MLflow that the study was started with, or --tracking-uri."


def asked_place(folder: StudyFolder, tracking_uri: str | None, *, attach: bool) -> str | None:
    """Return the MLflow that the person asked a command on a study to write to; None where they asked for none.

    Args:
        folder: The study.
        tracking_uri: As the command line names it.
        attach: Whether the one that the study was started with is meant.

    Raises:
        TrackingError: The folder alone names that one: the study was not started here.
        RecordError: There is no study.
    """
    if (named := asked_uri(tracking_uri)) is not None or not attach:
        return named
    identity = folder.identity()
    if not is_made_here(folder.identity_file):
        raise TrackingError(
            where="--attach",
            rule="the study must have been started here",
            got="one that was received, moved or copied; its MLflow "
            f"({mask_credentials(identity.tracking_uri)}) is named by its folder alone",
            fix="Name one with --tracking-uri.",
            code="attach-names-no-mlflow",
        )
    return identity.tracking_uri


_FIX = "Send it there first, by `python -m study sync STUDY --tracking-uri URI`."


def attach(
    files: Iterable[Path], root: Path, *, tracking_uri: str, name: str, study_id: str, to: str = ARTIFACTS
) -> str:
    """Copy the files of a report to `report/` of the study's parent run; what is there under these names is replaced.

    Args:
        files: The files, inside of `root`.
        root: Folder of the report.
        tracking_uri: Where the study's MLflow is; nothing is created there.
        name: Of the study, which is that of its experiment.
        study_id: Of the study.
        to: Folder among the run's artifacts.

    Returns:
        The id of the run.

    Raises:
        TrackingError: MLflow does not answer, does not know the study, or does not take files.
    """
    uri = check_tracking_uri(tracking_uri)
    where = f"tracking URI {mask_credentials(uri)}"
    if (database := sqlite_path(uri)) is not None and not database.exists():
        raise TrackingError(
            where=where, rule="must hold the study", got="no such file", fix=_FIX, code="mlflow-lacks-study"
        )
    set_client_defaults()
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    try:
        run_id = _parent(client, name, study_id)
        if run_id is None:
            rule = f"must hold the study {name!r} ({study_id})"
            raise TrackingError(where=where, rule=rule, got="none", fix=_FIX, code="mlflow-lacks-study")
        for file in files:
            inner = file.relative_to(root).parent.as_posix()
            client.log_artifact(run_id, str(file), to if inner == "." else f"{to}/{inner}")
    except TrackingError:
        raise
    except Exception as error:  # MLflow, its databases, proxies and artifact stores raise every kind
        raise TrackingError(
            where=where,
            rule=f"MLflow must take the files of {to}/",
            got=reason_of(error),
            fix="See to MLflow, then run the same command again.",
            code="place-away",
        ) from error
    return run_id


def _parent(client: "MlflowClient", name: str, study_id: str) -> str | None:
    """Return the id of the study's parent run; None when there is none, or it was deleted."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage != "active":
        return None
    tags = f"tags.`{STUDY_ID}` = '{study_id}' and tags.`{ROLE}` = 'study'"
    runs = client.search_runs([experiment.experiment_id], tags, max_results=1, order_by=["attributes.start_time ASC"])
    return str(runs[0].info.run_id) if runs else None
