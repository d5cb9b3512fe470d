"""A hash chain over the records: a short text that holds for every line before it. No engine.

Whoever was given the head of the chain at some moment can tell for ever whether the lines up to then are still the
same ones. Each line enters in the form in which `pack` publishes it, so that a packed copy has the heads of its study.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from study.records.packing import published
from study.records.records import open_records, raw_lines

EMPTY = ""
"""Head of a chain without lines."""


def following(head: str, raw: bytes) -> str:
    """Return the head of the chain with one more line."""
    return hashlib.sha256(head.encode() + published(raw)).hexdigest()


def heads(path: Path, *, offset: int = 0, head: str = EMPTY) -> Iterator[str]:
    """Yield the head after every complete line of a records file.

    Args:
        path: The file, packed or not.
        offset: Byte at which to begin.
        head: Of the chain up to there.

    Raises:
        RecordError: The file cannot be read.
    """
    with open_records(path) as file:
        file.seek(offset)
        for raw in raw_lines(file, path):
            if not raw.endswith(b"\n"):
                return
            yield (head := following(head, raw))
