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


def table_row(row: TrialRow) -> dict[str, Any]:
    """Return one line of the table of trials, all columns."""

    def of_row(*names: str) -> dict[str, Any]:
        return {name: getattr(row, name) for name in names}

    return {
        **dict.fromkeys(_LEADING),
        **row.setting,
        **dict.fromkeys(OF_TRIALS),
        **row.summary,
        **row.columns(),
        **of_row("trial", "status", "seed", "execution", "engine"),
        # A label that the whole trial has yet to settle is none so far.
        "timing": None if row.provisional and row.status == "running" else row.timing,
        "max_iterations": row.iterations,
        "baseline": row.anchor,
        "stage": row.stage,
        "variant": row.variant if row.stage else None,
        "digest": row.digest or None,
        "stands_for_runners": row.scale,
        **of_row("attempt", "num_cpus", "checkpoint", "timing_reason", "reason"),
    }


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
