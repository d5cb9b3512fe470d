"""What a study remembers: one append-only file of JSON lines, the only truth, and its one writer.

A line is a head, with a consecutive `seq`, and a record. What it holds is of the types declared here, or the file is
refused with the number of the line.
"""

import contextlib
import hashlib
import json
import lzma
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, structs

from study.errors import RecordError
from study.machine.load import NodeLoad
from study.records.files import sync, usable
from study.space.parameters import SCALE, Value
from study.space.settings import Variant
from study.space.spec import Execution
from study.text import one_line

SCHEMA = 1
"""Version of the line format; lines of another one are refused."""
RESTORE = "Restore the file from a backup, or start a new study with --name."
"""What to do about records that cannot be trusted."""

Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""Exact as a float, too."""
Number = Whole | float
"""JSON writes 1.0 as 1, and both stay what they are."""
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds since the epoch, as far as a calendar goes."""
Status = Literal["finished", "failed", "interrupted"]
Timing = Literal["measured", "oversubscribed", "emulated", "tainted"]
Metrics = dict[str, Number | None]

if TYPE_CHECKING:  # what decoding leaves: a return that is no number is `null` in JSON, and NaN once it is read
    Returns = list[float]
else:
    Returns = Annotated[list[float | None], Meta(min_length=1)]


# --- what a trial is to be --------------------------------------------------------------------------------------------


class TrialRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial before it runs: everything about it that no sampler may choose. Decisions keep it in this order."""

    stage: str | None = None
    """Stage of a hold-up study, or `throughput`."""
    num_env_runners: int
    seed: int
    setting: Mapping[str, Value] | None = None
    """A value for everything but the scale, rules included; None: the sampler proposes."""
    name: str | None = None
    """Of a baseline, an arm or a cell, for people and for the certificate."""
    variant: Variant = "study"
    iterations: int | None = None
    """Limit of a short trial; None is the budget of the space."""
    group: int | None = None
    """Number of a trial that is timed with nothing beside it."""
    num_learners: int | None = None
    """Learner processes; None for the space's."""
    first_episode: int = 0
    """Number of the first evaluation episode that it plays."""
    given: Mapping[str, Value] = {}
    """The tuned parameters of a trial of a grid; else the sampler proposes them."""
    trial: int = -1
    """Number in the study, from 0; `numbered` gives it."""
    index_at_scale: int = 0
    """Number among the trials of its scale that the sampler proposes, from 0."""


def numbered(requests: Iterable[TrialRequest]) -> tuple[TrialRequest, ...]:
    """Return the requests, which are in their order, with their numbers and those among the proposals of a scale."""
    proposed: Counter[int] = Counter()
    result = []
    for trial, request in enumerate(requests):
        result.append(structs.replace(request, trial=trial, index_at_scale=proposed[request.num_env_runners]))
        proposed[request.num_env_runners] += request.setting is None
    return tuple(result)


def digest_of(setting: Mapping[str, Value]) -> str:
    """Return the identity of a setting without its scale: equal for equal values, whatever their order."""
    canonical = {name: float(value) for name, value in setting.items()}  # 1 and 1.0 are one value
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]


# --- what is recorded -------------------------------------------------------------------------------------------------


def _snake(name: str) -> str:
    return re.sub(r"\B(?=[A-Z])", "_", name).lower()


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag=_snake):
    """Base of all records."""

    durable: ClassVar[bool] = False
    """Whether the line must be on the disk, not only in the page cache, before work goes on."""

    @property
    def kind(self) -> str:
        """Its name in the file."""
        return str(self.__struct_config__.tag)


class OfTrial(Record, frozen=True):
    """Base of the records of one attempt of a trial."""

    trial: Whole
    """Number in the plan, from 0."""
    attempt: Whole
    """1, or more when an earlier attempt was interrupted."""


class StudyOpened(Record, frozen=True):
    """A driver began to work on the study: on this cluster, with so many trials planned, the finished ones included."""

    durable: ClassVar[bool] = True
    session: Whole
    """1 for the first driver, 2 for the first resume, …"""
    num_trials: Whole
    cluster: dict[str, Any]
    provenance: dict[str, Any]
    space_digest: str = ""
    """`StudySpec.digest` of the study: what it was registered with. Empty before version 0.17.0."""


class TrialStarted(OfTrial, frozen=True, forbid_unknown_fields=False):
    """A trial was given to Ray Tune. Versions before 0.15.0 wrote what it was predicted to cost, too."""

    # Durable: else a power cut could take it back after its first values have gone to MLflow.
    durable: ClassVar[bool] = True
    seed: Whole
    setting: dict[str, Number]
    """All parameters as asked, the scale included."""
    proposed: dict[str, Number]
    """The tuned parameters as the sampler proposed them, before rounding to a runnable value."""
    iterations: Whole | None
    anchor: str | None
    """`TrialRequest.name`."""
    optuna_number: Whole | None
    """None for a trial that Optuna does not know of: it chose nothing there."""
    num_cpus: Whole
    execution: Execution = "real"
    stage: str | None = None
    rule: dict[str, Number] = {}
    """In a hold-up or throughput study the complete setting as it is kept: no scale, rules in place of numbers."""
    digest: str = ""
    variant: str = "study"
    scale: Whole | None = None
    """Runners that the trial stands for where it is not `setting`'s, as records before 0.14.0 have it."""
    first_episode: Whole = 0

    @property
    def num_env_runners(self) -> int:
        """The scale."""
        return int(self.setting[SCALE]) if self.scale is None else self.scale

    def __post_init__(self) -> None:
        if SCALE not in self.setting:
            raise ValueError(f"no {SCALE} in setting")


class TrialBuilt(OfTrial, frozen=True):
    """All processes of a trial are up."""

    startup_time_s: float | None
    """None where the trial went on in the processes of another one."""
    effective: dict[str, Any]
    """Configuration read back from the built algorithm."""
    processes_per_node: dict[str, Whole]
    timing: Timing | None = None
    """None until the driver, which knows the cluster, has labelled it."""
    timing_reason: str = ""
    provisional: bool = False
    """Whether the CPU pressure of the whole trial will decide between `measured` and `oversubscribed`."""
    placement: list[dict[str, Any]] = []
    """Every process of the trial, `Place.to_json()`: what it is, its runners, its node, the CPUs it reserves."""


class Iteration(OfTrial, frozen=True):
    """One training iteration, from 1, with the environment steps and the seconds of training so far.

    A metric is None where the quantity does not exist, here and in the summary of a trial.
    """

    iteration: Whole
    env_steps: Whole
    wall_time_s: float
    metrics: Metrics


class Evaluation(OfTrial, frozen=True):
    """One evaluation, with the steps and seconds of training before it."""

    iteration: Whole
    env_steps: Whole
    wall_time_s: float
    progress: float
    """Share of the budget used, in [0, 1]."""
    returns: Returns
    """Return of each episode, in the order of the evaluation seeds."""
    num_cut: Whole
    """Episodes that did not end and were cut at the limit."""
    eval_time_s: float

    @property
    def mean(self) -> float:
        """Mean of the returns."""
        return sum(self.returns) / len(self.returns)

    def __post_init__(self) -> None:
        if None in self.returns:
            structs.force_setattr(self, "returns", [math.nan if each is None else each for each in self.returns])


class TrialEnded(OfTrial, frozen=True):
    """The end of an attempt. `finished` and `failed` end the trial; `interrupted` leaves it to a resume."""

    durable: ClassVar[bool] = True
    status: Status
    reason: str
    summary: Metrics
    checkpoint: str | None
    """Folder of the final policy, relative to the study folder."""
    timing: Timing | None = None
    """The label that stays; None when the trial was never built."""
    timing_reason: str = ""
    node_loads: list[NodeLoad] = []
    """What else each node of the trial did in its timed part; empty when that is not known."""
    last_seen: Moment | None = None
    """Seconds since the epoch of the last line about an attempt that a killed driver left; None: it ended with this."""


class StageDecided(Record, frozen=True, forbid_unknown_fields=False):
    """A hold-up study took a decision, from evidence. Versions before 0.13.0 wrote a hash of the lines before it."""

    durable: ClassVar[bool] = True
    number: Whole
    stage: str
    phase: str
    """Which part of the stage, such as `race 2`."""
    num_looks: Whole
    """Trials of the study that had ended when it was taken."""
    kept: list[str]
    """Digests of the settings that go on, best first, and of those that do not."""
    dropped: list[str]
    evidence: dict[str, Any]
    requests: list[TrialRequest]
    next_stage: str | None
    """Stage of those trials; None at the end of the protocol."""
    protocol: Whole


class SettingsFrozen(Record, frozen=True):
    """The settings, by digest, that the confirmation will judge; test seeds are refused before this is on disk."""

    durable: ClassVar[bool] = True
    winner: str
    settings: dict[str, dict[str, Number]]


class StudyClosed(Record, frozen=True):
    """The driver ended on its own terms."""

    durable: ClassVar[bool] = True
    session: Whole
    reason: Literal["complete", "until", "stopped", "time budget", "error"]
    detail: str = ""


# --- lines ------------------------------------------------------------------------------------------------------------


class _Head(Struct, forbid_unknown_fields=True):
    """How every line begins."""

    schema: Whole
    seq: Whole
    time: Moment


class Line(Struct, frozen=True, kw_only=True):
    """A record with its place in the file."""

    seq: int
    time: float
    """Seconds since the epoch."""
    record: Record
    end: int
    """Offset of the byte after the line."""


_BEGINNING, _KIND = b'{"schema":', b'"kind":'
_READ_HEAD = msgspec.json.Decoder(_Head)
_READ_RECORD: msgspec.json.Decoder[Record] = msgspec.json.Decoder(
    StudyOpened
    | (TrialStarted | TrialBuilt | Iteration | Evaluation | TrialEnded)
    | (StageDecided | SettingsFrozen | StudyClosed)
)
_WRITE = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())
"""Numbers and arrays of NumPy become plain ones."""


def written_line(record: Record, *, seq: int, moment: float) -> bytes:
    """Return the line of a record, its number and time included."""
    head, body = _WRITE.encode(_Head(SCHEMA, seq, moment)), _WRITE.encode(record)
    return head[:-1] + b"," + body[1:] + b"\n"


def _parsed(raw: bytes, seq: int, end: int) -> Line:
    """Return the record in a line, which must be complete and have this number, else a ValueError says why."""
    at = raw.find(_KIND)
    head = _READ_HEAD.decode(raw[:at].rstrip(b", ") + b"}")
    if head.schema != SCHEMA:
        raise ValueError(f"this version reads schema {SCHEMA}, not {head.schema}")
    if head.seq != seq or not raw.endswith(b"\n"):
        raise ValueError(f"`seq` must be {seq}: lines are missing, doubled or cut")
    return Line(seq=seq, time=head.time, record=_READ_RECORD.decode(b"{" + raw[at:]), end=end)


def read_lines(path: Path, *, offset: int = 0, first_seq: int = 0) -> Iterator[Line]:
    """Yield the complete lines of a records file, perhaps packed; a missing one has none, a torn last one is left out.

    The first of them is of number `first_seq` and begins at the byte `offset`.

    Raises:
        RecordError: A line is not a record of a known schema, the last one not even the beginning of one, or one is
            missing; or the file cannot be read.
    """
    if not path.exists():
        return
    try:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
            file.seek(offset)
            for seq, raw in enumerate(file, start=first_seq):
                if not raw.endswith(b"\n"):
                    torn = raw.rstrip(b"\0") if seq else raw  # a power cut leaves zeros in place of what was lost
                    if _BEGINNING.startswith(torn[: len(_BEGINNING)]):
                        return
                offset += len(raw)
                try:
                    line = _parsed(raw, seq, offset)
                except (ValueError, RecursionError) as error:
                    rule = "must be a record with schema, seq, time, kind and the fields of its kind, each of its type"
                    got = f"{raw[:60]!r} ({one_line(str(error), 200)})"
                    raise RecordError(where=f"{path}: line {seq + 1}", rule=rule, got=got, fix=RESTORE) from error
                yield line
    except (OSError, EOFError, lzma.LZMAError) as error:
        rule, fix = f"must be a complete file that can be read ({error})", "Check its permissions, or copy it again."
        raise RecordError(where=str(path), rule=rule, fix=fix) from error


# --- the writer -------------------------------------------------------------------------------------------------------

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux's goes on while the machine sleeps


class RecordLog(contextlib.AbstractContextManager["RecordLog"]):
    """The records file, open for appending by its one driver. Use as a context manager.

    Each line is written by one `write` and carries a consecutive number, so that a line torn by a kill, a line lost in
    the middle and a file of somebody else can be distinguished.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`, creating it when missing, and cut off a last line that a kill tore.

        Raises:
            RecordError: The file cannot be trusted; it is left as it is.
        """
        self.path, self._writing = path, threading.Lock()
        self._closed = False
        self._next_seq, self._end, now = 0, 0, time.time()
        for line in read_lines(path):
            self._next_seq, self._end, now = line.seq + 1, line.end, max(now, line.time)
        self._began = now - time.clock_gettime(_CLOCK)
        with usable(path, "a file that can be written", "Correct its permissions, or free some space."):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, self._end)
            sync(path.parent)
        self._inode = os.fstat(self._file).st_ino

    def now(self) -> float:
        """Return the time of records: seconds since the epoch as the session began, whatever becomes of the clock.

        It never goes back: where the clock was set back between two sessions, the second goes on at the last record.
        """
        return self._began + time.clock_gettime(_CLOCK)

    def append(self, record: Record) -> Line:
        """Write one record; on the disk before this returns, if it is of a durable kind.

        Raises:
            RecordError: The disk is full or failing; the file ends with the last complete line. Or somebody else has
                written to it, or the session has ended: then nothing is written.
        """
        with self._writing:
            self._check_alone()
            moment = self.now()
            raw = written_line(record, seq=self._next_seq, moment=moment)
            try:
                if os.write(self._file, raw) != len(raw):
                    raise OSError(28, "No space left on device")
                if record.durable:
                    os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):  # else the next opening cuts the torn line off
                    os.ftruncate(self._file, self._end)
                rule = f"the record could not be written ({error.strerror})"
                fix = "Free some space, then run the same command with --resume; nothing recorded so far is lost."
                raise RecordError(where=str(self.path), rule=rule, fix=fix) from error
            line = Line(seq=self._next_seq, time=moment, record=record, end=self._end + len(raw))
            self._end, self._next_seq, self._closed = line.end, line.seq + 1, isinstance(record, StudyClosed)
        return line

    def _check_alone(self) -> None:
        """Refuse to write behind another driver, whatever became of the lock, or, in a late thread, behind the end."""
        found, rule = "no file", f"only one driver may write, and this one left it at {self._end} bytes"
        with contextlib.suppress(OSError):
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))  # else a file server's last answer would do
            status = self.path.stat()
            found = f"{status.st_size} bytes" if status.st_ino == self._inode else "another file"
        if self._closed:
            rule, found = "a session that has ended must write no more", "a further record"
        elif found == f"{self._end} bytes":
            return
        fix = "Let one driver alone go on, with --resume; nothing recorded is lost."
        raise RecordError(where=str(self.path), rule=rule, got=found, fix=fix)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
