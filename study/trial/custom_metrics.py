"""Metrics that a script logs by itself, by RLlib's `MetricsLogger`: what is in RLlib's results and not RLlib's own."""

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.utils import metrics as names_of_rllib
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_RESULT_KEYS

from study.metrics import CUSTOM
from study.trial.parts import names

_ALSO_RLLIBS = names(
    "agent_episode_return_mean module_episode_return_mean config custom_metrics done env_runner_group fault_tolerance",
    "info iterations_since_restore num_healthy_workers num_remote_worker_restarts perf timers trial_id",
    "num_training_step_calls_per_iteration weights_seq_no learners",
)
"""Names that RLlib gives results without a constant for them."""
_FOREIGN = re.compile(r"[^\w. -]|^\.*$", flags=re.ASCII)
"""What no part of a metric's name in MLflow has: some characters, or nothing but dots."""


def custom_metrics(results: Mapping[str, Any]) -> dict[str, float | None]:
    """Return `custom/<name>` -> value of every number that the script's code has logged for this iteration.

    That is what was logged in an environment runner, or with the algorithm.
    """
    return {**_numbers(results, CUSTOM), **_numbers(results.get(ENV_RUNNER_RESULTS, {}), CUSTOM)}


@functools.cache
def _of_rllib() -> frozenset[str]:
    constants = (value for name, value in vars(names_of_rllib).items() if name.isupper() and isinstance(value, str))
    return frozenset({*constants, *_ALSO_RLLIBS, *AUTO_RESULT_KEYS, *DEFAULT_RESULT_KEYS})


def _numbers(values: Mapping[str, Any], prefix: str) -> dict[str, float | None]:
    """Return the path of each number in nested results, joined by `/`, but for names that RLlib's own results have."""
    found: dict[str, float | None] = {}
    for name, value in values.items():
        path = f"{prefix}{_FOREIGN.sub('_', str(name))}"
        if prefix == CUSTOM and (name in _of_rllib() or str(name).startswith("_") or str(name).endswith("_throughput")):
            continue
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{path}/")
        elif isinstance(value, (int, float, np.number)):
            found[path] = float(value) if math.isfinite(value) else None
    return found
