"""Metrics that a script logs by itself, by RLlib's `MetricsLogger`: what is in RLlib's results and not RLlib's own.

Imports RLlib.
"""

import functools
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils import metrics as names_of_rllib
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS
from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_RESULT_KEYS

from study.metrics import CUSTOM
from study.trial.parts import names

_ALSO_RLLIBS = names(
    "agent_episode_return_mean module_episode_return_mean config custom_metrics done env_runner_group fault_tolerance",
    "info iterations_since_restore num_healthy_workers num_remote_worker_restarts perf timers trial_id",
    "num_training_step_calls_per_iteration total_loss policy_loss vf_loss vf_loss_unclipped vf_explained_var entropy",
    "mean_kl_loss mean_pi_loss mean_vf_loss curr_kl_coeff curr_entropy_coeff module_train_batch_size_mean",
    "weights_seq_no diff_num_grad_updates_vs_sampler_policy num_module_steps_trained learner_thread_out_queue_size",
).union(AUTO_RESULT_KEYS, DEFAULT_RESULT_KEYS)
"""Names that RLlib gives results without a constant for them."""
_NOT_OWN = ("ray", "study", "torch", "builtins", "abc", "typing")
"""Top-level modules whose classes are no part of a script."""
_FOREIGN = re.compile(r"[^\w./ -]|(?:^|(?<=/))\.{0,2}(?=/|$)", flags=re.ASCII)
"""What no name of a metric in MLflow has: some characters, and parts of a path that lead nowhere."""


def custom_metrics(results: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, float | None]:
    """Return `custom/<name>` -> value of every number that the script's code has logged for this iteration.

    What was logged in an environment runner and with the algorithm has its own name; what a learner of the script's own
    logged for a module has the module's before it, where there are several.
    """
    kinds = config.learner_class.__mro__
    known = _names_in(names_of_rllib) | _ALSO_RLLIBS
    for kind in kinds:  # with the names of results in the modules of RLlib's classes that the learner is
        if kind.__module__.startswith("ray.rllib."):
            known |= _names_in(sys.modules[kind.__module__])
    found = {**_numbers(results, known), **_numbers(results.get(ENV_RUNNER_RESULTS, {}), known)}
    if any(kind.__module__.partition(".")[0] not in _NOT_OWN for kind in kinds):
        learners = results.get(LEARNER_RESULTS, {})
        several = len(learners.keys() - {ALL_MODULES}) > 1
        for module, logged in learners.items():
            if isinstance(logged, Mapping):
                found |= _numbers(logged, known, f"{module}/" if several else "")
    return {f"{CUSTOM}{_FOREIGN.sub(_spelled, name)}": value for name, value in found.items()}


@functools.cache
def _names_in(module: Any) -> frozenset[str]:
    return frozenset(value for name, value in vars(module).items() if isinstance(value, str) and name.isupper())


def _spelled(foreign: re.Match[str]) -> str:
    """Return characters as their code: `a:b` and `a?b` stay two metrics, whichever of them an iteration has."""
    return f"_{foreign[0].encode(errors='surrogatepass').hex()}_"


def _numbers(values: Mapping[str, Any], known: frozenset[str], prefix: str = "") -> dict[str, float | None]:
    """Return the path of each number in nested results, joined by `/`, but for names that RLlib's own results have."""
    found: dict[str, float | None] = {}
    for name, value in values.items():
        text = str(name)
        rllibs = text.startswith(("_", "gradients_")) or text.endswith(("_throughput", "_learning_rate"))
        if rllibs or text in known:
            continue
        if isinstance(value, Mapping):
            found |= _numbers(value, frozenset(), f"{prefix}{name}/")
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        found[f"{prefix}{name}"] = number if math.isfinite(number) else None
    return found
