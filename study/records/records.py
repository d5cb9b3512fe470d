"""What a study remembers: one append-only file of JSON lines, the only truth.

Everything else (Optuna's journal, MLflow, tables) is derived from this file. A line is a head, with a consecutive
`seq`, and a record. Each kind of record is a class, and reading is decoding: what a line holds is of the types declared
here, or the file is refused with the number of the line.
"""

import lzma
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

import msgspec
from msgspec import Meta, Struct

from study.errors import RecordError
from study.harmless import one_line
from study.machine.load import NodeLoad
from study.records.request import TrialRequest
from study.space.parameters import SCALE
from study.space.spec import Execution

SCHEMA = 1
"""Version of the line format; lines of another one are refused."""
RESTORE = "Restore the file from a backup, or start a new study with --name."
"""What to do about records that cannot be trusted."""

_MOST = 2**53
"""Whole numbers up to this are exact in JSON and in tables."""
Whole = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
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


class StudyOpened(Record, frozen=True):
    """A driver began to work on the study."""

    durable: ClassVar[bool] = True
    session: Whole
    """1 for the first driver, 2 for the first resume, …"""
    num_trials: Whole
    """Trials planned, the finished ones included."""
    cluster: dict[str, Any]
    """Shape of the Ray cluster: `ClusterShape.to_json()`."""
    provenance: dict[str, Any]
    """Commit, versions, hardware, scheduler job of this driver."""
    space_digest: str = ""
    """`StudySpec.digest` of the study: what it was registered with. Empty before version 0.17.0."""


class TrialStarted(Record, frozen=True, forbid_unknown_fields=False):
    """A trial was given to Ray Tune."""

    # Versions before 0.15.0 wrote what it was predicted to cost.
    # Durable: else a power cut could take it back after its first values have gone to MLflow.
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
    rule: dict[str, Number] = {}
    """In a hold-up or throughput study the complete setting as it is kept: no scale, rules in place of numbers."""
    digest: str = ""
    """Identity of `rule`."""
    variant: str = "study"
    """`study` or `stock`; see `study.space.settings`."""
    scale: Whole | None = None
    """Runners that the trial stands for where it is not `setting`'s, as records before 0.14.0 have it."""
    first_episode: Whole = 0
    """Number of the first evaluation episode that the trial plays."""

    @property
    def num_env_runners(self) -> int:
        """The scale."""
        return int(self.setting[SCALE]) if self.scale is None else self.scale

    def __post_init__(self) -> None:
        if SCALE not in self.setting:
            raise ValueError(f"no {SCALE} in setting")


class TrialBuilt(Record, frozen=True):
    """All processes of a trial are up."""

    trial: Whole
    attempt: Whole
    startup_time_s: float | None
    """None where the trial went on in the processes of another one."""
    effective: dict[str, Any]
    """Configuration read back from the built algorithm."""
    processes_per_node: dict[str, Whole]
    """Node address -> processes of this trial there (main, runners and learners)."""
    timing: Timing | None = None
    """None until the driver, which knows the cluster, has labelled it."""
    timing_reason: str = ""
    """Why the timing is labelled so."""
    provisional: bool = False
    """Whether the CPU pressure of the whole trial will decide between `measured` and `oversubscribed`."""
    placement: list[dict[str, Any]] = []
    """Every process of the trial, `Place.to_json()`: what it is, its runners, its node, the CPUs it reserves."""


class Iteration(Record, frozen=True):
    """One training iteration."""

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

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if name.startswith("num_") and value is not None and not abs(value) <= _MOST:
                raise ValueError(f"`metrics.{name}` must be a count of at most 2**53")


class Evaluation(Record, frozen=True):
    """One evaluation."""

    trial: Whole
    attempt: Whole
    iteration: Whole
    env_steps: Whole
    wall_time_s: float
    progress: float
    """Share of the budget used, in [0, 1]."""
    returns: Returns
    """Return of each episode, in the order of the evaluation seeds; a mean is taken of them."""
    num_cut: Whole
    """Episodes that did not end and were cut at the limit."""
    eval_time_s: float

    @property
    def mean(self) -> float:
        """Mean of the returns."""
        return sum(self.returns) / len(self.returns)

    def __post_init__(self) -> None:
        if None in self.returns:
            numbers = [math.nan if each is None else each for each in self.returns]
            msgspec.structs.force_setattr(self, "returns", numbers)


class TrialEnded(Record, frozen=True):
    """The end of an attempt. `finished` and `failed` end the trial; `interrupted` leaves it to a resume."""

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
    node_loads: list[NodeLoad] = []
    """What else each node of the trial did in its timed part; empty when that is not known."""
    last_seen: Moment | None = None
    """Seconds since the epoch of the last line about an attempt that a killed driver left; None: it ended with this."""


class StageDecided(Record, frozen=True, forbid_unknown_fields=False):
    """A hold-up study took a decision: on what evidence, and which trials follow from it."""

    # Versions before 0.13.0 wrote a hash of the lines before it.
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
    requests: list[TrialRequest]
    """The trials that follow, in their order."""
    next_stage: str | None
    """Stage of those trials; None at the end of the protocol."""
    protocol: Whole
    """Version of the protocol that took it: another one may decide otherwise on the same evidence."""


class SettingsFrozen(Record, frozen=True):
    """The settings that the confirmation will judge; test seeds are refused before this is on disk."""

    durable: ClassVar[bool] = True
    winner: str
    """Digest."""
    settings: dict[str, dict[str, Number]]
    """Digest -> complete setting, of the winner and of every other arm."""


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
_READ_RECORD: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Union[*Record.__subclasses__()])
_WRITE = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())
"""Numbers and arrays of NumPy become plain ones."""


def written_line(record: Record, *, seq: int, moment: float) -> bytes:
    """Return the line of a record, its number and time included."""
    head, body = _WRITE.encode(_Head(SCHEMA, seq, moment)), _WRITE.encode(record)
    return head[:-1] + b"," + body[1:] + b"\n"


def parse_line(raw: bytes, where: str, end: int) -> Line:
    """Return the record in a complete line; `end` is the offset of the byte after it.

    Raises:
        RecordError: It is not a record of a known schema.
    """
    try:
        at = raw.find(_KIND)
        head = _READ_HEAD.decode(raw[:at].rstrip(b", ") + b"}")
        if head.schema == SCHEMA:
            return Line(seq=head.seq, time=head.time, record=_READ_RECORD.decode(b"{" + raw[at:]), end=end)
    except (ValueError, RecursionError) as error:
        got = f"{raw[:60]!r} ({one_line(str(error), 200)})"
        rule = "must be a record with schema, seq, time, kind and the fields of its kind, each of its type"
        raise RecordError(where=where, rule=rule, got=got, fix=RESTORE) from error
    rule, fix = f"this version reads schema {SCHEMA}", "Use the version of this project that wrote the study."
    raise RecordError(where=where, rule=rule, got=head.schema, fix=fix)


def read_lines(path: Path, *, offset: int = 0, first_seq: int = 0) -> Iterator[Line]:
    """Yield the complete lines of a records file; a torn last line is not yielded.

    Args:
        path: The records file, perhaps packed; a missing one has no lines.
        offset: Byte at which the first line begins.
        first_seq: Its number.

    Raises:
        RecordError: A line is not a record of a known schema, the last one not even the beginning of one, or one is
            missing; or the file cannot be read.
    """
    if not path.exists():
        return
    if not path.is_file():  # but for instance a pipe, which somebody would have to fill
        raise RecordError(where=str(path), rule="must be a file", got="something else", fix=RESTORE)
    try:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
            file.seek(offset)
            for seq, raw in enumerate(file, start=first_seq):
                where = f"{path}: line {seq + 1}"
                if not raw.endswith(b"\n"):
                    # A power cut leaves zeros in place of what was lost.
                    torn = raw.rstrip(b"\0") if seq else raw
                    if not _BEGINNING.startswith(torn[: len(_BEGINNING)]):
                        rule = "the last line must be a record or the beginning of one"
                        raise RecordError(where=where, rule=rule, got=f"{raw[:40]!r}", fix=RESTORE)
                    return
                offset += len(raw)
                line = parse_line(raw, where, offset)
                if line.seq != seq:
                    rule, got = f"`seq` must be {seq}", f"{line.seq}: lines are missing or doubled"
                    raise RecordError(where=where, rule=rule, got=got, fix=RESTORE)
                yield line
    except (OSError, EOFError, lzma.LZMAError) as error:
        rule, fix = f"must be a complete file that can be read ({error})", "Check its permissions, or copy it again."
        raise RecordError(where=str(path), rule=rule, fix=fix) from error


def torn_bytes(path: Path, end: int) -> int:
    """Return the bytes of a torn line behind byte `end`, at which the last complete one ended; 0 where lines follow."""
    if path.suffix == ".xz":
        return 0  # what is packed is whole
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    return 0 if b"\n" in rest else len(rest)
