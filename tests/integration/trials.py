"""Configurations of short trials for integration tests. Imports no Ray."""

from typing import Any

from study.space.parameters import PARAMETERS
from tests.spaces import spec


def trial_config(
    *, seed: int = 1, setting: dict[str, Any] | None = None, execution: str = "real", **space: Any
) -> dict[str, Any]:
    """Return what Tune hands to a trial: two runners with four lanes each, two iterations of 400 steps.

    Args:
        seed: Seed of the trial.
        setting: Parameters that differ from the defaults.
        execution: `real` or `emulated`.
        space: Dotted keys of the space, e.g. `environment__id="CartPole-v1"`.
    """
    content: dict[str, Any] = {"budget__env_steps": 800, "search__num_trials": 6, **space}
    values = {name: parameter.default for name, parameter in PARAMETERS.items()}
    values |= {
        "num_env_runners": 2,
        "train_batch_size": 400,
        "minibatch_size": 100,
        "num_epochs": 2,
        "lr": 1e-3,
    }
    return {
        "spec": spec(**content).to_json(),
        "setting": values | (setting or {}),
        "seed": seed,
        "iterations": None,
        "execution": execution,
        "trial": 3,
        "attempt": 1,
    }
