"""Iterations of a study folder, read when they are asked for, and its evaluations. Imports pandas, no engine."""

import math
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.load.arrays import frame_of
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, Column
from study.records.records import Evaluation, Iteration, TrialStarted, read_lines

_METRICS = tuple(ITERATION_COLUMNS)[4:]
"""Columns of an iteration behind trial, iteration, steps and clock."""


class Rows:
    """The rows of a frame as numbers, 8 bytes a value, of which those of the latest attempts count."""

    def __init__(self, path: Path, columns: Mapping[str, Column]) -> None:
        """Take the records file, for messages, and the columns, the first of which is the trial."""
        self._path, self._columns = path, columns
        self._values, self._attempts = array("d"), array("q")
        self._latest: dict[int, int] = {}

    def begin(self, started: TrialStarted) -> None:
        """Leave the rows of the trial's earlier attempts out of the frame."""
        self._latest[started.trial] = started.attempt

    def add(self, attempt: int, *values: float | None) -> None:
        """Take a row."""
        self._attempts.append(attempt)
        self._values.extend([math.nan if each is None else each for each in values])

    def frame(self) -> pd.DataFrame:
        """Return the declared columns."""
        values = np.array(self._values, dtype=np.float64).reshape(-1, len(self._columns))
        latest = np.array([self._latest.get(int(trial), 0) for trial in values[:, 0]], dtype=np.int64)
        kept = values[latest == np.array(self._attempts, dtype=np.int64)]
        return frame_of(dict(zip(self._columns, kept.T, strict=True)), self._columns, where=str(self._path))


def iterations_frame(records: Path) -> pd.DataFrame:
    """Return one row per training iteration of the latest attempts, the columns of `ITERATION_COLUMNS`.

    Raises:
        RecordError: The records cannot be trusted.
    """
    rows = Rows(records, ITERATION_COLUMNS)
    for line in read_lines(records):
        match line.record:
            case TrialStarted() as started:
                rows.begin(started)
            case Iteration() as one:
                head = one.trial, one.iteration, one.env_steps, one.wall_time_s
                rows.add(one.attempt, *head, *map(one.metrics.get, _METRICS))
    return rows.frame()


class Evaluations(Rows):
    """What analysis wants of the evaluations, kept while the records pass by."""

    def __init__(self, path: Path) -> None:
        """Take the records file, for messages."""
        super().__init__(path, EVALUATION_COLUMNS)

    def take(self, one: Evaluation) -> None:
        """Take one evaluation."""
        mean, counts = sum(one.returns) / len(one.returns), (len(one.returns), one.num_cut)
        head = one.trial, one.env_steps, one.wall_time_s, one.progress
        self.add(one.attempt, *head, mean, *counts, one.eval_time_s)
