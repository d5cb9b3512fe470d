"""How a policy acts, what every environment runner promises, and what only the batched one does, in this process."""

import functools
import itertools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED
from ray.tune.registry import register_env

from study.errors import TrialError
from study.trial.engine.envs.environments import make_env
from study.trial.engine.sampling.acting import action_rule, dense_layers, network_of, scaling_for_environment
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.lanes import LaneNoise, lane_seed
from study.trial.experiment import of_gymnasium
from tests.environments import Plain
from tests.integration.trials import built_config
from tests.spaces import spec

pytestmark = pytest.mark.usefixtures("local_ray")

DISCRETE = Discrete(3)
BOX = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
VECTOR, IMAGE = Box(-1, 1, (5,), np.float32), Box(0, 1, (42, 42, 1), np.float32)
CARTPOLE = {"environment__id": "CartPole-v1"}
PENDULUM = {"environment__id": "Pendulum-v1", "environment__floor": -1600}


# --- how a policy acts -----------------------------------------------------------------------------------------------


def module_of(action: gymnasium.Space, observation: gymnasium.Space = VECTOR, **model: Any) -> RLModule:
    torch.manual_seed(0)
    config = PPOConfig().environment(observation_space=observation, action_space=action)
    config.rl_module(model_config=DefaultModelConfig(**({"fcnet_hiddens": [16, 8]} | model)))
    return config.get_rl_module_spec(spaces={"default_policy": (observation, action)}).build()


@pytest.mark.parametrize(
    ("action", "observation", "model", "is_dense"),
    [
        *((DISCRETE, VECTOR, {"fcnet_activation": each}, True) for each in ("tanh", "relu", "silu")),
        (DISCRETE, VECTOR, {"vf_share_layers": False}, True),
        (BOX, VECTOR, {"vf_share_layers": False}, True),
        (BOX, VECTOR, {}, True),
        (BOX, VECTOR, {"free_log_std": True}, False),  # left to torch
        (BOX, IMAGE, {}, False),
    ],
)
def test_a_network_is_evaluated_as_its_module_does(action: Any, observation: Any, model: Any, is_dense: bool) -> None:
    module = module_of(action, observation, **model)
    network, rows = network_of(module), np.random.default_rng(0).normal(size=(7, *observation.shape))
    assert (dense_layers(module) is not None) == is_dense
    rows = rows.astype(np.float32)
    for _ in range(2):
        expected = module.forward_exploration({"obs": torch.from_numpy(rows)})["action_dist_inputs"].detach().numpy()
        np.testing.assert_allclose(network(rows), expected, atol=1e-5)
        state = {name: np.asarray(value) * 1.5 for name, value in module.get_state().items()}
        module.set_state(state)  # the function follows the weights


def test_drawn_actions_have_the_policys_probabilities() -> None:
    rule, n = action_rule(MultiDiscrete([2, 4])), 60_000
    inputs = np.random.default_rng(1).normal(size=rule.num_inputs).astype(np.float32)
    uniforms = LaneNoise(3, 1, 0).uniforms(0, n * rule.noise_size).reshape(n, -1)
    drawn = rule.choose(np.broadcast_to(inputs, (n, rule.num_inputs)), rule.noise(uniforms))
    for column, (low, high) in enumerate([(0, 2), (2, 6)]):
        expected = np.exp(inputs[low:high]) / np.exp(inputs[low:high]).sum()
        got = np.bincount(drawn[:, column], minlength=high - low) / n
        np.testing.assert_allclose(got, expected, atol=5 * np.sqrt(0.25 / n))


# --- every runner ----------------------------------------------------------------------------------------------------


def runner_of(config: Any, process: int = 1) -> Any:
    return config.env_runner_cls(config=config, worker_index=process, num_workers=config.num_env_runners)


@pytest.fixture(params=["stock", "batched"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def one(kind: str, *, lanes: int = 3, batch: int = 60, **changes: Any) -> Any:
    """Return one runner with `lanes` lanes that samples `batch` steps a round."""
    setting = {"num_env_runners": 1, "num_envs_per_env_runner": lanes, "train_batch_size": batch, "minibatch_size": 20}
    return runner_of(built_config(runner=kind, setting=setting, **changes))


def chains(samples: list[list[SingleAgentEpisode]]) -> list[list[SingleAgentEpisode]]:
    """Return the pieces of each episode in time order."""
    result: dict[str, list[SingleAgentEpisode]] = {}
    for episode in itertools.chain(*samples):
        result.setdefault(episode.id_, []).append(episode)
    return list(result.values())


def replay(env: gymnasium.Env, seen: Any, pieces: list[SingleAgentEpisode]) -> None:
    """Check that the environment, whose reset gave what was `seen`, does what the pieces of an episode hold."""
    scale, taken, ended = scaling_for_environment(env.action_space, PPOConfig()), 0, (False, False)
    for piece in pieces:
        assert piece.t_started == taken
        np.testing.assert_allclose(piece.get_observations(0), seen, rtol=1e-5, atol=1e-6)
        steps = zip(piece.get_actions(), piece.get_rewards(), piece.get_observations(slice(1, None)), strict=True)
        for action, reward, following in steps:
            assert not any(ended)
            seen, got, *ended, _ = env.step(scale(np.asarray(action)))
            assert float(got) == pytest.approx(float(reward), rel=1e-5)
            np.testing.assert_allclose(following, seen, rtol=1e-5, atol=1e-6)
            taken += 1
        assert tuple(ended) == (piece.is_terminated, piece.is_truncated)


@pytest.mark.parametrize(
    "environment",
    [CARTPOLE, CARTPOLE | {"environment__max_episode_steps": 11}, PENDULUM],
    ids=["terminated", "truncated", "box"],
)
def test_an_episode_is_what_the_environment_did(kind: str, environment: dict[str, Any]) -> None:
    runner = one(kind, lanes=3, batch=75, **environment)
    episodes = chains([runner.sample() for _ in range(4)])
    for env_index in range(3):
        env = make_env(spec(**environment).environment)
        first, _ = env.reset(seed=lane_seed(1, 1, env_index))
        (mine,) = [each for each in episodes if np.allclose(each[0].get_observations(0), first, atol=1e-7)]
        replay(env, first, mine)


@pytest.mark.parametrize("environment", [CARTPOLE, PENDULUM], ids=["discrete", "box"])
def test_the_probabilities_belong_to_the_actions(kind: str, environment: dict[str, Any]) -> None:
    runner = one(kind, **environment)
    distribution = runner.module.get_exploration_action_dist_cls()
    for episode in runner.sample():
        inputs, log_probs = (episode.get_extra_model_outputs(name) for name in ("action_dist_inputs", "action_logp"))
        observations = torch.from_numpy(np.array(episode.get_observations(slice(0, -1))))
        expected = runner.module.forward_exploration({"obs": observations})["action_dist_inputs"].detach()
        np.testing.assert_allclose(inputs, expected.numpy(), atol=1e-5)
        actions = torch.from_numpy(np.array(episode.get_actions()))
        np.testing.assert_allclose(log_probs, distribution.from_logits(expected).logp(actions).numpy(), atol=1e-4)


def test_a_measured_sample_counts_what_it_returns(kind: str) -> None:
    runner = one(kind, lanes=4, batch=100)
    samples = [runner.measured_sample() for _ in range(5)]
    ended = [pieces for pieces in chains([episodes for episodes, _, _ in samples]) if pieces[-1].is_done]
    returns = [sum(piece.get_return() for piece in pieces) for pieces in ended]
    assert len(ended) >= 5
    assert sum(each.num_episodes for _, _, each in samples) == len(ended)
    assert sum(each.episode_return_sum for _, _, each in samples) == pytest.approx(sum(returns))
    assert sum(each.episode_len_sum for _, _, each in samples) == sum(returns)  # CartPole pays 1 a step
    for episodes, metrics, measurement in samples:
        assert measurement.env_steps == sum(map(len, episodes)) == metrics[NUM_ENV_STEPS_SAMPLED].peek()
        assert (measurement.failure, measurement.runner, measurement.num_runners) == (None, 1, 1)


def test_weights_are_set_and_followed(kind: str) -> None:
    runner = one(kind)
    runner.sample()
    state = {name: np.asarray(value) * 2 for name, value in runner.module.get_state().items()}
    runner.set_state({"rl_module": state, "weights_seq_no": 7})
    assert runner.get_state()["weights_seq_no"] == 7
    runner.sample()  # RLlib's own runner has already prepared its next forward pass
    for episode in runner.sample():
        rows = torch.from_numpy(np.array(episode.get_observations(slice(0, -1))))
        inputs = runner.module.forward_inference({"obs": rows})["action_dist_inputs"].numpy()
        np.testing.assert_allclose(episode.get_extra_model_outputs("action_dist_inputs"), inputs, atol=1e-5)
    for name, value in runner.module.get_state().items():
        np.testing.assert_array_equal(np.asarray(value), state[name])


AT_STEP, BLIND = ({"environment__id": f"tests.environments:{name}"} for name in ("AtStep", "NanObservation"))
PLACE = r"\(environments.py, line \d+, in reward\)"


@pytest.mark.parametrize(
    ("kind", "environment", "words"),
    [
        *((each, AT_STEP, rf"ZeroDivisionError: planted fault at step 30 {PLACE}") for each in ("stock", "batched")),
        *(
            (each, AT_STEP | {"environment__kwargs": {"does": "pays nan"}}, "finite, got nan at step 10 of an episode")
            for each in ("stock", "batched")
        ),
        *(  # the policy is not blamed
            ("batched", BLIND | {"environment__kwargs": {"numbers": numbers}}, "observations must be finite")
            for numbers in (False, True)
        ),
    ],
)
def test_what_the_environment_does_wrong_is_reported(kind: str, environment: dict[str, Any], words: str) -> None:
    episodes, metrics, measurement = one(kind, batch=120, **environment).measured_sample()
    assert (episodes, metrics) == ([], {})
    assert isinstance(measurement.failure, TrialError)
    assert re.search(words, measurement.failure.got)
    assert "ZeroDivision" not in words or "tests/environments.py" in "".join(measurement.failure.__notes__)


# --- the batched runner alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [CARTPOLE, PENDULUM], ids=["discrete", "box"])
@pytest.mark.parametrize("batch", [240, 250], ids=["divides", "does not divide"])
def test_lanes_do_not_depend_on_the_processes(batch: int, environment: dict[str, Any]) -> None:
    setting = {"num_env_runners": 4, "num_envs_per_env_runner": 3, "train_batch_size": batch, "minibatch_size": 10}
    weights = runner_of(built_config(setting=setting, **environment)).module.get_state()

    def play(execution: str) -> list[SingleAgentEpisode]:
        config = built_config(execution=execution, setting=setting, **environment)
        workers = range(1, 5) if config.num_env_runners else [0]
        runners = [runner_of(config, worker) for worker in workers]
        for runner in runners:
            runner.set_state({"rl_module": weights})
        return [episode for _ in range(3) for runner in runners for episode in runner.sample()]

    real, whole = play("real"), play("emulated")
    assert sum(map(len, real)) == 3 * batch
    for mine, theirs in zip(real, whole, strict=True):
        # Forward passes of other sizes round differently: a Box action shows it in the last digits.
        np.testing.assert_allclose(mine.get_observations(), theirs.get_observations(), atol=1e-4)
        np.testing.assert_allclose(mine.get_actions(), theirs.get_actions(), atol=1e-4)
        assert (mine.t_started, mine.is_done) == (theirs.t_started, theirs.is_done)


@pytest.mark.parametrize("environment", [CARTPOLE, PENDULUM], ids=["discrete", "box"])
def test_a_policy_that_diverged_is_found(environment: dict[str, Any]) -> None:
    runner = one("batched", **environment)
    state = {name: np.asarray(value) * np.nan for name, value in runner.module.get_state().items()}
    runner.set_state({"rl_module": state})
    measurement = runner.measured_sample()[2]
    assert "the training diverged" in measurement.failure.got
    assert measurement.failure.fix == "Lower lr, clip_param or num_epochs, or scale what is observed."


class Sized(Plain):
    """An environment as people write them, with its size in `env_config`."""

    def __init__(self, config: Any = None, size: int = 1) -> None:
        super().__init__()
        self.observation_space = Box(-1, 1, (dict(config or {}).get("size", size),), np.float32)


@pytest.mark.parametrize("given_as", ["class", "function", "name in Gymnasium"])
def test_an_environment_of_a_script_gets_its_env_config(given_as: str) -> None:
    environment: Any = Sized
    if given_as == "function":
        environment = "sized"
        register_env(environment, lambda context: Sized(context))
    elif given_as == "name in Gymnasium":
        environment = "Sized-v0"
        gymnasium.register(environment, entry_point=Sized)
        register_env(environment, functools.partial(of_gymnasium, gymnasium.spec(environment)))
    config = PPOConfig().environment(environment, env_config={"size": 3})
    runner = BatchedEnvRunner(config=config, worker_index=1, num_workers=2)
    assert runner.env.single_observation_space.shape == (3,)
