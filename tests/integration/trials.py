"""Configurations of short trials for integration tests. Ray is imported where it is asked."""

import time
from typing import Any

from study.records.records import Evaluation, Iteration
from study.space.parameters import PARAMETERS
from study.space.spec import StudySpec
from study.trial.messages import BuiltTrial
from tests.spaces import spec

KINDS: dict[str, type] = {"trial_built": BuiltTrial, "iteration": Iteration, "evaluation": Evaluation}


def trial_config(
    *,
    seed: int = 1,
    setting: dict[str, Any] | None = None,
    execution: str = "real",
    iterations: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return what Tune hands to a trial: two runners with four lanes each, two iterations of 400 steps.

    Args:
        seed: Seed of the trial.
        setting: Parameters that differ from the defaults.
        execution: `real` or `emulated`.
        iterations: After how many the trial ends; None: as its budget says.
        changes: Dotted keys of the space, e.g. `environment__id="CartPole-v1"`.
    """
    content: dict[str, Any] = {"budget__env_steps": 800, "search__num_trials": 6, **changes}
    if content.get("algorithm", "PPO") != "PPO":
        content["parameters__minibatch_size"] = None  # the others have none
    space = spec(**content)
    own = {**space.traits.defaults, **space.traits.given}
    values = {name: own.get(name, PARAMETERS[name].default) for name in space.parameter_names}
    values |= {"num_env_runners": 2, "train_batch_size": 400, "lr": 1e-3}
    values |= {"minibatch_size": 400} if space.traits.rules else {"minibatch_size": 100, "num_epochs": 2}
    return {
        "spec": space.to_json(),
        "setting": values | (setting or {}),
        "seed": seed,
        "iterations": iterations,
        "execution": execution,
        "trial": 3,
        "attempt": 1,
    }


def built_config(**changes: Any) -> Any:
    """Return RLlib's configuration of the trial of `trial_config(**changes)`."""
    from study.trial.algorithm import build_config
    from study.trial.engine.envs.probing import probe

    content = trial_config(**changes)
    space, own = StudySpec.model_validate(content["spec"]), ("setting", "seed", "execution")
    return build_config(space, spaces=probe(space.environment, ""), **{name: content[name] for name in own})


def live_runners(patience_s: float = 1) -> list[Any]:
    """Return the runners that Ray has not seen die meanwhile."""
    from ray._private.state import actors as actor_table

    deadline = time.monotonic() + patience_s
    while True:
        actors = actor_table().values()
        alive = [each for each in actors if each["ActorClassName"].endswith("EnvRunner") and each["State"] != "DEAD"]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)
