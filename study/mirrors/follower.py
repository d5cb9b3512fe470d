"""A mirror shows a study outside of its records: what each kind of place must answer, and the loop that follows.

The records are the only truth. A mirror applies them in their order, each at least once and to the effect of exactly
once: one that was killed goes on behind the last records that it is sure of, and a record that it meets again changes
nothing. A place that is away is asked again, ever more rarely, and then gets what it lacks.
"""

import hashlib
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ClassVar

from study.errors import RecordError, StudyError, TrackingError
from study.harmless import mask_credentials
from study.mirrors.tracking_uri import reason_of, refusal
from study.records.folder import StudyFolder
from study.records.lock import at_work, take
from study.records.records import Line, read_lines

_log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two readings of the records, and between two attempts where somebody waits for the end."""
LONGEST_DELAY_S = 15.0
"""Seconds between two attempts at a place that stays away."""
SYNC_TIMEOUT_S = 30.0
"""Seconds without progress after which `sync` gives up."""
IMPORTING = threading.Lock()
"""Held while an engine is imported: one mirror hides torch from its own, and mirrors may have threads."""


class HeldError(TrackingError):
    """Another mirror sends to the place."""


class Mirror(ABC):
    """Sends one study to one place.

    Attributes:
        key: Identifies the kind, in file names and between processes.
        name: Of the kind, for people.
        place: What its address is called, for people.
        option: Names another address on the command line.
        chunk: Most records between two calls of `flush`, and so between two checks of the clock.
        folder: The study.
        address: Of the place.
        opened: Whether the study was found or created there since the last failure.
    """

    key: ClassVar[str]
    name: ClassVar[str]
    place: ClassVar[str]
    option: ClassVar[str]
    chunk: ClassVar[int] = 500

    def __init__(self, folder: StudyFolder, address: str) -> None:
        self.folder, self.address = folder, address
        self.opened = False
        self._offset, self._seq, self._most = 0, 0, self.chunk

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
        """Find or create the study in the place; return byte offset and number of the first record to apply.

        Called again after every failure: nothing that was applied before is known to be there.
        """

    @abstractmethod
    def apply(self, line: Line) -> None:
        """Apply one record. One that was applied before changes nothing."""

    @abstractmethod
    def flush(self, lines: list[Line]) -> None:
        """Complete what was applied, `lines`, so that the next mirror may go on behind it. Called without, too."""

    @abstractmethod
    def count_trials(self) -> int:
        """Return the number of the study's trials that the place shows."""

    def forget(self) -> None:  # noqa: B027 (not every place has it)
        """Forget how far the mirror has come: all records are applied again."""

    def show_running(self) -> None:  # noqa: B027 (not every place has it)
        """Show the study as running, where the place has a status for it."""

    def show_ended(self) -> None:  # noqa: B027 (not every place has it)
        """Show the study as ended, where the place has a status for it."""

    def close(self) -> None:  # noqa: B027 (not every place has it)
        """Close the connection to the place."""

    @property
    def lock(self) -> Path:
        """The lock of the one mirror that may send to this address."""
        return self.file(f".{self.key}-mirror.lock")

    def file(self, name: str) -> Path:
        """Return a file in the study's folder; every address other than the study's own has one of its own."""
        path = self.folder.path / name
        if self.address == self.address_of(self.folder):
            return path
        return path.with_stem(f"{path.stem}-{hashlib.sha256(self.address.encode()).hexdigest()[:12]}")

    @property
    def behind(self) -> int:
        """Complete records that the place has not got, as far as this is known: at most so many."""
        records, behind = self.folder.records, 0
        if records.exists():
            with records.open("rb") as file:
                file.seek(self._offset if self._offset <= records.stat().st_size else 0)
                while block := file.read(1 << 20):
                    behind += block.count(b"\n")
        return behind

    def step(self) -> int:
        """Apply some of the next records and return their number; 0 at the end of the records.

        Whatever the place raises when it is away passes through; nothing is lost by it, call again. Fewer records are
        then tried, so that a slow server can take them before the client times out.

        Raises:
            RecordError: The records cannot be trusted.
        """
        try:
            if not self.opened:
                self._offset, self._seq = self.open()
                self.opened = True
            lines = self._next_lines()
            for line in lines:
                self.apply(line)
            self.flush(lines)
        except Exception:
            self.opened = False
            self._most = max(self._most // 2, 1)
            raise
        self._most = min(self._most * 2, self.chunk)
        if lines:
            self._offset, self._seq = lines[-1].end, lines[-1].seq + 1
        return len(lines)

    def _next_lines(self) -> list[Line]:
        """Return the next records. A power cut can leave fewer than the place got: then all of them are next.

        Raises:
            RecordError: The records are damaged.
        """
        records = self.folder.records
        try:
            if self._offset > 0 and (not records.exists() or records.stat().st_size < self._offset):
                raise RecordError(where=str(records), rule="must hold what was sent", got="less")
            return list(islice(read_lines(records, offset=self._offset, first_seq=self._seq), self._most))
        except RecordError as error:
            if self._offset == 0:
                raise
            for _ in read_lines(records):  # damage, which all of them would lead to again, and again
                pass
            _log.warning("the records changed behind the mirror, all of them are sent again: %s", error)
        self.forget()
        self.open()
        return list(islice(read_lines(records), self._most))

    def refusal(self, error: Exception) -> StudyError:
        """Return in one line what an error of the place means, and what to do."""
        return refusal(error, self.address, place=self.place, name=self.name, option=self.option)


@dataclass(kw_only=True)
class Orders:
    """When to stop following; may change meanwhile."""

    study_over: Callable[[], bool] = lambda: True
    """Whether no driver will write further records in this session."""
    gives_up: Callable[[Exception], bool] = lambda error: False
    """Whether to stop at an error, instead of trying again."""
    finishing: bool = False
    """Whether to stop at the end of the records."""
    deadline: float = math.inf
    """When to stop in any case, on the clock of `time.monotonic`."""
    changed: threading.Event = field(default_factory=threading.Event)
    """Ends a pause before its time."""

    def finish(self, seconds: float) -> None:
        """Order a stop at the end of the records, after so many seconds at the latest."""
        self.finishing, self.deadline = True, time.monotonic() + seconds
        self.changed.set()

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the next order."""
        if self.finishing:
            time.sleep(max(min(seconds, self.deadline - time.monotonic()), 0.0))
        else:
            self.changed.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """How the mirroring of a study to a place ended."""

    name: str
    """Of the place, for people."""
    behind: int
    """Records that the place has not got, at most."""
    reason: str
    """Why; empty when nothing is missing."""

    @property
    def drained(self) -> bool:
        """Whether the place has got everything."""
        return self.behind == 0 and not self.reason


def follow(
    mirror: Mirror,
    orders: Orders,
    *,
    on_ready: Callable[[], None] = lambda: None,
    on_away: Callable[[str, Exception], None] = lambda reason, error: None,
    on_sent: Callable[[int], None] = lambda number: None,
) -> tuple[MirrorReport, Exception | None]:
    """Send records to a place, and wait for further ones, until the orders say to stop.

    Args:
        mirror: Of the place.
        orders: When to stop.
        on_ready: Called when the study is in the place.
        on_away: Called once for each reason why it is not, with the error.
        on_sent: Called with the number of records that were sent.

    Returns:
        How it ended, and the last failure; None when the place has answered since.
    """
    lock: int | None = None
    failures, delay, reason, last = 0, 0.0, "", None
    done = False
    try:
        while not done and time.monotonic() < orders.deadline:
            orders.pause(delay)
            try:
                lock = _locked(mirror, orders) if lock is None else lock
                sent, done = _turn(mirror, orders, on_ready)
                on_sent(sent)
            except Exception as error:  # noqa: BLE001 (MLflow, databases and proxies raise every kind)
                failures, last = failures + 1, error
                waits = not orders.finishing and not isinstance(error, HeldError)
                delay = min(2.0 ** (failures - 1), LONGEST_DELAY_S) if waits else POLL_S
                done = isinstance(error, RecordError) or orders.gives_up(error)
                if reason != (now := reason_of(error)):
                    reason = now
                    _log.warning("%s", reason, exc_info=None if isinstance(error, StudyError) else error)
                    on_away(reason, error)
            else:
                if reason:
                    _log.info("%s answers again", mirror.name)
                failures, reason, last = 0, "", None
                delay = 0.0 if sent else POLL_S
    finally:
        mirror.close()
        if lock is not None:
            os.close(lock)
    return MirrorReport(name=mirror.name, behind=mirror.behind, reason=reason), last


def _turn(mirror: Mirror, orders: Orders, on_ready: Callable[[], None]) -> tuple[int, bool]:
    """Send the next records; return their number, and whether that was the end, which was asked for before."""
    was_open, finishing = mirror.opened, orders.finishing
    sent = mirror.step()
    if not was_open:
        if not finishing:
            mirror.show_running()
        on_ready()
    done = finishing and not sent
    if done and orders.study_over():
        mirror.show_ended()
    return sent, done


def _locked(mirror: Mirror, orders: Orders) -> int:
    """Lock the mirror's file and return its handle; a file system without locks will do where no driver works.

    Raises:
        HeldError: Another mirror sends to the place, or may do so.
    """
    if (taken := take(mirror.lock)) is not None:
        handle, is_locked = taken
        if is_locked or orders.study_over():
            return handle
        os.close(handle)
    raise HeldError(
        where=f"{mirror.place} {mask_credentials(mirror.address)}",
        rule="only one mirror may send to it",
        got="another one at work: that of an earlier driver has not let go yet",
        fix="None while the study runs, its own mirror keeps the place up to date; afterwards try again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What `sync` did."""

    records: int
    """Records sent now."""
    trials: int
    """Trials of the study that the place shows."""
    behind: int
    """Records not sent, because a driver wrote them meanwhile."""


def sync(mirror: Mirror) -> Synced:
    """Send to a place what it has not got, in the foreground.

    Raises:
        TrackingError: The place has not answered for `SYNC_TIMEOUT_S` seconds, or another mirror is at work.
        RecordError: The records cannot be trusted, or the place knows trials that they do not.
    """
    orders = Orders(
        study_over=lambda: not at_work(mirror.folder.path),
        gives_up=lambda error: isinstance(error, StudyError) and not isinstance(error, HeldError),
    )
    orders.finish(SYNC_TIMEOUT_S)
    total = 0

    def note(number: int) -> None:
        nonlocal total
        total += number
        orders.finish(SYNC_TIMEOUT_S)

    report, error = follow(mirror, orders, on_sent=note)
    if isinstance(error, StudyError):
        raise error
    if error is not None:
        refused = mirror.refusal(error)
        got = f"{refused.got} for {SYNC_TIMEOUT_S:g} s; {report.behind} records are behind"
        raise TrackingError(where=refused.where, rule=refused.rule, got=got, fix=refused.fix) from error
    return Synced(records=total, trials=mirror.count_trials(), behind=report.behind)
