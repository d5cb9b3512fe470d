"""Learning does not depend on placement: the same lanes in many processes, in few, in one, and under Ray Tune."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune

from study.errors import TrialError
from study.trial.measure import RESULT
from study.trial.trainable import TRIAL, StudyTrial
from tests.integration import trials
from tests.integration.trials import live_runners, running, trial_config, weights_of
from tests.values import replace

pytestmark = pytest.mark.usefixtures("local_ray")

LAYOUTS = {"real": "real", "one": "emulated", "again": "emulated"}
SETTING = {
    "num_env_runners": 4,
    "num_envs_per_env_runner": 3,
    "train_batch_size": 1000,  # the twelve lanes do not divide it
    "minibatch_size": 128,
    "num_epochs": 4,
}


def play(execution: str = "emulated", *, iterations: int = 3, **changes: Any) -> dict[str, Any]:
    changes |= {"budget__env_steps": iterations * 1000}
    own = {name.removeprefix("parameters__"): changes[name] for name in changes if name.startswith("parameters__")}
    with running(execution=execution, setting={**SETTING, **own}, **changes) as trial:
        return {"results": trials.play(trial), "weights": weights_of(trial)}


def of_kind(played: dict[str, Any], kind: str) -> list[Any]:
    return trials.of_kind(played["results"], kind)


@pytest.mark.minutes
@pytest.mark.parametrize("backend", ["gymnasium", "envpool", "normalised"])
def test_learning_and_evaluations_are_those_of_real_runners_in_every_layout(backend: str) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    environment: dict[str, Any] = {"environment__id": "Acrobot-v1", "environment__backend": backend}
    if backend == "normalised":  # each runner by what it has seen itself since the last iteration
        del environment["environment__backend"]
        environment |= {"parameters__normalize_observations": 1, "parameters__normalize_rewards": 1}
    played = {name: play(layout, **environment) for name, layout in LAYOUTS.items()}
    for name, value in played["real"]["weights"].items():
        # Forward passes of other sizes round differently.
        np.testing.assert_allclose(played["one"]["weights"][name], value, atol=1e-4)
        np.testing.assert_array_equal(played["again"]["weights"][name], played["one"]["weights"][name])
    returns = [[record.returns for record in of_kind(played[name], "evaluation")] for name in LAYOUTS]
    assert returns[0] == returns[1] == returns[2] != []
    for name, processes in (("real", 5), ("one", 1)):
        (built,) = of_kind(played[name], "trial_built")
        effective = built.effective
        assert (effective["num_env_runners"], effective["num_envs_per_env_runner"]) == (4, 3)
        assert effective["train_batch_size"] == 1000
        assert sum(built.processes_per_node.values()) == processes
        for record in of_kind(played[name], "iteration"):
            assert record.metrics["num_healthy_env_runners"] == 4
            assert record.metrics["train_batch_size_actual"] == 1000


def test_an_environment_stays_in_the_thread_that_made_it() -> None:
    played = play(iterations=2, environment__id="tests.environments:OneThread")
    assert len(of_kind(played, "iteration")) == 2


@pytest.mark.minutes
@pytest.mark.parametrize("learners", [2, pytest.param(1, marks=pytest.mark.heavy)])
def test_learners_of_their_own_share_the_batch(learners: int) -> None:
    played = play(iterations=2, resources__num_learners=learners, environment__id="Acrobot-v1")
    (built,) = of_kind(played, "trial_built")
    served = "FusedPPOLearner" if learners == 1 else "PPOTorchLearner"
    assert (built.effective["num_learners"], built.effective["minibatch_size"]) == (learners, 128)
    assert (built.effective["learner_class"], built.effective["torch_threads_learner"]) == (served, 1)
    assert sum(built.processes_per_node.values()) == 1 + learners
    assert [place["process"] for place in built.placement] == ["main", *["learner"] * learners]
    for metrics in (record.metrics for record in of_kind(played, "iteration")):
        assert metrics["train_batch_size_actual"] == 1000
        assert metrics["num_gradient_updates"] == pytest.approx(4 * 1000 / 128, abs=1)
        # The learners' CPU time and memory are the trial's too.
        assert metrics["cpu_time_s"] > 0.2 * metrics["learning_time_s"]
        assert metrics["peak_rss_mb"] > (1 + learners) * 200


def test_images_are_learnt_from() -> None:
    played = play(
        iterations=1,
        environment__id="tests.environments:Picture",
        model__conv_filters=[[8, 2, 2], [8, 2, 2]],
        model__fcnet_hiddens=[16],
    )
    effective = of_kind(played, "trial_built")[0].effective
    assert (effective["runner_class"], effective["learner_class"]) == ("BatchedEnvRunner", "PPOTorchLearner")
    assert of_kind(played, "iteration")[0].metrics["vf_loss"] > 0


@pytest.mark.parametrize("parts", [{}, {"runner": "stock", "learner": "rllib"}], ids=["ours", "rllib"])
def test_what_is_recorded_are_the_environments_rewards_also_where_they_are_normalised(parts: dict[str, Any]) -> None:
    changes = {"environment__id": "Acrobot-v1", "iterations": 1, **parts}
    plain, scaled = (play(parameters__normalize_rewards=each, **changes) for each in (0, 1))
    first, second = (of_kind(played, "iteration")[0].metrics for played in (plain, scaled))
    for name in ("episode_return_sum", "num_episodes", "train_batch_size_actual"):
        assert first[name] == second[name]
    assert second["vf_loss"] < first["vf_loss"]  # Acrobot's returns are in the tens, and then about 1
    assert any(not np.array_equal(value, scaled["weights"][name]) for name, value in plain["weights"].items())


# --- under Ray Tune ---------------------------------------------------------------------------------------------------


def fit(folder: Path, config: Any, **tune_config: Any) -> list[Any]:
    """Run one trial, or as many as asked for, through a bare Tuner."""
    checkpoints = tune.CheckpointConfig(checkpoint_at_end=False)
    run_config = tune.RunConfig(storage_path=str(folder), verbose=0, checkpoint_config=checkpoints)
    space, how = {TRIAL: config}, tune.TuneConfig(**tune_config)
    return list(tune.Tuner(StudyTrial, param_space=space, tune_config=how, run_config=run_config).fit())


def test_a_process_goes_on_with_the_next_trial_as_if_it_were_new(tmp_path: Path) -> None:
    config = trial_config(execution="emulated", budget__env_steps=400)
    # One after another, the same trial.
    same = [replace(config, started=replace(config.started, trial=number)) for number in range(2)]
    results = fit(tmp_path, tune.grid_search(same), reuse_actors=True, max_concurrent_trials=1)
    assert [result.error for result in results] == [None] * 2
    assert len({result.metrics["pid"] for result in results}) == 1
    returns = [evaluation.returns for result in results for evaluation in result.metrics[RESULT].records]
    assert returns[0] == returns[1]


@pytest.mark.minutes
def test_a_start_that_hangs_reaches_the_driver_in_one_line(tmp_path: Path) -> None:
    slow = {"environment__id": "tests.environments:MadeOnce", "environment__kwargs": {"hangs": True}}
    (result,) = fit(tmp_path, trial_config(**slow, resources__startup_timeout_s=4.0))
    cause = result.error.cause
    assert isinstance(cause, TrialError)
    assert str(cause).startswith("start-up: all 2 env runners must be up within startup_timeout_s=4 s, they are not.")
    assert not live_runners(10)
