"""The trials that a session has still to run: first come first served, and later ones fill gaps for a while.

Ray gives CPUs to whoever fits, so among small trials one that needs 47 of 48 CPUs waits for ever; strict order, on the
other hand, leaves the cluster idle while the large one waits. So later trials overtake the first one that has no room,
but only for a share (`PATIENCE`) of the time that it takes itself; then nobody starts before it.
"""

import statistics
import time
from collections import deque
from collections.abc import Hashable, Iterable, Mapping

from study.planning import Plan
from study.records.ledger import TrialRow
from study.records.records import TrialRequest

PATIENCE = 0.5
"""The share of its own duration for which the first trial lets others overtake it."""
REMEMBERED = 100
"""Trials of a kind whose durations count: the last ones, so that the cost of asking does not grow with a study."""
LOOKAHEAD = 64
"""Trials of the queue that may overtake the first."""


class TrialQueue:
    """Waiting and running trials of one session.

    Attributes:
        requests: Trial -> its request, of all trials of the study that are known so far.
        waiting: Requests that are not dealt out yet, in the order of the plan.
        running: Trial -> its start, on the clock of `time.monotonic`, as is the `deadline` of the time budget.
    """

    def __init__(self, plan: Plan, rows: Mapping[int, TrialRow], *, deadline: float | None) -> None:
        """Queue what has not ended yet: `rows` are the states of the trials, as they change."""
        self.deadline = deadline
        self._plan = plan
        self.requests = {request.trial: request for request in plan.requests}
        self.waiting = [each for each in plan.requests if each.trial not in rows or not rows[each.trial].ended]
        self.running: dict[int, float] = {}
        self._durations: dict[Hashable, deque[float]] = {}
        """Kind of trial -> seconds that the last ones of it took which finished."""
        for row in rows.values():
            self.note_end(row)
        self._kept_for = plan.processes_kept_for(self.waiting[0]) if self.waiting else None
        self._overtaken: tuple[int, float] = (-1, 0.0)
        """The first trial in the queue, and since when it has had no room."""

    def replace(self, requests: Iterable[TrialRequest]) -> None:
        """Wait for these from now on, the trials of a stage that has just been decided on."""
        self.waiting = list(requests)
        self.requests |= {request.trial: request for request in self.waiting}

    def take_back(self, trial: int) -> None:
        """Let a trial wait again that ran."""
        self.running.pop(trial, None)
        self.waiting.append(self.requests[trial])
        self.waiting.sort(key=lambda request: request.trial)

    @property
    def part_ended(self) -> bool:
        """Whether the next trial needs another run of Tune, whose setting `reuse_actors` holds for a whole run."""
        next_one = self.waiting[0] if self.waiting and not self.running else None
        return next_one is not None and self._kept_for != self._plan.processes_kept_for(next_one)

    def begin_part(self) -> bool:
        """Begin the trials of the next run of Tune; return whether they reuse processes."""
        self._kept_for = self._plan.processes_kept_for(self.waiting[0])
        return self._kept_for is not None

    def next(self) -> TrialRequest | None:
        """Return the trial to start now; None when all have to wait. One larger than the cluster runs alone."""
        running = [self.requests[trial] for trial in self.running]
        free = self._plan.cluster.capacity - sum(map(self._cpus_held, running))
        if running and free <= 0:
            return None  # Tune asks so often that a closer look would cost it
        if not (startable := self.startable()):
            return None
        first, now = startable[0], time.monotonic()
        # Every trial needs as many GPUs, so that CPUs decide on the order; shares of a GPU are no binary fractions.
        if self._plan.needs(first).total.num_gpus * (len(running) + 1) > self._plan.cluster.num_gpus + 1e-9:
            return None
        if not running or self._cpus_held(first) <= free:
            return first
        if self._overtaken[0] != first.trial:
            self._overtaken = first.trial, now
        if now - self._overtaken[1] > PATIENCE * self._expected_s(first):
            return None
        return next((each for each in startable if self._cpus_held(each) <= free), None)

    def begin(self, request: TrialRequest) -> None:
        """Count a waiting trial among those that run."""
        self.waiting.remove(request)
        self.running[request.trial] = time.monotonic()

    def startable(self) -> list[TrialRequest]:
        """Return the head of the queue, without trials that by experience, not by a guess, would end too late."""
        if self.part_ended:
            return []
        head = [each for each in self.waiting[:LOOKAHEAD] if self._plan.processes_kept_for(each) == self._kept_for]
        if self.deadline is None:
            return head
        left = self.deadline - time.monotonic()
        known = [(each, self._durations.get(self._kind(each))) for each in head if left > 0]
        return [each for each, durations in known if not durations or statistics.median(durations) <= left]

    def note_end(self, row: TrialRow) -> None:
        """Take in a trial that ended; only one that finished says how long trials take that run as it did."""
        request = self.requests.get(row.trial)
        if request is None or row.status != "finished" or row.duration_s is None:
            return
        if row.execution == self._plan.needs(request).execution:
            self._durations.setdefault(self._kind(request), deque(maxlen=REMEMBERED)).append(row.duration_s)

    def _kind(self, request: TrialRequest) -> Hashable:
        return request.num_env_runners, request.iterations, request.variant, self._plan.needs(request).cell

    def _cpus_held(self, request: TrialRequest) -> int:
        """Return the CPUs that no other trial gets while this one runs: all of them where it is to run alone."""
        num_cpus = self._plan.needs(request).total.num_cpus
        return num_cpus if request.group is None else max(num_cpus, self._plan.cluster.capacity)

    def _expected_s(self, request: TrialRequest) -> float:
        """Return the seconds that a trial should take: the median of the last finished ones like it, else a guess."""
        durations = self._durations.get(self._kind(request))
        return statistics.median(durations) if durations else self._plan.needs(request).seconds
