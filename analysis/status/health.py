"""Is a study well: its driver, its pace, its MLflow, its neighbours. Reads files of the study folder; starts nothing.

Looks without touching: a driver that starts at this moment must not find its lock taken by an onlooker.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from study.errors import RecordError
from study.harmless import mask_credentials, one_line
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.lock import at_work
from study.records.timing import PRESSURE_LIMIT
from study.space.space_file import as_options
from study.text import count

Driver = Literal["working", "ended", "gone", "packed"]
"""`gone`: it neither holds the folder nor has said that it ended. `packed`: a published copy, which has none."""

QUIET_S = 60.0
"""Silence that is no sign of anything, whatever the pace."""
QUIET_FACTOR = 3.0
"""Silence that is a sign, in longest pauses so far."""
FIRST_QUIET_S = 300.0
"""The same before there is a pace: Ray starts, environments are imported."""
MUCH_BEHIND = 1_000
"""Records: the mirror of a running study sends them in batches, so a few hundred are nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """How far MLflow has caught up."""

    uri: str
    """Without passwords."""
    behind: int
    """Complete records that it has not got."""
    begun: bool
    """Whether it has got any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """CPU pressure of one trial: the share of its training time in which some task waited for a CPU."""

    trial: int
    share: float
    own_cores: bool
    """Whether each of its processes has a core of its own, so that the waiting is due to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a person should know, and the command that does something about it."""

    text: str
    command: str = ""


def driver_of(folder: StudyFolder, ledger: Ledger) -> Driver:
    """Return what has become of the driver."""
    if folder.records in (folder.packed_records, folder.packed_results):
        return "packed"
    if at_work(folder.path):
        return "working"
    return "ended" if ledger.closed is not None else "gone"


def mirror_of(folder: StudyFolder, identity: StudyIdentity, driver: Driver) -> Mirror | None:
    """Return how far MLflow has caught up; None for a packed study, which is mirrored to nowhere."""
    if driver == "packed":
        return None
    try:
        mirror = MlflowMirror(folder, identity.tracking_uri)
        behind, begun = mirror.behind, mirror.read_cursor() is not None
    except (OSError, RecordError):
        return None
    return Mirror(uri=mask_credentials(identity.tracking_uri), behind=behind, begun=begun)


def pressures(rows: Sequence[TrialRow]) -> tuple[Pressure, ...]:
    """Return the CPU pressure of the trials that tell it."""
    return tuple(
        Pressure(trial=row.trial, share=share, own_cores=row.timing in ("measured", "tainted") and not row.provisional)
        for row in rows
        if (share := row.sums.mean_cpu_pressure()) is not None
    )


def resume_command(folder: StudyFolder, identity: StudyIdentity) -> str:
    """Return the command that continues the study."""
    place = ["--name", identity.name, "--out", str(folder.path.parent)]
    return shlex.join(["python", "run_study.py", *as_options(folder.space_file), *place, "--resume"])


def quiet_after_s(longest_pause_s: float | None) -> float:
    """Return the seconds of silence from which on something may be wrong."""
    return FIRST_QUIET_S if longest_pause_s is None else max(QUIET_S, QUIET_FACTOR * longest_pause_s)


def advice(
    *,
    folder: StudyFolder,
    driver: Driver,
    complete: bool,
    rows: Sequence[TrialRow],
    timings: Mapping[str, int],
    silence_s: float,
    longest_pause_s: float | None,
    mirror: Mirror | None,
    pressure: Sequence[Pressure],
    resume: str,
    cautions: Sequence[str] = (),
) -> Iterator[Advice]:
    """Yield what a person should know or do, the gravest first."""
    if driver == "gone":
        yield Advice(
            text="The driver ended without saying so (killed?); nothing recorded is lost. Go on with:", command=resume
        )
    if driver == "ended" and not complete:
        yield Advice(text="Resume with:", command=resume)
    if driver == "working" and silence_s > quiet_after_s(longest_pause_s):
        pause = "" if longest_pause_s is None else f"; the longest pause so far was {longest_pause_s:,.0f} s"
        hang = f"Nothing was recorded for {silence_s:,.0f} s{pause}. It may hang: look at its terminal or job log."
        yield Advice(text=hang)
    failed = [row for row in rows if row.status == "failed"]
    if failed:
        last = max(failed, key=lambda row: row.ended_at or 0.0)
        why = one_line(last.reason) or "no reason"
        yield Advice(text=f"{count(len(failed), 'trial')} failed; the latest, trial {last.trial}: {why}")
    left = [row for row in rows if row.status == "interrupted" or (row.status == "running" and driver != "working")]
    if left:
        then = "" if driver == "packed" else f"; a resume runs {'it' if len(left) == 1 else 'them'} again"
        yield Advice(text=f"{count(len(left), 'trial')} {'was' if len(left) == 1 else 'were'} interrupted{then}.")
    yield from (Advice(text=text) for text in cautions)
    yield from _clocks(rows, timings)
    foreign = [each for each in pressure if each.own_cores and each.share >= PRESSURE_LIMIT]
    if foreign:
        worst = max(foreign, key=lambda each: each.share)
        share, limit = f"{worst.share:.0%} of the time", f"(limit {PRESSURE_LIMIT:.0%})"
        yield Advice(
            text=f"Tasks of trial {worst.trial} waited for a CPU {share} although each has one of its own {limit}: "
            "other programs load its node."
        )
    if mirror is not None:
        yield from _late(mirror, driver, folder)


def _clocks(rows: Sequence[TrialRow], timings: Mapping[str, int]) -> Iterator[Advice]:
    for label, runs in timings.items():
        if label != "measured" and runs:
            reason = next((row.timing_reason for row in rows if row.timing == label and row.timing_reason), "")
            such = f", such as: {one_line(reason)}" if reason else ""
            clocks, are = count(sum(timings.values()), "clock"), "is" if runs == 1 else "are"
            yield Advice(text=f"{runs} of {clocks} {are} {label} and in no efficiency table{such}.")


def _late(mirror: Mirror, driver: Driver, folder: StudyFolder) -> Iterator[Advice]:
    behind = f"MLflow is {count(mirror.behind, 'record')} behind ({mirror.uri})"
    if driver == "working" and mirror.behind > MUCH_BEHIND:
        yield Advice(text=f"{behind}; the study does not wait for it.")
    elif driver != "working" and mirror.behind:
        yield Advice(text=f"{behind}; catch up with:", command=f"python -m study sync {shlex.quote(str(folder.path))}")
