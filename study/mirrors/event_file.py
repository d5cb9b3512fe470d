"""One event file of TensorBoard, whose content follows from the records alone. Knows bytes, no records.

TensorBoard's files can be continued and not amended. So whoever writes one says its whole content again, from the
first event on: of what is in the file already the common beginning stays, and only what is missing is written. A kill
at any moment leaves a beginning, perhaps with half an event behind it; the next writer completes it.
"""

import os
import struct
from pathlib import Path

from study.mirrors.tensorboard_x import checksum

_HEAD, _CHECK = struct.Struct("<Q"), struct.Struct("<I")
_FRAME = _HEAD.size + 2 * _CHECK.size
"""Bytes of a TFRecord beside its content: length, checksum of the length, content, checksum of the content."""


def frame(content: bytes) -> bytes:
    """Return a TFRecord. Source: the format's description at https://www.tensorflow.org/tutorials/load_data/tfrecord."""
    head = _HEAD.pack(len(content))
    return head + _CHECK.pack(checksum(head)) + content + _CHECK.pack(checksum(content))


class EventFile:
    """A file that is brought to what `add` says."""

    def __init__(self, path: Path) -> None:
        """Take up what an earlier writer left at `path`; a missing file is made by the first `write`."""
        self._path = path
        self._left = path.read_bytes() if path.is_file() else b""
        self._end = 0
        """Bytes of the content that the file has."""
        self._missing = bytearray()

    def add(self, event: bytes) -> None:
        """Say what comes next."""
        if not self._missing and self._has(event):
            self._end += len(event) + _FRAME
        else:
            self._missing += frame(event)

    def write(self, *, complete: bool) -> None:
        """Write what the file lacks.

        Args:
            complete: Nothing more is known: what else the file holds is of no records, and is cut off.

        Raises:
            OSError: It cannot be written; say the content again, to a new instance.
        """
        if self._missing or (complete and len(self._left) > self._end):
            make = 0 if self._end else os.O_CREAT  # one that was removed meanwhile lacks its beginning
            file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | make, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.seek(self._end)
                stream.write(self._missing)
                stream.truncate()
            self._end += len(self._missing)
            self._missing.clear()
            self._left = b""
        elif complete:
            self._left = b""

    def _has(self, event: bytes) -> bool:
        """Return whether the event is in its place already; a checksum costs more than the comparison."""
        head, start = _HEAD.pack(len(event)), self._end + _HEAD.size + _CHECK.size
        whole = len(self._left) >= self._end + len(event) + _FRAME
        return whole and self._left.startswith(head, self._end) and self._left.startswith(event, start)
