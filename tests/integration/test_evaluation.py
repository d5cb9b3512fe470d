"""Evaluations: in lanes of ours as in RLlib's own loop, by RLlib's runner with all its parts, at random."""

import random
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tree
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module import RLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from scipy import stats

from study.errors import RecordError, TrialError
from study.records.folder import unpack_policy
from study.space.spec import StudySpec
from study.trial import evaluation
from study.trial.engine.envs.environments import make_env
from study.trial.evaluation import evaluate, module_of, runner_of
from study.trial.experiment import configuration_of, with_spaces
from study.trial.policy import read_state
from study.trial.run import pack_policy, state_of
from tests.environments import AtStep, Plain
from tests.scripts import as_of_script
from tests.spaces import spec

Built = tuple[StudySpec, AlgorithmConfig, dict[str, Any]]


def configured(env: Any, *, network: Any = None, **changes: Any) -> AlgorithmConfig:
    network = network or DefaultModelConfig(fcnet_hiddens=[16])
    return PPOConfig().environment(env, **changes).rl_module(model_config=network).debugging(seed=3)


def state_in(config: AlgorithmConfig) -> dict[str, Any]:
    """Return the state of a new runner, its weights far from zero, so that actions differ and leave the bounds."""
    torch.manual_seed(5)
    with runner_of(config) as runner:
        for parameter in runner.module.parameters():
            parameter.data *= 3
        state: dict[str, Any] = runner.get_state()
    return state | {"rl_module": {DEFAULT_MODULE_ID: state["rl_module"]}}  # as a learner has it


def build(env_id: str, *, episodes: int = 5, **changes: Any) -> Built:
    space = spec(environment__id=env_id, evaluation__episodes=episodes, **changes)
    config = with_spaces(configured(lambda _: make_env(space.environment)))
    return space, config, state_in(config)


# --- played in lanes of ours ------------------------------------------------------------------------------------------


def test_side_by_side_is_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    space, config, state = build("CartPole-v1", episodes=70)
    together = evaluate(config, state, space).returns
    assert len(set(together)) > 1
    for lanes in (1, 3):
        monkeypatch.setattr(evaluation, "MAX_LANES", lanes)
        assert evaluate(config, state, space).returns == together


def test_evaluation_leaves_the_generators_alone() -> None:
    space, config, state = build("tests.environments:Mixed")
    draws = []
    for evaluated in (False, True):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 (the global generator is what is tested)
        if evaluated:
            evaluate(config, state, space)
        draws.append((torch.rand(1).item(), random.random(), np.random.random()))  # noqa: NPY002
    assert draws[0] == draws[1]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("AtStep", {"at_step": 3, "does": "pays nan"}, "rewards must be finite, got nan at step 3 of episode 7"),
        ("NanObservation", {}, "observations must be finite, got nan or inf at step 10 of episode 7"),
        ("AtStep", {"at_step": 3}, r"in reward\) at step 3 of episode 7"),
        ("AtStep", {"at_step": 3, "does": "hangs"}, r"5 episodes must end within sample_timeout_s=0.5 s"),
    ],
)
def test_what_goes_wrong_in_the_environment_ends_the_trial(env_id: str, kwargs: dict[str, Any], message: str) -> None:
    limit_s = 0.5 if "hangs" in kwargs.values() else 60.0
    changes = {"environment__kwargs": kwargs, "resources__sample_timeout_s": limit_s}
    space, config, state = build(f"tests.environments:{env_id}", **changes)
    for policy in (state, None) if env_id != "NanObservation" else (state,):  # a random one does not look
        with pytest.raises(TrialError, match=message):
            evaluate(config, policy, space, first_episode=7)


def test_a_policy_that_diverged_or_is_of_another_space_is_refused() -> None:
    space, config, state = build("CartPole-v1")
    with pytest.raises(RecordError, match=r"must fit the environment .*, got .*encoder\."):
        evaluate(build("Acrobot-v1")[1], state, space)
    diverged = tree.map_structure(lambda weights: weights * np.nan, state["rl_module"])
    with pytest.raises(TrialError, match="the training diverged"):
        evaluate(config, {"rl_module": diverged}, space)


class Noted(Plain):
    """Notes the actions of its episodes, in the order in which they begin, and says the same at every step."""

    played: ClassVar[list[list[Any]]] = []

    def reset(self, **options: Any) -> Any:
        self.episode: list[Any] = []
        self.played.append(self.episode)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.episode.append(np.copy(action))
        return super().step(action)

    def observe(self) -> Any:
        return np.array([0.3, -0.2, 0.5], np.float32)


class Five(Noted):
    action_space: Any = Discrete(5)


def drawn(built: Built, *, seed: int = 3) -> npt.NDArray[Any]:
    """Return every action of every episode that a policy draws, shape (episodes, steps, ...)."""
    space, config, state = built
    asked = space.evaluation.model_copy(update={"stochastic": True, "seed": seed})
    Noted.played.clear()
    evaluate(config, state, space.model_copy(update={"evaluation": asked}))
    return np.array(Noted.played)


def random_actions(*, seed: int = 3) -> npt.NDArray[Any]:
    """Return every action of 200 random episodes of 20 steps, shape (200, 20)."""
    asked = {"evaluation__episodes": 200, "evaluation__seed": seed}
    space = spec(environment__id="tests.integration.test_evaluation:Five", **asked)
    config = configuration_of(space)
    Noted.played.clear()
    evaluate(config, None, space)
    return np.array(Noted.played)


def test_drawn_actions_have_the_policys_probabilities_and_noise_of_their_seed_episode_and_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = build("tests.integration.test_evaluation:Noted", episodes=100, environment__kwargs={"length": 40})
    actions, of_nobody = drawn(built), random_actions()
    rows = {Columns.OBS: torch.tensor([[0.3, -0.2, 0.5]])}
    logits = module_of(*built[1:]).forward_exploration(rows)[Columns.ACTION_DIST_INPUTS].detach().numpy()[0]
    probability = float(np.exp(logits[1]) / np.exp(logits).sum())
    assert 0.02 < probability < 0.98
    spread = np.sqrt(probability * (1 - probability) / actions.size)
    assert actions.mean() == pytest.approx(probability, abs=4 * spread)
    assert len({tuple(episode) for episode in actions.tolist()}) > 50
    monkeypatch.setattr(evaluation, "MAX_LANES", 7)
    np.testing.assert_array_equal(drawn(built), actions)
    assert (drawn(built, seed=4) != actions).any()
    np.testing.assert_array_equal(random_actions(), of_nobody)
    assert (random_actions(seed=4) != of_nobody).any()


def test_random_actions_are_uniform_in_every_step_and_after_every_action() -> None:
    actions = random_actions()
    pairs = (actions[:, :-1] * 5 + actions[:, 1:], actions[:-1] * 5 + actions[1:])  # of a step, of an episode
    shares = [stats.chisquare(np.bincount(each.ravel(), minlength=25)).pvalue for each in pairs]
    shares += [stats.chisquare(np.bincount(each, minlength=5)).pvalue for each in actions.T]
    assert min(shares) > 1e-4


def test_an_evaluation_has_its_own_environment_and_counts_the_episodes_that_it_cut() -> None:
    given: dict[str, Any] = {"environment__id": "tests.environments:Plain", "environment__kwargs": {"length": 30}}
    limits = ({"evaluation__max_episode_steps": limit} for limit in (30, 11))
    asked = ({}, {"evaluation__kwargs": {"length": 12}}, *limits)
    spaces = [spec(**given, **changes) for changes in asked]
    results = [evaluate(configuration_of(space), None, space) for space in spaces]
    expected = [((30.0,) * 3, 0), ((12.0,) * 3, 0), ((30.0,) * 3, 0), ((11.0,) * 3, 3)]
    assert [(each.returns, each.num_cut) for each in results] == expected


# --- played by RLlib's runner -----------------------------------------------------------------------------------------


def played(config: AlgorithmConfig, state: Any, space: StudySpec, **options: Any) -> Any:
    return evaluate(config, state, as_of_script(space, runner_obstacle="RLlib's runner plays"), **options)


@pytest.mark.parametrize(
    ("env_id", "normalize", "clip", "kwargs"),
    [
        ("CartPole-v1", True, False, {}),
        ("LunarLander-v3", True, False, {"continuous": True}),
        ("Pendulum-v1", True, False, {}),  # bounds are not [-1, 1]
        ("Pendulum-v1", False, True, {}),
        ("Pendulum-v1", False, False, {}),
        ("FrozenLake-v1", True, False, {}),
        ("tests.environments:Mixed", True, False, {}),
        ("tests.environments:Keeps", True, False, {}),  # more digits than it declares, always in the same array
    ],
)
def test_our_own_evaluation_has_the_returns_of_rllibs_runner(
    env_id: str, normalize: bool, clip: bool, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"environment__kwargs": kwargs, "evaluation__max_episode_steps": 150}
    space, config, state = build(env_id, **changes)
    config.environment(normalize_actions=normalize, clip_actions=clip)
    for name in ("MAX_LANES", "MAX_SIDE_BY_SIDE"):  # one at a time: a matrix product has the same shape in both
        monkeypatch.setattr(evaluation, name, 1)
    ours, theirs = (play(config, state, space, first_episode=4) for play in (evaluate, played))
    assert theirs.returns == pytest.approx(ours.returns, rel=1e-4)  # NumPy rounds in another last digit
    assert theirs.num_cut == ours.num_cut


def test_states_belong_to_their_episodes_and_own_evaluation_settings_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    space, config = spec(evaluation__episodes=20), recurrent()
    state = state_in(config)
    together = played(config, state, space).returns
    monkeypatch.setattr(evaluation, "MAX_SIDE_BY_SIDE", 1)
    assert played(config, state, space).returns == together
    assert len(set(together)) > 1
    config.evaluation(evaluation_config={"env_config": {"sutton_barto_reward": True}})
    assert set(played(config, state, space).returns) == {-1.0}


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
    return configured("CartPole-v1", network=network)


def test_several_agents_are_added_up() -> None:
    space = spec(evaluation__episodes=20)
    config = two_agents()
    with runner_of(config) as runner:
        state = runner.get_state()
    whole = played(config, state, space)
    assert set(whole.returns) == {23.0, 24.0, 35.0}  # of three to five steps: 1 in each, and 10 in every second
    cut = played(config, state, spec(evaluation__episodes=20, evaluation__max_episode_steps=3))
    assert (set(cut.returns), cut.num_cut) == ({13.0, 23.0}, sum(total > 23 for total in whole.returns))
    assert played(config, None, space).returns == whole.returns  # at random: the environment pays whatever is done


def test_what_an_environment_does_wrong_is_one_line() -> None:
    config = configured(lambda _: AtStep(at_step=1))
    with pytest.raises(TrialError) as found:
        played(config, state_in(config), spec(), first_episode=7)
    assert found.value.rule == "`step` must not fail"
    assert re.fullmatch(r"ZeroDivisionError: .* \(.*, in reward\) at step 1 of episode 7", found.value.got)
    chain: list[BaseException] = [found.value]
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
