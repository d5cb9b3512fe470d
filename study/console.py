"""The only place that writes to a terminal: everything that a person sees passes through here and is cleaned.

Needs rich. `tests/unit/test_layering.py` checks that no other file prints.
"""

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from study.harmless import printable

FILE_WIDTH = 140
"""Columns of what goes into a file or a pipe."""
PROGRAMS = ("python ", "mlflow ui", "pip install", "://")
"""What a line with a command or an address holds."""


class SteadyConsole(Console):
    """A console that prints no control characters of others, and goes quiet once nobody reads it.

    rich's own would pass escape codes on, and would end the program on a broken pipe, and with it every trial.
    """

    def __init__(self, **settings: Any) -> None:
        """As rich's own, without markup in texts: a name in brackets could link, colour or break off the output."""
        super().__init__(**{"markup": False, "highlight": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is to be printed; rich's own codes are no text and stay."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Write nothing from now on, nor what Python would still write when it ends."""
        self.quiet = True
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (a device)
            os.dup2(nowhere.fileno(), self.file.fileno())


def terminal(*, error: bool = False) -> SteadyConsole:
    """Return the console of standard output, or of standard error."""
    stream = sys.stderr if error else sys.stdout
    return SteadyConsole(stderr=error, width=None if stream.isatty() else FILE_WIDTH)


def write(text: str, *, error: bool = False) -> None:
    """Write text as it is, but for control characters, to standard output or error; to nowhere once nobody reads it."""
    stream = sys.stderr if error else sys.stdout
    try:
        stream.write(printable(text))
        stream.flush()
    except BrokenPipeError:
        terminal(error=error).on_broken_pipe()


def write_json(content: Any) -> None:
    """Write one JSON document to standard output: what `--json` asks for."""
    write(json.dumps(content, indent=1, default=str) + "\n")


def say(console: Console, text: str, *, title: str = "") -> None:
    """Print lines, wrapped at words on a terminal; in a file, and where they hold a command, they stay whole."""
    for line in text.split("\n"):
        whole = not console.is_terminal or any(program in line for program in PROGRAMS)
        console.print(Text.assemble((title, "bold"), line), highlight=False, soft_wrap=whole)
        title = ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: Collection[str] = ()) -> Table:
    """Return a table without lines, a line for each row; numbers to the right, the columns of `words` to the left.

    Headings of several words take two lines. Texts are never markup.
    """
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        shown = Text(heading.replace(" ", "\n", 1))
        made.add_column(shown, justify="left" if heading in words else "right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made
