"""Which configurations our runner and learner do the same for; nothing unknown passes. And what is set in a trial."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from study.adopted.describing import Launch, check_studied, facts_of
from study.errors import SpaceError
from study.trial.configuration import SET_BY_STUDY, apply, learner_obstacle, runner_obstacle, same
from study.trial.measure import custom_metrics
from tests.scripts import facts, script_spec

OwnPPO, OwnModule, OwnLearner, OwnRunner, Foreign = (
    type(f"Own{base.__name__}", (base,), {})
    for base in (PPO, DefaultPPOTorchRLModule, PPOTorchLearner, SingleAgentEnvRunner, EnvRunner)
)


class OwnConfig(PPOConfig):
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=OwnModule)


class OwnCallbacks(RLlibCallback):
    def on_train_result(self, **_: Any) -> None: ...


def plain(config: AlgorithmConfig | None = None) -> Any:
    config = config or PPOConfig()
    config.environment("CartPole-v1", observation_space=Box(-1, 1, (4,), np.float32), action_space=Discrete(2))
    return config


Change = Callable[[Any], Any]
BOTH: dict[str, Change] = {
    "an algorithm of its own": lambda config: plain(PPOConfig(algo_class=OwnPPO)),
    "SAC": lambda config: plain(SACConfig()),
    "several agents": lambda config: config.multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent, *_: agent),
    "a configuration of its own": lambda config: plain(OwnConfig()),
    "own module": lambda config: config.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnModule)),
    "recurrent": lambda config: config.rl_module(model_config={"use_lstm": True}),
    "connector to module": lambda config: config.env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter()),
    "no GAE": lambda config: config.training(use_gae=False),
    "own learner": lambda config: config.learners(learner_class=OwnLearner),
    "vector mode": lambda config: config.env_runners(gym_env_vectorize_mode="async"),
    "an attribute that nobody knows": lambda config: (setattr(config, "my_own_option", 3), config)[1],
    "overrides of a module": lambda config: config.rl_module(
        algorithm_config_overrides_per_module={"default_policy": PPOConfig.overrides(lr=1.0)}
    ),
    "discrete observations in a dictionary": lambda config: config.environment(
        observation_space=Dict({"x": Discrete(3)})
    ),
}
RUNNER_ALONE: dict[str, Change] = {
    "callbacks": lambda config: config.callbacks(OwnCallbacks),
    "fragments of a length": lambda config: config.env_runners(rollout_fragment_length=50),
    "greedy": lambda config: config.env_runners(explore=False),
    "own step to actions": lambda config: config.env_runners(add_default_connectors_to_module_to_env_pipeline=False),
    "whole numbers": lambda config: config.environment(observation_space=Box(0, 9, (4,), np.int64)),
}
LEARNER_ALONE: dict[str, Change] = {
    "asynchronous": lambda config: plain(APPOConfig()),
}
NEITHER: dict[str, Change] = {
    "as it is": lambda config: config,
    "the usual parameters": lambda config: config.training(
        lr=[[0, 1e-3], [1000, 1e-4]],
        entropy_coeff=[[0, 0.1], [1000, 0.0]],
        grad_clip=0.5,
        lambda_=0.9,
        use_kl_loss=False,
    ),
    "evaluation and resources": lambda config: config.evaluation(evaluation_interval=1).env_runners(num_env_runners=7),
    "the same in a specification": lambda config: config.rl_module(rl_module_spec=RLModuleSpec()),
    "checked by the script": lambda config: (config.validate(), config)[1],
}


@pytest.mark.parametrize("name", [*BOTH, *RUNNER_ALONE, *LEARNER_ALONE, *NEITHER])
def test_our_parts_serve_what_they_know_and_nothing_else(name: str) -> None:
    config = {**BOTH, **RUNNER_ALONE, **LEARNER_ALONE, **NEITHER}[name](plain())
    assert (runner_obstacle(config) is not None) == (name in {**BOTH, **RUNNER_ALONE})
    assert (learner_obstacle(config) is not None) == (name in {**BOTH, **LEARNER_ALONE})


def own_script() -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1", env_config={"max_episode_steps": 50})
        .training(lr=1e-3, train_batch_size=400, minibatch_size=100, num_epochs=2, entropy_coeff=[[0, 0.1], [999, 0.0]])
        .env_runners(num_env_runners=2)
        .evaluation(evaluation_interval=1)
        .callbacks(OwnCallbacks)
    )


def adopted(base: AlgorithmConfig, **setting: Any) -> Any:
    """Return the configuration of a trial of a script that runs on RLlib's own parts."""
    spec = script_spec(facts(runner_obstacle="some"))
    setting = {**spec.fixed, "num_env_runners": 2, "lr": 0.001, **setting}
    return apply(base, spec, setting=setting, seed=7, execution="real")


def test_the_study_sets_what_the_space_says_and_nothing_else() -> None:
    base = own_script()
    config = adopted(base, num_env_runners=1, lr=0.002)
    changed = {name for name, value in vars(base).items() if not same(value, getattr(config, name))}
    assert "lr" in changed
    assert changed - SET_BY_STUDY <= {"lr", "_is_frozen", "simple_optimizer"}  # RLlib sets these where it validates
    assert (config.num_env_runners, config.seed, config.evaluation_interval) == (1, 7, None)
    assert config.entropy_coeff == [[0, 0.1], [999, 0.0]]
    assert config.callbacks_class is OwnCallbacks
    assert base.lr == 1e-3  # the script's own is left alone


def test_fragments_of_a_length_give_way_where_rllib_refuses_them() -> None:
    # RLlib samples twice where one runner has 200 of 400, and allows a tenth more than the batch.
    for fragment, scale, expected in ((200, 2, 200), (200, 1, 200), (210, 2, 210), (300, 2, "auto")):
        config = adopted(own_script().env_runners(rollout_fragment_length=fragment), num_env_runners=scale)
        assert config.rollout_fragment_length == expected


def test_a_runner_of_one_s_own_samples_or_is_refused() -> None:
    check_studied(config := own_script().env_runners(env_runner_cls=OwnRunner))
    order = adopted(config).env_runner_cls.__mro__
    assert order.index(OwnRunner) < order.index(SingleAgentEnvRunner)
    with pytest.raises(SpaceError, match="must sample with a runner derived from"):
        check_studied(own_script().env_runners(env_runner_cls=Foreign))


def test_what_every_module_that_learns_overrides_is_no_value_of_the_whole() -> None:
    for learning, overridden in ((None, []), (["a"], ["lr", "lambda"])):
        config = own_script().multi_agent(
            policies={"a", "b"}, policy_mapping_fn=lambda agent, *_, **__: "a", policies_to_train=learning
        )
        overrides = {"a": PPOConfig.overrides(lr=0.1, lambda_=0.5)}
        config = config.rl_module(algorithm_config_overrides_per_module=overrides)
        found = facts_of(Launch(config=config, how="test"), source=Path(__file__))
        assert (found.overridden, found.schedules) == (overridden, ["entropy_coeff"])
        assert ("lr" in found.values) == ("lambda" in found.values) == (not overridden)


def test_what_a_script_logs_is_told_from_what_rllib_logs_by_names_that_mlflow_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name

    results = {
        **{"training_iteration": 3, "my_level": 2, "cost:a": 1},
        "env_runners": {"episode_return_mean": 5.0, "my length": 7.0, "nested": {"cups": 1, "..": 2, "note": "x"}},
        "learners": {"default_policy": {"policy_loss": 0.1, "my_loss": 0.2}},
        "my_loss": float("nan"),
    }
    found = custom_metrics(results)
    assert found == {
        "custom/my_level": 2.0,
        "custom/cost_a": 1.0,
        "custom/my_loss": None,
        "custom/my length": 7.0,
        "custom/nested/cups": 1.0,
        "custom/nested/_": 2.0,
    }
    for name in found:
        _validate_metric_name(name)
