"""Where a study stands, while it runs or after: one value from its folder, in about a second. Reads files only.

It looks without touching: a driver that starts at this moment must not find its lock taken by an onlooker. Neither
pandas nor SciPy is imported.
"""

import contextlib
import shlex
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from study.errors import RecordError, SpaceError
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.files import at_work
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import StudyOpened, read_lines
from study.space.spec import StudySpec
from study.text import count, mask_credentials, one_line

Driver = Literal["working", "ended", "gone", "packed"]
"""`gone`: it neither holds the folder nor has said that it ended. `packed`: a published copy, which has none."""
QUIET_S, QUIET_FACTOR = 300.0, 3.0
"""Silence that may be a sign that something hangs: so many seconds, and so many times the longest pause so far."""
MUCH_BEHIND = 1_000
"""Records: the mirror of a running study sends them in batches, so a few hundred are nothing."""
FEWEST_DURATIONS = 3
"""Trials of the present stage from which on their own median, not that of all, predicts the rest."""
ENDS = {"until": "at the end of the stage that was asked for", "time budget": "out of time"}
"""Reason of a driver's end -> how the study stands, in words; other reasons are words themselves."""
AT_THE_FLOOR = 0.05
"""Share of the way from floor to reference below which a trial has learnt nothing: the floor is the mean of random
episodes, around which the means of a few others scatter."""
FEWEST = 2
"""Finished trials from which on it is the study, and not one setting, that learnt nothing."""


class Mirror(NamedTuple):
    """How far MLflow has caught up: its address without passwords, and records that it lacks."""

    uri: str
    behind: int


class Advice(NamedTuple):
    """What a person should know, and the command that does something about it."""

    text: str
    command: str = ""


class TimeLeft(NamedTuple):
    """An estimate in seconds, trials left x median duration / trials at a time; `n` ended trials are behind it."""

    seconds: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a study stands at one moment, in seconds since the epoch.

    Attributes:
        state: One sentence.
        complete: Whether the latest driver came to the end of its plan.
        guessed: Whether the number of planned trials is a guess.
        stage: Stage that a hold-up study is at; empty for one without stages.
        counts: finished, failed, interrupted, running -> trials.
        silence_s: Since the last record; None before the first.
        mirror: How far MLflow is; None for a packed study, which is mirrored to nowhere.
        problems: What could not be read, and what is shown nevertheless.
        advice: What a person should know or do, the gravest first.
    """

    name: str
    moment: float
    driver: Driver
    state: str
    complete: bool
    guessed: bool
    stage: str
    num_trials: int
    counts: Mapping[str, int]
    running: tuple[TrialRow, ...]
    sessions: int
    silence_s: float | None
    left: TimeLeft | None
    mirror: Mirror | None
    problems: tuple[str, ...]
    advice: tuple[Advice, ...] = ()

    @property
    def num_ended(self) -> int:
        """Trials that are over for good."""
        return self.counts["finished"] + self.counts["failed"]


def read_status(path: str | Path, *, moment: float | None = None) -> Status:
    """Return where the study in a folder stands; `moment` is now, for tests.

    Raises:
        RecordError: There is no study, or not one record can be read, for instance because a newer version wrote them.
    """
    folder, ledger, moments = StudyFolder(Path(path)), Ledger(), list[float]()
    identity, problems = folder.identity(), tuple[str, ...]()
    begun, read = 0, 0  # records before this session, and all of them
    try:
        for line in read_lines(folder.records):
            begun = read if isinstance(line.record, StudyOpened) else begun
            fold_lines([line], folder.records, ledger)
            moments.append(line.time)
            read = line.seq + 1
    except RecordError as error:
        if not read:
            raise
        problems = (f"{error} What follows is the state after the {read:,} records before it.",)
    driver = _driver(folder, ledger)
    now, rows = time.time() if moment is None else moment, list(ledger.rows.values())
    running = [row for row in rows if row.status == "running"] if driver == "working" else []
    staged, planned = bool(identity.spec.get("holdup")), max(ledger.num_trials, len(rows))
    stage = next((row.stage or "" for row in rows if row.stage), "")
    if ledger.decisions:
        stage = ledger.decisions[-1].next_stage or ledger.decisions[-1].stage
    status = Status(
        name=identity.name,
        moment=now,
        driver=driver,
        state=_state(ledger, driver),
        complete=ledger.complete,
        guessed=staged and not ledger.complete,
        stage=stage if staged else "",
        num_trials=planned,
        counts=ledger.counts(),
        running=tuple(running),
        sessions=ledger.sessions,
        silence_s=max(now - moments[-1], 0.0) if moments else None,
        left=time_left(rows, running, planned, now) if driver == "working" else None,
        mirror=None if driver == "packed" else _mirror(folder, identity),
        problems=problems,
    )
    pauses = sorted(later - earlier for earlier, later in pairwise(moments[begun:]))
    advice = [*_advice(status, rows, folder, identity, pauses[-1] if len(pauses) > 1 else 0.0)]
    with contextlib.suppress(SpaceError):  # of a newer version: the rest can still be told
        advice += [Advice(text) for text in cautions(identity.parse(), rows)]
    return replace(status, advice=(*advice, *_clocks(rows), *_mlflow(status, folder)))


def _driver(folder: StudyFolder, ledger: Ledger) -> Driver:
    if folder.records == folder.packed_records:
        return "packed"
    if at_work(folder.path):
        return "working"
    return "ended" if ledger.closed is not None else "gone"


def _mirror(folder: StudyFolder, identity: StudyIdentity) -> Mirror | None:
    try:
        return Mirror(mask_credentials(identity.tracking_uri), MlflowMirror(folder).behind)
    except (OSError, RecordError):
        return None


# --- what a person should know or do --------------------------------------------------------------------------------


def _advice(
    status: Status, rows: Sequence[TrialRow], folder: StudyFolder, identity: StudyIdentity, longest_pause_s: float
) -> Iterator[Advice]:
    driver = status.driver
    place = ["--name", identity.name, "--out", str(folder.path.parent)]
    resume = shlex.join(["python", "run_study.py", "--space", str(folder.space_file), *place, "--resume"])
    if driver == "gone":
        yield Advice("The driver ended without saying so (killed?). Go on with:", resume)
    if driver == "ended" and not status.complete:
        yield Advice("Resume with:", resume)
    silence_s = status.silence_s or 0.0
    if driver == "working" and silence_s > max(QUIET_S, QUIET_FACTOR * longest_pause_s):
        yield Advice(f"Nothing was recorded for {silence_s:,.0f} s. It may hang: look at its terminal or job log.")
    if failed := [row for row in rows if row.status == "failed"]:
        last = max(failed, key=lambda row: row.ended_at or 0.0)
        why = one_line(last.reason) or "no reason"
        yield Advice(f"{count(len(failed), 'trial')} failed; the latest, trial {last.trial}: {why}")
    left = sum(row.status == "interrupted" or (row.status == "running" and driver != "working") for row in rows)
    if left:
        then = "" if driver == "packed" else f"; a resume runs {'it' if left == 1 else 'them'} again"
        yield Advice(f"{count(left, 'trial')} {'was' if left == 1 else 'were'} interrupted{then}.")


def _clocks(rows: Sequence[TrialRow]) -> Iterator[Advice]:
    settled = [row for row in rows if row.timing and not (row.provisional and row.status == "running")]
    for label, runs in sorted(Counter(str(row.timing) for row in settled).items()):
        if label != "measured":
            of = f"{runs:,} of {count(len(settled), 'clock')} {'is' if runs == 1 else 'are'} {label}"
            reasons = (row.timing_reason for row in settled if row.timing == label and row.timing_reason)
            such = f"{', such as' if runs > 1 else ''}: {one_line(reason)}" if (reason := next(reasons, "")) else ""
            yield Advice(f"{of} and in no efficiency table{such.removesuffix('.')}.")


def _mlflow(status: Status, folder: StudyFolder) -> Iterator[Advice]:
    if status.mirror is not None and status.mirror.behind:
        behind = f"MLflow is {count(status.mirror.behind, 'record')} behind ({status.mirror.uri})"
        if status.driver != "working":
            yield Advice(f"{behind}; catch up with:", f"python -m study sync {shlex.quote(str(folder.path))}")
        elif status.mirror.behind > MUCH_BEHIND:
            yield Advice(f"{behind}; the study does not wait for it.")


def cautions(spec: StudySpec, rows: Iterable[TrialRow]) -> Iterator[str]:
    """Yield a sentence for each reason not to take the returns of finished trials as they stand."""
    if not spec.learns:
        return
    finished = [row for row in rows if row.status == "finished" and row.summary.get("final_return") is not None]
    if cut := [row for row in finished if (last := row.last_evaluation) and last.num_cut == len(last.returns)]:
        yield (
            f"Episodes that never end: in {len(cut)} of {count(len(finished), 'finished trial')} every episode of the "
            f"last evaluation was cut at evaluation.max_episode_steps={spec.evaluation.max_episode_steps}, and its "
            "return is that of an unfinished episode. Fix: raise the limit, or give the environment one of its own."
        )
    floor, reference = spec.environment.floor, spec.environment.reference
    # Short trials of a hold-up study are for the clock.
    returns = [row.summary["final_return"] or 0.0 for row in finished if not row.stage or row.iterations is None]
    if floor is None or reference is None or len(returns) < FEWEST:
        return
    if max((value - floor) / (reference - floor) for value in returns) < AT_THE_FLOOR:
        yield (
            f"Nothing was learnt: no return of {count(len(returns), 'finished trial')} is further than "
            f"{AT_THE_FLOOR:.0%} of the way from the floor ({floor:g}) to the reference ({reference:g}), and to call "
            "one best means nothing. Fix: raise the budget, widen lr and batch, or check the floor with "
            "`python -m study evaluate SPACE --random`."
        )


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
    """Return how long the rest should take, a running trial by the share that it has to go; None before the first end.

    `planned` trials, of a study with stages a guess; those `under_way` are among the `rows`.
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
    return TimeLeft(trials * statistics.median(durations) / at_a_time, len(durations))
