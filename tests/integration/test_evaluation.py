"""Greedy evaluation against a plain loop with RLlib's own connectors, one episode at a time."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.spaces import Discrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from scipy import stats
from typer.testing import CliRunner

from study.cli import commands as cli
from study.errors import RecordError, TrialError
from study.space.spec import StudySpec
from study.trial import evaluation
from study.trial.engine.envs.environments import make_env
from study.trial.engine.envs.probing import probe
from study.trial.engine.sampling.lanes import evaluation_seeds
from tests.environments import Plain
from tests.policies import evaluate_module
from tests.spaces import spec

Built = tuple[StudySpec, PPOConfig, RLModule]


def build(env_id: str, *, episodes: int = 5, normalize: bool = True, clip: bool = False, **changes: Any) -> Built:
    space = spec(environment__id=env_id, evaluation__episodes=episodes, **changes)
    spaces = probe(space.environment, "")
    config = (
        PPOConfig()
        .environment(
            observation_space=spaces.observation_space,
            action_space=spaces.action_space,
            normalize_actions=normalize,
            clip_actions=clip,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
    )
    torch.manual_seed(5)
    module_spec = config.get_rl_module_spec(
        spaces={"default_policy": (spaces.observation_space, spaces.action_space)}, inference_only=True
    )
    module = module_spec.build()
    for parameter in module.parameters():  # far from zero, so that actions differ and leave the bounds
        parameter.data *= 3
    return space, config, module


def by_connectors(built: Built) -> list[float]:
    """Return the returns of the evaluation seeds, played as RLlib plays with `explore=False`."""
    space, config, module = built
    env = make_env(space.environment)
    spaces = dict.fromkeys(("__env__", "__env_single__"), (env.observation_space, env.action_space))
    to_module = config.build_env_to_module_connector(spaces=spaces)
    to_env = config.build_module_to_env_connector(spaces=spaces)
    returns = []
    for seed in evaluation_seeds(space.evaluation.seed, space.evaluation.episodes):
        observation, _ = env.reset(seed=seed)
        episode = SingleAgentEpisode(
            observations=[observation], observation_space=env.observation_space, action_space=env.action_space
        )
        while not episode.is_done and len(episode) < space.evaluation.max_episode_steps:
            shared: dict[str, Any] = {}
            batch = to_module(batch={}, episodes=[episode], rl_module=module, explore=False, shared_data=shared)
            output = module.forward_inference(batch)
            batch = to_env(batch=output, episodes=[episode], rl_module=module, explore=False, shared_data=shared)
            action = batch[Columns.ACTIONS_FOR_ENV if Columns.ACTIONS_FOR_ENV in batch else Columns.ACTIONS][0]
            observation, reward, terminated, truncated, _ = env.step(action)
            episode.add_env_step(
                observation, batch[Columns.ACTIONS][0], reward, terminated=terminated, truncated=truncated
            )
        returns.append(float(episode.get_return()))
    return returns


@pytest.mark.parametrize(
    ("env_id", "normalize", "clip", "kwargs"),
    [
        ("CartPole-v1", True, False, {}),
        ("LunarLander-v3", True, False, {}),
        ("LunarLander-v3", True, False, {"continuous": True}),
        ("Pendulum-v1", True, False, {}),  # bounds are not [-1, 1]
        ("Pendulum-v1", False, True, {}),
        ("FrozenLake-v1", True, False, {}),
        ("tests.environments:Mixed", True, False, {}),
    ],
)
def test_returns_are_those_of_rllibs_own_loop(
    env_id: str, normalize: bool, clip: bool, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(env_id, normalize=normalize, clip=clip, environment__kwargs=kwargs, evaluation__max_episode_steps=150)
    # One at a time, so that a matrix product has the same shape in both loops and not one bit may differ.
    monkeypatch.setattr(evaluation, "MAX_LANES", 1)
    mine = evaluate_module(built[2], built[0], config=built[1])
    assert mine.returns == pytest.approx(by_connectors(built), rel=1e-6)


def test_side_by_side_is_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    space, config, module = build("CartPole-v1", episodes=70)
    together = evaluate_module(module, space, config=config).returns
    assert len(set(together)) > 1
    for lanes in (1, 3):
        monkeypatch.setattr(evaluation, "MAX_LANES", lanes)
        assert evaluate_module(module, space, config=config).returns == together


def test_evaluation_leaves_the_generators_alone() -> None:
    space, config, module = build("tests.environments:Mixed")
    draws = []
    for evaluated in (False, True):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 (the global generator is what is tested)
        if evaluated:
            evaluate_module(module, space, config=config)
        draws.append((torch.rand(1).item(), random.random(), np.random.random()))  # noqa: NPY002
    assert draws[0] == draws[1]


@pytest.mark.parametrize(("env_id", "limit", "num_cut"), [("Endless", 11, 5), ("Plain", 20, 0)])
def test_episodes_that_do_not_end_by_themselves_are_cut_and_counted(env_id: str, limit: int, num_cut: int) -> None:
    space, config, module = build(f"tests.environments:{env_id}", evaluation__max_episode_steps=limit)
    result = evaluate_module(module, space, config=config)
    assert (result.returns, result.num_cut) == ((float(limit),) * 5, num_cut)


@pytest.mark.parametrize("stochastic", [False, True])
def test_an_environment_may_return_more_digits_than_it_declares(stochastic: bool) -> None:
    changes = {"evaluation__stochastic": stochastic}
    space, config, module = build("tests.environments:Plain", **changes)
    doubles, _, _ = build("tests.environments:OneArray", **changes)
    played = (evaluate_module(module, each, config=config, keep_actions=5).actions for each in (space, doubles))
    np.testing.assert_array_equal(*played)


@pytest.mark.parametrize(
    ("env_id", "changes", "message"),
    [
        (
            "NanReward",
            {"environment__kwargs": {"at_step": 3}},
            "rewards must be finite, got nan at step 3 of",
        ),
        ("NanObservation", {}, "observations must be finite, got nan or inf at step 10 of episode 0"),
        ("Raises", {"environment__kwargs": {"at_step": 3}}, r"in happens\) at step 3 of episode 0"),
        (
            "Hangs",
            {"environment__kwargs": {"at_step": 3}, "resources__sample_timeout_s": 0.5},
            r"5 episodes must end within sample_timeout_s=0.5 s",
        ),
    ],
)
def test_what_goes_wrong_in_the_environment_ends_the_trial(env_id: str, changes: dict[str, Any], message: str) -> None:
    space, config, module = build(f"tests.environments:{env_id}", **changes)
    for play in (lambda: evaluate_module(module, space, config=config), lambda: evaluate_module(None, space)):
        with pytest.raises(TrialError, match=message):
            play()
    with pytest.raises(TrialError, match=message.replace("episode 0", "episode 7")):
        evaluate_module(module, space, config=config, first_episode=7)


def test_a_policy_without_finite_outputs_ends_the_trial() -> None:
    space, config, module = build("CartPole-v1")
    for parameter in module.parameters():
        parameter.data *= float("nan")
    with pytest.raises(TrialError, match="the training diverged"):
        evaluate_module(module, space, config=config)


def test_a_policy_of_another_space_is_refused_by_what_differs() -> None:
    _, _, module = build("CartPole-v1")
    with pytest.raises(RecordError, match=r"must fit Acrobot-v1 .*, got another one: encoder\.\S+ is .*, must be "):
        evaluate_module(module, spec(environment__id="Acrobot-v1"))


class Still(Plain):
    """Says the same at every step."""

    def observe(self) -> Any:
        return np.array([0.3, -0.2, 0.5], np.float32)


def drawn(built: Built, *, seed: int = 3) -> npt.NDArray[Any]:
    """Return every action of every episode, shape (episodes, steps, ...)."""
    space, config, module = built
    changes = {"stochastic": True, "seed": seed}
    space = space.model_copy(update={"evaluation": space.evaluation.model_copy(update=changes)})
    result = evaluate_module(module, space, config=config, keep_actions=space.evaluation.episodes)
    return np.array(result.actions)


def outputs(module: RLModule) -> npt.NDArray[Any]:
    """Return the inputs of the distribution at the observation that never changes."""
    observation = torch.tensor([[0.3, -0.2, 0.5]])
    return module.forward_exploration({Columns.OBS: observation})[Columns.ACTION_DIST_INPUTS].detach().numpy()[0]


def test_drawn_actions_have_the_probabilities_of_the_policy() -> None:
    built = build("tests.integration.test_evaluation:Still", episodes=100, environment__kwargs={"length": 40})
    actions = drawn(built)
    logits = outputs(built[2])
    probability = float(np.exp(logits[1]) / np.exp(logits).sum())
    assert 0.02 < probability < 0.98
    spread = np.sqrt(probability * (1 - probability) / actions.size)
    assert actions.mean() == pytest.approx(probability, abs=4 * spread)
    assert len({tuple(episode) for episode in actions.tolist()}) > 50  # each episode has noise of its own


def test_noise_belongs_to_seed_episode_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    built = build("tests.integration.test_evaluation:Still", episodes=7, environment__kwargs={"length": 9})
    together, of_nobody = drawn(built), random_actions("Five")
    monkeypatch.setattr(evaluation, "MAX_LANES", 2)
    np.testing.assert_array_equal(drawn(built), together)
    assert (drawn(built, seed=4) != together).any()
    np.testing.assert_array_equal(random_actions("Five"), of_nobody)
    assert (random_actions("Five", seed=4) != of_nobody).any()


# --- a random policy -------------------------------------------------------------------------------------------


class Five(Plain):
    action_space: Any = Discrete(5)


def random_actions(env: str, *, seed: int = 3) -> npt.NDArray[Any]:
    """Return every action of 200 episodes of 20 steps, shape (200, 20, ...)."""
    space = spec(
        environment__id=f"tests.integration.test_evaluation:{env}", evaluation__episodes=200, evaluation__seed=seed
    )
    return np.array(evaluate_module(None, space, keep_actions=200).actions)


def test_random_actions_are_uniform_in_every_step_and_after_every_action() -> None:
    actions = random_actions("Five")
    pairs = (actions[:, :-1] * 5 + actions[:, 1:], actions[:-1] * 5 + actions[1:])  # of a step, of an episode
    shares = [stats.chisquare(np.bincount(each.ravel(), minlength=25)).pvalue for each in pairs]
    shares += [stats.chisquare(np.bincount(each, minlength=5)).pvalue for each in actions.T]
    assert min(shares) > 1e-4


def test_a_random_policy_plays_the_environment_of_the_evaluation() -> None:
    changes: dict[str, Any] = {"environment__id": "tests.environments:Plain", "environment__kwargs": {"length": 30}}
    assert evaluate_module(None, spec(**changes)).returns == (30.0,) * 3
    other = spec(**changes, evaluation__kwargs={"length": 12})
    short = evaluate_module(None, other, keep_actions=1)
    assert (short.returns, short.num_cut, len(short.actions[0])) == ((12.0,) * 3, 0, 12)
    cut = evaluate_module(None, spec(**changes, evaluation__max_episode_steps=11))
    assert (cut.returns, cut.num_cut) == ((11.0,) * 3, 3)
    assert cut.seeds == evaluation_seeds(10_000, 3)


SPACE = """
environment: {id: CartPole-v1}
parameters: {num_env_runners: [1, 2]}
budget: {env_steps: 2000}
search: {num_trials: 2}
evaluation: {episodes: 70}
"""


def told(*words: Any) -> str:
    done = CliRunner().invoke(cli.app, ["evaluate", *map(str, words), "--random"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_measures_the_floor_of_a_space_that_has_none(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    found = json.loads(told(file, "--json"))
    again = json.loads(told(file, "--json"))
    assert (found["n"], found["random"], found["checkpoint"], found["seed"]) == (70, True, None, 10_000)
    assert again == found
    few = json.loads(told(file, "--json", "--episodes", 9))
    assert few["returns"] == found["returns"][:9]
    assert json.loads(told(file, "--json", "--episodes", 9, "--seed", 3))["returns"] != few["returns"]
    lines = told(file).splitlines()
    assert lines[:2] == [f"{file}: random policy", "70 random episodes of CartPole-v1, seed 10000"]
    assert lines[-1].startswith(f"floor: {found['suggested_floor']:g}  # random policy: {found['mean']['value']:.4g} [")
