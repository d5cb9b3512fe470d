"""One study as MLflow holds it. The only file that imports MLflow; the driver imports it nowhere.

Every method may be repeated after a kill, a time-out or a restart of the server and leaves the same state. MLflow
stores a point of equal key, time, step and value once; a run is looked up by its tags before it is created.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from study.tracking.folder import StudyIdentity
from study.tracking.mirror_content import (
    ATTEMPT,
    DUPLICATE,
    PARENT,
    ROLE,
    STUDY_ID,
    SUPERSEDED,
    TRIAL,
    Point,
    milliseconds,
    study_key,
    trial_key,
)
from study.tracking.tracking_uri import sqlite_path

_log = logging.getLogger(__name__)

_MAX_METRICS, _MAX_PARAMS, _MAX_TAGS = 1000, 100, 100
"""MLflow's limits per batch."""
_PAGE = 1000
"""Runs per page of a search."""


class StateLostError(Exception):
    """MLflow no longer knows the study's runs: its database was replaced. Every record must be sent again."""


class StudyStore:
    """The experiment, the parent run and the trials' runs of one study."""

    def __init__(self, tracking_uri: str, identity: StudyIdentity) -> None:
        """Connect; creates the tables of a new SQLite database."""
        self._uri = tracking_uri
        self._identity = identity
        self._client = MlflowClient(tracking_uri=tracking_uri)
        self.experiment_id = self._find_or_create_experiment()
        self.parent_run_id = self._find_or_create_parent()

    def find_or_create_trial(
        self, trial: int, attempt: int, *, name: str, time_ms: int, known: str | None = None
    ) -> str | None:
        """Return the run of an attempt; None when it was deleted, by a later attempt or by a person.

        Duplicates, which a repeated creation can leave, are deleted; `known` or else the oldest is kept.
        """
        key = trial_key(self._identity, trial, attempt)
        runs = list(self._search(key, ViewType.ALL))
        active = [run for run in runs if run.info.lifecycle_stage == "active"]
        if active:
            return self._keep_one(active, known)
        if runs:
            return None
        return self._create(name, time_ms, {**key, PARENT: self.parent_run_id})

    def supersede(self, trial: int, attempt: int, time_ms: int) -> None:
        """Delete the runs of a trial's attempts before `attempt`, so that each trial is seen once."""
        for run in self._search({STUDY_ID: self._identity.study_id, ROLE: "trial", TRIAL: str(trial)}):
            if int(run.data.tags[ATTEMPT]) < attempt:
                if run.info.status == "RUNNING":
                    self.end_run(run.info.run_id, "KILLED", time_ms)
                self._delete(run, SUPERSEDED)

    def log(
        self,
        run_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Send metrics, parameters and tags in as few batches as MLflow's limits allow."""
        metrics = [Metric(point.key, point.value, point.time_ms, point.step) for point in points]
        for some in _batches(metrics, _MAX_METRICS):
            self._send(run_id, lambda some=some: self._client.log_batch(run_id, metrics=some))
        pairs = [Param(key, value) for key, value in (params or {}).items()]
        for some in _batches(pairs, _MAX_PARAMS):
            self._send(run_id, lambda some=some: self._client.log_batch(run_id, params=some))
        labels = [RunTag(key, value) for key, value in (tags or {}).items()]
        for some in _batches(labels, _MAX_TAGS):
            self._send(run_id, lambda some=some: self._client.log_batch(run_id, tags=some))

    def end_run(self, run_id: str, status: str, time_ms: int) -> None:
        """Give a run its final status and its end."""
        self._send(run_id, lambda: self._client.set_terminated(run_id, status, time_ms))

    def set_running(self, run_id: str) -> None:
        """Give a run the status RUNNING; MLflow keeps an earlier end until the next one."""
        self._send(run_id, lambda: self._client.update_run(run_id, status="RUNNING"))

    def upload(self, path: Path) -> None:
        """Put a file among the study's artifacts, if it exists."""
        if path.exists():
            self._store_artifact(path.name, lambda: self._client.log_artifact(self.parent_run_id, str(path)))

    def upload_text(self, text: str, name: str) -> None:
        """Put a text among the study's artifacts."""
        self._store_artifact(name, lambda: self._client.log_text(self.parent_run_id, text, name))

    def count_trials(self) -> int:
        """Return the number of the study's active trial runs."""
        return sum(1 for _ in self._search({STUDY_ID: self._identity.study_id, ROLE: "trial"}))

    def _find_or_create_experiment(self) -> str:
        """Return the experiment of the study's name; studies of one name share it and are told apart by tags."""
        name = self._identity.name
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name, artifact_location=self._artifact_location()))
        if experiment.lifecycle_stage != "active":
            _log.warning("experiment %r was deleted in MLflow: restored", name)
            self._client.restore_experiment(experiment.experiment_id)
            self.experiment_id = str(experiment.experiment_id)
            self._delete_again()
        return str(experiment.experiment_id)

    def _artifact_location(self) -> str | None:
        """Return an absolute folder beside an SQLite database, where `mlflow ui` finds it; a server chooses itself."""
        database = sqlite_path(self._uri)
        if database is None:
            return None
        return str(database.parent / "mlruns" / re.sub(r"[^\w.-]", "_", self._identity.name))

    def _find_or_create_parent(self) -> str:
        key = study_key(self._identity)
        runs = list(self._search(key, ViewType.ALL))
        active = [run for run in runs if run.info.lifecycle_stage == "active"]
        if active:
            return self._keep_one(active)
        if not runs:
            return self._create(self._identity.name, milliseconds(self._identity.created), key)
        oldest = min(runs, key=_age)
        _log.warning("the study's run was deleted in MLflow: restored")
        self._client.restore_run(oldest.info.run_id)
        return str(oldest.info.run_id)

    def _delete_again(self) -> None:
        """Delete what the study had deleted: restoring an experiment restores all of its runs."""
        for tag in (SUPERSEDED, DUPLICATE):
            for run in self._search({STUDY_ID: self._identity.study_id, tag: "true"}):
                self._client.delete_run(run.info.run_id)

    def _create(self, name: str, time_ms: int, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self.experiment_id, start_time=time_ms, tags=dict(tags), run_name=name)
        return str(run.info.run_id)

    def _keep_one(self, runs: Sequence[Run], known: str | None = None) -> str:
        ids = [str(run.info.run_id) for run in sorted(runs, key=_age)]
        kept = known if known in ids else ids[0]
        for run in runs:
            if run.info.run_id != kept:
                _log.warning("run %s was created twice: deleted", run.info.run_id)
                self._delete(run, DUPLICATE)
        return kept

    def _delete(self, run: Run, why: str) -> None:
        self._client.set_tag(run.info.run_id, why, "true")
        self._client.delete_run(run.info.run_id)

    def _search(self, tags: Mapping[str, str], view: int = ViewType.ACTIVE_ONLY) -> Iterator[Run]:
        """Yield the runs that carry all of `tags`. Reads all pages first: callers delete what they get."""
        text = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        runs: list[Run] = []
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], text, run_view_type=view, max_results=_PAGE, page_token=token
            )
            runs += page
            token = page.token
            if not token:
                return iter(runs)

    def _send(self, run_id: str, call: Callable[[], object]) -> None:
        """Call MLflow; what it will never accept is logged and passed over, so that one run cannot stop the others."""
        try:
            call()
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise StateLostError(f"run {run_id} is not in MLflow any more") from error
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            _log.warning("MLflow refused a change to run %s: %s", run_id, error)

    def _store_artifact(self, name: str, call: Callable[[], object]) -> None:
        """Store an artifact; a store that does not work, while MLflow itself does, holds up nothing else."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 (each artifact store raises its own)
            self._client.get_run(self.parent_run_id)  # raises when MLflow itself is away: the record is sent again
            _log.warning("%s could not be stored as an artifact: %s", name, error)


def _age(run: Run) -> tuple[int, str]:
    return run.info.start_time, run.info.run_id


def _batches[T](items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
