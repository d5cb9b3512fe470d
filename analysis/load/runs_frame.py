"""Ledger -> the frame `runs`. Imports pandas, no engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.arrays import frame_of
from analysis.load.columns import RUN_COLUMNS
from analysis.load.details import Evaluations
from analysis.load.fingerprint import effective_part, fingerprint, fingerprints
from analysis.load.sheet import Session
from study.metrics import METRICS
from study.records.folder import StudyIdentity
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    Record,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
    read_lines,
    torn_bytes,
)
from study.records.sums import Sums
from study.space.parameters import PARAMETERS
from study.space.sections import LEARNERS

_COUNTED = (*Sums().columns(), "num_evaluations", "num_eval_episodes", "num_cut")
_TRIAL_METRICS = tuple(name for name, metric in METRICS.items() if metric.grain == "trial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What analysis keeps of a `TrialBuilt` record."""

    num_learners: int | None
    learner_threads: int | None
    nodes: tuple[str, ...]
    part: str
    """JSON of the fingerprint's part that was read back."""

    @classmethod
    def of(cls, record: TrialBuilt, provenance: Mapping[str, Any], parts: dict[str, str]) -> "Built":
        """Return it; `parts` keeps one copy of each text."""
        effective = record.effective
        part = fingerprint(effective_part(effective, provenance))
        return cls(
            num_learners=effective.get("num_learners"),
            learner_threads=effective.get("torch_threads_learner"),
            nodes=tuple(sorted(record.processes_per_node)),
            part=parts.setdefault(part, part),
        )


class Trials:
    """What one pass over the records finds, by trial."""

    def __init__(self, identity: StudyIdentity, path: Path) -> None:
        """Read the records.

        Raises:
            RecordError: They cannot be trusted.
        """
        self.ledger = Ledger()
        self.evaluations = Evaluations(path)
        self.sessions: list[Session] = []
        self.built: dict[int, Built] = {}
        self.session: dict[int, int] = {}
        """Trial -> place of the driver, in `sessions`, that started its latest attempt."""
        self._parts: dict[str, str] = {}
        self.num_lines, self._end = 0, 0
        fold_lines(self._of_latest_attempts(read_lines(path)), path, self.ledger)
        self.torn_bytes = torn_bytes(path, self._end)
        """Bytes of a last line that is not complete."""
        self.rows = [self.ledger.rows[number] for number in sorted(self.ledger.rows)]
        """In the order of the plan."""
        self.spec = identity.spec

    def _of_latest_attempts(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines but for those of an attempt that another one has replaced."""
        for line in lines:
            self.num_lines, self._end = line.seq + 1, line.end
            record = line.record
            if isinstance(record, (Iteration, TrialBuilt, Evaluation, TrialEnded)):
                row = self.ledger.rows.get(record.trial)
                if row is not None and row.attempt != record.attempt:
                    continue
            if not isinstance(record, Iteration):
                self._take(record, line.time)
            yield line

    def _take(self, record: Record, moment: float) -> None:
        if self.sessions:
            self.sessions[-1].last = moment
        match record:
            case StudyOpened():
                self.sessions.append(Session(opened=record, started=moment, last=moment))
            case StudyClosed():
                if self.sessions:
                    self.sessions[-1].closed = record
            case TrialStarted():
                self.session[record.trial] = max(len(self.sessions) - 1, 0)
                self.evaluations.begin(record)
                self.built.pop(record.trial, None)
            case TrialBuilt():
                provenance = self.sessions[-1].opened.provenance if self.sessions else {}
                self.built[record.trial] = Built.of(record, provenance, self._parts)
            case Evaluation():
                self.evaluations.take(record)


def runs_frame(name: str, trials: Trials, *, where: str) -> pd.DataFrame:
    """Return one row per trial with the columns of `RUN_COLUMNS`.

    Raises:
        RecordError: A value is of another type than its column; names file, trial and column.
    """
    rows, learners = trials.rows, _learners(trials)
    values: dict[str, Any] = {
        "study": [name] * len(rows),
        **_of_rows(rows),
        "num_learners": learners,
        **_of_built(trials),
        **_of_summaries(rows),
    }
    values["fingerprint"], values["engine"] = _fingerprints(trials, learners)
    for parameter in PARAMETERS:
        values[parameter] = [row.setting.get(parameter) for row in rows]
    return _completed(frame_of(values, RUN_COLUMNS, where=where), trials)


def _of_rows(rows: Sequence[TrialRow]) -> dict[str, list[Any]]:
    """Return what a trial's state says."""
    get: dict[str, Callable[[TrialRow], Any]] = {
        "trial": lambda row: row.trial,
        "attempt": lambda row: row.attempt,
        "status": lambda row: row.status,
        "reason": lambda row: row.reason or None,
        "stage": lambda row: row.stage,
        "variant": lambda row: row.variant if row.stage else None,
        "digest": lambda row: row.digest or None,
        "baseline": lambda row: row.anchor,
        "seed": lambda row: row.seed,
        "stands_for_runners": lambda row: row.scale,
        "num_cpus": lambda row: row.num_cpus,
        "execution": lambda row: row.execution,
        "timing": lambda row: _label(row)[0],
        "timing_reason": lambda row: _label(row)[1] or None,
        "max_iterations": lambda row: row.iterations,
        "predicted_cpu_s": lambda row: row.predicted_cpu_s,
        "checkpoint": lambda row: row.checkpoint,
        "started": lambda row: row.started,
        "ended": lambda row: row.ended_at,
    }
    columns = {name: [each(row) for row in rows] for name, each in get.items()}
    counted = [row.columns() for row in rows]
    return columns | {name: [each[name] for each in counted] for name in _COUNTED}


def _learners(trials: Trials) -> list[Any]:
    """Return each trial's learner processes as built, else as asked for."""
    built = [trials.built.get(row.trial) for row in trials.rows]
    resources = trials.spec.get("resources")
    by_space = resources.get("num_learners") if isinstance(resources, Mapping) else None
    asked_for = [row.setting.get(LEARNERS, by_space) for row in trials.rows]
    return [
        ask if each is None or each.num_learners is None else each.num_learners
        for each, ask in zip(built, asked_for, strict=True)
    ]


def _of_built(trials: Trials) -> dict[str, list[Any]]:
    """Return what was read back from the built algorithms."""
    built = [trials.built.get(row.trial) for row in trials.rows]
    return {
        "learner_threads": [each.learner_threads if each else None for each in built],
        "num_nodes": [len(each.nodes) or None if each else None for each in built],
        "nodes": [", ".join(each.nodes) or None if each else None for each in built],
    }


def _of_summaries(rows: Sequence[TrialRow]) -> dict[str, list[Any]]:
    """Return the metrics of grain `trial`; of a running trial those that are there already."""
    columns = {name: [row.summary.get(name) for row in rows] for name in _TRIAL_METRICS}
    columns["startup_time_s"] = [
        value if value is not None else row.startup_time_s
        for value, row in zip(columns["startup_time_s"], rows, strict=True)
    ]
    return columns


def _fingerprints(trials: Trials, learners: Sequence[Any]) -> tuple[list[str], list[str | None]]:
    kinds = [
        (trials.session[row.trial], row.variant, row.execution, num_learners)
        for row, num_learners in zip(trials.rows, learners, strict=True)
    ]
    built = [trials.built.get(row.trial) for row in trials.rows]
    return fingerprints(
        trials.spec,
        [session.opened.provenance for session in trials.sessions],
        kinds,
        [row.setting for row in trials.rows],
        [each.part if each else None for each in built],
    )


def _completed(frame: pd.DataFrame, trials: Trials) -> pd.DataFrame:
    """Take rates from the timed iterations wherever the records have them, and totals so far where no end is known."""
    rate = frame["timed_env_steps"].astype("Float64") / frame["timed_s"]
    frame["env_steps_per_s"] = rate.where(frame["timed_s"] > 0).fillna(frame["env_steps_per_s"])
    for name in ("wall_time_s", "env_steps"):
        so_far = [getattr(row.last_iteration, name, None) for row in trials.rows]
        frame[name] = frame[name].fillna(pd.Series(so_far, index=frame.index, dtype=frame[name].dtype))
    return frame


def _label(row: TrialRow) -> tuple[str | None, str]:
    """Return the timing label and its reason; none while the whole trial has yet to settle it."""
    if row.provisional and row.status == "running":
        return None, f"not settled yet: {row.timing_reason}"
    return row.timing, row.timing_reason
