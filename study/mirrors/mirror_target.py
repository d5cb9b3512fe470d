"""The places that a mirror can send a study's records to: how each is named, locked and opened. Imports no engine.

What a mirror does about time, kills and outages is the same for all of them (`study.mirrors.mirror_worker`).
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from study.mirrors.mirror_cursor import CursorFile, count_behind
from study.mirrors.mlflow_mirror import open_mirror
from study.records.folder import StudyFolder
from study.records.state import ledger_of


class AnyMirror(Protocol):
    """One study's way into one place. Whatever the place raises when it is away passes through; call again."""

    @property
    def attached(self) -> bool:
        """Whether the study was found or created there."""

    @property
    def behind(self) -> int:
        """What the place has not got."""

    def attach(self) -> None:
        """Find or create the study there, and go on where the last mirror stopped."""

    def set_running(self) -> None:
        """Show the study as running."""

    def step(self) -> int:
        """Send some of what is next and return how much; 0 at the end of the records."""

    def close(self) -> None:
        """Show the study as ended."""

    def count_trials(self) -> int:
        """Return the number of the study's trials that the place shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of place."""

    key: str
    name: str
    """For people."""
    place: str
    """What its URI is called."""
    option: str
    """On the command line."""
    lock: Callable[[StudyFolder, str], Path]
    """The lock of the one mirror that may send there."""
    open: Callable[[StudyFolder, str], AnyMirror]
    """Imports what is needed and returns a mirror; the caller holds the lock."""
    count_behind: Callable[[StudyFolder, str], int]
    """What the place lacks, as far as that is known without it: at most so much."""


def _open_mlflow(folder: StudyFolder, uri: str) -> AnyMirror:
    return open_mirror(folder, CursorFile.of(folder, uri))


def _behind_mlflow(folder: StudyFolder, uri: str) -> int:
    return count_behind(folder.records, CursorFile.of(folder, uri).read())


def _lock_of_optuna(folder: StudyFolder, uri: str) -> Path:
    own = folder.identity().optuna_storage == uri
    other = "" if own else f"-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
    return folder.path / f".optuna-mirror{other}.lock"


def _open_optuna(folder: StudyFolder, uri: str) -> AnyMirror:
    from study.mirrors.optuna_mirror import OptunaMirror  # Optuna is at home there

    return OptunaMirror(folder, uri)


def _behind_optuna(folder: StudyFolder, uri: str) -> int:
    rows = ledger_of(folder.records).rows.values()
    return sum(row.ended and row.optuna_number is not None for row in rows)


def _open_tensorboard(folder: StudyFolder, uri: str) -> AnyMirror:
    from study.mirrors.tensorboard_mirror import TensorBoardMirror  # a Protocol Buffers library, on request only

    return TensorBoardMirror(folder)


MLFLOW = Target(
    key="mlflow",
    name="MLflow",
    place="tracking URI",
    option="--tracking-uri",
    lock=lambda folder, uri: CursorFile.of(folder, uri).lock,
    open=_open_mlflow,
    count_behind=_behind_mlflow,
)
OPTUNA = Target(
    key="optuna",
    name="Optuna's storage",
    place="Optuna storage",
    option="--optuna-storage",
    lock=_lock_of_optuna,
    open=_open_optuna,
    count_behind=_behind_optuna,
)
TENSORBOARD = Target(
    key="tensorboard",
    name="TensorBoard's folder",
    place="TensorBoard folder",
    option="--tensorboard",
    lock=lambda folder, uri: folder.path / ".tensorboard-mirror.lock",
    open=_open_tensorboard,
    count_behind=lambda folder, uri: count_behind(folder.records, None),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.key: target for target in (MLFLOW, OPTUNA, TENSORBOARD)})
