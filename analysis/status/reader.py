"""Where a study stands, while it runs or after: one value from its folder, in about a second. Reads files only.

Imports no engine and neither pandas nor SciPy.
"""

import lzma
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from analysis.status import health
from study.engine import engines_in_words
from study.errors import RecordError, SpaceError
from study.planning.guess import is_evaluating
from study.records.cautions import cautions
from study.records.folder import StudyFolder
from study.records.ledger import Ledger, TrialRow
from study.records.records import Line, StudyOpened, Timing, read_lines, torn_bytes

FEWEST_DURATIONS = 3
"""Trials of the present stage from which on their own median, not that of all, predicts the rest."""
_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, TypeError, ValueError, lzma.LZMAError)
"""What reading damaged records can raise."""
ENDS = {
    "complete": "complete",
    "until": "at the end of the stage that was asked for",
    "time budget": "out of time",
}
"""Reason of a driver's end -> how the study stands, in words; other reasons are words themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """An estimate, and what it rests on: trials left x median duration / trials at a time."""

    seconds: float
    trials: float
    """Trials left; the running ones count with the share that they have to go."""
    median_s: float
    n: int
    """Ended trials that the median is of."""
    at_a_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a study stands at one moment."""

    name: str
    folder: str
    moment: float
    """Seconds since the epoch."""
    driver: health.Driver
    state: str
    """One sentence."""
    complete: bool
    """Whether the latest driver came to the end of its plan."""
    guessed: bool
    """Whether the number of planned trials is a guess."""
    stage: str
    """Stage that a hold-up study is at; empty for one without stages."""
    num_trials: int
    """Planned by the latest driver."""
    counts: Mapping[str, int]
    """finished, failed, interrupted, running -> trials."""
    engine: str
    """Of the trials that were built, see `study.engine`."""
    timings: Mapping[str, int]
    """measured, oversubscribed, emulated, tainted -> trials whose clock has its label."""
    per_stage: Mapping[str, tuple[int, int]]
    """Stage -> trials ended, failed."""
    running: tuple[TrialRow, ...]
    """Trials under way."""
    evaluating: tuple[int, ...] = ()
    """Those of them that play the episodes of an evaluation."""
    best_score: float | None
    """Highest score of a finished trial; None where none has one."""
    sessions: int
    silence_s: float | None
    """Since the last record; None before the first."""
    longest_pause_s: float | None
    """Between two records of this session; None before there are three."""
    left: TimeLeft | None
    mirror: health.Mirror | None
    pressure: Mapping[int, float]
    """Trial under way, else the last one that told it -> share of its time in which some task waited for a CPU."""
    problems: tuple[str, ...]
    """What could not be read, and what is shown nevertheless."""
    advice: tuple[health.Advice, ...] = ()

    @property
    def num_ended(self) -> int:
        """Trials that are over for good."""
        return self.counts["finished"] + self.counts["failed"]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values, of a trial what tells it from others and how far it is."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        names = ("trial", "attempt", "num_env_runners", "seed", "stage", "setting", "started", "progress", "timing",
                 "summary")  # fmt: skip
        values["running"] = [{name: getattr(row, name) for name in names} for row in self.running]
        values |= {
            "left": None if self.left is None else {name: getattr(self.left, name) for name in TimeLeft.__slots__}
        }
        values |= {"mirror": self.mirror and self.mirror._asdict(), "advice": [each._asdict() for each in self.advice]}
        return values | {"num_ended": self.num_ended}


class StatusReader:
    """Reads a study's records as they grow; each `read` goes on where the one before ended."""

    def __init__(self, path: str | Path) -> None:
        """Open the study in the folder `path`.

        Raises:
            RecordError: There is no study, or its identity is damaged.
        """
        self.folder = StudyFolder(Path(path))
        self.identity = self.folder.identity()
        self.ledger = Ledger()
        self._end, self._seq = 0, 0
        self._last: float | None = None
        """When the last record was written, seconds since the epoch."""
        self._pauses: list[float] = []
        """The two longest between records of this session, the longest first."""

    def read(self, *, moment: float | None = None) -> Status:
        """Take in what was recorded since, and return where the study stands.

        Args:
            moment: Now, seconds since the epoch; for tests.

        Raises:
            RecordError: Not one record can be read, for instance because a newer version wrote them.
        """
        damage, file = self._take_in(), self.folder.records
        driver = health.driver_of(self.folder, self.ledger)
        # While a driver works, an incomplete last line is being written.
        if not damage and driver == "gone" and file.exists() and (torn := torn_bytes(file, self._end)):
            damage = (f"{file}: the last line is incomplete ({torn} bytes, torn by a kill); a resume cuts it off.",)
        return self._status(driver, time.time() if moment is None else moment, damage)

    def _take_in(self) -> tuple[str, ...]:
        try:
            for line in read_lines(self.folder.records, offset=self._end, first_seq=self._seq):
                self._take(line)
        except (RecordError, *_DAMAGE) as error:
            if not isinstance(error, RecordError):
                rule, fix = f"cannot be read ({error!r})", "Restore the file from a backup."
                error = RecordError(where=str(self.folder.records), rule=rule, fix=fix)
            if not self._seq:
                raise error from None
            return (f"{error} What follows is the state after the {self._seq:,} records before it.",)
        return ()

    def _take(self, line: Line) -> None:
        if isinstance(line.record, StudyOpened):
            self._pauses = []
        elif self._last is not None:
            self._pauses = sorted([*self._pauses, line.time - self._last], reverse=True)[:2]
        self.ledger.apply(line.record, line.time)
        self._end, self._seq, self._last = line.end, line.seq + 1, line.time

    def _status(self, driver: health.Driver, moment: float, problems: tuple[str, ...]) -> Status:
        ledger, identity, folder = self.ledger, self.identity, self.folder
        rows = list(ledger.rows.values())
        under_way = [row for row in rows if row.status == "running"] if driver == "working" else []
        timings = Counter(
            row.timing for row in rows if row.timing and not (row.provisional and row.status == "running")
        )
        staged = bool(identity.spec.get("holdup"))
        planned = max(ledger.num_trials, len(rows))  # in a hold-up study the plan is a guess
        ended = Counter(row.stage for row in rows if row.ended)
        failed = Counter(row.stage for row in rows if row.status == "failed")
        stage = next((row.stage or "" for row in rows if row.stage), "")
        if ledger.decisions:
            stage = ledger.decisions[-1].next_stage or ledger.decisions[-1].stage
        found = Status(
            name=identity.name,
            folder=str(folder.path),
            moment=moment,
            driver=driver,
            state=_state(ledger, driver),
            complete=ledger.complete,
            guessed=staged and not ledger.complete,
            stage=stage if staged else "",
            num_trials=planned,
            counts=ledger.counts(),
            engine=engines_in_words(row.engine for row in rows),
            timings={str(label): timings[label] for label in get_args(Timing)},
            per_stage={each: (number, failed[each]) for each, number in ended.items() if each},
            running=tuple(under_way),
            best_score=max((each for row in rows if (each := row.summary.get("score")) is not None), default=None),
            sessions=ledger.sessions,
            silence_s=None if self._last is None else max(moment - self._last, 0.0),
            longest_pause_s=self._pauses[0] if len(self._pauses) > 1 else None,
            left=time_left(rows, under_way, planned, moment) if driver == "working" else None,
            mirror=health.mirror_of(folder, identity, driver),
            pressure=_pressure(under_way) or dict([*_pressure([row for row in rows if row.ended]).items()][-1:]),
            problems=problems,
        )
        try:
            spec = identity.parse()
            told = [health.Advice(text) for text in cautions(spec, rows)]
            found = replace(found, evaluating=tuple(row.trial for row in under_way if is_evaluating(spec, row)))
        except SpaceError:  # of a newer version: the rest can still be told
            told = []
        advice = [*health.advice(found, rows, health.resume_command(folder, identity)), *told]
        return replace(found, advice=(*advice, *health.clocks(found, ledger.rows), *health.late(found)))


def read_status(path: str | Path, *, moment: float | None = None) -> Status:
    """Return where the study in the folder `path` stands.

    Raises:
        RecordError: There is no study, or not one record can be read.
    """
    return StatusReader(path).read(moment=moment)


def _state(ledger: Ledger, driver: health.Driver) -> str:
    closed = ledger.closed
    how = ENDS.get(closed.reason, closed.reason) if closed is not None else "not complete"
    how += f" ({closed.detail})" if closed is not None and closed.detail else ""
    begun = bool(ledger.rows)
    return {
        "packed": f"a published copy, {how}",
        "working": "running" if begun else "starting: no trial yet",
        "gone": "not running: its driver is gone" if begun else "not running: no trial was recorded",
        "ended": how,
    }[driver]


def _pressure(rows: Sequence[TrialRow]) -> dict[int, float]:
    return {row.trial: share for row in rows if (share := row.sums.mean_cpu_pressure()) is not None}


def time_left(rows: Sequence[TrialRow], under_way: Sequence[TrialRow], planned: int, moment: float) -> TimeLeft | None:
    """Return how long the rest should take; None before a trial has finished.

    Args:
        rows: All trials on record.
        under_way: Those of them that run.
        planned: Number of trials of the study; of a study with stages, a guess.
        moment: Now, seconds since the epoch.
    """
    ended = [row for row in rows if row.status == "finished" and row.duration_s is not None]
    stage = under_way[-1].stage if under_way else (ended[-1].stage if ended else None)
    like = [row for row in ended if row.stage == stage]
    alike = like if len(like) >= FEWEST_DURATIONS else ended
    if not alike:
        return None
    # A trial's own start-up counts; that of the first ones pays for all: imports, Ray's processes, files read first.
    startups = sorted(row.startup_time_s for row in rows if row.startup_time_s is not None)
    usual = statistics.median_low(startups) if startups else 0.0
    durations = [(row.duration_s or 0.0) - max((row.startup_time_s or 0.0) - usual, 0.0) for row in alike]
    waiting = max(planned - sum(row.ended for row in rows) - len(under_way), 0)
    trials = waiting + sum(1 - row.progress for row in under_way)
    # Interrupted attempts of earlier sessions say nothing about the pace of this one.
    begun = min((row.started for row in [*ended, *under_way]), default=moment)
    busy = sum((row.ended_at or moment) - row.started for row in [*ended, *under_way])
    at_a_time = max(busy / max(moment - begun, 1e-9), len(under_way), 1.0)
    median = statistics.median(durations)
    seconds = trials * median / at_a_time
    return TimeLeft(seconds=seconds, trials=trials, median_s=median, n=len(durations), at_a_time=at_a_time)
