"""Is a study well: its driver, its pace, its MLflow, its neighbours. Reads files of the study folder; starts nothing.

Looks without touching: a driver that starts at this moment must not find its lock taken by an onlooker.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from study.errors import RecordError
from study.harmless import mask_credentials, one_line
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.lock import at_work
from study.records.timing import PRESSURE_LIMIT
from study.text import count

if TYPE_CHECKING:
    from analysis.status.reader import Status

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


class Mirror(NamedTuple):
    """How far MLflow has caught up."""

    uri: str
    """Without passwords."""
    behind: int
    """Complete records that it has not got."""
    begun: bool
    """Whether it has got any."""


class Advice(NamedTuple):
    """What a person should know, and the command that does something about it."""

    text: str
    command: str = ""


def driver_of(folder: StudyFolder, ledger: Ledger) -> Driver:
    """Return what has become of the driver."""
    if folder.records == folder.packed_records:
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
        return Mirror(mask_credentials(identity.tracking_uri), mirror.behind, mirror.state.experiment_id != "")
    except (OSError, RecordError):
        return None


def resume_command(folder: StudyFolder, identity: StudyIdentity) -> str:
    """Return the command that continues the study."""
    place = ["--name", identity.name, "--out", str(folder.path.parent)]
    return shlex.join(["python", "run_study.py", "--space", str(folder.space_file), *place, "--resume"])


def quiet_after_s(longest_pause_s: float | None) -> float:
    """Return the seconds of silence from which on something may be wrong."""
    return FIRST_QUIET_S if longest_pause_s is None else max(QUIET_S, QUIET_FACTOR * longest_pause_s)


def advice(status: "Status", rows: Sequence[TrialRow], resume: str) -> Iterator[Advice]:
    """Yield what a person should know or do, the gravest first."""
    driver, silence_s = status.driver, status.silence_s or 0.0
    if driver == "gone":
        yield Advice("The driver ended without saying so (killed?); nothing recorded is lost. Go on with:", resume)
    if driver == "ended" and not status.complete:
        yield Advice("Resume with:", resume)
    if driver == "working" and silence_s > quiet_after_s(status.longest_pause_s):
        known = status.longest_pause_s is not None
        pause = f"; the longest pause so far was {status.longest_pause_s:,.0f} s" if known else ""
        look = "It may hang: look at its terminal or job log."
        yield Advice(f"Nothing was recorded for {silence_s:,.0f} s{pause}. {look}")
    if failed := [row for row in rows if row.status == "failed"]:
        last = max(failed, key=lambda row: row.ended_at or 0.0)
        why = one_line(last.reason) or "no reason"
        yield Advice(f"{count(len(failed), 'trial')} failed; the latest, trial {last.trial}: {why}")
    if left := sum(row.status == "interrupted" or (row.status == "running" and driver != "working") for row in rows):
        then = "" if driver == "packed" else f"; a resume runs {'it' if left == 1 else 'them'} again"
        yield Advice(f"{count(left, 'trial')} {'was' if left == 1 else 'were'} interrupted{then}.")


def clocks(status: "Status", rows: Mapping[int, TrialRow]) -> Iterator[Advice]:
    """Yield why some clocks are worth nothing, and who else uses the CPUs."""
    clocks_ = count(sum(status.timings.values()), "clock")
    for label, runs in status.timings.items():
        if label != "measured" and runs:
            reasons = (row.timing_reason for row in rows.values() if row.timing == label and row.timing_reason)
            such = f", such as: {one_line(reason)}" if (reason := next(reasons, "")) else ""
            yield Advice(
                f"{runs} of {clocks_} {'is' if runs == 1 else 'are'} {label} and in no efficiency table{such}."
            )
    # Where each process of a trial has a core of its own, the waiting is due to others.
    own = {trial for trial in status.pressure if rows[trial].timing in ("measured", "tainted")}
    own -= {trial for trial in own if rows[trial].provisional}
    worst = max(own, key=status.pressure.__getitem__, default=None)
    if worst is not None and status.pressure[worst] >= PRESSURE_LIMIT:
        share, limit = f"{status.pressure[worst]:.0%} of the time", f"(limit {PRESSURE_LIMIT:.0%})"
        text = f"Tasks of trial {worst} waited for a CPU {share} although each has one of its own {limit}: "
        yield Advice(f"{text}other programs load its node.")


def late(status: "Status") -> Iterator[Advice]:
    """Yield how far MLflow is behind, where that is much or nobody sends it any more."""
    if (mirror := status.mirror) is None:
        return
    behind = f"MLflow is {count(mirror.behind, 'record')} behind ({mirror.uri})"
    if status.driver == "working" and mirror.behind > MUCH_BEHIND:
        yield Advice(f"{behind}; the study does not wait for it.")
    elif status.driver != "working" and mirror.behind:
        yield Advice(f"{behind}; catch up with:", f"python -m study sync {shlex.quote(status.folder)}")
