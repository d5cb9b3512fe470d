"""The trial under Ray Tune: resources, the way of an error to the driver, and nothing left behind."""

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from study.errors import TrialError
from study.trial.measure import RESULT
from study.trial.trainable import TRIAL, StudyTrial
from tests.integration.trials import live_runners, trial_config
from tests.values import replace

pytestmark = pytest.mark.usefixtures("local_ray")


def fit(folder: Path, config: Any, **tune_config: Any) -> list[Any]:
    """Run one trial, or as many as asked for, through a bare Tuner."""
    checkpoints = tune.CheckpointConfig(checkpoint_at_end=False)
    run_config = tune.RunConfig(storage_path=str(folder), verbose=0, checkpoint_config=checkpoints)
    space, how = {TRIAL: config}, tune.TuneConfig(**tune_config)
    return list(tune.Tuner(StudyTrial, param_space=space, tune_config=how, run_config=run_config).fit())


def test_a_process_goes_on_with_the_next_trial_as_if_it_were_new(tmp_path: Path) -> None:
    config = trial_config(execution="emulated", budget__env_steps=400)
    # One after another, the same trial.
    same = [replace(config, started=replace(config.started, trial=number)) for number in range(3)]
    results = fit(tmp_path, tune.grid_search(same), reuse_actors=True, max_concurrent_trials=1)
    assert [result.error for result in results] == [None] * 3
    assert len({result.metrics["pid"] for result in results}) == 1
    returns = [evaluation.returns for result in results for evaluation in result.metrics[RESULT].records]
    assert returns[0] == returns[1] == returns[2]


@pytest.mark.minutes
def test_a_start_that_hangs_reaches_the_driver_in_one_line(tmp_path: Path) -> None:
    slow = {"environment__id": "tests.environments:StartsSlowly", "resources__startup_timeout_s": 4.0}
    (result,) = fit(tmp_path, trial_config(**slow))
    cause = result.error.cause
    assert isinstance(cause, TrialError)
    assert str(cause).startswith("start-up: all 2 env runners must be up within startup_timeout_s=4 s, they are not.")
    assert not live_runners(10)
