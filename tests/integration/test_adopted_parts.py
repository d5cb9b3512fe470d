"""Every part of a script does its work in a trial: each learns here what the same training without the part does not.

A trial runs as Tune would start it, with RLlib's runner and learner. Each task pays 1 for a right action, and a policy
that cannot know it gets half of it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from study.adopted.describing import facts_of
from study.records.records import Evaluation
from study.space.parsing import parse_space
from study.space.space_file import Source
from study.trial.experiment import pickled
from study.trial.messages import packed_config
from tests.integration.trials import results_of
from tests.synthetic import started
from tests.values import replace

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.minutes]

STEPS = 8
"""Actions of an episode, of which each can be right."""


# --- tasks ---------------------------------------------------------------------------------------------------------


class Cued(gymnasium.Env):
    """Shows -1 or 1, times `loudness`, and pays for the action that it means."""

    def __init__(self, context: Any = None) -> None:
        given = dict(context or {})
        self.loudness, self.pays = given.get("loudness", 1.0), given.get("pays", True)
        self.observation_space, self.action_space = Box(-10, 10, (1,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.cue = int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(action == self.cue) * self.pays
        self.cue = int(self.np_random.integers(2))
        return self._seen(), reward, self.steps == STEPS, False, {}

    def _seen(self) -> Any:
        return np.array([(2 * self.cue - 1) * self.loudness], np.float32)


# --- parts ---------------------------------------------------------------------------------------------------------


class Louder(ConnectorV2):
    """A connector with a state: it divides observations by the largest that it has seen in training, else shows 0."""

    largest = 0.0

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, explore: Any = None, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            seen = episode.get_observations(-1)
            if explore:
                self.largest = max(self.largest, float(np.abs(seen).max()))
            louder = seen / self.largest if self.largest else 0 * seen
            episode.set_observations(at_indices=-1, new_data=louder.astype(np.float32))
        return batch

    def get_state(self, components: Any = None, **_: Any) -> Any:
        return {"largest": self.largest}

    def set_state(self, state: Any) -> None:
        self.largest = state["largest"]

    def merge_states(self, states: Any) -> Any:
        return {"largest": max(state["largest"] for state in states)}


class Taught(PPOTorchLearner):
    """A loss of a person's own: the answer that the observation shows, beside PPO's."""

    answer = 1

    def compute_loss_for_module(self, *, module_id: Any, config: Any, batch: Any, fwd_out: Any) -> Any:
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        answers = torch.where(batch[Columns.OBS][:, 0] > 0, self.answer, 1 - self.answer)
        return loss + torch.nn.functional.cross_entropy(fwd_out[Columns.ACTION_DIST_INPUTS], answers)


class Mistaught(Taught):
    """The same with the wrong answer."""

    answer = 0


# --- trials --------------------------------------------------------------------------------------------------------


def configured(env: Any = Cued, **env_config: Any) -> AlgorithmConfig:
    """Return a training that learns a plain `Cued` in a few thousand steps."""
    config = PPOConfig().environment(env, env_config=env_config).env_runners(num_envs_per_env_runner=8)
    config.training(lr=0.01, train_batch_size_per_learner=800, minibatch_size=200, num_epochs=6, gamma=0.5)
    return config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], fcnet_activation="tanh"))


def trained(config: AlgorithmConfig, *, env_steps: int = 8000) -> list[Any]:
    """Return the records of a trial that trains a script's configuration."""
    spaces = (None, None)
    if not config.is_multi_agent:
        env = config.env(config.env_config)
        spaces = (env.observation_space, env.action_space)
    facts = facts_of(config, source=Path(__file__), found_as="test", stop={}, spaces=spaces)
    content = {
        "config": "my_train.py",
        "script": facts.model_dump(mode="json"),
        "parameters": {"num_env_runners": 1},
        "budget": {"env_steps": env_steps},
        "search": {"num_trials": 1},
        "evaluation": {"episodes": 40, "num_evaluations": 1, "seed": 5},
        "execution": "real",
    }
    spec = parse_space(Source(name="test", content=content, lines={}))
    begun = replace(started(0, runners=1), seed=1, setting=dict(facts.defaults) | {"num_env_runners": 1}, proposed={})
    script = pickled(config, by_value=sys.modules[__name__])
    packed = packed_config(begun, json.dumps(spec.to_json()), script=script)
    return [record for result in results_of(packed) for record in result.records]


def share_right(config: AlgorithmConfig, *, possible: int = STEPS, **budget: Any) -> float:
    """Return the share of actions that the trained policy gets right, greedily."""
    returns = [record for record in trained(config, **budget) if isinstance(record, Evaluation)][-1].returns
    return float(np.mean(returns)) / possible


def test_a_connector_of_one_s_own_has_its_state_in_evaluations() -> None:
    config = configured(loudness=1e-6)
    assert share_right(config.env_runners(env_to_module_connector=lambda *_, **__: Louder())) > 0.95
    assert share_right(configured(loudness=1e-6)) < 0.75


def test_asynchronous_runners_merge_the_state_of_such_a_connector_by_rllib_s_server() -> None:
    config = APPOConfig().environment(Cued, env_config={"loudness": 1e-6})
    config.env_runners(num_envs_per_env_runner=8, env_to_module_connector=lambda *_, **__: Louder())
    config.training(lr=0.005, train_batch_size_per_learner=400, gamma=0.5)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], fcnet_activation="tanh"))
    assert config.use_env_runner_state_server
    assert share_right(config, env_steps=40_000) > 0.95


def test_a_loss_of_one_s_own_teaches_what_no_reward_does() -> None:
    unpaid = configured(pays=False).evaluation(evaluation_config={"env_config": {"pays": True}})
    assert share_right(unpaid.copy(copy_frozen=False).learners(learner_class=Taught)) > 0.95
    # A policy that nobody taught may be right by luck.
    assert share_right(unpaid.copy(copy_frozen=False).learners(learner_class=Mistaught)) < 0.05
