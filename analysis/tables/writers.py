"""A table as CSV, Markdown, LaTeX, HTML and text; every character of the data is escaped for its place."""

import csv
import re
import textwrap
from collections.abc import Iterator
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pandas as pd

from study.harmless import csv_cell, markdown, one_line

if TYPE_CHECKING:
    from analysis.tables.table import Table

NARROWEST = 12
"""Letters to which a column of a text table is narrowed, at least."""


# --- files ----------------------------------------------------------------------------------------------------------


def to_csv(table: "Table") -> str:
    """Return all numbers at full precision under `#` lines that say the rest: `pd.read_csv(file, comment="#")`."""
    said = [table.heading, table.said, table.counts, *table.notes, *table.definitions]
    said += [f"{column.name} [{column.unit or 'text'}]: {column.meaning}" for column in table.columns]
    head = "".join(f"# {csv_cell(one_line(text))}\n" for text in said)
    return head + frame_to_csv(table.frame) if len(table.frame.columns) else head


def frame_to_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV in which no text is a formula (`study.harmless.csv_cell`) or begins a comment."""
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

    Args:
        table: The table.
        alone: Whether it stands outside of a report, which names the engine once and has the definitions at its end.
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

    Args:
        table: The table.
        stacked: Whether on a phone each row becomes a list of its cells, each with its heading.
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
