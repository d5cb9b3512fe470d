"""A mirror shows a study outside of its records: what each kind of place must answer, the points, TensorBoard, Optuna.

A mirror sends the records in their order, each at least once and to the effect of exactly once: one that was killed
goes on behind the last records that it is sure of, and a record that it meets again changes nothing.
"""

import contextlib
import math
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct, structs

from study.errors import StudyError
from study.metrics import CUSTOM, METRICS
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    Metrics,
    OfTrial,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    Whole,
    read_lines,
)
from study.space.spec import StudySpec


class State(Struct, frozen=True, kw_only=True):
    """How far a mirror has come, as its file in the study's folder says: byte and number of the next record, and more.

    `pid` wrote it; `error` is why the place does not take the study now; the ids are those of the study in MLflow.
    """

    offset: Whole = 0
    seq: Whole = 0
    pid: Whole = 0
    error: str = ""
    experiment_id: str = ""
    parent_run_id: str = ""


class Mirror(ABC):
    """Sends one study to one place.

    Attributes:
        key, name: The kind in file names, and for people.
        chunk: Most records that are sent at once.
        opened: Whether the study was found or created there since the last failure.
        last, ledger: The last line that was sent, and the state of the study up to there.
        failure: Why the place did not take the last records; None where it did.
        due: When to try again, on the clock of `time.monotonic`.
        done: Whether nothing more is to be sent.
        answer: What the study says, as Markdown, for a place that shows it.
    """

    key: ClassVar[str]
    name: ClassVar[str]
    chunk: ClassVar[int] = 500

    def __init__(self, folder: StudyFolder) -> None:
        self.folder, self.identity, self.opened, self.answer = folder, folder.identity(), False, ""
        self.last: Line | None = None
        self.ledger, self.done, self.due = Ledger(), False, 0.0
        self.failure: StudyError | None = None
        self.state_file = folder.path / f"mirror{'' if self.key == 'mlflow' else f'-{self.key}'}.json"

    @cached_property
    def spec(self) -> StudySpec:
        """The space."""
        return self.identity.parse()

    @property
    @abstractmethod
    def address(self) -> str:
        """The address that belongs to the study; empty where it has none of this kind."""

    @abstractmethod
    def open(self) -> None:
        """Find or create the study in the place; pass over, with `shown`, the records that are there already.

        Called again after every failure, with an empty ledger: nothing that was sent before is known to be there.
        """

    @abstractmethod
    def send(self, lines: list[Line]) -> None:
        """Show some records, by `shown`; those that were shown before change nothing."""

    def end(self) -> None:  # noqa: B027 (not every place has it)
        """Show the study as ended, where the place has a status for it."""

    @property
    def state(self) -> State:
        """How far the mirrors of this place have come; nowhere where the file is damaged: all is sent again."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=State)
        except (OSError, ValueError, RecursionError):
            return State()

    def note(self, error: str = "", **ids: str | None) -> None:
        """Write down how far this mirror has come, and its ids of the study; or why the place takes no more."""
        cursor = {} if error else dict(zip(("offset", "seq"), self.cursor, strict=True))
        state = structs.replace(self.state, pid=os.getpid(), error=error, **cursor, **ids)
        write_atomically(self.state_file, msgspec.json.encode(state))

    @property
    def behind(self) -> int:
        """Complete records that the place has not got, as far as this is known: at most so many."""
        with contextlib.suppress(FileNotFoundError), self.folder.records.open("rb") as file:
            file.seek(max(self.state.offset, 0))
            return sum(line.endswith(b"\n") for line in file)
        return 0

    @property
    def cursor(self) -> tuple[int, int]:
        """Byte offset and number of the next record to send."""
        return (self.last.end, self.last.seq + 1) if self.last else (0, 0)

    def step(self) -> int:
        """Send some of the next records and return their number; 0 at the end of the records.

        Whatever the place raises when it is away passes through; nothing is lost by it, call again.
        """
        is_new, self.opened = not self.opened, False
        if is_new:
            self.ledger, self.last = Ledger(), None
            self.open()
        offset, seq = self.cursor
        lines = list(islice(read_lines(self.folder.records, offset=offset, first_seq=seq), self.chunk))
        self.send(lines)
        if lines or is_new:
            self.note()
        self.opened = True
        return len(lines)

    def shown(self, lines: Iterable[Line]) -> Iterator[tuple[Line, list["Point"]]]:
        """Yield each line with the points that it adds to its trial, and take it into the ledger thereafter.

        What an attempt said after another one had replaced it is passed over.
        """
        for line in lines:
            self.last, record, points = line, line.record, list[Point]()
            if isinstance(record, OfTrial) and not isinstance(record, TrialStarted):
                row = self.ledger.rows.get(record.trial)
                if row is not None and row.attempt != record.attempt:
                    continue
                points = [] if row is None else points_of(line, row)
            yield line, points
            fold_lines([line], self.folder.records, self.ledger)


# --- points -----------------------------------------------------------------------------------------------------------


_MIRRORED = {name for name, metric in METRICS.items() if metric.section}


class Point(NamedTuple):
    """One value of one metric, at the time of its record and after so many environment steps of training."""

    key: str
    value: float
    time_ms: int
    step: int


def milliseconds(time_s: float) -> int:
    """Return seconds since the epoch as whole milliseconds."""
    return round(time_s * 1000)


def points_of(line: Line, row: TrialRow) -> list[Point]:
    """Return what a record adds to the metrics of its trial, as which `row` was before; only quantities that exist."""
    record, time_ms, step = line.record, milliseconds(line.time), 0
    values: Metrics = {}
    match record:
        case TrialBuilt():
            values = {"startup_time_s": record.startup_time_s}
        case Iteration():
            step, values = record.env_steps, _values_of(record)
        case Evaluation():
            step, values = record.env_steps, {"eval_return": record.mean}
        case TrialEnded():
            # The last iteration has said some of it, at the same step.
            said = _values_of(row.last_iteration).items() if row.last_iteration else set()
            values = {name: at for name, at in record.summary.items() if name in METRICS and (name, at) not in said}
            step = max((each.env_steps for each in (row.last_iteration, row.last_evaluation) if each), default=0)
            # MLflow's latest value has the largest (step, time): that of the summary must be after the last one's.
            time_ms = max(time_ms, milliseconds(row.last_seen) + 1)
    known = {key: value for key, value in values.items() if value is not None and math.isfinite(value)}
    return [Point(key, float(value), time_ms, step) for key, value in known.items()]


def _values_of(record: Iteration) -> Metrics:
    values = {name: each for name, each in record.metrics.items() if name in _MIRRORED or name.startswith(CUSTOM)}
    return {**values, "wall_time_s": record.wall_time_s, "env_steps": record.env_steps}


# --- TensorBoard and Optuna: the engines are imported when they are opened -------------------------------------------


def tag_of(name: str) -> str:
    """Return the tag of a metric: its section and its name; TensorBoard shows a section of cards for each."""
    return name if name.startswith(CUSTOM) else f"{METRICS[name].section}/{name}"


def write_events(file: Path, *events: dict[str, Any]) -> None:
    """Append events, by the fields of TensorBoard's `Event`, to a file: length, content, and a checksum behind each."""
    event, checksum = import_module("tensorboardX.proto.event_pb2").Event, import_module("tensorboardX.record_writer")
    contents = [event(**fields).SerializeToString() for fields in events]
    parts = [part for content in contents for part in (struct.pack("<Q", len(content)), content)]
    with file.open("ab") as sink:
        sink.write(b"".join(part + struct.pack("<I", checksum.masked_crc32c(part)) for part in parts))


class TensorBoardMirror(Mirror):
    """Writes one study to event files, a folder for each trial, below the study's own; needs no TensorBoard.

    Nothing tells how much of an event file is there, so that each mirror writes them anew; the first events of a file
    let a TensorBoard that reads meanwhile drop what it has seen.
    """

    key, name = "tensorboard", "TensorBoard's folder"

    @property
    def address(self) -> str:
        """The study's folder of event files; empty where it keeps none."""
        return str(self.folder.tensorboard) if self.folder.tensorboard.is_dir() else ""

    def open(self) -> None:
        """Begin with the first record."""
        import_module("tensorboardX")  # before its first use, when trials run
        self.folder.make_tensorboard()
        self._files: dict[int, Path] = {}

    def send(self, lines: list[Line]) -> None:
        """Write what follows from some records."""
        for line, points in self.shown(lines):
            if isinstance(line.record, TrialStarted):
                self._files[line.record.trial] = self._begin(line.record, line.time)
            if isinstance(line.record, OfTrial) and points:
                events = [
                    {"wall_time": at.time_ms / 1000, "step": at.step, "summary": {"value": [value]}}
                    for at in points
                    for value in [{"tag": tag_of(at.key), "simple_value": at.value}]
                ]
                write_events(self._files[line.record.trial], *events)

    def _begin(self, record: TrialStarted, began: float) -> Path:
        """Begin the attempt's file, in place of those of earlier attempts and mirrors."""
        folder = self.folder.tensorboard / f"trial_{record.trial:05d}_r{record.num_env_runners}_s{record.seed}"
        folder.mkdir(exist_ok=True)
        for file in folder.glob("events.out.tfevents.*.study"):
            file.unlink(missing_ok=True)
        file = folder / f"events.out.tfevents.{time.time_ns()}.{record.attempt:05d}.study"
        first = {"wall_time": began, "file_version": "brain.Event:2"}
        write_events(file, first, {"wall_time": began, "session_log": {"status": "START"}})
        return file


class OptunaMirror(Mirror):
    """Enters each trial of the search, once it has ended, into the journal in the study's folder: `optuna-dashboard`.

    Behind a line that a kill tore nothing of a journal can be read, so that each mirror writes it anew. No proposal
    comes from it.
    """

    key, name = "optuna", "Optuna's journal"

    @property
    def address(self) -> str:
        """The journal; empty where nothing is tuned."""
        return str(self.folder.optuna_journal) if self.spec.tuned else ""

    def open(self) -> None:
        """Begin with the first record."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        for file in self.folder.path.glob("optuna.journal*"):
            file.unlink(missing_ok=True)
        storage = JournalStorage(JournalFileBackend(self.address, lock_obj=JournalFileOpenLock(self.address)))
        name = f"{self.identity.name}-{self.identity.study_id}"
        self._study = optuna.create_study(storage=storage, study_name=name, direction="maximize")

    def send(self, lines: list[Line]) -> None:
        """Enter the trials that have ended, in the order of the ends, so that Optuna numbers them as they came."""
        from study.designs.proposals import trial_of  # with Optuna, which `open` has imported

        ends = [record for line, _ in self.shown(lines) if isinstance(record := line.record, TrialEnded)]
        for row in [self.ledger.rows[end.trial] for end in ends if end.status != "interrupted"]:
            if row.optuna_number is not None:
                self._study.add_trial(trial_of(self.spec, row))
