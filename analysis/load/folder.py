"""A study folder -> `StudyData`, in one pass over its records. Imports pandas, no engine."""

import difflib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from analysis.load.details import Evaluations, iterations_frame
from analysis.load.fingerprint import Workload
from analysis.load.problems import folder_problems
from analysis.load.record_scan import Scan
from analysis.load.runs_frame import Built, Trials, runs_frame
from analysis.load.sheet import Session, kind_of, spec_of, study_sheet
from analysis.load.study_data import StudyData
from analysis.load.timed_sums import TimedSums
from study.errors import AnalysisError
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger
from study.records.records import Evaluation, Record, StudyClosed, StudyOpened, TrialBuilt, TrialStarted

_SHOWN = 8
"""Most studies in a message."""


def from_folder(path: str | Path) -> StudyData:
    """Read a study folder, packed or not, finished or not.

    Raises:
        AnalysisError: There is no study, or it has not begun.
        RecordError: The records cannot be trusted.
    """
    folder = StudyFolder(Path(path))
    if not folder.exists():
        raise AnalysisError(
            where=str(path),
            rule="must be the folder of a study",
            got="none (study.json is missing)",
            fix=_way_out(path),
            code="not-a-study-folder",
        )
    identity = folder.identity()
    spec, unread = spec_of(identity)
    if not folder.records.exists():
        raise AnalysisError(
            where=str(path),
            rule="a study must have records",
            got="none (records.jsonl is missing)",
            fix="Wait for its first trial, or restore the file.",
            code="study-without-records",
        )
    reader = _Reader(identity, folder.records)
    scan = reader.scan
    if not reader.sessions:
        raise AnalysisError(
            where=str(path),
            rule="a study needs a session",
            got=f"none yet ({scan.num_lines} other records)",
            fix="Wait until it has begun, or restore records.jsonl from a backup.",
            code="study-without-sessions",
        )
    trials = reader.trials(_get(identity.spec, "resources", "num_learners"))
    runs = runs_frame(identity.name, trials, where=str(folder.records))
    return StudyData(
        name=identity.name,
        source=str(path),
        kind=kind_of(identity, {row.stage for row in reader.ledger.rows.values()}),
        runs=runs,
        sheet=study_sheet(
            identity,
            reader.sessions,
            counts=reader.ledger.counts(),
            num_trials=max(reader.ledger.num_trials, len(runs)),
        ),
        problems=tuple(
            [
                *unread,
                *folder_problems(runs, reader.ledger, reader.sessions, scan, results=folder.records.name),
            ]
        ),
        spec=spec,
        read_iterations=partial(iterations_frame, folder.records),
        read_evaluations=partial(reader.evaluations.frame, [*scan.slots.values()]),
        ledger=reader.ledger,
    )


def _way_out(path: str | Path) -> str:
    """Return what could have been meant by a path where no study is."""
    inside, beside = _studies(Path(path)), _studies(Path(path).parent)
    if inside:
        return f"Give one of the studies in it, {', '.join(str(Path(path) / name) for name in inside[:_SHOWN])}."
    if near := difflib.get_close_matches(Path(path).name, beside, n=1):
        return f"Did you mean '{Path(path).parent / near[0]}'?"
    return "Give for instance studies/quickstart, or a tracking URI such as sqlite:///mlflow.db and the study's name."


def _studies(folder: Path) -> list[str]:
    """Return the names of the studies in a folder; none where it cannot be looked into."""
    try:
        return sorted(file.parent.name for file in folder.glob("*/study.json"))
    except OSError:
        return []


class _Reader:
    """Collects what the frame and the sheet need while the records pass by."""

    def __init__(self, identity: StudyIdentity, path: Path) -> None:
        self.ledger = Ledger()
        self.evaluations = Evaluations(path)
        self.sessions: list[Session] = []
        self._identity = identity
        self._built: dict[int, Built] = {}
        self._session: dict[int, int] = {}
        self._parts: dict[str, str] = {}
        sums = TimedSums(str(path))
        self.scan = Scan(path=path).run(sums.add, self._take)
        self._sums = sums.finish(self.scan.num_attempts)

    def trials(self, num_learners: int | None) -> Trials:
        """Return what the records say by trial."""
        provenances = [session.opened.provenance for session in self.sessions] or [{}]
        return Trials(
            ledger=self.ledger,
            slots=self.scan.slots,
            sums=self._sums,
            built=self._built,
            session=self._session,
            workloads=[Workload(spec=self._identity.spec, provenance=each) for each in provenances],
            num_learners=num_learners,
        )

    def _take(self, record: Record, moment: float, slot: int) -> None:
        if self.sessions:
            self.sessions[-1].last = moment
        match record:
            case StudyOpened():
                self.sessions.append(Session(opened=record, started=moment, last=moment))
            case StudyClosed():
                if self.sessions:
                    self.sessions[-1].closed = record
            case TrialStarted():
                self._session[record.trial] = max(len(self.sessions) - 1, 0)
                self._built.pop(record.trial, None)
            case TrialBuilt():
                provenance = self.sessions[-1].opened.provenance if self.sessions else {}
                self._built[record.trial] = Built.of(record, provenance, self._parts)
            case Evaluation():
                self.evaluations.add(record, slot)
        self.ledger.apply(record, moment)


def _get(content: Mapping[str, Any], *keys: str) -> Any:
    """Return a nested value, or None."""
    value: Any = content
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
