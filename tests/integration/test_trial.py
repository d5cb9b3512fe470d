"""Real trials: what is measured is what happened, and what goes wrong is said."""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from study.errors import TrialError
from study.machine.host import cpu_model
from study.metrics import METRICS
from study.trial import run as run_module
from study.trial.engine.sampling.lanes import lane_seed
from study.trial.measure import TrialResult
from study.trial.run import TrialRun
from tests.environments import MadeOnce
from tests.integration.trials import live_runners, of_kind, play, running, trial_config

pytestmark = [pytest.mark.minutes, pytest.mark.usefixtures("local_ray")]
AT_STEP = {"environment__id": "tests.environments:AtStep"}


@pytest.fixture(scope="module")
def trial(local_ray: None) -> Iterator[TrialRun]:
    with running(setting={"num_envs_per_env_runner": 4}) as trial:
        yield trial


@pytest.fixture(scope="module")
def results(trial: TrialRun) -> list[dict[str, Any]]:
    return play(trial)


def test_records_are_complete(results: list[TrialResult]) -> None:
    (built,), iterations, evaluations = (of_kind(results, kind) for kind in ("trial_built", "iteration", "evaluation"))
    assert results[0].records[0] is built
    assert [record.iteration for record in iterations] == [record.iteration for record in evaluations] == [1, 2]
    assert {(record.trial, record.attempt) for record in (*iterations, *evaluations)} == {(3, 1)}
    placement = [(place["process"], place["number"], place["runners"]) for place in built.placement]
    assert placement == [("main", 0, []), ("runner", 1, [1]), ("runner", 2, [2])]
    assert built.processes_per_node == Counter(place["node"] for place in built.placement)
    assert {place["cpu_model"] for place in built.placement} == {cpu_model()}
    loads = results[-1].node_loads  # of the one timed iteration: a tenth of a second, ten ticks of the CPUs' clocks
    assert results[0].node_loads == () and len(loads) <= 1
    assert all(0 < load.seconds < 60 and 0 <= load.foreign_cores <= os.cpu_count() for load in loads)
    assert 0 < built.startup_time_s < 120
    assert [(record.progress, len(record.returns)) for record in evaluations] == [(0.5, 3), (1, 3)]
    assert [result.done for result in results] == [False, False, False, True]


def test_metrics_are_finite_from_the_first_iteration_and_counts_agree(results: list[TrialResult]) -> None:
    names = [name for name, metric in METRICS.items() if metric.grain == "iteration"]
    iterations, wall_time_s = of_kind(results, "iteration"), 0.0
    for record in iterations:
        metrics = record.metrics
        phases = [metrics[name] for name in ("sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s")]
        assert math.fsum(phases) == pytest.approx(metrics["iteration_time_s"]) and 0 < phases[-1] < 0.5
        assert metrics["mean_runner_time_s"] <= metrics["slowest_runner_time_s"] <= metrics["sampling_time_s"]
        wall_time_s += metrics["iteration_time_s"]
        assert record.wall_time_s == pytest.approx(wall_time_s)
        assert list(metrics) == names
        absent = {name for name, value in metrics.items() if value is None}
        assert absent <= {"cpu_pressure", "learner_busy_time_s", "overlap_time_s", "policy_lag"}
        assert all(math.isfinite(value) for value in metrics.values() if value is not None)
        assert (metrics["num_healthy_env_runners"], metrics["num_sampling_rounds"]) == (2, 1)
        assert metrics["num_gradient_updates"] == 8  # two epochs of four minibatches
        assert metrics["peak_rss_mb"] > 3 * 100
        assert metrics["train_batch_size_actual"] == 400
        assert metrics["episode_return_sum"] == metrics["episode_len_sum"]  # CartPole pays 1 a step
    assert [record.env_steps for record in iterations] == [400, 800]
    assert 800 - 8 * 500 < sum(record.metrics["episode_len_sum"] for record in iterations) <= 800


def test_what_runs_is_what_was_asked(results: list[TrialResult]) -> None:
    effective = of_kind(results, "trial_built")[0].effective
    asked = trial_config(setting={"num_envs_per_env_runner": 4}).started.setting
    assert {name: effective[name] for name in asked} == pytest.approx(asked)
    assert (effective["torch_threads_main"], effective["torch_threads_runner"]) == (1, 1)
    classes = [effective[name] for name in ("algorithm_class", "runner_class", "learner_class", "standardization")]
    assert classes == ["MeasuredPPO", "BatchedEnvRunner", "FusedPPOLearner", "steps"] and effective["fallbacks"] == []


def patched(monkeypatch: pytest.MonkeyPatch, change: Callable[[PPOConfig], object]) -> None:
    """Change what is built behind the back of what was asked."""
    apply = run_module.apply

    def changed(*args: Any, **kwargs: Any) -> PPOConfig:
        config = apply(*args, **kwargs)
        change(config)
        return config

    monkeypatch.setattr(run_module, "apply", changed)


class SlowLearner(PPOTorchLearner):
    seconds = 2.0

    def after_gradient_based_update(self, **kwargs: Any) -> None:
        super().after_gradient_based_update(**kwargs)
        time.sleep(self.seconds)


class HangingLearner(SlowLearner):
    seconds = 3600.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"execution": "emulated"}, r"learner: an update must end within sample_timeout_s=10 s"),
        (AT_STEP | {"environment__kwargs": {"does": "hangs"}}, r"env runner 1, 2: .*sample_timeout_s=10"),
    ],
)
def test_what_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str) -> None:
    patched(monkeypatch, lambda config: config.training(learner_class=HangingLearner))
    with running(**changes, resources__sample_timeout_s=10.0) as trial:
        with pytest.raises(TrialError, match=message):
            trial.advance()
        started = time.perf_counter()
    assert time.perf_counter() - started < 10  # closing does not wait for it either


def test_planted_delays_are_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, lambda config: config.training(learner_class=SlowLearner))
    slow_seeds = [lane_seed(1, 2, 0)]
    with running(
        environment__id="tests.environments:Sleeps",
        environment__kwargs={"step_s": 0.15, "slow_step_s": 0.3, "slow_seeds": slow_seeds},
        setting={"num_envs_per_env_runner": 1, "train_batch_size": 20, "minibatch_size": 20, "num_epochs": 1},
        budget__env_steps=40,
        evaluation__max_episode_steps=1,
    ) as trial:
        metrics = of_kind(play(trial), "iteration")[-1].metrics
    assert metrics["train_batch_size_actual"] == 20
    assert metrics["slowest_runner_time_s"] == pytest.approx(10 * 0.3, rel=0.05)
    assert metrics["mean_runner_time_s"] == pytest.approx(10 * 0.225, rel=0.05)
    assert metrics["sampling_time_s"] == pytest.approx(10 * 0.3, rel=0.05)
    assert metrics["learning_time_s"] == pytest.approx(2.0, rel=0.05)
    assert metrics["iteration_time_s"] == pytest.approx(10 * 0.3 + 2.0, rel=0.05)
    assert metrics["cpu_time_s"] < 0.5  # it slept
    assert metrics["training_return"] is None  # no episode ended


def test_a_planted_difference_fails_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, lambda config: config.training(lr=0.5, gamma=0.5))
    with pytest.raises(TrialError, match=r"lr: asked 0.001, got 0.5; gamma: asked 0.99, got 0.5"), running():
        pass


@pytest.mark.parametrize(("execution", "where"), [("real", "env runner 1"), ("emulated", "in the main process")])
def test_what_the_environment_raises_reaches_the_trial(execution: str, where: str) -> None:
    with running(execution=execution, **AT_STEP, environment__kwargs={"at_step": 70}) as trial:
        trial.advance()
        with pytest.raises(TrialError, match=rf"{where}: .*ZeroDivisionError: planted fault at step 70") as raised:
            play(trial)
    assert "tests/environments.py" in "".join(raised.value.__notes__)  # the runner's own traceback


@pytest.mark.parametrize("algorithm", ["PPO", "IMPALA"])
def test_a_runner_that_dies_fails_the_trial(algorithm: str) -> None:
    with running(algorithm=algorithm, budget__env_steps=2000) as trial:
        trial.advance()
        ray.kill(trial._algorithm.env_runner_group._worker_manager.actors()[2])
        with pytest.raises(TrialError, match="env runner 2: must stay alive"):
            trial.advance()


def test_a_module_that_a_runner_lacks_is_named_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeOnce, "made", 0)
    node = rf"env runner [12] on [\d.]+ \({re.escape(os.uname().nodename)}\)"
    with (
        pytest.raises(
            TrialError, match=rf"got {node}: .*'no_such_planner'.* Fix: Install on every node what '.*' needs"
        ),
        running(environment__id="tests.environments:MadeOnce"),
    ):
        pass


def test_a2c_updates_once_where_rllibs_runner_steps_more_than_was_asked() -> None:
    with running(algorithm="A2C", runner="stock", setting={"num_envs_per_env_runner": 3}) as one:
        built, first = one.advance().records
    assert (built.effective["minibatch_size"], first.metrics["num_gradient_updates"]) == (400, 1)
    assert first.metrics["train_batch_size_actual"] > 400


def test_no_runner_is_left_behind(trial: TrialRun) -> None:
    trial.close()
    trial.close()
    assert not live_runners()
