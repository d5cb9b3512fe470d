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
from study.mirrors.mirror import IMPORTING, Mirror, shown
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

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(folder)
        self._ledger = Ledger()
        self._writers: dict[int, Any] = {}
        """Trial -> what writes the file of its latest attempt, unless that is complete."""

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str:
        """Return the study's folder of event files; empty where it keeps none."""
        return str(folder.tensorboard) if folder.tensorboard.is_dir() else ""

    def open(self) -> tuple[int, int]:
        """Begin with the first record."""
        with IMPORTING:
            names = ("event_file_writer", "summary", "proto.event_pb2")
            self._files, self._summary, self._event = (import_module(f"tensorboardX.{name}") for name in names)
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
            elif (writer := self._writers.get(trial)) is not None:
                for point in points:
                    summary = self._summary.scalar(tag_of(point.key), point.value)
                    event = self._event.Event(wall_time=point.time_ms / 1000, step=point.step, summary=summary)
                    writer.write_event(event)
                if isinstance(record, TrialEnded):
                    writer.flush()
                    self._writers.pop(trial).close()
                    row = self._ledger.rows[trial]
                    (self._place(row) / _ENDED).write_text(repr(row.started))
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _place(self, trial: TrialStarted) -> Path:
        return self.folder.tensorboard / f"trial_{trial.trial:05d}_r{trial.num_env_runners}_s{trial.seed}"

    def _start(self, record: TrialStarted, began: float) -> None:
        """Begin the attempt's file, in place of those of earlier attempts; not where it is complete."""
        if (earlier := self._writers.pop(record.trial, None)) is not None:
            earlier.close()
        path = self._place(record)
        try:
            if began <= float((path / _ENDED).read_text()):
                return
        except (OSError, ValueError):  # it had not ended
            pass
        path.mkdir(exist_ok=True)
        for file in (path / _ENDED, *path.glob("events.out.tfevents.*.study")):
            file.unlink(missing_ok=True)
        writer = self._files.EventsWriter(str(path / "events"), f".{record.attempt:05d}.study")
        first = self._event.SessionLog(status=self._event.SessionLog.START)
        writer.write_event(self._event.Event(wall_time=began, session_log=first))
        self._writers[record.trial] = writer
