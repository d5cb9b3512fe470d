"""A table as HTML for people with and without a screen. Pure text; every character of the data is escaped."""

import re
from html import escape

from analysis.tables.grid import Cell, Grid, TableColumn, numeric_columns


def to_html(table: Grid) -> str:
    """Return a `section` of class `study-table`: conclusion, table, counts, notes, definitions.

    The table has a caption, its heads have scopes, and it lies in a region that scrolls by itself on narrow screens
    and can be reached by keyboard.
    """
    label = f"{table.key}-caption"
    parts = [f'<section class="study-table" id="{escape(table.key)}">']
    if table.empty:
        parts.append(f'<h3 id="{escape(label)}">{escape(_caption(table))}</h3>')
    parts.append(f'<p class="conclusion">{prose(table.conclusion)}</p>')
    if not table.empty:
        parts += scrolling_table(table, label)
    parts.append(f'<p class="counts">{escape(f"{table.more_rows} {table.counts}".strip())}</p>')
    if table.notes:
        parts.append(f'<ul class="notes">{"".join(f"<li>{prose(note)}</li>" for note in table.notes)}</ul>')
    if table.definitions or not table.empty:
        parts.append(_definitions(table))
    return "\n".join([*parts, "</section>"]) + "\n"


def prose(text: str) -> str:
    """Return a sentence, escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def scrolling_table(table: Grid, label: str) -> list[str]:
    """Return the lines of the table itself, in a region that scrolls by itself."""
    rows = table.cells()
    numeric = numeric_columns(rows)
    heads = "".join(_head(column, number) for column, number in zip(table.columns, numeric, strict=True))
    lines = [f'<div class="table-scroll" role="region" aria-labelledby="{escape(label)}" tabindex="0">', "<table>"]
    lines += [f'<caption id="{escape(label)}">{escape(_caption(table))}</caption>', f"<thead><tr>{heads}</tr></thead>"]
    lines.append("<tbody>")
    for row in rows:
        first = _cell(row[0], numeric[0], tag='th scope="row"')
        lines.append(
            f"<tr>{first}{''.join(_cell(each, number) for each, number in zip(row[1:], numeric[1:], strict=True))}</tr>"
        )
    return [*lines, "</tbody>", "</table>", "</div>"]


def _caption(table: Grid) -> str:
    return f"{table.key}. {table.title}"


def _head(column: TableColumn, number: bool) -> str:
    kind = ' class="number"' if number else ""
    return f'<th scope="col"{kind} title="{escape(column.meaning)}">{escape(column.heading)}</th>'


def _cell(cell: Cell, number: bool, *, tag: str = "td") -> str:
    kind = ' class="number"' if number else ""
    interval = f' <span class="interval">{escape(cell.interval)}</span>' if cell.interval else ""
    return f"<{tag}{kind}>{escape(cell.value)}{interval}</{tag.split()[0]}>"


def _definitions(table: Grid) -> str:
    entries = [f"<dt>{escape(column.heading)}</dt><dd>{prose(column.meaning)}</dd>" for column in table.columns]
    lines = "".join(f"<li>{prose(text)}</li>" for text in table.definitions)
    listed = f"<ul>{lines}</ul>" if lines else ""
    columns = f"<dl>{''.join(entries)}</dl>" if entries and not table.empty else ""
    return f"<details><summary>What the columns of {escape(table.key)} mean</summary>{listed}{columns}</details>"
