"""How a policy acts equals RLlib's own mathematics. Imports RLlib; needs no Ray."""

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule

from study.trial.engine.sampling.acting import action_rule, dense_layers, network_of, scaling_for_environment
from study.trial.engine.sampling.lanes import LaneNoise

DISCRETE, MULTI = Discrete(3), MultiDiscrete([2, 4])
BOX = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
VECTOR, IMAGE = Box(-1, 1, (5,), np.float32), Box(0, 1, (42, 42, 1), np.float32)


def module_of(action: gymnasium.Space, observation: gymnasium.Space = VECTOR, **model: Any) -> RLModule:
    torch.manual_seed(0)
    config = PPOConfig().environment(observation_space=observation, action_space=action)
    config.rl_module(model_config=DefaultModelConfig(**({"fcnet_hiddens": [16, 8]} | model)))
    return config.get_rl_module_spec(spaces={"default_policy": (observation, action)}).build()


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
def test_numpy_evaluates_the_network_of_the_module(activation: str, shared: bool, action: gymnasium.Space) -> None:
    module = module_of(action, fcnet_activation=activation, vf_share_layers=shared)
    network, rows = network_of(module), np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    assert dense_layers(module) is not None
    for _ in range(2):
        expected = module.forward_exploration({"obs": torch.from_numpy(rows)})["action_dist_inputs"].detach().numpy()
        np.testing.assert_allclose(network(rows), expected, atol=1e-5)
        state = {name: np.asarray(value) * 1.5 for name, value in module.get_state().items()}
        module.set_state(state)  # the function follows the weights


@pytest.mark.parametrize(
    ("observation", "model"), [(VECTOR, {"free_log_std": True}), (IMAGE, {})], ids=["free log std", "image"]
)
def test_other_networks_are_left_to_torch(observation: gymnasium.Space, model: dict[str, Any]) -> None:
    module = module_of(BOX, observation, **model)
    network, rows = network_of(module), np.random.default_rng(0).random((3, *observation.shape)).astype(np.float32)
    assert dense_layers(module) is None
    expected = module.forward_exploration({"obs": torch.from_numpy(rows)})["action_dist_inputs"].detach().numpy()
    np.testing.assert_allclose(network(rows), expected, atol=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, MULTI, BOX], ids=["discrete", "multi", "box"])
def test_greedy_actions_are_rllibs(action: gymnasium.Space) -> None:
    module, rule = module_of(action), action_rule(action)
    inputs = np.random.default_rng(0).normal(size=(6, 4, rule.num_inputs)).astype(np.float32)
    distribution = module.get_exploration_action_dist_cls().from_logits(torch.from_numpy(inputs).flatten(0, 1))
    best = distribution.to_deterministic().sample().numpy()
    np.testing.assert_array_equal(rule.greedy(inputs).reshape(best.shape), best)


@pytest.mark.parametrize("action", [DISCRETE, MULTI], ids=["discrete", "multi"])
def test_drawn_actions_have_the_policys_probabilities(action: gymnasium.Space) -> None:
    rule, n = action_rule(action), 60_000
    inputs = np.random.default_rng(1).normal(size=rule.num_inputs).astype(np.float32)
    uniforms = LaneNoise(3, 1, 0).uniforms(0, n * rule.noise_size).reshape(n, -1)
    drawn = rule.choose(np.broadcast_to(inputs, (n, rule.num_inputs)), rule.noise(uniforms)).reshape(n, -1)
    bounds = np.cumsum([0, *(action.nvec if action is MULTI else [action.n])])
    for column, (low, high) in enumerate(itertools.pairwise(bounds)):
        expected = np.exp(inputs[low:high]) / np.exp(inputs[low:high]).sum()
        got = np.bincount(drawn[:, column], minlength=high - low) / n
        np.testing.assert_allclose(got, expected, atol=5 * np.sqrt(0.25 / n))


def test_actions_are_scaled_and_clipped_for_the_environment() -> None:
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [3.0, -9.0]], np.float32)
    scaled = scaling_for_environment(BOX, normalize_actions=True, clip_actions=False)(actions)
    np.testing.assert_allclose(scaled, [[-2, 0], [0, 5], [2, 10], [2, 0]])
    clipped = scaling_for_environment(BOX, normalize_actions=False, clip_actions=True)(actions)
    np.testing.assert_allclose(clipped, [[-1, 0], [0, 0], [1, 1], [2, 0]])
    raw = scaling_for_environment(BOX, normalize_actions=False, clip_actions=False)(actions)
    np.testing.assert_array_equal(raw, actions)
    unbounded = Box(-np.inf, np.inf, (2,), np.float32)
    same = scaling_for_environment(unbounded, normalize_actions=True, clip_actions=False)(actions)
    np.testing.assert_array_equal(same, actions)
