"""Facts, configurations and trials of persons' scripts for tests. RLlib is imported where it is used."""

import copy
from typing import Any

from study.space.spec import ScriptFacts, StudySpec
from tests.spaces import spec_of

FACTS: dict[str, Any] = {
    "source": {"file": "my_train.py", "sha256": "0" * 64},
    "found_as": "module level, config",
    "algorithm": "PPO",
    "base_algorithm": "PPO",
    "environment": "CartPole-v1",
    "values": {
        "num_env_runners": 2,
        "num_envs_per_env_runner": 1,
        "train_batch_size": 400,
        "minibatch_size": 100,
        "num_epochs": 2,
        "lr": 0.001,
        "gamma": 0.99,
        "grad_clip": None,
        "vf_clip_param": 10.0,
    },
}
SPACE: dict[str, Any] = {
    "config": "my_train.py",
    "parameters": {"num_env_runners": [1, 2], "lr": [0.001, 0.002]},
    "budget": {"env_steps": 800},
    "search": {"sampler": "random", "num_trials": 4},
    "evaluation": {"episodes": 3, "num_evaluations": 2},
}


def facts(**changes: Any) -> ScriptFacts:
    """Return facts of a script, with some of them replaced."""
    return ScriptFacts.model_validate({**copy.deepcopy(FACTS), **changes})


def as_of_script(space: StudySpec, **changes: Any) -> StudySpec:
    """Return a space as if a script with these facts had been named in it."""
    return space.model_copy(update={"script": facts(**changes)})


def script_spec(found: ScriptFacts | None = None, **changes: Any) -> StudySpec:
    """Return the spec of a space that names a script.

    Args:
        found: What was found in the script.
        changes: Whole sections of the space.
    """
    content = {**copy.deepcopy(SPACE), **changes, "script": (found or facts()).model_dump(mode="json")}
    return spec_of(content)
