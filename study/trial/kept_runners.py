"""Runner processes that go on from one trial of a throughput study to the next. Imports Ray and RLlib.

Such trials last seconds, and a runner process takes 2.5 CPU-seconds to start. Trials of as many runners follow one
another, and nothing but the processes is handed on: every runner is made anew inside its own
(`MeasuredEnvRunner.renew`), and the algorithm with its learner is a new one.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.rllib.algorithms import algorithm
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from study.trial.measured_algorithm import MeasuredAlgorithm


def taken_from(finished: MeasuredAlgorithm) -> list[Any]:
    """Return the runner actors of an algorithm, in their order, and leave it without them."""
    manager = finished.env_runner_group._worker_manager
    return [manager.remove_actor(number) for number in sorted(manager.actor_ids())]


def stop(actors: Sequence[Any]) -> None:
    """End runner processes that no trial needs any more."""
    for actor in actors:
        ray.kill(actor)


@contextlib.contextmanager
def in_processes_of(actors: Sequence[Any]) -> Iterator[None]:
    """Let the algorithm that is built meanwhile make its runners in these processes; it must need as many.

    RLlib offers no way to hand actors over, so its name for the class of runner groups means ours for a while: a
    process builds one algorithm at a time.
    """

    class Renewed(EnvRunnerGroup):
        def add_workers(self, num_workers: int, validate: bool = False) -> None:
            renewals = [
                actor.renew.remote(
                    config=self._remote_config_obj_ref,
                    worker_index=number,
                    num_workers=num_workers,
                    tune_trial_id=self._tune_trial_id,
                    spaces=None,
                )
                for number, actor in enumerate(actors, start=1)
            ]
            ray.get(renewals)
            self._worker_manager.add_actors(list(actors))

    if not actors:
        yield
        return
    algorithm.EnvRunnerGroup = Renewed
    try:
        yield
    finally:
        algorithm.EnvRunnerGroup = EnvRunnerGroup
