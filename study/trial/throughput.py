"""What only trials of a throughput study do: hand runner processes on. Imports no RLlib."""

import contextlib
from collections.abc import Iterator
from typing import Any

import ray

from study.ray_private import runners_in, take_actors


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
