"""One trial from its first process to its final policy: build, train an iteration at a time, evaluate, close.

Imports RLlib and torch; knows nothing of Ray Tune.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from study.errors import TrialError
from study.machine.load import NodeLoad
from study.metrics import WARMUP_ITERATIONS
from study.planning.budget import evaluation_due, trial_budget
from study.records.records import Evaluation, Iteration
from study.space.settings import differences, to_be_built
from study.trial.configuration import apply
from study.trial.custom_metrics import custom_metrics
from study.trial.deadline import SteadyThread
from study.trial.effective import read_effective, runner_reports
from study.trial.evaluation import evaluate
from study.trial.experiment import experiment_of
from study.trial.failures import described, of_runner, original
from study.trial.measure import StepMeasurement, Watch, iteration_metrics
from study.trial.measured import MeasuredAlgorithm
from study.trial.messages import BuiltTrial, TrialConfig, TrialResult
from study.trial.places import NodeWatch, here
from study.trial.policy import pack_policy, state_of
from study.trial.throughput import KeptRunners


class TrialRun:
    """A trial that is running. `close` must be called whatever happened."""

    def __init__(self, config: TrialConfig, *, started_s: float, kept: KeptRunners | None = None) -> None:
        """Build the algorithm and wait until every runner is ready.

        The trial began at `started_s` of `time.perf_counter()`; `kept` are runner processes that another has left.

        Raises:
            TrialError: The environment does not work here, RLlib refuses the configuration, the runners are
                not up in time, or what was built is not what was asked.
        """
        self._config, self._asked = config, config.started
        self._algorithm: MeasuredAlgorithm | None = None
        spec, resources = config.spec, config.spec.resources
        self._budget = trial_budget(spec.budget, self._asked.iterations)
        torch.set_num_threads(resources.num_cpus_for_main_process)
        self._node_loads: list[NodeLoad] = []
        execution = self._asked.execution
        self._experiment = experiment_of(spec, script=config.script, waits=execution == "real")
        setting, seed = self._asked.setting, self._asked.seed
        built = apply(self._experiment, spec, setting=setting, seed=seed, execution=execution)
        self._thread = SteadyThread()
        self._kept = kept or KeptRunners()
        with self._kept.used_by(built.num_env_runners) as self._goes_on:
            self._algorithm = _build(built, self._thread, timeout_s=resources.startup_timeout_s)
        try:
            self._built: BuiltTrial | None = self._check_built(self._algorithm, started_s)
        except BaseException:
            self.close()
            raise
        self._iteration, self._env_steps, self._wall_time_s, self._progress = 0, 0, 0.0, 0.0
        self._watch = Watch()

    def _check_built(self, algorithm: MeasuredAlgorithm, started_s: float) -> BuiltTrial:
        """Wait for the runners, and compare what was asked with what was built."""
        remaining_s = self._config.spec.resources.startup_timeout_s - (time.perf_counter() - started_s)
        reports = runner_reports(algorithm, timeout_s=max(remaining_s, 1.0))
        startup_time_s = time.perf_counter() - started_s
        effective = read_effective(algorithm, reports)
        if (judged := self._experiment.judged) is not None:
            effective["evaluation_backend"] = judged.backend
        asked = {**to_be_built(self._config.spec, self._asked.setting), "seed": self._asked.seed}
        _check_effective(asked, effective)
        algorithm.learners_used()  # start-up is no training
        resources = self._config.spec.resources
        cpus = resources.num_cpus_per_learner
        learners = algorithm.of_learners(lambda number: here("learner", number=number, num_cpus=cpus))
        stepped_here = tuple(runner for each in reports if not each.place.number for runner in each.place.runners)
        main = here("main", runners=stepped_here, num_cpus=resources.num_cpus_for_main_process)
        algorithm.places = [main, *(each.place for each in reports if each.place.number), *learners]
        self._nodes = NodeWatch(
            algorithm.places,
            algorithm.actor_of,
            driver=self._config.driver,
            alone=self._config.spec.exclusive,
        )
        return BuiltTrial(
            startup_time_s=None if self._goes_on else startup_time_s,
            effective=effective,
            processes_per_node=dict(Counter(place.address for place in algorithm.places)),
            placement=[place.to_json() for place in algorithm.places],
        )

    @property
    def _identity(self) -> dict[str, int]:
        return {"trial": self._asked.trial, "attempt": self._asked.attempt}

    def advance(self) -> TrialResult:
        """Train one iteration, evaluate when a point of the budget was passed, and return what is to be recorded.

        A trial of a throughput study has neither evaluations nor a policy.

        Raises:
            TrialError: The trial cannot go on.
        """
        records: list[BuiltTrial | Iteration | Evaluation] = [] if self._built is None else [self._built]
        self._built = None
        iteration, due = self._train()
        records.append(iteration)
        done, policy = self._progress >= 1, None
        if due:
            assert self._algorithm is not None
            evaluation, packed = self._evaluate()
            records.append(evaluation)
            policy = packed() if done else None
        return TrialResult(
            records=tuple(records),
            progress=self._progress,
            done=done,
            policy=policy,
            node_loads=tuple(self._node_loads),
        )

    def _train(self) -> tuple[Iteration, bool]:
        """Train one iteration; return its record, and whether an evaluation is due, as at the end."""
        assert self._algorithm is not None
        if self._iteration == WARMUP_ITERATIONS:
            self._nodes.begin()
        self._watch.skip()  # an evaluation is no training
        self._watch.start()
        results = self._algorithm.train()
        before, self._progress = self._progress, self._progress_now()
        num_evaluations = self._config.spec.evaluation.num_evaluations
        due = self._config.spec.learns and evaluation_due(before, self._progress, num_evaluations)
        if due:
            self._algorithm.pause()
            self._progress = self._progress_now()
        used = self._watch.stop()
        step = self._last_step
        metrics = iteration_metrics(replace(step, used=used)) | custom_metrics(results, self._algorithm.config)
        self._iteration += 1
        self._env_steps += step.env_steps
        self._wall_time_s += used.wall_time_s
        if self._progress >= 1:
            self._node_loads = self._nodes.end()
        record = Iteration(
            **self._identity,
            iteration=self._iteration,
            env_steps=self._env_steps,
            wall_time_s=self._wall_time_s,
            metrics=metrics,
        )
        return record, due

    @property
    def _last_step(self) -> StepMeasurement:
        assert self._algorithm is not None and self._algorithm.last_step is not None
        return self._algorithm.last_step

    def _progress_now(self) -> float:
        """Return the progress with the iteration that is running, by its clock so far."""
        return self._budget.progress(
            env_steps=self._env_steps + self._last_step.env_steps,
            iterations=self._iteration + 1,
            time_s=self._wall_time_s + self._watch.elapsed_s(),
        )

    def _evaluate(self) -> tuple[Evaluation, Callable[[], bytes]]:
        """Evaluate the policy; return the record, and what packs the policy that was evaluated."""
        assert self._algorithm is not None
        algorithm, first_episode = self._algorithm, self._asked.first_episode
        state, runners = state_of(algorithm), algorithm.eval_env_runner_group
        beside = None if runners is None else runners.local_env_runner
        result = evaluate(self._experiment, state, self._config.spec, first_episode=first_episode, beside=beside)
        module = algorithm.env_runner_group.local_env_runner.module
        evaluation = Evaluation(
            **self._identity,
            iteration=self._iteration,
            env_steps=self._env_steps,
            wall_time_s=self._wall_time_s,
            progress=self._progress,
            returns=list(result.returns),
            num_cut=result.num_cut,
            eval_time_s=result.eval_time_s,
        )
        return evaluation, functools.partial(pack_policy, module, state)

    def finish(self) -> None:
        """Stop a trial that is done; keep its runner processes where it was one of a throughput study."""
        if self._algorithm is not None and not self._config.spec.learns:
            self._kept.keep(self._algorithm)
        self.close()

    def close(self) -> None:
        """Stop every process of the trial. Does not hang."""
        if self._algorithm is not None:
            self._algorithm.stop()
            self._algorithm = None
            self._thread.end()


def _build(config: AlgorithmConfig, thread: SteadyThread, *, timeout_s: float) -> MeasuredAlgorithm:
    def build() -> MeasuredAlgorithm:
        algorithm: MeasuredAlgorithm = config.build_algo()
        # With merging and broadcasting off RLlib leaves the runners at random weights of their own for one
        # iteration.
        algorithm.env_runner_group.sync_weights(
            from_worker_or_learner_group=algorithm.learner_group, inference_only=True
        )
        algorithm.thread = thread
        return algorithm

    rule = f"all {config.num_env_runners} env runners must be up"
    late = TrialError(
        where="start-up",
        rule=f"{rule} within startup_timeout_s={timeout_s:g} s, they are not",
        fix="Raise resources.startup_timeout_s, or look at the nodes.",
    )
    try:
        return thread.within(timeout_s, build, otherwise=late)
    except TrialError:
        raise
    except Exception as error:
        what = of_runner(error) or f"{described(original(error))}. Fix: Make the environment work on every node"
        raise TrialError(where="start-up", rule=rule, got=what.rstrip(".")) from error


def _check_effective(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> None:
    wrong = differences(asked, effective)
    if wrong:
        where, rule = "start-up", "what was built must be what was asked"
        fix = "Remove what `rllib:` changes, or set the parameter in the space."
        raise TrialError(where=where, rule=rule, got=f"{'; '.join(wrong)}", fix=fix)
