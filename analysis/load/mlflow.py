"""A study of this project in MLflow -> `StudyData`: its records are downloaded and read as those of a folder are.

The mirror uploads them packed, at intervals and at the end. No other file of analysis imports MLflow, and this one is
imported only when a study is read from there.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run

from analysis.load.folder import StudyData, date, from_folder
from analysis.quantity import unknown
from study.errors import AnalysisError, ClusterError, RecordError
from study.mirrors.mlflow_mirror import ROLE, STUDY_ID
from study.mirrors.tracking_uri import CLIENT_SETTINGS, answering, check_tracking_uri, sqlite_path
from study.records.folder import StudyFolder
from study.text import mask_credentials, one_line

_MOST = 50_000
"""Experiments, or runs, that are looked at: as many as MLflow gives at once."""
_SHOWN = 12
"""Most names in a message."""
_SETTINGS = CLIENT_SETTINGS | {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "600",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""Environment of MLflow's client; what the person has set wins."""


def from_mlflow(tracking_uri: str, *, study: str | None) -> StudyData:
    """Read a study as far as its records have been uploaded, which `problems` say of one that has not ended.

    Raises:
        AnalysisError: There is no such study, there are several and none was named, or its records are not there.
        RecordError: Its records cannot be trusted.
        ClusterError: MLflow does not answer.
    """
    if (database := sqlite_path(tracking_uri)) is not None:
        try:  # MLflow's client would make any other file a database of its own
            with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute("select 1 from experiments")
        except sqlite3.Error as error:
            rule, got = "must be an MLflow database", f"{error} ({database.absolute()})"
            fix = "Give the file that `mlflow ui` shows; one without / is in the working directory."
            raise ClusterError(where=f"tracking URI sqlite:///{database}", rule=rule, got=got, fix=fix) from error
    uri = check_tracking_uri(tracking_uri)
    shown = mask_credentials(uri)
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    with answering(uri):
        client = MlflowClient(tracking_uri=uri)
        run, name = _run_of_study(client, study, shown)
    where = f"{shown}: experiment {name!r}"
    copy = TemporaryDirectory(prefix="study-")
    _download(client, run, folder := StudyFolder(Path(copy.name)), where)
    try:
        data = from_folder(folder.path)
    except (AnalysisError, RecordError) as error:
        place = error.where.replace(copy.name, where)
        raise type(error)(where=place, rule=error.rule, got=error.got, fix=error.fix) from error

    def iterations(_copy: TemporaryDirectory[str] = copy) -> pd.DataFrame:
        """Read the copy, which lies there for as long as this may be called."""
        return data.iterations()

    so_far: tuple[str, ...] = ()
    if data.ledger is not None and data.ledger.closed is None:
        so_far = (
            f"MLflow has the study's records until {data.sheet['last_record']}; further ones are sent there at "
            "intervals, and when the study ends.",
        )
    return replace(data, source=shown, problems=(*so_far, *data.problems), iterations=iterations)


def _download(client: MlflowClient, run: Run, folder: StudyFolder, where: str) -> None:
    """Put the study's identity and its records into an empty folder."""
    try:
        for file in (folder.identity_file, folder.packed_records):
            client.download_artifacts(run.info.run_id, file.name, str(folder.path))
    except Exception as error:  # every kind of artifact store raises its own
        got = f"none that can be read from here: {mask_credentials(one_line(str(error), 200))}"
        fix = "Run `python -m study sync FOLDER` where the study's folder is, or read the study from there."
        raise AnalysisError(where=where, rule="must hold the study's records", got=got, fix=fix) from error


def _run_of_study(client: MlflowClient, study: str | None, shown: str) -> tuple[Run, str]:
    """Return the run of the one study with that name or id, and its experiment's name."""
    experiments = {each.experiment_id: each.name for each in client.search_experiments(max_results=_MOST)}
    runs = client.search_runs(
        list(experiments), f"tags.`{ROLE}` = 'study'", max_results=_MOST, order_by=["attributes.start_time ASC"]
    )
    found = [(run, experiments[run.info.experiment_id]) for run in runs if STUDY_ID in run.data.tags]
    chosen = [
        (run, name)
        for run, name in found
        if study in (None, name, run.data.tags[STUDY_ID], run.info.experiment_id, run.info.run_id)
    ]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        dated = [(run.data.tags[STUDY_ID], name, date(run.info.start_time / 1000)) for run, name in chosen[-_SHOWN:]]
        listed = ", ".join(f"{number} ({name}, {begun})" for number, name, begun in dated)
        rule, got = "one study must be named, by its name or its id", f"{len(chosen)}"
        raise AnalysisError(where=shown, rule=rule, got=got, fix=f"Name one of {listed}.")
    if found:
        raise unknown(f"study in {shown}", study, dict.fromkeys([name for _, name in found][:_SHOWN], ""))
    fix = "Check the URI, and name a study that `python run_study.py` has sent there."
    raise AnalysisError(where=shown, rule="must hold a study of this project", got="none", fix=fix)
