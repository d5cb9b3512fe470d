"""Trials that are timed side by side begin together. Imports Ray, and no RLlib: the meeting is a process of its own.

One that still starts its processes would disturb another that trains already, and would then be alone itself.
"""

import time
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from study.errors import TrialError

POLL_S = 0.05
"""How often a trial asks whether the others are there."""


class _Meeting:
    """Counts who is there; an actor, so that trials on different nodes find each other."""

    def __init__(self) -> None:
        self._there: set[int] = set()

    def arrive(self, trial: int) -> int:
        """Note a trial and return how many are there."""
        self._there.add(trial)
        return len(self._there)


def meet(name: str, size: int, *, trial: int, timeout_s: float) -> Any:
    """Wait until all trials of a group are ready to train.

    Args:
        name: Of the group.
        size: Trials in it.
        trial: This one's number.
        timeout_s: Seconds to wait.

    Returns:
        The meeting, to be kept while the trial lasts: it ends with its last reference, and others may still ask.

    Raises:
        TrialError: The others are not there in time.
    """
    outside = PlacementGroupSchedulingStrategy(placement_group=None)  # reserved CPUs are the trial's
    options: dict[str, Any] = {"name": name, "get_if_exists": True, "num_cpus": 0, "scheduling_strategy": outside}
    meeting = ray.remote(_Meeting).options(**options).remote()
    end = time.monotonic() + timeout_s
    while (there := ray.get(meeting.arrive.remote(trial))) < size:
        if time.monotonic() > end:
            raise TrialError(
                f"allocation: all {size} trials must be up within startup_timeout_s={timeout_s:g} s to run side by "
                f"side, got {there}. Fix: see why the others failed, or raise resources.startup_timeout_s."
            )
        time.sleep(POLL_S)
    return meeting
