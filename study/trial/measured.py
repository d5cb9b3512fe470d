"""RLlib's algorithms, measured: raw times and counts, errors for lost processes, a stop that cannot hang.

RLlib smooths its timers, and continues with fewer samples when a runner dies or is late. Three mixins go before an
algorithm's class, by what is known of its training step: `Phases` (PPO's), `Overlapping` (APPO's and IMPALA's), and
`Whole` for a step that nobody here knows. `measured_class` chooses. Imports RLlib.
"""

import contextlib
import itertools
import math
import shutil
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, NoReturn, TypeVar

import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPO
from ray.rllib.algorithms.impala import IMPALA
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import ALL_MODULES
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
from study.machine.host import read_peak_rss_mb
from study.ray_private import actors_of, kill_actors
from study.trial.engine.learning.asynchronous_learner import CountingLearner, Learnt
from study.trial.engine.sampling.runner import Sample, SampleReference
from study.trial.failures import SteadyThread, described, original, was_lost
from study.trial.measure import LEARNER_KEYS, RunnerMeasurement, StepMeasurement
from study.trial.places import Place

Result = TypeVar("Result")

ITERATION_S = 1.0
"""An iteration of APPO or IMPALA ends with the first sample after so many seconds, and so does not cost more than it
measures."""
_STOP_GRACE_S = 2.0
"""Runners that have not closed their environments after this long are killed."""


def measured_class(algorithm: type[Algorithm], kind: type[AlgorithmConfig]) -> type[Algorithm]:
    """Return an algorithm's class that measures itself; its empty configuration is of the class `kind`."""
    members = {"get_default_config": classmethod(lambda _: kind())}
    return type(f"Measured{algorithm.__name__}", (way_to_measure(algorithm), algorithm), members)


def way_to_measure(algorithm: type[Algorithm]) -> type["MeasuredAlgorithm"]:
    """Return the mixin for an algorithm: by its phases where its training step is the one that is known."""
    step = algorithm.training_step
    if issubclass(algorithm, IMPALA):  # which APPO is too
        return Overlapping if step in (IMPALA.training_step, APPO.training_step) else Whole
    return Phases if issubclass(algorithm, PPO) and step is PPO.training_step else Whole


class MeasuredAlgorithm(Algorithm):
    """An algorithm that exposes the raw measurement of its last iteration as `last_step`."""

    last_step: StepMeasurement | None = None
    _learners_cpu_s = 0.0
    thread: SteadyThread
    """The thread in which the environments of the main process are made, stepped and closed."""

    def pause(self) -> None:
        """Finish the work between two iterations; its time belongs to the iteration that has just ended."""

    def ask_learners(self, function: Callable[[Learner], Result]) -> list[Result]:
        """Return what `function` returns in each learner, in their order, or raise what it raises.

        RLlib leaves out learners that have died, and returns what was raised as if it were an answer.
        """
        answers = list(self.learner_group.foreach_learner(function).result_or_errors)
        for error in (answer.get() for answer in answers if not answer.ok):
            fail(error, "learners", self.config.num_learners)
        self._check_learners(len(answers))
        return [answer.get() for answer in answers]

    def _check_learners(self, num_answers: int) -> None:
        if num_answers < max(self.config.num_learners, 1):
            rule = f"all {self.config.num_learners} must stay alive"
            got, fix = f"{num_answers} answers", "Look for memory shortage, or a crash, on their nodes."
            raise TrialLostError(where="learners", rule=rule, got=got, fix=fix)

    def actor_of(self, place: Place) -> Any:
        """Return RLlib's actor of a runner or learner process."""
        if place.process == "learner":
            return actors_of(self.learner_group)[place.number - 1]
        return actors_of(self.env_runner_group)[place.number]

    def _step_measured(self, **measured: Any) -> StepMeasurement:
        """Return a measurement with what means the same for every algorithm."""
        cpu_time_s, peak_rss_mb = self.learners_used()
        common = {
            "num_dropped_samples": self.env_runner_group.num_env_runners_dropped_lifetime(),
            "num_restarts": self.env_runner_group.num_remote_worker_restarts(),
            "learners_cpu_time_s": cpu_time_s,
            "learners_peak_rss_mb": peak_rss_mb,
        }
        return StepMeasurement(**common | measured)

    def _late(self, where: str, rule: str, got: str = "no answer") -> TrialError:
        """Return the error for runners that did not answer in time."""
        rule = f"{rule} within sample_timeout_s={self.config.sample_timeout_s:g} s"
        fix = "Raise resources.sample_timeout_s, or look for an environment that hangs."
        return TrialError(where=where, rule=rule, got=got, fix=fix)

    def learners_used(self) -> tuple[float, float]:
        """Return CPU time since the last call, and peak memory in MB, of learners in processes of their own."""
        if not self.config.num_learners:
            return 0.0, 0.0  # the main process counts itself
        used = self.ask_learners(lambda _: (time.process_time(), read_peak_rss_mb()))
        cpu_s, peaks_mb = zip(*used, strict=True)
        before, self._learners_cpu_s = self._learners_cpu_s, math.fsum(cpu_s)
        return self._learners_cpu_s - before, math.fsum(peaks_mb)

    def cleanup(self) -> None:
        """Stop everything; a runner that does not answer is killed, so that this never hangs."""
        group = getattr(self, "env_runner_group", None)
        if group is not None:
            runner = group.local_env_runner
            if runner is not None and runner.env is not None:
                # In the thread that made them, unless that thread hangs in one of them.
                with contextlib.suppress(Exception):
                    self.thread.within(_STOP_GRACE_S, runner.stop, otherwise=TrialError())
                runner.env = None  # RLlib would close them again, here
            # Whatever fails while environments are closed must not keep the processes alive.
            with contextlib.suppress(Exception):
                group.foreach_env_runner(
                    "stop", local_env_runner=False, healthy_only=False, timeout_seconds=_STOP_GRACE_S
                )
            kill_actors(group)
        super().cleanup()
        shutil.rmtree(self.logdir, ignore_errors=True)

    def _setup_logdir(self) -> None:
        """Use a folder that goes when the trial goes; private in RLlib, which leaves an empty one in the user's home.

        Source: https://github.com/ray-project/ray/issues/46592
        """
        self._logdir = tempfile.mkdtemp(prefix="trial-")


class Phases(MeasuredAlgorithm):
    """PPO, and A2C by its configuration, with every phase of a training step timed raw.

    The steps are those of `PPO.training_step` and `synchronous_parallel_sample` of RLlib 2.60.
    """

    def training_step(self) -> None:
        """Sample, learn and synchronise once."""
        times: dict[str, float] = {}

        @contextlib.contextmanager
        def timed(name: str, timer: str) -> Iterator[None]:
            with self.metrics.log_time((TIMERS, timer)):
                started = time.perf_counter()
                yield
                times[name] = time.perf_counter() - started

        with timed("sampling_time_s", ENV_RUNNER_SAMPLING_TIMER):
            rounds = self._sample_batch()
        samples = [sample for runners in rounds for sample in runners]
        self.metrics.aggregate([each for _, metrics, _ in samples for each in metrics], key=ENV_RUNNER_RESULTS)
        updates_before = self.ask_learners(_optimizer_steps)[0] or 0
        with timed("learning_time_s", LEARNER_UPDATE_TIMER):
            results = self._update([episode for episodes, _, _ in samples for episode in episodes])
        updates, learner = self.ask_learners(_optimizer_steps)[0], losses_of(results[0])
        modules = set(results[0]) - {ALL_MODULES}
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        with timed("sync_time_s", SYNCH_WORKER_WEIGHTS_TIMER):
            self.env_runner_group.sync_weights(
                from_worker_or_learner_group=self.learner_group, policies=modules, inference_only=True
            )
        self.last_step = self._step_measured(
            **times,
            rounds=tuple(tuple(measurement for _, _, measurement in runners) for runners in rounds),
            num_gradient_updates=updates - updates_before if updates is not None else None,
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
            fail(error, "learners", self.config.num_learners)
        self._check_learners(len(results))
        return results

    def _sample_batch(self) -> list[list[Sample]]:
        """Return rounds of samples, each in the order of the runners, until the batch is full."""
        rounds: list[list[Sample]] = []
        by_agent = self.config.count_steps_by == "agent_steps"
        steps = 0
        while steps < self.config.total_train_batch_size:
            rounds.append(self._sample_round())
            gained = sum(
                sum(episode.agent_steps() for episode in episodes) if by_agent else measurement.env_steps
                for episodes, _, measurement in rounds[-1]
            )
            if gained == 0:
                rule = "a round of sampling must bring steps"
                raise TrialError(where="env runners", rule=rule, got="0", fix="Check the environment.")
            steps += gained
        return rounds

    def _sample_round(self) -> list[Sample]:
        timeout_s, rule = self.config.sample_timeout_s, "a round of sampling must end"
        expected = range(1, self.config.num_env_runners + 1)
        try:
            if expected:
                samples: list[Sample] = self.env_runner_group.foreach_env_runner(
                    "measured_sample", local_env_runner=False, timeout_seconds=timeout_s
                )
            else:  # the main process steps the lanes itself; RLlib sets no limit to that
                sample = self.env_runner_group.local_env_runner.measured_sample
                samples = [self.thread.within(timeout_s, sample, otherwise=self._late("sampling", rule))]
        except ray.exceptions.RayError as error:
            fail(error, "env runners", len(expected))
        samples.sort(key=lambda sample: sample[2].runner)
        for _, _, measurement in samples:
            check_runner(measurement)
        if missing := sorted({*expected} - {sample[2].runner for sample in samples}):
            raise self._late(f"env runner {', '.join(map(str, missing))}", rule)
        return samples


class Whole(MeasuredAlgorithm):
    """An algorithm whose training step nobody here knows: RLlib's others, and those of a person's own.

    Measured are the wall time of the whole iteration, and what every runner says of its own sampling. Sampling,
    learning and synchronisation have no times of their own: they are gaps, not zeros.
    """

    def step(self) -> dict[str, Any]:
        """Train one iteration as RLlib does, and measure it."""
        step: Callable[[], dict[str, Any]] = super().step
        late = TrialError(where="sampling", rule="must not hang", fix="Look for an environment that hangs.")
        try:
            if self.config.num_env_runners:
                results = step()
            else:  # in the thread that made the environments; RLlib sets no limit either
                results = self.thread.within(threading.TIMEOUT_MAX, step, otherwise=late)
        except ray.exceptions.RayError as error:
            fail(error, "env runners or learners")
        latest = self._taken()
        self.last_step = self._step_measured(
            rounds=(latest,),
            num_env_runners=sum(measurement.num_runners for measurement in latest),
            latest=latest,
            num_gradient_updates=None,
            learner=losses_of(results.get(LEARNER_RESULTS, {})),
        )
        return results

    def _taken(self) -> tuple[RunnerMeasurement, ...]:
        """Return what every runner measured since the last call."""
        expected = self.config.num_env_runners
        if not expected:
            return (self.env_runner_group.local_env_runner.taken(),)
        taken: list[RunnerMeasurement] = self.env_runner_group.foreach_env_runner(
            "taken", local_env_runner=False, timeout_seconds=self.config.sample_timeout_s
        )
        if len(taken) != expected:
            raise self._late("env runners", f"all {expected} must answer", str(len(taken)))
        return tuple(sorted(taken, key=lambda each: each.runner))


class Overlapping(MeasuredAlgorithm):
    """APPO and IMPALA: runners go on sampling while the learner learns.

    An iteration is a span of time, at least `ITERATION_S` and one train batch. Sampling and learning overlap, so that
    there are no phases. Measured instead: how long the runners sampled and the learner learnt in that span, each by its
    own clock, and how old the policy was that a sample was drawn with. An iteration before an evaluation ends when all
    work that was begun is done: else the policy would change while it is evaluated. Batches, queues and losses are
    RLlib's. This class asks the runners itself and waits for their samples; RLlib polls, and drops late ones.
    """

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
        while (
            sum(measurement.env_steps for measurement in self._arrived) < self.config.total_train_batch_size
            or time.perf_counter() - began < ITERATION_S
        ):
            super().training_step()
        self.last_step = self._measured()

    def pause(self) -> None:
        """Wait until the samples that are on their way have come and all batches are learnt from.

        What does not make up a batch waits for the next iteration, which asks the runners again.
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
        step = self._step_measured(
            rounds=(tuple(self._arrived),),
            num_dropped_samples=self._num_dropped_samples(),
            # One that has died fails the trial as soon as it is asked, or waited for.
            num_env_runners=self.env_runner_group.num_healthy_remote_workers(),
            latest=tuple(self._latest.values()),
            num_gradient_updates=updates,
            learner_busy_time_s=fmean(now.busy_s - before.busy_s for now, before in pairs),
            policy_lag=fmean(now.lags - before.lags for now, before in pairs) / updates if updates else None,
            learner=self._learnt[0].losses if updates else {},
        )
        self._learners_cpu_time_s += step.learners_cpu_time_s  # of the iteration, before and in a pause
        return replace(step, learners_cpu_time_s=self._learners_cpu_time_s)

    def _num_dropped_samples(self) -> int:
        """Return the samples lost so far: RLlib discards batches when too many wait for a learner process."""
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
        for _, _, measurement, _ in samples:
            check_runner(measurement)
            self._arrived.append(measurement)
            self._latest[measurement.runner] = measurement
        states = [connectors for *_, connectors in samples if connectors is not None]
        metrics = [each for _, of_runner, *_ in samples for each in of_runner]
        return [episodes for episodes, *_ in samples], states, metrics, set()

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
        now = time.monotonic()
        late = sorted(number for number, moment in (self._asked[each] for each in waiting) if now - moment > timeout_s)
        if late:
            raise self._late(f"env runner {', '.join(map(str, late))}", "a sample must come")
        samples = []
        for reference in {*first, *ready}:
            number, _ = self._asked.pop(reference)
            try:
                samples.append(ray.get(reference))
            except ray.exceptions.RayError as error:
                fail(error, f"env runner {number}")
            if self._asks:
                self._ask(number, actors[number])
        return samples

    def _ask(self, number: int, actor: Any) -> None:
        self._asked[actor.referenced_sample.remote()] = number, time.monotonic()


def fail(error: Exception, where: str, number: int = 0) -> NoReturn:
    """Raise what says that a process or node died, one of `number`, where that is the error; else the error itself."""
    if not was_lost(error):
        raise error
    rule = f"all {number} must stay alive" if number else "must stay alive"
    fix = "Look for memory shortage, or a crash, on that node."
    raise TrialError(where=where, rule=rule, got=described(original(error)), fix=fix) from error


def check_runner(measurement: RunnerMeasurement) -> None:
    """Raise what happened in a runner as `TrialError`, with the runner's own traceback as a note."""
    if measurement.error:
        where = f"env runner {measurement.runner}" if measurement.runner else "sampling in the main process"
        rule = "sampling must not fail"
        error = TrialError(where=where, rule=rule, got=measurement.error, fix=measurement.fix)
        # Indented: of the lines that begin with an exception, the last one is taken for what ended the trial.
        error.add_note(f"In {where}:\n{textwrap.indent(measurement.traceback, '  ')}")
        raise error


def _optimizer_steps(learner: Learner) -> int | None:
    """Return the steps of the optimizer that took most; None where one keeps no count."""
    steps = [0]  # no update yet
    for module_id in learner.module.keys():  # noqa: SIM118 (a module of RLlib, no dictionary)
        for _, optimizer in learner.get_optimizers_for_module(module_id):
            for state in itertools.islice(optimizer.state.values(), 1):
                if "step" not in state:
                    return None
                steps.append(int(state["step"]))
    return max(steps)


def losses_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return our metrics of the learner from what each module logged in an update; of several policies their means.

    What nobody logged is left out.
    """
    found: dict[str, list[float]] = {}
    for module, logged in results.items():
        if module != ALL_MODULES and isinstance(logged, Mapping):
            for name, keys in LEARNER_KEYS.items():
                if (key := next((key for key in keys if key in logged), None)) is not None:
                    value = logged[key].peek() if hasattr(logged[key], "peek") else logged[key]
                    found.setdefault(name, []).append(float(value[0] if isinstance(value, list) else value))
    return {name: math.fsum(values) / len(values) for name, values in found.items()}
