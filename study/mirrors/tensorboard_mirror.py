"""A study's trials as event files for TensorBoard, a folder for each, below the study's own. Imports no TensorBoard.

Follows the records like the mirror to MLflow, and keeps no cursor: the files follow from the records, so a mirror that
starts says all of them again, and what is there already stays as it is (`study.mirrors.event_file`).
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from study.errors import RecordError
from study.mirrors import mirror_content as content
from study.mirrors import tensorboard_events as events
from study.mirrors.event_file import EventFile
from study.mirrors.mirror_content import Point, milliseconds
from study.records.folder import StudyFolder
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    open_records,
    parse_line,
    raw_lines,
    read_lines,
)

_CHUNK = 2000
"""Most records between two looks at the driver's orders."""
_OURS, _RUNS = "events.out.tfevents.*.study", "trial_*"
_STARTED = f'"kind":"{TrialStarted.kind}"'.encode()


@dataclass(slots=True, kw_only=True)
class _Run:
    """An attempt under way."""

    attempt: int
    file: EventFile
    env_steps: int = 0
    """Environment steps of its last points."""
    steps: dict[str, int] = field(default_factory=dict)
    """Step of each metric's last point."""


class TensorBoardMirror:
    """One study's way into event files. The caller holds the lock of `study.mirrors.mirror_target`."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._spec = folder.identity().parse()
        self._attached = False
        self._begin({})

    @property
    def attached(self) -> bool:
        """Whether the folder is there, and free of trials that are not on record."""
        return self._attached

    @property
    def behind(self) -> int:
        """Records that the files have not got."""
        return sum(1 for _ in read_lines(self._folder.records, offset=self._offset, first_seq=self._seq))

    def attach(self) -> None:
        """Begin with the first record; remove what belongs to trials and attempts that the records do not know.

        Raises:
            RecordError: The records cannot be trusted.
        """
        self._folder.make_tensorboard()
        self._begin(_last_attempts(self._folder.records))
        kept = {events.run_name(record): record.attempt for record in self._latest.values()}
        for run in self._folder.tensorboard.glob(_RUNS):
            _remove_files(run, but=events.file_name(kept[run.name]) if run.name in kept else "")
        self._attached = True

    def set_running(self) -> None:
        """Do nothing: event files have no status."""

    def step(self) -> int:
        """Write what follows from some of the next records and return their number; 0 at the end of the records.

        Whatever the disk raises passes through; attach again, and call again.

        Raises:
            RecordError: The records cannot be trusted.
        """
        if not self._attached:
            raise RuntimeError("attach() comes first")  # a mistake of ours, not of a person's
        try:
            lines = self._read()
            for line in lines:
                self._apply(line)
            for run in self._open.values():
                run.file.write(complete=not lines)
        except Exception:
            self._attached = False  # what of it is on the disk is not known
            raise
        return len(lines)

    def close(self) -> None:
        """Do nothing: a file ends with its last event."""

    def count_trials(self) -> int:
        """Return the number of trials that the folder shows."""
        return len(self._latest)

    def _begin(self, latest: dict[int, TrialStarted]) -> None:
        self._latest, self._offset, self._seq = latest, 0, 0
        self._open: dict[int, _Run] = {}

    def _read(self) -> list[Line]:
        """Return the next records. A full disk can take back the last one: then all of them are next."""
        records = self._folder.records
        with contextlib.suppress(RecordError):
            if self._offset == 0 or records.stat().st_size >= self._offset:
                return list(islice(read_lines(records, offset=self._offset, first_seq=self._seq), _CHUNK))
        self.attach()
        return list(islice(read_lines(records), _CHUNK))

    def _apply(self, line: Line) -> None:
        self._offset, self._seq = line.end, line.seq + 1
        record, time_ms = line.record, milliseconds(line.time)
        if isinstance(record, TrialStarted):
            self._start(record, line.time)
        elif isinstance(record, TrialBuilt | Iteration | Evaluation | TrialEnded):
            run = self._open.get(record.trial)
            if run is None or run.attempt != record.attempt:
                return
            match record:
                case TrialBuilt():
                    self._add(run, content.built_points(record, time_ms), line.time)
                    run.file.add(events.built_event(record, line.time))
                case Iteration():
                    run.env_steps = record.env_steps
                    self._add(run, content.iteration_points(record, time_ms), line.time)
                case Evaluation():
                    run.env_steps = record.env_steps
                    self._add(run, content.evaluation_points(record, time_ms), line.time)
                case TrialEnded():
                    self._end(run, record, line.time)

    def _start(self, record: TrialStarted, time: float) -> None:
        """Begin the attempt's file; those of attempts before it go, and of one that is not the last none is written."""
        known = self._latest.get(record.trial)
        if known is not None and known.attempt > record.attempt:
            return
        self._latest[record.trial] = record
        path = self._folder.tensorboard / events.run_name(record)
        path.mkdir(exist_ok=True)
        _remove_files(path, but=events.file_name(record.attempt))
        run = _Run(attempt=record.attempt, file=EventFile(path / events.file_name(record.attempt)))
        for event in events.opening_events(record, self._spec, time):
            run.file.add(event)
        self._open[record.trial] = run

    def _add(self, run: _Run, points: Sequence[Point], time: float) -> None:
        for event in events.points_event(points, time):
            run.file.add(event)
        run.steps.update((point.key, point.step) for point in points)

    def _end(self, run: _Run, record: TrialEnded, time: float) -> None:
        """Add the summary, but for what the last iteration has said at the same step."""
        summary = content.ended_points(record, milliseconds(time), run.env_steps)
        self._add(run, [point for point in summary if run.steps.get(point.key) != point.step], time)
        run.file.add(events.ended_event(record, time, run.env_steps))
        run.file.write(complete=True)
        del self._open[record.trial]


def _last_attempts(records: Path) -> dict[int, TrialStarted]:
    """Return how the last attempt of each trial began; no other record is parsed."""
    if not records.exists():
        return {}
    latest: dict[int, TrialStarted] = {}
    with open_records(records) as file:
        for number, raw in enumerate(raw_lines(file, records), start=1):
            if _STARTED in raw and raw.endswith(b"\n"):
                record = parse_line(raw, f"{records}: line {number}", 0).record
                if isinstance(record, TrialStarted):
                    latest[record.trial] = record
    return latest


def _remove_files(run: Path, *, but: str) -> None:
    """Remove our files from a trial's folder, and the folder if nothing is left in it; what is not ours stays."""
    for file in run.glob(_OURS):
        if file.name != but:
            file.unlink()
    with contextlib.suppress(OSError):  # not empty
        if not but:
            run.rmdir()
