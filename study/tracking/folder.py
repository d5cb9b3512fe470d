"""The study folder: every path in it, its identity, and the lock of the one driver at work. Imports no engine."""

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from study.errors import RecordError
from study.space.space_file import Source
from study.space.spec import StudySpec, parse_space

FORMAT = 1
"""Version of the folder's layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIdentity:
    """What a study is: written once, at its start, and never changed."""

    format: int
    study_id: str
    """Random; names the study in MLflow and Optuna."""
    name: str
    created: float
    """Seconds since the epoch."""
    tracking_uri: str
    """Absolute MLflow tracking URI."""
    space: str
    """Where the space came from, for people."""
    spec: dict[str, Any]
    """The complete spec, defaults included."""
    digest: str
    """`StudySpec.digest()` of `spec`."""

    def parse(self) -> StudySpec:
        """Return the spec."""
        return parse_space(Source(name=f"{self.name}/study.json", content=self.spec))


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """All paths of one study."""

    path: Path

    @property
    def identity_file(self) -> Path:
        """The study's identity, JSON."""
        return self.path / "study.json"

    @property
    def space_file(self) -> Path:
        """The space as the person wrote it."""
        return self.path / "space.yaml"

    @property
    def records(self) -> Path:
        """The records, JSON lines; those of a packed study are compressed."""
        file = self.path / "records.jsonl"
        packed = (each for each in (self.packed_records, self.packed_results) if each.exists())
        return file if file.exists() else next(packed, file)

    @property
    def packed_records(self) -> Path:
        """The records of a packed study."""
        return self.path / "records.jsonl.xz"

    @property
    def packed_results(self) -> Path:
        """The records of a packed study without its training iterations."""
        return self.path / "results.jsonl.xz"

    @property
    def optuna_journal(self) -> Path:
        """Optuna's journal storage."""
        return self.path / "optuna.journal"

    @property
    def mirror_state(self) -> Path:
        """How far MLflow has caught up."""
        return self.path / "mirror.json"

    @property
    def mirror_log(self) -> Path:
        """What the mirror process had to say."""
        return self.path / "mirror.log"

    @property
    def table(self) -> Path:
        """The table of trials, CSV."""
        return self.path / "trials.csv"

    @property
    def certificate(self) -> Path:
        """The certificate of a hold-up study, JSON."""
        return self.path / "certificate.json"

    @property
    def certificate_page(self) -> Path:
        """The certificate as a page, Markdown."""
        return self.path / "certificate.md"

    @property
    def checkpoints(self) -> Path:
        """One folder per trial with its final policy."""
        return self.path / "checkpoints"

    def checkpoint(self, trial: int) -> Path:
        """Return the folder of the final policy of `trial`."""
        return self.checkpoints / f"trial_{trial:05d}"

    def exists(self) -> bool:
        """Return whether a study was started here.

        Raises:
            RecordError: The folder may not be looked into.
        """
        try:
            return self.identity_file.exists()
        except OSError as error:
            raise RecordError(
                f"{self.path}: must be readable ({error.strerror}). Fix: choose another --name or --out."
            ) from error

    def prepare(self) -> None:
        """Make an empty folder for a new study; only its owner may look inside (a tracking URI can hold a password).

        Raises:
            RecordError: The folder holds something already, or cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            foreign = [entry.name for entry in self.path.iterdir() if entry.name not in (".lock", "space.yaml")]
        except OSError as error:
            raise RecordError(
                f"{self.path}: must be writable ({error.strerror}). Fix: choose another folder with --out."
            ) from error
        if foreign:
            raise RecordError(
                f"{self.path}: a new study needs an empty folder, got one with {', '.join(sorted(foreign)[:5])}. "
                "Fix: choose another --name or --out."
            )

    def create(self, identity: StudyIdentity, space_text: str) -> None:
        """Write a new study's identity and space file into a prepared and locked folder.

        Raises:
            RecordError: The folder cannot be written.
        """
        try:
            self.space_file.write_text(space_text)
            write_atomically(self.identity_file, json.dumps(asdict(identity), indent=1))
        except OSError as error:
            raise RecordError(
                f"{self.path}: must be writable ({error.strerror}). Fix: choose another folder with --out."
            ) from error

    def forget(self) -> None:
        """Remove the files of a study that recorded nothing, and the folder if nothing else is in it."""
        names = (
            "study.json",
            "space.yaml",
            "records.jsonl",
            "optuna.journal",
            "mirror.json",
            "mirror.log",
            "trials.csv",
        )
        for name in (*names, ".mirror.lock", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.path, self.path.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()

    def identity(self) -> StudyIdentity:
        """Read the study's identity.

        Raises:
            RecordError: The file is missing or damaged.
        """
        file = self.identity_file
        fix = "Fix: restore it from a backup, or start a new study with --name."
        try:
            content = json.loads(file.read_text())
            identity = StudyIdentity(**content)
        except FileNotFoundError as error:
            raise RecordError(
                f"{self.path}: no study here (study.json is missing). Fix: check --out and --name."
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise RecordError(f"{file}: must be a study's identity, got a damaged file ({error}). {fix}") from error
        if identity.format != FORMAT:
            raise RecordError(f"{file}: this version reads format {FORMAT}, got {identity.format!r}. {fix}")
        return identity

    def check_owner(self) -> None:
        """Refuse a folder that somebody else could have prepared: checkpoints and journals are trusted input.

        Raises:
            RecordError: The folder belongs to another user or anybody may write to it.
        """
        status = self.path.stat()
        if status.st_uid != os.getuid():
            raise RecordError(
                f"{self.path}: must belong to you (uid {os.getuid()}), got uid {status.st_uid}. "
                "Fix: copy the folder and resume the copy with --out."
            )
        if status.st_mode & 0o002:
            raise RecordError(f"{self.path}: must not be writable by everybody. Fix: chmod o-w '{self.path}'.")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study for one driver.

        Raises:
            RecordError: Another process holds it.
        """
        lock = FileLock(self.path / ".lock", mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RecordError(
                f"{self.path}: another driver is working on this study. "
                "Fix: wait for it, or start your own with --name."
            ) from error
        except OSError as error:
            raise RecordError(
                f"{self.path}: must be writable ({error.strerror}). Fix: free some space, or check its permissions."
            ) from error
        try:
            yield
        finally:
            lock.release()


def unpack_policy(archive: bytes, folder: Path) -> None:
    """Unpack a policy that a trial has packed, an RLModule checkpoint, into a folder.

    Raises:
        OSError: The folder cannot be written.
        tarfile.FilterError: The archive would write outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as content:
        content.extractall(folder, filter="data")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: a reader, or a kill, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
