"""The records of a study -> its frames, in one pass; iterations are read when they are asked for.

Every frame has the columns, types and units that `analysis.load.columns` declares; what does not exist is NA.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from analysis.fingerprint import effective_part, fingerprint, fingerprints
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, RUN_COLUMNS, Column
from study.errors import RecordError
from study.metrics import METRICS
from study.records.folder import StudyIdentity
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    Record,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
)
from study.space.parameters import PARAMETERS
from study.space.sections import LEARNERS

_ALLOWED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "Int64": ((int,), "a whole number"),
    "Float64": ((int, float), "a number"),
    "string": ((str,), "a text"),
    "category": ((str,), "a text"),
}
"""Type of a column -> the types of its values, and what they are called in messages."""
_METRICS = tuple(ITERATION_COLUMNS)[4:]
"""Columns of an iteration behind trial, iteration, steps and clock."""
_OF_ROW = (
    *("trial", "attempt", "status", "stage", "seed", "num_cpus", "execution", "timing"),
    *("checkpoint", "started"),
)
"""Columns that the state of a trial has by the same name."""
_OF_SUMMARY = tuple(name for name, metric in METRICS.items() if metric.grain == "trial")
Values = Sequence[Any] | np.ndarray[Any, Any]
"""A list with None where there is nothing, or an array of numbers with NaN there."""


def frame_of(values: Mapping[str, Values], columns: Mapping[str, Column], *, where: str) -> pd.DataFrame:
    """Return the declared columns, in their order and types.

    Args:
        values: By column; those of `trial` name the rows in messages.
        columns: The declaration.
        where: File that the values are from, for messages.

    Raises:
        RecordError: A value is of another type than its column; names place, trial and column.
    """
    made = {name: _array(column, values[name], values["trial"], where) for name, column in columns.items()}
    return pd.DataFrame(made, copy=False)


def _array(column: Column, values: Values, trials: Values, where: str) -> ExtensionArray | pd.Categorical:
    if isinstance(values, np.ndarray):
        missing = np.isnan(values)
        filled = np.where(missing, 0, values)
        if column.dtype == "Int64":
            return pd.arrays.IntegerArray(filled.astype(np.int64), missing)
        return pd.arrays.FloatingArray(filled.astype(np.float64), missing)
    allowed, wanted = _ALLOWED[column.dtype]
    for trial, value in zip(trials, values, strict=True):
        if value is not None and type(value) not in allowed:
            place, rule = f"{where}: trial {trial}", f"{column.name} must be {wanted}"
            raise RecordError(where=place, rule=rule, got=f"{value!r}", fix="Restore the source from a backup.")
    return pd.Categorical(values) if column.dtype == "category" else pd.array(values, dtype=column.dtype)


class _Rows:
    """Rows of numbers, 8 bytes a value, of which those of the latest attempts count."""

    def __init__(self, path: Path, columns: Mapping[str, Column]) -> None:
        self._path, self._columns = path, columns
        self._values, self._attempts = array("d"), array("q")
        self._latest: dict[int, int] = {}

    def begin(self, started: TrialStarted) -> None:
        """Leave the rows of the trial's earlier attempts out of the frame."""
        self._latest[started.trial] = started.attempt

    def add(self, attempt: int, *values: float | None) -> None:
        """Take a row; its first value is the trial."""
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
    rows = _Rows(records, ITERATION_COLUMNS)
    for line in read_lines(records):
        match line.record:
            case TrialStarted() as started:
                rows.begin(started)
            case Iteration() as one:
                head = one.trial, one.iteration, one.env_steps, one.wall_time_s
                rows.add(one.attempt, *head, *map(one.metrics.get, _METRICS))
    return rows.frame()


@dataclass(slots=True, kw_only=True)
class Session:
    """A driver's work on the study: its start and its last record in seconds since the epoch, and how it ended."""

    opened: StudyOpened
    started: float
    last: float
    closed: StudyClosed | None = None


class Trials:
    """What one pass over the records finds.

    Attributes:
        ledger: State of the trials.
        sessions: Work of each driver.
        num_lines: Complete lines.
        rows: The trials, in the order of the plan.
    """

    def __init__(self, identity: StudyIdentity, path: Path) -> None:
        """Read the records.

        Raises:
            RecordError: They cannot be trusted.
        """
        self._identity, self._path = identity, path
        self.ledger, self.sessions, self.num_lines = Ledger(), list[Session](), 0
        self._evaluations = _Rows(path, EVALUATION_COLUMNS)
        self._built: dict[int, dict[str, Any]] = {}
        """Trial -> what analysis keeps of its `TrialBuilt` record."""
        self._session: dict[int, int] = {}
        """Trial -> place of the driver, in `sessions`, that started its latest attempt."""
        self._parts: dict[str, str] = {}
        """One copy of each text."""
        fold_lines(self._of_latest_attempts(read_lines(path)), path, self.ledger)
        self.rows = [self.ledger.rows[number] for number in sorted(self.ledger.rows)]

    def _of_latest_attempts(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines but for those of an attempt that another one has replaced."""
        for line in lines:
            self.num_lines = line.seq + 1
            record = line.record
            if isinstance(record, (Iteration, TrialBuilt, Evaluation, TrialEnded)):
                row = self.ledger.rows.get(record.trial)
                if row is not None and row.attempt != record.attempt:
                    continue
            if not isinstance(record, Iteration):
                self._take(record, line.time)
            yield line

    def _take(self, record: Record, moment: float) -> None:
        if self.sessions:
            self.sessions[-1].last = moment
        match record:
            case StudyOpened():
                self.sessions.append(Session(opened=record, started=moment, last=moment))
            case StudyClosed() if self.sessions:
                self.sessions[-1].closed = record
            case TrialStarted():
                self._session[record.trial] = max(len(self.sessions) - 1, 0)
                self._evaluations.begin(record)
                self._built.pop(record.trial, None)
            case TrialBuilt():
                provenance = self.sessions[-1].opened.provenance if self.sessions else {}
                part = fingerprint(effective_part(record.effective, provenance))
                self._built[record.trial] = {
                    LEARNERS: record.effective.get("num_learners"),
                    "learner_threads": record.effective.get("torch_threads_learner"),
                    "num_nodes": len(record.processes_per_node) or None,
                    "nodes": ", ".join(sorted(record.processes_per_node)) or None,
                    "part": self._parts.setdefault(part, part),
                }
            case Evaluation():
                mean, counts = sum(record.returns) / len(record.returns), (len(record.returns), record.num_cut)
                head = record.trial, record.env_steps, record.wall_time_s, record.progress
                self._evaluations.add(record.attempt, *head, mean, *counts, record.eval_time_s)

    def evaluations_frame(self) -> pd.DataFrame:
        """Return one row per evaluation of the latest attempts, the columns of `EVALUATION_COLUMNS`."""
        return self._evaluations.frame()

    def runs_frame(self) -> pd.DataFrame:
        """Return one row per trial with the columns of `RUN_COLUMNS`.

        Rates are those of the timed iterations, wherever the records have them; of a trial without an end, totals are
        those so far.

        Raises:
            RecordError: A value is of another type than its column; names file, trial and column.
        """
        spec = self._identity.spec
        resources = spec.get("resources")
        by_space = resources.get("num_learners") if isinstance(resources, Mapping) else None
        lines = [_line(row, self._built.get(row.trial, {}), by_space) for row in self.rows]
        texts, engines = fingerprints(
            spec,
            [session.opened.provenance for session in self.sessions],
            [
                (self._session[row.trial], row.variant, row.execution, line[LEARNERS])
                for row, line in zip(self.rows, lines, strict=True)
            ],
            [row.setting for row in self.rows],
            [self._built.get(row.trial, {}).get("part") for row in self.rows],
        )
        values: dict[str, Any] = {name: [line.get(name) for line in lines] for name in RUN_COLUMNS}
        values |= {"study": [self._identity.name] * len(lines), "fingerprint": texts, "engine": engines}
        return frame_of(values, RUN_COLUMNS, where=str(self._path))


def _line(row: TrialRow, built: Mapping[str, Any], num_learners: int | None) -> dict[str, Any]:
    """Return the values of a trial; `num_learners` are those of the space."""
    summary = {name: row.summary.get(name) for name in _OF_SUMMARY}
    line: dict[str, Any] = {
        **{name: getattr(row, name) for name in _OF_ROW},
        **{name: getattr(row, name) or None for name in ("reason", "digest", "timing_reason")},
        "variant": row.variant if row.stage else None,
        "baseline": row.anchor,
        "stands_for_runners": row.scale,
        "max_iterations": row.iterations,
        "ended": row.ended_at,
        **row.columns(),
        **summary,
        **{name: row.setting.get(name) for name in PARAMETERS},
        **built,
    }
    if line.get(LEARNERS) is None:
        line[LEARNERS] = row.setting.get(LEARNERS, num_learners)
    if row.provisional and row.status == "running":  # the whole trial has yet to settle the label
        line |= {"timing": None, "timing_reason": f"not settled yet: {row.timing_reason}"}
    so_far = {"startup_time_s": row.startup_time_s}
    so_far |= {name: getattr(row.last_iteration, name, None) for name in ("wall_time_s", "env_steps")}
    line |= {name: value for name, value in so_far.items() if summary[name] is None}
    if line["timed_s"]:
        line["env_steps_per_s"] = line["timed_env_steps"] / line["timed_s"]
    return line
