"""The study folder: every path in it, its identity, and whether its files can be used.

The records are the truth, and what a resume cannot trust it must not begin anew: each check names the file and the way
out. What follows from the records (tables, MLflow, Optuna's storage) is made again and needs no check.
"""

import contextlib
import io
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from study.errors import RecordError
from study.records.files import DRAFT, LOCK, check_plain, sync, write_atomically
from study.records.records import RESTORE, Moment, Whole
from study.space.parsing import parse_space
from study.space.space_file import Source
from study.space.spec import StudySpec, as_of_now

FORMAT = 1
"""Version of the folder's layout."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAME_RULE = "must consist of letters, digits, '.', '_' and '-'"
"""Names of studies: they become folders, MLflow experiments and words of command lines."""
_OWN = ("study.json", "space.yaml", "records.jsonl", "mirror*", "optuna.journal*", ".*lock", f".*{DRAFT}")
"""What a study has in its folder before anything is recorded, as patterns."""
_OTHER_FOLDER = "Choose another --name or --out."


class StudyIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a study is: written once, at its start, and never changed."""

    format: Whole
    study_id: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    """Random; names the study in MLflow and Optuna."""
    name: Annotated[str, Meta(pattern=rf"\A{NAME.pattern}\Z")]
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
        return parse_space(Source(name=f"{self.name}/study.json", content=as_of_now(self.spec)[0]))

    def settle(self, spec: StudySpec) -> StudySpec:
        """Return a space with what it left to the beginning of the study: learner, processes, drawn seeds."""
        if spec.environment.process == "auto" and self.spec["environment"].get("process") == "own":
            spec = spec.model_copy(update={"environment": spec.environment.model_copy(update={"process": "own"})})
        if spec.learner == "auto":
            spec = spec.model_copy(update={"learner": self.spec.get("learner", "auto")})
        seed = (self.spec.get("holdup") or {}).get("seed")
        if spec.holdup is not None and seed is not None and spec.holdup.seed in (None, seed):
            spec = spec.with_seed(seed)
        return spec


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
    space_file = _Entry("space.yaml")
    """The space as the person wrote it."""
    packed_records = _Entry("records.jsonl.xz")
    """The records of a packed study."""
    optuna_journal = _Entry("optuna.journal")
    """Where `optuna-dashboard` finds the trials of a study without a database for them."""
    mirror_log = _Entry("mirror.log")
    """What the mirror process had to say."""
    tensorboard = _Entry("tensorboard")
    """Event files, a folder for each trial. That it is there says that the study keeps them."""
    table = _Entry("trials.csv")
    certificate = _Entry("certificate.json")
    """Of a hold-up study."""
    certificate_page = _Entry("certificate.md")
    checkpoints = _Entry("checkpoints")
    """One folder per trial with its final policy."""
    tracebacks = _Entry("tracebacks")
    """What Ray wrote about each attempt that failed: `trial_00003_1.txt`, trial and attempt."""
    report = _Entry("report")
    """The report, made on request: a page, tables and figures."""
    clips = _Entry("clips")
    """Films of policies, made on request: `best.mp4`, `trial_00007.mp4`."""

    @property
    def records(self) -> Path:
        """The records, JSON lines; those of a packed study are compressed."""
        file = self.path / "records.jsonl"
        return self.packed_records if self.packed_records.exists() and not file.exists() else file

    def checkpoint(self, trial: int) -> Path:
        """Return the folder of the final policy of `trial`."""
        return self.checkpoints / f"trial_{trial:05d}"

    def exists(self) -> bool:
        """Return whether a study was started here.

        Raises:
            RecordError: The folder may not be looked into.
        """
        with usable(self.path, "readable", _OTHER_FOLDER):
            return self.identity_file.exists()

    def prepare(self) -> None:
        """Make an empty folder for a new study; only its owner may look inside (a tracking URI can hold a password).

        What a first start that recorded nothing has left is no obstacle.

        Raises:
            RecordError: The folder holds something already, or cannot be written.
        """
        with usable(self.path, "writable", _OTHER_FOLDER):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_plain(self.path)
            entries = {entry.name for entry in self.path.iterdir() if entry.suffix != DRAFT} - {LOCK}
            if self.tensorboard.is_dir() and not any(self.tensorboard.iterdir()):
                entries.discard(self.tensorboard.name)
            if entries:
                way = "Restore study.json from a backup to resume, or choose" if self.records.exists() else "Choose"
                rule, got = "a new study needs an empty folder", f"one with {', '.join(sorted(entries)[:5])}"
                raise RecordError(where=str(self.path), rule=rule, got=got, fix=f"{way} another --name or --out.")
            if self.path.stat().st_mode & 0o077:  # it was there before
                self.path.chmod(0o700)

    def make_tensorboard(self) -> None:
        """Make the folder of event files, if it is not there: from now on whoever runs the study keeps them.

        Raises:
            RecordError: It cannot be made.
        """
        fix = "Check the permissions, or remove what is in its place."
        with usable(self.tensorboard, "a folder that can be written", fix):
            self.tensorboard.mkdir(mode=0o700, exist_ok=True)

    def write(self, identity: StudyIdentity, space_text: str) -> None:
        """Write identity and space file of a new study, or what a resume changes of them; the folder must be locked.

        The identity comes first: a folder with a space file and no identity is a person's own, and `prepare` refuses
        it. A resume writes a space file that a kill in between has left out, and leaves one that is there.

        Raises:
            RecordError: The folder cannot be written.
        """
        with usable(self.path, "writable", "Free some space, check its permissions, or choose another --out."):
            if not self.identity_file.exists() or self.identity() != identity:
                write_atomically(self.identity_file, msgspec.json.format(msgspec.json.encode(identity), indent=1))
            if space_text and not self.space_file.exists():
                write_atomically(self.space_file, space_text)
            sync(self.path.parent)

    def forget(self) -> None:
        """Remove the files of a study that recorded nothing, and the folder if nothing else is in it."""
        for file in (file for pattern in _OWN for file in self.path.glob(pattern)):
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
        if not self.exists():
            rule, got = "must be the folder of a study", "none (study.json is missing)"
            fix = "Restore it from a backup." if self.records.exists() else meant_by(self.path)
            raise RecordError(where=str(self.path), rule=rule, got=got, fix=fix)
        where, rule, got, fix = str(self.identity_file), "must be a study's identity", "", RESTORE
        try:
            with usable(self.identity_file, "a file that you can read", RESTORE):
                content = msgspec.json.decode(self.identity_file.read_bytes(), type=dict[str, Any])
            if (found := content.get("format")) == FORMAT:
                return msgspec.convert(content, StudyIdentity)
            rule, got = f"this version reads format {FORMAT}", str(found)
            fix = "Use the version of this project that wrote it."
        except RecordError:
            raise
        except (ValueError, RecursionError) as error:
            got = f"a damaged file ({error})"
        raise RecordError(where=where, rule=rule, got=got, fix=fix)

    def check_unpacked(self) -> None:
        """Refuse a packed study, which can be read only.

        Raises:
            RecordError: It is packed; says how to go on with it.
        """
        if self.records.suffix == ".xz":
            fix = f"Copy the folder, run `xz -d {self.packed_records.name}` in the copy, and use that."
            raise RecordError(where=str(self.records), rule="a packed study can be read only", fix=fix)

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


def meant_by(path: Path) -> str:
    """Return what to give in place of a path where no study is, as a sentence."""
    if (path.parent / "study.json").is_file():
        return f"Give its folder, {path.parent}."
    inside = sorted(str(file.parent) for place in (path, path.parent) for file in place.glob("*/study.json"))
    return f"Give one of these studies: {', '.join(inside[:8])}." if inside else "Give for instance studies/quickstart."


@contextlib.contextmanager
def usable(place: Path, rule: str, fix: str) -> Iterator[None]:
    """Turn an error of the file system into one that says what must hold, such as `must be writable`."""
    try:
        yield
    except OSError as error:
        raise RecordError(where=str(place), rule=f"must be {rule} ({error.strerror})", fix=fix) from error


def unpack_policy(archive: bytes, folder: Path) -> None:
    """Unpack a policy that a trial has packed, an RLModule checkpoint, into a folder, all of it or nothing.

    It is on the disk before this returns: the record that follows says for ever that it is there.

    Raises:
        OSError: The folder cannot be written.
    """
    draft = folder.with_name(f".{folder.name}{DRAFT}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    # Not tar: Python 3.11.2, Debian 12's, has no filter that would keep its members within the folder.
    with zipfile.ZipFile(io.BytesIO(archive)) as content:
        content.extractall(draft)
    for path in (*draft.rglob("*"), draft):
        sync(path)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed before it had ended
    draft.rename(folder)
    for place in (folder.parent, folder.parent.parent):
        sync(place)
