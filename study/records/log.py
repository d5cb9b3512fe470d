"""The records file of a study, open for appending by its one driver.

Each line is written by one `write` and carries a consecutive number, so that a line torn by a kill, a line lost in the
middle and a file of somebody else can be distinguished.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Self

from study.errors import RecordError
from study.records.files import sync
from study.records.records import Line, Record, StudyClosed, read_lines, written_line

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux's goes on while the machine sleeps


class RecordLog:
    """The records file, open for appending. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open `path`, creating it when missing, and cut off a last line that a kill tore.

        Raises:
            RecordError: The file cannot be trusted; it is left as it is.
        """
        self.path = path
        self._writing = threading.Lock()
        self._is_closed = False
        """Whether this driver's session has ended: a thread that comes late must not write behind the end."""
        self._began, self._next_seq, self._end = time.time() - time.clock_gettime(_CLOCK), 0, 0
        for line in read_lines(path):
            self._next_seq, self._end = line.seq + 1, line.end
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, self._end)
        sync(path.parent)
        self._inode = os.fstat(self._file).st_ino

    def now(self) -> float:
        """Return the time of records: seconds since the epoch as the session began, whatever becomes of the clock."""
        return self._began + time.clock_gettime(_CLOCK)

    def append(self, record: Record) -> Line:
        """Write one record; on the disk before this returns, if it is of a durable kind.

        Raises:
            RecordError: The disk is full or failing; the file ends with the last complete line. Or somebody else has
                written to it, or the session has ended: then nothing is written.
        """
        with self._writing:
            if self._is_closed:
                rule, fix = "a session that has ended must write no more", "Run the same command with --resume."
                raise RecordError(where=str(self.path), rule=rule, got=record.kind, fix=fix)
            self._check_alone(asking_anew=record.durable)
            moment = self.now()
            raw = written_line(record, seq=self._next_seq, moment=moment)
            try:
                if os.write(self._file, raw) != len(raw):
                    raise OSError(28, "No space left on device")
                if record.durable:
                    os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):  # else the next opening cuts the torn line off
                    os.ftruncate(self._file, self._end)
                rule = f"the record could not be written ({error.strerror})"
                fix = "Free some space, then run the same command with --resume; nothing recorded so far is lost."
                raise RecordError(where=str(self.path), rule=rule, fix=fix) from error
            line = Line(seq=self._next_seq, time=moment, record=record, end=self._end + len(raw))
            self._end, self._next_seq = line.end, line.seq + 1
            self._is_closed = isinstance(record, StudyClosed)
        return line

    def _check_alone(self, *, asking_anew: bool) -> None:
        """Refuse to write behind another driver, whatever became of the lock: its session's records are in the file.

        Args:
            asking_anew: Open the file for it, so that a file server is asked; else its last answer may do.

        Raises:
            RecordError: The file is not as this driver left it.
        """
        try:
            if asking_anew:
                os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
            status = self.path.stat()
            if (status.st_ino, status.st_size) == (self._inode, self._end):
                return
            got = f"{status.st_size} bytes" if status.st_ino == self._inode else "another file"
        except OSError as error:
            got = f"none that can be read ({error.strerror})"
        raise RecordError(
            where=str(self.path),
            rule=f"only one driver may write, and this one left it at {self._end} bytes",
            got=f"{got}: another driver has taken the study over, or the file was changed",
            fix="Let one driver alone go on, with --resume; nothing recorded is lost.",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
