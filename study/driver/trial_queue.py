"""The trials that a session has still to run: first come first served, with backfill that hardly delays the first.

Ray gives CPUs to whoever fits, so among small trials one that needs 47 of 48 CPUs waits for ever; strict order, on the
other hand, leaves the cluster idle while the large one waits. Backfill as in batch schedulers (EASY) does neither: the
first trial in the queue gets a reservation at the moment when enough CPUs will be free, and a later one may overtake
only if it fits beside the first, or ends at most a little (`SLACK`) after that moment. Without slack trials of one
kind, which last about as long and begin seconds apart, would leave most of the cluster idle for a whole trial.
Sources: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; for the slack Talby and Feitelson, "Supporting
priorities and improving utilization of the IBM SP scheduler using slack-based backfilling", IPPS 1999.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence

from study.planning import Plan
from study.records.ledger import TrialRow
from study.records.records import TrialRequest

SLACK = 0.5
"""The share of its own duration by which a trial that overtakes may end after the reservation of the first."""
REMEMBERED = 100
"""Trials of a kind whose durations count: the last ones, so that the cost of asking does not grow with a study."""
LOOKAHEAD = 64
"""Trials of the queue that backfill looks at."""
RELIABLE_PROGRESS = 0.05
"""From this share of its budget on, a trial's own pace predicts its end."""
Span = tuple[int, float]
"""CPUs, and seconds: how long a waiting trial should take, or when one that runs should end."""


def admit(
    queue: Sequence[Span], running: Sequence[Span], *, capacity: int, now: float, promised: float = math.inf
) -> tuple[int | None, float]:
    """Return the index in `queue` of the trial to start now, None when all have to wait; and the first one's start.

    A trial larger than `capacity` (more processes than cores) runs alone.

    Args:
        queue: CPUs and expected duration of each waiting trial, in the order of the plan, at least one.
        running: CPUs and expected end of each that runs, on the clock of `now`; a late one is expected to end now.
        capacity: CPUs that trials may occupy side by side.
        now: Seconds.
        promised: The earliest start that earlier calls have returned for the first trial, which later ends of others
            do not put off.
    """
    first_cpus, free = queue[0][0], capacity - sum(cpus for cpus, _ in running)
    if not running or first_cpus <= free:
        return 0, min(now, promised)
    start, free_then = now, free
    for cpus, end in sorted(running, key=lambda each: each[1]):
        start, free_then = max(end, now), free_then + cpus
        if free_then >= first_cpus:
            break
    start, beside = min(start, promised), free_then - first_cpus
    for index, (cpus, duration) in enumerate(queue[1:], start=1):
        if cpus <= free and (now + (1 - SLACK) * duration <= start or cpus <= beside):
            return index, start
    return None, start


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
        self._plan, self._rows = plan, rows
        self.requests = {request.trial: request for request in plan.requests}
        self.waiting = [each for each in plan.requests if each.trial not in rows or not rows[each.trial].ended]
        self.running: dict[int, float] = {}
        self._durations: dict[Hashable, deque[float]] = {}
        """Kind of trial -> seconds that the last ones of it took which finished."""
        for row in rows.values():
            self.note_end(row)
        self._kept_for = plan.processes_kept_for(self.waiting[0]) if self.waiting else None
        self._promised: tuple[int, float] = (-1, math.inf)
        """The first trial in the queue, and the earliest start that was reckoned for it."""

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
        """Return the trial to start now; None when all have to wait."""
        cluster, running = self._plan.cluster, [self.requests[trial] for trial in self.running]
        if running and sum(map(self._cpus_held, running)) >= cluster.capacity:
            return None  # Tune asks so often that a closer look would cost it
        if not (startable := self.startable()):
            return None
        first, now = startable[0], time.monotonic()
        # Every trial needs as many GPUs, so that CPUs decide on the order; shares of a GPU are no binary fractions.
        if self._plan.needs(first).total.num_gpus * (len(running) + 1) > cluster.num_gpus + 1e-9:
            return None
        index, start = admit(
            [(self._cpus_held(each), self._expected_s(each)) for each in startable],
            [(self._cpus_held(each), self._end_of(each)) for each in running],
            capacity=cluster.capacity,
            now=now,
            promised=self._promised[1] if self._promised[0] == first.trial else math.inf,
        )
        self._promised = first.trial, start
        return None if index is None else startable[index]

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

    def _end_of(self, request: TrialRequest) -> float:
        progress, start = self._rows[request.trial].progress, self.running[request.trial]
        if progress >= RELIABLE_PROGRESS:
            return start + (time.monotonic() - start) / progress
        return start + self._expected_s(request)
