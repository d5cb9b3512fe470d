"""Small specs and clusters for tests."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from study.designs.registry import design_of
from study.machine.shape import ClusterShape, NodeShape
from study.records.records import TrialRequest
from study.space.parsing import Source, parse_space
from study.space.spec import StudySpec

BASE: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "floor": 0, "reference": 500, "target": 450},
    "parameters": {
        "num_env_runners": [1, 2, 4],
        "train_batch_size": {"low": 200, "high": 800, "log": True},
        "lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "minibatch_size": 64,
        "num_envs_per_env_runner": 2,
    },
    "budget": {"env_steps": 1000},
    "search": {"sampler": "random", "num_trials": 6, "seeds": [1, 2]},
    "evaluation": {"episodes": 3, "num_evaluations": 2},
}
THROUGHPUT: dict[str, Any] = {
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


def with_changes(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a copy of `base` with whole dotted keys replaced, a dot written `__`; None removes a key."""
    result: dict[str, Any] = copy.deepcopy(dict(base))
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


def spec_of(content: dict[str, Any]) -> StudySpec:
    """Return the spec of a content."""
    return parse_space(Source(name="test", content=content))


def spec(**changes: Any) -> StudySpec:
    """Return the spec of `BASE` with changes as of `with_changes`, e.g. `search__num_trials=9`."""
    return spec_of(with_changes(BASE, **changes))


def throughput_spec(**changes: Any) -> StudySpec:
    """Return the spec of `THROUGHPUT` with changes as of `with_changes`, e.g. `throughput__blocks=2`."""
    return spec_of(with_changes(THROUGHPUT, **changes))


def read_again(spec: StudySpec) -> StudySpec:
    """Return the spec as it is read back from the records of a study."""
    return spec_of(json.loads(json.dumps(spec.to_json())))


def requests_of(spec: StudySpec) -> tuple[TrialRequest, ...]:
    """Return the trials of a study that are known before anything has run."""
    return design_of(spec).requests(spec)


def cluster(*, memory_mb: int = 64_000, num_gpus: float = 0, **nodes: int | tuple[int, int]) -> ClusterShape:
    """Return a cluster that nobody has: address -> the CPUs that Ray hands out there, and cores where they differ."""
    alike: dict[str, Any] = {"memory_mb": memory_mb, "num_gpus": num_gpus}
    sizes = {address: (each, each) if isinstance(each, int) else each for address, each in nodes.items()}
    return ClusterShape(
        nodes=tuple(
            NodeShape(address=address, num_cpus=cpus, physical_cpus=cores, **alike)
            for address, (cpus, cores) in sizes.items()
        )
    )
