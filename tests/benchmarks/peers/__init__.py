"""Whole PPO trainings of the same workload, one module per library. Each runs in a process of its own:

    python -m tests.benchmarks.peers '{"peer": "sb3", "workload": {}, "options": {"vec_env": "dummy"}}'

prints the training as one JSON line. A module has `train(workload, **options) -> Training`, may name the module that it
needs beyond this project's dependencies, and imports it only inside functions.
"""

from types import MappingProxyType

REQUIRED_MODULE = MappingProxyType(
    {"ours": "study", "stock_rllib": "ray", "sb3": "stable_baselines3", "single_file": "torch", "rlox": "rlox"}
)
"""Peer, by the name of its module here -> what must be importable."""
