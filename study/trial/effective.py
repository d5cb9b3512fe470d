"""Reads the effective configuration back from a built algorithm. Imports RLlib."""

import math
import os
from collections import Counter
from typing import Any

import torch
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.learner.learner import Learner
from torch import nn

from study.errors import TrialError
from study.ray_private import connector_pieces
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, attribute
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.runner import RunnerReport
from study.trial.measured import MeasuredAlgorithm


def runner_reports(algorithm: MeasuredAlgorithm, *, timeout_s: float) -> tuple[RunnerReport, ...]:
    """Return what each process that steps lanes says about itself, in lane order.

    Raises:
        TrialError: A process did not answer in time.
    """
    group, expected = algorithm.env_runner_group, algorithm.config.num_env_runners
    if not expected:
        return (group.local_env_runner.report(),)
    reports: list[RunnerReport] = group.foreach_env_runner("report", local_env_runner=False, timeout_seconds=timeout_s)
    if len(reports) != expected:
        rule = f"all {expected} must answer within {timeout_s:g} s of start-up"
        fix = "Raise resources.startup_timeout_s, or look at the nodes."
        raise TrialError(where="env runners", rule=rule, got=f"{len(reports)}", fix=fix)
    return tuple(sorted(reports, key=lambda report: report.place.number))


def read_effective(algorithm: MeasuredAlgorithm, reports: tuple[RunnerReport, ...]) -> dict[str, Any]:
    """Return what will really run, as JSON values.

    The keys that are parameters of `study.space.parameters` are comparable with a setting. Each value is read
    where it takes effect: the optimizer, the learner and its connector, the runners.
    """
    config = algorithm.config
    learner = algorithm.ask_learners(_learner_values)[0]
    learners = max(config.num_learners, 1)
    lanes = Counter(runner for report in reports for runner, _ in report.lanes)
    return {
        "num_env_runners": len(lanes),
        "num_envs_per_env_runner": _one_or_all(list(lanes.values())),
        "train_batch_size": config.total_train_batch_size,
        # Where none is set, a batch is one minibatch.
        "minibatch_size": config.minibatch_size * learners if config.minibatch_size else config.total_train_batch_size,
        "num_epochs": config.num_epochs,
        **learner,
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


def _common(reports: tuple[RunnerReport, ...], name: str) -> Any:
    """Return the value that all runners share, or the list of values where they do not."""
    return _one_or_all([getattr(report, name) for report in reports])


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _values_of_process(learner: Learner) -> dict[str, Any]:
    """Return which learner computes, and where."""
    platform = getattr(learner, "jax_platform", None)
    return {
        "device": str(learner.device),
        **({} if platform is None else {"jax_platform": platform}),
        # Ray Train wraps the class of a learner that is an actor.
        "learner_class": next(each.__name__ for each in type(learner).__mro__ if not each.__name__.startswith("_")),
        "torch_threads_learner": torch.get_num_threads(),
    }


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
    return {
        **{name: _one_or_all(values) for name, values in found.items()},
        **({"overrides_per_module": overrides} if overrides else {}),
        FRAGMENT: PARAMETERS[FRAGMENT].read(learner.config),
        **_values_of_process(learner),
    }


def _values_of_module(learner: Any, module_id: str) -> dict[str, Any]:
    config, module = learner.config.get_config_for_module(module_id), learner.module[module_id]
    names = [name for name, each in PARAMETERS.items() if each.is_argument and hasattr(config, attribute(name))]
    values = {name: PARAMETERS[name].read(config) for name in names}
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
    if isinstance(config, IMPALAConfig) and (fraction := PARAMETERS[END_FRACTION].read(config)) is not None:
        values[END_FRACTION] = fraction
    return {
        **{name: value if math.isfinite(value) else None for name, value in values.items()},
        "grad_clip_by": config.grad_clip_by,
        "optimizer": ", ".join(type(optimizer).__name__ for _, optimizer in optimizers),
        # A heuristic has none, and need not be torch's.
        "num_parameters": sum(value.numel() for value in module.parameters()) if isinstance(module, nn.Module) else 0,
        "module_class": type(module.unwrapped()).__name__,
    }
