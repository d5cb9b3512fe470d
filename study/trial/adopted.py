"""A script's configuration as bytes and back, with the environments that the script registered. Imports Ray.

The script's own module travels by value, so that it need not be importable where a trial runs. An environment that is
registered under a name lives in Ray's registry of one cluster: its creator travels too, and is registered again.
"""

import types
from collections.abc import Mapping
from typing import Any

from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.registry import register_env

EnvironmentCreator = Any
"""A function of an `EnvContext` that returns an environment."""


def pickled(
    config: AlgorithmConfig,
    *,
    environments: Mapping[str, EnvironmentCreator] | None = None,
    by_value: types.ModuleType | None = None,
) -> bytes:
    """Return a configuration as bytes.

    Args:
        config: As the script made it; it need not be validated.
        environments: Name -> creator of every environment that the script has registered.
        by_value: The script's own module, whose classes and functions travel with the configuration.

    Raises:
        Exception: What cannot be pickled, as cloudpickle says it.
    """
    if by_value is not None:
        cloudpickle.register_pickle_by_value(by_value)
    try:
        content: bytes = cloudpickle.dumps({"config": config, "environments": dict(environments or {})})
        return content
    finally:
        if by_value is not None:
            cloudpickle.unregister_pickle_by_value(by_value)


def unpickled(content: bytes) -> AlgorithmConfig:
    """Return a configuration, and make its environments known to Ray."""
    parts = cloudpickle.loads(content)
    for name, creator in parts["environments"].items():
        register_env(name, creator)
    config: AlgorithmConfig = parts["config"]
    return config
