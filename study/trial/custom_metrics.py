"""Metrics that a script logs by itself, by RLlib's `MetricsLogger`: what is in RLlib's results and not RLlib's own.

Imports RLlib.
"""

import functools
import math
import re
import sys
from collections.abc import Iterator, Mapping
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
    known = _known() | _of_learner(config.learner_class)
    found = dict(_numbers({name: value for name, value in results.items() if _is_free(name, known)}, ""))
    runners = results.get(ENV_RUNNER_RESULTS, {})
    found |= _numbers({name: value for name, value in runners.items() if _is_free(name, known)}, "")
    own = any(each.__module__.partition(".")[0] not in _NOT_OWN for each in config.learner_class.__mro__)
    learners = results.get(LEARNER_RESULTS, {}) if own else {}
    for module, logged in learners.items():
        if isinstance(logged, Mapping):
            prefix = f"{module}/" if len(learners.keys() - {ALL_MODULES}) > 1 else ""
            found |= _numbers({name: value for name, value in logged.items() if _is_free(name, known)}, prefix)
    return {f"{CUSTOM}{_FOREIGN.sub(_spelled, name)}": value for name, value in found.items()}


def _spelled(foreign: re.Match[str]) -> str:
    """Return characters as their code: `a:b` and `a?b` stay two metrics, whichever of them an iteration has."""
    return f"_{foreign[0].encode(errors='surrogatepass').hex()}_"


def _is_free(name: Any, known: frozenset[str]) -> bool:
    text = str(name)
    return (
        text not in known
        and not text.startswith(("_", "gradients_"))
        and not text.endswith(("_throughput", "_learning_rate"))
    )


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float | None]]:
    """Yield the path of each number in nested results, joined by `/`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        yield f"{prefix}{name}", number if math.isfinite(number) else None


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(value for value in vars(names_of_rllib).values() if isinstance(value, str)) | _ALSO_RLLIBS


@functools.cache
def _of_learner(learner: type) -> frozenset[str]:
    """Return the names of results in the modules of RLlib's classes that a learner is."""
    modules = [sys.modules[each.__module__] for each in learner.__mro__ if each.__module__.startswith("ray.rllib.")]
    return frozenset(
        value for module in modules for name, value in vars(module).items() if isinstance(value, str) and name.isupper()
    )
