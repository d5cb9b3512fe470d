"""What goes on in the processes of another trial is as if it had its own; and trials that begin together."""

import threading
import time
from typing import Any

import numpy as np
import pytest
import ray

from study.errors import TrialError
from study.records.records import Iteration
from study.space.algorithms import ALGORITHMS
from study.space.parameters import PARAMETERS
from study.trial.messages import RESULT, TrialResult
from study.trial.throughput import meet
from study.trial.trainable import StudyTrial
from tests.integration.test_env_runners import runner_of
from tests.integration.trials import built_config
from tests.throughput import throughput_spec

pytestmark = pytest.mark.usefixtures("local_ray")

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
    return {
        "spec": spec.to_json(),
        "setting": {**values, **setting, "num_learners": 0},
        "seed": seed,
        "iterations": 2,
        "execution": "real",
        "trial": seed,
        "attempt": 1,
        "group": ("alone", 1),
    }


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
def test_a_trial_in_kept_processes_learns_what_it_learns_in_its_own() -> None:
    trial = StudyTrial(timed(batch=200, seed=1))
    try:
        first, pids = run(trial)
        assert trial.reset_config(timed(batch=400, seed=2))
        trial.config = timed(batch=400, seed=2)
        second, same = run(trial)
    finally:
        trial.stop()
    assert same == pids
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


@pytest.mark.minutes
def test_the_processes_of_other_runners_are_not_taken() -> None:
    trial = StudyTrial(timed(batch=200, seed=1))
    try:
        _, pids = run(trial)
        more = timed(batch=300, seed=2)
        more["setting"]["num_env_runners"] = 3
        assert trial.reset_config(more)
        trial.config = more
        records, others = run(trial)
    finally:
        trial.stop()
    assert records[0].startup_time_s > 0
    assert len(others) == 3
    assert not set(others) & set(pids)


def test_trials_of_a_group_begin_together() -> None:
    arrived: dict[int, float] = {}
    begun: dict[int, float] = {}

    def take_part(trial: int) -> None:
        time.sleep(0.4 * trial)
        arrived[trial] = time.monotonic()
        kept.append(meet("group-test", 3, trial=trial, timeout_s=60))
        begun[trial] = time.monotonic()

    kept: list[Any] = []
    threads = [threading.Thread(target=take_part, args=(trial,)) for trial in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(begun) == [0, 1, 2]
    assert min(begun.values()) >= max(arrived.values())


def test_a_trial_whose_group_does_not_come_fails_and_says_so() -> None:
    with pytest.raises(TrialError, match=r"all 2 trials must be up .* got 1\. Fix:"):
        meet("group-of-one", 2, trial=0, timeout_s=0.5)
    assert ray.is_initialized()
