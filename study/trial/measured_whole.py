"""Algorithms whose training step nobody here knows: RLlib's others, and those of a person's own. Imports RLlib.

What such a step does, and in which order, is the algorithm's. Measured is what means the same for each: the wall time
of the whole iteration, and what every runner says of its own sampling. Sampling, learning and synchronisation have
no times of their own: they are gaps, not zeros.
"""

import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.rllib.utils.metrics import LEARNER_RESULTS

from study.errors import TrialError
from study.trial.failures import was_lost
from study.trial.measure import RunnerMeasurement, StepMeasurement
from study.trial.measured_algorithm import MeasuredAlgorithm, losses_of
from study.trial.measured_ppo import LEARNER_KEYS


class MeasuredWhole(MeasuredAlgorithm):
    """Measures an iteration as a whole; goes before the algorithm's class. Its runners are `AsRLlib`."""

    def step(self) -> dict[str, Any]:
        """Train one iteration as RLlib does, and measure it."""
        try:
            results = self._step()
        except ray.exceptions.RayError as error:
            if not was_lost(error):
                raise
            raise self._dead(error, "env runners or learners") from error
        learners_cpu_time_s, learners_peak_rss_mb = self.learners_used()
        latest = self._taken()
        self.last_step = StepMeasurement(
            sampling_time_s=None,
            learning_time_s=None,
            sync_time_s=None,
            rounds=(latest,),
            num_dropped_samples=self.env_runner_group.num_env_runners_dropped_lifetime(),
            num_env_runners=sum(measurement.num_runners for measurement in latest),
            latest=latest,
            num_restarts=self.env_runner_group.num_remote_worker_restarts(),
            num_gradient_updates=None,
            learners_cpu_time_s=learners_cpu_time_s,
            learners_peak_rss_mb=learners_peak_rss_mb,
            learner=losses_of(results.get(LEARNER_RESULTS, {}), LEARNER_KEYS),
        )
        return results

    def _step(self) -> dict[str, Any]:
        """Train one iteration; where the main process has environments, in the thread that made them."""
        step: Callable[[], dict[str, Any]] = super().step
        if self.config.num_env_runners:
            return step()
        late = TrialError(where="sampling", rule="must not hang", fix="Look for an environment that hangs.")
        return self.thread.within(threading.TIMEOUT_MAX, step, otherwise=late)  # RLlib sets no limit either

    def _taken(self) -> tuple[RunnerMeasurement, ...]:
        """Return what every runner measured since the last call."""
        timeout_s, expected = self.config.sample_timeout_s, self.config.num_env_runners
        if not expected:
            return (self.env_runner_group.local_env_runner.taken(),)
        taken: list[RunnerMeasurement] = self.env_runner_group.foreach_env_runner(
            "taken", local_env_runner=False, timeout_seconds=timeout_s
        )
        if len(taken) != expected:
            rule = f"all {expected} must answer within sample_timeout_s={timeout_s:g} s"
            fix = "Raise resources.sample_timeout_s, or look for an environment that hangs."
            raise TrialError(where="env runners", rule=rule, got=str(len(taken)), fix=fix)
        return tuple(sorted(taken, key=lambda each: each.runner))
