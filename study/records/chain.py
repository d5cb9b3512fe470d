"""The form in which records are published, and a hash chain over it: a text that holds for all lines before. No engine.

Whoever was given the head of the chain at some moment can tell for ever whether the lines up to then are still the
same ones. Each line enters in the form in which `pack` publishes it, so that a packed copy has the heads of its study.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from study.records.records import Iteration, StudyOpened, open_records, raw_lines

DIGITS = 7
"""Significant digits of the shortest form of training iterations: the learner's single-precision numbers are whole."""
_WHERE_KIND_IS = 200
"""Bytes at the beginning of a line within which its kind stands."""
_FOLDERS = re.compile(r"[^\s=:]*/")
"""The folders of a path. All of them: taken away twice, they must leave what they leave when taken away once."""


def following(head: str, raw: bytes) -> str:
    """Return the head of the chain with one more line."""
    return hashlib.sha256(head.encode() + published(raw)).hexdigest()


def heads(path: Path, *, offset: int = 0, head: str = "") -> Iterator[str]:
    """Yield the head after every complete line of a records file, from byte `offset` on, where it is `head`.

    Raises:
        RecordError: The file cannot be read.
    """
    with open_records(path) as file:
        file.seek(offset)
        for raw in raw_lines(file, path):
            if not raw.endswith(b"\n"):
                return
            yield (head := following(head, raw))


def published_as(raw: bytes, *, seq: int | None, digits: int | None) -> bytes:
    """Return a line without the folders of a command line, with another number, and fewer digits, where given."""
    content: dict[str, Any] = orjson.loads(raw)
    if seq is not None:
        content["seq"] = seq
    if content["kind"] == StudyOpened.kind:
        command = content["provenance"].get("command") or []
        content["provenance"]["command"] = [_FOLDERS.sub("", word) for word in command]
    if digits is not None and content["kind"] == Iteration.kind:  # not so where a stranger wrote two kinds in a line
        content["wall_time_s"] = _rounded(content["wall_time_s"], digits)
        content["metrics"] = {name: _rounded(value, digits) for name, value in content["metrics"].items()}
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def published(raw: bytes) -> bytes:
    """Return a line in the shortest form in which it is published: the same for the line and for its packed copy."""
    kind = raw[:_WHERE_KIND_IS].partition(b'"kind":"')[2].partition(b'"')[0]
    if kind == Iteration.kind.encode():
        return published_as(raw, seq=None, digits=DIGITS)
    return published_as(raw, seq=None, digits=None) if kind == StudyOpened.kind.encode() else raw


def _rounded(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
