"""Applies a study's records to MLflow, in order, each at least once and to the effect of exactly once.

May import MLflow only through `study.tracking.mlflow_store`. Holds no clock, no process and no retry: those are in
`study.tracking.mlflow_mirror`.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from study.errors import RecordError
from study.tracking import mirror_content as content
from study.tracking.folder import StudyFolder
from study.tracking.mirror_content import Point, milliseconds
from study.tracking.mirror_cursor import Attempt, Cursor, CursorFile, count_behind
from study.tracking.mlflow_store import StateLostError, StudyStore
from study.tracking.records import (
    Evaluation,
    Iteration,
    Line,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
)

_log = logging.getLogger(__name__)

_CHUNK = 500
"""Records between two writes of the cursor: what a kill makes the next mirror send again, at most."""


class Mirror:
    """One study's way into one MLflow. The caller holds `CursorFile.lock`."""

    def __init__(self, folder: StudyFolder, cursor_file: CursorFile) -> None:
        self._folder = folder
        self._file = cursor_file
        self._identity = folder.identity()
        self._spec = self._identity.parse()
        self._pending: dict[str, list[Point]] = defaultdict(list)
        self._store: StudyStore | None = None
        self._cursor: Cursor | None = None

    @property
    def attached(self) -> bool:
        """Whether experiment and parent run are known to exist."""
        return self._store is not None

    @property
    def behind(self) -> int:
        """Records that MLflow has not got."""
        return count_behind(self._folder.records, self._cursor)

    def attach(self) -> None:
        """Find or create the study in MLflow and go on where the last mirror stopped."""
        store = StudyStore(self._file.tracking_uri, self._identity)
        fresh = Cursor(experiment_id=store.experiment_id, parent_run_id=store.parent_run_id)
        cursor = self._file.read()
        places = (fresh.experiment_id, fresh.parent_run_id)
        if cursor is None or (cursor.experiment_id, cursor.parent_run_id) != places:
            cursor = fresh
        if cursor == fresh:
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
        """Send the next records, at most `_CHUNK`, and return their number; 0 at the end of the file.

        Raises:
            RecordError: The records cannot be trusted.
            Exception: Whatever MLflow raises when it is away; nothing is lost, call again.
        """
        store, cursor = self._attachment()
        start = cursor
        self._pending.clear()
        try:
            lines = self._read(cursor)
            for line in lines:
                cursor = self._apply(store, cursor, line)
            self._flush(store)
            if any(isinstance(line.record, (TrialEnded, StudyClosed)) for line in lines):
                store.upload(self._folder.table)
        except StateLostError:
            self._store = None
            raise
        if cursor != start:
            self._keep(cursor)
        return len(lines)

    def close(self) -> None:
        """Show the study as ended: no driver is at work. One that was never closed by its driver was killed."""
        store, cursor = self._attachment()
        if cursor.session_open:
            self._end(store, cursor, "KILLED", cursor.time)
            self._keep(replace(cursor, session_open=False, open={}))
        store.upload(self._folder.table)

    def count_trials(self) -> int:
        """Return the number of the study's active trial runs in MLflow."""
        store, _ = self._attachment()
        return store.count_trials()

    def _attachment(self) -> tuple[StudyStore, Cursor]:
        if self._store is None or self._cursor is None:
            raise RuntimeError("the mirror is not attached")  # a mistake of ours, not of the user's
        return self._store, self._cursor

    def _keep(self, cursor: Cursor) -> None:
        self._file.write(cursor)
        self._cursor = cursor

    def _read(self, cursor: Cursor) -> list[Line]:
        """Return the next records. After a power cut the file can be shorter than what MLflow got: begin again."""
        try:
            if cursor.offset > 0 and self._ends_before(cursor.offset):
                raise RecordError(f"{self._folder.records}: shorter than what was sent")
            return list(islice(read_lines(self._folder.records, offset=cursor.offset, first_seq=cursor.seq), _CHUNK))
        except RecordError as error:
            if cursor.offset == 0:
                raise
            _log.warning("the records changed behind the cursor, sending all of them again: %s", error)
            self._keep(Cursor(experiment_id=cursor.experiment_id, parent_run_id=cursor.parent_run_id))
            raise

    def _ends_before(self, offset: int) -> bool:
        try:
            return self._folder.records.stat().st_size < offset
        except FileNotFoundError:
            return True
