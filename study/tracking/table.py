"""The table of trials as a file. Pure but for the file."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from study.tracking.folder import write_atomically
from study.tracking.ledger import TrialRow, table_row


def write_table(path: Path, rows: Iterable[TrialRow]) -> None:
    """Write one line per trial, by its number; an empty cell is a quantity that does not exist."""
    lines = [table_row(row) for row in sorted(rows, key=lambda row: row.trial)]
    text = io.StringIO()
    names = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(path, text.getvalue())
