"""A table as CSV and as Markdown. pandas' own Markdown needs tabulate, which is no dependency; these need nothing."""

import csv
from collections.abc import Sequence
from typing import Literal

import pandas as pd

from analysis.tables.grid import Cell, Grid, numeric_columns
from study.harmless import csv_cell, markdown, one_line


def to_csv(table: Grid) -> str:
    """Return every number at full precision; the `#` lines above them say what the table rests on.

    Read it with `pandas.read_csv(file, comment="#")`.
    """
    said = [f"{table.key}. {table.title}", table.conclusion, table.counts]
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


def to_markdown(table: Grid) -> str:
    """Return title, conclusion, the table in pipes, counts, notes, columns and definitions."""
    parts = [f"### {table.key}. {_escaped(table.title)}", one_line(table.conclusion)]
    if not table.empty:
        parts.append(pipes([column.heading for column in table.columns], table.cells()))
    parts.append(one_line(f"{table.more_rows} {table.counts}"))
    parts += [_bullets("Notes", table.notes), _bullets("Definitions", table.definitions)]
    if not table.empty:
        meanings = [f"{column.heading}: {column.meaning}" for column in table.columns if column.meaning]
        parts.append(_bullets("Columns", meanings))
    return markdown("\n\n".join(part for part in parts if part)) + "\n"


def pipes(headings: list[str], rows: list[list[Cell]]) -> str:
    """Return a table in pipes."""
    numeric = numeric_columns(rows)
    rule = ["---:" if number else ":---" for number in numeric]
    lines = [[_escaped(heading) for heading in headings], rule]
    lines += [[_escaped(each.text) for each in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bullets(head: str, texts: Sequence[str]) -> str:
    return "\n".join([f"{head}:", "", *(f"- {one_line(text)}" for text in texts)]) if texts else ""


def _escaped(text: str) -> str:
    return one_line(text).replace("|", "\\|")
