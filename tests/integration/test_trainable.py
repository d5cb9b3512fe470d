"""The trial under Ray Tune: resources, the way of an error to the driver, and nothing left behind."""

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from study.errors import TrialError
from study.records.records import Evaluation, Iteration
from study.trial.messages import RESULT, TrialResult
from study.trial.trainable import StudyTrial
from tests.integration.trials import live_runners, trial_config

pytestmark = pytest.mark.usefixtures("local_ray")


def fit(folder: Path, config: dict[str, Any], **tune_config: Any) -> list[Any]:
    """Run one trial, or as many as asked for, through a bare Tuner."""
    tuner = tune.Tuner(
        StudyTrial,
        param_space=config,
        tune_config=tune.TuneConfig(**tune_config),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    return list(tuner.fit())


def test_a_trial_asks_for_a_cpu_of_each_process() -> None:
    config = trial_config(
        setting={"num_env_runners": 3},
        resources__num_cpus_for_main_process=2,
        resources__num_cpus_per_env_runner=4,
        resources__placement="spread",
    )
    request = StudyTrial.default_resource_request(config)
    assert request.bundles == [{"CPU": 2}, {"CPU": 4}, {"CPU": 4}, {"CPU": 4}]
    assert request.strategy == "SPREAD"


def test_a_trial_runs_under_tune(tmp_path: Path) -> None:
    (result,) = fit(tmp_path, trial_config(setting={"num_env_runners": 1}))
    assert result.error is None
    assert result.metrics["done"] is True
    reported: TrialResult = result.metrics[RESULT]
    assert reported.progress == 1
    assert reported.policy
    assert [type(record) for record in reported.records] == [Iteration, Evaluation]
    assert not live_runners(10)


def test_a_process_goes_on_with_the_next_trial_as_if_it_were_new(tmp_path: Path) -> None:
    config = trial_config(execution="emulated", budget__env_steps=400)
    config["trial"] = tune.grid_search([0, 1, 2])  # one after another, the same trial
    results = fit(tmp_path, config, reuse_actors=True, max_concurrent_trials=1)
    assert [result.error for result in results] == [None] * 3
    assert len({result.metrics["pid"] for result in results}) == 1
    records: list[Any] = [result.metrics[RESULT].records for result in results]
    startup = [built.startup_time_s for built, _, _ in records]
    assert max(startup[1:]) < 0.5 * startup[0]
    losses = [[iteration.metrics[name] for name in ("kl", "policy_loss", "vf_loss")] for _, iteration, _ in records]
    assert losses[0] == losses[1] == losses[2]
    returns = [evaluation.returns for _, _, evaluation in records]
    assert returns[0] == returns[1] == returns[2]


def test_a_start_that_hangs_reaches_the_driver_in_one_line(tmp_path: Path) -> None:
    config = trial_config(
        environment__id="tests.environments:StartsSlowly",
        resources__startup_timeout_s=4.0,
    )
    (result,) = fit(tmp_path, config)
    cause = result.error.cause
    assert isinstance(cause, TrialError)
    assert str(cause) == (
        "start-up: all 2 env runners must be up within startup_timeout_s=4 s, they are not. "
        "Fix: Raise resources.startup_timeout_s, or look at the nodes."
    )
    assert not live_runners(10)
