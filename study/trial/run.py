"""One trial from its first process to its final policy: build, train an iteration at a time, evaluate, close.

What was built is read back, each value where it takes effect: the optimizer, the learner and its connector, the
runners. A trial in which it is not what was asked fails. Imports RLlib and torch; knows nothing of Ray Tune.
"""

import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import TrialError
from study.machine.load import NodeLoad
from study.metrics import WARMUP_ITERATIONS
from study.planning import evaluation_due, progress_of
from study.ray_private import actors_of, connector_pieces, hosted_runners, merged_connectors, pieces_to_module
from study.records.records import Evaluation, Iteration, TrialBuilt, TrialStarted
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value, attribute
from study.space.spec import StudySpec
from study.trial.configuration import apply
from study.trial.engine.extensions import OF_LEARNER, OF_RUNNERS, ExtendedPPOTorchLearner, NormalizedObservations
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.runner import HostedActor, RunnerReport
from study.trial.evaluation import evaluate
from study.trial.experiment import configuration_of
from study.trial.failures import SteadyThread, described, of_runner, original
from study.trial.measure import NodeWatch, Place, TrialResult, Watch, custom_metrics, iteration_metrics
from study.trial.measured import MeasuredAlgorithm
from study.trial.policy import MODULES, STATE_FILE, State, packed_state

if TYPE_CHECKING:
    from study.trial.trainable import TrialConfig


class TrialRun:
    """A trial that is running. `close` must be called whatever happened."""

    def __init__(self, config: "TrialConfig", *, started_s: float) -> None:
        """Build the algorithm and wait until every runner is ready; it began at `started_s` of `time.perf_counter()`.

        Raises:
            TrialError: The environment does not work here, RLlib refuses the configuration, the runners are not up in
                time, or what was built is not what was asked.
        """
        self._spec, self._asked = config.spec, config.started
        asked, resources = self._asked, config.spec.resources
        torch.set_num_threads(resources.num_cpus_for_main_process)
        self._base = configuration_of(self._spec, script=config.script, waits=asked.execution == "real")
        wanted = apply(self._base, self._spec, setting=asked.setting, seed=asked.seed, execution=asked.execution)
        self._thread, self._closed = SteadyThread(), False
        self._algorithm = _build(wanted, self._thread, timeout_s=resources.startup_timeout_s)
        try:
            places, built = read_built(self._algorithm, self._spec, asked, started_s=started_s)
            self._nodes = NodeWatch(places, self._actor_of, driver=config.driver)
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

    def _actor_of(self, place: Place) -> Any:
        if place.process == "learner":
            return actors_of(self._algorithm.learner_group)[place.number - 1]
        return actors_of(self._algorithm.env_runner_group)[place.number]

    def advance(self) -> TrialResult:
        """Train one iteration, or evaluate where a point of the budget was passed; return what is to be recorded.

        A trial of a throughput study has neither evaluations nor a policy. A `TrialError` ends the trial.
        """
        policy = None
        if self._evaluates:
            self._evaluates = False
            policy = self._evaluate()
        else:
            self._train()
        records, self._new = tuple(self._new), []
        done, loads = self._progress >= 1 and not self._evaluates, self._node_loads
        return TrialResult(records=records, progress=self._progress, done=done, policy=policy, node_loads=loads)

    def _train(self) -> None:
        if self._iteration == WARMUP_ITERATIONS:
            self._nodes.begin()
        self._watch.skip()  # an evaluation is no training
        self._watch.start()
        results = self._algorithm.train()
        before, self._progress = self._progress, self._progress_now()
        points = self._spec.evaluation.num_evaluations
        self._evaluates = self._spec.learns and evaluation_due(before, self._progress, points)
        if self._evaluates:
            self._algorithm.pause()
            self._progress = self._progress_now()
        used = self._watch.stop()
        step = dataclasses.replace(self._algorithm.last_step, used=used)
        self._iteration += 1
        self._env_steps += step.env_steps
        self._wall_time_s += used.wall_time_s
        if self._progress >= 1:
            self._node_loads = tuple(self._nodes.end())
        self._new.append(Iteration(**self._reached, metrics=iteration_metrics(step) | custom_metrics(results)))

    def _evaluate(self) -> bytes | None:
        """Evaluate; return the policy where it is the final one."""
        state = state_of(self._algorithm)
        found = evaluate(self._base, state, self._spec, first_episode=self._asked.first_episode)
        values: dict[str, Any] = found._asdict() | {"returns": [*found.returns]}
        self._new.append(Evaluation(**self._reached, progress=self._progress, **values))
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

    def _progress_now(self) -> float:
        """Return the progress with the iteration that is running, by its clock so far."""
        return progress_of(
            self._spec.budget,
            self._asked.iterations,
            env_steps=self._env_steps + self._algorithm.last_step.env_steps,
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
        with hosted_runners(HostedActor) if config.hosted else contextlib.nullcontext():
            algorithm: MeasuredAlgorithm = config.build_algo()
        # With merging and broadcasting off RLlib leaves the runners at random weights of their own for one iteration.
        algorithm.env_runner_group.sync_weights(
            from_worker_or_learner_group=algorithm.learner_group, inference_only=True
        )
        algorithm.thread = thread
        return algorithm

    rule = f"all {config.num_env_runners} env runners must be up"
    in_time = f"{rule} within startup_timeout_s={timeout_s:g} s, they are not"
    late = TrialError(where="start-up", rule=in_time, fix="Raise resources.startup_timeout_s, or look at the nodes.")
    try:
        return thread.within(timeout_s, build, otherwise=late)
    except TrialError:
        raise
    except Exception as error:
        what = of_runner(error) or f"{described(original(error))}. Fix: Make the environment work on every node"
        raise TrialError(where="start-up", rule=rule, got=what.rstrip(".")) from error


# --- the policy -------------------------------------------------------------------------------------------------------


def state_of(algorithm: MeasuredAlgorithm) -> State:
    """Return what a runner must know to act as the policy does now; to be called where no learner is at work."""
    learnt = algorithm.learner_group.get_state(components=[f"learner/{MODULES}"], inference_only=True)["learner"]
    # RLlib merges the states of all runners into those of the local one, or into those that its state server holds.
    connectors = algorithm.env_runner_group.local_env_runner.get_state(not_components=MODULES)
    connectors |= merged_connectors(algorithm, timeout_s=algorithm.config.sample_timeout_s)
    return {**connectors, MODULES: learnt[MODULES]}


def pack_policy(module: RLModule, state: State) -> bytes:
    """Return a zip archive of a policy: unpacked, `RLModule.from_checkpoint` opens it, and `read_state` its numbers.

    The modules' classes are those of `module`, the numbers those of `state`, which `state_of` returned.
    """
    learnt = dict(state[MODULES])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "policy"
        module.save_to_path(folder, state=learnt if isinstance(module, MultiRLModule) else learnt[DEFAULT_MODULE_ID])
        (folder / STATE_FILE).write_bytes(packed_state(state))
        return Path(shutil.make_archive(f"{place}/packed", "zip", folder)).read_bytes()


# --- what was built ---------------------------------------------------------------------------------------------------


def read_built(
    algorithm: MeasuredAlgorithm, spec: StudySpec, asked: TrialStarted, *, started_s: float
) -> tuple[list[Place], TrialBuilt]:
    """Wait for the processes of a trial; return where they are, the main one first, and the record of what was built.

    A `TrialError` says that a process did not answer in time, or that what was built is not what was asked.
    """
    resources, is_remote = spec.resources, algorithm.config.num_env_runners > 0 and not algorithm.config.hosted
    reports: list[RunnerReport] = algorithm.ask_runners("report", "must be up")
    startup_time_s = time.perf_counter() - started_s
    effective = read_effective(algorithm, reports)
    if wrong := _differences(spec, {**asked.setting, "seed": asked.seed}, effective):
        where, rule = "start-up", "what was built must be what was asked"
        fix = "Set the parameter in the space, where the script's module or learner sets it by itself."
        raise TrialError(where=where, rule=rule, got="; ".join(wrong), fix=fix)
    algorithm.learners_used()  # start-up is no training
    stepped_here = () if is_remote else tuple(sorted({runner for report in reports for runner, _ in report.lanes}))
    main = Place(process="main", runners=stepped_here, num_cpus=resources.num_cpus_for_main_process)
    places = [main, *(report.place for report in reports if is_remote)]
    if algorithm.config.num_learners:
        cpus = resources.num_cpus_per_learner
        learners = algorithm.ask_learners(lambda _: Place(process="learner", num_cpus=cpus))
        places += [dataclasses.replace(place, number=number) for number, place in enumerate(learners, start=1)]
    built = TrialBuilt(
        trial=asked.trial,
        attempt=asked.attempt,
        startup_time_s=startup_time_s,
        effective=effective,
        processes_per_node=dict(Counter(place.node for place in places)),
        placement=[place.to_json() for place in places],
    )
    return places, built


def _differences(spec: StudySpec, asked: Mapping[str, Value], effective: Mapping[str, Any]) -> list[str]:
    """Return one line for every value of a trial's setting that is not what runs; of a script's, that the study sets.

    Floats that went through a 32-bit tensor may differ in the eighth digit.
    """
    script = {} if spec.script is None else spec.script.defaults
    always, lines = (SCALE, "num_envs_per_env_runner", "train_batch_size"), []
    for name, value in asked.items():
        got: Any = effective.get(name)
        number = isinstance(got, (int, float)) and not isinstance(got, bool)
        is_set = name in always or script.get(name) != value
        if is_set and not (number and abs(got - value) <= 1e-6 * abs(value)):
            lines.append(f"{name}: asked {value}, got {got}")
    return lines


def read_effective(algorithm: MeasuredAlgorithm, reports: Sequence[RunnerReport]) -> dict[str, Any]:
    """Return what will really run, as JSON values; those named as parameters are comparable with a setting."""
    config = algorithm.config
    learner = algorithm.ask_learners(_learner_values)[0]
    lanes = Counter(runner for report in reports for runner, _ in report.lanes)
    pieces = () if config.is_multi_agent else pieces_to_module(algorithm.env_runner_group.local_env_runner)
    batch, minibatch = config.total_train_batch_size, config.minibatch_size

    return {
        "num_env_runners": len(lanes),
        "num_envs_per_env_runner": _one_or_all(list(lanes.values())),
        "train_batch_size": batch,
        "minibatch_size": minibatch * max(config.num_learners, 1) if minibatch else batch,  # without one, it is whole
        "num_epochs": config.num_epochs,
        **learner,
        **dict.fromkeys(OF_RUNNERS, int(any(isinstance(piece, NormalizedObservations) for piece in pieces))),
        "seed": config.seed,
        "num_learners": config.num_learners,
        "normalize_actions": bool(config.normalize_actions),
        "clip_actions": bool(config.clip_actions),
        "torch_threads_main": torch.get_num_threads(),
        "omp_num_threads_main": os.environ.get("OMP_NUM_THREADS"),
        "algorithm_class": type(algorithm).__name__,
        **{name: _one_or_all([report.effective[name] for report in reports]) for name in reports[0].effective},
        "standardization": config.standardization,
        "fallbacks": list(config.fallbacks),
        "hostnames": sorted({report.place.host for report in reports}),
    }


def _one_or_all(values: list[Any]) -> Any:
    """Return the value that all share, or the list of values where they do not."""
    return values[0] if len(set(values)) == 1 else values


def _learner_values(learner: Learner) -> dict[str, Any]:
    """Return the values of a learner; of several policies one where all agree, else each."""
    found: dict[str, list[Any]] = {}
    for module_id in learner.module.keys():  # noqa: SIM118 (a module of RLlib, no dictionary)
        own = learner.config.algorithm_config_overrides_per_module.get(module_id, {})  # no values of the whole
        for name, value in _values_of_module(learner, module_id).items():
            if attribute(name) not in own:
                found.setdefault(name, []).append(value)
    return {
        **{name: _one_or_all(values) for name, values in found.items()},
        FRAGMENT: PARAMETERS[FRAGMENT].value_in(learner.config),
        "device": str(learner.device),
        # Ray Train wraps the class of a learner that is an actor.
        "learner_class": next(each.__name__ for each in type(learner).__mro__ if not each.__name__.startswith("_")),
        "torch_threads_learner": torch.get_num_threads(),
    }


def _values_of_module(learner: Any, module_id: str) -> dict[str, Any]:
    config, module = learner.config.get_config_for_module(module_id), learner.module[module_id]
    arguments = [(name, each) for name, each in PARAMETERS.items() if each.set is None]
    values = {name: each.value_in(config) for name, each in arguments if hasattr(config, attribute(name))}
    values = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    # The fused learner computes advantages by itself, RLlib's leaves them to a connector.
    connected = getattr(learner, "_learner_connector", None) is not None and not isinstance(learner, FusedPPOLearner)
    for piece in connector_pieces(learner) if connected else ():
        if isinstance(piece, GeneralAdvantageEstimation):
            values |= {"gamma": piece.gamma, "lambda": piece.lambda_}
    if not getattr(config, "use_kl_loss", True):
        values["kl_coeff"] = 0.0
    elif module_id in getattr(learner, "curr_kl_coeffs_per_module", {}):
        values["kl_coeff"] = float(learner.curr_kl_coeffs_per_module[module_id].item())
    if (schedule := getattr(learner, "entropy_coeff_schedulers_per_module", {}).get(module_id)) is not None:
        values["entropy_coeff"] = float(schedule.get_current_value())
    optimizers = [optimizer for _, optimizer in learner.get_optimizers_for_module(module_id)]
    if len(optimizers) == 1:
        values["lr"] = float(optimizers[0].param_groups[0]["lr"])
    if isinstance(config, PPOConfig):
        values |= {name: PARAMETERS[name].default for name in OF_LEARNER}  # as RLlib has them
        adams = [optimizer for optimizer in optimizers if isinstance(optimizer, torch.optim.Adam)]
        epsilons = {optimizer.param_groups[0].get("eps") for optimizer in adams}
        values["adam_epsilon"] = epsilons.pop() if len(epsilons) == 1 else None
    if isinstance(learner, ExtendedPPOTorchLearner):
        values |= learner.in_use(module_id)
    fraction = PARAMETERS[END_FRACTION].value_in(config) if isinstance(config, (IMPALAConfig, PPOConfig)) else None
    values |= {} if fraction is None else {END_FRACTION: fraction}
    return {
        **{name: value if value is None or math.isfinite(value) else None for name, value in values.items()},
        "grad_clip_by": config.grad_clip_by,
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in optimizers),
        "module_class": type(module.unwrapped()).__name__,
    }
