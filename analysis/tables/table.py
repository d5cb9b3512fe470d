"""The one value that every table is: a frame with declared columns, and what must be said with it. It never computes.

An estimate has three columns in the frame, `name`, `name_low` and `name_high` (both ends NA: no interval), and may have
a fourth, `name_n`, the runs behind it; without it the row's `n` counts.
"""

import csv
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from analysis.scaling.blocks import in_frame
from study.statistics import Estimate
from study.text import count, csv_cell, decimals_of, fixed, markdown, one_line, significant

NARROWEST = 12
"""Letters to which a column of a text table is narrowed, at least."""


# --- files ----------------------------------------------------------------------------------------------------------


def to_csv(table: "Table") -> str:
    """Return all numbers at full precision under `#` lines that say the rest: `pd.read_csv(file, comment="#")`."""
    said = [table.heading, table.said, table.rests_on, *table.notes, *table.definitions]
    said += [f"{column.name} [{column.unit or 'text'}]: {column.meaning}" for column in table.columns]
    head = "".join(f"# {csv_cell(one_line(text))}\n" for text in said)
    return head + frame_to_csv(table.frame) if len(table.frame.columns) else head


def frame_to_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV in which no text is a formula (`study.text.csv_cell`) or begins a comment."""
    safe = frame.rename(columns=lambda name: csv_cell(str(name)))
    marked = False
    for place, kind in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            values = frame.iloc[:, place].map(lambda value: csv_cell(value) if isinstance(value, str) else value)
            marked = marked or bool(values.astype(str).str.contains("#", regex=False).any())
            safe.isetitem(place, values.to_numpy())
    quoting: Any = csv.QUOTE_NONNUMERIC if marked else csv.QUOTE_MINIMAL
    return safe.to_csv(index=False, lineterminator="\n", quoting=quoting)


def to_markdown(table: "Table") -> str:
    """Return title, conclusion, the table in pipes, counts and notes."""
    parts = [f"### {_in_pipes(table.heading)}", one_line(table.said)]
    parts += [] if table.empty else [one_line(table.shown().above), pipes(table)]
    parts += [one_line(table.counts)]
    parts.append("\n".join(f"- {one_line(text)}" for text in (*table.notes, *table.definitions)))
    return markdown("\n\n".join(part for part in parts if part)) + "\n"


def pipes(table: "Table") -> str:
    """Return the cells between pipes, numbers at the right."""
    columns, rows, _ = table.shown()
    lines = [[each.heading for each in columns], ["---:" if each.is_number else ":---" for each in columns]]
    lines += [[" ".join(cell).strip() for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(map(_in_pipes, line))} |" for line in lines)


def _in_pipes(text: str) -> str:
    return one_line(text).replace("|", "\\|")


def to_latex(table: "Table") -> str:
    """Return a `table` environment for booktabs with the title as its caption; what else is said is a comment above."""
    columns, rows, above = table.shown()
    said = "".join(
        f"% {one_line(text)}\n" for text in (table.title, table.said, above, table.counts, *table.notes) if text
    )
    if table.empty:
        return said
    cells = [[" ".join(cell).strip() for cell in row] for row in rows]
    frame = pd.DataFrame(cells, columns=[each.heading for each in columns])
    styled = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
    aligned = "".join("r" if each.is_number else "l" for each in columns)
    caption, label = table.title.replace("&", r"\&"), f"tab:{table.key}"
    return said + str(styled.to_latex(column_format=aligned, hrules=True, caption=caption, label=label))


# --- pages ----------------------------------------------------------------------------------------------------------


def to_html(table: "Table", *, alone: bool = True) -> str:
    """Return a `section` of class `study-table`: conclusion, table, counts, notes.

    A report, in which it is not `alone`, names the engine once and has the definitions at its end.
    """
    key = escape(table.key)
    parts = [f'<section class="study-table" id="{key}">']
    parts += [f'<h3 id="{key}-caption">{escape(table.heading)}</h3>'] if table.empty else []
    parts.append(f'<p class="conclusion">{prose(table.said if alone else table.conclusion)}</p>')
    parts += [] if table.empty else html_table(table)
    parts.append(f'<p class="counts">{escape(table.counts)}</p>')
    listed = "".join(f"<li>{prose(text)}</li>" for text in table.notes)
    parts += [f'<div class="notes"><ul>{listed}</ul></div>'] if listed else []
    return "\n".join([*parts, "</section>"]) + "\n"


def html_table(table: "Table", *, stacked: bool = False) -> Iterator[str]:
    """Yield the table alone, with a caption and scopes, in a region that scrolls by itself and by keyboard.

    On a phone each row of a `stacked` one becomes a list of its cells, each with its heading.
    """
    columns, rows, above = table.shown()
    label, kinds = f"{escape(table.key)}-caption", ["number" if each.is_number else "text" for each in columns]
    said = f' <span class="above">{escape(above)}</span>' if above else ""
    yield f'<div class="table-scroll" role="region" aria-labelledby="{label}" tabindex="0">'
    yield '<table class="stacked">' if stacked else "<table>"
    yield f'<caption id="{label}">{prose(table.heading)}{said}</caption>'
    heads = (
        f'<th scope="col" class="{kind}" title="{escape(each.meaning)}">{escape(each.heading)}</th>'
        for each, kind in zip(columns, kinds, strict=True)
    )
    yield f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>"
    tags = ['th scope="row"', *["td"] * (len(columns) - 1)]
    for row in rows:
        cells = []
        for (value, interval), column, kind, tag in zip(row, columns, kinds, tags, strict=True):
            more = f' <span class="interval">{escape(interval)}</span>' if interval else ""
            place = f'{tag} class="{kind}" data-label="{escape(column.heading)}"'
            cells.append(f"<{place}><span>{prose(value)}{more}</span></{tag[:2]}>")
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def prose(text: str) -> str:
    """Return a sentence, escaped, what stands between backticks as code, a number and its % on one line."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)).replace(" %", "&nbsp;%")


# --- a terminal -----------------------------------------------------------------------------------------------------


def to_text(table: "Table", width: int = 100) -> str:
    """Return the table for a terminal: title, conclusion, aligned columns, counts, `width` letters wide at most."""
    head, conclusion, counts = (wrapped(part, width) for part in (table.heading, table.said, table.counts))
    return "\n".join([head, conclusion, *([] if table.empty else [text_table(table, width)]), counts])


def wrapped(text: str, width: int) -> str:
    """Return a text in lines of at most `width` letters; words, and numbers with their %, stay whole."""
    kept = one_line(text).replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.fill(kept, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def text_table(table: "Table", width: int) -> str:
    """Return aligned columns; a table that is too wide loses its intervals, then its widest columns are folded."""
    columns, rows, above = table.shown()
    heads, room = [each.heading for each in columns], width - 2 * len(columns)
    texts = [heads, *([" ".join(cell).strip() for cell in row] for row in rows)]
    if sum(_widths(texts)) > room:
        texts = [heads, *([value for value, _ in row] for row in rows)]
    widths = _widths(texts)
    while sum(widths) > room and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    lines = [wrapped(above, width - 2)] if above else []
    for row in texts:
        cells = [textwrap.wrap(text, size) or [""] for text, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            placed = zip(parts, widths, columns, strict=True)
            lines.append("  ".join(text.rjust(n) if each.is_number else text.ljust(n) for text, n, each in placed))
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _widths(texts: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*texts, strict=True)]


FURTHER_DECIMALS = 2
"""Decimals that a narrow interval may add: an interval still narrower is one of rounding errors."""


def number(value: float | Estimate) -> str:
    """Return a number with three significant digits, an estimate with those of its table."""
    return estimate(value.value, value.low, value.high)[0] if isinstance(value, Estimate) else significant(value)


def percent(share: float) -> str:
    """Return a share of 1 as `96.9 %`."""
    return f"{number(100 * share)} %"


def in_words(value: Estimate) -> str:
    """Return an estimate as it stands in a sentence: `1.93 [1.90, 1.96]`, or with the reason why it has no interval."""
    shown, interval = estimate(value.value, value.low, value.high)
    return f"{shown} {interval or no_interval(value.n)}"


def no_interval(n: int) -> str:
    """Return why an estimate has no interval, in brackets."""
    return "(one run)" if n == 1 else f"(n={n}, no interval)"


def estimate(value: float, low: Any, high: Any) -> tuple[str, str]:
    """Return the value and its interval with equal decimals; the interval is empty where both ends are missing.

    The decimals are those of the significant digits of the value, or of the interval's half width where that is the
    larger number (a value near 0), and up to two more where both ends would otherwise look alike.
    """
    low, high = (math.inf if is_missing(end) else float(end) for end in (low, high))
    if math.isinf(low) and math.isinf(high):
        return fixed(value, decimals_of(value)), ""
    half = (high - low) / 2 if math.isfinite(high - low) else abs(value)
    decimals = decimals_of(max(abs(value), half))
    for more in range(FURTHER_DECIMALS + 1):
        if fixed(low, decimals + more) != fixed(high, decimals + more):
            decimals += more
            break
    opening, closing = ("[" if math.isfinite(low) else "("), ("]" if math.isfinite(high) else ")")
    return fixed(value, decimals), f"{opening}{fixed(low, decimals)}, {fixed(high, decimals)}{closing}"


def plain(value: Any) -> str:
    """Return a value that is no estimate: integers in full, other numbers to their significant digits, words as is."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        return str(value)
    return f"{int(value):,}" if hasattr(value, "__index__") else significant(float(value))


def is_missing(value: Any) -> bool:
    """Return whether a value of a frame is None, NA or NaN."""
    return value is None or bool(pd.isna(value))


# --- tables -----------------------------------------------------------------------------------------------------------

MOST_ROWS = 300
"""Maximum rows rendered; the CSV has all."""
MISSING = "-"
"""What stands where a quantity does not exist."""
SUFFIXES = ("_low", "_high", "_n")
FAILED = "failed"
"""Key of the failed runs among the reasons for which runs are left out; tables count them apart."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, declared: its name in the frame, what people see in the head, by default that, and its meaning.

    The unit is `1` for a pure number, empty for text.
    """

    name: str
    unit: str
    label: str = ""
    meaning: str = ""
    estimate: bool = False

    @property
    def heading(self) -> str:
        """The head of the column: label and unit."""
        label = self.label or self.name.replace("_", " ")
        return label if self.unit in ("", "1") else f"{label} ({self.unit})"

    @property
    def is_number(self) -> bool:
        """Whether it is aligned as numbers."""
        return self.unit != ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the frame that belong to it."""
        return (self.name, *(f"{self.name}{suffix}" for suffix in SUFFIXES)) if self.estimate else (self.name,)

    def cell(self, row: Mapping[Any, Any]) -> tuple[str, str]:
        """Return what a reader sees in a row: the value, and in brackets how well an estimate is known."""
        value = row[self.name]
        if is_missing(value):
            return MISSING, ""
        if not self.estimate:
            return plain(value), ""
        shown, interval = estimate(float(value), row.get(f"{self.name}_low"), row.get(f"{self.name}_high"))
        own = f"{self.name}_n"
        runs = row.get(own, row.get("n"))
        unknown = "(by definition)" if own in row else "(no interval)"
        return shown, interval or (unknown if is_missing(runs) else no_interval(int(runs)))


class Shown(NamedTuple):
    """The cells of a table, each a value and its interval; `above` says which columns have one value in all rows."""

    columns: list[TableColumn]
    rows: list[list[tuple[str, str]]]
    above: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table:
    """A table with everything that must be read with it; one without rows says why in its conclusion.

    Attributes:
        key: Such as `T2`.
        frame, columns: All rows, and what people see of them.
        conclusion: One plain sentence with its interval, or why there is none.
        definitions: What must be known to read it, beside the meaning of each column.
        n, n_failed: Runs that the rows rest on, and failed ones.
        excluded: Reason -> runs that were left out for it; the failed ones are counted apart.
        command: What to run for a table with rows; empty where it has some, or where no command helps.
        engine: Of the runs, see `study.engine`; empty where the rows are of no run.
        most_rows: Rows that people are shown.
    """

    key: str
    title: str
    frame: pd.DataFrame
    columns: tuple[TableColumn, ...]
    conclusion: str
    definitions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n: int = 0
    n_failed: int = 0
    excluded: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    command: str = ""
    engine: str = ""
    most_rows: int = MOST_ROWS

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show but the reason."""
        return self.frame.empty

    @property
    def heading(self) -> str:
        """The title as it stands above the table, after its number if the key is one: `T2` is, and not `prices`."""
        return f"{self.key}. {self.title}" if self.key[0].isupper() else self.title

    @property
    def said(self) -> str:
        """The conclusion as it stands where nothing else names the engine and the command."""
        if self.empty:
            return with_command(self.conclusion, self.command)
        return f"Engine {self.engine}: {self.conclusion}" if self.engine else self.conclusion

    @property
    def counts(self) -> str:
        """How many rows people are not shown, and what the table rests on and leaves out, in sentences."""
        more = len(self.frame) - self.most_rows
        return (f"… and {more:,} more rows; the CSV has all of them. " if more > 0 else "") + self.rests_on

    @property
    def rests_on(self) -> str:
        """What the table rests on and what it leaves out, in a sentence."""
        reasons = [f"{number:,} ({reason})" for reason, number in self.excluded.items() if number and reason != FAILED]
        left_out = ", ".join(reasons) or "none"
        return f"n = {count(self.n, 'run')}, {self.n_failed:,} failed; left out: {left_out}."

    def shown(self) -> Shown:
        """Return what people see: where all rows have one value of a column, that stands above them."""
        rows = [
            [column.cell(row) for column in self.columns] for row in self.frame.head(self.most_rows).to_dict("records")
        ]
        kept, above = list(self.columns[:1]), []
        for column, cells in zip(self.columns[1:], list(zip(*rows, strict=True))[1:], strict=True):
            if column.estimate or column.name == "num_env_runners" or len(rows) < 2 or len({*cells}) > 1:
                kept.append(column)
            elif cells[0][0] != MISSING:
                above.append(f"{column.heading} = {cells[0][0]}")
        places = [self.columns.index(column) for column in kept]
        said = f"In every row: {', '.join(above)}." if above else ""
        return Shown(kept, [[row[place] for place in places] for row in rows], said)

    to_csv, to_markdown, to_latex, to_html, to_text = to_csv, to_markdown, to_latex, to_html, to_text

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


def table_of(
    key: str,
    title: str,
    columns: Iterable[TableColumn],
    rows: Sequence[Mapping[str, Any]],
    conclusion: str,
    **more: Any,
) -> Table:
    """Return a table of rows, each column name -> value, an `Estimate` in those of estimates, or None.

    A column without any value is left out. `more` are further fields of the table; `n` is by default that of the rows.
    """
    frame, shown = dict[str, list[Any]](), []
    for column in columns:
        values = [row.get(column.name) for row in rows]
        if not any(isinstance(each, Estimate) or not is_missing(each) for each in values):
            continue
        shown.append(column)
        if column.estimate:
            quadruples = [in_frame(each) if isinstance(each, Estimate) else (None,) * 4 for each in values]
            frame |= dict(zip(column.names, map(list, zip(*quadruples, strict=True)), strict=True))
        else:
            frame[column.name] = values
    made = pd.DataFrame(frame, dtype=object).convert_dtypes()
    return Table(
        key=key, title=title, frame=made, columns=tuple(shown), conclusion=conclusion, **{"n": len(rows), **more}
    )


def without_rows(key: str, title: str, why: str, command: str = "", **more: Any) -> Table:
    """Return a table without rows; `why` says what is missing, and `command` is what would make it."""
    return Table(key=key, title=title, frame=pd.DataFrame(), columns=(), conclusion=why, command=command, **more)


def with_command(why: str, command: str) -> str:
    """Return why something is missing, and the command that would make it, if one would."""
    return f"{why} Run: {command}" if command else why
