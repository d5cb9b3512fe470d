"""RLlib's APPO and IMPALA, measured: runners go on sampling while the learner learns. Imports RLlib.

An iteration is a span of time, at least `ITERATION_S` and one train batch. Sampling and learning overlap, so that there
are no phases. Measured instead: how long the runners sampled and the learner learnt in that span, each by its own
clock, and how old the policy was that a sample was drawn with. An iteration before an evaluation ends when all work
that was begun is done. Otherwise runners and learner would go on beside the evaluation, where no clock counts, and the
policy would change while it is evaluated. Batches, queues and losses are RLlib's, except that returns go on beyond a
fragment (`BootstrappedLearner`). This module asks the runners itself and waits for their samples; RLlib polls, and
drops late ones.
"""

import math
import time
from statistics import fmean
from typing import Any

import ray
from ray.rllib.algorithms.appo import APPO, APPOConfig
from ray.rllib.algorithms.impala import IMPALA, IMPALAConfig
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import TrialError
from study.ray_private import actors_of
from study.trial.engine.learning.asynchronous_learner import CountingLearner, Learnt
from study.trial.engine.sampling.runner import SampleReference
from study.trial.measure import RunnerMeasurement, StepMeasurement
from study.trial.measured_algorithm import MeasuredAlgorithm, StudyConfig, check_runner

ITERATION_S = 1.0
"""An iteration ends with the first sample after so many seconds, and so does not cost more than it measures."""


class MeasuredAsynchronousAlgorithm(MeasuredAlgorithm):
    """What APPO and IMPALA have in common; goes before one of them."""

    def setup(self, config: Any) -> None:
        """Set up without samples on their way."""
        self._asked: dict[ray.ObjectRef, tuple[int, float]] = {}
        """What a runner was asked for -> its number, and when."""
        self._asks = True
        """Whether runners that are idle are asked for more."""
        self._arrived: list[RunnerMeasurement] = []
        self._latest: dict[int, RunnerMeasurement] = {}
        self._learnt = self._learnt_before = [Learnt()] * max(config.num_learners, 1)
        self._learners_cpu_time_s = 0.0
        super().setup(config)

    def training_step(self) -> None:
        """Take RLlib's steps until an iteration is over, and measure it."""
        began = time.perf_counter()
        self._arrived, self._learnt_before, self._learners_cpu_time_s = [], self._learnt, 0.0
        while self._env_steps < self.config.total_train_batch_size or time.perf_counter() - began < ITERATION_S:
            super().training_step()
        self.last_step = self._measured()

    def pause(self) -> None:
        """Wait until the samples that are on their way have come and all batches are learnt from.

        Belongs to the iteration that has just ended. What does not make up a batch waits for the next one, which asks
        the runners again.
        """
        self._asks = False
        try:
            while self._asked:
                super().training_step()
        finally:
            self._asks = True
        timeout_s = self.config.sample_timeout_s
        if not all(self.ask_learners(lambda learner: learner.finish(timeout_s))):
            rule = f"all batches must be learnt from within sample_timeout_s={timeout_s:g} s, they are not"
            fix = "Raise resources.sample_timeout_s, or give the learner more cores or a GPU."
            raise TrialError(where="learner", rule=rule, fix=fix)
        self.last_step = self._measured()

    def _measured(self) -> StepMeasurement:
        """Return what was measured since the iteration began."""
        self._learnt = self.ask_learners(CountingLearner.learnt_so_far)
        # RLlib drops what a learner process of its own raises.
        if failure := next((learnt.failure for learnt in self._learnt if learnt.failure), ""):
            raise TrialError(where="learner", rule="an update must not fail", got=failure, fix="See the learner's log.")
        pairs = list(zip(self._learnt, self._learnt_before, strict=True))
        updates = self._learnt[0].num_updates - self._learnt_before[0].num_updates
        learners_cpu_time_s, learners_peak_rss_mb = self.learners_used()
        self._learners_cpu_time_s += learners_cpu_time_s
        return StepMeasurement(
            sampling_time_s=None,
            learning_time_s=None,
            sync_time_s=None,
            rounds=(tuple(self._arrived),),
            num_dropped_samples=self._num_dropped_samples(),
            # One that has died fails the trial as soon as it is asked, or waited for.
            num_env_runners=self.env_runner_group.num_healthy_remote_workers(),
            latest=tuple(self._latest.values()),
            num_restarts=self.env_runner_group.num_remote_worker_restarts(),
            num_gradient_updates=updates,
            learners_cpu_time_s=self._learners_cpu_time_s,
            learners_peak_rss_mb=learners_peak_rss_mb,
            learner_busy_time_s=fmean(now.busy_s - before.busy_s for now, before in pairs),
            policy_lag=fmean(now.lags - before.lags for now, before in pairs) / updates if updates else None,
            learner=self._learnt[0].losses if updates else {},
        )

    @property
    def _env_steps(self) -> int:
        return sum(measurement.env_steps for measurement in self._arrived)

    def _num_dropped_samples(self) -> int:
        """Return the samples lost so far.

        RLlib discards a batch when as many as it allows (`max_requests_in_flight_per_learner`) are on their way to a
        learner process already; it counts the steps.
        """
        env_steps = self.learner_group.get_stats()["learner_group_ts_dropped_lifetime"]
        each = self.config.get_rollout_fragment_length() * self.config.num_envs_per_env_runner
        return int(self.env_runner_group.num_env_runners_dropped_lifetime() + math.ceil(env_steps / each))

    # --- sampling ----------------------------------------------------------------------------------------------

    def _sample_and_get_connector_states(self) -> tuple[list[Any], list[Any], list[Any], set[int]]:
        """Return the samples that have arrived, as RLlib's algorithm wants them; wait for the first.

        RLlib's private method polls, and drops samples that come late (https://github.com/ray-project/ray/issues/63302).
        Nobody has to be updated: runners fetch new weights, and the merged states of connectors, by themselves.
        """
        samples = self._fetch()
        for sample in samples:
            check_runner(sample.measurement)
            self._arrived.append(sample.measurement)
            self._latest[sample.measurement.runner] = sample.measurement
        states = [sample.connectors for sample in samples if sample.connectors is not None]
        metrics = [each for sample in samples for each in sample.metrics]
        return [sample.episodes for sample in samples], states, metrics, set()

    def _fetch(self) -> list[SampleReference]:
        """Ask every runner that is idle, wait for the first sample, and return all that are there."""
        actors = actors_of(self.env_runner_group)
        asked = {number for number, _ in self._asked.values()}
        for number in actors.keys() - asked if self._asks else ():
            self._ask(number, actors[number])
        timeout_s = self.config.sample_timeout_s
        oldest = min(moment for _, moment in self._asked.values())
        patience = max(oldest + timeout_s - time.monotonic(), 0.0)
        # The first one, and without waiting those beside it.
        first, _ = ray.wait(list(self._asked), num_returns=1, timeout=patience)
        ready, waiting = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        self._check_late([self._asked[reference] for reference in waiting], timeout_s)
        samples = []
        for reference in {*first, *ready}:
            number, _ = self._asked.pop(reference)
            try:
                samples.append(ray.get(reference))
            except ray.exceptions.RayError as error:
                raise self._dead(error, f"env runner {number}") from error
            if self._asks:
                self._ask(number, actors[number])
        return samples

    def _ask(self, number: int, actor: Any) -> None:
        self._asked[actor.referenced_sample.remote()] = number, time.monotonic()

    def _check_late(self, waiting: list[tuple[int, float]], timeout_s: float) -> None:
        late = sorted(number for number, moment in waiting if time.monotonic() - moment > timeout_s)
        if late:
            rule, got = f"a sample must come within sample_timeout_s={timeout_s:g} s", "no answer"
            fix = "Raise resources.sample_timeout_s, or look for an environment that hangs."
            raise TrialError(where=f"env runner {', '.join(map(str, late))}", rule=rule, got=got, fix=fix)

    # --- the policy --------------------------------------------------------------------------------------------

    def policy(self) -> RLModule:
        """Return the learner's policy without its value function: the main process samples nothing and has none.

        To be called in a pause: a learner at work would change it meanwhile.
        """
        module: RLModule = self.get_module()
        state = self.learner_group.get_state(
            components=f"learner/{COMPONENT_RL_MODULE}/{DEFAULT_MODULE_ID}", inference_only=True
        )
        module.set_state(state["learner"][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID])
        return module


class StudyAPPOConfig(StudyConfig, APPOConfig):
    """APPO's configuration."""


class StudyIMPALAConfig(StudyConfig, IMPALAConfig):
    """IMPALA's configuration."""


class MeasuredAPPO(MeasuredAsynchronousAlgorithm, APPO):
    """APPO."""

    config_class = StudyAPPOConfig


class MeasuredIMPALA(MeasuredAsynchronousAlgorithm, IMPALA):
    """IMPALA."""

    config_class = StudyIMPALAConfig
