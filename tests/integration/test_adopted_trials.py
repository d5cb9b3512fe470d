"""Trials of a script's own configuration: every part runs, each measure means what it says, faults are one line."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from study.adopted.describing import Launch, facts_of
from study.errors import TrialError
from study.space.parameters import PARAMETERS, attribute
from study.space.settings import runnable
from study.space.spec import StudySpec
from study.trial.experiment import pickled
from study.trial.run import TrialRun
from study.trial.trainable import TrialConfig
from tests.integration import trials
from tests.integration.trials import of_kind, play, weights_of
from tests.script_facts import script_spec

pytestmark = [pytest.mark.minutes, pytest.mark.usefixtures("local_ray")]


class Lengths(RLlibCallback):
    """Logs a metric from the runners, and one with the algorithm."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value("own_length", len(episode), reduce="mean")

    def on_train_result(self, *, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value("own_level", 3)


class Breaks(RLlibCallback):
    """Raises once an episode has ended."""

    def on_episode_end(self, **_: Any) -> None:
        raise RuntimeError("the callback is broken")


class OwnLearner(PPOTorchLearner):
    """Stands for a loss of a person's own."""


class StepsTwice(PPO):
    """Has a training step that nobody knows."""

    def training_step(self) -> None:
        super().training_step()
        super().training_step()


def small(config: AlgorithmConfig) -> Any:
    network = {} if isinstance(config, DQNConfig) else {"model_config": {"fcnet_hiddens": [16]}}
    config.environment("CartPole-v1").env_runners(num_envs_per_env_runner=2).rl_module(**network)
    if isinstance(config, PPOConfig):
        config.training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=1, lr=1e-3)
    return config


def running(config: AlgorithmConfig, *, execution: Any = "real", **tuned: Any) -> AbstractContextManager[TrialRun]:
    spaces = (Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))
    found = facts_of(Launch(config=config, how="module level"), source=Path(__file__), spaces=spaces)
    spec = script_spec(found, parameters={"num_env_runners": [2], **tuned}, budget={"env_steps": 400})
    setting = runnable(spec, {"num_env_runners": 2, **tuned})
    asked = trials.asked(setting, seed=5, execution=execution)
    return trials.running(TrialConfig(space=json.dumps(spec.to_json()), started=asked, script=pickled(config)))


def test_callbacks_connectors_and_networks_of_a_script_run_and_log() -> None:
    config = small(PPOConfig()).callbacks(Lengths).learners(learner_class=OwnLearner)
    config.env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    with running(config, lr=0.002) as trial:
        results = play(trial)
    (built,), iterations = of_kind(results, "trial_built"), of_kind(results, "iteration")
    assert built.effective["lr"] == pytest.approx(0.002)
    assert (built.effective["runner_class"], built.effective["learner_class"]) == ("StockEnvRunner", "OwnLearner")
    for iteration in iterations:
        assert all(iteration.metrics[name] > 0 for name in ("custom/own_length", "sampling_time_s", "learning_time_s"))
    # What is logged once the results are made belongs to the next ones.
    assert iterations[-1].metrics["custom/own_level"] == 3
    assert not [name for name in iterations[0].metrics if name.startswith("custom/") and "own" not in name]
    assert results[-1].policy


def test_a_script_that_says_what_a_space_says_learns_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StudySpec, "standardization_in_use", "rllib")  # as of a script
    with trials.running(execution="emulated", seed=5, budget__env_steps=400) as of_space:
        setting, model = of_space._asked.setting, of_space._spec.model
        ours = [each.returns for each in of_kind(play(of_space), "evaluation")]
        expected = weights_of(of_space)
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=setting["num_envs_per_env_runner"])
    given = {attribute(name): value for name, value in setting.items() if PARAMETERS[name].set is None}
    config.training(**given, grad_clip_by="global_norm", minibatch_size=setting["minibatch_size"])
    config.training(train_batch_size_per_learner=setting["train_batch_size"])
    network = {name: getattr(model, name) for name in ("fcnet_hiddens", "fcnet_activation", "vf_share_layers")}
    with running(config.rl_module(model_config=network), execution="emulated") as of_script:
        theirs = [each.returns for each in of_kind(play(of_script), "evaluation")]
        for name, value in weights_of(of_script).items():
            np.testing.assert_array_equal(value, expected[name])
    assert theirs[-1] == ours[-1]  # played by RLlib's runner and by ours


def test_several_agents_are_measured_in_steps_of_the_environment() -> None:
    config = small(PPOConfig()).environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")
    with running(config.env_runners(num_envs_per_env_runner=1)) as trial:
        results = play(trial)
    iterations = of_kind(results, "iteration")
    assert [iteration.env_steps for iteration in iterations] == [200, 400]
    assert all(iteration.metrics["learning_time_s"] > 0 for iteration in iterations)


@pytest.mark.parametrize(
    "config",
    [
        small(DQNConfig()).training(num_steps_sampled_before_learning_starts=50, lr=1e-3),
        small(PPOConfig(algo_class=StepsTwice)),
    ],
    ids=["DQN", "own training step"],
)
def test_a_step_that_nobody_knows_is_timed_as_a_whole(config: AlgorithmConfig) -> None:
    with running(config) as trial:
        results = play(trial)
    iterations = of_kind(results, "iteration")
    assert iterations[-1].env_steps >= 400
    for iteration in iterations:
        metrics = iteration.metrics
        assert metrics["sampling_time_s"] is metrics["learning_time_s"] is metrics["sync_time_s"] is None
        assert 0 < metrics["mean_runner_time_s"] <= metrics["iteration_time_s"]
        assert metrics["train_batch_size_actual"] > 0
    assert len(of_kind(results, "evaluation")[-1].returns) == 3


def test_an_asynchronous_script_has_the_measures_of_its_kind_and_a_learning_rate_that_falls() -> None:
    config = small(APPOConfig()).callbacks(Lengths).training(train_batch_size_per_learner=100, lr=1e-3)
    with running(config, lr_end_fraction=0.0) as trial:
        results = play(trial)
    assert of_kind(results, "trial_built")[0].effective["lr_end_fraction"] == 0
    metrics = [iteration.metrics for iteration in of_kind(results, "iteration")]
    assert sum(each["num_gradient_updates"] for each in metrics) > 0
    assert all(each["learner_busy_time_s"] is not None for each in metrics)


def test_a_callback_that_raises_fails_its_trial_in_one_line() -> None:
    with running(small(PPOConfig()).callbacks(Breaks)) as trial, pytest.raises(TrialError) as caught:
        play(trial)
    assert "sampling must not" in caught.value.rule
    assert "the callback is broken" in caught.value.got
    assert Path(__file__).name in caught.value.fix
