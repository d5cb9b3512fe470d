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
from study.mirrors.mlflow_content import Point, shown
from study.records.folder import StudyFolder
from study.records.ledger import Ledger
from study.records.records import Line, TrialEnded, TrialStarted

_ENDED = ".ended"


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
        for line, points in shown(lines, self._ledger, self.folder.records):
            record, trial = line.record, getattr(line.record, "trial", -1)
            if isinstance(record, TrialStarted):
                self._start(record, line.time)
            elif trial in self._files:
                self._files[trial].add(points)
                if isinstance(record, TrialEnded):
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

    def _start(self, record: TrialStarted, began: float) -> None:
        """Begin the attempt's file, in place of those of earlier attempts; not where it is complete."""
        if (earlier := self._files.pop(record.trial, None)) is not None:
            earlier.writer.close()
        path = self.folder.tensorboard / f"trial_{record.trial:05d}_r{record.num_env_runners}_s{record.seed}"
        try:
            if began <= float((path / _ENDED).read_text()):
                return
        except (OSError, ValueError):  # it had not ended
            pass
        path.mkdir(exist_ok=True)
        for file in (path / _ENDED, *path.glob("events.out.tfevents.*.study")):
            file.unlink(missing_ok=True)
        self._files[record.trial] = _File(path, record.attempt, began)


class _File:
    """The event file of an attempt under way."""

    def __init__(self, path: Path, attempt: int, began: float) -> None:
        with IMPORTING:
            event_file_writer, self._summary, self._event = (
                import_module(f"tensorboardX.{each}") for each in ("event_file_writer", "summary", "proto.event_pb2")
            )
        self._path, self._began, self._suffix = path, began, f".{attempt:05d}.study"
        self.writer = event_file_writer.EventsWriter(str(path / "events"), self._suffix)
        self._write(began, session_log=self._event.SessionLog(status=self._event.SessionLog.START))

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
