"""Runner processes that serve one trial of a throughput study after another. Imports Ray inside functions.

Such a trial lasts seconds, and a runner process takes 2.5 CPU-seconds to start. Trials with as many runners follow one
another, and only the processes are handed on: in each of them a new runner is made (`MeasuredEnvRunner.renew`), with
its environments, policy and seeds, and the algorithm with its learner is a new one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from study.seams.rllib import runners_in, take_actors


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
        if actors:
            import ray

            for actor in actors:
                ray.kill(actor)
