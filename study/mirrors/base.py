"""A mirror: a place outside of the records that shows a study. The base class of all of them, and what follows records.

The records are the only truth. A mirror applies them in their order, each at least once and to the effect of exactly
once: a mirror that was killed goes on behind the last records that it is sure of, and a record that it meets again
changes nothing. Imports no MLflow, no Optuna, no TensorBoard; an implementation imports its engine in `open`.
"""

import hashlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

from study.errors import RecordError, StudyError, TrackingError
from study.harmless import mask_credentials
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
_LONGEST_REASON = 300
"""Characters."""


class HeldError(Exception):
    """Another mirror sends to the place."""


class Mirror(ABC):
    """Sends one study to one place. The caller of `open` holds `lock`.

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
        self._offset, self._seq = 0, 0
        self._most = self.chunk

    # --- what each kind of place answers -------------------------------------------------------------------------

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
        """Complete what was applied, `lines`, so that the next mirror may go on behind it."""

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

    # --- what all have in common ---------------------------------------------------------------------------------

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
        return count_behind(self.folder.records, self._offset)

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


class Orders(ABC):
    """What tells a follower when to stop."""

    @property
    @abstractmethod
    def finishing(self) -> bool:
        """Whether to stop at the end of the records."""

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether to stop now."""

    @property
    @abstractmethod
    def study_over(self) -> bool:
        """Whether no driver will write further records in this session."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the next order."""

    @abstractmethod
    def gives_up(self, error: Exception) -> bool:
        """Return whether to stop at an error, instead of trying again."""

    def progress(self) -> None:  # noqa: B027 (not every deadline moves)
        """Take note that records were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """How the mirroring of a study ended."""

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


class Follower:
    """The loop of every mirror: send, wait; and while the place is away, try again ever more rarely."""

    def __init__(
        self,
        mirror: Mirror,
        orders: Orders,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_away: Callable[[str, Exception], None] = lambda reason, error: None,
    ) -> None:
        """`on_ready` is called when the study is in the place, `on_away` once for each reason why it is not."""
        self._mirror, self._orders = mirror, orders
        self._on_ready, self._on_away = on_ready, on_away
        self._delay, self._failures, self._reason, self._done = 0.0, 0, "", False
        self._lock: int | None = None
        """Handle of the lock file, once it is ours."""
        self.sent = 0
        """Records that were sent."""
        self.error: Exception | None = None
        """The last failure; None when the place has answered since."""

    def run(self) -> MirrorReport:
        """Work until the orders say to stop."""
        try:
            while not self._done and not self._orders.expired:
                self._orders.wait(self._delay)
                self._turn()
        finally:
            self._mirror.close()
            if self._lock is not None:
                os.close(self._lock)
        return MirrorReport(name=self._mirror.name, behind=self._mirror.behind, reason=self._reason)

    def _turn(self) -> None:
        try:
            if self._lock is None:
                self._lock = self._take_lock()
            self._work()
        except Exception as error:  # noqa: BLE001 (MLflow, databases and proxies raise every kind)
            self._failures += 1
            self._delay = min(2.0 ** (self._failures - 1), LONGEST_DELAY_S)
            if self._orders.finishing or isinstance(error, HeldError):
                self._delay = POLL_S
            self._done = isinstance(error, RecordError) or self._orders.gives_up(error)
            self.error, reason = error, reason_of(error)
            if reason != self._reason:
                self._reason = reason
                _log.warning("%s", reason, exc_info=None if isinstance(error, StudyError | HeldError) else error)
                self._on_away(reason, error)
        else:
            if self._reason:
                _log.info("%s answers again", self._mirror.name)
            self._failures, self._reason, self.error = 0, "", None

    def _take_lock(self) -> int:
        """Lock the mirror's file and return its handle; a file system without locks will do where no driver works.

        Raises:
            HeldError: Another mirror sends to the place, or may do so.
        """
        if (taken := take(self._mirror.lock)) is not None:
            handle, is_locked = taken
            if is_locked or self._orders.study_over:
                return handle
            os.close(handle)
        raise HeldError("the mirror of an earlier driver has not let go yet")

    def _work(self) -> None:
        """Send the next records; at the end of the records, finish if that was asked for."""
        was_open = self._mirror.opened
        sent = self._mirror.step()
        if not was_open:
            if not self._orders.finishing:
                self._mirror.show_running()
            self._on_ready()
        self.sent += sent
        self._delay = 0.0 if sent else POLL_S
        if sent:
            self._orders.progress()
        elif self._orders.finishing:
            if self._orders.study_over:
                self._mirror.show_ended()
            self._done = True


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
    follower = Follower(mirror, _Foreground(mirror.folder))
    report = follower.run()
    if isinstance(follower.error, StudyError):
        raise follower.error
    where = f"{mirror.place} {mask_credentials(mirror.address)}"
    if isinstance(follower.error, HeldError):
        rule, got = "only one mirror may send to it", "another one at work"
        fix = "None while the study runs, its own mirror keeps the place up to date; afterwards try again."
        raise TrackingError(where=where, rule=rule, got=got, fix=fix) from follower.error
    if follower.error is not None:
        rule = f"{mirror.name} must take the study's records"
        got = f"{report.reason} for {SYNC_TIMEOUT_S:g} s; {report.behind} records are behind"
        fix = "See to it, then run the same command again; it goes on where it stopped."
        raise TrackingError(where=where, rule=rule, got=got, fix=fix) from follower.error
    return Synced(records=follower.sent, trials=mirror.count_trials(), behind=report.behind)


class _Foreground(Orders):
    """A person waits: stop at the end of the records, or after some seconds without progress."""

    finishing = True

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self.progress()

    @property
    def expired(self) -> bool:
        return time.monotonic() > self._deadline

    @property
    def study_over(self) -> bool:
        return not at_work(self._folder.path)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def progress(self) -> None:
        self._deadline = time.monotonic() + SYNC_TIMEOUT_S

    def gives_up(self, error: Exception) -> bool:
        return isinstance(error, StudyError)


def reason_of(error: Exception) -> str:
    """Return one line that says what went wrong at the root, without credentials."""
    if isinstance(error, HeldError):
        return str(error)
    root: BaseException = error
    while (deeper := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = deeper
    if isinstance(root, StudyError):  # written for people
        return mask_credentials(str(root))
    lines = str(root).strip().splitlines() or str(error).strip().splitlines() or [""]
    return mask_credentials(f"{type(root).__name__}: {lines[0]}")[:_LONGEST_REASON]


def count_behind(records: Path, offset: int = 0) -> int:
    """Return how many complete records begin at byte `offset` or behind; all of them if the file is shorter."""
    if not records.exists():
        return 0
    behind = 0
    with records.open("rb") as file:
        file.seek(offset if offset <= records.stat().st_size else 0)
        while block := file.read(1 << 20):
            behind += block.count(b"\n")
    return behind
