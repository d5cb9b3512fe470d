"""One trial from its first process to its final policy: build, train an iteration at a time, evaluate, close.

Imports RLlib and torch; knows nothing of Ray Tune.
"""

import dataclasses
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from study.errors import TrialError
from study.machine.load import NodeLoad
from study.metrics import WARMUP_ITERATIONS
from study.planning.guess import evaluation_due, progress_of
from study.records.records import Evaluation, Iteration, TrialBuilt
from study.trial.built import read_built
from study.trial.configuration import apply
from study.trial.evaluation import evaluate
from study.trial.experiment import experiment_of
from study.trial.failures import SteadyThread, described, of_runner, original
from study.trial.measure import StepMeasurement, Watch, custom_metrics, iteration_metrics
from study.trial.measured import MeasuredAlgorithm
from study.trial.messages import TrialConfig, TrialResult
from study.trial.places import NodeWatch
from study.trial.policy import pack_policy, state_of


class TrialRun:
    """A trial that is running. `close` must be called whatever happened."""

    def __init__(self, config: TrialConfig, *, started_s: float) -> None:
        """Build the algorithm and wait until every runner is ready.

        The trial began at `started_s` of `time.perf_counter()`.

        Raises:
            TrialError: The environment does not work here, RLlib refuses the configuration, the runners are
                not up in time, or what was built is not what was asked.
        """
        self._spec, self._asked = config.spec, config.started
        asked, resources = self._asked, config.spec.resources
        torch.set_num_threads(resources.num_cpus_for_main_process)
        self._experiment = experiment_of(self._spec, script=config.script, waits=asked.execution == "real")
        wanted = apply(self._experiment, self._spec, setting=asked.setting, seed=asked.seed, execution=asked.execution)
        self._thread, self._closed = SteadyThread(), False
        self._algorithm = _build(wanted, self._thread, timeout_s=resources.startup_timeout_s)
        try:
            places, built = read_built(self._algorithm, self._spec, asked, self._experiment, started_s=started_s)
            self._nodes = NodeWatch(places, self._algorithm.actor_of, driver=config.driver)
        except BaseException:
            self.close()
            raise
        self._new: list[TrialBuilt | Iteration | Evaluation] = [built]
        """Records that are not reported yet."""
        self._iteration, self._env_steps, self._wall_time_s, self._progress = 0, 0, 0.0, 0.0
        self._node_loads: tuple[NodeLoad, ...] = ()
        self._evaluates = False
        """Whether an evaluation is due before the next iteration."""
        self._watch = Watch()

    def advance(self) -> TrialResult:
        """Train one iteration, or evaluate where a point of the budget was passed; return what is to be recorded.

        A trial of a throughput study has neither evaluations nor a policy.

        Raises:
            TrialError: The trial cannot go on.
        """
        policy = None
        if self._evaluates:
            self._evaluates = False
            policy = self._evaluate()
        else:
            self._train()
        records, self._new = tuple(self._new), []
        return TrialResult(
            records=records,
            progress=self._progress,
            evaluates=self._evaluates,
            policy=policy,
            node_loads=() if self._evaluates else self._node_loads,
        )

    def _train(self) -> None:
        if self._iteration == WARMUP_ITERATIONS:
            self._nodes.begin()
        self._watch.skip()  # an evaluation is no training
        self._watch.start()
        results = self._algorithm.train()
        before, self._progress = self._progress, self._progress_now()
        self._evaluates = self._spec.learns and evaluation_due(
            before, self._progress, self._spec.evaluation.num_evaluations
        )
        if self._evaluates:
            self._algorithm.pause()
            self._progress = self._progress_now()
        used = self._watch.stop()
        step = dataclasses.replace(self._last_step, used=used)
        metrics = iteration_metrics(step) | custom_metrics(results)
        self._iteration += 1
        self._env_steps += step.env_steps
        self._wall_time_s += used.wall_time_s
        if self._progress >= 1:
            self._node_loads = tuple(self._nodes.end())
        self._new.append(Iteration(**self._reached, metrics=metrics))

    def _evaluate(self) -> bytes | None:
        """Evaluate; return the policy where it is the final one."""
        state = state_of(self._algorithm)
        found = evaluate(self._experiment, state, self._spec, first_episode=self._asked.first_episode)
        self._new.append(
            Evaluation(
                **self._reached,
                progress=self._progress,
                returns=list(found.returns),
                num_cut=found.num_cut,
                eval_time_s=found.eval_time_s,
            )
        )
        if self._progress < 1:
            return None
        return pack_policy(self._algorithm.env_runner_group.local_env_runner.module, state)

    @property
    def _reached(self) -> dict[str, Any]:
        return {
            "trial": self._asked.trial,
            "attempt": self._asked.attempt,
            "iteration": self._iteration,
            "env_steps": self._env_steps,
            "wall_time_s": self._wall_time_s,
        }

    @property
    def _last_step(self) -> StepMeasurement:
        assert self._algorithm.last_step is not None
        return self._algorithm.last_step

    def _progress_now(self) -> float:
        """Return the progress with the iteration that is running, by its clock so far."""
        return progress_of(
            self._spec.budget,
            self._asked.iterations,
            env_steps=self._env_steps + self._last_step.env_steps,
            iterations=self._iteration + 1,
            time_s=self._wall_time_s + self._watch.elapsed_s(),
        )

    def close(self) -> None:
        """Stop every process of the trial. Does not hang."""
        if not self._closed:
            self._closed = True
            self._algorithm.stop()
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
