"""RLlib's own runner plays the evaluation episodes, as ours does, with every part of RLlib's; checkpoints play too."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import tree
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module import RLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from study.errors import TrialError
from study.records.folder import unpack_policy
from study.space.spec import StudySpec
from study.trial import evaluation
from study.trial.evaluation import evaluate, runner_of
from study.trial.experiment import Experiment, with_spaces
from study.trial.policy import pack_policy, read_state, state_of
from tests.policies import evaluate_module
from tests.spaces import spec


def configured(env: Any, *, network: Any = None, **changes: Any) -> AlgorithmConfig:
    network = network or DefaultModelConfig(fcnet_hiddens=[16])
    return PPOConfig().environment(env, **changes).rl_module(model_config=network).debugging(seed=3)


def played(config: AlgorithmConfig, state: Any, space: StudySpec, **options: Any) -> Any:
    return evaluate(Experiment(config=config, runner_obstacle="RLlib's runner plays"), state, space, **options)


def state_in(config: AlgorithmConfig) -> dict[str, Any]:
    """Return the state of a new runner, its weights far from zero, so that actions differ."""
    torch.manual_seed(5)
    with runner_of(config) as runner:
        for parameter in runner.module.parameters():
            parameter.data *= 3
        state: dict[str, Any] = runner.get_state()
    return state


@pytest.mark.parametrize(("env_id", "limit", "episodes"), [("CartPole-v1", 10_000, 11), ("Pendulum-v1", 30, 11)])
def test_a_plain_policy_gets_the_returns_of_our_own_evaluation(env_id: str, limit: int, episodes: int) -> None:
    space = spec(environment__id=env_id, evaluation__episodes=episodes, evaluation__max_episode_steps=limit)
    config = configured(env_id)
    state = state_in(config)
    with runner_of(config) as runner:
        runner.set_state(state)
        ours = evaluate_module(runner.module, space, config=with_spaces(config), keep_actions=2, first_episode=4)
    theirs = played(config, state, space, keep_actions=2, first_episode=4)
    assert theirs.returns == pytest.approx(ours.returns, rel=1e-6)
    assert (theirs.num_cut, theirs.seeds) == (ours.num_cut, ours.seeds)
    for first, second in zip(theirs.actions, ours.actions, strict=True):
        np.testing.assert_allclose(np.array(first), np.array(second), rtol=1e-4, atol=1e-5)
    assert played(config, None, space).returns == evaluate_module(None, space).returns


class Recalls(gymnasium.Env):
    """Shows a cue once; a step later pays what fits it. The cue belongs to the seed."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, context: Any = None) -> None:
        self.wrong = dict(context or {}).get("wrong", 0.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = 0.0 if self.steps == 1 else float(action == self.cue) or self.wrong
        return np.array([0, self.steps / 10], np.float32), reward, self.steps == 4, False, {}


def test_states_of_a_recurrent_module_belong_to_their_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    space = spec(evaluation__episodes=20)
    config = recurrent()
    state = state_in(config)
    together = played(config, state, space).returns
    monkeypatch.setattr(evaluation, "MAX_SIDE_BY_SIDE", 1)
    assert played(config, state, space).returns == together
    assert len(set(together)) > 1


def test_connectors_have_their_states_and_keep_them() -> None:
    short = {"environment__id": "Pendulum-v1", "evaluation__max_episode_steps": 60}
    space = spec(**short, evaluation__episodes=3)
    config = configured("Pendulum-v1").env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    state = state_in(config)
    fresh = played(config, state, space).returns
    with runner_of(config) as runner:
        runner.set_state(state)
        for piece in runner._env_to_module.connectors:
            if isinstance(piece, MeanStdFilter):
                piece._update_stats = True
        runner.sample(num_timesteps=300, explore=True)
        learnt = runner.get_state()
    returns = played(config, learnt, space).returns
    assert returns != fresh
    assert played(config, learnt, space.model_copy()).returns == returns
    # Nothing that was seen in an evaluation has changed the filter: more episodes begin with the fewer.
    more = spec(**short, evaluation__episodes=3 + evaluation.MAX_SIDE_BY_SIDE)
    assert played(config, learnt, more).returns[:3] == pytest.approx(returns, rel=1e-5)


class Pair(MultiAgentEnv):
    """Two agents; `left` gets 1 in each step and `right` 10, which acts in every second step only."""

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.agents = self.possible_agents = ["left", "right"]
        self.observation_spaces = dict.fromkeys(self.agents, Box(-1, 1, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.length, self.steps = 3 + int(np.random.default_rng(seed).integers(3)), 0
        return {"left": np.zeros(1, np.float32), "right": np.zeros(1, np.float32)}, {}

    def step(self, action_dict: Any) -> Any:
        self.steps += 1
        ended = self.steps == self.length
        acting = ["left", "right"] if ended or self.steps % 2 == 0 else ["left"]
        rewards = {agent: {"left": 1.0, "right": 10.0}[agent] for agent in acting}
        return (
            dict.fromkeys(acting, np.zeros(1, np.float32)),
            rewards,
            {**dict.fromkeys(acting, ended), "__all__": ended},
            {**dict.fromkeys(acting, False), "__all__": False},
            {},
        )


def two_agents() -> AlgorithmConfig:
    return configured(Pair).multi_agent(policies={"left", "right"}, policy_mapping_fn=lambda agent, episode, **_: agent)


def recurrent() -> AlgorithmConfig:
    network = DefaultModelConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=8, max_seq_len=4)
    return configured(Recalls, network=network)


def test_several_agents_are_added_up() -> None:
    space = spec(evaluation__episodes=20)
    config = two_agents()
    with runner_of(config) as runner:
        state = runner.get_state()
    whole = played(config, state, space, keep_actions=1)
    assert set(whole.returns) == {23.0, 24.0, 35.0}  # of three to five steps: 1 in each, and 10 in every second
    assert [sorted(action) for action in whole.actions[0]][:2] == [["left", "right"], ["left"]]
    cut = played(config, state, spec(evaluation__episodes=20, evaluation__max_episode_steps=3))
    assert (set(cut.returns), cut.num_cut) == ({13.0, 23.0}, sum(total > 23 for total in whole.returns))
    assert played(config, None, space).returns == whole.returns


def test_the_script_s_own_evaluation_settings_hold() -> None:
    space = spec(evaluation__episodes=8)
    config = configured(Recalls)
    state = state_in(config)
    plain = played(config, state, space).returns
    config.evaluation(evaluation_config={"env_config": {"wrong": -100.0}})
    assert min(played(config, state, space).returns) < min(plain)


class Breaks(Recalls):
    def step(self, action: Any) -> Any:
        raise KeyError("no such room")


class Endless(Recalls):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("inf"), *rest


@pytest.mark.parametrize(
    ("env", "rule", "got"),
    [
        (Breaks, "`step` must not fail", r"KeyError: 'no such room' \(.*, in step\) at step 1 of episode 7"),
        (Endless, "rewards must be finite", "inf at step 1 of episode 7"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*The reward is an inf value")
def test_what_an_environment_does_wrong_is_one_line(env: Any, rule: str, got: str) -> None:
    config = configured(env)
    with pytest.raises(TrialError) as found:
        played(config, state_in(config), spec(), first_episode=7)
    assert found.value.rule == rule
    assert re.fullmatch(got, found.value.got)
    chain = [found.value]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        assert cause not in chain, "whoever follows the causes comes to an end"
        chain.append(cause)


# --- the policy as a checkpoint and back ------------------------------------------------------------------------------


@pytest.mark.minutes
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "config",
    [
        recurrent().env_runners(num_env_runners=0, env_to_module_connector=lambda *_, **__: MeanStdFilter()),
        two_agents().env_runners(num_env_runners=1),
    ],
    ids=["recurrent", "two agents"],
)
def test_what_is_read_back_plays_the_same(config: AlgorithmConfig, tmp_path: Path) -> None:
    space = spec(evaluation__episodes=10)
    config.training(train_batch_size_per_learner=200, minibatch_size=50, num_epochs=2, lr=0.01)
    algorithm = config.build_algo()
    try:
        fresh = played(algorithm.config, state_of(algorithm), space)
        algorithm.train()
        state = state_of(algorithm)
        trained = played(algorithm.config, state, space)
        unpack_policy(pack_policy(algorithm.env_runner_group.local_env_runner.module, state), tmp_path / "policy")
    finally:
        algorithm.stop()
    back = read_state(tmp_path / "policy")
    assert played(config, back, space).returns == trained.returns
    assert len(trained.returns) == len(fresh.returns) == 10
    tree.map_structure(np.testing.assert_array_equal, back["rl_module"], state["rl_module"])
    assert RLModule.from_checkpoint(str(tmp_path / "policy")) is not None  # RLlib opens it by itself
