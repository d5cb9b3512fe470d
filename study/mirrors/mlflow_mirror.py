"""MLflow: one experiment for the name of a study, one run for the study, one below it for each attempt of a trial.

How far MLflow has caught up stands in a file of the study's folder. It is written after MLflow has taken the records
before it; what a kill leaves in between is sent again. MLflow itself is touched only by `study.mirrors.mlflow_store`,
which `open` imports.
"""

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from study.errors import RecordError
from study.harmless import mask_credentials
from study.mirrors import mlflow_content as content
from study.mirrors import mlflow_view as view
from study.mirrors.base import Mirror
from study.mirrors.mlflow_content import Point, milliseconds
from study.mirrors.tracking_uri import check_tracking_uri, set_client_defaults
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    SettingsFrozen,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)
from study.space.spec import StudySpec

if TYPE_CHECKING:
    from study.mirrors.mlflow_store import StudyStore

_FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A trial's attempt that has begun and not ended."""

    attempt: int
    run_id: str | None
    """Its MLflow run; None when it was deleted there, and its records are passed over."""
    runners: int
    """The scale that its trial stands for."""
    startup: Point | None = None
    """Waits for the first iteration: MLflow shows metrics in the order in which they came, results first."""
    env_steps: int = 0
    """Environment steps of its last points."""
    time_ms: int = 0
    """Milliseconds since the epoch of its last points."""
    num_cut: int = 0
    """Evaluation episodes that did not end and were cut."""
    num_episodes: int = 0
    """Evaluation episodes."""

    @property
    def waiting(self) -> list[Point]:
        """Points that have not been sent."""
        return [] if self.startup is None else [self.startup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The next record to send, and what the records before it have left open."""

    experiment_id: str
    parent_run_id: str
    offset: Annotated[int, Field(ge=0, strict=True)] = 0
    """Byte of the records file at which the next record begins."""
    seq: Annotated[int, Field(ge=0, strict=True)] = 0
    """Number of the next record."""
    time: float = 0.0
    """Seconds since the epoch of the last record; 0 before the first."""
    status: str = "RUNNING"
    """MLflow status of the study after the last record; RUNNING when its driver has not closed it."""
    open: Mapping[int, Attempt] = field(default_factory=dict)
    """Attempts under way, by trial."""
    best: Mapping[int, float] = field(default_factory=dict)
    """Scale -> largest final return of a finished trial."""


class MlflowMirror(Mirror):
    """Sends one study to one MLflow."""

    key, name, place, option = "mlflow", "MLflow", "tracking URI", "--tracking-uri"

    def __init__(self, folder: StudyFolder, address: str) -> None:
        super().__init__(folder, address)
        self._identity = folder.identity()
        self._known_store: StudyStore | None = None
        self._pending: dict[str, list[Point]] = defaultdict(list)
        cursor = self.read_cursor()
        self._cursor = cursor or Cursor(experiment_id="", parent_run_id="")
        self._offset = self._cursor.offset

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str:
        """Return the tracking URI that the study was started with."""
        return folder.identity().tracking_uri

    @classmethod
    def check(cls, address: str) -> str:
        """Return the absolute form of a tracking URI after looking whether MLflow can be there."""
        return check_tracking_uri(address)

    def open(self) -> tuple[int, int]:
        """Find or create the study, and go on where the last mirror stopped."""
        set_client_defaults()
        from study.mirrors.mlflow_store import StudyStore

        store = StudyStore(self.address, self._identity)
        fresh = Cursor(experiment_id=store.experiment_id, parent_run_id=store.parent_run_id)
        cursor = self.read_cursor()
        places = (fresh.experiment_id, fresh.parent_run_id)
        if cursor is None or (cursor.experiment_id, cursor.parent_run_id) != places:
            self.forget()
            cursor = fresh
        if cursor.seq == 0:
            params, tags = content.study_params(self._spec), content.study_tags(self._identity, self._spec)
            store.log(store.parent_run_id, params=params, tags={**tags, content.COLOUR: view.STUDY_COLOUR})
        store.tag_experiment(*view.view_tag(self._identity, self._spec))
        self._known_store, self._cursor = store, cursor
        self._pending.clear()
        return cursor.offset, cursor.seq

    def apply(self, line: Line) -> None:
        """Apply one record; points only wait, for a common batch."""
        time_ms = milliseconds(line.time)
        self._cursor = replace(self._cursor, offset=line.end, seq=line.seq + 1, time=line.time)
        match line.record:
            case StudyOpened() as record:
                self._open_study(record)
            case TrialStarted() as record:
                self._start_trial(record, time_ms)
            case TrialBuilt() as record:
                if (run_id := self._run(record)) is not None:
                    startup = next(iter(content.built_points(record, time_ms)), None)
                    self._set_attempt(record.trial, replace(self._cursor.open[record.trial], startup=startup))
                    self._store.log(run_id, tags=content.built_tags(record))
            case Iteration() as record:
                self._wait(record, content.iteration_points(record, time_ms), time_ms)
            case Evaluation() as record:
                self._wait(record, content.evaluation_points(record, time_ms), time_ms)
            case TrialEnded() as record:
                self._end_trial(record, time_ms)
            case SettingsFrozen() as record:
                self._store.log(self._store.parent_run_id, tags=content.frozen_tags(record))
            case StudyClosed() as record:
                self._send_points()
                self._cursor = replace(self._cursor, status=content.STUDY_STATUS[record.reason])
                self._store.log(self._store.parent_run_id, tags=content.closed_tags(record))
                self._end_study()

    def flush(self, lines: list[Line]) -> None:
        """Send the points that wait and note in the folder how far MLflow has come."""
        self._send_points()
        if any(isinstance(line.record, (TrialEnded, StudyClosed)) for line in lines):
            self._store.upload(self.folder.table)
        if lines:
            self.write_cursor(self._cursor)

    def forget(self) -> None:
        """Remove the cursor, so that everything is sent again."""
        self._cursor_file.unlink(missing_ok=True)

    def show_running(self) -> None:
        """Show the study as running: its driver is alive."""
        self._store.set_running(self._store.parent_run_id)

    def show_ended(self) -> None:
        """Show the study as ended: no driver is at work. One that its driver has not closed was killed."""
        store, cursor = self._store, self._cursor
        if cursor.status == "RUNNING":
            self._cursor = replace(cursor, status="KILLED", time=cursor.time or self._identity.created)
            store.log(store.parent_run_id, tags={"status": "killed"})
        self._end_study()
        store.upload(self.folder.table)
        for file in (self.folder.certificate, self.folder.certificate_page):
            store.upload(file)
        for file in self.folder.clip_files:
            store.upload(file, to=self.folder.clips.name)
        self.write_cursor(self._cursor)

    def count_trials(self) -> int:
        """Return the number of the study's trials that MLflow shows."""
        return self._store.count_trials()

    @cached_property
    def _spec(self) -> StudySpec:
        return self._identity.parse()

    # --- how far MLflow has come ---------------------------------------------------------------------------------

    def read_cursor(self) -> Cursor | None:
        """Return the cursor; None if there is none for this tracking URI, or it is damaged: then all is sent again."""
        try:
            content = json.loads(self._cursor_file.read_text())
            if content.pop("format") != _FORMAT or content.pop("tracking_uri") != mask_credentials(self.address):
                return None
            return TypeAdapter(Cursor).validate_python(content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def write_cursor(self, cursor: Cursor) -> None:
        """Replace the cursor.

        Raises:
            RecordError: Something else is in the place of its file.
        """
        file = self._cursor_file
        if file.is_dir():
            rule, got, fix = "must be a file", "a folder", "Remove it; the file is made anew."
            raise RecordError(where=str(file), rule=rule, got=got, fix=fix)
        content = {"format": _FORMAT, "tracking_uri": mask_credentials(self.address), **asdict(cursor)}
        write_atomically(file, json.dumps(content))

    @property
    def _cursor_file(self) -> Path:
        """`mirror.json` for the study's own tracking URI, `mirror-<digest>.json` for any other."""
        return self.file(self.folder.mirror_state.name)

    # --- what a record changes -----------------------------------------------------------------------------------

    @property
    def _store(self) -> "StudyStore":
        assert self._known_store is not None, "open() comes first"
        return self._known_store

    def _send_points(self) -> None:
        """Send the points that wait; before anything that ends or deletes a run."""
        for run_id, points in self._pending.items():
            self._store.log(run_id, points=points)
        self._pending.clear()

    def _run(self, record: TrialBuilt | Iteration | Evaluation | TrialEnded) -> str | None:
        """Return the run of the record's attempt; None when it is not open or its run was deleted."""
        attempt = self._cursor.open.get(record.trial)
        return attempt.run_id if attempt is not None and attempt.attempt == record.attempt else None

    def _set_attempt(self, trial: int, attempt: Attempt) -> None:
        self._cursor = replace(self._cursor, open={**self._cursor.open, trial: attempt})

    def _wait(self, record: Iteration | Evaluation, points: Sequence[Point], time_ms: int) -> None:
        """Let points wait for the next common batch."""
        if (run_id := self._run(record)) is not None:
            attempt = self._cursor.open[record.trial]
            self._pending[run_id] += [*points, *attempt.waiting]
            attempt = replace(attempt, env_steps=record.env_steps, time_ms=time_ms, startup=None)
            if isinstance(record, Evaluation):
                num_episodes = attempt.num_episodes + len(record.returns)
                attempt = replace(attempt, num_cut=attempt.num_cut + record.num_cut, num_episodes=num_episodes)
            self._set_attempt(record.trial, attempt)

    def _open_study(self, record: StudyOpened) -> None:
        store = self._store
        store.log(store.parent_run_id, tags=content.opened_tags(record))
        store.set_running(store.parent_run_id)
        space = ""
        with contextlib.suppress(OSError):  # a kill may have left it out
            space = self.folder.space_file.read_text(encoding="utf-8", errors="replace")
        if shown := content.space_text(space, self._identity):
            store.upload_text(shown, self.folder.space_file.name)
        store.upload_text(content.identity_text(self._identity), self.folder.identity_file.name)
        found = json.dumps({"cluster": record.cluster, "provenance": record.provenance}, indent=1)
        store.upload_text(found, f"provenance_session_{record.session}.json")
        self._cursor = replace(self._cursor, status="RUNNING")

    def _start_trial(self, record: TrialStarted, time_ms: int) -> None:
        self._send_points()
        store = self._store
        if record.attempt > 1:
            store.supersede(record.trial, record.attempt, time_ms)
        name, runners = content.trial_name(record), content.runners_of(record)
        run_id = store.find_or_create_trial(record.trial, record.attempt, name=name, time_ms=time_ms)
        if run_id is not None:
            tags = {"status": "running", content.COLOUR: view.colour_of(runners, self._spec)}
            tags[content.PARENT] = store.parent_run_id  # a new one, where somebody deleted the study's run
            store.log(run_id, params=content.trial_params(record, self._spec), tags=tags)
        self._set_attempt(record.trial, Attempt(attempt=record.attempt, run_id=run_id, runners=runners))

    def _end_trial(self, record: TrialEnded, time_ms: int) -> None:
        if (run_id := self._run(record)) is None:
            return
        store, attempt = self._store, self._cursor.open[record.trial]
        # MLflow's latest value has the largest (step, time): that of the summary must be after the last iteration's.
        points = content.ended_points(record, max(time_ms, attempt.time_ms + 1), attempt.env_steps)
        self._pending[run_id] = [*points, *self._pending[run_id], *attempt.waiting]
        self._send_points()
        tags = content.ended_tags(record, num_cut=attempt.num_cut, num_episodes=attempt.num_episodes)
        store.log(run_id, tags=tags)
        if record.status == "finished":
            self._show_best(attempt.runners, record, time_ms)
        store.end_run(run_id, content.RUN_STATUS[record.status], time_ms)
        store.drop_duplicates(record.trial, record.attempt, keep=run_id)
        still_open = {trial: item for trial, item in self._cursor.open.items() if trial != record.trial}
        self._cursor = replace(self._cursor, open=still_open)

    def _show_best(self, runners: int, record: TrialEnded, time_ms: int) -> None:
        """Show the trial's return with the study's run, if it is the best one of its scale so far."""
        value = record.summary.get("final_return")
        if value is None or value <= self._cursor.best.get(runners, -math.inf):
            return
        point = Point(key=content.BEST.format(runners), value=value, time_ms=time_ms, step=0)
        self._store.log(self._store.parent_run_id, points=[point])
        self._cursor = replace(self._cursor, best={**self._cursor.best, runners: value})

    def _end_study(self) -> None:
        """End the parent run and what still runs below it; a resume may yet end or supersede those trials."""
        store, cursor = self._store, self._cursor
        for attempt in cursor.open.values():
            if attempt.run_id is not None:
                store.log(attempt.run_id, points=attempt.waiting, tags={"status": "interrupted"})
                store.end_run(attempt.run_id, "KILLED", milliseconds(cursor.time))
        store.end_run(store.parent_run_id, cursor.status, milliseconds(cursor.time))
