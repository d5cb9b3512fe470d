"""What only trials of a throughput study do: begin together, and hand runner processes on. Imports no RLlib."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from study.errors import TrialError
from study.ray_private import runners_in, take_actors

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
    """Wait until all `size` trials of a group are ready to train, for `timeout_s` seconds at most.

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
            rule = f"all {size} trials must be up within startup_timeout_s={timeout_s:g} s to run side by side"
            fix = "See why the others failed, or raise resources.startup_timeout_s."
            raise TrialError(where="allocation", rule=rule, got=there, fix=fix)
        time.sleep(POLL_S)
    return meeting


class KeptRunners:
    """The runner processes that a trial has left for the next one in the same main process."""

    def __init__(self) -> None:
        """Keep none."""
        self._actors: list[Any] = []

    def keep(self, algorithm: Any) -> None:
        """Take the runner processes of an algorithm that has finished, so that its end does not end them."""
        self._actors = take_actors(algorithm.env_runner_group)

    @contextlib.contextmanager
    def used_by(self, num_env_runners: int) -> Iterator[bool]:
        """Let the algorithm that is built meanwhile use the processes; yield whether it does.

        Where there are not as many as it needs, they are ended, and RLlib starts its own.
        """
        if len(self._actors) != num_env_runners:
            self.end()
        actors, self._actors = self._actors, []
        with runners_in(actors) if actors else contextlib.nullcontext():
            yield bool(actors)

    def end(self) -> None:
        """End the processes that no trial needs any more."""
        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)
