"""Whole PPO trainings of the same workload, one module per library. Each runs in a process of its own:

    python -m tests.benchmarks.peers '{"peer": "sb3", "workload": {}, "options": {"vec_env": "dummy"}}'

prints the training as one JSON line. A module has `train(workload, **options) -> Training`, may name the module that it
needs beyond this project's dependencies, and imports it only inside functions.
"""

import importlib.util
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.benchmarks.timing import in_a_process

REQUIRED_MODULE = MappingProxyType(
    {"ours": "study", "stock_rllib": "ray", "sb3": "stable_baselines3", "single_file": "torch", "rlox": "rlox"}
)
"""Peer, by the name of its module here -> what must be importable."""


def is_installed(peer: str) -> bool:
    """Return whether a peer can run here, and say it where it cannot."""
    module = REQUIRED_MODULE[peer]
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f"{peer}: skipped, {module} is not installed. Fix: pip install -e '.[benchmarks]'")
    return found


def training_of(peer: str, workload: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training of a peer, in a process of its own."""
    return in_a_process("peers", json.dumps({"peer": peer, "workload": workload, "options": options}))
