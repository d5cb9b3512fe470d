"""What was built for a trial, its processes and the values that they really have, against what was asked.

Imports RLlib. Each value is read where it takes effect: the optimizer, the learner and its connector, the runners.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.learner.learner import Learner
from torch import nn

from study.errors import TrialError
from study.ray_private import connector_pieces, pieces_to_module
from study.records.records import TrialBuilt, TrialStarted
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, attribute
from study.space.settings import differences, to_be_built
from study.space.spec import StudySpec
from study.trial.engine.extensions import OF_LEARNER, OF_RUNNERS, ExtendedPPOTorchLearner, NormalizedObservations
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.runner import RunnerReport
from study.trial.experiment import Experiment
from study.trial.measured import MeasuredAlgorithm
from study.trial.places import Place, here


def read_built(
    algorithm: MeasuredAlgorithm, spec: StudySpec, asked: TrialStarted, experiment: Experiment, *, started_s: float
) -> tuple[list[Place], TrialBuilt]:
    """Wait for the processes of a trial; return where they are, the main one first, and the record of what was built.

    Args:
        algorithm: The trial's.
        spec: Its space.
        asked: What it was to be.
        experiment: What it trains.
        started_s: When it began, by `time.perf_counter()`.

    Raises:
        TrialError: A process did not answer in time, or what was built is not what was asked.
    """
    resources, group, expected = spec.resources, algorithm.env_runner_group, algorithm.config.num_env_runners
    reports: list[RunnerReport] = [group.local_env_runner.report()] if not expected else []
    if expected:
        timeout_s = max(resources.startup_timeout_s - (time.perf_counter() - started_s), 1.0)
        reports = group.foreach_env_runner("report", local_env_runner=False, timeout_seconds=timeout_s)
        if len(reports) != expected:
            rule = f"all {expected} must answer within {timeout_s:g} s of start-up"
            fix = "Raise resources.startup_timeout_s, or look at the nodes."
            raise TrialError(where="env runners", rule=rule, got=f"{len(reports)}", fix=fix)
        reports.sort(key=lambda report: report.place.number)
    startup_time_s = time.perf_counter() - started_s
    effective = read_effective(algorithm, reports)
    if experiment.judged is not None:
        effective["evaluation_backend"] = experiment.judged.backend
    if wrong := differences({**to_be_built(spec, asked.setting), "seed": asked.seed}, effective):
        where, rule = "start-up", "what was built must be what was asked"
        fix = "Remove what `rllib:` changes, or set the parameter in the space."
        raise TrialError(where=where, rule=rule, got="; ".join(wrong), fix=fix)
    algorithm.learners_used()  # start-up is no training
    cpus = resources.num_cpus_per_learner
    learners = algorithm.of_learners(lambda number: here("learner", number=number, num_cpus=cpus))
    stepped_here = () if expected else reports[0].place.runners
    main = here("main", runners=stepped_here, num_cpus=resources.num_cpus_for_main_process)
    places = [main, *(report.place for report in reports if expected), *learners]
    built = TrialBuilt(
        trial=asked.trial,
        attempt=asked.attempt,
        startup_time_s=startup_time_s,
        effective=effective,
        processes_per_node=dict(Counter(place.node for place in places)),
        placement=[place.to_json() for place in places],
    )
    return places, built


def read_effective(algorithm: MeasuredAlgorithm, reports: Sequence[RunnerReport]) -> dict[str, Any]:
    """Return what will really run, as JSON values; those named as parameters are comparable with a setting."""
    config = algorithm.config
    learner = algorithm.ask_learners(_learner_values)[0]
    learners = max(config.num_learners, 1)
    lanes = Counter(runner for report in reports for runner, _ in report.lanes)
    pieces = () if config.is_multi_agent else pieces_to_module(algorithm.env_runner_group.local_env_runner)
    return {
        "num_env_runners": len(lanes),
        "num_envs_per_env_runner": _one_or_all(list(lanes.values())),
        "train_batch_size": config.total_train_batch_size,
        # Where none is set, a batch is one minibatch.
        "minibatch_size": config.minibatch_size * learners if config.minibatch_size else config.total_train_batch_size,
        "num_epochs": config.num_epochs,
        **learner,
        **dict.fromkeys(OF_RUNNERS, int(any(isinstance(piece, NormalizedObservations) for piece in pieces))),
        **({"differs_from_script": config.differences} if config.script else {}),
        "seed": config.seed,
        "num_sampling_processes": len(reports),
        "env_steps_per_round": sum(report.env_steps_per_round for report in reports),
        "num_learners": config.num_learners,
        "sample_timeout_s": config.sample_timeout_s,
        "normalize_actions": bool(config.normalize_actions),
        "clip_actions": bool(config.clip_actions),
        "torch_threads_main": torch.get_num_threads(),
        "torch_threads_runner": _common(reports, "torch_threads"),
        "omp_num_threads_main": os.environ.get("OMP_NUM_THREADS"),
        "omp_num_threads_runner": _common(reports, "omp_num_threads"),
        "algorithm_class": type(algorithm).__name__,
        "runner_class": _common(reports, "class_name"),
        "standardization": config.standardization,
        "fallbacks": list(config.fallbacks),
        "hostnames": sorted({report.place.host for report in reports}),
    }


def _common(reports: Sequence[RunnerReport], name: str) -> Any:
    """Return the value that all runners share, or the list of values where they do not."""
    return _one_or_all([getattr(report, name) for report in reports])


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _learner_values(learner: Learner) -> dict[str, Any]:
    """Return the values of a learner; of several policies one where all agree, else each.

    What is overridden for a module is no value of the whole: it has a place of its own.
    """
    found: dict[str, list[Any]] = {}
    overrides: dict[str, dict[str, Any]] = {}
    for module_id in learner.module.keys():  # noqa: SIM118 (a module of RLlib, no dictionary)
        own = learner.config.algorithm_config_overrides_per_module.get(module_id, {})
        for name, value in _values_of_module(learner, module_id).items():
            if attribute(name) in own:
                overrides.setdefault(module_id, {})[name] = value
            else:
                found.setdefault(name, []).append(value)
    platform = getattr(learner, "jax_platform", None)
    return {
        **{name: _one_or_all(values) for name, values in found.items()},
        **({"overrides_per_module": overrides} if overrides else {}),
        FRAGMENT: PARAMETERS[FRAGMENT].value_in(learner.config),
        "device": str(learner.device),
        **({} if platform is None else {"jax_platform": platform}),
        # Ray Train wraps the class of a learner that is an actor.
        "learner_class": next(each.__name__ for each in type(learner).__mro__ if not each.__name__.startswith("_")),
        "torch_threads_learner": torch.get_num_threads(),
    }


def _is_adam(optimizer: Any) -> bool:
    return isinstance(optimizer, torch.optim.Adam)


def _values_of_module(learner: Any, module_id: str) -> dict[str, Any]:
    config, module = learner.config.get_config_for_module(module_id), learner.module[module_id]
    names = [name for name, each in PARAMETERS.items() if each.is_argument and hasattr(config, attribute(name))]
    values = {name: PARAMETERS[name].value_in(config) for name in names}
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
    if module_id in getattr(learner, "entropy_coeff_schedulers_per_module", {}):
        values["entropy_coeff"] = float(learner.entropy_coeff_schedulers_per_module[module_id].get_current_value())
    optimizers = learner.get_optimizers_for_module(module_id)
    if len(optimizers) == 1:
        values["lr"] = float(optimizers[0][1].param_groups[0]["lr"])
    if isinstance(config, PPOConfig):
        values |= {name: PARAMETERS[name].default for name in OF_LEARNER}  # as RLlib has them
        epsilons = {optimizer.param_groups[0].get("eps") for _, optimizer in optimizers if _is_adam(optimizer)}
        values["adam_epsilon"] = epsilons.pop() if len(epsilons) == 1 else None
    if isinstance(learner, ExtendedPPOTorchLearner):
        values |= learner.in_use(module_id)
    if (
        isinstance(config, (IMPALAConfig, PPOConfig))
        and (fraction := PARAMETERS[END_FRACTION].value_in(config)) is not None
    ):
        values[END_FRACTION] = fraction
    return {
        **{name: value if value is None or math.isfinite(value) else None for name, value in values.items()},
        "grad_clip_by": config.grad_clip_by,
        "optimizer": ", ".join(type(optimizer).__name__ for _, optimizer in optimizers),
        # A heuristic has none, and need not be torch's.
        "num_parameters": sum(value.numel() for value in module.parameters()) if isinstance(module, nn.Module) else 0,
        "module_class": type(module.unwrapped()).__name__,
    }
