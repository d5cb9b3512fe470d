"""RLlib's APPO and IMPALA, measured: runners go on sampling while the learner learns. Imports RLlib.

An iteration is a span of time, at least `ITERATION_S` and one train batch. Sampling and learning overlap, so that there
are no phases; what there is instead is how long the runners sampled and the learner learnt in that span, each by its
own clock, and how old the policy was that a sample was drawn with. Batches, queues and losses are RLlib's, but that
returns go on beyond a fragment (`study.trial.learning.truncations`); the runners are asked by this module, which waits
for samples (RLlib polls) and misses none.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.rllib.algorithms.appo import APPO, APPOConfig
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.impala import IMPALA, IMPALAConfig
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.metrics import LEARNER_RESULTS, WEIGHTS_SEQ_NO

from study.errors import TrialError
from study.trial.failures import described
from study.trial.learning.truncations import BootstrappedLearner
from study.trial.measure import RunnerMeasurement, StepMeasurement
from study.trial.measured_algorithm import MeasuredAlgorithm, StudyConfig, check_runner, value_of
from study.trial.sampling.runner import SampleReference

ITERATION_S = 1.0
"""An iteration ends with the first sample after so many seconds, and so does not cost more than it measures."""
_KEYS = {
    "kl": ("mean_kl_loss",),
    "entropy": ("entropy",),
    "policy_loss": ("policy_loss", "mean_pi_loss"),
    "vf_loss": ("mean_vf_loss", "vf_loss"),
}
"""Our metric -> its key in APPO or IMPALA, which logs its value loss summed too."""
_ABSENT = object()


class _EndOfUpdate(threading.Event):
    """The end of an update as RLlib waits for it, without limit; but not for a thread that is gone."""

    failure: Exception | None = None

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        """Return once the update has ended.

        Raises:
            RuntimeError: The learner's thread has died.
        """
        while not super().wait(1.0 if timeout is None else timeout):
            if timeout is not None:
                return False
            if not self._thread.is_alive() and not self.is_set():
                why = type(self.failure).__name__ if self.failure else "without a reason"
                raise RuntimeError(f"the learner's thread has died: {why}: {self.failure}") from self.failure
        return True


class CountingLearner(Learner):
    """Adds up raw what its thread does: seconds of updates, their number, and how old the policies of samples were."""

    _learner_thread: Any

    def build(self) -> None:
        """Build as RLlib does, which starts the thread, once the sums are there."""
        self._busy_s, self._num_updates_so_far, self._lags, self._began = 0.0, 0, 0.0, math.nan
        super().build()
        thread = self._learner_thread
        self._agg_event = _EndOfUpdate(thread)
        thread._update_method = self._end_of_update_after(thread._update_method)

    def _end_of_update_after(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Return RLlib's update, which leaves behind what it raises: nobody sees the thread that it ends."""

        def updated(**arguments: Any) -> Any:
            try:
                return update(**arguments)
            except Exception as error:
                self._agg_event.failure = error
                raise

        return updated

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Begin an update."""
        self._began = time.perf_counter()
        super().before_gradient_based_update(timesteps=timesteps)

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """End an update."""
        super().after_gradient_based_update(timesteps=timesteps)
        self._busy_s += time.perf_counter() - self._began
        self._num_updates_so_far += 1

    def _compute_off_policyness(self, batch: dict[str, Any]) -> None:
        super()._compute_off_policyness(batch)
        rows = batch[DEFAULT_MODULE_ID]
        steps = rows[Columns.LOSS_MASK].bool()
        # The learner has counted this update already: what was sampled with the newest weights has a lag of 0.
        self._lags += float((self._weights_seq_no - 1 - rows[WEIGHTS_SEQ_NO][steps].double()).mean())

    def learnt_so_far(self) -> tuple[float, int, float, str]:
        """Return seconds of updates, their number, and the sum of their mean lags, since the start; and what failed."""
        failure = self._agg_event.failure
        return self._busy_s, self._num_updates_so_far, self._lags, described(failure) if failure else ""


class CountingAPPOLearner(CountingLearner, BootstrappedLearner, APPOTorchLearner):
    """APPO's."""


class CountingIMPALALearner(CountingLearner, BootstrappedLearner, IMPALATorchLearner):
    """IMPALA's."""


class MeasuredAsynchronousAlgorithm(MeasuredAlgorithm):
    """What APPO and IMPALA have in common; goes before one of them."""

    def setup(self, config: Any) -> None:
        """Set up without samples on their way."""
        self._asked: dict[ray.ObjectRef, tuple[int, float]] = {}
        """What a runner was asked for -> its number, and when."""
        self._arrived: list[RunnerMeasurement] = []
        self._learnt: tuple[float, int, float] = (0.0, 0, 0.0)
        super().setup(config)

    def training_step(self) -> None:
        """Take RLlib's steps until an iteration is over, and measure it."""
        began = time.perf_counter()
        self._arrived = []
        while self._env_steps < self.config.total_train_batch_size or time.perf_counter() - began < ITERATION_S:
            super().training_step()
        busy, updates, lags = self._learnt_since()
        learners_cpu_time_s, learners_peak_rss_mb = self.learners_used()
        self.last_step = StepMeasurement(
            sampling_time_s=None,
            learning_time_s=None,
            sync_time_s=None,
            rounds=(tuple(self._arrived),),
            num_dropped_samples=self.env_runner_group.num_env_runners_dropped_lifetime(),
            num_restarts=self.env_runner_group.num_remote_worker_restarts(),
            num_gradient_updates=updates,
            learners_cpu_time_s=learners_cpu_time_s,
            learners_peak_rss_mb=learners_peak_rss_mb,
            learner_busy_time_s=busy,
            policy_lag=lags / updates if updates else None,
            learner=self._statistics(),
        )

    @property
    def _env_steps(self) -> int:
        return sum(measurement.env_steps for measurement in self._arrived)

    def _learnt_since(self) -> tuple[float, int, float]:
        """Return what the learners did since the last call: seconds (their mean), updates, sum of lags (their mean)."""
        answers = self._ask_learners(lambda learner: learner.learnt_so_far())
        busy, updates, lags, failures = (list(values) for values in zip(*answers, strict=True))
        if failure := next(filter(None, failures), ""):  # RLlib drops what a learner process of its own raises
            raise TrialError(f"learner: an update must not fail, got {failure}. Fix: see the learner's log.")
        now = math.fsum(busy) / len(busy), int(updates[0]), math.fsum(lags) / len(lags)
        before, self._learnt = self._learnt, now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def _statistics(self) -> dict[str, float]:
        """Return what the learner logged about its last update, unsmoothed; what the algorithm lacks is left out."""
        found = {}
        for name, keys in _KEYS.items():
            if name == "kl" and not getattr(self.config, "use_kl_loss", False):
                continue  # APPO logs 0 where its loss has no such term
            logged = (self.metrics.peek((LEARNER_RESULTS, DEFAULT_MODULE_ID, key), default=_ABSENT) for key in keys)
            for stats in logged:
                if stats is not _ABSENT:
                    found[name] = value_of(stats)
                    break
        return found

    # --- sampling ----------------------------------------------------------------------------------------------

    def _sample_and_get_connector_states(self) -> tuple[list[Any], list[Any], list[Any], set[int]]:
        """Return the samples that have arrived, as RLlib's algorithm wants them; wait for the first.

        The connectors hold no state, and nobody has to be updated: runners fetch new weights by themselves.
        """
        samples = self._fetch()
        for _, _, measurement in samples:
            check_runner(measurement)
            self._arrived.append(measurement)
        return [reference for reference, _, _ in samples], [], [metrics for _, metrics, _ in samples], set()

    def _fetch(self) -> list[SampleReference]:
        """Ask every runner that is idle, wait for the first sample, and return all that are there."""
        actors = self.env_runner_group._worker_manager.actors()
        asked = {number for number, _ in self._asked.values()}
        for number, actor in actors.items():
            if number not in asked:
                self._ask(number, actor)
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
            self._ask(number, actors[number])
        return samples

    def _ask(self, number: int, actor: Any) -> None:
        self._asked[actor.referenced_sample.remote()] = number, time.monotonic()

    def _check_late(self, waiting: list[tuple[int, float]], timeout_s: float) -> None:
        late = sorted(number for number, moment in waiting if time.monotonic() - moment > timeout_s)
        if late:
            raise TrialError(
                f"env runner {', '.join(map(str, late))}: a sample must come within sample_timeout_s={timeout_s:g} s, "
                "got no answer. Fix: raise resources.sample_timeout_s, or look for an environment that hangs."
            )

    # --- the policy --------------------------------------------------------------------------------------------

    def policy(self) -> RLModule:
        """Return the learner's policy without its value function: the main process samples nothing and has none."""
        module: RLModule = self.get_module()
        state = self.learner_group.get_state(
            components=f"learner/{COMPONENT_RL_MODULE}/{DEFAULT_MODULE_ID}", inference_only=True
        )
        module.set_state(state["learner"][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID])
        return module


class StudyAPPOConfig(StudyConfig, APPOConfig):
    """APPO's configuration."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or MeasuredAPPO)


class StudyIMPALAConfig(StudyConfig, IMPALAConfig):
    """IMPALA's configuration."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or MeasuredIMPALA)


class MeasuredAPPO(MeasuredAsynchronousAlgorithm, APPO):
    """APPO."""

    @classmethod
    def get_default_config(cls) -> StudyAPPOConfig:
        """Return an empty configuration of this algorithm."""
        return StudyAPPOConfig()


class MeasuredIMPALA(MeasuredAsynchronousAlgorithm, IMPALA):
    """IMPALA."""

    @classmethod
    def get_default_config(cls) -> StudyIMPALAConfig:
        """Return an empty configuration of this algorithm."""
        return StudyIMPALAConfig()
