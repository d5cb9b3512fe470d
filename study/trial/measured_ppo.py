"""RLlib's PPO with every phase of a training step timed raw. Imports RLlib.

The steps are those of `PPO.training_step` and `synchronous_parallel_sample` of RLlib 2.60. A2C is the same with other
values: see `study.space.parameters`.
"""

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)

from study.errors import TrialError
from study.trial.engine.sampling.runner import Sample
from study.trial.failures import was_lost
from study.trial.measure import StepMeasurement
from study.trial.measured_algorithm import MeasuredAlgorithm, StudyConfig, check_runner, losses_of

LEARNER_KEYS: Mapping[str, str] = {
    "kl": "mean_kl_loss",
    "entropy": "entropy",
    "policy_loss": "policy_loss",
    "vf_loss": "vf_loss",
    "vf_explained_var": "vf_explained_var",
}
"""Our metric -> RLlib's key."""


class StudyPPOConfig(StudyConfig, PPOConfig):
    """PPO's configuration."""


class MeasuredPPO(MeasuredAlgorithm, PPO):
    """PPO, or A2C by its configuration."""

    config_class = StudyPPOConfig

    def training_step(self) -> None:
        """Sample, learn and synchronise once."""
        clock = time.perf_counter
        with self.metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
            started = clock()
            rounds = self._sample_batch()
            sampling_time_s = clock() - started
        samples = [sample for runners in rounds for sample in runners]
        self.metrics.aggregate([each for _, metrics, _ in samples for each in metrics], key=ENV_RUNNER_RESULTS)
        updates_before = self._num_gradient_updates() or 0
        with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
            started = clock()
            results = self._update([episode for episodes, _, _ in samples for episode in episodes])
            learning_time_s = clock() - started
        updates = self._num_gradient_updates()
        learners_cpu_time_s, learners_peak_rss_mb = self.learners_used()
        learner = losses_of(results[0], LEARNER_KEYS)
        modules = set(results[0]) - {ALL_MODULES}
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        with self.metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)):
            started = clock()
            self.env_runner_group.sync_weights(
                from_worker_or_learner_group=self.learner_group, policies=modules, inference_only=True
            )
            sync_time_s = clock() - started
        self.last_step = StepMeasurement(
            sampling_time_s=sampling_time_s,
            learning_time_s=learning_time_s,
            sync_time_s=sync_time_s,
            rounds=tuple(tuple(measurement for _, _, measurement in runners) for runners in rounds),
            num_dropped_samples=self.env_runner_group.num_env_runners_dropped_lifetime(),
            num_restarts=self.env_runner_group.num_remote_worker_restarts(),
            num_gradient_updates=updates - updates_before if updates is not None else None,
            learners_cpu_time_s=learners_cpu_time_s,
            learners_peak_rss_mb=learners_peak_rss_mb,
            learner=learner,
        )

    def _update(self, episodes: list[Any]) -> list[dict[str, Any]]:
        sampled = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME))
        trained = self.metrics.peek((LEARNER_RESULTS, ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME), default=0)
        try:
            results: list[dict[str, Any]] = self.learner_group.update(
                episodes=episodes,
                timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: sampled, NUM_MODULE_STEPS_TRAINED_LIFETIME: trained},
                num_epochs=self.config.num_epochs,
                minibatch_size=self.config.minibatch_size,
                shuffle_batch_per_epoch=self.config.shuffle_batch_per_epoch,
            )
        except ray.exceptions.RayError as error:
            if not was_lost(error):
                raise
            raise self._dead(error, "learners", self._all_learners) from error
        self._check_learners(len(results))
        return results

    def _sample_batch(self) -> list[list[Sample]]:
        """Return rounds of samples, each in the order of the runners, until the batch is full."""
        rounds: list[list[Sample]] = []
        steps = 0
        while steps < self.config.total_train_batch_size:
            samples = self._sample_round()
            gained = sum(self._counted(sample) for sample in samples)
            if gained == 0:
                where, rule = "env runners", "a round of sampling must bring steps"
                raise TrialError(where=where, rule=rule, got="0", fix="Check the environment.")
            steps += gained
            rounds.append(samples)
        return rounds

    def _counted(self, sample: Sample) -> int:
        """Return the steps of a sample that count for the batch: of the environment, or of all agents."""
        episodes, _, measurement = sample
        if self.config.count_steps_by == "agent_steps":
            return sum(episode.agent_steps() for episode in episodes)
        return measurement.env_steps

    def _sample_round(self) -> list[Sample]:
        timeout_s = self.config.sample_timeout_s

        def late(where: str) -> TrialError:
            rule = f"a round of sampling must end within sample_timeout_s={timeout_s:g} s"
            fix = "Raise resources.sample_timeout_s, or look for an environment that hangs."
            return TrialError(where=where, rule=rule, got="no answer", fix=fix)

        if not self.config.num_env_runners:
            # The main process steps the lanes itself; RLlib sets no limit to that.
            runner = self.env_runner_group.local_env_runner
            sample = self.thread.within(timeout_s, runner.measured_sample, otherwise=late("sampling"))
            check_runner(sample[2])
            return [sample]
        try:
            samples: list[Sample] = self.env_runner_group.foreach_env_runner(
                "measured_sample", local_env_runner=False, timeout_seconds=timeout_s
            )
        except ray.exceptions.RayError as error:
            raise self._dead(error, "env runners", f"all {self.config.num_env_runners} must stay alive") from error
        samples.sort(key=lambda sample: sample[2].runner)
        for _, _, measurement in samples:
            check_runner(measurement)
        missing = set(range(1, self.config.num_env_runners + 1)) - {sample[2].runner for sample in samples}
        if missing:
            raise late(f"env runner {', '.join(map(str, sorted(missing)))}")
        return samples
