"""Small throughput studies for tests."""

from typing import Any

from study.space.spec import StudySpec
from tests.spaces import spec_of, with_changes

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
    },
}


def throughput_spec(**changes: Any) -> StudySpec:
    """Return the spec of `BASE` with whole dotted keys replaced, e.g. `throughput__blocks=2`; None removes a key."""
    return spec_of(with_changes(BASE, **changes))
