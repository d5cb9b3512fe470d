"""The trials that a session has still to run, how long they take, and which may start beside those that run. No Ray."""

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping

from study.driver.admission import Running, Waiting, admit, promise
from study.planning.guess import guess_seconds
from study.planning.needs import num_gpus
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


LOOKAHEAD = 64
"""Trials of the queue that backfill looks at."""
RELIABLE_PROGRESS = 0.05
"""From this share of its budget on, a trial's own pace predicts its end."""


class TrialQueue:
    """Waiting and running trials of one session.

    Attributes:
        requests: Trial -> its request, of all trials of the study that are known so far.
        waiting: Slots that are not dealt out yet, in the order of the plan.
        running: Trial -> its start, on the clock of `time.monotonic`.
        suspects: Trials that run with nothing beside them: the engine has died under them.
        durations: How long trials take, by experience.
        deadline: End of the time budget, on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        spec: StudySpec,
        plan: Plan,
        rows: Mapping[int, TrialRow],
        *,
        deadline: float | None = None,
    ) -> None:
        """Queue what has not ended yet: `rows` are the states of the trials, as they change."""
        self.deadline = deadline
        self._spec, self._plan, self._rows = spec, plan, rows
        self.requests = {request.trial: request for request in plan.requests}
        self.waiting = [request for request in plan.requests if not self.is_over(request.trial)]
        self.running: dict[int, float] = {}
        self.suspects: set[int] = set()
        self.durations = Durations(spec, plan)
        for row in rows.values():
            self.durations.note(row)
        self._kept_for = plan.processes_kept_for(self.waiting[0]) if self.waiting else None
        """What the trials of this part of the study have in common that go on in each other's processes."""
        self._promised: tuple[int, float] = (-1, math.inf)
        """The first trial in the queue, and the earliest start that was reckoned for it."""

    def is_over(self, trial: int) -> bool:
        """Return whether a trial has ended for good."""
        return trial in self._rows and self._rows[trial].ended

    # --- what waits --------------------------------------------------------------------------------------------

    def replace(self, requests: Iterable[TrialRequest]) -> None:
        """Wait for these from now on, the trials of a stage that has just been decided on."""
        self.waiting = list(requests)
        self.requests |= {request.trial: request for request in self.waiting}

    def begin(self, request: TrialRequest) -> None:
        """Count a waiting trial among those that run."""
        self.waiting.remove(request)
        self.running[request.trial] = time.monotonic()

    def take_back(self, trial: int) -> None:
        """Let a trial wait again that ran."""
        self.running.pop(trial, None)
        self.waiting.append(self.requests[trial])
        self.waiting.sort(key=lambda request: request.trial)

    @property
    def part_ended(self) -> bool:
        """Whether the next trial needs another run of Tune.

        Tune's setting `reuse_actors` holds for a whole run. Trials that reuse the processes of the trial before, and
        trials that start their own, can therefore not be in one run.
        """
        return (
            not self.running and bool(self.waiting) and self._kept_for != self._plan.processes_kept_for(self.waiting[0])
        )

    def begin_part(self) -> bool:
        """Begin the trials of the next run of Tune; return whether they reuse processes."""
        self._kept_for = self._plan.processes_kept_for(self.waiting[0])
        return self._kept_for is not None

    # --- what may start ----------------------------------------------------------------------------------------

    def next(self) -> TrialRequest | None:
        """Return the trial to start now; None when all have to wait."""
        if self._is_full():
            return None
        startable = self.startable()
        if not startable or not self._gpus_are_free():
            return None
        now = time.monotonic()
        held, expected = self._cpus_held, self.durations.expected
        queue = [Waiting(num_cpus=held(request), duration=expected(request)) for request in startable]
        running = [Running(num_cpus=held(self.requests[trial]), end=self._end_of(trial)) for trial in self.running]
        # Nothing else runs beside a trial with a group: it may have CPUs that are no cores.
        cluster = self._plan.cluster
        capacity = cluster.capacity if startable[0].group is None else cluster.num_cpus
        first, before = startable[0].trial, self._promised
        known = before[1] if before[0] == first else math.inf
        self._promised = first, min(known, promise(queue[0], running, capacity=capacity, now=now))
        index = admit(queue, running, capacity=capacity, now=now, promised=self._promised[1])
        return None if index is None else startable[index]

    def startable(self) -> list[TrialRequest]:
        """Return the head of the queue, without trials that by experience would not end before the deadline.

        A guess excludes nothing: it may be wrong by a factor of three, and what is never started is never measured.
        """
        head = self._of_one_group(self.waiting[:LOOKAHEAD])
        if self.deadline is None:
            return head
        left = self.deadline - time.monotonic()
        known, expected = self.durations.known, self.durations.expected
        return [request for request in head if left > 0 and (not known(request) or expected(request) <= left)]

    def _is_full(self) -> bool:
        """Return whether running trials hold every CPU; Tune asks so often that a closer look would cost it."""
        requests = [self.requests[trial] for trial in self.running]
        cluster = self._plan.cluster
        capacity = cluster.capacity if all(request.group is None for request in requests) else cluster.num_cpus
        return bool(requests) and sum(map(self._cpus_held, requests)) >= capacity

    def _cpus_held(self, request: TrialRequest) -> int:
        """Return the CPUs that no other trial gets while this one runs: all of them where it is to run alone."""
        needs = self._plan.needs(request)
        if (needs.alone or request.trial in self.suspects) and request.group is None:  # a group is alone as it is
            return max(needs.num_cpus, self._plan.cluster.capacity)
        return needs.num_cpus

    def _gpus_are_free(self) -> bool:
        """Return whether one more trial finds its GPUs; every trial needs as many, so that CPUs decide on the order."""
        wanted = num_gpus(self._spec) * (len(self.running) + 1)
        return wanted <= self._plan.cluster.num_gpus + 1e-9  # shares of a GPU are no binary fractions

    def _of_one_group(self, head: list[TrialRequest]) -> list[TrialRequest]:
        """Return the requests that may run beside the running ones and each other."""
        if not head:
            return []
        processes_kept_for = self._plan.processes_kept_for
        running = {(self.requests[trial].group, processes_kept_for(self.requests[trial])) for trial in self.running}
        wanted = running or {(head[0].group, self._kept_for)}
        return [request for request in head if (request.group, processes_kept_for(request)) in wanted]

    def _end_of(self, trial: int) -> float:
        """Return when a running trial should end, on the clock of `time.monotonic`."""
        row, start = self._rows[trial], self.running[trial]
        if row.progress >= RELIABLE_PROGRESS:
            return start + (time.monotonic() - start) / row.progress
        return start + self.durations.expected(self.requests[trial])
