"""Where a study stands, while it runs or after: one value from its folder, in about a second. Reads files only.

It looks without touching: a driver that starts at this moment must not find its lock taken by an onlooker. Neither
pandas nor SciPy is imported.
"""

import contextlib
import lzma
import shlex
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from analysis.cautions import cautions
from study.engine import engines_in_words
from study.errors import RecordError, SpaceError
from study.harmless import mask_credentials, one_line
from study.mirrors.mlflow_mirror import MlflowMirror
from study.planning.guess import is_evaluating
from study.records.derived import cut_records
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.lock import at_work
from study.records.records import Line, StudyOpened, Timing, read_lines
from study.text import count

Driver = Literal["working", "ended", "gone", "packed"]
"""`gone`: it neither holds the folder nor has said that it ended. `packed`: a published copy, which has none."""
QUIET_S, QUIET_FACTOR = 300.0, 3.0
"""Silence that may be a sign that something hangs: so many seconds, and so many times the longest pause so far."""
MUCH_BEHIND = 1_000
"""Records: the mirror of a running study sends them in batches, so a few hundred are nothing."""
FEWEST_DURATIONS = 3
"""Trials of the present stage from which on their own median, not that of all, predicts the rest."""
_DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, TypeError, ValueError, lzma.LZMAError)
"""What reading damaged records can raise."""
ENDS = {"until": "at the end of the stage that was asked for", "time budget": "out of time"}
"""Reason of a driver's end -> how the study stands, in words; other reasons are words themselves."""
OF_RUNNING = (
    *("trial", "attempt", "num_env_runners", "seed", "stage", "setting", "started", "progress", "timing", "summary"),
)
"""What JSON tells of a trial under way."""


class Mirror(NamedTuple):
    """How far MLflow has caught up: its address without passwords, records that it lacks, whether it has any."""

    uri: str
    behind: int
    begun: bool


class Advice(NamedTuple):
    """What a person should know, and the command that does something about it."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """An estimate, and what it rests on: trials left x median duration / trials at a time.

    Attributes:
        seconds: That.
        trials: Trials left; the running ones count with the share that they have to go.
        median_s: Median duration.
        n: Ended trials that the median is of.
        at_a_time: Trials at a time.
    """

    seconds: float
    trials: float
    median_s: float
    n: int
    at_a_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a study stands at one moment.

    Attributes:
        name: Of the study.
        folder: Where it is.
        moment: Seconds since the epoch.
        driver: What has become of its driver.
        state: One sentence.
        complete: Whether the latest driver came to the end of its plan.
        guessed: Whether the number of planned trials is a guess.
        stage: Stage that a hold-up study is at; empty for one without stages.
        num_trials: Planned by the latest driver.
        counts: finished, failed, interrupted, running -> trials.
        engine: Of the trials that were built, see `study.engine`.
        timings: measured, oversubscribed, emulated, tainted -> trials whose clock has its label.
        per_stage: Stage -> trials ended, failed.
        running: Trials under way.
        evaluating: Those of them that play the episodes of an evaluation.
        best_score: Highest score of a finished trial; None where none has one.
        sessions: Drivers so far.
        silence_s: Since the last record; None before the first.
        longest_pause_s: Between two records of this session; None before there are three.
        left: How long the rest should take.
        mirror: How far MLflow is; None for a packed study, which is mirrored to nowhere.
        problems: What could not be read, and what is shown nevertheless.
        advice: What a person should know or do, the gravest first.
    """

    name: str
    folder: str
    moment: float
    driver: Driver
    state: str
    complete: bool
    guessed: bool
    stage: str
    num_trials: int
    counts: Mapping[str, int]
    engine: str
    timings: Mapping[str, int]
    per_stage: Mapping[str, tuple[int, int]]
    running: tuple[TrialRow, ...]
    best_score: float | None
    sessions: int
    silence_s: float | None
    longest_pause_s: float | None
    left: TimeLeft | None
    mirror: Mirror | None
    problems: tuple[str, ...]
    evaluating: tuple[int, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def num_ended(self) -> int:
        """Trials that are over for good."""
        return self.counts["finished"] + self.counts["failed"]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values, of a trial what tells it from others and how far it is."""
        values = asdict(replace(self, running=()))
        values["running"] = [{name: getattr(row, name) for name in OF_RUNNING} for row in self.running]
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
        self._last: float | None = None  # when the last record was written, seconds since the epoch
        self._pauses: list[float] = []  # the two longest between records of this session, the longest first

    def read(self, *, moment: float | None = None) -> Status:
        """Take in what was recorded since, and return where the study stands.

        Args:
            moment: Now, seconds since the epoch; for tests.

        Raises:
            RecordError: Not one record can be read, for instance because a newer version wrote them.
        """
        damage, driver = self._take_in(), self._driver()
        if not damage and driver in ("gone", "ended") and (cut := cut_records(self.folder, self.ledger)) is not None:
            damage = (str(cut),)
        status = self._status(driver, time.time() if moment is None else moment, damage)
        with contextlib.suppress(SpaceError):  # of a newer version: the rest can still be told
            spec, rows = self.identity.parse(), list(self.ledger.rows.values())
            playing = tuple(row.trial for row in status.running if is_evaluating(spec, row))
            said = tuple(Advice(text) for text in cautions(spec, rows))
            status = replace(status, evaluating=playing, advice=said)
        return replace(status, advice=tuple(self._advice(status)))

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

    def _driver(self) -> Driver:
        if self.folder.records == self.folder.packed_records:
            return "packed"
        if at_work(self.folder.path):
            return "working"
        return "ended" if self.ledger.closed is not None else "gone"

    def _mirror(self) -> Mirror | None:
        try:
            mirror = MlflowMirror(self.folder, self.identity.tracking_uri)
            return Mirror(mask_credentials(self.identity.tracking_uri), mirror.behind, mirror.state.experiment_id != "")
        except (OSError, RecordError):
            return None

    def _status(self, driver: Driver, moment: float, problems: tuple[str, ...]) -> Status:
        ledger, identity = self.ledger, self.identity
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
        return Status(
            name=identity.name,
            folder=str(self.folder.path),
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
            mirror=None if driver == "packed" else self._mirror(),
            problems=problems,
        )

    def _advice(self, status: Status) -> Iterator[Advice]:
        rows, driver = list(self.ledger.rows.values()), status.driver
        resume = _resume(self.folder, self.identity)
        if driver == "gone":
            yield Advice("The driver ended without saying so (killed?). Go on with:", resume)
        if driver == "ended" and not status.complete:
            yield Advice("Resume with:", resume)
        silence_s, pause_s = status.silence_s or 0.0, status.longest_pause_s or 0.0
        if driver == "working" and silence_s > max(QUIET_S, QUIET_FACTOR * pause_s):
            yield Advice(f"Nothing was recorded for {silence_s:,.0f} s. It may hang: look at its terminal or job log.")
        if failed := [row for row in rows if row.status == "failed"]:
            last = max(failed, key=lambda row: row.ended_at or 0.0)
            why = one_line(last.reason) or "no reason"
            yield Advice(f"{count(len(failed), 'trial')} failed; the latest, trial {last.trial}: {why}")
        left = sum(row.status == "interrupted" or (row.status == "running" and driver != "working") for row in rows)
        if left:
            then = "" if driver == "packed" else f"; a resume runs {'it' if left == 1 else 'them'} again"
            yield Advice(f"{count(left, 'trial')} {'was' if left == 1 else 'were'} interrupted{then}.")
        yield from status.advice
        yield from _clocks(status.timings, rows)
        yield from _late(status)


def _clocks(timings: Mapping[str, int], rows: Sequence[TrialRow]) -> Iterator[Advice]:
    for label, runs in timings.items():
        if label != "measured" and runs:
            of = f"{runs} of {count(sum(timings.values()), 'clock')} {'is' if runs == 1 else 'are'} {label}"
            reasons = (row.timing_reason for row in rows if row.timing == label and row.timing_reason)
            such = f", such as: {one_line(reason)}" if (reason := next(reasons, "")) else ""
            yield Advice(f"{of} and in no efficiency table{such}.")


def _late(status: Status) -> Iterator[Advice]:
    if status.mirror is not None and status.mirror.behind:
        behind = f"MLflow is {count(status.mirror.behind, 'record')} behind ({status.mirror.uri})"
        if status.driver != "working":
            yield Advice(f"{behind}; catch up with:", f"python -m study sync {shlex.quote(status.folder)}")
        elif status.mirror.behind > MUCH_BEHIND:
            yield Advice(f"{behind}; the study does not wait for it.")


def read_status(path: str | Path, *, moment: float | None = None) -> Status:
    """Return where the study in the folder `path` stands.

    Raises:
        RecordError: There is no study, or not one record can be read.
    """
    return StatusReader(path).read(moment=moment)


def _resume(folder: StudyFolder, identity: StudyIdentity) -> str:
    place = ["--name", identity.name, "--out", str(folder.path.parent)]
    return shlex.join(["python", "run_study.py", "--space", str(folder.space_file), *place, "--resume"])


def _state(ledger: Ledger, driver: Driver) -> str:
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
