"""How long the next trials will take: by experience with trials of their kind, else by a guess. Pure."""

import statistics
from collections import deque

from study.planning.guess import guess_seconds
from study.planning.plan import Plan
from study.records.ledger import TrialRow
from study.records.request import TrialRequest
from study.space.spec import Execution, StudySpec

Kind = tuple[int, int | None, Execution, str]
"""What trials of about the same duration have in common: scale, iterations, execution, variant or cell."""

REMEMBERED = 100
"""Trials of a kind whose durations count: the last ones, so that the cost of asking does not grow with a study."""


class Durations:
    """The durations of the trials that finished."""

    def __init__(self, spec: StudySpec, plan: Plan) -> None:
        """Begin without experience."""
        self._spec, self._plan = spec, plan
        self._past: dict[Kind, deque[float]] = {}
        self._expected: dict[Kind, float] = {}

    def note(self, row: TrialRow) -> None:
        """Take in a trial that ended; only one that finished says how long trials take."""
        if row.status == "finished" and row.duration_s is not None:
            kind = row.num_env_runners, row.iterations, row.execution, self._cell_or(row.anchor, row.variant)
            self._past.setdefault(kind, deque(maxlen=REMEMBERED)).append(row.duration_s)
            self._expected.pop(kind, None)

    def known(self, request: TrialRequest) -> bool:
        """Return whether a trial like this one has finished."""
        return self._kind(request) in self._past

    def expected(self, request: TrialRequest) -> float:
        """Return the seconds that a trial should take: the median of the last finished ones like it, else a guess."""
        kind = self._kind(request)
        if kind not in self._expected:
            scale, iterations, execution, _ = kind
            cluster = self._plan.cluster
            if kind in self._past:
                self._expected[kind] = statistics.median(self._past[kind])
            elif (cell := self._plan.cell_of(request.name)) is not None:
                self._expected[kind] = cell.needs.hours * 3600
            else:
                guess = guess_seconds(self._spec, scale, cluster, execution=execution, iterations=iterations)
                self._expected[kind] = guess
        return self._expected[kind]

    def _kind(self, request: TrialRequest) -> Kind:
        execution = self._plan.needs(request).execution
        return request.num_env_runners, request.iterations, execution, self._cell_or(request.name, request.variant)

    def _cell_or(self, name: str | None, variant: str) -> str:
        return variant if self._plan.cell_of(name) is None else str(name)
