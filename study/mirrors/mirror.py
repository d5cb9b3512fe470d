"""A mirror shows a study outside of its records: what each kind of place must answer, and the points that they show.

The records are the only truth. A mirror sends them in their order, each at least once and to the effect of exactly
once: one that was killed goes on behind the last records that it is sure of, and a record that it meets again changes
nothing. What is shown follows from the records alone, never from the moment of sending.
"""

import contextlib
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
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

IMPORTING = threading.Lock()
"""Held while an engine is imported: mirrors have threads, and engines import each other."""


class State(Struct, frozen=True, kw_only=True):
    """How far a mirror has come: its file in the study's folder."""

    offset: Whole = 0
    """Byte of the records file at which the next record begins."""
    seq: Whole = 0
    """Number of the next record."""
    pid: Whole = 0
    """Process of the mirror that wrote it."""
    error: str = ""
    """Why the place does not take the study now."""
    experiment_id: str = ""
    parent_run_id: str = ""
    """The study's run in MLflow."""


class Mirror(ABC):
    """Sends one study to one place.

    Attributes:
        key: Identifies the kind, in file names and between processes.
        name: Of the kind, for people.
        place: What its address is called, for people.
        chunk: Most records that are sent at once.
        folder: The study.
        address: Of the place; empty where the study has none of this kind.
        opened: Whether the study was found or created there since the last failure.
        failure: Why the place did not take the last records; None where it did.
        answer: What the study says, as Markdown, for a place that shows it.
    """

    key: ClassVar[str]
    name: ClassVar[str]
    place: ClassVar[str]
    chunk: ClassVar[int] = 500

    def __init__(self, folder: StudyFolder) -> None:
        self.folder, self.address, self.opened = folder, self.address_of(folder), False
        self.failure: StudyError | None = None
        self.answer = ""
        self.state_file = folder.path / f"mirror{'' if self.key == 'mlflow' else f'-{self.key}'}.json"
        self._most, self._seq, self._offset = self.chunk, 0, self.state.offset

    @classmethod
    @abstractmethod
    def address_of(cls, folder: StudyFolder) -> str:
        """Return the address that belongs to the study; empty where it has none of this kind."""

    @abstractmethod
    def open(self) -> tuple[int, int]:
        """Find or create the study in the place; return byte offset and number of the first record to send.

        Called again after every failure: nothing that was sent before is known to be there.
        """

    @abstractmethod
    def send(self, lines: list[Line]) -> None:
        """Show some records; those that were shown before change nothing."""

    def show_status(self, *, ended: bool) -> None:  # noqa: B027 (not every place has it)
        """Show the study as running or as ended, where the place has a status for it."""

    def close(self) -> None:  # noqa: B027 (not every place has it)
        """Close the connection to the place."""

    @property
    def state(self) -> State:
        """How far the mirrors of this place have come; nowhere where the file is damaged: all is sent again."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=State)
        except (OSError, ValueError, RecursionError):
            return State()

    def note(self, **changes: Any) -> None:
        """Write down how far this mirror has come."""
        changes = {"pid": os.getpid(), "error": "", **changes}
        write_atomically(self.state_file, msgspec.json.encode(structs.replace(self.state, **changes)))

    @property
    def behind(self) -> int:
        """Complete records that the place has not got, as far as this is known: at most so many."""
        with contextlib.suppress(FileNotFoundError), self.folder.records.open("rb") as file:
            file.seek(max(self._offset, 0))
            return sum(line.endswith(b"\n") for line in file)
        return 0

    def step(self) -> int:
        """Send some of the next records and return their number; 0 at the end of the records.

        Whatever the place raises when it is away passes through; nothing is lost by it, call again. Fewer records are
        then tried, so that a slow server can take them before the client times out.

        Raises:
            RecordError: The records cannot be trusted.
        """
        try:
            if is_new := not self.opened:
                self._offset, self._seq = self.open()
                self.opened = True
            lines = list(islice(read_lines(self.folder.records, offset=self._offset, first_seq=self._seq), self._most))
            self.send(lines)
            if lines:
                self._offset, self._seq = lines[-1].end, lines[-1].seq + 1
            if lines or is_new:
                self.note(offset=self._offset, seq=self._seq)
        except Exception:
            self.opened = False
            self._most = max(self._most // 2, 1)
            raise
        self._most = min(self._most * 2, self.chunk)
        return len(lines)


# --- points -----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    time_ms: int
    """Milliseconds since the epoch, from the record."""
    step: int
    """Environment steps trained on."""


def milliseconds(time_s: float) -> int:
    """Return seconds since the epoch as whole milliseconds."""
    return round(time_s * 1000)


def shown(lines: Iterable[Line], ledger: Ledger, records: Path) -> Iterator[tuple[Line, list[Point]]]:
    """Yield each line with the points that it adds to its trial, and take it into the ledger thereafter.

    What an attempt said after another one had replaced it is passed over.
    """
    for line in lines:
        record, points = line.record, list[Point]()
        if isinstance(record, OfTrial) and not isinstance(record, TrialStarted) and record.trial in ledger.rows:
            row = ledger.rows[record.trial]
            if row.attempt != record.attempt:
                continue
            points = points_of(line, row)
        yield line, points
        fold_lines([line], records, ledger)


def points_of(line: Line, row: TrialRow) -> list[Point]:
    """Return what a record of a trial adds to its metrics; nothing for a quantity that does not exist.

    Args:
        line: The record.
        row: The trial as it was before the record.
    """
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
            said = _values_of(row.last_iteration) if row.last_iteration else {}
            values = {
                name: value
                for name, value in record.summary.items()
                if name in METRICS and (name not in said or said[name] != value)
            }
            step = max((each.env_steps for each in (row.last_iteration, row.last_evaluation) if each), default=0)
            # MLflow's latest value has the largest (step, time): that of the summary must be after the last one's.
            time_ms = max(time_ms, milliseconds(row.last_seen) + 1)
    return [
        Point(key, float(value), time_ms, step)
        for key, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def _values_of(record: Iteration) -> Metrics:
    metrics, episodes = record.metrics, record.metrics.get("num_episodes")
    values = {
        name: value
        for name, value in metrics.items()
        if name.startswith(CUSTOM)
        or (name in METRICS and METRICS[name].grain == "iteration" and METRICS[name].mirrored)
    }
    if episodes and (total := metrics.get("episode_return_sum")) is not None:
        values["training_return"] = total / episodes
    so_far = {"wall_time_s": record.wall_time_s, "env_steps": record.env_steps}
    return values | so_far | {"env_steps_per_s": metrics.get("env_steps_per_s")}
