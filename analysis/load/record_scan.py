"""One pass over a records file, fast enough for a hundred thousand trials. Imports NumPy and orjson, no engine.

`study.records.records.read_lines` makes a dataclass of every line; most lines of a large study are iterations, of
which analysis wants sums. Here an iteration stays a tuple of numbers, every other line becomes its record, and any line
that is not as it must be is handed to the slow reader, whose error names file and line.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import orjson

from study.errors import RecordError
from study.records.records import (
    KINDS,
    RESTORE,
    SCHEMA,
    Evaluation,
    Record,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    check_seq,
    check_torn,
    open_records,
    parse_line,
    raw_lines,
    restore_returns,
)
from study.records.shapes import is_moment, misfit

_NUM_HEAD, _NUM_FIELDS = 4, 6
"""Entries of an iteration's line: schema, seq, time and kind, and the fields of the record."""
_FIELDS = itemgetter("trial", "attempt", "iteration", "env_steps", "wall_time_s", "metrics")

OnIteration = Callable[[int, int, int, int, float, dict[str, Any]], None]
"""Gets line number, slot, iteration, environment steps, seconds, metrics of an iteration."""
OnRecord = Callable[[Record, float, int], None]
"""Gets every other record, its time, and the slot of its attempt (-1: none)."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """What a pass has seen of the file itself."""

    path: Path
    num_lines: int = 0
    torn_bytes: int = 0
    """Bytes of a last line that is not complete."""
    slots: dict[int, int] = field(default_factory=dict)
    """Trial -> place of its latest attempt in the order of all attempts."""
    num_attempts: int = 0
    _attempts: dict[int, int] = field(default_factory=dict)

    def run(self, on_iteration: OnIteration, on_record: OnRecord) -> "Scan":
        """Read the file once, in its order.

        Raises:
            RecordError: A complete line cannot be trusted, or the file cannot be read.
        """
        with _without_collector():
            return self._run(on_iteration, on_record)

    def _run(self, on_iteration: OnIteration, on_record: OnRecord) -> "Scan":
        number, loads = 0, orjson.loads
        for number, raw in enumerate(self._lines(), start=1):
            try:
                content = loads(raw)
                kind = content["kind"]
                good = content["seq"] == number - 1 and content["schema"] == SCHEMA
            except (orjson.JSONDecodeError, TypeError, KeyError):
                self._refuse(raw, number)
            if not good:
                self._refuse(raw, number)
            if kind == "iteration":
                try:
                    trial, attempt, iteration, env_steps, wall_time_s, metrics = _FIELDS(content)
                except KeyError:
                    self._refuse(raw, number)
                whole = len(content) == _NUM_HEAD + _NUM_FIELDS and is_moment(content.get("time"))
                if not whole or type(metrics) is not dict or type(trial) is not int or type(attempt) is not int:
                    self._refuse(raw, number)
                if self._attempts.get(trial) == attempt:
                    on_iteration(number, self.slots[trial], iteration, env_steps, wall_time_s, metrics)
                else:
                    self._check_started(trial, number)
            else:
                self._take(raw, content, kind, number, on_record)
        self.num_lines = number
        return self

    def _take(self, raw: bytes, content: dict[str, Any], kind: str, number: int, on_record: OnRecord) -> None:
        moment = content.pop("time", None)
        for name in ("schema", "seq", "kind"):
            del content[name]
        restore_returns(content)
        try:
            record = KINDS[kind](**content)
        except (KeyError, TypeError):
            self._refuse(raw, number)
        if misfit(type(record), content) or not is_moment(moment):
            self._refuse(raw, number)
        slot = -1
        if isinstance(record, TrialStarted):
            slot = self.slots[record.trial] = self.num_attempts
            self._attempts[record.trial] = record.attempt
            self.num_attempts += 1
        elif isinstance(record, (TrialBuilt, Evaluation, TrialEnded)):
            self._check_started(record.trial, number)
            if self._attempts[record.trial] != record.attempt:
                return
            slot = self.slots[record.trial]
        on_record(record, moment, slot)

    def _check_started(self, trial: int, number: int) -> None:
        if trial not in self.slots:
            raise RecordError(
                where=f"{self.path}: line {number}",
                rule="a trial must have started before",
                got=f"trial {trial}",
                fix=RESTORE,
                code="record-of-unstarted-trial",
            )

    def _refuse(self, raw: bytes, number: int) -> NoReturn:
        """Let the slow reader say what is wrong with a line.

        Raises:
            RecordError: Always.
        """
        where = f"{self.path}: line {number}"
        check_seq(parse_line(raw, where, 0), number - 1, where)
        raise RecordError(
            where=where,
            rule="a record must have the fields of its kind, each of its type",
            got=f"{raw[:200]!r}…",
            fix=RESTORE,
            code="malformed-record",
        )

    def _lines(self) -> Iterator[bytes]:
        """Yield the complete lines; keep what follows them.

        Raises:
            RecordError: The file cannot be read, or ends with what no record begins with.
        """
        with open_records(self.path) as file:
            for number, raw in enumerate(raw_lines(file, self.path), start=1):
                if not raw.endswith(b"\n"):
                    check_torn(raw, f"{self.path}: line {number}", first=number == 1)
                    self.torn_bytes = len(raw)
                    return
                yield raw


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python from searching for cycles: there are none, and the search takes a seventh of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
