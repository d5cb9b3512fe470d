"""RLlib's PPO with every phase of a training step timed raw and no sample lost in silence. Imports RLlib.

The steps are those of `PPO.training_step` and `synchronous_parallel_sample` of RLlib 2.60; what differs is
that RLlib smooths its timers and goes on with a smaller or doubled batch when a runner dies or is late.
"""

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
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

from study.errors import TrialError, TrialLostError
from study.space.spec import Standardization
from study.trial.deadline import SteadyThread
from study.trial.failures import described, original, was_lost
from study.trial.measure import RunnerMeasurement, StepMeasurement, read_peak_rss_mb
from study.trial.places import NODE_DEATH_S, Place, lost
from study.trial.sampling.lanes import LaneLayout
from study.trial.sampling.runner import Sample

Result = TypeVar("Result")

_LEARNER_KEYS: Mapping[str, str] = {
    "kl": "mean_kl_loss",
    "entropy": "entropy",
    "policy_loss": "policy_loss",
    "vf_loss": "vf_loss",
    "vf_explained_var": "vf_explained_var",
}
"""Our metric -> RLlib's key."""
_STOP_GRACE_S = 2.0
"""Runners that have not closed their environments after this long are killed."""


class StudyPPOConfig(PPOConfig):
    """RLlib's configuration with what a study adds to it.

    Attributes:
        lane_layout: The lanes of the trial and the processes that step them; None: one process per runner.
        standardization: `steps` or `rllib`: what the lean learner standardises advantages over.
        fallbacks: One line for each of our components that could not serve, and was replaced by RLlib's.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or MeasuredPPO)
        self.lane_layout: LaneLayout | None = None
        self.standardization: Standardization = "steps"
        self.fallbacks: list[str] = []


class MeasuredPPO(PPO):
    """PPO that exposes the raw measurement of its last training step as `last_step`."""

    last_step: StepMeasurement | None = None
    _learners_cpu_s = 0.0
    thread: SteadyThread
    """Made the environments of the main process, and steps and closes them."""
    places: Sequence[Place] = ()
    """Where the processes of the trial are, once they are up."""

    @classmethod
    def get_default_config(cls) -> StudyPPOConfig:
        """Return an empty configuration of this algorithm."""
        return StudyPPOConfig()

    def training_step(self) -> None:
        """Sample, learn and synchronise once."""
        clock = time.perf_counter
        with self.metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
            started = clock()
            rounds = self._sample_batch()
            sampling_time_s = clock() - started
        samples = [sample for runners in rounds for sample in runners]
        self.metrics.aggregate([metrics for _, metrics, _ in samples], key=ENV_RUNNER_RESULTS)
        updates_before = self._num_gradient_updates() or 0
        with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
            started = clock()
            results = self._update([episode for episodes, _, _ in samples for episode in episodes])
            learning_time_s = clock() - started
        updates = self._num_gradient_updates()
        learners_cpu_time_s, learners_peak_rss_mb = self.learners_used()
        learner = {name: _value(results[0][DEFAULT_MODULE_ID].get(key)) for name, key in _LEARNER_KEYS.items()}
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
            raise self._dead(error, self._all_learners) from error
        self._check_learners(len(results))
        return results

    @property
    def _all_learners(self) -> str:
        return f"learners: all {self.config.num_learners}"

    def _ask_learners(self, function: Callable[[Learner], Result]) -> list[Result]:
        """Return what `function` returns in each learner; RLlib leaves out those that have died."""
        answers = list(self.learner_group.foreach_learner(function).result_or_errors)
        for answer in answers:
            if not answer.ok and was_lost(answer.get()):
                raise self._dead(answer.get(), self._all_learners) from answer.get()
        self._check_learners(len(answers))
        return [answer.get() for answer in answers]

    def _check_learners(self, num_answers: int) -> None:
        if num_answers < max(self.config.num_learners, 1):
            raise TrialLostError(
                f"{self._all_learners} must stay alive, got {num_answers} answers. "
                "Fix: look for memory shortage, or a crash, on their nodes."
            )

    def _sample_batch(self) -> list[list[Sample]]:
        """Return rounds of samples, each in the order of the runners, until the batch is full."""
        rounds: list[list[Sample]] = []
        env_steps = 0
        while env_steps < self.config.total_train_batch_size:
            samples = self._sample_round()
            gained = sum(measurement.env_steps for _, _, measurement in samples)
            if gained == 0:
                raise TrialError(
                    "env runners: a round of sampling must bring steps, got 0. Fix: check the environment."
                )
            env_steps += gained
            rounds.append(samples)
        return rounds

    def _sample_round(self) -> list[Sample]:
        timeout_s = self.config.sample_timeout_s
        late = (
            f"a round of sampling must end within sample_timeout_s={timeout_s:g} s, got no answer. "
            "Fix: raise resources.sample_timeout_s, or look for an environment that hangs."
        )
        if not self.config.num_env_runners:
            # The main process steps the lanes itself; RLlib sets no limit to that.
            runner = self.env_runner_group.local_env_runner
            sample = self.thread.within(timeout_s, runner.measured_sample, otherwise=f"sampling: {late}")
            _check_runner(sample[2])
            return [sample]
        try:
            samples: list[Sample] = self.env_runner_group.foreach_env_runner(
                "measured_sample", local_env_runner=False, timeout_seconds=timeout_s
            )
        except ray.exceptions.RayError as error:
            raise self._dead(error, f"env runners: all {self.config.num_env_runners}") from error
        samples.sort(key=lambda sample: sample[2].runner)
        for _, _, measurement in samples:
            _check_runner(measurement)
        missing = set(range(1, self.config.num_env_runners + 1)) - {sample[2].runner for sample in samples}
        if missing:
            raise TrialError(f"env runner {', '.join(map(str, sorted(missing)))}: {late}")
        return samples

    def _dead(self, error: ray.exceptions.RayError, who: str) -> TrialError:
        """Return what to say of a runner or learner that died: by itself, or with its node."""
        # A process that crashed is reported by its node; where nobody reports, the node may be gone.
        silent = isinstance(error, (ray.exceptions.ActorUnavailableError, ray.exceptions.NodeDiedError))
        gone = lost(self.places, wait_s=NODE_DEATH_S if silent else 1.0)
        what = f"{gone}: its node has died" if gone else described(original(error))
        fix = "see why that node went" if gone else "look for memory shortage, or a crash, on that node"
        return TrialError(f"{who} must stay alive, got {what}. Fix: {fix}.")

    def actor_of(self, place: Place) -> Any:
        """Return RLlib's actor of a runner or learner process."""
        if place.process == "learner":
            return self.learner_group._worker_manager.actors()[place.number - 1]
        return self.env_runner_group._worker_manager.actors()[place.number]

    def of_learners(self, function: Callable[[int], Result]) -> list[Result]:
        """Return what `function` of its number (from 1) returns in each learner process; empty where there is none."""
        if not self.config.num_learners:
            return []
        calls = [
            self.learner_group.foreach_learner(lambda _, number=number: function(number), remote_actor_ids=[number - 1])
            for number in range(1, self.config.num_learners + 1)
        ]
        return [call.result_or_errors[0].get() for call in calls]

    def _num_gradient_updates(self) -> int | None:
        """Return the updates since the start, by the optimizer's own count; None when it keeps none."""
        return self._ask_learners(_optimizer_steps)[0]

    def learners_used(self) -> tuple[float, float]:
        """Return CPU time since the last call, and peak memory in MB, of learners in processes of their own."""
        if not self.config.num_learners:
            return 0.0, 0.0  # the main process counts itself
        cpu_s, peaks_mb = zip(*self._ask_learners(_usage), strict=True)
        before, self._learners_cpu_s = self._learners_cpu_s, math.fsum(cpu_s)
        return self._learners_cpu_s - before, math.fsum(peaks_mb)

    def cleanup(self) -> None:
        """Stop everything; a runner that does not answer is killed, so that this never hangs."""
        group = getattr(self, "env_runner_group", None)
        if group is not None:
            self._close_own_environments()
            # Whatever fails while environments are closed must not keep the processes alive.
            with contextlib.suppress(Exception):
                group.foreach_env_runner(
                    "stop", local_env_runner=False, healthy_only=False, timeout_seconds=_STOP_GRACE_S
                )
            group._worker_manager.clear()  # kills them
        super().cleanup()
        shutil.rmtree(self.logdir, ignore_errors=True)

    def _close_own_environments(self) -> None:
        """Close those of the main process in the thread that made them, unless that thread hangs in one of them."""
        runner = self.env_runner_group.local_env_runner
        if runner is None or runner.env is None:
            return
        with contextlib.suppress(Exception):
            self.thread.within(_STOP_GRACE_S, runner.stop, otherwise="")
        runner.env = None  # RLlib would close them again, here

    def _setup_logdir(self) -> None:
        """Use a folder that goes when the trial goes: RLlib would leave an empty one in the user's home."""
        self._logdir = tempfile.mkdtemp(prefix="ppo-")


def _check_runner(measurement: RunnerMeasurement) -> None:
    if measurement.error:
        where = f"env runner {measurement.runner}" if measurement.runner else "sampling in the main process"
        error = TrialError(f"{where}: sampling must not fail, got {measurement.error}. Fix: {measurement.fix}.")
        error.add_note(f"In {where}:\n{measurement.traceback}")
        raise error


def _usage(learner: Learner) -> tuple[float, float]:
    return time.process_time(), read_peak_rss_mb()


def _optimizer_steps(learner: Learner) -> int | None:
    optimizer = learner.get_optimizer(DEFAULT_MODULE_ID)
    for state in optimizer.state.values():
        return int(state["step"]) if "step" in state else None
    return 0  # no update yet


def _value(stats: Any) -> float:
    """Return the number inside RLlib's statistics object; nan when RLlib did not report it."""
    if stats is None:
        return float("nan")
    value = stats.peek() if hasattr(stats, "peek") else stats
    return float(value[0] if isinstance(value, list) else value)
