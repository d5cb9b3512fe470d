"""APPO and IMPALA: what is measured where sampling and learning overlap, and what happens when something fails."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner

from study.errors import TrialError
from study.metrics import METRICS
from study.trial import configuration
from study.trial import run as run_module
from study.trial.engine.learning.asynchronous_learner import CountingLearner
from study.trial.evaluation import evaluate, module_of
from study.trial.run import TrialRun
from tests.integration import trials
from tests.integration.trials import of_kind, play, weights_of

pytestmark = [pytest.mark.minutes, pytest.mark.usefixtures("local_ray")]


def running(algorithm: str, **changes: Any) -> AbstractContextManager[TrialRun]:
    return trials.running(algorithm=algorithm, **{"budget__env_steps": 2000, **changes})


@pytest.mark.parametrize("algorithm", ["IMPALA", "APPO"])
def test_an_iteration_is_a_span_of_time_with_its_own_measures(algorithm: str) -> None:
    setting = {"lr": 0.01, "lr_end_fraction": 0.25, "rollout_fragment_length": 20, "num_envs_per_env_runner": 2}
    with running(algorithm, setting=setting, budget__env_steps=8000) as trial:
        results = play(trial)
        runners = trial._algorithm.env_runner_group
        versions = runners.foreach_env_runner(lambda runner: runner._weights_seq_no, local_env_runner=False)
        assert min(versions) >= 5  # runners take up what was learnt
        (rate,) = trial._algorithm.ask_learners(
            lambda each: float(each.get_optimizer("default_policy").param_groups[0]["lr"])
        )
        assert 0.0025 <= rate < 0.006  # it falls
    (built,), iterations = of_kind(results, "trial_built"), of_kind(results, "iteration")
    assert (built.effective["lr"], built.effective["lr_end_fraction"]) == (pytest.approx(0.01), 0.25)
    for metrics in (record.metrics for record in iterations):
        assert list(metrics) == [name for name, metric in METRICS.items() if metric.grain == "iteration"]
        assert {metrics[phase] for phase in ("sampling_time_s", "learning_time_s", "sync_time_s", "kl")} == {None}
        assert metrics["iteration_time_s"] >= 1.0
        assert metrics["train_batch_size_actual"] >= 400
        assert metrics["train_batch_size_actual"] % 40 == 0  # whole fragments
        assert metrics["num_healthy_env_runners"] == 2
        assert 0 < metrics["mean_runner_time_s"] <= metrics["slowest_runner_time_s"]
        assert metrics["num_gradient_updates"] >= 1
        assert 0 < metrics["learner_busy_time_s"] < metrics["iteration_time_s"]
        assert 0 <= metrics["overlap_time_s"] < metrics["iteration_time_s"]
        assert 0 <= metrics["policy_lag"] < 100
        assert np.isfinite([metrics[name] for name in ("entropy", "policy_loss", "vf_loss")]).all()
    assert sum(record.metrics["train_batch_size_actual"] for record in iterations) == iterations[-1].env_steps


def test_nothing_goes_on_beside_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runners of 100 steps a second; each batch is learnt from twice, 0.4 s each time, the second one late."""
    seen = []

    def slow_evaluation(config: Any, state: Any, *arguments: Any, **options: Any) -> Any:
        before = trial._algorithm.ask_learners(lambda learner: learner.learnt_so_far())
        result = evaluate(config, state, *arguments, **options)
        time.sleep(1.0)
        after = trial._algorithm.ask_learners(lambda learner: learner.learnt_so_far())
        evaluated = {name: np.array(value) for name, value in module_of(config, state).get_state().items()}
        seen.append((before, after, evaluated, weights_of(trial)))
        return result

    monkeypatch.setattr(APPOTorchLearner, "compute_loss_for_module", slowed(APPOTorchLearner.compute_loss_for_module))
    monkeypatch.setattr(run_module, "evaluate", slow_evaluation)
    sizes = {"rollout_fragment_length": 100, "train_batch_size": 200, "minibatch_size": 200}
    with running(
        "APPO",
        environment__id="tests.environments:Sleeps",
        environment__kwargs={"step_s": 0.01},
        setting={"num_envs_per_env_runner": 1, **sizes},
        budget__env_steps=100_000,
        iterations=4,
        evaluation__num_evaluations=2,
        evaluation__max_episode_steps=1,
    ) as trial:
        results = play(trial)
    assert len(seen) == 2
    for before, after, evaluated, learner in seen:
        assert before == after
        for name, value in evaluated.items():
            np.testing.assert_array_equal(value, learner[name])
    # Each whole batch was learnt from twice, all of it in an iteration; where nothing was learnt there is no loss.
    iterations = of_kind(results, "iteration")
    assert sum(each.metrics["num_gradient_updates"] for each in iterations) == 2 * (iterations[-1].env_steps // 200)
    for metrics in (record.metrics for record in iterations):
        for name in ("policy_loss", "vf_loss", "entropy", "policy_lag"):
            assert (metrics[name] is not None) == (metrics["num_gradient_updates"] > 0)


def slowed(compute: Callable[..., Any]) -> Callable[..., Any]:
    def compute_slowly(self: Any, **arguments: Any) -> Any:
        time.sleep(0.4)
        return compute(self, **arguments)

    return compute_slowly


class Fails(CountingLearner):
    def compute_loss_for_module(self, **arguments: Any) -> Any:
        raise ArithmeticError("planted fault of the loss")


class Hangs(CountingLearner):
    def compute_loss_for_module(self, **arguments: Any) -> Any:
        time.sleep(120)


def test_a_learner_that_hangs_ends_the_trial_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "CountingLearner", Hangs)
    late = "learner: an update must end within 2 times sample_timeout_s=10 s"
    with running("APPO", resources__sample_timeout_s=10) as trial, pytest.raises(TrialError, match=late):
        play(trial)


@pytest.mark.parametrize("num_learners", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_learner_that_fails_is_no_hang(monkeypatch: pytest.MonkeyPatch, num_learners: int) -> None:
    monkeypatch.setattr(configuration, "CountingLearner", Fails)
    with (
        running("IMPALA", resources__num_learners=num_learners) as trial,
        pytest.raises(TrialError, match="ArithmeticError: planted fault of the loss"),
    ):
        play(trial)
