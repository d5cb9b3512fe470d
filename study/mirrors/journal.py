"""Optuna's journal in the folder of a study, for the one driver that may write it. May import Optuna.

Optuna's own backend serves many processes at once: for every line it takes a lock in the file system and waits for the
disk, five times for each trial, in the middle of Tune's event loop. Here the study folder is locked already, and what a
power cut takes from the journal is told to it again from the records, which are on the disk.
"""

import contextlib
import json
import os
from typing import Any

from optuna.storages.journal import JournalFileBackend


class SoleWriterBackend(JournalFileBackend):
    """A journal file with one writer; the format is Optuna's, which reads it as any other."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines; on a full disk the file ends with the last complete one.

        Raises:
            OSError: They could not be written.
        """
        raw = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        file = os.open(self._file_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            before = os.fstat(file).st_size
            try:
                if os.write(file, raw) != len(raw):
                    raise OSError(28, "No space left on device")
            except OSError:
                with contextlib.suppress(OSError):  # else the next opening cuts the torn line off
                    os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
