"""How far MLflow has caught up with a study's records, kept in the study folder. Imports no MLflow.

The cursor is written after MLflow took the records before it; what a kill leaves in between is sent again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from study.errors import RecordError
from study.harmless import mask_credentials
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.shapes import misfit

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A trial's attempt that has begun and not ended."""

    attempt: int
    run_id: str | None
    """Its MLflow run; None when it was deleted there, and its records are passed over."""
    env_steps: int = 0
    """Environment steps of its last points."""
    time_ms: int = 0
    """Milliseconds since the epoch of its last points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The next record to send, and what the records before it have left open."""

    experiment_id: str
    parent_run_id: str
    offset: int = 0
    """Byte of the records file at which the next record begins."""
    seq: int = 0
    """Number of the next record."""
    time: float = 0.0
    """Seconds since the epoch of the last record; 0 before the first."""
    status: str = "RUNNING"
    """MLflow status of the study after the last record; RUNNING when its driver has not closed it."""
    open: Mapping[int, Attempt] = field(default_factory=dict)
    """Attempts under way, by trial."""


@dataclass(frozen=True, slots=True)
class CursorFile:
    """The cursor of one tracking URI; each has its own, so that a study can be mirrored to several places."""

    path: Path
    tracking_uri: str

    @classmethod
    def of(cls, folder: StudyFolder, tracking_uri: str) -> Self:
        """Return `mirror.json` for the study's own tracking URI, `mirror-<digest>.json` for any other."""
        path = folder.mirror_state
        if tracking_uri != folder.identity().tracking_uri:
            path = path.with_stem(f"{path.stem}-{hashlib.sha256(tracking_uri.encode()).hexdigest()[:12]}")
        return cls(path, tracking_uri)

    @property
    def lock(self) -> Path:
        """The lock of the one mirror that may send to this URI: `.mirror.lock` for the study's own."""
        return self.path.with_name(f".{self.path.stem}.lock")

    def read(self) -> Cursor | None:
        """Return the cursor; None when there is none or it cannot be used: everything is then sent again."""
        try:
            content = json.loads(self.path.read_text())
            if content.pop("format") != _FORMAT or content.pop("tracking_uri") != self._shown_uri:
                return None
            if misfit(Cursor, content) is not None or min(content["offset"], content["seq"]) < 0:
                return None
            attempts = {int(trial): Attempt(**attempt) for trial, attempt in content.pop("open").items()}
            return Cursor(**content, open=attempts)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def write(self, cursor: Cursor) -> None:
        """Replace the file.

        Raises:
            RecordError: Something else is in its place.
        """
        if self.path.is_dir():
            raise RecordError(f"{self.path}: must be a file, got a folder. Fix: remove it; the file is made anew.")
        content = {"format": _FORMAT, "tracking_uri": self._shown_uri, **asdict(cursor)}
        write_atomically(self.path, json.dumps(content))

    def forget(self) -> None:
        """Remove the file, so that everything is sent again."""
        self.path.unlink(missing_ok=True)

    @property
    def _shown_uri(self) -> str:
        return mask_credentials(self.tracking_uri)


def count_behind(records: Path, cursor: Cursor | None) -> int:
    """Return how many complete records lie after `cursor`; None counts all, and so does one beyond their end."""
    if not records.exists():
        return 0
    behind = 0
    with records.open("rb") as file:
        offset = 0 if cursor is None else cursor.offset
        file.seek(offset if offset <= records.stat().st_size else 0)
        while block := file.read(1 << 20):
            behind += block.count(b"\n")
    return behind
