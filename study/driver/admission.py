"""Which waiting trial may start now: first come first served, with backfill that hardly delays the first. Pure.

Ray gives CPUs to whoever fits, so among small trials one that needs 47 of 48 CPUs waits for ever; strict order, on the
other hand, leaves the cluster idle while the large one waits. Backfill as in batch schedulers (EASY) does neither: the
first trial in the queue gets a reservation at the moment when enough CPUs will be free, and a later one may overtake
only if it ends before that moment or fits beside the first. It may end a little later (`SLACK`): trials of one kind
last about as long and begin a few seconds one after the other, so that without slack those few seconds would leave
most of the cluster idle for a whole trial. The reservation itself is never moved later, which bounds the delay.
Sources: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; for the slack Talby and Feitelson, "Supporting
priorities and improving utilization of the IBM SP scheduler using slack-based backfilling", IPPS 1999.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLACK = 0.5
"""The share of its own duration by which a trial that overtakes may end after the reservation of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A trial that holds CPUs."""

    num_cpus: int
    end: float
    """Expected end, on the clock of `now`; a trial that is late is expected to end now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A trial in the queue."""

    num_cpus: int
    """Those of the whole cluster, where it must have no other trial beside it."""
    duration: float
    """Expected duration in seconds."""


def promise(first: Waiting, running: Sequence[Running], *, capacity: int, now: float) -> float:
    """Return when the first trial in the queue can start, as far as is known now."""
    free = capacity - sum(trial.num_cpus for trial in running)
    return now if not running or first.num_cpus <= free else _reservation(first, running, free=free, now=now)[0]


def admit(
    queue: Sequence[Waiting],
    running: Sequence[Running],
    *,
    capacity: int,
    now: float,
    promised: float = math.inf,
) -> int | None:
    """Return the index in `queue` of the trial to start now, or None when all have to wait.

    A trial larger than `capacity` (more processes than cores) runs alone.

    Args:
        queue: Trials in the order of the plan.
        running: Trials that hold CPUs.
        capacity: CPUs that trials may occupy side by side.
        now: Seconds, on the same clock as `Running.end`.
        promised: The earliest start that `promise` has said for the first trial so far: ends that turn out later than
            expected let nobody overtake for longer.
    """
    if not queue:
        return None
    free = capacity - sum(trial.num_cpus for trial in running)
    if not running or queue[0].num_cpus <= free:
        return 0
    start, beside = _reservation(queue[0], running, free=free, now=now)
    start = min(start, promised)
    for index, trial in enumerate(queue[1:], start=1):
        if trial.num_cpus <= free and (now + (1 - SLACK) * trial.duration <= start or trial.num_cpus <= beside):
            return index
    return None


def _reservation(first: Waiting, running: Sequence[Running], *, free: int, now: float) -> tuple[float, int]:
    """Return when the first trial can start, and the CPUs that are free beside it then."""
    moment = now
    for trial in sorted(running, key=lambda trial: trial.end):
        moment = max(trial.end, now)
        free += trial.num_cpus
        if free >= first.num_cpus:
            break
    return moment, free - first.num_cpus
