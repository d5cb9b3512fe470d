"""MLflow: one experiment for the name of a study, one run for the study, one below it for each attempt of a trial.

How far MLflow has caught up stands in a file of the study's folder. It is written after MLflow has taken the records
before it; what a kill leaves in between is sent again, and leaves the same state: MLflow stores a point of equal key,
time, step and value once, and runs are known by their tags. The records themselves go along as an artifact of the
study's run, by which `analysis` reads the study from MLflow.
"""

import contextlib
import functools
import json
import logging
import lzma
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from study.errors import RecordError
from study.harmless import mask_credentials
from study.mirrors import mlflow_content as content
from study.mirrors import mlflow_view as view
from study.mirrors.follower import IMPORTING, Mirror
from study.mirrors.mlflow_content import STUDY, Contents, Shown
from study.mirrors.tracking_uri import check_tracking_uri, reach, set_client_defaults, sqlite_path, with_time_limits
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.records import Line, StudyClosed, StudyOpened, TrialEnded, read_lines

_log = logging.getLogger(__name__)

UPLOAD_S = 60.0
"""Seconds at least between two uploads of the records while a study runs."""
_UPLOAD_SHARE = 0.05
"""Share of the time that uploads of the records may take."""
_LAST_TRIES = 2
"""Uploads of the records that are tried at the end."""
_MOST = {"metrics": 1000, "params": 100, "tags": 100}
"""MLflow's limits per batch."""
_PAGE = 1000
"""Runs per page of a search."""
_MISSING, _REFUSED = "RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"
"""MLflow's error codes for what is not there, and for what it never accepts, as for a deleted run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The next record to send, and where to."""

    experiment_id: str
    parent_run_id: str
    offset: int = 0
    """Byte of the records file at which the next record begins."""
    seq: int = 0
    """Number of the next record."""


class MlflowMirror(Mirror):
    """Sends one study to one MLflow."""

    key, name, place, option = "mlflow", "MLflow", "tracking URI", "--tracking-uri"

    def __init__(self, folder: StudyFolder, address: str) -> None:
        super().__init__(folder, address)
        self._identity = folder.identity()
        cursor = self.read_cursor()
        self._offset = cursor.offset if cursor else 0
        self._runs: dict[tuple[int, int], str | None] = {}
        """The run of each attempt, and of the study; None where it was deleted, and its records are passed over."""
        self._archive = _Archive(folder)

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str:
        """Return the tracking URI that the study was started with."""
        return folder.identity().tracking_uri

    @classmethod
    def check(cls, address: str) -> str:
        """Return the absolute form of a tracking URI."""
        return check_tracking_uri(address)

    def open(self) -> tuple[int, int]:
        """Find or create the study, and go on where the last mirror stopped."""
        set_client_defaults()
        with IMPORTING:
            from mlflow import MlflowClient

        reach(self.address, self.place)
        if (database := sqlite_path(self.address)) is not None:
            create_database(database)
        self._client = MlflowClient(tracking_uri=with_time_limits(self.address))
        self._contents = Contents(self._identity)
        self._experiment, cursor = self._find_or_create_experiment(), self.read_cursor()
        if cursor is not None:
            self._runs[STUDY] = cursor.parent_run_id
        self._tidy()
        if not self._runs.get(STUDY):
            self._create(self._contents.study)
        if cursor is None or (cursor.experiment_id, cursor.parent_run_id) != (self._experiment, self._study_run):
            self.forget()
            cursor = Cursor(experiment_id=self._experiment, parent_run_id=self._study_run)
        if cursor.seq:
            sent = takewhile(lambda line: line.end <= cursor.offset, read_lines(self.folder.records))
            for line in sent:
                self._contents.take(line)
            self._contents.sent()
        self._client.set_experiment_tag(self._experiment, *view.view_tag(self._identity, self._contents.spec))
        self._cursor = cursor
        return cursor.offset, cursor.seq

    def apply(self, line: Line) -> None:
        """Apply one record; what follows from it waits for a common batch."""
        self._contents.take(line)

    def flush(self, lines: list[Line]) -> None:
        """Send what waits, note in the folder how far MLflow has come, and upload the records, if it is time.

        A session's beginning is uploaded at once, so that who reads a study that goes on does not take it for ended.
        """
        begun = [line.record for line in lines if isinstance(line.record, StudyOpened)]
        for record in begun:
            self._upload_session(record)
        for run in list(self._contents.changed.values()):
            self._send_run(run)
        self._contents.sent()
        if lines:
            places = {"experiment_id": self._experiment, "parent_run_id": self._study_run}
            self._cursor = Cursor(**places, offset=lines[-1].end, seq=lines[-1].seq + 1)
            self.write_cursor(self._cursor)
        if any(isinstance(line.record, (TrialEnded, StudyClosed)) for line in lines):
            self._upload(self.folder.table)
        self._upload_records(at_once=bool(begun))

    def forget(self) -> None:
        """Remove the cursor, so that everything is sent again."""
        self._cursor_file.unlink(missing_ok=True)
        self._archive = _Archive(self.folder)

    def show_running(self) -> None:
        """Show the study as running: its driver is alive."""
        self._change(self._client.update_run, self._study_run, status="RUNNING")

    def show_ended(self) -> None:
        """Show the study as ended: no driver is at work. One that its driver has not closed was killed."""
        study = self._contents.study
        if study.status == "RUNNING":
            study.status, study.tags["status"] = "KILLED", "killed"
        self._contents.close(study.status)
        self.flush([])
        self._tidy()
        for _ in range(_LAST_TRIES):
            self._upload_records(at_once=True)
        for file in (self.folder.table, self.folder.certificate, self.folder.certificate_page):
            self._upload(file)
        for file in self.folder.clips.glob("[!.]*.*"):
            self._upload(file, to=self.folder.clips.name)

    def count_trials(self) -> int:
        """Return the number of the study's trials that MLflow shows."""
        return sum(run_id is not None for key, run_id in self._runs.items() if key != STUDY)

    # --- how far MLflow has come ---------------------------------------------------------------------------------

    def read_cursor(self) -> Cursor | None:
        """Return the cursor; None if there is none for this tracking URI, or it is damaged: then all is sent again."""
        try:
            known = json.loads(self._cursor_file.read_text())
            if known["tracking_uri"] != mask_credentials(self.address):
                return None
            cursor = Cursor(**{name: known[name] for name in Cursor.__dataclass_fields__})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        texts, numbers = (cursor.experiment_id, cursor.parent_run_id), (cursor.offset, cursor.seq)
        sound = all(type(each) is str for each in texts) and all(type(each) is int and each >= 0 for each in numbers)
        return cursor if sound else None

    def write_cursor(self, cursor: Cursor) -> None:
        """Replace the cursor.

        Raises:
            RecordError: Something else is in the place of its file.
        """
        file = self._cursor_file
        if file.is_dir():
            rule, got, fix = "must be a file", "a folder", "Remove it; the file is made anew."
            raise RecordError(where=str(file), rule=rule, got=got, fix=fix)
        write_atomically(file, json.dumps({"tracking_uri": mask_credentials(self.address), **asdict(cursor)}))

    @property
    def _cursor_file(self) -> Path:
        """`mirror.json` for the study's own tracking URI, `mirror-<digest>.json` for any other."""
        return self.file(self.folder.mirror_state.name)

    # --- MLflow --------------------------------------------------------------------------------------------------

    def _find_or_create_experiment(self) -> str:
        """Return the experiment of the study's name; studies of one name share it and differ by their tags."""
        name, client = self._identity.name, self._client
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # A folder beside an SQLite database, absolute for `mlflow ui`; a server chooses itself.
            database, location = sqlite_path(self.address), None
            if database is not None:
                location = str(database.parent / "mlruns" / re.sub(r"[^\w.-]", "_", name))
            # Without the tag MLflow 3 opens the experiment as one of language models.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return str(client.create_experiment(name, artifact_location=location, tags=tags))
        if experiment.lifecycle_stage != "active":  # MLflow takes no second one of its name
            _log.warning("experiment %r was deleted in MLflow: restored", name)
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def _tidy(self) -> None:
        """Learn which runs the study has, and leave one for itself and one for each trial.

        A creation that timed out for us and still succeeded leaves a second run; it may come late.
        """
        from mlflow.entities import ViewType

        text, token = content.search_text({content.STUDY_ID: self._identity.study_id}), ""
        runs: list[Any] = []
        while token is not None:
            page = self._client.search_runs([self._experiment], text, ViewType.ALL, _PAGE, page_token=token or None)
            runs, token = [*runs, *page], page.token
        known = {*self._runs.values()}
        runs.sort(key=lambda run: (run.info.run_id not in known, run.info.start_time, run.info.run_id))
        self._runs = {}
        for run in runs:
            if (key := content.key_of(run.data.tags)) is None:
                continue
            if run.info.lifecycle_stage != "active":
                self._runs.setdefault(key, None)
            elif self._runs.get(key):
                _log.warning("run %s was created twice: deleted", run.info.run_id)
                self._drop(run.info.run_id, content.DUPLICATE)
            else:
                self._runs[key] = str(run.info.run_id)
        last: dict[int, int] = {}
        for trial, attempt in self._runs:
            last[trial] = max(attempt, last.get(trial, 0))
        for key, run_id in self._runs.items():
            if run_id and key[1] < last[key[0]]:
                self._drop(run_id, content.SUPERSEDED)
                self._runs[key] = None

    @property
    def _study_run(self) -> str:
        """The id of the study's own run."""
        return self._runs[STUDY] or ""

    def _create(self, run: Shown) -> None:
        tags = content.key_tags(self._identity.study_id, run.key)
        if run.key != STUDY:
            tags[content.PARENT] = self._study_run
        made = self._client.create_run(self._experiment, start_time=run.start_ms, tags=tags, run_name=run.name)
        self._runs[run.key] = str(made.info.run_id)

    def _send_run(self, run: Shown) -> None:
        """Send what waits of a run, in as few batches as MLflow's limits allow; nothing to one that was deleted."""
        from mlflow.entities import Metric, Param, RunTag

        if run.key not in self._runs:
            self._create(run)
        if (run_id := self._runs[run.key]) is None:
            return
        tags = run.tags
        if run.key != STUDY and run.params:
            tags = {**tags, content.PARENT: self._study_run}  # a new one, where somebody deleted the study's run
        for kind, items in (
            ("metrics", [Metric(point.key, point.value, point.time_ms, point.step) for point in run.points]),
            ("params", [Param(key, str(value)) for key, value in run.params.items()]),
            ("tags", [RunTag(key, value) for key, value in tags.items()]),
        ):
            for start in range(0, len(items), _MOST[kind]):
                self._change(self._client.log_batch, run_id, **{kind: items[start : start + _MOST[kind]]})
        if run.status != "RUNNING":
            self._change(self._client.set_terminated, run_id, status=run.status, end_time=run.end_ms)
        elif run.key == STUDY:  # MLflow keeps an earlier end until the next one
            self._change(self._client.update_run, run_id, status="RUNNING")
        if run.replaced:
            if run.status == "RUNNING":
                self._change(self._client.set_terminated, run_id, status="KILLED", end_time=run.end_ms)
            self._drop(run_id, content.SUPERSEDED)
            self._runs[run.key] = None

    def _drop(self, run_id: str, why: str) -> None:
        self._change(self._client.set_tag, run_id, key=why, value="true")
        self._change(self._client.delete_run, run_id)

    def _change(self, call: Callable[..., object], run_id: str, **arguments: Any) -> None:
        """Change a run. What MLflow never accepts is passed over: a run that a person deleted holds up nothing.

        Without the study's own run everything is to be sent again.
        """
        from mlflow.exceptions import MlflowException

        try:
            call(run_id, **arguments)
        except MlflowException as error:
            if error.error_code not in (_MISSING, _REFUSED):
                raise
            if self._client.get_run(self._study_run).info.lifecycle_stage != "active":
                raise
            _log.warning("MLflow refused a change to run %s: %s", run_id, error)

    def _upload(self, path: Path, *, to: str | None = None) -> bool:
        """Put a file among the study's artifacts, if it exists; `to` names a folder there."""
        return path.exists() and self._store(
            path.name, self._client.log_artifact, local_path=str(path), artifact_path=to
        )

    def _store(self, name: str, call: Callable[..., object], **arguments: Any) -> bool:
        """Store an artifact; return whether that went well. A store that fails while MLflow works holds up nothing."""
        try:
            call(self._study_run, **arguments)
        except Exception as error:  # noqa: BLE001 (every kind of artifact store raises its own)
            self._client.get_run(self._study_run)  # raises when MLflow is away: sent again later
            _log.warning("%s could not be stored as an artifact: %s", name, error)
            return False
        return True

    def _upload_session(self, record: StudyOpened) -> None:
        """Upload what a session was begun with."""
        space = ""
        with contextlib.suppress(OSError):  # a kill may have left it out
            space = self.folder.space_file.read_text(encoding="utf-8", errors="replace")
        found = json.dumps({"cluster": record.cluster, "provenance": record.provenance}, indent=1)
        for name, text in (
            (self.folder.space_file.name, content.space_text(space, self._identity)),
            (self.folder.identity_file.name, content.identity_text(self._identity)),
            (f"provenance_session_{record.session}.json", found),
        ):
            if text:
                self._store(name, self._client.log_text, text=text, artifact_file=name)

    def _upload_records(self, *, at_once: bool) -> None:
        """Upload the records as far as they were sent, where something is new, and it is time."""
        cursor, archive = self._cursor, self._archive
        if cursor.offset == archive.uploaded or not (at_once or time.monotonic() >= archive.due):
            return
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            packed = Path(place) / self.folder.packed_records.name
            packed.write_bytes(archive.grown(cursor.offset))
            if self._upload(packed):
                archive.uploaded = cursor.offset
                self._change(self._client.set_tag, self._study_run, key=content.NUM_RECORDS, value=str(cursor.seq))
        now = time.monotonic()
        archive.due = now + max(UPLOAD_S, (now - begun) / _UPLOAD_SHARE)


class _Archive:
    """The records of a study, packed: each part is compressed once, and a file of several parts reads as one."""

    def __init__(self, folder: StudyFolder) -> None:
        self._records, self._packed, self._end = folder.records, bytearray(), 0
        self.uploaded = 0
        """Bytes of the records that this mirror has uploaded."""
        self.due = 0.0
        """When the next upload is due, on the clock of `time.monotonic`."""

    def grown(self, end: int) -> bytes:
        """Return the records before byte `end`, which never becomes less."""
        with self._records.open("rb") as file:
            file.seek(self._end)
            self._packed += lzma.compress(file.read(end - self._end), preset=0)  # 2 s for 66 MB; 6 takes 50 s
        self._end = end
        return bytes(self._packed)


def create_database(path: Path) -> None:
    """Create MLflow's SQLite database at `path`, whole or not at all; one that is there stays as it is.

    MLflow makes its tables in place, for seconds; a database that a kill leaves half-made it never opens again.
    """
    if path.exists():
        return
    database = _new_database()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(database)
        try:
            os.link(draft, path)
        except FileExistsError:  # another process has put its own there meanwhile
            pass
        except OSError:  # a file system without links
            if not path.exists():
                draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@functools.cache
def _new_database() -> bytes:
    """Return a database with MLflow's tables; its steps from version to version take seconds."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "mlflow.db"
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        return made.read_bytes()
