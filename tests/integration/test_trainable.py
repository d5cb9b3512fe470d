"""The trial under Ray Tune: resources, the way of an error to the driver, and nothing left behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune

from study.errors import TrialError
from study.records.records import Iteration
from study.space.parameters import ALGORITHMS, PARAMETERS
from study.trial.messages import RESULT, TrialResult
from study.trial.trainable import StudyTrial
from tests.integration.test_env_runners import runner_of
from tests.integration.trials import asked, built_config, live_runners, trial_config
from tests.throughput import throughput_spec
from tests.values import replace

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


def test_a_process_goes_on_with_the_next_trial_as_if_it_were_new(tmp_path: Path) -> None:
    config = trial_config(execution="emulated", budget__env_steps=400)
    # One after another, the same trial.
    config["started"] = tune.grid_search([replace(config["started"], trial=number) for number in range(3)])
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


@pytest.mark.minutes
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


# --- what goes on in the processes of another trial -----------------------------------


LEARNT = ("episode_return_sum", "num_episodes", "episode_len_sum", "kl", "entropy", "policy_loss", "vf_loss")


def samples(runner: Any, rounds: int) -> list[tuple[Any, ...]]:
    """Return what a runner samples in some rounds, as plain values."""
    found = []
    for _ in range(rounds):
        episodes, _, measured = runner.measured_sample()
        assert measured.error == ""
        pieces = [
            (np.asarray(each.get_observations()).tolist(), np.asarray(each.get_actions()).tolist(), each.t_started)
            for each in episodes
        ]
        found.append((pieces, measured.env_steps, measured.num_episodes, measured.episode_return_sum))
    return found


@pytest.mark.parametrize("kind", ["stock", "batched"])
def test_a_renewed_runner_does_what_a_new_one_does(kind: str) -> None:
    setting = {"num_env_runners": 1, "num_envs_per_env_runner": 3, "train_batch_size": 60, "minibatch_size": 20}
    first = built_config(runner=kind, setting=setting, environment__id="CartPole-v1")
    other = {**setting, "num_envs_per_env_runner": 2, "train_batch_size": 80}
    second = built_config(runner=kind, setting=other, seed=7, environment__id="CartPole-v1")
    renewed = runner_of(first)
    samples(renewed, 3)
    renewed.renew(config=second, worker_index=1, num_workers=1)
    got = samples(renewed, 3)
    assert got == samples(runner_of(second), 3)
    assert got != samples(runner_of(first), 3)


def timed(*, batch: int, seed: int) -> dict[str, Any]:
    """Return what Tune hands to a trial of a throughput study: two runners, two iterations."""
    values = {name: PARAMETERS[name].default for name in ALGORITHMS["PPO"].parameters}
    setting = {"num_env_runners": 2, "train_batch_size": batch, "minibatch_size": 50, "num_epochs": 2}
    spec = throughput_spec(environment={"id": "CartPole-v1"}, execution="real")
    begun = asked({**values, **setting, "num_learners": 0}, seed=seed, iterations=2, trial=seed)
    return {"spec": spec.to_json(), "started": begun}


def run(trial: StudyTrial) -> tuple[list[Any], list[int]]:
    """Run a trial to its end; return its records, and the ids of its runner processes."""
    records, pids = [], []
    while True:
        result: TrialResult = trial.step()[RESULT]
        records += result.records
        assert result.policy is None
        if result.done:
            return records, pids
        group = trial._run._algorithm.env_runner_group  # type: ignore[union-attr]
        reports = group.foreach_env_runner("report", local_env_runner=False)
        pids = sorted(report.place.pid for report in reports)


def learnt(records: list[Any]) -> list[list[float]]:
    return [[each.metrics[name] for name in LEARNT] for each in records if isinstance(each, Iteration)]


@pytest.mark.minutes
def test_a_trial_in_kept_processes_learns_what_it_learns_in_its_own_and_other_runners_have_new_ones() -> None:
    trial = StudyTrial(timed(batch=200, seed=1))
    try:
        first, pids = run(trial)
        assert trial.reset_config(timed(batch=400, seed=2))
        trial.config = timed(batch=400, seed=2)
        second, same = run(trial)
        more = timed(batch=300, seed=3)
        more["started"].setting["num_env_runners"] = 3
        assert trial.reset_config(more)
        trial.config = more
        third, larger = run(trial)
    finally:
        trial.stop()
    assert same == pids
    assert third[0].startup_time_s > 0
    assert len(larger) == 3
    assert not set(larger) & set(pids)
    assert [records[0].startup_time_s is None for records in (first, second)] == [False, True]
    assert second[0].effective["train_batch_size"] == 400
    assert second[0].effective["seed"] == 2
    alone = StudyTrial(timed(batch=400, seed=2))
    try:
        fresh, others = run(alone)
    finally:
        alone.stop()
    assert not set(others) & set(pids)
    assert learnt(second) == learnt(fresh)
    assert [each.metrics["train_batch_size_actual"] for each in second[1:]] == [400, 400]
