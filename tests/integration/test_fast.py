"""`study.fast` in plain RLlib: it trains, evaluates, and its checkpoints are RLlib's; what stays RLlib's is said."""

import logging
from pathlib import Path

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

import study
from study.errors import SpaceError
from study.trial.engine.extensions import ExtendedPPOTorchLearner, NormalizedObservations
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner

pytestmark = pytest.mark.usefixtures("local_ray")


def ppo() -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    config.training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=2, lr=1e-3)
    return config.rl_module(model_config={"fcnet_hiddens": [16]}).debugging(seed=3)


def test_a_part_serves_where_it_can_and_else_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = ppo()
    quick = study.fast(config)
    assert (quick.env_runner_cls, quick.learner_class) == (BatchedEnvRunner, FusedPPOLearner)
    assert (config.env_runner_cls, config.learner_class) == (None, PPOTorchLearner)  # what was given stays as it was
    with caplog.at_level(logging.WARNING, "study.fast"):
        quick = study.fast(ppo().callbacks(on_episode_end=print).learners(num_learners=2))
    assert (quick.env_runner_cls, quick.learner_class) == (None, PPOTorchLearner)
    said = [record.getMessage() for record in caplog.records if record.name == "study.fast"]
    assert said == [
        "RLlib's own runner stays: callbacks are the script's own.",
        "RLlib's own learner stays: there are several learners.",
    ]
    told = {"normalize_observations": 1, "normalize_rewards": 1, "vf_clip_range": 0.2}
    for more, learner in (({}, FusedPPOLearner), ({"mine": 1}, ExtendedPPOTorchLearner)):
        quick = study.fast(ppo().learners(learner_config_dict={**told, **more}))
        assert quick.learner_class is learner
        assert isinstance(quick.build_env_to_module_connector()[0], NormalizedObservations)
    with pytest.raises(SpaceError, match="must be of RLlib's PPO, got APPO"):
        study.fast(APPOConfig().environment("CartPole-v1"))


@pytest.mark.minutes
def test_it_trains_evaluates_and_its_checkpoint_restores_in_plain_rllib(tmp_path: Path) -> None:
    quick = study.fast(ppo().evaluation(evaluation_interval=2, evaluation_duration=3))
    algorithm = quick.build_algo()
    try:
        results = [algorithm.train() for _ in range(2)]
        lived = [each["env_runners"]["num_env_steps_sampled_lifetime"] for each in results]
        assert lived == [400, 800]
        assert all(each["env_runners"]["episode_return_mean"] > 5 for each in results)
        assert all(each["learners"]["default_policy"]["entropy"] > 0.1 for each in results)
        assert results[1]["evaluation"]["env_runners"]["num_episodes"] == 3
        assert isinstance(algorithm.eval_env_runner, SingleAgentEnvRunner)
        assert not isinstance(algorithm.eval_env_runner, BatchedEnvRunner)
        folder = algorithm.save_to_path(tmp_path / "checkpoint")
        learnt = algorithm.get_weights()["default_policy"]
    finally:
        algorithm.stop()
    again = Algorithm.from_checkpoint(folder)
    plain = PPO(config=ppo())
    try:
        plain.restore_from_path(folder)
        for each in (again, plain):
            for name, value in each.get_weights()["default_policy"].items():
                np.testing.assert_array_equal(np.asarray(value), np.asarray(learnt[name]))
            each.train()
    finally:
        again.stop()
        plain.stop()
