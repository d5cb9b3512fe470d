"""A table as CSV, Markdown, LaTeX, HTML and text. Pure; every character of the data is escaped for its place."""

import csv
import re
import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Literal

import pandas as pd

from analysis.tables.cells import Body, Cell, TableColumn
from study.harmless import csv_cell, markdown, one_line

if TYPE_CHECKING:
    from analysis.tables.table import Table

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\N{EN DASH}": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "²": r"\textsuperscript{2}",
    "→": r"$\rightarrow$",
}
"""Characters that LaTeX reads otherwise, or that its default fonts lack."""
NARROWEST = 12
"""Letters to which a column of a text table is narrowed, at least."""
GAP = "  "


# --- CSV ----------------------------------------------------------------------------------------------------------


def to_csv(table: "Table") -> str:
    """Return every number at full precision; the `#` lines above them say what the table rests on.

    Read it with `pandas.read_csv(file, comment="#")`.
    """
    said = [table.heading, table.said, table.counts]
    said += [f"engine: {table.engine}"] if table.engine else []
    said += [*table.notes, *table.definitions]
    said += [f"{column.name} [{column.unit or 'text'}]: {column.meaning}" for column in table.columns]
    head = "".join(f"# {csv_cell(one_line(text))}\n" for text in said)
    if not len(table.frame.columns):
        return head
    texts: pd.DataFrame = table.frame.select_dtypes("string")
    marked = any(texts[name].str.contains("#", regex=False).fillna(False).any() for name in texts)
    return head + frame_to_csv(table.frame, quoting=csv.QUOTE_NONNUMERIC if marked else csv.QUOTE_MINIMAL)


def frame_to_csv(frame: pd.DataFrame, *, quoting: Literal[0, 2] = csv.QUOTE_MINIMAL) -> str:
    """Return a frame as CSV in which no text is a formula; see `study.harmless.csv_cell`."""
    safe = frame.rename(columns=lambda name: csv_cell(str(name)))
    for place, kind in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            values = frame.iloc[:, place].map(lambda value: csv_cell(value) if isinstance(value, str) else value)
            safe.isetitem(place, values.to_numpy())
    return safe.to_csv(index=False, lineterminator="\n", quoting=quoting)


# --- Markdown -----------------------------------------------------------------------------------------------------


def to_markdown(table: "Table", *, alone: bool = True) -> str:
    """Return title, conclusion, the table in pipes, counts and notes.

    Args:
        table: The table.
        alone: Whether it stands outside of a report, which names the engine once and has the definitions at its end.
    """
    parts = [f"### {_in_pipes(table.heading)}", one_line(table.said if alone else table.conclusion)]
    if not table.empty:
        body = table.body()
        parts += [one_line(body.above), pipes(body)]
    parts += [one_line(f"{table.more_rows} {table.counts}"), _bullets("Notes", table.notes)]
    if alone:
        parts.append(_bullets("Definitions", table.definitions))
        meanings = [f"{column.heading}: {column.meaning}" for column in table.columns if column.meaning]
        parts.append(_bullets("Columns", meanings if not table.empty else ()))
    return markdown("\n\n".join(part for part in parts if part)) + "\n"


def pipes(body: Body) -> str:
    """Return the cells between pipes, numbers at the right."""
    rule = ["---:" if number else ":---" for number in body.numeric]
    lines = [[_in_pipes(column.heading) for column in body.columns], rule]
    lines += [[_in_pipes(each.text) for each in row] for row in body.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bullets(head: str, texts: Sequence[str]) -> str:
    return "\n".join([f"{head}:", "", *(f"- {one_line(text)}" for text in texts)]) if texts else ""


def _in_pipes(text: str) -> str:
    return one_line(text).replace("|", "\\|")


# --- LaTeX --------------------------------------------------------------------------------------------------------


def to_latex(table: "Table") -> str:
    """Return a `table` environment for booktabs and graphicx; a table wider than the page is shrunk to it."""
    body = None if table.empty else table.body()
    above = "" if body is None else body.above
    said = [above, table.more_rows, table.counts, *table.notes, *table.definitions]
    small = latex(" ".join(said).strip())
    lines = [
        "% \\usepackage[T1]{fontenc}",
        "% \\usepackage{booktabs,graphicx}",
        "\\begin{table}[htbp]",
        "\\centering",
        f"\\caption{{{latex(f'{table.title}. {table.said}')}}}",
        f"\\label{{tab:{table.key}}}",
        *(_tabular(body) if body is not None else ()),
        f"\\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {small}\\end{{minipage}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Return `text` on one line, such that LaTeX prints it."""
    return "".join(LATEX.get(letter, letter) for letter in one_line(text))


def _tabular(body: Body) -> list[str]:
    heads = [f"{{{latex(column.heading)}}}" for column in body.columns]
    lines = ["\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"]
    lines += [f"\\begin{{tabular}}{{{''.join('r' if number else 'l' for number in body.numeric)}}}", "\\toprule"]
    lines += [" & ".join(heads) + " \\\\", "\\midrule"]
    # The braces keep a cell that begins with a bracket from being read as an option of the line before.
    lines += [" & ".join(f"{{{latex(each.text)}}}" for each in row) + " \\\\" for row in body.rows]
    return [*lines, "\\bottomrule", "\\end{tabular}}"]


# --- HTML ---------------------------------------------------------------------------------------------------------


def to_html(table: "Table", *, alone: bool = True) -> str:
    """Return a `section` of class `study-table`: conclusion, table, counts, notes.

    Args:
        table: The table.
        alone: Whether it stands outside of a report, which names the engine once and has the definitions at its end.
    """
    parts = [f'<section class="study-table" id="{escape(table.key)}">']
    if table.empty:
        parts.append(f'<h3 id="{escape(table.key)}-caption">{escape(table.heading)}</h3>')
    parts.append(f'<p class="conclusion">{prose(table.said if alone else table.conclusion)}</p>')
    if not table.empty:
        parts.append(html_table(table, table.heading))
    parts.append(f'<p class="counts">{escape(f"{table.more_rows} {table.counts}".strip())}</p>')
    if table.notes:
        parts.append(f'<ul class="notes">{"".join(f"<li>{prose(note)}</li>" for note in table.notes)}</ul>')
    if alone and (table.definitions or not table.empty):
        parts.append(_definitions(table))
    return "\n".join([*parts, "</section>"]) + "\n"


def html_table(table: "Table", caption: str) -> str:
    """Return the table alone, with a caption and scopes, in a region that scrolls by itself and by keyboard."""
    label, body = f"{escape(table.key)}-caption", table.body()
    heads = "".join(_head(column, number) for column, number in zip(body.columns, body.numeric, strict=True))
    above = f' <span class="above">{escape(body.above)}</span>' if body.above else ""
    lines = [
        f'<div class="table-scroll" role="region" aria-labelledby="{label}" tabindex="0">\n<table>',
        f'<caption id="{label}">{escape(caption)}{above}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>',
    ]
    for row in body.rows:
        tags = ['th scope="row"', *["td"] * (len(row) - 1)]
        cells = zip(row, body.numeric, tags, strict=True)
        lines.append(f"<tr>{''.join(_cell(each, number, tag) for each, number, tag in cells)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def prose(text: str) -> str:
    """Return a sentence, escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _head(column: TableColumn, number: bool) -> str:
    kind = ' class="number"' if number else ""
    return f'<th scope="col"{kind} title="{escape(column.meaning)}">{escape(column.heading)}</th>'


def _cell(cell: Cell, number: bool, tag: str) -> str:
    kind = ' class="number"' if number else ' class="text"'
    interval = f' <span class="interval">{escape(cell.interval)}</span>' if cell.interval else ""
    return f"<{tag}{kind}>{escape(cell.value)}{interval}</{tag.split()[0]}>"


def _definitions(table: "Table") -> str:
    entries = "".join(f"<dt>{escape(each.heading)}</dt><dd>{prose(each.meaning)}</dd>" for each in table.columns)
    lines = "".join(f"<li>{prose(text)}</li>" for text in table.definitions)
    listed = f"<ul>{lines}</ul>" if lines else ""
    columns = f"<dl>{entries}</dl>" if entries and not table.empty else ""
    return f"<details><summary>What the columns of {escape(table.key)} mean</summary>{listed}{columns}</details>"


# --- Text ---------------------------------------------------------------------------------------------------------


def to_text(table: "Table", width: int) -> str:
    """Return the table for a terminal: title, conclusion, aligned columns, counts."""
    parts = [table.heading, table.said, table.counts]
    head, conclusion, counts = (wrapped(part, width) for part in parts)
    return "\n".join([head, conclusion, *([text_table(table, width)] if not table.empty else []), counts])


def wrapped(text: str, width: int) -> str:
    """Return a text in lines of at most `width` letters; words, and numbers with their %, stay whole."""
    kept = one_line(text).replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.fill(kept, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def text_table(table: "Table", width: int) -> str:
    """Return aligned columns; a table that is too wide loses its intervals, then its widest columns are wrapped."""
    body = table.body()
    above = [f"  {wrapped(body.above, width - 2)}"] if body.above else []
    full = _lines(body, [[cell.text for cell in row] for row in body.rows], width, wrap=False)
    lines = full or _lines(body, [[cell.value for cell in row] for row in body.rows], width, wrap=True)
    return "\n".join([*above, *lines])


def _lines(body: Body, texts: list[list[str]], width: int, *, wrap: bool) -> list[str]:
    """Return the lines of a table; none where they do not fit and may not be wrapped."""
    table = [[column.heading for column in body.columns], *texts]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    room = width - 2 - len(GAP) * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if not wrap:
            return []
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    lines = []
    for row in table:
        cells = [textwrap.wrap(text, size) or [""] for text, size in zip(row, widths, strict=True)]
        for place in range(max(map(len, cells))):
            parts = [each[place] if place < len(each) else "" for each in cells]
            aligned = zip(parts, widths, body.numeric, strict=True)
            line = GAP.join(part.rjust(size) if number else part.ljust(size) for part, size, number in aligned)
            lines.append(f"  {line}".rstrip())
    return lines
