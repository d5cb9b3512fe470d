"""The study folder: every path in it, its identity, and whether its files can be used. Imports no engine.

The records are the truth, and what a resume cannot trust it must not begin anew: each check names the file and the way
out. What follows from the records (tables, MLflow, Optuna's storage) is made again and needs no check.
"""

import contextlib
import csv
import difflib
import io
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from study.errors import RecordError
from study.records import lock
from study.records.files import check_own, check_plain, check_size, sync, write_atomically
from study.records.ledger import Ledger
from study.records.records import RESTORE, Moment, Whole
from study.records.table import read_table
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
"""What `write_atomically` leaves behind when it is killed."""
_STUDY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = 8
"""Studies, or trials, that a message lists."""
_OTHER_FOLDER = "Choose another folder with --out."


class StudyIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
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
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def of_text(cls, raw: bytes) -> "StudyIdentity":
        """Return the identity in a file.

        Raises:
            ValueError: There is none; the error says what is wrong.
            RecordError: It is of another version.
        """

        class Head(Struct):
            format: Whole

        found = msgspec.json.decode(raw, type=Head).format
        if found != FORMAT:
            rule, fix = f"this version reads format {FORMAT}", "Use the version of this project that wrote the study."
            raise RecordError(where="study.json", rule=rule, got=found, fix=fix)
        identity = msgspec.json.decode(raw, type=cls)
        if (wrong := next((fault.problem for fault in unfit(identity.spec)), None)) is not None:
            raise ValueError(f"spec: {wrong}")
        # They become folders, words of command lines and parts of MLflow's queries.
        for field, pattern, value in (("name", NAME, identity.name), ("study_id", _STUDY_ID, identity.study_id)):
            if not pattern.fullmatch(value):
                raise ValueError(f"{field} {value[:100]!r}")
        return identity


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
    tracebacks = _Entry("tracebacks")
    """What Ray wrote about each attempt that failed: `trial_00003_1.txt`, trial and attempt."""
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
        with _usable(self.path, "readable", "Choose another --name or --out."):
            return self.identity_file.exists()

    def prepare(self) -> None:
        """Make an empty folder for a new study; only its owner may look inside (a tracking URI can hold a password).

        Raises:
            RecordError: The folder holds something already, or cannot be written.
        """
        with _usable(self.path, "writable", _OTHER_FOLDER):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_plain(self.path)
            entries = [entry for entry in self.path.iterdir() if not self._is_of_a_start(entry)]
            if not entries and self.path.stat().st_mode & 0o077:  # it was there before
                self.path.chmod(0o700)
        if foreign := [entry.name for entry in entries]:
            ways = "Restore study.json from a backup to resume, or choose" if self.records.name in foreign else "Choose"
            rule, got = "a new study needs an empty folder", f"one with {', '.join(sorted(foreign)[:5])}"
            raise RecordError(where=str(self.path), rule=rule, got=got, fix=f"{ways} another --name or --out.")

    def _is_of_a_start(self, entry: Path) -> bool:
        """Return whether a first start that recorded nothing may have left an entry of the folder."""
        kept = entry.name in (lock.LOCK, lock.OWNER) or _DRAFT.fullmatch(entry.name)
        return bool(kept) or (entry == self.tensorboard and entry.is_dir() and not any(entry.iterdir()))

    def make_tensorboard(self) -> None:
        """Make the folder of event files, if it is not there: from now on whoever runs the study keeps them.

        Raises:
            RecordError: It cannot be made.
        """
        fix = "Check the permissions, or remove what is in its place."
        with _usable(self.tensorboard, "a folder that can be written", fix):
            self.tensorboard.mkdir(mode=0o700, exist_ok=True)

    def create(self, identity: StudyIdentity, space_text: str) -> None:
        """Write a new study's identity and space file into a prepared and locked folder.

        The identity comes first: a folder with a space file and no identity is a person's own, and `prepare` refuses
        it. A resume writes a space file that a kill in between has left out.

        Raises:
            RecordError: The folder cannot be written.
        """
        with _usable(self.path, "writable", _OTHER_FOLDER):
            self.rewrite(identity)
            write_atomically(self.space_file, space_text)
            sync(self.path.parent)

    def rewrite(self, identity: StudyIdentity) -> None:
        """Write the identity.

        Raises:
            OSError: The folder cannot be written.
        """
        write_atomically(self.identity_file, msgspec.json.format(msgspec.json.encode(identity), indent=1))

    def forget(self) -> None:
        """Remove the files of a study that recorded nothing, and the folder if nothing else is in it."""
        for file in (*self.files, *(draft for draft in self.path.glob(".*") if _DRAFT.fullmatch(draft.name))):
            file.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.path, self.path.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()

    def identity(self) -> StudyIdentity:
        """Read the study's identity. Every command on a study begins with it, and so with the check of its files.

        Raises:
            RecordError: The file is missing or damaged, or the folder holds links, pipes or the like.
        """
        check_plain(self.path)
        for name, largest in _LARGEST.items():
            check_size(self.path / name, largest)
        try:
            return StudyIdentity.of_text(_small_file(self.identity_file))
        except (FileNotFoundError, NotADirectoryError) as error:
            where, rule, got = str(self.path), "must be the folder of a study", "none (study.json is missing)"
            fix = "Restore it from a backup."
            if not self.records.exists():
                fix = meant_by(self.path) or "Give for instance studies/quickstart."
            raise RecordError(where=where, rule=rule, got=got, fix=fix) from error
        except OSError as error:
            fix = "Check its permissions, or restore it from a backup."
            raise _unusable(self.identity_file, "a file that you can read", error, fix) from error
        except RecordError:
            raise
        except (ValueError, RecursionError) as error:
            rule, got = "must be a study's identity", f"a damaged file ({error})"
            raise RecordError(where=str(self.identity_file), rule=rule, got=got, fix=RESTORE) from error

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

    def locked(self, *, take_over: bool = False) -> AbstractContextManager[lock.Owner]:
        """Hold the study for one driver, as `study.records.lock.held` does.

        Raises:
            RecordError: Another process holds it, or may hold it.
        """
        return lock.held(self.path, take_over=take_over)


# --- whether its files can be used ------------------------------------------------------------------------------------


def check_files(folder: StudyFolder) -> None:
    """Refuse a folder in which something cannot be read and written: before anything starts, all of it at once.

    Raises:
        RecordError: Something else is in the place of a file, or its permissions forbid it.
    """
    faults = [f"{file.name} {fault}" for file in folder.files if (fault := _fault_of(file))]
    for part in (folder.checkpoints, folder.tracebacks, folder.tensorboard):
        if os.path.lexists(part) and not part.is_dir():
            faults.append(f"{part.name} must be a folder")
    if not _may(folder.path, os.R_OK | os.W_OK | os.X_OK):
        faults.append("the folder itself must be readable and writable")
    if faults:
        fix = (
            "Correct the permissions, or move away what is in a file's place and restore the file from a backup "
            "(study.json, records.jsonl; the others are made anew)."
        )
        rule = "a study reads and writes its files"
        raise RecordError(where=str(folder.path), rule=rule, got="; ".join(faults), fix=fix)


def _fault_of(file: Path) -> str:
    """Return what keeps a driver from using a file; empty when nothing does, or it is not there."""
    try:
        if not os.path.lexists(file):
            return ""
        if not file.is_file():
            return "must be a file"
        if file.stat().st_nlink > 1:  # what is written to it would be in another file too
            return "must have one name, got a hard link to it (replace it by a copy)"
    except OSError as error:
        return f"must be a file ({error.strerror})"
    return "" if _may(file, os.R_OK | os.W_OK) else "must be readable and writable"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def check_not_cut(folder: StudyFolder, ledger: Ledger, *, num_mirrored: int = 0) -> None:
    """Refuse records that lack what other files of the folder prove: a resume would run it again as if it never was.

    Raises:
        RecordError: Trials have ended, or MLflow has records, of which the records know nothing.
    """
    where, ended = str(folder.records), {number for number, row in ledger.rows.items() if row.ended}
    policies = {int(name) for each in folder.checkpoints.glob("trial_*") if (name := each.name[6:]).isdecimal()}
    for witness, evidence, missing in (
        ("trials.csv shows as ended", "trials.csv", _ended_in(folder.table) - ended),
        (f"{folder.checkpoints.name}/ holds a policy of", "its folder there", policies - ledger.rows.keys()),
    ):
        if missing:
            shown = ", ".join(map(str, sorted(missing)[:_SHOWN]))
            rule, got = "must hold every trial that was recorded", f"none of trial {shown}, which {witness}: it was cut"
            fix = f"{RESTORE} Where the records are right, move away {evidence}."
            raise RecordError(where=where, rule=rule, got=got, fix=fix)
    if num_mirrored > 0 and ledger.sessions == 0:
        rule = f"must hold the {num_mirrored} records that MLflow has (mirror.json)"
        raise RecordError(where=where, rule=rule, got="none: the file was emptied", fix=RESTORE)


def _ended_in(table: Path) -> set[int]:
    """Return the trials that the table of trials shows as ended; none where it is damaged and proves nothing."""
    try:
        return {int(row["trial"]) for row in read_table(table) if row["status"] in ("finished", "failed")}
    except (OSError, ValueError, LookupError, TypeError, csv.Error):
        return set()


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


def _small_file(file: Path) -> bytes:
    """Read a file of no more than `MAX_IDENTITY` bytes.

    Raises:
        OSError: It cannot be read.
        ValueError: It is larger, or no file at all but for instance a pipe.
    """
    if file.exists() and not file.is_file():
        raise ValueError("not a file")
    with file.open("rb") as stream:
        raw = stream.read(MAX_IDENTITY + 1)
    if len(raw) > MAX_IDENTITY:
        raise ValueError(f"more than {MAX_IDENTITY} bytes")
    return raw


@contextlib.contextmanager
def _usable(place: Path, rule: str, fix: str) -> Iterator[None]:
    """Turn an error of the file system into one that says what must hold."""
    try:
        yield
    except OSError as error:
        raise _unusable(place, rule, error, fix) from error


def _unusable(place: Path, rule: str, error: OSError, fix: str) -> RecordError:
    return RecordError(where=str(place), rule=f"must be {rule} ({error.strerror})", fix=fix)


# --- policies ---------------------------------------------------------------------------------------------------------


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
