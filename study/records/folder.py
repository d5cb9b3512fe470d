"""The study folder: every path in it, its identity, and the lock of the one driver at work. Imports no engine."""

import contextlib
import difflib
import io
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study.errors import RecordError
from study.records import lock
from study.records.files import check_own, check_plain, check_size, sync, write_atomically
from study.records.shapes import Moment, Whole, read
from study.space.parsing import parse_space
from study.space.space_file import Source, unfit
from study.space.spec import StudySpec, as_of_now

FORMAT = 1
"""Version of the folder's layout."""
MAX_IDENTITY = 1_000_000
"""Bytes of `study.json`; a space has at most a tenth."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of studies: they become folders, MLflow experiments and words of command lines."""
_LARGEST = {"space.yaml": 1_000_000, **dict.fromkeys(("mirror.json", "certificate.json", "certificate.md"), 64_000_000)}
"""Bytes of files that are read at once: a sparse one of a terabyte fits any archive, and no memory."""
_FILES = (
    *("study.json", "space.yaml", "records.jsonl", "trials.csv", "certificate.json", "certificate.md"),
    *("mirror.json", "mirror.log", "optuna.journal", "optuna.journal.lock"),
    *(".mlflow-mirror.lock", ".optuna-mirror.lock", ".tensorboard-mirror.lock"),
    *(lock.LOCK, lock.OWNER),
)
_DRAFT = re.compile(rf"\.({'|'.join(map(re.escape, _FILES))})\.(\d+\.)?[0-9a-f]{{8}}")
"""What `write_atomically`, or taking the lock, leaves behind when it is killed."""
_STUDY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = 8
"""Studies that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIdentity:
    """What a study is: written once, at its start, and never changed."""

    format: Whole
    study_id: str
    """Random; names the study in MLflow and Optuna."""
    name: str
    created: Moment
    tracking_uri: str
    """Absolute MLflow tracking URI."""
    space: str
    """Where the space came from, for people."""
    spec: dict[str, Any]
    """The complete spec, defaults included."""
    digest: str
    """`StudySpec.digest()` of `spec`."""
    optuna_storage: str | None = None
    """Database that shows the ended trials to `optuna-dashboard`, as a URL; None: the journal file in the folder."""

    def parse(self) -> StudySpec:
        """Return the spec."""
        return parse_space(Source(name=f"{self.name}/study.json", content=as_of_now(self.spec)))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; what is not set is left out, so that earlier versions can read the rest."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class _Entry:
    """A file or folder of a study, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "StudyFolder", _: object = None) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class StudyFolder:
    """All paths of one study."""

    path: Path

    identity_file = _Entry("study.json")
    """The study's identity, JSON."""
    space_file = _Entry("space.yaml")
    """The space as the person wrote it."""
    packed_records = _Entry("records.jsonl.xz")
    """The records of a packed study."""
    packed_results = _Entry("results.jsonl.xz")
    """The records of a packed study without its training iterations."""
    optuna_journal = _Entry("optuna.journal")
    """Where `optuna-dashboard` finds the trials of a study without a database for them."""
    mirror_state = _Entry("mirror.json")
    """How far MLflow has caught up."""
    mirror_log = _Entry("mirror.log")
    """What the mirror process had to say."""
    tensorboard = _Entry("tensorboard")
    """Event files for TensorBoard, a folder for each trial. That it is there says that the study keeps them."""
    table = _Entry("trials.csv")
    """The table of trials, CSV."""
    certificate = _Entry("certificate.json")
    """The certificate of a hold-up study, JSON."""
    certificate_page = _Entry("certificate.md")
    """The certificate as a page, Markdown."""
    checkpoints = _Entry("checkpoints")
    """One folder per trial with its final policy."""
    clips = _Entry("clips")
    """Films of policies, made on request: `best.mp4` with its poster and its facts, `trial_00007.gif`."""

    @property
    def records(self) -> Path:
        """The records, JSON lines; those of a packed study are compressed."""
        file = self.path / "records.jsonl"
        packed = (each for each in (self.packed_records, self.packed_results) if each.exists())
        return file if file.exists() else next(packed, file)

    def checkpoint(self, trial: int) -> Path:
        """Return the folder of the final policy of `trial`."""
        return self.checkpoints / f"trial_{trial:05d}"

    @property
    def files(self) -> list[Path]:
        """Every file directly in the folder that a driver and its mirrors read, write or replace."""
        return [self.path / name for name in _FILES]

    @property
    def clip_files(self) -> list[Path]:
        """The films with what belongs to them; no drafts."""
        endings = (".mp4", ".gif", ".png", ".json")
        found = self.clips.iterdir() if self.clips.is_dir() else ()
        return sorted(file for file in found if file.suffix in endings and not file.name.startswith("."))

    def exists(self) -> bool:
        """Return whether a study was started here.

        Raises:
            RecordError: The folder may not be looked into.
        """
        try:
            return self.identity_file.exists()
        except OSError as error:
            raise _unusable(self.path, "readable", error, "Choose another --name or --out.") from error

    def prepare(self) -> None:
        """Make an empty folder for a new study; only its owner may look inside (a tracking URI can hold a password).

        Raises:
            RecordError: The folder holds something already, or cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_plain(self.path)
            ours = (lock.LOCK, lock.OWNER)
            foreign = [
                entry.name
                for entry in self.path.iterdir()
                if entry.name not in ours
                and not _DRAFT.fullmatch(entry.name)
                and not (entry == self.tensorboard and entry.is_dir() and not any(entry.iterdir()))
            ]
            if not foreign and self.path.stat().st_mode & 0o077:  # it was there before
                self.path.chmod(0o700)
        except OSError as error:
            raise _unusable(self.path, "writable", error, "Choose another folder with --out.") from error
        if foreign:
            choose = (
                "Restore study.json from a backup to resume, or choose" if self.records.name in foreign else "Choose"
            )
            rule, got = "a new study needs an empty folder", f"one with {', '.join(sorted(foreign)[:5])}"
            raise RecordError(where=str(self.path), rule=rule, got=got, fix=f"{choose} another --name or --out.")

    def make_tensorboard(self) -> None:
        """Make the folder of event files, if it is not there: from now on whoever runs the study keeps them.

        Raises:
            RecordError: It cannot be made.
        """
        try:
            self.tensorboard.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            fix = "Check the permissions, or remove what is in its place."
            raise _unusable(self.tensorboard, "a folder that can be written", error, fix) from error

    def create(self, identity: StudyIdentity, space_text: str) -> None:
        """Write a new study's identity and space file into a prepared and locked folder.

        The identity comes first: a folder with a space file and no identity is a person's own, and `prepare` refuses
        it. A resume writes a space file that a kill in between has left out.

        Raises:
            RecordError: The folder cannot be written.
        """
        try:
            self.rewrite(identity)
            write_atomically(self.space_file, space_text)
            sync(self.path.parent)
        except OSError as error:
            raise _unusable(self.path, "writable", error, "Choose another folder with --out.") from error

    def rewrite(self, identity: StudyIdentity) -> None:
        """Write the identity.

        Raises:
            OSError: The folder cannot be written.
        """
        write_atomically(self.identity_file, json.dumps(identity.to_json(), indent=1))

    def forget(self) -> None:
        """Remove the files of a study that recorded nothing, and the folder if nothing else is in it."""
        for file in self.files:
            file.unlink(missing_ok=True)
        for draft in self.path.glob(".*"):
            if _DRAFT.fullmatch(draft.name):
                draft.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.path, self.path.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()

    def identity(self) -> StudyIdentity:
        """Read the study's identity. Every command on a study begins with it, and so with the check of its files.

        Raises:
            RecordError: The file is missing or damaged, or the folder holds links, pipes or the like.
        """
        file = self.identity_file
        check_plain(self.path)
        for name, largest in _LARGEST.items():
            check_size(self.path / name, largest)
        fix = "Restore it from a backup, or start a new study with --name."
        try:
            content = json.loads(_small_text(file))
            if not isinstance(content, dict):
                raise ValueError(f"{str(content)[:40]!r}")
            _check_format(content.get("format"), file)
            identity = read(StudyIdentity, content)
            if (wrong := next((fault.problem for fault in unfit(identity.spec)), None)) is not None:
                raise ValueError(f"spec: {wrong}")
            _check_names(identity)
        except (FileNotFoundError, NotADirectoryError) as error:
            where, rule, got = str(self.path), "must be the folder of a study", "none (study.json is missing)"
            fix = "Restore it from a backup."
            if not self.records.exists():
                fix = meant_by(self.path) or "Give for instance studies/quickstart."
            raise RecordError(where=where, rule=rule, got=got, fix=fix) from error
        except OSError as error:
            fix = "Check its permissions, or restore it from a backup."
            raise _unusable(file, "a file that you can read", error, fix) from error
        except RecordError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            rule, got = "must be a study's identity", f"a damaged file ({error})"
            raise RecordError(where=str(file), rule=rule, got=got, fix=fix) from error
        return identity

    def check_owner(self) -> None:
        """Refuse a folder of somebody else, or that others may write to: a resume trusts what is in it.

        Raises:
            RecordError: It, or a file in it, belongs to another user, or others may write to it.
        """
        check_own(self.path)

    def check_code(self, own_code: Iterable[str]) -> None:
        """Refuse modules and scripts that lie in this folder, or would be looked for there: nothing of it is run.

        Args:
            own_code: `StudySpec.own_code`.

        Raises:
            RecordError: Names the first one.
        """
        inside = self.path.resolve()
        for named in own_code:
            code = named.partition(":")[0]
            parts = [code] if code.endswith(".py") else code.split(".")
            if any(inside in Path(place, *parts).resolve().parents for place in ("", *sys.path)):
                rule, fix = "code that lies in a study's folder is not run", "Start in another folder, with code there."
                raise RecordError(where=str(self.path), rule=rule, got=repr(named), fix=fix)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study for one driver.

        Raises:
            RecordError: Another process holds it, or may hold it.
        """
        with lock.held(self.path):
            yield


def meant_by(path: Path) -> str:
    """Return what to give in place of a path where no study is, as a sentence; nothing where none is near."""
    if path.is_file() and (path.parent / "study.json").is_file():
        return f"Give its folder, {path.parent}."
    if inside := _studies(path):
        return f"Give one of the studies in it, {', '.join(map(str, inside[:_SHOWN]))}."
    beside = {folder.name: folder for folder in (*_studies(Path("studies")), *_studies(path.parent))}
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"Did you mean '{beside[near[0]]}'?" if near else ""


def _studies(folder: Path) -> list[Path]:
    """Return the studies in a folder; none where it cannot be looked into."""
    try:
        return sorted(file.parent for file in folder.glob("*/study.json"))
    except OSError:
        return []


def _unusable(place: Path, rule: str, error: OSError, fix: str) -> RecordError:
    return RecordError(where=str(place), rule=f"must be {rule} ({error.strerror})", fix=fix)


def _check_format(found: Any, file: Path) -> None:
    """Refuse the folder of another version, before its other fields seem wrong."""
    if type(found) is int and found != FORMAT:
        rule, fix = f"this version reads format {FORMAT}", "Use the version of this project that wrote the study."
        raise RecordError(where=str(file), rule=rule, got=str(found)[:20], fix=fix)


def _check_names(identity: StudyIdentity) -> None:
    """Refuse names that are no names: they become folders, words of command lines and parts of MLflow's queries."""
    for field, rule, value in (("name", NAME, identity.name), ("study_id", _STUDY_ID, identity.study_id)):
        if not rule.fullmatch(value):
            raise ValueError(f"{field} {value[:100]!r}")


def archived(folder: Path) -> bytes:
    """Return a zip archive of a folder, which `unpack_policy` unpacks."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, arcname=path.relative_to(folder))
    return buffer.getvalue()


def unpack_policy(archive: bytes, folder: Path) -> None:
    """Unpack a policy that a trial has packed, an RLModule checkpoint, into a folder, all of it or nothing.

    It is on the disk before this returns: the record that follows says for ever that it is there.

    Raises:
        OSError: The folder cannot be written.
    """
    draft, is_first = folder.with_name(f".{folder.name}.draft"), not folder.parent.exists()
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    # Not tar: Python 3.11.2, Debian 12's, has no filter that would keep its members within the folder.
    with zipfile.ZipFile(io.BytesIO(archive)) as content:
        content.extractall(draft)
    for path in (*draft.rglob("*"), draft):
        sync(path)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed before it had ended
    draft.rename(folder)
    sync(folder.parent)
    if is_first:
        sync(folder.parent.parent)  # in which the folder of all policies is new


def _small_text(file: Path) -> str:
    """Read a file of no more than `MAX_IDENTITY` bytes.

    Raises:
        OSError: It cannot be read.
        ValueError: It is larger, no text, or no file at all but for instance a pipe.
    """
    if file.exists() and not file.is_file():
        raise ValueError("not a file")
    with file.open("rb") as stream:
        raw = stream.read(MAX_IDENTITY + 1)
    if len(raw) > MAX_IDENTITY:
        raise ValueError(f"more than {MAX_IDENTITY} bytes")
    return raw.decode()
