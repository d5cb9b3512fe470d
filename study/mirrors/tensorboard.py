"""TensorBoard's event files, a folder for each trial, below the study's own. Needs no TensorBoard, but tensorboardX.

Event files can be continued and not amended. The file of an attempt that had not ended is therefore written anew by the
next mirror; its first event lets a TensorBoard that reads meanwhile drop what it has seen. The file `.ended` in a
trial's folder says which attempt is complete. The metrics, their names and their steps are those of MLflow; a tag has
its section before the name, so that TensorBoard shows few sections of cards that belong together.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from study.metrics import CUSTOM, METRICS
from study.mirrors.follower import IMPORTING, Mirror
from study.mirrors.mlflow_content import Point, points_of
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import Line, TrialEnded, TrialStarted

_ENDED = ".ended"
_SO_FAR = ("wall_time_s", "env_steps", "env_steps_per_s")
"""Metrics of which the last iteration has said what the summary says again."""


def tag_of(name: str) -> str:
    """Return the tag of a metric: its section and its name, such as `return/final_return`."""
    return name if name.startswith(CUSTOM) else f"{METRICS[name].section}/{name}"


class TensorBoardMirror(Mirror):
    """Writes one study to event files."""

    key, name, place = "tensorboard", "TensorBoard's folder", "TensorBoard folder"

    def __init__(self, folder: StudyFolder, address: str) -> None:
        super().__init__(folder, address)
        self._ledger = Ledger()
        self._files: dict[int, _File] = {}
        """Trial -> the file of its latest attempt, unless that is complete."""

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str | None:
        """Return the study's folder of event files; None where it keeps none."""
        return str(folder.tensorboard) if folder.tensorboard.is_dir() else None

    def open(self) -> tuple[int, int]:
        """Begin with the first record."""
        self.close()
        self.folder.make_tensorboard()
        self._ledger = Ledger()
        return 0, 0

    def send(self, lines: list[Line]) -> None:
        """Write what follows from some records; nothing for an attempt that is complete."""
        for line in lines:
            record, trial = line.record, getattr(line.record, "trial", -1)
            row, file = self._ledger.rows.get(trial), self._files.get(trial)
            if row is not None and not isinstance(record, TrialStarted):
                if row.attempt != getattr(record, "attempt", 0):  # one that was replaced has still said something
                    continue
                if file is not None:
                    points = points_of(line, row)
                    if isinstance(record, TrialEnded):
                        points = [point for point in points if point.key not in _SO_FAR or row.last_iteration is None]
                    file.add(points)
            fold_lines([line], self.folder.records, self._ledger)
            if isinstance(record, TrialStarted):
                self._start(self._ledger.rows[trial])
            elif isinstance(record, TrialEnded) and file is not None:
                self._files.pop(trial).end()
        for file in self._files.values():
            file.flush()

    def count_trials(self) -> int:
        """Return the number of trials that the folder shows."""
        return len(self._ledger.rows)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.writer.close()
        self._files = {}

    def _start(self, row: TrialRow) -> None:
        """Begin the attempt's file, in place of those of earlier attempts; not where it is complete."""
        if (earlier := self._files.pop(row.trial, None)) is not None:
            earlier.writer.close()
        path = self.folder.tensorboard / f"trial_{row.trial:05d}_r{row.num_env_runners}_s{row.seed}"
        try:
            if row.started <= float((path / _ENDED).read_text()):
                return
        except (OSError, ValueError):  # it had not ended
            pass
        path.mkdir(exist_ok=True)
        for file in (path / _ENDED, *path.glob("events.out.tfevents.*.study")):
            file.unlink(missing_ok=True)
        self._files[row.trial] = _File(path, row)


class _File:
    """The event file of an attempt under way."""

    def __init__(self, path: Path, row: TrialRow) -> None:
        with IMPORTING:
            event_file_writer, summary, event_pb2 = (
                import_module(f"tensorboardX.{each}") for each in ("event_file_writer", "summary", "proto.event_pb2")
            )
        self._suffix = f".{row.attempt:05d}.study"
        self.writer = event_file_writer.EventsWriter(str(path / "events"), self._suffix)
        self._path, self._began, self._event, self._summary = path, row.started, event_pb2, summary
        self._write(row.started, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def add(self, points: list[Point]) -> None:
        """Add points."""
        for point in points:
            summary = self._summary.scalar(tag_of(point.key), point.value)
            self._write(point.time_ms / 1000, step=point.step, summary=summary)

    def end(self) -> None:
        """Close the file of an attempt that has ended."""
        self.flush()
        self.writer.close()
        (self._path / _ENDED).write_text(repr(self._began))

    def flush(self) -> None:
        """Let the events reach the file.

        Raises:
            FileNotFoundError: It was removed meanwhile.
        """
        self.writer.flush()
        if not any(self._path.glob(f"events.out.tfevents.*{self._suffix}")):
            raise FileNotFoundError(2, "the event file was removed", str(self._path))

    def _write(self, time: float, **content: Any) -> None:
        self.writer.write_event(self._event.Event(wall_time=time, **content))
