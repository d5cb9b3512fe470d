"""The table of trials as a file. Pure but for the file."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from study.harmless import csv_cell, from_csv_cell, printable
from study.records.files import write_atomically
from study.records.ledger import TrialRow, table_row


def write_table(path: Path, rows: Iterable[TrialRow]) -> None:
    """Write one line per trial, by its number; an empty cell is a quantity that does not exist."""
    lines = [
        {_shown(name): _shown(value) if isinstance(value, str) else value for name, value in table_row(row).items()}
        for row in sorted(rows, key=lambda row: row.trial)
    ]
    text = io.StringIO()
    names = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(path, text.getvalue())


def _shown(text: str) -> str:
    return csv_cell(printable(text))


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table as they were given but for control characters, each cell as text.

    Raises:
        OSError: There is none that can be read.
        ValueError: It is no text; or (csv.Error) no table.
    """
    with path.open(newline="") as file:
        return [
            {from_csv_cell(name): from_csv_cell(value or "") for name, value in line.items() if name is not None}
            for line in csv.DictReader(file)
        ]
