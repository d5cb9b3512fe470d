"""A mirror shows a study outside of its records: what each kind of place must answer, and the loops that follow.

The records are the only truth. A mirror sends them in their order, each at least once and to the effect of exactly
once: one that was killed goes on behind the last records that it is sure of, and a record that it meets again changes
nothing. A place that is away is asked again, ever more rarely, and then gets what it lacks.
"""

import contextlib
import hashlib
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from itertools import islice
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, structs

from study.errors import RecordError, StudyError, TrackingError
from study.harmless import mask_credentials
from study.mirrors.tracking_uri import passes, reason_of, refusal
from study.records.files import at_work, take, write_atomically
from study.records.folder import StudyFolder
from study.records.records import Line, Whole, read_lines

_log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two readings of the records, and between two attempts where somebody waits for the end."""
LONGEST_DELAY_S = 15.0
"""Seconds between two attempts at a place that stays away."""
SYNC_TIMEOUT_S = 30.0
"""Seconds without progress after which `sync` gives up."""
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
        address: Of the place.
        opened: Whether the study was found or created there since the last failure.
        is_held: Whether this mirror is the one that may send there.
        answer: What the study says, as Markdown, for a place that shows it.
    """

    key: ClassVar[str]
    name: ClassVar[str]
    place: ClassVar[str]
    chunk: ClassVar[int] = 500

    def __init__(self, folder: StudyFolder, address: str) -> None:
        self.folder, self.address, self.opened = folder, address, False
        self.is_held, self.answer = False, ""
        self._most = self.chunk
        own = address == self.address_of(folder)
        digest = "" if own else f"-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
        # Every address other than the study's own has files of its own.
        self.state_file = folder.path / f"mirror{'' if self.key == 'mlflow' else f'-{self.key}'}{digest}.json"
        self.lock = folder.path / f".{self.key}-mirror{digest}.lock"
        """Locked while a mirror sends: two of one place would double what they send."""
        self._seq, self._offset = 0, self.state.offset

    @classmethod
    @abstractmethod
    def address_of(cls, folder: StudyFolder) -> str | None:
        """Return the address that belongs to the study; None where it has none of this kind."""

    @classmethod
    def check(cls, address: str) -> str:
        """Return the absolute form of an address.

        Raises:
            TrackingError: It cannot be one.
        """
        return address

    @abstractmethod
    def open(self) -> tuple[int, int]:
        """Find or create the study in the place; return byte offset and number of the first record to send.

        Called again after every failure: nothing that was sent before is known to be there.
        """

    @abstractmethod
    def send(self, lines: list[Line]) -> None:
        """Show some records; those that were shown before change nothing."""

    @abstractmethod
    def count_trials(self) -> int:
        """Return the number of the study's trials that the place shows."""

    def show_status(self, *, ended: bool) -> None:  # noqa: B027 (not every place has it)
        """Show the study as running or as ended, where the place has a status for it."""

    def close(self) -> None:  # noqa: B027 (not every place has it)
        """Close the connection to the place."""

    @property
    def state(self) -> State:
        """How far the mirrors of this address have come; nowhere where the file is damaged: all is sent again."""
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

    def hold(self, stack: contextlib.ExitStack) -> None:
        """Lock the place until `stack` ends, unless it is; where the file system has no locks, it is not locked.

        Raises:
            TrackingError: Another mirror sends to the place.
        """
        if self.is_held:
            return
        if (taken := take(self.lock)) is None:
            where, rule = f"{self.place} {mask_credentials(self.address)}", "only one mirror may send to it"
            got = "another one at work: that of an earlier driver has not let go yet"
            fix = "None while the study runs, its own mirror keeps the place up to date; afterwards try again."
            raise TrackingError(where=where, rule=rule, got=got, fix=fix)
        self.is_held = True
        stack.callback(setattr, self, "is_held", False)
        stack.callback(os.close, taken)

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


class Orders:
    """When to stop following; may change meanwhile."""

    def __init__(self) -> None:
        self.finishing = False
        """Whether to stop at the end of the records."""
        self.patient = True
        """Whether to try again after an error; else a later mirror will."""
        self.deadline = math.inf
        """When to stop in any case, on the clock of `time.monotonic`."""
        self._changed = threading.Event()

    def finish(self, seconds: float, *, patient: bool = True) -> None:
        """Order a stop at the end of the records, after so many seconds at the latest."""
        self.finishing, self.patient, self.deadline = True, patient, time.monotonic() + seconds
        self._changed.set()

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the next order."""
        if self.finishing:
            time.sleep(max(min(seconds, self.deadline - time.monotonic()), 0.0))
        else:
            self._changed.wait(seconds)


def follow(mirror: Mirror, orders: Orders) -> None:
    """Send records to a place, and wait for further ones, until the orders say to stop; the state says how it went."""
    failures, delay, done = 0, 0.0, False
    with contextlib.ExitStack() as stack, contextlib.closing(mirror):
        while not done and time.monotonic() < orders.deadline:
            orders.pause(delay)
            try:
                mirror.hold(stack)
                was_open, finishing = mirror.opened, orders.finishing
                sent = mirror.step()
                done = finishing and not sent
                if done or not (was_open or finishing):
                    mirror.show_status(ended=done)
                failures, delay = 0, 0.0 if sent else POLL_S
            except Exception as error:  # noqa: BLE001 (MLflow, databases and proxies raise every kind)
                waits = mirror.is_held and not orders.finishing
                delay = min(2.0**failures, LONGEST_DELAY_S) if waits else POLL_S
                failures += 1
                done = not orders.patient or isinstance(error, RecordError)
                said = mask_credentials(str(refusal(error, mirror.address, mirror.place)))
                if said != mirror.state.error:
                    _log.warning("%s", reason_of(error), exc_info=None if isinstance(error, StudyError) else error)
                    mirror.note(error=said)


def sync(mirror: Mirror) -> tuple[int, int]:
    """Send to a place what it has not got, in the foreground.

    Returns:
        Records that were sent, and trials that the place shows.

    Raises:
        TrackingError: The place refuses, or has not answered for `SYNC_TIMEOUT_S` seconds; or another mirror is at
            work.
        RecordError: The records cannot be trusted, or the place knows trials that they do not.
    """
    total, deadline = 0, time.monotonic() + SYNC_TIMEOUT_S
    with contextlib.ExitStack() as stack, contextlib.closing(mirror):
        while True:
            try:
                mirror.hold(stack)
                if not (sent := mirror.step()):
                    if not at_work(mirror.folder.path):
                        mirror.show_status(ended=True)
                    return total, mirror.count_trials()
                total, deadline = total + sent, time.monotonic() + SYNC_TIMEOUT_S
            except Exception as error:
                if (mirror.is_held and not passes(error)) or time.monotonic() > deadline:
                    raise refusal(error, mirror.address, mirror.place) from error
                time.sleep(POLL_S)
