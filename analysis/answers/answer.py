"""What a study says, as one value: a sentence, what to copy, what is not known; as text, Markdown and HTML. Pure.

The same words stand at the end of the terminal, at the top of the report, in MLflow's note and in a notebook.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from analysis.tables.grid import Cell, numeric_columns
from analysis.tables.html import scrolling_table
from analysis.tables.table import Table
from analysis.tables.writers import pipes
from study.harmless import markdown, one_line

FEWEST_WIDTH = 12
"""Letters to which a column of a text table is narrowed, at least."""
GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One of the numbers that stand large beside the sentence."""

    label: str
    """What it is: "return"."""
    text: str
    """The number as people read it, with its unit."""
    note: str = ""
    """What must be known with it: "20 runs", "95 % interval -73 to -70"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Something that the study does not say, and the one command that would find out."""

    text: str
    command: str = ""
    """What to type; empty where no command of this project helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a study says, for somebody who reads nothing else.

    Attributes:
        kind: Of the study: `search`, `throughput`, `holdup` or `foreign`.
        sentence: The answer, such that it could be said aloud; at most one interval.
        setting: The setting to copy, `num_env_runners: 4  train_batch_size: 1376`; empty where there is none.
        facts: At most three sentences that support it.
        numbers: At most three numbers, formatted.
        rows: The table under the sentence: the best of each scale, the price list, the arms; None where nothing ended.
        prices: The price list: what each number of runners costs; None where no clock was measured.
        unknown: What the study does not say.
        figure: Key of the figure to show beside it; empty where none helps.
    """

    kind: str
    sentence: str
    setting: str = ""
    facts: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    rows: Table | None = None
    prices: Table | None = field(default=None, repr=False)
    unknown: tuple[Unknown, ...] = ()
    figure: str = ""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The table under the sentence, and the price list where that is another one."""
        several = (self.rows, None if self.prices is self.rows else self.prices)
        return tuple(each for each in several if each is not None and not each.empty)

    def to_text(self, width: int = 80) -> str:
        """Return the answer for a terminal, every line at most `width` letters long except commands and settings."""
        parts = [_wrapped(self.sentence, width)]
        parts += [f"  {self.setting}"] if self.setting else []
        parts += [_wrapped(" ".join(self.facts), width)] if self.facts else []
        parts += [_wrapped(f"{each.title}:", width) + "\n" + _text_table(each, width) for each in self.tables]
        parts += [_unknown_text(each, width) for each in self.unknown]
        return "\n\n".join(parts) + "\n"

    def to_markdown(self) -> str:
        """Return the answer as Markdown: a note in MLflow, a cell of a notebook, the head of report.md."""
        return "\n\n".join(self._markdown()) + "\n"

    def to_html(self) -> str:
        """Return the answer as a `section` of class `answer`, without its figure."""
        return "\n".join(self._html()) + "\n"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def __str__(self) -> str:
        return self.to_text()

    def _markdown(self) -> Iterator[str]:
        yield f"**{markdown(one_line(self.sentence))}**"
        if self.setting:
            yield f"`{self.setting}`"
        if self.facts:
            yield markdown(one_line(" ".join(self.facts)))
        for table in self.tables:
            yield f"{markdown(table.title)}:"
            yield pipes([column.heading for column in table.columns], table.grid().cells())
        for each in self.unknown:
            command = f" Find out: `{each.command}`" if each.command else ""
            yield f"**Not known:** {markdown(one_line(each.text))}{command}"

    def _html(self) -> Iterator[str]:
        yield '<section class="answer">'
        yield f'<p class="sentence">{escape(self.sentence)}</p>'
        if self.setting:
            yield f'<pre class="setting"><code>{escape(self.setting)}</code></pre>'
        yield from (f'<p class="fact">{escape(each)}</p>' for each in self.facts)
        if self.numbers:
            yield '<dl class="numbers">'
            for each in self.numbers:
                note = f' <span class="note">{escape(each.note)}</span>' if each.note else ""
                yield f"<div><dt>{escape(each.label)}</dt><dd><strong>{escape(each.text)}</strong>{note}</dd></div>"
            yield "</dl>"
        for table in self.tables:
            yield from scrolling_table(table.grid(), f"{table.key}-caption")
        if self.unknown:
            yield '<div class="unknown"><h2>What is not known</h2><ul>'
            for unknown in self.unknown:
                command = f"<br>Find out: <code>{escape(unknown.command)}</code>" if unknown.command else ""
                yield f"<li>{escape(unknown.text)}{command}</li>"
            yield "</ul></div>"
        yield "</section>"


def _wrapped(text: str, width: int) -> str:
    kept = one_line(text).replace(" %", "\N{NO-BREAK SPACE}%")
    return textwrap.fill(kept, width, break_long_words=False, break_on_hyphens=False).replace("\N{NO-BREAK SPACE}", " ")


def _unknown_text(unknown: Unknown, width: int) -> str:
    text = _wrapped(f"Not known: {unknown.text}", width)
    return f"{text}\n  Find out: {unknown.command}" if unknown.command else text


def _text_table(table: Table, width: int) -> str:
    """Return a table of aligned columns; a wide one loses its intervals, then the widest columns are wrapped."""
    grid = table.grid()
    rows, headings = grid.cells(), [column.heading for column in grid.columns]
    full = _lines(headings, rows, [_text_of(row) for row in rows], width, wrap=False)
    return full or _lines(headings, rows, [[cell.value for cell in row] for row in rows], width, wrap=True)


def _text_of(row: Sequence[Cell]) -> list[str]:
    return [cell.text for cell in row]


def _lines(
    headings: Sequence[str], rows: list[list[Cell]], texts: Sequence[Sequence[str]], width: int, *, wrap: bool
) -> str:
    """Return the lines of a table; empty where they do not fit and may not be wrapped."""
    table = [list(headings), *(list(each) for each in texts)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    indent, room = "  ", width - 2 - len(GAP) * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if not wrap or widths[widest] <= FEWEST_WIDTH:
            if not wrap:
                return ""
            break
        widths[widest] -= 1
    numeric = numeric_columns(rows)
    lines = []
    for row in table:
        cells = [textwrap.wrap(text, size) or [""] for text, size in zip(row, widths, strict=True)]
        for place in range(max(map(len, cells))):
            parts = [each[place] if place < len(each) else "" for each in cells]
            aligned = [
                part.rjust(size) if number else part.ljust(size)
                for part, size, number in zip(parts, widths, numeric, strict=True)
            ]
            lines.append((indent + GAP.join(aligned)).rstrip())
    return "\n".join(lines)
