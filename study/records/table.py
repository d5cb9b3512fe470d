"""The table of trials as a file."""

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
    return {
        **dict.fromkeys(_LEADING),
        **row.setting,
        **dict.fromkeys(OF_TRIALS),
        **row.summary,
        **row.columns(),
        "trial": row.trial,
        "status": row.status,
        "seed": row.seed,
        "execution": row.execution,
        "engine": row.engine,
        # A label that the whole trial has yet to settle is none so far.
        "timing": None if row.provisional and row.status == "running" else row.timing,
        "max_iterations": row.iterations,
        "baseline": row.anchor,
        "stage": row.stage,
        "variant": row.variant if row.stage else None,
        "digest": row.digest or None,
        "stands_for_runners": row.scale,
        "attempt": row.attempt,
        "num_cpus": row.num_cpus,
        "checkpoint": row.checkpoint,
        "timing_reason": row.timing_reason,
        "reason": row.reason,
    }


def write_table(path: Path, rows: Iterable[TrialRow]) -> None:
    """Write one line per trial, by its number; an empty cell is a quantity that does not exist."""

    def shown(value: Any) -> Any:
        return csv_cell(printable(value)) if isinstance(value, str) else value

    lines = [
        {shown(name): shown(value) for name, value in table_row(row).items()}
        for row in sorted(rows, key=lambda row: row.trial)
    ]
    text = io.StringIO()
    names = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
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
