"""Brings MLflow up to date in the foreground, for `study sync`. Imports MLflow only once work begins."""

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from study.errors import StudyError, TrackingError
from study.harmless import mask_credentials
from study.mirrors.mirror_cursor import CursorFile
from study.mirrors.tracking_uri import CLIENT_SETTINGS, check_tracking_uri
from study.records.folder import StudyFolder
from study.records.lock import at_work

if TYPE_CHECKING:
    from study.mirrors.mirror import Mirror

SYNC_TIMEOUT_S = 30.0
"""Seconds without progress after which `sync` gives up."""
_PAUSE_S = 1.0
"""Seconds between two attempts at an MLflow that does not answer."""
_LONGEST_REASON = 300
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a foreground mirror did."""

    records: int
    """Records sent now."""
    runs: int
    """Trials of the study that MLflow shows."""
    behind: int
    """Records not sent, because a driver wrote them meanwhile."""


def sync(folder: StudyFolder, *, tracking_uri: str | None = None, timeout_s: float = SYNC_TIMEOUT_S) -> SyncReport:
    """Send to MLflow what it has not got.

    Args:
        folder: The study.
        tracking_uri: Another MLflow than the study's own, where the whole study is rebuilt.
        timeout_s: Seconds without progress after which to give up.

    Raises:
        TrackingError: MLflow does not answer, or another mirror is at work.
        RecordError: The records cannot be trusted.
    """
    uri = check_tracking_uri(tracking_uri or folder.identity().tracking_uri)
    file = CursorFile.of(folder, uri)
    try:
        held = FileLock(file.lock).acquire(timeout=timeout_s)
    except Timeout as error:
        raise TrackingError(
            f"{folder.path}: only one mirror may send to {mask_credentials(uri)}, got another one at work. "
            "Fix: none while the study runs, its own mirror keeps MLflow up to date; afterwards try again."
        ) from error
    with held:
        mirror = open_mirror(folder, file)
        sent = _catch_up(folder, mirror, mask_credentials(uri), timeout_s)
        return SyncReport(records=sent, runs=mirror.count_trials(), behind=mirror.behind)


def open_mirror(folder: StudyFolder, file: CursorFile) -> "Mirror":
    """Import MLflow with short time-outs and return a mirror; the caller holds `file.lock`."""
    for name, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    from study.mirrors.mirror import Mirror

    return Mirror(folder, file)


def reason_of(error: Exception) -> str:
    """Return one line that says what went wrong at the root, without credentials."""
    root: BaseException = error
    while (deeper := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = deeper
    if isinstance(root, StudyError):  # written for people
        return mask_credentials(str(root))
    lines = str(root).strip().splitlines() or str(error).strip().splitlines() or [""]
    return mask_credentials(f"{type(root).__name__}: {lines[0]}")[:_LONGEST_REASON]


def _catch_up(folder: StudyFolder, mirror: "Mirror", where: str, timeout_s: float) -> int:
    """Send until the end of the records and return how many were sent."""
    sent, deadline = 0, time.monotonic() + timeout_s
    while True:
        try:
            if not mirror.attached:
                mirror.attach()
            while count := mirror.step():
                sent, deadline = sent + count, time.monotonic() + timeout_s
            if not at_work(folder.path):
                mirror.close()
        except StudyError:
            raise
        except Exception as error:  # MLflow, its databases and proxies raise every kind
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"tracking URI {where}: MLflow must take the study's records, got {reason_of(error)} for "
                    f"{timeout_s:g} s; {mirror.behind} records are behind. "
                    "Fix: see to MLflow, then run the same command again; it goes on where it stopped."
                ) from error
            time.sleep(_PAUSE_S)
        else:
            return sent
