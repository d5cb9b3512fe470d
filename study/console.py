"""Where commands print: everything that a person sees on a terminal passes through here and is cleaned. Needs rich."""

import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from study.harmless import printable


class SteadyConsole(Console):
    """A console that prints no control characters of others, and goes quiet once nobody reads it.

    rich's own would pass escape codes on, and would end the program on a broken pipe, and with it every trial.
    """

    def __init__(self, **settings: Any) -> None:
        """As rich's own, without markup in texts: a name in brackets could link, colour or break off the output."""
        super().__init__(**{"markup": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is to be printed; rich's own codes are no text and stay."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Write nothing from now on."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # else Python stumbles over what is left to write when it ends
        os.close(nowhere)


def write(text: str, *, error: bool = False) -> None:
    """Write text as it is, but for control characters, to standard output or error."""
    stream = sys.stderr if error else sys.stdout
    stream.write(printable(text))
    stream.flush()


def say(console: Console, text: str) -> None:
    """Print lines, wrapped at words on a terminal; in a file, and where they hold a command, they stay whole."""
    for line in text.split("\n"):
        whole = not console.is_terminal or "python " in line
        console.print(line, markup=False, highlight=False, soft_wrap=whole)
