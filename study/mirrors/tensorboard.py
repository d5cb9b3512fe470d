"""TensorBoard's event files, a folder for each trial, below the study's own. Needs no TensorBoard, but tensorboardX.

Event files can be continued and not amended. The file of an attempt that had not ended is therefore written anew by the
next mirror; its first event lets a TensorBoard that reads meanwhile drop what it has seen. The file `.ended` in a
trial's folder says which attempt is complete. The metrics, their names and their steps are those of MLflow; a tag has
its section (`study.metrics`) before the name, so that TensorBoard shows few sections of cards that belong together.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from study.metrics import CUSTOM, METRICS
from study.mirrors import mlflow_content as content
from study.mirrors.follower import IMPORTING, Mirror
from study.mirrors.mlflow_content import Contents, Point, Shown
from study.records.folder import StudyFolder
from study.records.records import Line, TrialBuilt, TrialEnded, TrialStarted

_RESULTS = ("final_return", "score", "env_steps_per_s")
"""Metrics that the HPARAMS tab shows beside the settings."""
_ENDED = ".ended"
_STATUS = {"finished": "STATUS_SUCCESS", "failed": "STATUS_FAILURE"}


def without_torch(*modules: str) -> tuple[Any, ...]:
    """Import modules of tensorboardX as if torch were not installed; where it is imported already, nothing is saved.

    tensorboardX imports torch where that is installed: seconds and 200 MB in a process that only copies numbers.
    """
    with IMPORTING:
        hidden = "torch" not in sys.modules
        if hidden:
            sys.modules["torch"] = None  # type: ignore[assignment] # Python's import system then raises ImportError
        try:
            return tuple(import_module(f"tensorboardX.{module}") for module in modules)
        finally:
            if hidden:
                del sys.modules["torch"]


def tag_of(name: str) -> str:
    """Return the tag of a metric: its section and its name, such as `return/final_return`."""
    return name if name.startswith(CUSTOM) else f"{METRICS[name].section}/{name}"


class TensorBoardMirror(Mirror):
    """Writes one study to event files."""

    key, name, place, option = "tensorboard", "TensorBoard's folder", "TensorBoard folder", "--tensorboard"
    chunk: ClassVar[int] = 2000

    def __init__(self, folder: StudyFolder, address: str) -> None:
        super().__init__(folder, address)
        self._files: dict[tuple[int, int], _File] = {}

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str | None:
        """Return the study's folder of event files; None where it keeps none."""
        return str(folder.tensorboard) if folder.tensorboard.is_dir() else None

    def open(self) -> tuple[int, int]:
        """Begin with the first record."""
        self.close()
        self.folder.make_tensorboard()
        self._contents = Contents(self.folder.identity())
        return 0, 0

    def apply(self, line: Line) -> None:
        """Write what follows from one record; nothing for an attempt that is complete."""
        run = self._contents.take(line)
        if isinstance(line.record, TrialStarted) and run is not None:
            self._start(run, line.record, line.time)
        if run is not None and (file := self._files.get(run.key)) is not None:
            if isinstance(line.record, TrialBuilt):
                file.add_points(run.startup)
                run.startup = []
            file.add_points(run.points, anew=not isinstance(line.record, TrialEnded))
            match line.record:
                case TrialBuilt() as record:
                    file.add_table("built", content.built_tags(record), line.time)
                case TrialEnded() as record:
                    file.end(run, record, line.time)
                    del self._files[run.key]
        self._contents.sent()

    def flush(self, lines: list[Line]) -> None:
        """Let the events reach the files."""
        for file in self._files.values():
            file.flush()

    def count_trials(self) -> int:
        """Return the number of trials that the folder shows."""
        return len(self._contents.trials)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.writer.close()
        self._files = {}

    def _start(self, run: Shown, record: TrialStarted, time: float) -> None:
        """Begin the attempt's file, in place of those of earlier attempts."""
        for key in [key for key in self._files if key[0] == record.trial]:
            self._files.pop(key).writer.close()
        path = self.folder.tensorboard / f"trial_{record.trial:05d}_r{run.runners}_s{record.seed}"
        if time <= _began_of_ended(path):
            return
        path.mkdir(exist_ok=True)
        for file in (path / _ENDED, *path.glob("events.out.tfevents.*.study")):
            file.unlink(missing_ok=True)
        self._files[run.key] = _File(path, run, time)


class _File:
    """The event file of an attempt under way."""

    def __init__(self, path: Path, run: Shown, time: float) -> None:
        event_file_writer, summary, event_pb2 = without_torch("event_file_writer", "summary", "proto.event_pb2")

        self._suffix = f".{run.key[1]:05d}.study"
        self.writer = event_file_writer.EventsWriter(str(path / "events"), self._suffix)
        self._path, self._began, self._event, self._summary = path, time, event_pb2, summary
        self._steps: dict[str, int] = {}
        """Step of each metric's last point."""
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self.writer.write_event(event_pb2.Event(wall_time=time, session_log=restart))
        experiment, start, _ = summary.hparams(run.params, dict.fromkeys(map(tag_of, _RESULTS)))
        for each in (experiment, start):
            self._add(each, time)

    def add_points(self, points: Sequence[Point], *, anew: bool = True) -> None:
        """Add points; not anew where they were given at the same step: a summary repeats the last iteration."""
        for point in points:
            if anew or self._steps.get(point.key) != point.step:
                self._add(self._summary.scalar(tag_of(point.key), point.value), point.time_ms / 1000, point.step)
                self._steps[point.key] = point.step

    def add_table(self, tag: str, values: Mapping[str, str], time: float, step: int = 0) -> None:
        """Add a text that TensorBoard shows as a table."""
        rows = [f"| {name} | {' '.join(value.split()).replace('|', chr(92) + '|')} |" for name, value in values.items()]
        self._add(self._summary.text(tag, "\n".join(["| | |", "|---|---|", *rows])), time, step)

    def end(self, run: Shown, record: TrialEnded, time: float) -> None:
        """Add the outcome, and close the file."""
        tags = content.ended_tags(record, num_cut=run.num_cut, num_episodes=run.num_episodes)
        self.add_table("outcome", tags, time, run.env_steps)
        if record.status in _STATUS:  # an interrupted trial is not at its end
            self._add(_session_end(_STATUS[record.status], time), time, run.env_steps)
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

    def _add(self, summary: Any, time: float, step: int = 0) -> None:
        self.writer.write_event(self._event.Event(wall_time=time, step=step, summary=summary))


def _began_of_ended(path: Path) -> float:
    """Return when the attempt began whose file is complete, seconds since the epoch; 0 where none is."""
    try:
        return float((path / _ENDED).read_text())
    except (OSError, ValueError):
        return 0.0


def _session_end(status: str, time: float) -> Any:
    """Return what tells the HPARAMS tab how a trial ended; tensorboardX itself knows only success."""
    api_pb2, plugin_hparams_pb2, summary_pb2 = without_torch(
        "proto.api_pb2", "proto.plugin_hparams_pb2", "proto.summary_pb2"
    )
    end = plugin_hparams_pb2.SessionEndInfo(status=api_pb2.Status.Value(status), end_time_secs=time)
    raw = plugin_hparams_pb2.HParamsPluginData(session_end_info=end, version=0).SerializeToString()
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=raw)
    metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="_hparams_/session_end_info", metadata=metadata)])
