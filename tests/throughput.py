"""Small throughput studies for tests."""

import copy
from typing import Any

from study.space.space_file import Source
from study.space.spec import StudySpec, parse_space

BASE: dict[str, Any] = {
    "kind": "throughput",
    "environment": {"id": "Acrobot-v1", "step_wait_ms": 4},
    "parameters": {
        "num_env_runners": 2,
        "num_envs_per_env_runner": 1,
        "train_batch_size": 400,
        "minibatch_size": 100,
        "num_epochs": 4,
    },
    "throughput": {
        "iterations": 2,
        "blocks": 3,
        "grids": {
            "strong": {"num_env_runners": [1, 2, 4]},
            "weak": {"num_env_runners": [1, 2, 4], "steps_per_env_runner": 200},
            "epochs": {"num_env_runners": [1, 4], "num_epochs": [1, 8]},
        },
        "allocation": {"num_env_runners": 7, "trials": [1, 2, 4]},
    },
}


def throughput_content(**changes: Any) -> dict[str, Any]:
    """Return `BASE` with whole dotted keys replaced, e.g. `throughput__blocks=2`; None removes a key."""
    result = copy.deepcopy(BASE)
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return result


def throughput_spec(**changes: Any) -> StudySpec:
    """Return the spec of `throughput_content(**changes)`."""
    return parse_space(Source(name="test", content=throughput_content(**changes)))
