"""The records of a study, sorted by trial, with what the rules for each trial rest on. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from study.designs.holdup import machine
from study.planning.shape import ClusterShape, NodeShape
from study.records.records import (
    Evaluation,
    Iteration,
    Line,
    StageDecided,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)
from study.records.request import numbered
from study.space.parameters import FRAGMENT
from study.space.spec import StudySpec

RELATIVE = 2e-6
"""Figures that differ by less are the same: a sum may be taken in another order, and has numbers of seven digits."""
LEAST = 1e-12
"""Numbers that differ by less are the same, however small they are."""
_OF_THE_TRIAL = {"seed", "env_steps_per_round", "num_sampling_processes", "hostnames", "differs_from_script", FRAGMENT}
"""Values of `effective` that may differ between trials that run alike; so may those of the setting."""


Trial = TrialStarted | TrialBuilt | Iteration | Evaluation | TrialEnded


@dataclass(slots=True)
class Session:
    """One driver's work, as far as its trials depend on it."""

    opened: int
    """Number of its first line."""
    cluster: ClusterShape
    summary: set[str] = field(default_factory=set)
    """Names of the metrics that trials of this session have at their end."""
    alike: dict[tuple[str, str], dict[str, Counter[str]]] = field(default_factory=dict)
    """(variant, execution) -> name in `effective` -> its values over the trials of this session, as text."""


class Study:
    """The records of a study, sorted by trial, with what the rules for each trial rest on."""

    def __init__(self, lines: Sequence[Line], spec: StudySpec) -> None:
        """Sort all lines of the records of a hold-up study."""
        self.spec = spec
        self.course: list[Line] = []
        """Lines that are about no single trial."""
        self.histories: dict[int, list[Line]] = defaultdict(list)
        for line in lines:
            record = line.record
            if isinstance(record, Trial):
                self.histories[record.trial].append(line)
            else:
                self.course.append(line)
        self.decided = [line for line in self.course if isinstance(line.record, StageDecided)]
        self.decisions: list[StageDecided] = [line.record for line in self.decided]  # type: ignore[misc]
        self.requests = numbered(machine.requests_of(spec, self.decisions))
        self.asked_at = [-1] * len(machine.requests_of(spec, []))
        """Trial -> number of the line that asks for it; -1 for those that every study begins with."""
        for line, decision in zip(self.decided, self.decisions, strict=True):
            self.asked_at += [line.seq] * len(decision.requests)
        self.sessions = [
            Session(line.seq, _shape(line.record.cluster))
            for line in self.course
            if isinstance(line.record, StudyOpened)
        ]
        for history in self.histories.values():
            self._note_habits(history)

    def _note_habits(self, history: Sequence[Line]) -> None:
        """Note what trials of each session have in common: versions of this program write different things."""
        started: TrialStarted | None = None
        for line in history:
            record = line.record
            if isinstance(record, Iteration | Evaluation):
                continue
            session = self.session_of(line)
            if session is None:
                continue
            match record:
                case TrialStarted():
                    started = record
                case TrialBuilt() if started is not None:
                    common = session.alike.setdefault((started.variant, started.execution), defaultdict(Counter))
                    for name, value in record.effective.items():
                        if name not in started.setting and name not in _OF_THE_TRIAL:
                            common[name][str(value)] += 1
                case TrialEnded():
                    session.summary.update(record.summary)

    def session_of(self, line: Line) -> Session | None:
        """Return the session that wrote a line; None before the first."""
        return next((each for each in reversed(self.sessions) if each.opened < line.seq), None)

    def where(self, trial: int) -> str:
        """Return how a person finds a trial: its number and what it was asked to be."""
        if not 0 <= trial < len(self.requests):
            return f"trial {trial}"
        request = self.requests[trial]
        at = f"{request.name}@{request.num_env_runners}" if request.name else f"{request.num_env_runners} runners"
        return f"trial {trial} ({request.stage}, {at}, seed {request.seed})"


def same(first: Any, second: Any, *, least: float = LEAST) -> bool:
    """Return whether two JSON values are equal; machines round the last digits of numbers differently."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float) or isinstance(second, float):
        if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in (first, second)):
            return False
        close = abs(first - second) <= max(RELATIVE * max(abs(first), abs(second)), least)
        return bool(close or (first != first and second != second))  # NaN stands for a return that is no number
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def _shape(cluster: Mapping[str, Any]) -> ClusterShape:
    return ClusterShape(nodes=tuple(NodeShape(**node) for node in cluster["nodes"]))
