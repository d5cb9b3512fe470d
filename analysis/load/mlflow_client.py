"""What analysis asks of an MLflow store, read-only, with errors for people. No other file of analysis imports MLflow.

Pages of runs carry the latest value of every metric; a history is asked for one metric of one run at a time.
"""

import json
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.base import reason_of
from study.mirrors.tracking_uri import CLIENT_SETTINGS, check_tracking_uri, sqlite_path

__all__ = ["HISTORIES_UP_TO", "Experiment", "Store", "StoredRun"]

_PAGE = 1000
"""Runs per page of a search."""
HISTORIES_UP_TO = 300
"""Runs up to which metric histories are read without being asked for: some 3 ms for each metric of each."""
_SETTINGS = CLIENT_SETTINGS | {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""Environment of MLflow's client; what the person has set wins."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run of a store, with the latest value of each metric."""

    id: str
    name: str
    start_time_s: float | None
    """Seconds since the epoch."""
    end_time_s: float | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]


class Store:
    """An MLflow store, open for reading."""

    def __init__(self, tracking_uri: str) -> None:
        """Connect.

        Raises:
            TrackingError: Nothing usable is there; says why and what to do.
        """
        if (database := sqlite_path(tracking_uri)) is not None:
            _check_database(database)
        self.uri = check_tracking_uri(tracking_uri)
        self.shown = mask_credentials(self.uri)
        """The URI without a password."""
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self._client: MlflowClient = self._ask(lambda: MlflowClient(tracking_uri=self.uri))

    def experiments(self) -> list[Experiment]:
        """Return all experiments, deleted ones too."""
        return list(
            self._pages(
                lambda token: self._client.search_experiments(ViewType.ALL, max_results=_PAGE, page_token=token)
            )
        )

    def runs(self, experiment: Experiment, text: str = "") -> Iterator[StoredRun]:
        """Yield the active runs that match a search, page by page, the oldest first."""
        order = ["attributes.start_time ASC"]
        yield from map(
            _stored,
            self._pages(
                lambda token: self._client.search_runs(
                    [experiment.experiment_id], text, ViewType.ACTIVE_ONLY, _PAGE, order, page_token=token
                )
            ),
        )

    def has_runs(self, experiment: Experiment) -> bool:
        """Return whether an experiment has an active run."""
        return bool(
            self._ask(lambda: self._client.search_runs([experiment.experiment_id], "", ViewType.ACTIVE_ONLY, 1))
        )

    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """Return all steps and values of one metric of one run, by step and time."""
        values = self._ask(lambda: self._client.get_metric_history(run_id, key))
        return [(each.step, each.value) for each in sorted(values, key=lambda each: (each.step, each.timestamp))]

    def json_artifact(self, run_id: str, name: str) -> dict[str, Any] | None:
        """Return a JSON file among a run's artifacts; None where it cannot be had: artifacts live apart from runs."""
        try:
            with TemporaryDirectory(prefix="artifact-") as folder:
                content = json.loads(Path(self._client.download_artifacts(run_id, name, folder)).read_text())
        except Exception:  # noqa: BLE001 (every kind of artifact store raises its own)
            return None
        return content if isinstance(content, dict) else None

    def _pages(self, call: Callable[[str | None], PagedList[_T]]) -> Iterator[_T]:
        token: str | None = None
        while True:
            page = self._ask(partial(call, token))
            yield from page
            if not (token := page.token):
                return

    def _ask(self, call: Callable[[], _T]) -> _T:
        """Return the store's answer.

        Raises:
            TrackingError: It has none.
        """
        try:
            return call()
        except MlflowException as error:
            if "out-of-date database schema" in str(error):
                raise TrackingError(
                    where=f"tracking URI {self.shown}",
                    rule="the database must have this MLflow's tables",
                    got="those of another version",
                    fix=f"Back it up, then run `mlflow db upgrade {shlex.quote(self.shown)}`.",
                ) from error
            raise self._unanswered(error) from error
        except Exception as error:  # databases and proxies raise every kind
            raise self._unanswered(error) from error

    def _unanswered(self, error: Exception) -> TrackingError:
        return TrackingError(
            where=f"tracking URI {self.shown}",
            rule="MLflow must answer",
            got=reason_of(error),
            fix="Look whether it is an MLflow store of a version near this one, and whether you may read it.",
        )


def _check_database(database: Path) -> None:
    """Look whether a file is an MLflow database: MLflow's client would make it one.

    Raises:
        TrackingError: It is not.
    """
    where, path = f"tracking URI sqlite:///{database}", database.absolute()
    if not path.is_file():
        raise TrackingError(
            where=where,
            rule="must name an existing database",
            got=f"no file at {path}",
            fix="Correct the path; a relative one begins at the working directory.",
        )
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("select 1 from sqlite_master where name = 'experiments'").fetchone()
    except sqlite3.Error as error:
        raise TrackingError(
            where=where, rule="must be an MLflow database", got=error, fix="Give the file that `mlflow ui` shows."
        ) from error
    if not found:
        raise TrackingError(
            where=where,
            rule="must be an MLflow database",
            got="one without experiments",
            fix="Give the file that `mlflow ui` shows.",
        )


def _stored(run: Run) -> StoredRun:
    info, data = run.info, run.data
    return StoredRun(
        id=str(info.run_id),
        name=str(info.run_name or info.run_id),
        start_time_s=info.start_time / 1000 if info.start_time else None,
        end_time_s=info.end_time / 1000 if info.end_time else None,
        params=data.params,
        tags=data.tags,
        metrics=data.metrics,
    )
