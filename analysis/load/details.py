"""Iterations of a study folder, read when they are asked for, and its evaluations. Imports pandas, no engine."""

import math
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.arrays import check_numbers, frame_of
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS
from analysis.load.record_scan import Scan
from study.errors import RecordError
from study.records.records import Evaluation, Record

_HEAD = 4
"""Columns of an iteration that are no metrics."""
_METRICS = tuple(ITERATION_COLUMNS)[_HEAD:]
_CHUNK = 1 << 16


def iterations_frame(records: Path) -> pd.DataFrame:
    """Return one row per training iteration of the latest attempts, the columns of `ITERATION_COLUMNS`.

    Raises:
        RecordError: The records cannot be trusted.
    """
    reader = _Iterations(records)
    scan = Scan(path=records).run(reader.add, _ignore)
    values = reader.finish(scan)
    return frame_of(dict(zip(ITERATION_COLUMNS, values.T, strict=True)), ITERATION_COLUMNS, where=str(records))


class Evaluations:
    """Keeps what analysis wants of the evaluations as arrays while the records pass by: 64 bytes each."""

    def __init__(self, path: Path) -> None:
        """Take the records file, for messages."""
        self._path = path
        self._values = array("d")
        self._attempts = array("q")

    def add(self, record: Evaluation, slot: int) -> None:
        """Take one evaluation of the attempt `slot`.

        Raises:
            RecordError: A return is no number.
        """
        counts = len(record.returns), record.num_cut
        mean = _mean(record, self._path)
        self._values.extend(
            (record.trial, record.env_steps, record.wall_time_s, record.progress, mean, *counts, record.eval_time_s)
        )
        self._attempts.append(slot)

    def frame(self, latest: Iterable[int]) -> pd.DataFrame:
        """Return one row per evaluation of the latest attempts, the columns of `EVALUATION_COLUMNS`."""
        values = np.array(self._values, dtype=np.float64).reshape(-1, len(EVALUATION_COLUMNS))
        kept = values[np.isin(np.array(self._attempts, dtype=np.int64), [*latest])]
        return frame_of(dict(zip(EVALUATION_COLUMNS, kept.T, strict=True)), EVALUATION_COLUMNS, where=str(self._path))


def _mean(record: Evaluation, records: Path) -> float:
    """Return the mean return of an evaluation; NaN where no episode was played.

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
    return sum(record.returns) / len(record.returns) if record.returns else math.nan


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
        check_numbers(self._rows, tuple(ITERATION_COLUMNS), self._lines, where=self._path)
        if self._rows:
            self._chunks.append(np.array(self._rows, dtype=np.float64))
        self._rows, self._lines = [], []


def _ignore(record: Record, moment: float, slot: int) -> None:
    """Do nothing with the other records."""
