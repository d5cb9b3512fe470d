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
from typing import get_args

from analysis.status import health
from study.engine import engines_in_words
from study.errors import RecordError, SpaceError
from study.records.cautions import cautions
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow, best_per_scale, result_of
from study.records.records import Line, StudyOpened, Timing, read_lines, torn_bytes
from study.space.parameters import SCALE, Value
from study.space.settings import THROUGHPUT

FEWEST_DURATIONS = 3
"""Trials of the present stage from which on their own median, not that of all, predicts the rest."""
PLACED = ("train_batch_size", "minibatch_size", "lr")
"""What rules of a hold-up space turn into numbers; with the parameters that were proposed, all that is tuned."""
_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, TypeError, ValueError, lzma.LZMAError)
"""What reading damaged records can raise."""
TIMINGS: tuple[Timing, ...] = get_args(Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial:
    """A trial under way."""

    trial: int
    attempt: int
    num_env_runners: int
    seed: int
    num_cpus: int
    stage: str
    setting: Mapping[str, Value]
    running_s: float
    """Since it was given to Ray Tune."""
    built: bool
    """Whether its processes are up."""
    progress: float
    """Share of its budget at the last evaluation, in [0, 1]."""
    env_steps_per_s: float | None
    timing: str
    """The label so far; empty before it is built, and while the CPU pressure has yet to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The finished trial with the highest score at a scale; where there are no scores, with the highest return."""

    num_env_runners: int
    trial: int
    score: float | None
    final_return: float | None
    num_finished: int
    """Full trials finished at this scale: the more, the more their best flatters."""
    setting: Mapping[str, Value]
    """The parameters that differ between trials, without the scale."""
    all_cut: bool
    """Whether no episode of its last evaluation came to its end."""


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
    staged: bool
    """Whether it is a hold-up study."""
    guessed: bool
    """Whether the number of planned trials is a guess."""
    stage: str
    """Stage that it is at; empty for a study without stages."""
    num_trials: int
    """Planned by the latest driver, less the cancelled ones."""
    counts: Mapping[str, int]
    """finished, failed, interrupted, running -> trials."""
    engine: str
    """Of the trials that were built, see `study.engine`."""
    timings: Mapping[str, int]
    """measured, oversubscribed, emulated, tainted -> trials whose clock has its label."""
    per_stage: Mapping[str, tuple[int, int]]
    """Stage -> trials ended, failed."""
    running: tuple[RunningTrial, ...]
    best: tuple[Best, ...]
    sessions: int
    silence_s: float | None
    """Since the last record; None before the first."""
    longest_pause_s: float | None
    """Between two records of this session; None before there are three."""
    left: TimeLeft | None
    mirror: health.Mirror | None
    pressure: tuple[health.Pressure, ...]
    """Of the trials under way; without any, of the last one that told it."""
    problems: tuple[str, ...]
    """What could not be read, and what is shown nevertheless."""
    advice: tuple[health.Advice, ...] = ()

    @property
    def num_ended(self) -> int:
        """Trials that are over for good."""
        return self.counts["finished"] + self.counts["failed"]


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
        self.last_time: float | None = None
        """When the last record was written, seconds since the epoch."""
        self._num_pauses, self._longest_pause_s = 0, 0.0
        """Of this session."""

    def read(self, *, moment: float | None = None) -> Status:
        """Take in what was recorded since, and return where the study stands.

        Args:
            moment: Now, seconds since the epoch; for tests.

        Raises:
            RecordError: Not one record can be read, for instance because a newer version wrote them.
        """
        damage = self._take_in()
        driver = health.driver_of(self.folder, self.ledger)
        now = time.time() if moment is None else moment
        return _status(self, driver, now, damage or self._torn(driver))

    def _take_in(self) -> tuple[str, ...]:
        try:
            for line in read_lines(self.folder.records, offset=self._end, first_seq=self._seq):
                self._take(line)
        except (RecordError, *_DAMAGE) as error:
            what = (
                str(error) if isinstance(error, RecordError) else f"{self.folder.records}: cannot be read ({error!r})."
            )
            if not self._seq:
                if isinstance(error, RecordError):
                    raise
                raise RecordError(
                    where=str(self.folder.records),
                    rule=f"cannot be read ({error!r})",
                    fix="Restore the file from a backup.",
                ) from error
            return (f"{what} What follows is the state after the {self._seq:,} records before it.",)
        return ()

    def _take(self, line: Line) -> None:
        if isinstance(line.record, StudyOpened):
            self._num_pauses, self._longest_pause_s = 0, 0.0
        elif self.last_time is not None:
            self._num_pauses += 1
            self._longest_pause_s = max(self._longest_pause_s, line.time - self.last_time)
        self.ledger.apply(line.record, line.time)
        self._end, self._seq, self.last_time = line.end, line.seq + 1, line.time

    def _torn(self, driver: health.Driver) -> tuple[str, ...]:
        """Return a sentence on an incomplete last line; while a driver works, it is being written."""
        file = self.folder.records
        if driver != "gone" or not file.exists() or not (torn := torn_bytes(file, self._end)):
            return ()
        return (f"{file}: the last line is incomplete ({torn} bytes, torn by a kill); a resume cuts it off.",)

    @property
    def longest_pause_s(self) -> float | None:
        """Longest pause of this session; None before there are two."""
        return self._longest_pause_s if self._num_pauses > 1 else None


def read_status(path: str | Path, *, moment: float | None = None) -> Status:
    """Return where the study in the folder `path` stands.

    Raises:
        RecordError: There is no study, or not one record can be read.
    """
    return StatusReader(path).read(moment=moment)


def _status(reader: StatusReader, driver: health.Driver, moment: float, problems: tuple[str, ...]) -> Status:
    ledger, identity, folder = reader.ledger, reader.identity, reader.folder
    rows = list(ledger.rows.values())
    under_way = [row for row in rows if row.status == "running"] if driver == "working" else []
    timings = Counter(row.timing for row in rows if row.timing and not (row.provisional and row.status == "running"))
    staged = bool(identity.spec.get("holdup"))
    planned = max(ledger.num_trials, len(rows))  # in a hold-up study the plan is a guess
    found = Status(
        name=identity.name,
        folder=str(folder.path),
        moment=moment,
        driver=driver,
        state=_state(ledger, driver),
        complete=ledger.complete,
        staged=staged,
        guessed=staged and not ledger.complete,
        stage=_stage(ledger) if staged else "",
        num_trials=planned,
        counts=ledger.counts(),
        engine=engines_in_words(row.engine for row in rows),
        timings={str(label): timings[label] for label in TIMINGS},
        per_stage=_per_stage(rows),
        running=tuple(_running(row, moment) for row in under_way),
        best=_best(rows),
        sessions=ledger.sessions,
        silence_s=None if reader.last_time is None else max(moment - reader.last_time, 0.0),
        longest_pause_s=reader.longest_pause_s,
        left=time_left(rows, under_way, planned, moment) if driver == "working" else None,
        mirror=health.mirror_of(folder, identity, driver),
        pressure=health.pressures(under_way) or health.pressures([row for row in rows if row.ended])[-1:],
        problems=problems,
    )
    told = [*health.advice(found, rows, health.resume_command(folder, identity))]
    told += [health.Advice(text=text) for text in _cautions(identity, rows)]
    return replace(found, advice=(*told, *health.clocks(found, rows), *health.late(found, folder)))


def _cautions(identity: StudyIdentity, rows: Sequence[TrialRow]) -> Sequence[str]:
    try:
        return tuple(cautions(identity.parse(), rows))
    except SpaceError:  # of a newer version: the rest can still be told
        return ()


def _state(ledger: Ledger, driver: health.Driver) -> str:
    closed = ledger.closed
    words = {
        "complete": "complete",
        "until": "at the end of the stage that was asked for",
        "time budget": "out of time",
    }
    how = words.get(closed.reason, closed.reason) if closed is not None else "not complete"
    detail = f" ({closed.detail})" if closed is not None and closed.detail else ""
    if driver == "packed":
        return f"a published copy, {how}{detail}"
    if driver == "working":
        return "running" if ledger.rows else "starting: no trial yet"
    if driver == "gone":
        return "not running: its driver is gone" if ledger.rows else "not running: no trial was recorded"
    return f"{how}{detail}"


def _stage(ledger: Ledger) -> str:
    if not ledger.decisions:
        return next((row.stage for row in ledger.rows.values() if row.stage), "")
    return ledger.decisions[-1].next_stage or ledger.decisions[-1].stage


def _per_stage(rows: Sequence[TrialRow]) -> dict[str, tuple[int, int]]:
    ended = Counter(row.stage for row in rows if row.ended)
    failed = Counter(row.stage for row in rows if row.status == "failed")
    return {stage: (count, failed[stage]) for stage, count in ended.items() if stage}


def _running(row: TrialRow, moment: float) -> RunningTrial:
    return RunningTrial(
        trial=row.trial,
        attempt=row.attempt,
        num_env_runners=row.num_env_runners,
        seed=row.seed,
        num_cpus=row.num_cpus,
        stage=row.stage or "",
        setting=row.setting,
        running_s=max(moment - row.started, 0.0),
        built=row.startup_time_s is not None,
        progress=row.progress,
        env_steps_per_s=row.sums.env_steps_per_s(),
        timing="" if row.provisional else (row.timing or ""),
    )


def _best(rows: Sequence[TrialRow]) -> tuple[Best, ...]:
    """Return the best full trial of each scale; short trials, for the clock, have no result worth a rank."""
    judged = [row for row in rows if row.status == "finished" and result_of(row) is not None]
    # In a hold-up study a trial with a limit of iterations is a short one; elsewhere the limit is the budget.
    full = [row for row in judged if not row.stage or (row.iterations is None and row.stage != THROUGHPUT)]
    tuned = {*PLACED, *(name for row in full for name in row.proposed)} - {SCALE}
    values: dict[str, set[Value | None]] = {
        name: {row.setting.get(name) for row in full} for row in full[:1] for name in row.setting if name in tuned
    }
    varied = [name for name, different in values.items() if len(different) > 1]
    finished = Counter(row.num_env_runners for row in full)
    return tuple(
        Best(
            num_env_runners=scale,
            trial=row.trial,
            score=row.summary.get("score"),
            final_return=row.summary.get("final_return"),
            num_finished=finished[scale],
            setting={name: row.setting[name] for name in varied if name in row.setting},
            all_cut=row.all_cut,
        )
        for scale, row in best_per_scale(full).items()
    )


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
    return TimeLeft(
        seconds=trials * median / at_a_time, trials=trials, median_s=median, n=len(durations), at_a_time=at_a_time
    )
