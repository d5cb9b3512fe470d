"""The published settings' parameters, by our extensions of RLlib, equal Stable-Baselines3's on the same rows."""

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from study.trial.engine.envs.environments import make_env
from study.trial.engine.extensions import NormalizedObservations, ScaledRewards, install
from study.trial.engine.learning.fused_learner import TrainBatch
from study.trial.engine.sampling.lanes import lane_seed
from study.trial.evaluation import evaluate
from study.trial.policy import STATE_FILE, packed_state, read_state
from tests.integration.test_env_runners import one
from tests.integration.test_evaluation import build as built
from tests.integration.test_learners import (
    CHOICE,
    CLIPPED,
    UNSHARED,
    build,
    configured,
    episodes,
    kinds,
    own_cache,  # noqa: F401 (for every test here)
    update,
    weights,
)
from tests.scripts import as_of_script
from tests.spaces import spec

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize  # noqa: E402

GAMMA, LANES, STEPS = 0.97, 3, 12
PIECES = ((5, 7), (12,), (3, 4, 5))
"""Lengths of the episodes' pieces in each lane; the last one of a lane goes on."""
NETWORK = {**UNSHARED, "fcnet_activation": "tanh"}
PUBLISHED = {"clip_param": 0.1, "vf_clip_param": math.inf, "vf_loss_coeff": 0.5, "use_kl_loss": False, "lambda_": 0.9}


class Played(VecEnv):
    """Plays arrays: what lanes saw and got at each step, whatever they do."""

    def __init__(self, observations: Any, rewards: Any = None, dones: Any = None) -> None:
        self._observations, self._rewards, self._dones = observations, rewards, dones
        self._step = 0
        super().__init__(observations.shape[1], Box(-np.inf, np.inf, observations.shape[2:], np.float32), CHOICE)

    def reset(self) -> Any:
        return self._observations[0]

    def step_async(self, actions: Any) -> None:
        self._step += 1

    def step_wait(self) -> Any:
        now = self._step
        return self._observations[now], self._rewards[now - 1], self._dones[now - 1], [{}] * self.num_envs

    close = env_is_wrapped = get_attr = set_attr = env_method = lambda self, *_, **__: [False] * self.num_envs


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("kind", "lanes"), [("batched", 3), ("stock", 1)])
def test_a_runner_normalises_observations_as_vec_normalize_does(kind: str, lanes: int) -> None:
    """What this environment shows does not depend on what is done. RLlib's runner resets its lanes behind that."""
    environment, steps = {"environment__id": "tests.environments:Plain"}, 150 // lanes
    runner = one(kind, lanes=lanes, batch=150, **environment, parameters__normalize_observations=1)
    envs = DummyVecEnv([lambda: make_env(spec(**environment).environment)] * lanes)
    envs._seeds = [lane_seed(1, 1, lane) for lane in range(lanes)]  # its public ones are consecutive
    wrapper = VecNormalize(envs, gamma=GAMMA)
    rows, ends, taken = [wrapper.reset()], {}, 0
    for step in range(1, steps + 1):
        row, _, dones, infos = wrapper.step(np.zeros(lanes, int))
        rows.append(row)
        ends |= {(step, lane): infos[lane]["terminal_observation"] for lane in np.flatnonzero(dones)}
    assert len(ends) >= 6
    for episode in runner.sample():  # lane by lane
        lane, start = divmod(taken, steps)
        taken, end = taken + len(episode), start + len(episode)
        expected = np.array([row[lane] for row in rows[start : end + 1]])
        if (end, lane) in ends:
            expected[-1] = ends[end, lane]
        compared = slice(-1 if kind == "stock" and episode.is_done else None)
        np.testing.assert_allclose(episode.get_observations()[compared], expected[compared], atol=1e-5)
    (piece,) = [each for each in runner._env_to_module.connectors if isinstance(each, NormalizedObservations)]
    mean, variance = piece.moments()
    np.testing.assert_allclose(mean[0], wrapper.obs_rms.mean, atol=1e-6)
    np.testing.assert_allclose(variance[0], wrapper.obs_rms.var, rtol=1e-5)


def test_states_of_runners_are_merged_into_those_of_all_rows_in_any_order() -> None:
    space, parts = Box(-np.inf, np.inf, (4,), np.float32), np.random.default_rng(0).normal(3.0, 2.0, (3, 4, 5, 4))
    runners = [NormalizedObservations(space, CHOICE) for _ in parts]
    for runner, own in zip(runners, parts, strict=True):
        for part in own:
            runner.update(part)
    states = [runner.get_state() for runner in runners]
    first, second = (runners[0].merge_states(list(order)) for order in (states, states[::-1]))
    for mine, other in zip(first["base"], second["base"], strict=True):
        assert np.array_equal(mine, other)
    rows = parts.reshape(-1, 4)
    assert first["base"][0] == pytest.approx(60, abs=1e-3)
    np.testing.assert_allclose(first["base"][1], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(first["base"][2], rows.var(axis=0), rtol=1e-4)
    for runner in runners:
        runner.set_state(first)
    again = runners[0].merge_states([runner.get_state() for runner in runners])
    assert again["base"][0] == first["base"][0]  # nothing is counted twice


def test_rewards_are_scaled_as_vec_normalize_does_over_several_batches() -> None:
    """Of lanes in order at each step; the middle lane has one episode over all batches."""
    generator, got = np.random.default_rng(1), []
    rewards, dones = generator.normal(1.0, 4.0, (2 * STEPS, LANES)), np.zeros((2 * STEPS, LANES), bool)
    for lane, lengths in enumerate(PIECES):
        for batch in (0, STEPS):
            dones[batch + np.cumsum(lengths)[:-1] - 1, lane] = True
    wrapper = VecNormalize(Played(np.zeros((2 * STEPS + 1, LANES, 4), np.float32), rewards, dones), gamma=GAMMA)
    wrapper.reset()
    expected = np.array([wrapper.step(np.zeros(LANES))[1] for _ in range(2 * STEPS)])
    scale = ScaledRewards(gamma=GAMMA, num_lanes=LANES)
    ended = np.cumsum(dones, axis=0) - dones
    for batch in (slice(0, STEPS), slice(STEPS, None)):
        state, scale = scale.get_state(), ScaledRewards(gamma=GAMMA, num_lanes=LANES)
        scale.set_state(state)
        names, pieces = [], []
        for lane, lengths in enumerate(PIECES):
            pieces += np.split(rewards[batch, lane], np.cumsum(lengths)[:-1])
            names += [f"{lane} {ended[batch, lane][start]}" for start in np.cumsum((0, *lengths))[:-1]]
        joined = iter(scale.scaled(names, pieces))
        got.append(np.array([np.concatenate([next(joined) for _ in lengths]) for lengths in PIECES]).T)
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-5)


def test_without_an_order_of_lanes_the_deviation_is_that_of_all_returns_so_far() -> None:
    gamma, scale = 0.9, ScaledRewards(gamma=0.9)
    first, other = np.arange(1.0, 9.0), np.arange(3.0) - 5
    scale.scaled(["a", "b", "a"], [first[:3], other, first[3:5]])
    (scaled,) = scale.scaled(["a"], [first[5:]])
    sums = [sum(gamma**k * each[t - k] for k in range(t + 1)) for each in (first, other) for t in range(len(each))]
    np.testing.assert_allclose(scaled, first[5:] / np.std(sums), rtol=1e-4)
    assert scale.scaled(["c"], [np.array([1e6, 0.0])])[0].max() <= 10


LAYERS = {
    "encoder.actor_encoder.net.mlp.0": "mlp_extractor.policy_net.0",
    "encoder.actor_encoder.net.mlp.2": "mlp_extractor.policy_net.2",
    "encoder.critic_encoder.net.mlp.0": "mlp_extractor.value_net.0",
    "encoder.critic_encoder.net.mlp.2": "mlp_extractor.value_net.2",
    "pi.net.mlp.0": "action_net",
    "vf.net.mlp.0": "value_net",
}
"""RLlib's name of each layer -> Stable-Baselines3's."""


@kinds
def test_weights_are_orthogonal_as_stable_baselines_makes_them(kind: type) -> None:
    """Of one generator the numbers are the same, layer by layer."""
    module = build(configured(kind, model=NETWORK, told={"orthogonal_init": 1}, seed=11)).module[DEFAULT_MODULE_ID]
    gains = {"action_net": 0.01, "value_net": 1.0}
    torch.manual_seed(11)
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear):
            other = torch.nn.utils.skip_init(torch.nn.Linear, layer.in_features, layer.out_features)
            ActorCriticPolicy.init_weights(other, gains.get(LAYERS[name], math.sqrt(2)))
            assert torch.equal(other.weight, layer.weight), name
            assert not layer.bias.any()


def fragments() -> list[SingleAgentEpisode]:
    """Return the pieces of `PIECES`, lane by lane; the first one that ends terminated, the others are cut."""
    return episodes(lengths=tuple(itertools.chain(*PIECES)), ends="+..--.")


def sb3_update(module: Any, episodes: list[SingleAgentEpisode], **options: Any) -> dict[str, Any]:
    """Return the weights, by RLlib's names, after one update by Stable-Baselines3's PPO with this module's weights."""
    env = Played(np.zeros((2, LANES, 5), np.float32))
    algorithm = sb3.PPO(
        "MlpPolicy", env, n_steps=STEPS, batch_size=STEPS * LANES, gamma=GAMMA, device="cpu",
        policy_kwargs={"net_arch": {"pi": [16, 16], "vf": [16, 16]}, "optimizer_kwargs": {"eps": options.pop("eps")}},
        **options,
    )  # fmt: skip
    algorithm.set_logger(sb3.common.logger.Logger(None, []))
    policy, own = algorithm.policy, module.state_dict()
    layers = dict(policy.named_modules())
    with torch.no_grad():
        for ours, theirs in LAYERS.items():
            layers[theirs].weight.copy_(own[f"{ours}.weight"])
            layers[theirs].bias.copy_(own[f"{ours}.bias"])
    buffer, last, remaining = algorithm.rollout_buffer, [], iter(episodes)
    steps: list[list[tuple[Any, ...]]] = []
    for lengths in PIECES:
        own_pieces, rows = [next(remaining) for _ in lengths], []
        for piece in own_pieces:
            seen, rewards = piece.get_observations(), np.array(piece.get_rewards())
            if piece.is_truncated:  # as `collect_rollouts` does where the time limit was reached
                rewards[-1] += GAMMA * policy.predict_values(torch.from_numpy(seen[-1:])).item()
            starts = [True] + [False] * (len(piece) - 1)
            rows += zip(seen[:-1], piece.get_actions(), rewards, starts, strict=True)
        steps.append(rows)
        last.append(own_pieces[-1].get_observations()[-1])
    for moment in zip(*steps, strict=True):
        seen, taken, rewards, starts = (np.array(each) for each in zip(*moment, strict=True))
        with torch.no_grad():
            values, log_probs, _ = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(taken))
        buffer.add(seen, taken.reshape(LANES, -1), rewards, starts, values, log_probs)
    with torch.no_grad():
        ends = policy.predict_values(torch.from_numpy(np.array(last)))
    buffer.compute_returns_and_advantage(ends, np.zeros(LANES, bool))
    algorithm._current_progress_remaining = 1.0
    algorithm.train()
    parameters = {name: value.detach() for name, value in policy.named_parameters()}
    return {f"{ours}.{each}": parameters[f"{LAYERS[ours]}.{each}"] for ours in LAYERS for each in ("weight", "bias")}


def learner(kind: type, *arguments: Any, **options: Any) -> Any:
    return build(configured(kind, *arguments, gamma=GAMMA, model=NETWORK, **{**PUBLISHED, **options}))


EPSILON = 1e-3
"""Adam's, large enough to be seen in a few steps."""


@kinds
def test_an_update_is_that_of_stable_baselines(kind: type) -> None:
    """Advantages of a minibatch, Adam's epsilon, clipping, entropy, bootstrapped limits of time: three epochs."""
    ours = learner(
        kind, told={"minibatch_advantages": 1, "adam_epsilon": EPSILON, "orthogonal_init": 1}, entropy_coeff=0.02,
        **CLIPPED,
    )  # fmt: skip
    episodes = fragments()
    expected = sb3_update(
        ours.module[DEFAULT_MODULE_ID], episodes, learning_rate=1e-2, n_epochs=3, gae_lambda=0.9,
        clip_range=0.1, ent_coef=0.02, vf_coef=0.5, max_grad_norm=0.5, eps=EPSILON,
    )  # fmt: skip
    before = weights(ours)
    update(ours, episodes, num_epochs=3)
    got = {name: value for name, value in weights(ours).items() if name in expected}
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert max(float((value - before[name]).abs().max()) for name, value in got.items()) > 1e-2


@kinds
@pytest.mark.parametrize("reach", [0.02, 0.2])
def test_the_value_loss_is_clipped_as_cleanrl_does(kind: type, reach: float) -> None:
    """Stable-Baselines3 takes the clipped value alone; PPO2 and CleanRL take the larger error, computed here."""
    ours = learner(kind, told={"vf_clip_range": reach, "minibatch_advantages": 1}, lr=3e-2)
    module, episodes = copy.deepcopy(ours.module[DEFAULT_MODULE_ID].unwrapped()), fragments()
    batch = TrainBatch.of(episodes)
    old = module.compute_values({"obs": torch.from_numpy(batch.observations)}).detach()
    advantages = batch.advantages(old.numpy().astype(float), gamma=GAMMA, lambda_=0.9)[batch.is_step]
    rows, old = torch.from_numpy(batch.observations[batch.is_step]), old[torch.from_numpy(batch.is_step)]
    returns = old + torch.tensor(advantages, dtype=torch.float32)
    critic = [each for name, each in module.named_parameters() if name.startswith(("vf", "encoder.critic"))]
    optimizer = torch.optim.Adam(critic, lr=3e-2)
    for _ in range(3):
        new = module.compute_values({"obs": rows})
        clipped = (old + torch.clamp(new - old, -reach, reach) - returns) ** 2
        loss = 0.5 * torch.max((new - returns) ** 2, clipped).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = update(ours, episodes, num_epochs=3)
    for name, value in module.state_dict().items():
        if name.startswith(("vf", "encoder.critic")):
            torch.testing.assert_close(weights(ours)[name], value, rtol=0, atol=1e-5, msg=name)
    assert found[f"{DEFAULT_MODULE_ID}/vf_loss"] > found[f"{DEFAULT_MODULE_ID}/vf_loss_unclipped"] + 1e-4


@kinds
def test_learning_rates_and_the_clip_range_fall_linearly_from_iteration_to_iteration(kind: type) -> None:
    """CleanRL's first iteration has the whole value, as here; Stable-Baselines3 counts the rows that it learns from."""
    ours = learner(kind, told={"clip_end_fraction": [0.25, 180], "vf_lr": 4e-2}, lr=[[0, 1e-2], [180, 2e-3]])
    for iteration in range(7):
        done = min(iteration / 5, 1.0)  # five batches of 36 steps
        rates = [float(group["lr"]) for group in ours.get_optimizer(DEFAULT_MODULE_ID).param_groups]
        assert rates == pytest.approx([1e-2 * (1 - done * 0.8), 4e-2 * (1 - done * 0.8)], rel=1e-5)
        assert ours.clip_share == pytest.approx(1 - done * 0.75)
        update(ours, fragments(), step=(iteration + 1) * 36)


def test_evaluations_use_the_frozen_statistics_by_our_lanes_and_by_rllibs_runner(tmp_path: Path) -> None:
    space, config, plain = built("CartPole-v1")
    statistics = NormalizedObservations(config.observation_space, config.action_space)
    statistics.update(np.random.default_rng(1).normal([0.5, 0.0, 0.1, 0.0], [2.0, 0.5, 0.05, 1.0], (50, 4)))
    state = plain | {"env_to_module_connector": {"NormalizedObservations": statistics.get_state()}}
    spaces = [as_of_script(space, runner_obstacle=obstacle) for obstacle in ("", "RLlib's runner plays")]
    returns = [evaluate(config, state, each).returns for each in spaces]
    assert returns[0] == returns[1] == evaluate(config, state, spaces[1]).returns
    assert returns[0] != evaluate(config, plain, spaces[0]).returns
    (tmp_path / STATE_FILE).write_bytes(packed_state(state))
    assert evaluate(config, read_state(tmp_path), spaces[0]).returns == returns[0]


@pytest.mark.parametrize(
    ("method", "changes", "what"),
    [
        ("learners", {"learner_class": type("Own", (PPOTorchLearner,), {})}, "needs RLlib's own learner"),
        ("learners", {"num_learners": 2}, "needs one learner"),
        ("learners", {"learner_connector": lambda *_: []}, "the learner has connectors of its own"),
        ("env_runners", {"env_to_module_connector": lambda *_: []}, "the runners have connectors"),
        ("multi_agent", {"policies": {"a", "b"}}, "needs an environment of one agent"),
    ],
)
def test_what_extensions_do_not_go_together_with_is_refused(method: str, changes: Any, what: str) -> None:
    config = PPOConfig().environment("CartPole-v1")
    config.learners(learner_config_dict={"normalize_observations": 1, "normalize_rewards": 1})
    getattr(config, method)(**changes)
    with pytest.raises(ValueError, match=what):
        install(config)
