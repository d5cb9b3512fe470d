"""Configurations of short trials for integration tests. Ray is imported where it is asked."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from study.records.records import TrialStarted
from study.space.parameters import PARAMETERS
from study.space.spec import StudySpec
from study.trial.measure import TrialResult
from study.trial.trainable import TrialConfig
from tests.spaces import spec
from tests.synthetic import started
from tests.values import replace

if TYPE_CHECKING:
    from study.trial.run import TrialRun


def trial_config(
    *,
    seed: int = 1,
    setting: dict[str, Any] | None = None,
    execution: str = "real",
    iterations: int | None = None,
    **changes: Any,
) -> TrialConfig:
    """Return what a trial is to do: two runners with four lanes each, two iterations of 400 steps.

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
    values |= {name: value for name, value in space.fixed.items() if name in values and PARAMETERS[name].optional}
    values |= {"num_env_runners": 2, "train_batch_size": 400, "lr": 1e-3}
    values |= {"minibatch_size": 400} if "num_minibatches" in own else {"minibatch_size": 100, "num_epochs": 2}
    begun = asked(values | (setting or {}), seed=seed, iterations=iterations, execution=execution)
    return TrialConfig(space=json.dumps(space.to_json()), started=begun)


def asked(
    setting: dict[str, Any], *, seed: int, iterations: int | None = None, execution: Any = "real", trial: int = 3
) -> TrialStarted:
    """Return the record of a trial with a setting."""
    begun = started(trial, execution=execution)
    return replace(begun, setting=setting, proposed={}, seed=seed, iterations=iterations)


@contextmanager
def running(given: TrialConfig | None = None, **changes: Any) -> "Iterator[TrialRun]":
    """Yield the trial of `trial_config(**changes)`, or another one that is given."""
    from study.trial.run import TrialRun

    config = given or trial_config(**changes)
    trial = TrialRun(config, started_s=time.perf_counter())
    try:
        yield trial
    finally:
        trial.close()


def play(trial: "TrialRun") -> list[TrialResult]:
    """Run a trial to its end and return its results."""
    results = [trial.advance()]
    while not results[-1].done:
        results.append(trial.advance())
    return results


def of_kind(results: list[TrialResult], kind: str) -> list[Any]:
    """Return the records of a kind in some results."""
    return [record for result in results for record in result.records if record.kind == kind]


def weights_of(trial: "TrialRun") -> dict[str, Any]:
    """Return the learner's weights."""
    assert trial._algorithm is not None
    state: dict[str, Any] = trial._algorithm.learner_group.get_weights()["default_policy"]
    return {name: np.array(value) for name, value in state.items()}


def built_config(**changes: Any) -> Any:
    """Return RLlib's configuration of the trial of `trial_config(**changes)`."""
    given = trial_config(**changes)
    return config_of(given.spec, **{name: getattr(given.started, name) for name in ("setting", "seed", "execution")})


def config_of(space: StudySpec, *, setting: Any, seed: int = 1, execution: Any = "real") -> Any:
    """Return RLlib's configuration of a trial of a space."""
    from study.trial.configuration import apply
    from study.trial.engine.envs.probing import probe
    from study.trial.experiment import configuration_of

    base = configuration_of(space, spaces=probe(space.environment, ""))
    return apply(base, space, setting=setting, seed=seed, execution=execution)


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
