"""The only place that writes to a terminal: everything that a person sees passes through here and is cleaned.

`tests/unit/test_layering.py` checks that no other file prints.
"""

import os
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from study.text import printable

WIDEST = 100
"""Columns of a line of text at most: longer ones are hard to read."""


def line_width() -> int:
    """Return the columns of a line of text: those of the terminal, at most `WIDEST`."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def say(text: str = "", *, error: bool = False) -> None:
    """Print lines, without control characters, to standard output or error; to nowhere once nobody reads it."""
    stream = sys.stderr if error else sys.stdout
    try:
        stream.write(f"{printable(text)}\n")
        stream.flush()
    except BrokenPipeError:  # nobody reads it: neither the study nor the end of the program is disturbed
        to_nowhere(stream)


def to_nowhere(stream: TextIO) -> None:
    """Send what a stream holds and will get to nowhere: Python writes the rest as it ends, and would fail again."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (a device)
        os.dup2(nowhere.fileno(), stream.fileno())


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: Collection[str] = ()) -> str:
    """Return a table without lines; numbers to the right, the columns of `words` to the left.

    Headings of several words take two lines.
    """
    two = [(first, rest) for first, _, rest in (heading.partition(" ") for heading in headings)]
    lines = [*zip(*two, strict=True), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [str.ljust if heading in words else str.rjust for heading in headings]
    placed = ([align(cell, n) for align, cell, n in zip(aligned, line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in placed)
