"""Applies a study's records to MLflow, in order: each at least once, and to the effect of exactly once.

Touches MLflow only through `study.mirrors.mlflow_store`. Clock, process and retries are elsewhere: in
`study.mirrors.mirror_worker` (beside a driver) and `study.mirrors.mlflow_mirror` (in the foreground).
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from study.errors import RecordError
from study.mirrors import mirror_content as content
from study.mirrors.mirror_content import Point, milliseconds
from study.mirrors.mirror_cursor import Attempt, Cursor, CursorFile, count_behind
from study.mirrors.mlflow_store import StateLostError, StudyStore
from study.records.folder import StudyFolder
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    SettingsFrozen,
    StageDecided,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
)

_log = logging.getLogger(__name__)

_CHUNK = 500
"""Most records between two writes of the cursor: what the next mirror sends again after a kill."""


class Mirror:
    """One study's way into one MLflow. The caller holds `CursorFile.lock`."""

    def __init__(self, folder: StudyFolder, file: CursorFile) -> None:
        self._folder = folder
        self._file = file
        self._identity = folder.identity()
        self._spec = self._identity.parse()
        self._store: StudyStore | None = None
        self._cursor = file.read()
        self._pending: dict[str, list[Point]] = defaultdict(list)
        self._chunk = _CHUNK

    @property
    def attached(self) -> bool:
        """Whether experiment and parent run were found or created."""
        return self._store is not None

    @property
    def behind(self) -> int:
        """Records that MLflow has not got."""
        return count_behind(self._folder.records, self._cursor)

    def attach(self) -> None:
        """Find or create the study in MLflow, and go on where the last mirror stopped."""
        store = StudyStore(self._file.tracking_uri, self._identity)
        fresh = Cursor(experiment_id=store.experiment_id, parent_run_id=store.parent_run_id)
        cursor = self._file.read()
        places = (fresh.experiment_id, fresh.parent_run_id)
        if cursor is None or store.restored or (cursor.experiment_id, cursor.parent_run_id) != places:
            self._file.forget()
            cursor = fresh
        if cursor.seq == 0:
            store.log(
                store.parent_run_id,
                params=content.study_params(self._spec),
                tags=content.study_tags(self._identity, self._spec),
            )
        self._store, self._cursor = store, cursor

    def set_running(self) -> None:
        """Show the study as running: its driver is alive."""
        store, _ = self._attachment()
        store.set_running(store.parent_run_id)

    def step(self) -> int:
        """Send some of the next records and return their number; 0 at the end of the file.

        Whatever MLflow raises when it is away passes through; nothing is lost by it, call again. Fewer
        records are then tried, so that a slow server can take them before the client times out.

        Raises:
            RecordError: The records cannot be trusted.
            StateLostError: MLflow lost the study; attach again.
        """
        store, cursor = self._attachment()
        cursor, lines = self._read(cursor)
        self._pending.clear()
        try:
            for line in lines:
                cursor = self._apply(store, cursor, line)
            self._flush(store)
            if any(isinstance(line.record, (TrialEnded, StudyClosed)) for line in lines):
                store.upload(self._folder.table)
        except StateLostError:
            self._file.forget()
            self._store = None
            raise
        except Exception:
            self._chunk = max(self._chunk // 2, 1)
            raise
        self._chunk = min(self._chunk * 2, _CHUNK)
        if lines:
            self._keep(cursor)
        return len(lines)

    def close(self) -> None:
        """Show the study as ended: no driver is at work. One that its driver has not closed was killed."""
        store, cursor = self._attachment()
        if cursor.status == "RUNNING":
            cursor = replace(cursor, status="KILLED", time=cursor.time or self._identity.created)
            store.log(store.parent_run_id, tags={"status": "killed"})
        self._end_study(store, cursor)
        store.upload(self._folder.table)
        for file in (self._folder.certificate, self._folder.certificate_page):
            store.upload(file)
        for file in self._folder.clip_files:
            store.upload(file, to=self._folder.clips.name)
        self._keep(cursor)

    def count_trials(self) -> int:
        """Return the number of the study's trials that MLflow shows."""
        store, _ = self._attachment()
        return store.count_trials()

    def _attachment(self) -> tuple[StudyStore, Cursor]:
        if self._store is None or self._cursor is None:
            raise RuntimeError("attach() comes first")  # a mistake of ours, not of a person's
        return self._store, self._cursor

    def _keep(self, cursor: Cursor) -> None:
        self._file.write(cursor)
        self._cursor = cursor

    def _read(self, cursor: Cursor) -> tuple[Cursor, list[Line]]:
        """Return the next records. A power cut can leave fewer than MLflow got: then all of them are next."""
        records = self._folder.records
        try:
            if cursor.offset > 0 and (not records.exists() or records.stat().st_size < cursor.offset):
                raise RecordError(f"{records}: shorter than what was sent")
            lines = read_lines(records, offset=cursor.offset, first_seq=cursor.seq)
            return cursor, list(islice(lines, self._chunk))
        except RecordError as error:
            if cursor.offset == 0:
                raise
            _log.warning("the records changed behind the mirror, all of them are sent again: %s", error)
        fresh = Cursor(experiment_id=cursor.experiment_id, parent_run_id=cursor.parent_run_id)
        return fresh, list(islice(read_lines(records), self._chunk))

    def _flush(self, store: StudyStore) -> None:
        """Send the points that wait; before anything that ends or deletes a run."""
        for run_id, points in self._pending.items():
            store.log(run_id, points=points)
        self._pending.clear()

    def _apply(self, store: StudyStore, cursor: Cursor, line: Line) -> Cursor:
        """Apply one record and return the cursor after it; points only wait, for a common batch."""
        time_ms = milliseconds(line.time)
        cursor = replace(cursor, offset=line.end, seq=line.seq + 1, time=line.time)
        match line.record:
            case StudyOpened() as record:
                return self._open_study(store, cursor, record)
            case TrialStarted() as record:
                return self._start_trial(store, cursor, record, time_ms)
            case TrialBuilt() as record:
                if (run_id := _run(cursor, record)) is not None:
                    self._pending[run_id] += content.built_points(record, time_ms)
                    store.log(run_id, tags=content.built_tags(record))
            case Iteration() as record:
                return self._wait(cursor, record, content.iteration_points(record, time_ms), time_ms)
            case Evaluation() as record:
                return self._wait(cursor, record, content.evaluation_points(record, time_ms), time_ms)
            case TrialEnded() as record:
                return self._end_trial(store, cursor, record, time_ms)
            case SettingsFrozen() | StageDecided() as record:
                store.log(store.parent_run_id, tags=content.frozen_tags(record))
            case StudyClosed() as record:
                self._flush(store)
                cursor = replace(cursor, status=content.STUDY_STATUS[record.reason])
                store.log(store.parent_run_id, tags=content.closed_tags(record))
                self._end_study(store, cursor)
        return cursor

    def _wait(self, cursor: Cursor, record: Iteration | Evaluation, points: Sequence[Point], time_ms: int) -> Cursor:
        """Let points wait for the next common batch."""
        if (run_id := _run(cursor, record)) is None:
            return cursor
        self._pending[run_id] += points
        attempt = replace(cursor.open[record.trial], env_steps=record.env_steps, time_ms=time_ms)
        return replace(cursor, open={**cursor.open, record.trial: attempt})

    def _open_study(self, store: StudyStore, cursor: Cursor, record: StudyOpened) -> Cursor:
        store.log(store.parent_run_id, tags=content.opened_tags(record))
        store.set_running(store.parent_run_id)
        store.upload(self._folder.space_file)
        store.upload_text(content.identity_text(self._identity), self._folder.identity_file.name)
        store.upload_text(content.opened_text(record), f"provenance_session_{record.session}.json")
        return replace(cursor, status="RUNNING")

    def _start_trial(self, store: StudyStore, cursor: Cursor, record: TrialStarted, time_ms: int) -> Cursor:
        self._flush(store)
        if record.attempt > 1:
            store.supersede(record.trial, record.attempt, time_ms)
        run_id = store.find_or_create_trial(
            record.trial, record.attempt, name=content.trial_name(record), time_ms=time_ms
        )
        if run_id is not None:
            store.log(run_id, params=content.trial_params(record, self._spec), tags={"status": "running"})
        attempt = Attempt(attempt=record.attempt, run_id=run_id)
        return replace(cursor, open={**cursor.open, record.trial: attempt})

    def _end_trial(self, store: StudyStore, cursor: Cursor, record: TrialEnded, time_ms: int) -> Cursor:
        if (run_id := _run(cursor, record)) is None:
            return cursor
        self._flush(store)
        attempt = cursor.open[record.trial]
        # MLflow's latest value has the largest (step, time): the summary must come after the last iteration.
        points = content.ended_points(record, max(time_ms, attempt.time_ms + 1), attempt.env_steps)
        store.log(run_id, points=points, tags=content.ended_tags(record))
        store.end_run(run_id, content.RUN_STATUS[record.status], time_ms)
        store.drop_duplicates(record.trial, record.attempt, keep=run_id)
        still_open = {trial: item for trial, item in cursor.open.items() if trial != record.trial}
        return replace(cursor, open=still_open)

    def _end_study(self, store: StudyStore, cursor: Cursor) -> None:
        """End the parent run and what still runs below it; a resume may yet end or supersede those trials."""
        for attempt in cursor.open.values():
            if attempt.run_id is not None:
                store.log(attempt.run_id, tags={"status": "interrupted"})
                store.end_run(attempt.run_id, "KILLED", milliseconds(cursor.time))
        store.end_run(store.parent_run_id, cursor.status, milliseconds(cursor.time))


def _run(cursor: Cursor, record: TrialBuilt | Iteration | Evaluation | TrialEnded) -> str | None:
    """Return the run of the record's attempt; None when it is not open or its run was deleted."""
    attempt = cursor.open.get(record.trial)
    return attempt.run_id if attempt is not None and attempt.attempt == record.attempt else None
