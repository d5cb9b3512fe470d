"""RLlib's algorithms, measured: raw times and counts, errors for lost processes, waits that end. Imports RLlib.

RLlib smooths its timers, continues with fewer samples when a runner dies or is late, and waits for a learner without
limit. Three mixins go before an algorithm's class, by what is known of its training step: `Phases` (PPO's),
`Overlapping` (APPO's and IMPALA's), and `Whole` for a step that nobody here knows. `measured_class` chooses.
"""

import contextlib
import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from ray.rllib.utils import metrics as of_rllib

from study.errors import TrialError, TrialLostError
from study.machine.host import read_peak_rss_mb
from study.ray_private import actors_of, kill_actors
from study.trial.engine.learning.asynchronous_learner import CountingLearner, Learnt
from study.trial.engine.sampling.runner import Sample, SampleReference
from study.trial.failures import SteadyThread, described, original, was_lost
from study.trial.measure import LEARNER_KEYS, RunnerMeasurement, StepMeasurement

Result = TypeVar("Result")

ITERATION_S = 1.0
"""An iteration of APPO or IMPALA ends with the first sample after so many seconds, and so does not cost more than it
measures."""
_WAITS_OF_AN_ITERATION = 10
"""A training step that nobody here knows may sample and learn so often."""
_HERE = "sampling in the main process"
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

    last_step: StepMeasurement
    thread: SteadyThread
    """Makes, steps and closes the environments of the main process, and learns."""
    _learners_cpu_s = 0.0

    def pause(self) -> None:
        """Finish the work between two iterations; its time belongs to the iteration that has just ended."""

    def wait_for(self, where: str, rule: str, function: Callable[[], Result], *, times: int = 1) -> Result:
        """Return what `function` returns, run in the trial's thread, within so many times `sample_timeout_s`."""
        try:
            limit_s = times * self.config.sample_timeout_s
            return self.thread.within(limit_s, function, otherwise=self._late(where, rule, times=times))
        except ray.exceptions.RayError as error:
            fail(error, where)

    def _late(self, where: str, rule: str, *, times: int = 1) -> TrialError:
        limit = f"{f'{times} times ' if times > 1 else ''}sample_timeout_s={self.config.sample_timeout_s:g} s"
        why = "give the learner more cores" if where == "learner" else "look for an environment that hangs"
        fix = f"Raise resources.sample_timeout_s, or {why}."
        return TrialError(where=where, rule=f"{rule} within {limit}", got="no answer", fix=fix)

    def ask_runners(self, method: str, rule: str) -> list[Any]:
        """Return what a method of each process that samples returns, in their order; RLlib leaves out who is late."""
        actors = sorted(actors_of(self.env_runner_group).items())
        if not self.config.num_env_runners:
            return [self.wait_for(_HERE, rule, getattr(self.env_runner_group.local_env_runner, method))]
        if self.config.hosted:
            return self.wait_for(_HERE, rule, lambda: [actor.ask(method) for _, actor in actors])
        asked = {getattr(actor, method).remote(): number for number, actor in actors}
        _, waiting = ray.wait(list(asked), num_returns=len(asked), timeout=self.config.sample_timeout_s)
        if waiting:
            raise self._late(_named(asked[each] for each in waiting), rule)
        return [_answer(reference, number) for reference, number in asked.items()]

    def ask_learners(self, function: Callable[[Learner], Result], *, times: int = 1) -> list[Result]:
        """Return what `function` returns in each learner, in their order; RLlib leaves out learners that have died."""
        ask = self.learner_group.foreach_learner
        answers = self.wait_for("learner", "must answer", lambda: list(ask(function).result_or_errors), times=times)
        for error in (answer.get() for answer in answers if not answer.ok):  # RLlib returns what was raised
            fail(error, "learner")
        return [answer.get() for answer in self._of_all_learners(answers)]

    def _of_all_learners(self, answers: list[Result]) -> list[Result]:
        if len(answers) < max(self.config.num_learners, 1):
            rule, got = f"all {self.config.num_learners} must stay alive", f"{len(answers)} answers"
            fix = "Look for memory shortage, or a crash, on their nodes."
            raise TrialLostError(where="learner", rule=rule, got=got, fix=fix)
        return answers

    def learners_used(self) -> tuple[float, float]:
        """Return CPU time since the last call, and peak memory in MB, of learners in processes of their own."""
        if not self.config.num_learners:
            return 0.0, 0.0  # the main process counts itself
        used = self.ask_learners(lambda _: (time.process_time(), read_peak_rss_mb()))
        cpu_s, peaks_mb = zip(*used, strict=True)
        before, self._learners_cpu_s = self._learners_cpu_s, math.fsum(cpu_s)
        return self._learners_cpu_s - before, math.fsum(peaks_mb)

    def _step_measured(self, **measured: Any) -> StepMeasurement:
        cpu_time_s, peak_rss_mb = self.learners_used()
        common = {
            "num_dropped_samples": self.env_runner_group.num_env_runners_dropped_lifetime(),
            "num_restarts": self.env_runner_group.num_remote_worker_restarts(),
            "learners_cpu_time_s": cpu_time_s,
            "learners_peak_rss_mb": peak_rss_mb,
        }
        return StepMeasurement(**common | measured)

    def cleanup(self) -> None:
        """Stop everything; a runner that does not answer is killed, so that this never hangs."""
        if (group := getattr(self, "env_runner_group", None)) is not None:
            runner = group.local_env_runner
            remote = {"local_env_runner": False, "healthy_only": False, "timeout_seconds": _STOP_GRACE_S}
            stops: list[Callable[[], Any]] = [lambda: group.foreach_env_runner("stop", **remote)]
            if runner is not None and runner.env is not None:
                stops.append(runner.stop)
            for stop in stops:  # whatever fails while environments are closed must not keep the processes alive
                with contextlib.suppress(Exception):  # the thread that made them may hang in one of them
                    self.thread.within(2 * _STOP_GRACE_S, stop, otherwise=TrialError())
            if runner is not None:
                runner.env = None  # RLlib would close them again, here
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
            with self.metrics.log_time((of_rllib.TIMERS, timer)):
                started = time.perf_counter()
                yield
                times[name] = time.perf_counter() - started

        with timed("sampling_time_s", of_rllib.ENV_RUNNER_SAMPLING_TIMER):
            rounds = self._sample_batch()
        samples = [*itertools.chain(*rounds)]
        self.metrics.aggregate([metrics for _, metrics, _ in samples], key=of_rllib.ENV_RUNNER_RESULTS)
        updates_before = self.ask_learners(_optimizer_steps)[0] or 0
        with timed("learning_time_s", of_rllib.LEARNER_UPDATE_TIMER):
            episodes = [episode for of_runner, _, _ in samples for episode in of_runner]
            results = self.wait_for("learner", "an update must end", lambda: self._update(episodes))
        updates = self.ask_learners(_optimizer_steps)[0]
        learner, modules = losses_of(results[0]), set(results[0]) - {ALL_MODULES}
        self.metrics.aggregate(results, key=of_rllib.LEARNER_RESULTS)
        with timed("sync_time_s", of_rllib.SYNCH_WORKER_WEIGHTS_TIMER):
            given = {"from_worker_or_learner_group": self.learner_group, "policies": modules, "inference_only": True}
            send = self.env_runner_group.sync_weights
            self.wait_for("learner", "its weights must come", lambda: send(**given))
        self.last_step = self._step_measured(
            **times,
            samples=tuple(measurement for _, _, measurement in samples),
            num_sampling_rounds=len(rounds),
            num_gradient_updates=updates - updates_before if updates is not None else None,
            learner=learner,
        )

    def _update(self, episodes: list[Any]) -> list[dict[str, Any]]:
        sampled, trained = of_rllib.NUM_ENV_STEPS_SAMPLED_LIFETIME, of_rllib.NUM_MODULE_STEPS_TRAINED_LIFETIME
        results: list[dict[str, Any]] = self.learner_group.update(
            episodes=episodes,
            timesteps={
                sampled: self.metrics.peek((of_rllib.ENV_RUNNER_RESULTS, sampled)),
                trained: self.metrics.peek((of_rllib.LEARNER_RESULTS, ALL_MODULES, trained), default=0),
            },
            num_epochs=self.config.num_epochs,
            minibatch_size=self.config.minibatch_size,
            shuffle_batch_per_epoch=self.config.shuffle_batch_per_epoch,
        )
        return self._of_all_learners(results)

    def _sample_batch(self) -> list[list[Sample]]:
        """Return rounds of samples, each in the order of the runners, until the batch is full."""
        rounds: list[list[Sample]] = []
        by_agent, steps = self.config.count_steps_by == "agent_steps", 0
        while steps < self.config.total_train_batch_size:
            rounds.append(self.ask_runners("measured_sample", "a round of sampling must end"))
            gained = 0
            for episodes, _, measurement in rounds[-1]:
                if measurement.failure is not None:
                    raise measurement.failure
                gained += sum(each.agent_steps() for each in episodes) if by_agent else measurement.env_steps
            if gained == 0:
                rule = "a round of sampling must bring steps"
                raise TrialError(where="env runners", rule=rule, got="0", fix="Check the environment.")
            steps += gained
        return rounds


class Whole(MeasuredAlgorithm):
    """An algorithm whose training step nobody here knows: RLlib's others, and those of a person's own.

    Measured are the wall time of the whole iteration, and what every runner says of its own sampling. Sampling,
    learning and synchronisation have no times of their own: they are gaps, not zeros.
    """

    def step(self) -> dict[str, Any]:
        """Train one iteration as RLlib does, and measure it."""
        step: Callable[[], dict[str, Any]] = super().step
        results = self.wait_for("sampling and learning", "an iteration must end", step, times=_WAITS_OF_AN_ITERATION)
        samples = tuple(self.ask_runners("taken", "must say what it has sampled"))
        losses = losses_of(results.get(of_rllib.LEARNER_RESULTS, {}))
        self.last_step = self._step_measured(samples=samples, num_gradient_updates=None, learner=losses)
        return results


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
        self._learnt_at_s = math.inf
        """When an update was last seen to have ended, or the first iteration began."""
        self._learners_cpu_time_s = 0.0
        super().setup(config)

    def training_step(self) -> None:
        """Take RLlib's steps until an iteration is over, and measure it."""
        began = time.perf_counter()
        self._learnt_at_s = min(self._learnt_at_s, began)
        self._arrived, self._learnt_before, self._learners_cpu_time_s = [], self._learnt, 0.0
        while (
            sum(measurement.env_steps for measurement in self._arrived) < self.config.total_train_batch_size
            or time.perf_counter() - began < ITERATION_S
        ):
            self._step_of_rllib()
        self.last_step = self._measured()
        if self.last_step.num_gradient_updates:
            self._learnt_at_s = time.perf_counter()
        elif time.perf_counter() - self._learnt_at_s > self.config.sample_timeout_s:
            raise self._late("learner", "an update must end")

    def pause(self) -> None:
        """Wait until the samples that are on their way have come and all batches are learnt from.

        What does not make up a batch waits for the next iteration, which asks the runners again.
        """
        self._asks = False
        try:
            while self._asked:
                self._step_of_rllib()
        finally:
            self._asks = True
        limit_s = self.config.sample_timeout_s
        if not all(self.ask_learners(lambda learner: learner.finish(limit_s), times=2)):
            raise self._late("learner", "all batches must be learnt from")
        self.last_step = self._measured()

    def _step_of_rllib(self) -> None:
        """Take a step of RLlib's, which waits without limit where its learner does not come to an end."""
        # Samples are waited for as long at most, and have an error of their own.
        self.wait_for("learner", "an update must end", super().training_step, times=2)

    def _measured(self) -> StepMeasurement:
        self._learnt = self.ask_learners(CountingLearner.learnt_so_far)
        # RLlib drops what a learner process of its own raises.
        if failure := next((learnt.failure for learnt in self._learnt if learnt.failure), ""):
            raise TrialError(where="learner", rule="an update must not fail", got=failure, fix="See the learner's log.")
        pairs = list(zip(self._learnt, self._learnt_before, strict=True))
        updates = self._learnt[0].num_updates - self._learnt_before[0].num_updates
        step = self._step_measured(
            samples=tuple(self._arrived),
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

    def _num_dropped_samples(self) -> int:  # RLlib discards batches when too many wait for a learner process
        env_steps = self.learner_group.get_stats()["learner_group_ts_dropped_lifetime"]
        each = self.config.get_rollout_fragment_length() * self.config.num_envs_per_env_runner
        return int(self.env_runner_group.num_env_runners_dropped_lifetime() + math.ceil(env_steps / each))

    def _sample_and_get_connector_states(self) -> tuple[list[Any], list[Any], list[Any], set[int]]:
        """Return the samples that have arrived, as RLlib's algorithm wants them; wait for the first.

        RLlib's private method polls, and drops samples that come late (https://github.com/ray-project/ray/issues/63302).
        Nobody has to be updated: runners fetch new weights, and the merged states of connectors, by themselves.
        """
        self._ask_idle()
        timeout_s = self.config.sample_timeout_s
        oldest = min(moment for _, moment in self._asked.values())
        # The first one, and without waiting those beside it.
        first, _ = ray.wait(list(self._asked), num_returns=1, timeout=max(oldest + timeout_s - time.monotonic(), 0.0))
        ready, waiting = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        now = time.monotonic()
        if late := [number for number, asked in (self._asked[each] for each in waiting) if now - asked > timeout_s]:
            raise self._late(_named(late), "a sample must come")
        samples: list[SampleReference] = [_answer(each, self._asked.pop(each)[0]) for each in {*first, *ready}]
        self._ask_idle()
        for _, _, measurement, _ in samples:
            if measurement.failure is not None:
                raise measurement.failure
            self._arrived.append(measurement)
            self._latest[measurement.runner] = measurement
        states = [connectors for *_, connectors in samples if connectors is not None]
        metrics = [of_runner for _, of_runner, *_ in samples]
        return [episodes for episodes, *_ in samples], states, metrics, set()

    def _ask_idle(self) -> None:
        busy = {number for number, _ in self._asked.values()}
        for number, actor in actors_of(self.env_runner_group).items() if self._asks else ():
            if number not in busy:
                self._asked[actor.referenced_sample.remote()] = number, time.monotonic()


def _answer(reference: ray.ObjectRef, number: int) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        fail(error, _named([number]))


def _named(numbers: Iterable[int]) -> str:
    return f"env runner {', '.join(map(str, sorted(numbers)))}"


def fail(error: Exception, where: str) -> NoReturn:
    """Raise what says that a process or node died, where that is the error; else the error itself."""
    if not was_lost(error):
        raise error
    fix = "Look for memory shortage, or a crash, on that node."
    raise TrialError(where=where, rule="must stay alive", got=described(original(error)), fix=fix) from error


def _optimizer_steps(learner: Learner) -> int | None:
    """Return the steps of the optimizer that took most; None where one keeps no count."""
    modules = learner.module.keys()
    optimizers = [each for module_id in modules for _, each in learner.get_optimizers_for_module(module_id)]
    states = [next(iter(each.state.values()), {"step": 0}) for each in optimizers]  # none before the first update
    return max((int(state["step"]) for state in states), default=0) if all("step" in each for each in states) else None


def losses_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return our metrics of the learner from what each module logged in an update; of several policies their means."""
    found: dict[str, list[float]] = {}
    for module, logged in results.items():
        if module != ALL_MODULES and isinstance(logged, Mapping):
            for name, keys in LEARNER_KEYS.items():
                if (key := next((key for key in keys if key in logged), None)) is not None:
                    value = logged[key].peek() if hasattr(logged[key], "peek") else logged[key]
                    found.setdefault(name, []).append(float(value[0] if isinstance(value, list) else value))
    return {name: math.fsum(values) / len(values) for name, values in found.items()}
