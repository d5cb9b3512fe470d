"""What all algorithms of a study share: raw measurements, errors for lost processes, a stop that cannot hang.

RLlib smooths its timers, and continues with fewer samples when a runner dies or is late. The classes here are mixins
for RLlib's algorithms and their configurations: see `measured_ppo` and `measured_async`. Imports RLlib.
"""

import contextlib
import itertools
import math
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import TrialError, TrialLostError
from study.hosts.machine import read_peak_rss_mb
from study.ray_private import actors_of, kill_actors
from study.space.spec import Standardization
from study.trial.deadline import SteadyThread
from study.trial.engine.sampling.lanes import LaneLayout
from study.trial.failures import described, node_was_lost, original, was_lost
from study.trial.measure import RunnerMeasurement, StepMeasurement
from study.trial.places import NODE_DEATH_S, Place, lost

Result = TypeVar("Result")

_STOP_GRACE_S = 2.0
"""Runners that have not closed their environments after this long are killed."""


class StudyConfig(AlgorithmConfig):
    """RLlib's configuration with what a study adds to it.

    Attributes:
        env_id: `environment.id` of the space.
        hosted_runner_cls: Class of RLlib's runners that a `HostedEnvRunner` holds; None where none is used.
        lane_layout: The lanes of the trial and the processes that step them; None: one process per runner.
        standardization: `steps`, `rllib` or `none`: what the fused learner standardises advantages over.
        normalize_rewards: Whether runners hand over discounted returns, by whose deviation the learner divides rewards.
        optimizer: `adam`, or `rmsprop` as A2C has it: of the fused learner.
        fallbacks: One line for each of our components that could not serve, and was replaced by RLlib's.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.env_id = ""
        self.lane_layout: LaneLayout | None = None
        self.hosted_runner_cls: type | None = None
        self.standardization: Standardization = "steps"
        self.normalize_rewards = False
        self.optimizer = "adam"
        self.fallbacks: list[str] = []


class MeasuredAlgorithm(Algorithm):
    """An algorithm that exposes the raw measurement of its last iteration as `last_step`."""

    config_class: type[StudyConfig]
    last_step: StepMeasurement | None = None
    _learners_cpu_s = 0.0
    thread: SteadyThread
    """The thread in which the environments of the main process are made, stepped and closed."""
    places: Sequence[Place] = ()
    """Where the processes of the trial are, once they are up."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Return an empty configuration of this algorithm."""
        return cls.config_class(algo_class=cls)

    def pause(self) -> None:
        """Finish the work between two iterations; its time belongs to the iteration that has just ended."""

    def policy(self) -> RLModule:
        """Return the policy without its value function, as the runners have it."""
        module: RLModule = self.get_module()
        return module

    @property
    def _all_learners(self) -> str:
        return f"all {self.config.num_learners} must stay alive"

    def ask_learners(self, function: Callable[[Learner], Result]) -> list[Result]:
        """Return what `function` returns in each learner, or raise what it raises.

        RLlib leaves out learners that have died, and returns what was raised as if it were an answer.
        """
        answers = list(self.learner_group.foreach_learner(function).result_or_errors)
        for error in (answer.get() for answer in answers if not answer.ok):
            if was_lost(error):
                raise self._dead(error, "learners", self._all_learners) from error
            raise error
        self._check_learners(len(answers))
        return [answer.get() for answer in answers]

    def _check_learners(self, num_answers: int) -> None:
        if num_answers < max(self.config.num_learners, 1):
            got, fix = f"{num_answers} answers", "Look for memory shortage, or a crash, on their nodes."
            raise TrialLostError(where="learners", rule=self._all_learners, got=got, fix=fix)

    def _dead(self, error: ray.exceptions.RayError, where: str, rule: str = "must stay alive") -> TrialError:
        """Return the error for a runner or learner that died, alone or with its node."""
        # A process that crashed is reported by its node; where nobody reports, the node may be gone.
        silent = isinstance(error, (ray.exceptions.ActorUnavailableError, ray.exceptions.NodeDiedError))
        gone = lost(self.places, wait_s=NODE_DEATH_S if silent else 1.0)
        what = f"{gone}: its node has died" if gone else described(original(error))
        fix = "See why that node went." if gone else "Look for memory shortage, or a crash, on that node."
        if not was_lost(error):
            return TrialError(where=where, rule=rule, got=what, fix=fix)
        made = TrialLostError(where=where, rule=rule, got=what, fix=fix)
        made.node = bool(gone) or node_was_lost(error)
        return made

    def actor_of(self, place: Place) -> Any:
        """Return RLlib's actor of a runner or learner process."""
        if place.process == "learner":
            return actors_of(self.learner_group)[place.number - 1]
        return actors_of(self.env_runner_group)[place.number]

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
        return self.ask_learners(_optimizer_steps)[0]

    def learners_used(self) -> tuple[float, float]:
        """Return CPU time since the last call, and peak memory in MB, of learners in processes of their own."""
        if not self.config.num_learners:
            return 0.0, 0.0  # the main process counts itself
        cpu_s, peaks_mb = zip(*self.ask_learners(_usage), strict=True)
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
            kill_actors(group)
        super().cleanup()
        shutil.rmtree(self.logdir, ignore_errors=True)

    def _close_own_environments(self) -> None:
        """Close those of the main process in the thread that made them, unless that thread hangs in one of them."""
        runner = self.env_runner_group.local_env_runner
        if runner is None or runner.env is None:
            return
        with contextlib.suppress(Exception):
            self.thread.within(_STOP_GRACE_S, runner.stop, otherwise=TrialError())
        runner.env = None  # RLlib would close them again, here

    def _setup_logdir(self) -> None:
        """Use a folder that goes when the trial goes; private in RLlib, which leaves an empty one in the user's home.

        Source: https://github.com/ray-project/ray/issues/46592
        """
        self._logdir = tempfile.mkdtemp(prefix="trial-")


def check_runner(measurement: RunnerMeasurement) -> None:
    """Raise what happened in a runner as `TrialError`, with the runner's own traceback as a note."""
    if measurement.error:
        where = f"env runner {measurement.runner}" if measurement.runner else "sampling in the main process"
        rule = "sampling must not fail"
        error = TrialError(where=where, rule=rule, got=measurement.error, fix=measurement.fix)
        # Indented: of the lines that begin with an exception, the last one is taken for what ended the trial.
        error.add_note(f"In {where}:\n{textwrap.indent(measurement.traceback, '  ')}")
        raise error


def _usage(learner: Learner) -> tuple[float, float]:
    return time.process_time(), read_peak_rss_mb()


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


def losses_of(results: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, float]:
    """Return our metrics of the learner from what each module logged in an update; of several policies their means.

    `keys` are our metrics with RLlib's keys; what nobody logged is left out.
    """
    found: dict[str, list[float]] = {}
    for module, logged in results.items():
        if module != ALL_MODULES and isinstance(logged, Mapping):
            for name, key in keys.items():
                if key in logged:
                    value = logged[key].peek() if hasattr(logged[key], "peek") else logged[key]
                    found.setdefault(name, []).append(float(value[0] if isinstance(value, list) else value))
    return {name: math.fsum(values) / len(values) for name, values in found.items()}
