"""What a study remembers: one append-only file of JSON lines, the only truth. May import no Ray, torch, MLflow, Optuna.

Everything else (Optuna's journal, MLflow, tables) is derived from this file. Each line carries a consecutive `seq`; one
driver at a time (`study.records.lock`) writes them (`study.records.log`).
"""

import lzma
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Annotated, Any, ClassVar, Literal

import msgspec
import orjson

from study.errors import RecordError
from study.hosts.load import NodeLoad
from study.records.shapes import Moment, Number, Whole, read
from study.space.spec import Execution

SCHEMA = 1
"""Version of the line format; lines of another one are refused."""

MAX_LINE = 64_000_000
"""Bytes of a line: a decision on a hundred thousand trials has fewer, and a file that never ends a line has more."""

RESTORE = "Restore the file from a backup, or start a new study with --name."
"""What to do about records that cannot be trusted."""
_BEGINNING = b'{"schema":'
"""How every line begins."""

Status = Literal["finished", "failed", "interrupted"]
Timing = Literal["measured", "oversubscribed", "emulated", "tainted"]
Metrics = dict[str, Number | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of all records."""

    kind: ClassVar[str]
    durable: ClassVar[bool] = False
    """Whether the line must be on the disk, not only in the page cache, before work goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOpened(Record):
    """A driver began to work on the study."""

    kind: ClassVar[str] = "study_opened"
    durable: ClassVar[bool] = True
    session: Whole
    """1 for the first driver, 2 for the first resume, …"""
    num_trials: Whole
    """Trials planned, the finished ones included."""
    cluster: dict[str, Any]
    """Shape of the Ray cluster: `ClusterShape.to_json()`."""
    provenance: dict[str, Any]
    """Commit, versions, hardware, scheduler job of this driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted(Record):
    """A trial was given to Ray Tune."""

    kind: ClassVar[str] = "trial_started"
    # Else a power cut could take it back after its first values have gone to MLflow, and the number be given twice.
    durable: ClassVar[bool] = True
    trial: Whole
    """Number in the plan, from 0; the identity of the trial."""
    attempt: Whole
    """1, or more when an earlier attempt was interrupted."""
    seed: Whole
    setting: dict[str, Number]
    """All parameters as asked, the scale included."""
    proposed: dict[str, Number]
    """The tuned parameters as the sampler proposed them, before rounding to a runnable value."""
    iterations: Whole | None
    """Limit of training iterations, when the space gives one."""
    anchor: str | None
    """Name of the baseline, arm or base cell that this trial comes from."""
    optuna_number: Whole | None
    """None for a trial that Optuna does not know of: it chose nothing there."""
    num_cpus: Whole
    """CPUs reserved."""
    execution: Execution = "real"
    """How the trial runs."""
    stage: str | None = None
    """Stage of a hold-up study, or `throughput`."""
    rule: dict[str, Number] = field(default_factory=dict)
    """In a hold-up or throughput study the complete setting as it is kept: no scale, rules in place of numbers."""
    digest: str = ""
    """Identity of `rule`."""
    variant: str = "study"
    """`study`, `stock` or `measured`; see `study.space.variants`."""
    scale: Whole | None = None
    """Runners that the trial stands for, where it is not `setting`'s: before 0.14.0 one of RLlib's runners had the
    lanes of 46."""
    predicted_cpu_s: float | None = None
    """In a hold-up study: CPU-seconds of training by the cost model of the calibration; a prediction."""
    first_episode: Whole = 0
    """Number of the first evaluation episode that the trial plays: above 0 in the confirmation of a hold-up study, in
    which every run plays episodes that no other trial plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBuilt(Record):
    """All processes of a trial are up."""

    kind: ClassVar[str] = "trial_built"
    trial: Whole
    attempt: Whole
    startup_time_s: float | None
    """None where the trial went on in the processes of another one."""
    effective: dict[str, Any]
    """Configuration read back from the built algorithm."""
    processes_per_node: dict[str, Whole]
    """Node address -> processes of this trial there (main, runners and learners)."""
    timing: Timing
    timing_reason: str
    """Why the timing is labelled so."""
    provisional: bool = False
    """Whether the CPU pressure of the whole trial will decide between `measured` and `oversubscribed`."""
    placement: list[dict[str, Any]] = field(default_factory=list)
    """Every process of the trial, `Place.to_json()`: what it is, its runners, its node, the CPUs it reserves. Empty in
    lines of a time when only their number was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration(Record):
    """One training iteration."""

    kind: ClassVar[str] = "iteration"
    trial: Whole
    attempt: Whole
    iteration: Whole
    """From 1."""
    env_steps: Whole
    """Environment steps trained on so far."""
    wall_time_s: float
    """Training seconds so far."""
    metrics: Metrics
    """Metrics of grain `iteration` by name; None where the quantity does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Record):
    """One evaluation."""

    kind: ClassVar[str] = "evaluation"
    trial: Whole
    attempt: Whole
    iteration: Whole
    env_steps: Whole
    wall_time_s: float
    progress: float
    """Share of the budget used, in [0, 1]."""
    returns: Annotated[list[float], msgspec.Meta(min_length=1)]
    """Return of each episode, in the order of the evaluation seeds; a mean is taken of them."""
    num_cut: Whole
    """Episodes that did not end and were cut at the limit."""
    eval_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded(Record):
    """The end of an attempt. `finished` and `failed` end the trial; `interrupted` leaves it to a resume."""

    kind: ClassVar[str] = "trial_ended"
    durable: ClassVar[bool] = True
    trial: Whole
    attempt: Whole
    status: Status
    reason: str
    """Empty when finished."""
    summary: Metrics
    """Metrics of grain `trial` by name; None where the quantity does not exist."""
    checkpoint: str | None
    """Folder of the final policy, relative to the study folder."""
    timing: Timing | None = None
    """The label that stays; None when the trial was never built."""
    timing_reason: str = ""
    node_loads: list[NodeLoad] = field(default_factory=list)
    """What else each node of the trial did in its timed part; empty when that is not known."""
    last_seen: Moment | None = None
    """Seconds since the epoch of the last line about an attempt that a killed driver left; None: it ended with this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDecided(Record):
    """A hold-up study took a decision: on what evidence, and which trials follow from it."""

    kind: ClassVar[str] = "stage_decided"
    durable: ClassVar[bool] = True
    number: Whole
    """From 0."""
    stage: str
    """Stage whose trials led to it."""
    phase: str
    """Which part of the stage, such as `race 2`; the decisions of a study are in the order of their phases."""
    num_looks: Whole
    """Trials of the study that had ended when it was taken."""
    kept: list[str]
    """Digests of the settings that go on, best first."""
    dropped: list[str]
    """Digests of the settings that do not."""
    evidence: dict[str, Any]
    """The numbers behind it."""
    cancelled: list[Whole]
    """Trials that were asked for before and are not run, for lack of budget."""
    requests: list[dict[str, Any]]
    """The trials that follow, in their order: `Request.to_json()`."""
    next_stage: str | None
    """Stage of those trials; None at the end of the protocol."""
    protocol: Whole
    """Version of the protocol that took it: another one may decide otherwise on the same evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFrozen(Record):
    """The settings that the confirmation will judge; test seeds are refused before this is on disk."""

    kind: ClassVar[str] = "settings_frozen"
    durable: ClassVar[bool] = True
    winner: str
    """Digest."""
    settings: dict[str, dict[str, Number]]
    """Digest -> complete setting, of the winner and of every other arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyClosed(Record):
    """The driver ended on its own terms."""

    kind: ClassVar[str] = "study_closed"
    durable: ClassVar[bool] = True
    session: Whole
    reason: Literal["complete", "until", "stopped", "time budget", "error"]
    detail: str = ""


KINDS: MappingProxyType[str, type[Record]] = MappingProxyType(
    {
        record.kind: record
        for record in (
            StudyOpened,
            TrialStarted,
            TrialBuilt,
            Iteration,
            Evaluation,
            TrialEnded,
            StageDecided,
            SettingsFrozen,
            StudyClosed,
        )
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A record with its place in the file."""

    seq: int
    time: float
    """Seconds since the epoch."""
    record: Record
    end: int = field(compare=False)
    """Offset of the byte after the line."""


class _Head(msgspec.Struct):
    """What every line has beside the fields of its record."""

    schema: Whole
    seq: Whole
    time: Moment
    kind: str


_HEAD = _Head.__struct_fields__


def open_records(path: Path) -> IO[bytes]:
    """Open a records file for reading; a packed one as if it were not.

    Raises:
        RecordError: It may not be read, or is no file, but for instance a pipe that somebody would have to fill.
    """
    if not path.is_file():
        raise RecordError(where=str(path), rule="must be a file", got="something else", fix="Restore it from a backup.")
    try:
        return lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb")
    except OSError as error:
        where, rule = str(path), f"must be readable ({error.strerror})"
        raise RecordError(where=where, rule=rule, fix="Check its permissions.") from error


def raw_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines of an open records file, the last one perhaps torn.

    Raises:
        RecordError: A packed file is damaged, the file cannot be read, or a line does not end.
    """
    number = 0
    try:
        while raw := file.readline(MAX_LINE):
            if len(raw) == MAX_LINE:
                rule = f"a record has fewer than {MAX_LINE} bytes"
                raise RecordError(where=f"{path}: line {number + 1}", rule=rule, fix=RESTORE)
            number += 1
            yield raw
    except (EOFError, lzma.LZMAError) as error:
        where = str(path)
        rule, got = "must be a complete compressed file", f"one that is cut or damaged after line {number} ({error})"
        raise RecordError(where=where, rule=rule, got=got, fix="Copy it again.") from error
    except OSError as error:
        where, rule = str(path), f"must be readable ({error.strerror})"
        raise RecordError(where=where, rule=rule, fix="Check its permissions.") from error


def read_lines(path: Path, *, offset: int = 0, first_seq: int | None = 0) -> Iterator[Line]:
    """Yield the complete lines of a records file from byte `offset` on; a torn last line is not yielded.

    Args:
        path: The records file; a missing one has no lines.
        offset: Byte at which a line begins.
        first_seq: Number that the first line must have; None accepts any.

    Raises:
        RecordError: A line is not a record of a known schema, the last one not even the beginning of one, or one is
            missing.
    """
    if not path.exists():
        return
    expected = first_seq
    with open_records(path) as file:
        file.seek(offset)
        for number, raw in enumerate(raw_lines(file, path), start=1):
            offset += len(raw)
            where = f"{path}: line {number}" if first_seq == 0 else f"{path}: byte {offset - len(raw)}"
            if not raw.endswith(b"\n"):
                _check_torn(raw, where, first=offset == len(raw))
                return
            line = parse_line(raw, where, offset)
            if expected is not None:
                _check_seq(line, expected, where)
            expected = line.seq + 1
            yield line


def _check_seq(line: Line, expected: int, where: str) -> None:
    """Refuse a line that does not follow on the one before.

    Raises:
        RecordError: Its number is another one.
    """
    if line.seq != expected:
        got = f"{line.seq}: lines are missing or doubled"
        raise RecordError(where=where, rule=f"`seq` must be {expected}", got=got, fix=RESTORE)


def torn_bytes(path: Path, end: int) -> int:
    """Return the bytes of a torn line behind byte `end`, at which the last complete one ended; 0 where lines follow."""
    if path.suffix == ".xz":
        return 0  # what is packed is whole
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    return 0 if b"\n" in rest else len(rest)


def _check_torn(torn: bytes, where: str, *, first: bool) -> None:
    """Refuse a last line that is not complete, unless it is the beginning of a record.

    Raises:
        RecordError: It is something else.
    """
    written = torn if first else torn.rstrip(b"\0")  # a power cut leaves zeros in place of what was lost
    if not _BEGINNING.startswith(written[: len(_BEGINNING)]):
        rule, got = "the last line must be a record or the beginning of one", f"{torn[:40]!r}"
        raise RecordError(where=where, rule=rule, got=got, fix=RESTORE)


def restore_returns(content: dict[str, Any]) -> None:
    """Put NaN back for returns that are no numbers, which JSON does not have: it holds null."""
    returns = content.get("returns")
    if type(returns) is list and None in returns:
        content["returns"] = [math.nan if each is None else each for each in returns]


def parse_line(raw: bytes, where: str, end: int) -> Line:
    """Return the record in a complete line; `end` is the offset of the byte after it.

    Raises:
        RecordError: It is not a record of a known schema.
    """
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RecordError(where=where, rule=f"must be JSON, {error}", fix=RESTORE) from error
    try:
        head = msgspec.convert(content, _Head)
    except msgspec.ValidationError as error:
        rule = "must be a record with schema, seq, time and kind"
        raise RecordError(where=where, rule=rule, got=f"{raw[:60]!r}", fix=RESTORE) from error
    if head.schema != SCHEMA:
        rule, fix = f"this version reads schema {SCHEMA}", "Use the version of this project that wrote the study."
        raise RecordError(where=where, rule=rule, got=f"{head.schema}", fix=fix)
    if head.kind not in KINDS:
        raise RecordError(where=where, rule="unknown record", got=f"kind {head.kind[:60]!r}", fix=RESTORE)
    for name in _HEAD:
        del content[name]
    restore_returns(content)
    if head.kind == StageDecided.kind:
        content.pop("chain", None)  # the hash of the lines before, which versions before 0.13.0 wrote
    try:
        return Line(seq=head.seq, time=head.time, record=read(KINDS[head.kind], content), end=end)
    except ValueError as error:
        rule, got = "a record must have the fields of its kind, each of its type", f"{head.kind}: {error}"
        raise RecordError(where=where, rule=rule, got=got, fix=RESTORE) from error
