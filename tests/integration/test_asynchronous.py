"""APPO and IMPALA: what is measured where sampling and learning overlap, and what happens when something fails."""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms.appo.utils import CircularBuffer
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import TrialError
from study.metrics import METRICS
from study.records.folder import unpack_policy
from study.trial import experiment as experiment_module
from study.trial import run as run_module
from study.trial.engine.learning.asynchronous_learner import (
    Backlog,
    BootstrappedLearner,
    CountingAPPOLearner,
    CountingIMPALALearner,
)
from study.trial.engine.sampling.lanes import lane_seed
from study.trial.evaluation import evaluate
from study.trial.policy import module_of
from study.trial.run import TrialRun
from tests.integration import trials
from tests.integration.trials import of_kind, play, weights_of

pytestmark = [pytest.mark.minutes, pytest.mark.usefixtures("local_ray")]


def running(algorithm: str, **changes: Any) -> AbstractContextManager[TrialRun]:
    return trials.running(algorithm=algorithm, **{"budget__env_steps": 2000, **changes})


@pytest.mark.parametrize("algorithm", ["IMPALA", pytest.param("APPO", marks=pytest.mark.minutes)])
def test_an_iteration_is_a_span_of_time_with_its_own_measures(algorithm: str) -> None:
    with running(algorithm, setting={"rollout_fragment_length": 20, "num_envs_per_env_runner": 2}) as trial:
        results = play(trial)
    (built,), iterations = of_kind(results, "trial_built"), of_kind(results, "iteration")
    assert (built.effective["algorithm_class"], built.effective["fallbacks"]) == (f"Measured{algorithm}", [])
    assert built.effective["env_steps_per_round"] == 2 * 2 * 20
    names = [name for name, metric in METRICS.items() if metric.grain == "iteration"]
    for record in iterations:
        metrics = record.metrics
        assert list(metrics) == names
        for phase in ("sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s", "num_sampling_rounds"):
            assert metrics[phase] is None
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
        assert metrics["kl"] is None  # neither has such a term here
    assert sum(record.metrics["train_batch_size_actual"] for record in iterations) == iterations[-1].env_steps
    # IMPALA learns once from each batch, as many as have come in; what is left over waits for the next iteration.
    if algorithm == "IMPALA":
        updates = sum(record.metrics["num_gradient_updates"] for record in iterations)
        assert updates == pytest.approx(iterations[-1].env_steps / 400, abs=3)


FRAGMENT, GAMMA = 49, 0.99


def loss_of(compute: Callable[..., Any], learner: Any, *, value: float, terminated: bool) -> float:
    """Return the loss of two fragments of reward 1 under a policy that tosses a coin and a constant value.

    Args:
        compute: Computes the loss.
        learner: An APPO or IMPALA learner; its module is changed.
        value: What the module says of every state.
        terminated: Whether the episode ends with the fragment.
    """
    module, rows = learner.module[DEFAULT_MODULE_ID].unwrapped(), 2 * (FRAGMENT + 1)
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(module.vf.net.mlp[-1].bias, value)
    mask, ends = torch.ones(rows, dtype=torch.bool), torch.zeros(rows)
    mask[FRAGMENT :: FRAGMENT + 1] = False
    ends[FRAGMENT - 1 :: FRAGMENT + 1] = terminated
    batch = {
        Columns.OBS: torch.rand(rows, 4),
        Columns.ACTIONS: torch.randint(0, 2, (rows,)),
        Columns.ACTION_LOGP: torch.full((rows,), -math.log(2)),
        Columns.REWARDS: mask.float(),
        Columns.TERMINATEDS: ends,
        Columns.LOSS_MASK: mask,
    }
    fwd_out = module.forward_train(batch)
    loss = compute(module_id=DEFAULT_MODULE_ID, config=learner.config, batch=batch, fwd_out=fwd_out)
    return float(loss.detach())


@pytest.mark.parametrize("algorithm", ["IMPALA", "APPO"])
def test_a_return_goes_on_beyond_its_fragment_and_ends_with_its_episode(algorithm: str) -> None:
    """With reward 1 for ever the value is 1 / (1 - gamma), and a policy that knows it has nothing to learn."""
    setting = {"rollout_fragment_length": FRAGMENT + 1, "num_envs_per_env_runner": 2, "entropy_coeff": 0.0}
    with running(algorithm, setting={**setting, "gamma": GAMMA, "vf_loss_coeff": 1.0}) as trial:
        assert trial._algorithm is not None
        learner = trial._algorithm.learner_group._learner
        ours, rllib = learner.compute_loss_for_module, super(BootstrappedLearner, learner).compute_loss_for_module
        value = 1 / (1 - GAMMA)
        assert loss_of(ours, learner, value=value, terminated=False) == pytest.approx(0, abs=1e-3)
        # Where this fails, RLlib has mended it, and `study.trial.engine.learning.asynchronous_learner` can go.
        assert loss_of(rllib, learner, value=value, terminated=False) > 1000
        # Against a value of 0: half the mean square of the returns, and the policy's part.
        returns = (1 - GAMMA ** np.arange(FRAGMENT, 0, -1)) / (1 - GAMMA)
        of_policy = math.log(2) if algorithm == "IMPALA" else -1.0
        expected = (0.5 * returns**2 + of_policy * returns).mean()
        assert loss_of(ours, learner, value=0.0, terminated=True) == pytest.approx(expected, rel=1e-4)


@pytest.mark.heavy
def test_planted_delays_are_recovered() -> None:
    """Runners of 100 steps a second each: what they say of themselves does not depend on the learner."""
    with running(
        "IMPALA",
        environment__id="tests.environments:Sleeps",
        environment__kwargs={"step_s": 0.01, "slow_step_s": 0.01, "slow_seeds": []},
        setting={"num_envs_per_env_runner": 1, "train_batch_size": 40, "minibatch_size": 40}
        | {"rollout_fragment_length": 20},
        evaluation__max_episode_steps=1,
        budget__iterations=3,
    ) as trial:
        metrics = of_kind(play(trial), "iteration")[-1].metrics
    assert metrics["mean_runner_time_s"] == pytest.approx(metrics["train_batch_size_actual"] / 2 * 0.0101, rel=0.2)
    assert metrics["learner_busy_time_s"] < 0.3 * metrics["iteration_time_s"]


@pytest.mark.parametrize("batches", [queue.Queue(), CircularBuffer(num_batches=2, iterations_per_batch=1)])
def test_a_backlog_is_done_once_the_last_batch_is_learnt_from(batches: Any) -> None:
    backlog, taken, learnt = Backlog(batches), threading.Semaphore(0), threading.Semaphore(0)

    def learn() -> None:
        for _ in range(2):
            backlog.get()
            taken.release()
            learnt.acquire()
        backlog.get()

    threading.Thread(target=learn, daemon=True).start()
    assert backlog.is_done(0, timeout_s=0)
    assert not backlog.is_done(1, timeout_s=0)  # on its way through the thread that loads the GPU
    backlog.put("first")
    backlog.put("second")
    for _ in range(2):
        assert taken.acquire(timeout=10)
        assert not backlog.is_done(2, timeout_s=0.05)
        learnt.release()
    assert backlog.is_done(2, timeout_s=10)
    backlog.put_nowait("stop")


SLEEPS: dict[str, Any] = {"environment__id": "tests.environments:Sleeps", "evaluation__max_episode_steps": 1}


def test_a_runner_that_has_not_delivered_yet_is_alive() -> None:
    """Runner 2 takes 4 s for a sample, runner 1 0.4 s, and an iteration 1 s."""
    slow = {"step_s": 0.02, "slow_step_s": 0.2, "slow_seeds": [lane_seed(1, 2, 0)]}
    setting = {
        "num_envs_per_env_runner": 1,
        "rollout_fragment_length": 20,
        "train_batch_size": 20,
        "minibatch_size": 20,
    }
    with running("IMPALA", **SLEEPS, environment__kwargs=slow, setting=setting) as trial:
        metrics = of_kind([trial.advance()], "iteration")[0].metrics
    assert metrics["train_batch_size_actual"] < 50 * metrics["iteration_time_s"] + 20  # runner 2 has sent nothing
    assert metrics["num_healthy_env_runners"] == 2


class Slow(CountingAPPOLearner):
    def compute_loss_for_module(self, **arguments: Any) -> Any:
        time.sleep(0.4)
        return super().compute_loss_for_module(**arguments)


@pytest.fixture(scope="module")
def paused(local_ray: None) -> Iterator[tuple[list[dict[str, Any]], list[Any]]]:
    """Four iterations of APPO with an evaluation after every second one, of two runners of 100 steps a second.

    A batch comes each second and is learnt from twice, 0.4 s each time: the second time when RLlib's `update` has
    returned already, and so after the iteration. Yields the results, and for each evaluation what was learnt before and
    after it, which policy was evaluated, and the learner's own afterwards.
    """
    seen = []

    def slow_evaluation(experiment: Any, state: Any, *arguments: Any, **options: Any) -> Any:
        algorithm = trial._algorithm
        assert algorithm is not None
        before = algorithm.ask_learners(lambda learner: learner.learnt_so_far())
        result = evaluate(experiment, state, *arguments, **options)
        time.sleep(1.0)
        after = algorithm.ask_learners(lambda learner: learner.learnt_so_far())
        evaluated = {name: np.array(value) for name, value in module_of(experiment, state).get_state().items()}
        seen.append((before, after, evaluated, weights_of(trial)))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_module, "CountingAPPOLearner", Slow)
        patch.setattr(run_module, "evaluate", slow_evaluation)
        with running(
            "APPO",
            **SLEEPS,
            environment__kwargs={"step_s": 0.01},
            setting={
                "num_envs_per_env_runner": 1,
                "rollout_fragment_length": 100,
                "train_batch_size": 200,
                "minibatch_size": 200,
            },
            budget__env_steps=100_000,
            iterations=4,
            evaluation__num_evaluations=2,
        ) as trial:
            yield play(trial), seen


def test_nothing_goes_on_beside_an_evaluation_and_what_it_played_is_kept(
    paused: tuple[list[dict[str, Any]], list[Any]], tmp_path: Path
) -> None:
    results, seen = paused
    assert len(seen) == 2
    for before, after, evaluated, learner in seen:
        assert before == after
        for name, value in evaluated.items():
            np.testing.assert_array_equal(value, learner[name])
    unpack_policy(results[-1].policy, tmp_path / "policy")
    kept = RLModule.from_checkpoint(tmp_path / "policy").get_state()
    assert kept.keys() == evaluated.keys()
    for name, value in kept.items():
        np.testing.assert_array_equal(np.asarray(value), evaluated[name])
    # No step for nothing: two iterations from rest to rest.
    metrics = [record.metrics for record in of_kind(results, "iteration")]
    for pair in (metrics[:2], metrics[2:]):
        env_steps, seconds = (
            sum(each[name] for each in pair) for name in ("train_batch_size_actual", "iteration_time_s")
        )
        assert env_steps <= 2 * seconds / 0.01
    # Each whole batch was learnt from twice, and all of it in an iteration.
    assert sum(each["num_gradient_updates"] for each in metrics) == 2 * (
        of_kind(results, "iteration")[-1].env_steps // 200
    )


def test_without_an_update_there_is_no_loss(paused: tuple[list[dict[str, Any]], list[Any]]) -> None:
    """The third iteration ends as its batch comes, and the learner has had nothing to do since the evaluation."""
    iterations = of_kind(paused[0], "iteration")
    for record in iterations:
        has_learnt = record.metrics["num_gradient_updates"] > 0
        assert has_learnt == (record.iteration != 3)
        for name in ("policy_loss", "vf_loss", "entropy"):
            assert (record.metrics[name] is not None) == has_learnt
        assert (record.metrics["policy_lag"] is not None) == has_learnt


def test_weights_that_are_not_finite_are_a_divergence() -> None:
    with running("IMPALA") as trial:
        trial.advance()
        assert trial._algorithm is not None
        module = trial._algorithm.learner_group._learner.module[DEFAULT_MODULE_ID].unwrapped()
        for parameter in module.parameters():
            torch.nn.init.constant_(parameter, math.nan)
        with pytest.raises(TrialError, match="the training diverged"):
            play(trial)


class SlowIMPALA(CountingIMPALALearner):
    def compute_loss_for_module(self, **arguments: Any) -> Any:
        time.sleep(0.5)
        return super().compute_loss_for_module(**arguments)


@pytest.mark.heavy
def test_what_a_learner_process_cannot_take_is_counted_to_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_module, "CountingIMPALALearner", SlowIMPALA)
    setting = {
        "rollout_fragment_length": 20,
        "num_envs_per_env_runner": 2,
        "train_batch_size": 80,
        "minibatch_size": 80,
    }
    with running("IMPALA", setting=setting, resources__num_learners=1, budget__env_steps=4000) as trial:
        metrics = [record.metrics for record in of_kind(play(trial), "iteration")]
    dropped = metrics[-1]["num_dropped_samples"]
    assert dropped > 0
    # Two samples make a batch; one that has no second yet waits.
    num_learnt = sum(each["train_batch_size_actual"] for each in metrics) // 40 - dropped
    assert sum(each["num_gradient_updates"] for each in metrics) == num_learnt // 2


def test_a_runner_that_dies_fails_the_trial() -> None:
    with running("IMPALA") as trial:
        trial.advance()
        assert trial._algorithm is not None
        ray.kill(trial._algorithm.env_runner_group._worker_manager.actors()[2])
        with pytest.raises(TrialError) as caught:
            trial.advance()
        assert (caught.value.where, caught.value.rule) == ("env runner 2", "must stay alive")


class Fails(CountingIMPALALearner):
    def compute_loss_for_module(self, **arguments: Any) -> Any:
        raise ArithmeticError("planted fault of the loss")


@pytest.mark.parametrize("num_learners", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_learner_that_fails_is_no_hang(monkeypatch: pytest.MonkeyPatch, num_learners: int) -> None:
    monkeypatch.setattr(experiment_module, "CountingIMPALALearner", Fails)
    with (
        running("IMPALA", resources__num_learners=num_learners) as trial,
        pytest.raises(Exception, match="ArithmeticError: planted fault of the loss"),
    ):
        play(trial)


@pytest.mark.parametrize("algorithm", ["IMPALA", pytest.param("APPO", marks=pytest.mark.minutes)])
def test_the_learning_rate_falls_over_the_budget_and_runners_take_up_what_was_learnt(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_update = TorchLearner.after_gradient_based_update
    rates: list[tuple[int, float]] = []

    def noted(self: TorchLearner, *, timesteps: dict[str, Any]) -> None:
        after_update(self, timesteps=timesteps)
        rate = float(self.get_optimizer("default_policy").param_groups[0]["lr"])
        rates.append((timesteps["num_env_steps_sampled_lifetime"], rate))

    monkeypatch.setattr(TorchLearner, "after_gradient_based_update", noted)
    setting = {"lr": 0.01, "lr_end_fraction": 0.25, "rollout_fragment_length": 20, "num_envs_per_env_runner": 2}
    with running(algorithm, setting=setting, budget__env_steps=8000) as trial:
        results = play(trial)
        assert trial._algorithm is not None
        versions = trial._algorithm.env_runner_group.foreach_env_runner(
            lambda runner: runner._weights_seq_no, local_env_runner=False
        )
        assert min(versions) >= 5
    (built,), last = of_kind(results, "trial_built"), of_kind(results, "iteration")[-1]
    assert (built.effective["lr"], built.effective["lr_end_fraction"]) == (pytest.approx(0.01), 0.25)
    steps = [num for num, _ in rates]
    # A queue of batches, and on a busy machine an iteration, stands between what was sampled and the last update.
    assert steps[0] < 2000 and 4000 < steps[-1] <= last.env_steps
    assert [rate for _, rate in rates] == pytest.approx([0.01 - 0.0075 * min(num, 8000) / 8000 for num in steps])
