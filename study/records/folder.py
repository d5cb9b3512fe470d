"""The study folder: every path in it, its identity, whether its files can be used, its table, and a copy to publish.

What a resume cannot trust it must not begin anew: each check is a `RecordError` that names the file and the way out.
"""

import contextlib
import csv
import io
import lzma
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from study.errors import RecordError
from study.metrics import OF_TRIALS
from study.records.files import DRAFT, LOCK, check_plain, sync, usable, write_atomically
from study.records.ledger import TrialRow, ledger_of
from study.records.records import RESTORE, Moment, StudyOpened, Whole, read_lines, written_line
from study.space.parsing import Source, parse_space
from study.space.spec import StudySpec, as_of_now
from study.text import csv_cell, mask_arguments, printable

FORMAT = 1
"""Version of the folder's layout."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAME_RULE = "must consist of letters, digits, '.', '_' and '-'"
"""Names of studies: they become folders, MLflow experiments and words of command lines."""
_OWN = ("study.json", "space.yaml", "records.jsonl", "mirror*", "optuna.journal*", ".*lock", f".*{DRAFT}")
"""What a study has in its folder before anything is recorded, as patterns."""
_OTHER_FOLDER = "Choose another --name or --out."


class StudyIdentity(Struct, frozen=True, kw_only=True):
    """What a study is, written at its start. Versions before 0.22.0 could name a database for Optuna, too."""

    format: Whole
    study_id: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    """Random; names the study in MLflow and Optuna."""
    name: Annotated[str, Meta(pattern=rf"\A{NAME.pattern}\Z")]
    created: Moment
    tracking_uri: str
    space: str
    spec: dict[str, Any]
    """The complete spec, defaults included."""
    digest: str
    """`StudySpec.digest()` of `spec`."""

    def parse(self) -> StudySpec:
        """Return the spec."""
        return parse_space(Source(name=f"{self.name}/study.json", content=as_of_now(self.spec)[0]))

    def settle(self, spec: StudySpec) -> StudySpec:
        """Return a space with what it left to the beginning of the study: learner, processes, drawn seeds."""
        if spec.environment.process == "auto" and self.spec["environment"].get("process") == "own":
            spec = spec.having(environment={"process": "own"})
        if spec.learner == "auto":
            spec = spec.having(learner=self.spec.get("learner", "auto"))
        seed = (self.spec.get("holdup") or {}).get("seed")
        if spec.holdup is not None and seed is not None and spec.holdup.seed in (None, seed):
            spec = spec.with_seed(seed)
        return spec


class StudyFolder:
    """All paths of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity_file, self.space_file, self.table = path / "study.json", path / "space.yaml", path / "trials.csv"
        self.certificate, self.certificate_page = path / "certificate.json", path / "certificate.md"
        self.packed_records = path / "records.jsonl.xz"
        self.optuna_journal, self.mirror_log = path / "optuna.journal", path / "mirror.log"
        self.tensorboard = path / "tensorboard"
        """Event files, a folder for each trial. That it is there says that the study keeps them."""
        self.checkpoints, self.tracebacks = path / "checkpoints", path / "tracebacks"
        """The final policy of each trial; what Ray wrote about each attempt that failed."""
        self.report, self.clips = path / "report", path / "clips"

    @property
    def records(self) -> Path:
        """The records, JSON lines; those of a packed study are compressed."""
        file = self.path / "records.jsonl"
        return self.packed_records if self.packed_records.exists() and not file.exists() else file

    def checkpoint(self, trial: int) -> Path:
        """Return the folder of the final policy of `trial`."""
        return self.checkpoints / f"trial_{trial:05d}"

    def exists(self) -> bool:
        """Return whether a study was started here."""
        with usable(self.path, "readable", _OTHER_FOLDER):
            return self.identity_file.exists()

    def prepare(self, *, fix: str = f"{_OTHER_FOLDER} To resume a study, restore its study.json.") -> None:
        """Make an empty folder for a new study; only its owner may look inside (a tracking URI can hold a password).

        `fix` is what to do where something is in it.
        """
        with usable(self.path, "writable", _OTHER_FOLDER):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_plain(self.path)
            if entries := {entry.name for entry in self.path.iterdir() if entry.suffix != DRAFT} - {LOCK}:
                rule, got = "a study needs an empty folder", f"one with {', '.join(sorted(entries)[:5])}"
                raise RecordError(where=str(self.path), rule=rule, got=got, fix=fix)
            self.path.chmod(0o700)  # where it was there before

    def make_tensorboard(self) -> None:
        """Make the folder of event files, if it is not there: from now on whoever runs the study keeps them."""
        with usable(self.tensorboard, "a folder that can be written", "Remove what is in its place."):
            self.tensorboard.mkdir(mode=0o700, exist_ok=True)

    def write(self, identity: StudyIdentity, space_text: str) -> None:
        """Write identity and space file of a new study, or what a resume changes of them; the folder must be locked.

        The identity comes first: a folder with a space file alone is a person's own. A resume writes a space file that
        a kill in between has left out.
        """
        with usable(self.path, "writable", "Free some space, check its permissions, or choose another --out."):
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
        """Read the study's identity. Every command on a study begins with it, and so with the check of its files."""
        check_plain(self.path)
        if not self.exists():
            rule, got = "must be the folder of a study", "none (study.json is missing)"
            fix = "Restore it from a backup." if self.records.exists() else meant_by(self.path)
            raise RecordError(where=str(self.path), rule=rule, got=got, fix=fix)
        try:
            content = msgspec.json.decode(self.identity_file.read_bytes(), type=dict[str, Any])
            if content.get("format") == FORMAT:
                return msgspec.convert(content, StudyIdentity)
            got, fix = f"format {content.get('format')}", "Use the version of this project that wrote it."
        except (OSError, ValueError, RecursionError) as error:
            got, fix = f"a damaged file ({error})", RESTORE
        rule = f"must be a study's identity of format {FORMAT}"
        raise RecordError(where=str(self.identity_file), rule=rule, got=got, fix=fix)

    def check_unpacked(self) -> None:
        """Refuse a packed study, which can be read only."""
        if self.records == self.packed_records:
            fix = f"Copy the folder, run `xz -d {self.records.name}` in the copy, and use that."
            raise RecordError(where=str(self.records), rule="a packed study can be read only", fix=fix)

    def check_code(self, own_code: Iterable[str]) -> None:
        """Refuse modules and scripts (`StudySpec.own_code`) that would be looked for in this folder: it runs none."""
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


def unpack_policy(archive: bytes, folder: Path) -> None:
    """Unpack a policy that a trial has packed, an RLModule checkpoint, onto the disk, all of it or nothing."""
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


# --- trials.csv -------------------------------------------------------------------------------------------------------

_LEADING = (
    *("trial", "status", "num_env_runners", "train_batch_size", "lr", "seed", "env_steps_per_s", "wall_time_s"),
    *("final_return", "score", "execution", "timing", "engine"),
)
"""The columns that come first; the other parameters and metrics follow."""
_OF_ROW = ("trial", "status", "seed", "execution", "timing", "engine", "attempt", "num_cpus", "checkpoint")


def table_row(row: TrialRow) -> dict[str, Any]:
    """Return what a trial was and how far it came, by name; None is a quantity that does not exist."""
    is_settled = not row.provisional or row.status != "running"  # else the whole trial has yet to settle the label
    return {
        **dict.fromkeys((*_LEADING, *row.setting, *OF_TRIALS)),
        **row.summary,
        **row.columns(),
        **row.setting,
        **{"max_iterations": row.iterations, "baseline": row.anchor, "stage": row.stage},
        **{"variant": row.variant if row.stage else None, "digest": row.digest or None},
        "stands_for_runners": row.scale,
        **{name: getattr(row, name) for name in _OF_ROW},
        "timing": row.timing if is_settled else None,
        "timing_reason": (row.timing_reason if is_settled else f"not settled yet: {row.timing_reason}") or None,
        "reason": row.reason or None,
    }


def write_table(path: Path, rows: Iterable[TrialRow]) -> None:
    """Write one line per trial, by its number; an empty cell is a quantity that does not exist."""
    lines = [table_row(row) for row in sorted(rows, key=lambda row: row.trial)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = dict.fromkeys(name for line in lines for name in line)
    for cells in (names, *([line.get(name) for name in names] for line in lines)):
        writer.writerow([csv_cell(printable(cell)) if isinstance(cell, str) else cell for cell in cells])
    write_atomically(path, text.getvalue())


# --- a copy for publication -------------------------------------------------------------------------------------------

_FOLDERS = re.compile(r"[^\s=:]*/")
"""The folders of a path."""


def pack(folder: StudyFolder, target: Path) -> StudyFolder:
    """Copy a study to `target`, where it can be read, analysed and verified, but not resumed.

    The words of command lines and the tracking URI lose their folders. Host names and the reasons of failures stay as
    they were recorded.

    Raises:
        RecordError: There is no study, its records cannot be trusted, its arguments hold a secret, or the target holds
            something already or cannot be written.
    """
    identity, packed = folder.identity(), StudyFolder(target)
    if any(shown != identity.spec[name] for name, shown in mask_arguments(identity.spec).items()):
        # Masked, it would be another study than the certified one.
        rule = "arguments must hold no secret, because a copy is published"
        fix = "Publish the study's report or certificate, or let the environment of a new study read it from a file."
        raise RecordError(where=str(folder.identity_file), rule=rule, fix=fix)
    rows = ledger_of(folder.records).rows.values()
    try:
        space = folder.space_file.read_text()
        packed.prepare(fix="Name another folder for the copy.")
        # The default MLflow: a published study is mirrored to nowhere until somebody does so.
        public = {"tracking_uri": "sqlite:///mlflow.db", "space": Path(identity.space).name}
        packed.write(structs.replace(identity, **public), space)
        with lzma.open(packed.packed_records, "wb", preset=9) as sink:
            for line in read_lines(folder.records):
                record = line.record
                if isinstance(record, StudyOpened):
                    command = [_FOLDERS.sub("", word) for word in record.provenance.get("command") or []]
                    record = structs.replace(record, provenance={**record.provenance, "command": command})
                sink.write(written_line(record, seq=line.seq, moment=line.time))
        write_table(packed.table, rows)
    except (OSError, UnicodeDecodeError) as error:
        rule, fix = f"the copy could not be written ({error})", "Free some space, remove it, then pack again."
        raise RecordError(where=str(target), rule=rule, fix=fix) from error
    return packed
