"""One study as MLflow holds it. Imports MLflow, as few files do; the driver imports none of them.

Every method may be repeated, after a kill, a time-out or a restart of the server, and leaves the same state:
MLflow stores a point of equal key, time, step and value once, and runs are looked up by tags before creation.
"""

import functools
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from study.mirrors.mlflow_content import (
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
from study.mirrors.tracking_uri import reach, sqlite_path, with_time_limits
from study.records.folder import StudyIdentity

_log = logging.getLogger(__name__)

_MAX_METRICS, _MAX_PARAMS, _MAX_TAGS = 1000, 100, 100
"""MLflow's limits per batch."""
_PAGE = 1000
"""Runs per page of a search."""
_MISSING, _REFUSED = "RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"
"""MLflow's error codes for what is not there, and for what it never accepts, as for a deleted run."""

_T = TypeVar("_T")


class StudyStore:
    """The experiment, the parent run and the trials' runs of one study."""

    def __init__(self, tracking_uri: str, identity: StudyIdentity) -> None:
        """Connect; creates the tables of a new SQLite database."""
        self._uri = tracking_uri
        self._identity = identity
        reach(tracking_uri, "tracking URI")
        if (database := sqlite_path(tracking_uri)) is not None:
            create_database(database)
        self._client = MlflowClient(tracking_uri=with_time_limits(tracking_uri))
        self.experiment_id = self._find_or_create_experiment()
        self.parent_run_id = self._find_or_create_parent()

    def find_or_create_trial(self, trial: int, attempt: int, *, name: str, time_ms: int) -> str | None:
        """Return the run of an attempt; None when it was deleted, by a later attempt or by a person."""
        key = trial_key(self._identity, trial, attempt)
        runs = self._search(key, ViewType.ALL)
        if active := [run for run in runs if run.info.lifecycle_stage == "active"]:
            return self._keep_one(active)
        return None if runs else self._create(name, time_ms, {**key, PARENT: self.parent_run_id})

    def drop_duplicates(self, trial: int, attempt: int, *, keep: str) -> None:
        """Delete the runs that a creation left behind which timed out and still succeeded."""
        if runs := self._search(trial_key(self._identity, trial, attempt)):
            self._keep_one(runs, keep)

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
            self._send(self._client.log_batch, run_id, metrics=some)
        for some in _batches([Param(key, value) for key, value in (params or {}).items()], _MAX_PARAMS):
            self._send(self._client.log_batch, run_id, params=some)
        for some in _batches([RunTag(key, value) for key, value in (tags or {}).items()], _MAX_TAGS):
            self._send(self._client.log_batch, run_id, tags=some)

    def tag_experiment(self, key: str, value: str) -> None:
        """Set a tag of the experiment that the study is in."""
        self._client.set_experiment_tag(self.experiment_id, key, value)

    def end_run(self, run_id: str, status: str, time_ms: int) -> None:
        """Give a run its final status and its end."""
        self._send(self._client.set_terminated, run_id, status=status, end_time=time_ms)

    def set_running(self, run_id: str) -> None:
        """Give a run the status RUNNING; MLflow keeps an earlier end until the next one."""
        self._send(self._client.update_run, run_id, status="RUNNING")

    def upload(self, path: Path, *, to: str | None = None) -> None:
        """Put a file among the study's artifacts, if it exists; `to` names a folder there."""
        if path.exists():
            self._store_artifact(path.name, self._client.log_artifact, local_path=str(path), artifact_path=to)

    def upload_text(self, text: str, name: str) -> None:
        """Put a text among the study's artifacts."""
        self._store_artifact(name, self._client.log_text, text=text, artifact_file=name)

    def count_trials(self) -> int:
        """Return the number of the study's active trial runs."""
        return len(self._search({STUDY_ID: self._identity.study_id, ROLE: "trial"}))

    def _find_or_create_experiment(self) -> str:
        """Return the experiment of the study's name; studies of one name share it and differ by their tags."""
        name = self._identity.name
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            # Without the tag MLflow 3 opens the experiment as one of language models.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return str(self._client.create_experiment(name, artifact_location=self._artifact_location(), tags=tags))
        if experiment.lifecycle_stage != "active":  # MLflow takes no second one of its name
            _log.warning("experiment %r was deleted in MLflow: restored", name)
            self._client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def _artifact_location(self) -> str | None:
        """Return a folder beside an SQLite database, absolute for `mlflow ui`; a server chooses itself."""
        database = sqlite_path(self._uri)
        if database is None:
            return None
        return str(database.parent / "mlruns" / re.sub(r"[^\w.-]", "_", self._identity.name))

    def _find_or_create_parent(self) -> str:
        key = study_key(self._identity)
        if runs := self._search(key):
            return self._keep_one(runs)
        return self._create(self._identity.name, milliseconds(self._identity.created), key)

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

    def _search(self, tags: Mapping[str, str], view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
        """Return the runs that carry all of `tags`; read completely, because callers delete what they get."""
        text = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        runs: list[Run] = []
        token: str | None = None
        while True:
            page = self._client.search_runs([self.experiment_id], text, view, _PAGE, page_token=token)
            runs += page
            if not (token := page.token):
                return runs

    def _send(self, call: Callable[..., object], run_id: str, **arguments: Any) -> None:
        """Change a run. What MLflow never accepts is passed over: a run that a person deleted holds up nothing."""
        try:
            call(run_id, **arguments)
        except MlflowException as error:
            if error.error_code not in (_MISSING, _REFUSED) or not self._has_study():
                raise
            _log.warning("MLflow refused a change to run %s: %s", run_id, error)

    def _has_study(self) -> bool:
        """Return whether the study's own run is still there; without it everything is to be sent again."""
        return bool(self._client.get_run(self.parent_run_id).info.lifecycle_stage == "active")

    def _store_artifact(self, name: str, call: Callable[..., object], **arguments: Any) -> None:
        """Store an artifact of the study. A store that fails while MLflow works holds up nothing else."""
        try:
            call(self.parent_run_id, **arguments)
        except Exception as error:  # noqa: BLE001 (every kind of artifact store raises its own)
            self._client.get_run(self.parent_run_id)  # raises when MLflow is away: sent again later
            _log.warning("%s could not be stored as an artifact: %s", name, error)


def _age(run: Run) -> tuple[int, str]:
    return run.info.start_time, run.info.run_id


def _batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def create_database(path: Path) -> None:
    """Create MLflow's SQLite database at `path`, whole or not at all; one that is there stays as it is.

    MLflow makes its tables in place, for seconds; a database that a kill leaves half-made it never opens again.
    """
    if path.exists():
        return
    content = _new_database()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        _link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@functools.cache
def _new_database() -> bytes:
    """Return a database with MLflow's tables; its steps from version to version take seconds."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "mlflow.db"
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        return made.read_bytes()


def _link(draft: Path, path: Path) -> None:
    """Give a whole file its name; one that another process has put there meanwhile stays."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            draft.replace(path)
