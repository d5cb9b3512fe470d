"""The table of trials as a file, `trials.csv`, for people and spreadsheets."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from study.harmless import csv_cell, from_csv_cell, printable
from study.metrics import OF_TRIALS
from study.records.files import write_atomically
from study.records.ledger import TrialRow

_LEADING = (
    *("trial", "status", "num_env_runners", "train_batch_size", "lr", "seed", "env_steps_per_s", "wall_time_s"),
    *("final_return", "score", "execution", "timing", "engine"),
)
"""The columns that come first; the other parameters and metrics follow."""
_OF_ROW = (
    *("trial", "status", "seed", "execution", "engine", "stage", "attempt", "num_cpus"),
    *("checkpoint", "timing_reason", "reason"),
)
"""Columns that the state of a trial has by the same name."""


def table_row(row: TrialRow) -> dict[str, Any]:
    """Return one line of the table of trials, all columns."""
    values = {**dict.fromkeys((*_LEADING, *row.setting, *OF_TRIALS)), **row.setting, **row.summary, **row.columns()}
    values |= {name: getattr(row, name) for name in _OF_ROW}
    values |= {"max_iterations": row.iterations, "baseline": row.anchor, "stands_for_runners": row.scale}
    values |= {"variant": row.variant if row.stage else None, "digest": row.digest or None}
    # A label that the whole trial has yet to settle is none so far.
    return values | {"timing": None if row.provisional and row.status == "running" else row.timing}


def write_table(path: Path, rows: Iterable[TrialRow]) -> None:
    """Write one line per trial, by its number; an empty cell is a quantity that does not exist."""
    lines = [table_row(row) for row in sorted(rows, key=lambda row: row.trial)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = dict.fromkeys(name for line in lines for name in line)
    for cells in (names, *([line.get(name) for name in names] for line in lines)):
        writer.writerow([csv_cell(printable(cell)) if isinstance(cell, str) else cell for cell in cells])
    write_atomically(path, text.getvalue())


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table as they were given but for control characters, each cell as text.

    Raises:
        OSError: There is none that can be read.
        ValueError: It is no text; or (csv.Error) no table.
    """
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [{name: from_csv_cell(value or "") for name, value in line.items() if name is not None} for line in lines]
