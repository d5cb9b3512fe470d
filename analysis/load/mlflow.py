"""A study of this project in MLflow -> `StudyData`: its records are downloaded and read as those of a folder are.

The mirror uploads them packed, at intervals and at the end. No other file of analysis imports MLflow, and this one is
imported only when a study is read from there.
"""

import difflib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType

from analysis.load.folder import from_folder
from analysis.load.sheet import date
from analysis.load.study_data import StudyData
from study.errors import AnalysisError, RecordError, TrackingError
from study.harmless import mask_credentials
from study.mirrors.mlflow_content import DUPLICATE, NUM_RECORDS, ROLE, STUDY_ID, SUPERSEDED
from study.mirrors.tracking_uri import CLIENT_SETTINGS, answering, check_tracking_uri, sqlite_path
from study.records.folder import StudyFolder

_PAGE = 1000
"""Experiments, or runs, of a page."""
_PAUSES_S = (0.5, 2.0)
"""Before records that cannot be read are downloaded again: they may be replaced by later ones at that moment."""
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

    Args:
        tracking_uri: Of the MLflow that holds it.
        study: Its name, or its id; None where there is one.

    Raises:
        AnalysisError: There is no such study, there are several and none was named, or its records are not there.
        RecordError: Its records cannot be trusted.
        TrackingError: MLflow does not answer.
    """
    if (database := sqlite_path(tracking_uri)) is not None:
        _check_database(database)
    uri = check_tracking_uri(tracking_uri)
    shown = mask_credentials(uri)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    with answering(uri):
        client = MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, study, shown)
        run = _run_of_study(client, experiment, study, shown)
    where = f"{shown}: experiment {experiment.name!r}"
    for pause_s in (*_PAUSES_S, None):
        copy = TemporaryDirectory(prefix="study-")
        folder = StudyFolder(Path(copy.name))
        _download(client, run, folder, where)
        try:
            data = from_folder(folder.path)
            break
        except (AnalysisError, RecordError) as error:
            if pause_s is None or isinstance(error, AnalysisError):
                place = error.where.replace(copy.name, where)
                raise type(error)(where=place, rule=error.rule, got=error.got, fix=error.fix) from error
            time.sleep(pause_s)
    return replace(
        data,
        source=shown,
        problems=(*_how_far(data), *data.problems),
        iterations=partial(_of_copy, copy, data.iterations),
    )


def _of_copy(_copy: TemporaryDirectory[str], read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Read a frame from the copy, which lies there for as long as this may be called."""
    return read()


def _how_far(data: StudyData) -> Iterator[str]:
    """Yield how far the records reach that MLflow has of a study that has not ended."""
    if data.ledger is not None and data.ledger.closed is None:
        yield (
            f"MLflow has the study's records until {data.sheet['last_record']}; further ones are sent there at "
            "intervals, and when the study ends."
        )


def _download(client: MlflowClient, run: Run, folder: StudyFolder, where: str) -> None:
    """Put the study's identity and its records into an empty folder.

    Raises:
        AnalysisError: MLflow does not hold the records, or they cannot be had: artifacts live apart from runs.
    """
    rule, got = "must hold the study's records (since version 0.14.0 they are sent along)", ""
    if not run.data.tags.get(NUM_RECORDS, "").isdecimal():
        got = "none: a version before 0.14.0 sent the study"
    else:
        try:
            for file in (folder.identity_file, folder.packed_records):
                client.download_artifacts(run.info.run_id, file.name, str(folder.path))
        except Exception as error:  # noqa: BLE001 (every kind of artifact store raises its own)
            got = f"none that can be read from here: {mask_credentials(' '.join(str(error).split())[:200])}"
    if got:
        fix = "Run `python -m study sync FOLDER` where the study's folder is, or read the study from there."
        raise AnalysisError(where=where, rule=rule, got=got, fix=fix)


def _experiment(client: MlflowClient, name: str | None, shown: str) -> Experiment:
    """Return the experiment of that name, the one that holds the study of that id, or the only one.

    Raises:
        AnalysisError: There is none, or there are several and none was named.
    """
    known = _all(lambda token: client.search_experiments(ViewType.ALL, max_results=_PAGE, page_token=token))
    active = [each for each in known if each.lifecycle_stage == "active"]
    if name is None:
        used = [each for each in active if client.search_runs([each.experiment_id], max_results=1)]
        if len(used) == 1:
            return used[0]
        rule, got, fix = "a study needs a run", "a store without any", "Check the URI."
        if used:
            rule, fix = "one study must be named", "Give one of these names."
            got = f"{len(used)} experiments: {_names(used)}"
        raise AnalysisError(where=shown, rule=rule, got=got, fix=fix)
    if (match := next((each for each in active if each.name == name), None)) is not None:
        return match
    if any(each.name == name for each in known):
        rule, fix = f"experiment {name!r} must not be deleted", "Restore it with `mlflow experiments restore`."
        raise AnalysisError(where=shown, rule=rule, got="a deleted one", fix=fix)
    for each in active:
        if any(run.data.tags[STUDY_ID] == name for run in _studies(client, each)):
            return each
    near = difflib.get_close_matches(name, [each.name for each in active], n=1)
    fix = f"Did you mean {near[0]!r}?" if near else f"Give one of {_names(active)}."
    raise AnalysisError(where=shown, rule=f"there must be an experiment or study {name!r}", got="none", fix=fix)


def _run_of_study(client: MlflowClient, experiment: Experiment, study: str | None, shown: str) -> Run:
    """Return the run of the study that is named by its experiment or by its id.

    Raises:
        AnalysisError: The experiment holds none, or several and none was named by its id.
    """
    where, runs = f"{shown}: experiment {experiment.name!r}", _studies(client, experiment)
    if not runs:
        rule = "must hold a study of this project (since version 0.13.0 other experiments are not read)"
        fix = "Name a study that `python run_study.py` has sent there."
        raise AnalysisError(where=where, rule=rule, got="one without", fix=fix)
    chosen = [run for run in runs if study in (None, experiment.name, run.data.tags[STUDY_ID])]
    if len(chosen) == 1:
        return chosen[0]
    ids = ", ".join(
        f"{run.data.tags[STUDY_ID]} ({date(run.info.start_time / 1000)}, {run.data.tags.get('status', '?')})"
        for run in runs[-_SHOWN:]
    )
    rule, got = "one study must be named by its id", f"{len(chosen)} of this name"
    raise AnalysisError(where=where, rule=rule, got=got, fix=f"Name one of {ids}.")


def _studies(client: MlflowClient, experiment: Experiment) -> list[Run]:
    """Return the runs of the studies in an experiment, the oldest first."""
    runs = _all(
        lambda token: client.search_runs(
            [experiment.experiment_id], f"tags.`{ROLE}` = 'study'", max_results=_PAGE,
            order_by=["attributes.start_time ASC"], page_token=token,
        )
    )  # fmt: skip
    return [run for run in runs if STUDY_ID in run.data.tags and not {SUPERSEDED, DUPLICATE} & run.data.tags.keys()]


def _all(page_of: Callable[[str | None], Any]) -> list[Any]:
    """Return what all pages hold."""
    found: list[Any] = []
    page: Any = page_of(None)
    while True:
        found += page
        if not page.token:
            return found
        page = page_of(page.token)


def _names(experiments: Sequence[Experiment]) -> str:
    names = [repr(each.name) for each in experiments[:_SHOWN]]
    more = f" and {len(experiments) - _SHOWN} more" if len(experiments) > _SHOWN else ""
    return f"{', '.join(names)}{more}" if names else "the experiments that do not exist yet"


def _check_database(database: Path) -> None:
    """Refuse a file that is no MLflow database: MLflow's client would make it one.

    Raises:
        TrackingError: It is not.
    """
    where, path = f"tracking URI sqlite:///{database}", database.absolute()
    if not path.is_file():
        rule, fix = "must name an existing database", "Correct the path; one without / is in the working directory."
        raise TrackingError(where=where, rule=rule, got=f"no file at {path}", fix=fix)
    got: object = "one without experiments"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            if connection.execute("select 1 from sqlite_master where name = 'experiments'").fetchone():
                return
    except sqlite3.Error as error:
        got = error
    rule, fix = "must be an MLflow database", "Give the file that `mlflow ui` shows."
    raise TrackingError(where=where, rule=rule, got=got, fix=fix)
