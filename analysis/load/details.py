"""Iterations and evaluations of a study folder, read when they are asked for. Imports pandas, no engine."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.arrays import Values, frame_of
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS
from analysis.load.record_scan import Scan
from study.errors import RecordError
from study.records.records import Evaluation, Record

_HEAD = 4
"""Columns of an iteration that are no metrics."""
_METRICS = tuple(ITERATION_COLUMNS)[_HEAD:]
_CHUNK = 1 << 16
_NUMBERS = frozenset((float, int, type(None)))


def iterations_frame(records: Path) -> pd.DataFrame:
    """Return one row per training iteration of the latest attempts, the columns of `ITERATION_COLUMNS`.

    Raises:
        RecordError: The records cannot be trusted.
    """
    reader = _Iterations(records)
    scan = Scan(path=records).run(reader.add, _ignore)
    values = reader.finish(scan)
    return frame_of(dict(zip(ITERATION_COLUMNS, values.T, strict=True)), ITERATION_COLUMNS, where=str(records))


def evaluations_frame(records: Path) -> pd.DataFrame:
    """Return one row per evaluation of the latest attempts, the columns of `EVALUATION_COLUMNS`.

    Raises:
        RecordError: The records cannot be trusted.
    """
    rows: list[tuple[int, Evaluation]] = []

    def take(record: Record, moment: float, slot: int) -> None:
        if isinstance(record, Evaluation):
            rows.append((slot, record))

    scan = Scan(path=records).run(lambda *_: None, take)
    latest = set(scan.slots.values())
    kept = [record for slot, record in rows if slot in latest]
    values: dict[str, Values] = {
        "trial": [record.trial for record in kept],
        "env_steps": [record.env_steps for record in kept],
        "wall_time_s": [record.wall_time_s for record in kept],
        "progress": [record.progress for record in kept],
        "eval_return": [_mean(record, records) for record in kept],
        "num_episodes": [len(record.returns) for record in kept],
        "num_cut": [record.num_cut for record in kept],
        "eval_time_s": [record.eval_time_s for record in kept],
    }
    return frame_of(values, EVALUATION_COLUMNS, where=str(records))


def _mean(record: Evaluation, records: Path) -> float | None:
    """Return the mean return of an evaluation; None where no episode was played.

    Raises:
        RecordError: A return is no number.
    """
    for value in record.returns:
        if type(value) not in (int, float):
            raise RecordError(
                where=f"{records}: trial {record.trial}",
                rule="a return must be a number",
                got=f"{value!r}",
                fix="Restore the file from a backup.",
                code="return-not-a-number",
            )
    return sum(record.returns) / len(record.returns) if record.returns else None


class _Iterations:
    """Keeps all metrics of all iterations as arrays: 8 bytes a value."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks: list[NDArray[np.float64]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._lines: list[int] = []

    def add(
        self, number: int, slot: int, iteration: int, env_steps: int, wall_time_s: float, metrics: dict[str, Any]
    ) -> None:
        self._lines.append(number)
        self._rows.append((slot, iteration, env_steps, wall_time_s, *map(metrics.get, _METRICS)))
        if len(self._rows) == _CHUNK:
            self._flush()

    def finish(self, scan: Scan) -> NDArray[np.float64]:
        """Return the rows of the latest attempts, with the trial in the first column."""
        self._flush()
        values = np.concatenate(self._chunks) if self._chunks else np.zeros((0, len(ITERATION_COLUMNS)))
        self._chunks.clear()
        trial_of = np.full(max(scan.num_attempts, 1), -1.0)
        trial_of[list(scan.slots.values())] = list(scan.slots)
        values[:, 0] = trial_of[values[:, 0].astype(np.int64)]
        return values[values[:, 0] >= 0]

    def _flush(self) -> None:
        if not set(map(type, chain.from_iterable(self._rows))) <= _NUMBERS:
            for number, row in zip(self._lines, self._rows, strict=True):
                for name, value in zip(ITERATION_COLUMNS, row, strict=True):
                    if type(value) not in _NUMBERS:
                        raise RecordError(
                            where=f"{self._path}: line {number}",
                            rule=f"{name} must be a number",
                            got=f"{value!r}",
                            fix="Restore the file from a backup.",
                            code="field-not-a-number",
                        )
        if self._rows:
            self._chunks.append(np.array(self._rows, dtype=np.float64))
        self._rows, self._lines = [], []


def _ignore(record: Record, moment: float, slot: int) -> None:
    """Do nothing with the other records."""
