"""A study folder -> `StudyData`: its frames, what is known of it, and what a reader must know first. Imports no engine.

The records are read once; iterations are read when they are asked for. Every frame has the columns, types and units
that `analysis.load.columns` declares; what does not exist is NA.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis.fingerprint import effective_part, fingerprint, fingerprints
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, RUN_COLUMNS, Column
from study.errors import AnalysisError, RecordError, SpaceError
from study.records.files import at_work
from study.records.folder import StudyFolder, StudyIdentity, meant_by, table_row
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import Iteration, Line, StudyOpened, TrialBuilt, TrialStarted, read_lines
from study.space.sections import LEARNERS
from study.space.spec import StudySpec
from study.text import count

Kind = Literal["search", "holdup", "throughput"]
"""What a study is: an ordinary search, in stages, or short trials for the clock."""
_HARDWARE = ("hostname", "platform", "cpu_model", "physical_cpus", "logical_cpus", "usable_cpus", "memory_mb")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyData:
    """A study as analysis sees it.

    Attributes:
        source: Folder or tracking URI, without a password.
        runs: One row per trial, the columns of `RUN_COLUMNS`.
        sheet: What is the same for all trials, or known of the last session, as JSON values: id, dates, environment,
            space file, versions, hardware, commit, planned trials, and how the session ended.
        problems: Plain sentences: what is missing or unfinished, and what can still be shown.
        spec: The space; None where it is not known or not of this version.
        ledger: State of the trials by the records, but for sums over iterations; None where there are no records.
        folder: Where its files are: the study's folder, or a copy of what MLflow holds of it.
        iterations: Reads one row per training iteration, the columns of `ITERATION_COLUMNS`; raises `StudyError`.
        evaluations: Returns one row per evaluation, the columns of `EVALUATION_COLUMNS`.
    """

    name: str
    source: str
    kind: Kind
    runs: pd.DataFrame = field(repr=False)
    sheet: Mapping[str, Any] = field(repr=False)
    problems: tuple[str, ...] = ()
    spec: StudySpec | None = field(default=None, repr=False)
    ledger: Ledger | None = field(default=None, repr=False)
    folder: StudyFolder | None = field(default=None, repr=False)
    iterations: Callable[[], pd.DataFrame] = field(repr=False)
    evaluations: Callable[[], pd.DataFrame] = field(repr=False)

    @property
    def space_file(self) -> str | None:
        """The space file for a command that runs more of this: the study's own copy, else the one that it came from."""
        if "://" not in self.source and (copy := StudyFolder(Path(self.source)).space_file).exists():
            return str(copy)
        return self.sheet.get("space") or None

    @property
    def is_running(self) -> bool:
        """Whether a driver works on the study's folder now; False for a study in MLflow, where that is not known."""
        return "://" not in self.source and bool(at_work(Path(self.source)))


def from_folder(path: str | Path) -> StudyData:
    """Read a study folder, packed or not, finished or not.

    Raises:
        AnalysisError: There is no study, or it has not begun.
        RecordError: The records cannot be trusted.
    """
    folder, where = StudyFolder(Path(path)), str(path)
    if not folder.exists():
        fix = (
            f"{meant_by(folder.path).rstrip('.')}, or a tracking URI such as sqlite:///mlflow.db and the study's name."
        )
        rule, got = "must be the folder of a study", "none (study.json is missing)"
        raise AnalysisError(where=where, rule=rule, got=got, fix=fix)
    identity, problems = folder.identity(), list[str]()
    try:
        spec = identity.parse()
    except SpaceError as error:
        spec = None
        problems.append(
            f"The space is not one of this version ({len(error.faults)} faults, the first: {error.faults[0]}): it is "
            "shown as it was written, and what needs it is left out."
        )
    fix = "Wait for its first trial, or restore records.jsonl from a backup."
    if not folder.records.exists():
        rule, got = "a study must have records", "none (records.jsonl is missing)"
        raise AnalysisError(where=where, rule=rule, got=got, fix=fix)
    found = _Records(folder.records)
    if not found.provenances:
        raise AnalysisError(where=where, rule="a study needs a session", got="none yet", fix=fix)
    runs = found.runs(identity)
    return StudyData(
        name=identity.name,
        source=where,
        kind=_kind(identity.spec),
        runs=runs,
        sheet=_sheet(identity, found),
        problems=(*problems, *_problems(runs, found.ledger, folder.records.name)),
        spec=spec,
        iterations=partial(iterations_frame, folder.records),
        evaluations=partial(evaluations_frame, found.rows),
        ledger=found.ledger,
        folder=folder,
    )


def _kind(spec: Mapping[str, Any]) -> Kind:
    """Return the kind of a study by its space."""
    if spec.get("kind") == "throughput":
        return "throughput"
    return "holdup" if spec.get("holdup") else "search"


# --- frames ---------------------------------------------------------------------------------------------------------


def frame_of(values: Mapping[str, Sequence[Any]], columns: Mapping[str, Column], *, where: str) -> pd.DataFrame:
    """Return the declared columns, in their order and types, of values by column with None where there is nothing.

    Raises:
        RecordError: A value is of another type than its column; `where` is the file that it is from.
    """
    made = {}
    for name, column in columns.items():
        try:
            made[name] = pd.array(values[name], dtype=column.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            rule, fix = f"{name} must hold values of type {column.dtype} alone", "Restore the source from a backup."
            raise RecordError(where=where, rule=rule, got=str(error), fix=fix) from error
    return pd.DataFrame(made, copy=False)


def _by_row(rows: Sequence[Sequence[Any]], columns: Mapping[str, Column], where: str) -> pd.DataFrame:
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    return frame_of(dict(zip(columns, map(list, values), strict=True)), columns, where=where)


def iterations_frame(records: Path) -> pd.DataFrame:
    """Return one row per training iteration of the latest attempts, the columns of `ITERATION_COLUMNS`.

    Raises:
        RecordError: The records cannot be trusted.
    """
    rows, latest, metrics = list[tuple[int, list[Any]]](), dict[int, int](), tuple(ITERATION_COLUMNS)[4:]
    for line in read_lines(records):
        match line.record:
            case TrialStarted() as started:
                latest[started.trial] = started.attempt
            case Iteration() as one:
                head = one.trial, one.iteration, one.env_steps, one.wall_time_s
                rows.append((one.attempt, [*head, *map(one.metrics.get, metrics)]))
    kept = [row for attempt, row in rows if latest.get(row[0]) == attempt]
    return _by_row(kept, ITERATION_COLUMNS, str(records))


def evaluations_frame(trials: Sequence[TrialRow]) -> pd.DataFrame:
    """Return one row per evaluation of the latest attempts, the columns of `EVALUATION_COLUMNS`."""
    rows = [
        (row.trial, each.env_steps, each.wall_time_s, each.progress, each.mean, len(each.returns), each.num_cut,
         each.eval_time_s)
        for row in trials
        for each in row.evaluations
    ]  # fmt: skip
    return _by_row(rows, EVALUATION_COLUMNS, "records")


class _Records:
    """What one pass over the records finds: trials, a provenance per session, the time of the last record."""

    def __init__(self, path: Path) -> None:
        """Read them.

        Raises:
            RecordError: They cannot be trusted.
        """
        self._path = path
        self.ledger, self.provenances = Ledger(), list[Mapping[str, Any]]()
        self.last = 0.0
        self._session: dict[int, int] = {}
        """Trial -> place of the driver, in `provenances`, that started its latest attempt."""
        self._built: dict[int, dict[str, Any]] = {}
        """Trial -> what analysis keeps of its `TrialBuilt` record."""
        self._parts: dict[str, str] = {}
        """One copy of each text."""
        fold_lines(self._of_latest_attempts(read_lines(path)), path, self.ledger)
        self.rows = [self.ledger.rows[number] for number in sorted(self.ledger.rows)]

    def _of_latest_attempts(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines but for those of an attempt that another one has replaced."""
        for line in lines:
            self.last, record = line.time, line.record
            row = self.ledger.rows.get(getattr(record, "trial", -1))
            match record:
                case StudyOpened():
                    self.provenances.append(record.provenance)
                case TrialStarted():
                    self._session[record.trial] = max(len(self.provenances) - 1, 0)
                    self._built.pop(record.trial, None)
                case _ if row is not None and getattr(record, "attempt", row.attempt) != row.attempt:
                    continue
                case TrialBuilt():
                    self._built[record.trial] = self._of_built(record)
            yield line

    def _of_built(self, record: TrialBuilt) -> dict[str, Any]:
        part = fingerprint(effective_part(record.effective, self.provenances[-1] if self.provenances else {}))
        return {
            LEARNERS: record.effective.get("num_learners"),
            "learner_threads": record.effective.get("torch_threads_learner"),
            "num_nodes": len(record.processes_per_node) or None,
            "nodes": ", ".join(sorted(record.processes_per_node)) or None,
            "part": self._parts.setdefault(part, part),
        }

    def runs(self, identity: StudyIdentity) -> pd.DataFrame:
        """Return one row per trial with the columns of `RUN_COLUMNS`; of one without an end, totals are those so far.

        Raises:
            RecordError: A value is of another type than its column.
        """
        resources = identity.spec.get("resources")
        by_space = resources.get("num_learners") if isinstance(resources, Mapping) else None
        lines = [_line(row, self._built.get(row.trial, {}), by_space) for row in self.rows]
        kinds = [
            (self._session[row.trial], row.variant, row.execution, line[LEARNERS])
            for row, line in zip(self.rows, lines, strict=True)
        ]
        settings, parts = [row.setting for row in self.rows], [line.get("part") for line in lines]
        texts = fingerprints(identity.spec, self.provenances, kinds, settings, parts)
        values: dict[str, Any] = {name: [line.get(name) for line in lines] for name in RUN_COLUMNS}
        values |= {"study": [identity.name] * len(lines), "fingerprint": texts}
        return frame_of(values, RUN_COLUMNS, where=str(self._path))


def _line(row: TrialRow, built: Mapping[str, Any], num_learners: int | None) -> dict[str, Any]:
    """Return the values of a trial; `num_learners` are those of the space."""
    line = {**table_row(row), "started": row.started, "ended": row.ended_at, **built}
    if line.get(LEARNERS) is None:
        line[LEARNERS] = row.setting.get(LEARNERS, num_learners)
    so_far = {"startup_time_s": row.startup_time_s}
    so_far |= {name: getattr(row.last_iteration, name, None) for name in ("wall_time_s", "env_steps")}
    line |= {name: value for name, value in so_far.items() if line[name] is None}
    if line["timed_s"]:
        line["env_steps_per_s"] = line["timed_env_steps"] / line["timed_s"]
    return line


# --- what is known beside the trials ----------------------------------------------------------------------------------


def _sheet(identity: StudyIdentity, found: _Records) -> dict[str, Any]:
    provenance, closed = found.provenances[-1], found.ledger.closed
    git = provenance.get("git") or {}
    return {
        "study_id": identity.study_id,
        "created": date(identity.created),
        "space": identity.space,
        "environment": identity.spec.get("environment"),
        "versions": provenance.get("versions") or {},
        "hardware": {name: provenance.get(name) for name in _HARDWARE},
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "last_record": date(found.last),
        "num_sessions": len(found.provenances),
        "end": closed.reason if closed else None,
        "num_trials": max(found.ledger.num_trials, len(found.rows)),
    }


def date(time_s: float) -> str:
    """Return seconds since the epoch as a date of UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def _problems(runs: pd.DataFrame, ledger: Ledger, results: str) -> Iterator[str]:
    """Yield what is missing, unfinished or odd in a study folder, and what can still be shown."""
    counts, planned = ledger.counts(), max(ledger.num_trials, len(runs))
    if ledger.closed is None:
        yield (
            f"The study is still running, or its driver was killed: {len(runs)} of {planned} trials have started, "
            f"{counts['running']} of them have no end. All figures are as of the last record."
        )
    elif ledger.closed.reason != "complete":
        detail = f" ({ledger.closed.detail})" if ledger.closed.detail else ""
        yield (
            f"The study is not complete: its last session ended with {ledger.closed.reason!r}{detail}, "
            f"{counts['finished'] + counts['failed']} of {planned} trials have ended. `--resume` finishes it."
        )
    if counts["interrupted"]:
        yield f"{count(counts['interrupted'], 'interrupted trial')}: shown as such, without a score, in no mean."
    if runs["iterations"].isna().all() and (runs["status"] == "finished").any():
        yield (
            f"{results} holds no training iterations: rates and totals are those of the trials' summaries, phases of "
            "an iteration cannot be shown."
        )
