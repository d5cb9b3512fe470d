"""PPO as the field publishes it: what Stable-Baselines3 computes on the same rows, the fused and RLlib's learner do."""

import copy
import itertools
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import study
from study.trial.engine.extensions import (
    ExtendedPPOTorchLearner,
    NormalizedObservations,
    RewardScale,
    install,
    orthogonal,
    scaled_by,
)
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.lanes import lane_seed
from study.trial.evaluation import evaluate, runner_of
from study.trial.experiment import Experiment, with_spaces
from study.trial.policy import STATE_FILE, packed_state, read_state
from tests.integration.test_env_runners import one
from tests.integration.test_fused_learner import (
    CHOICE,
    NUMBERS,
    UNSHARED,
    VECTOR,
    as_rllib_samples,
    assert_close,
    assert_equal,
    build,
    configured,
    episodes,
    update,
    weights,
)
from tests.spaces import spec

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.common.utils import LinearSchedule  # noqa: E402
from stable_baselines3.common.vec_env import VecEnv, VecNormalize  # noqa: E402

GAMMA, LANES, STEPS = 0.97, 3, 12
PIECES = ((5, 7), (12,), (3, 4, 5))
"""Lengths of the episodes' pieces in each lane; the last one of a lane goes on."""
NETWORK = {**UNSHARED, "fcnet_activation": "tanh"}
"""Stable-Baselines3's own has 64 x 64 units; see `configured`."""
PUBLISHED = {"clip_param": 0.1, "vf_clip_param": math.inf, "vf_loss_coeff": 0.5, "use_kl_loss": False, "lambda_": 0.9}
CLIPPED = {"grad_clip": 0.5, "grad_clip_by": "global_norm"}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave the user's cache of programs alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class Played(VecEnv):
    """Plays arrays: what lanes saw and got at each step, whatever they do."""

    def __init__(self, observations: Any, rewards: Any, dones: Any, finals: dict[tuple[int, int], Any]) -> None:
        self._observations, self._rewards, self._dones, self._finals = observations, rewards, dones, finals
        self._step = 0
        super().__init__(observations.shape[1], Box(-np.inf, np.inf, observations.shape[2:], np.float32), CHOICE)

    def reset(self) -> Any:
        return self._observations[0]

    def step_async(self, actions: Any) -> None:
        self._step += 1

    def step_wait(self) -> Any:
        now, infos = self._step, []
        for lane in range(self.num_envs):
            final = self._finals.get((now, lane))
            infos.append({} if final is None else {"terminal_observation": final})
        return self._observations[now], self._rewards[now - 1], self._dones[now - 1], infos

    close = env_is_wrapped = get_attr = set_attr = env_method = lambda self, *_, **__: [False] * self.num_envs


# --- normalisation ---------------------------------------------------------------------------------------------------


def replayed(episodes: list[SingleAgentEpisode]) -> tuple[VecNormalize, dict[str, Any], list[Any]]:
    """Return Stable-Baselines3's wrapper after the steps of one sample, by lane, of the batched runner's environments.

    Beside it stands what it returned: observations of each step, and of the ends of episodes.
    """
    by_lane: list[list[SingleAgentEpisode]] = [[]]
    for episode in episodes:
        if sum(map(len, by_lane[-1])) == sum(map(len, episodes)) // LANES:
            by_lane.append([])
        by_lane[-1].append(episode)
    steps = sum(map(len, by_lane[0]))
    observations, dones = np.zeros((steps + 1, LANES, 4), np.float32), np.zeros((steps, LANES), bool)
    finals = {}
    for lane, own in enumerate(by_lane):
        env = gymnasium.make("CartPole-v1")
        observations[0, lane], _ = env.reset(seed=lane_seed(1, 1, lane))
        actions = np.concatenate([episode.get_actions() for episode in own])
        for step, action in enumerate(actions):
            seen, _, ended, cut, _ = env.step(action)
            dones[step, lane] = ended or cut
            if dones[step, lane]:
                finals[step + 1, lane] = seen.astype(np.float32)
                seen, _ = env.reset()
            observations[step + 1, lane] = seen
    wrapper = VecNormalize(Played(observations, np.ones((steps, LANES)), dones, finals), gamma=GAMMA)
    rows = [wrapper.reset()]
    ends = {}
    for step in range(steps):
        row, _, _, infos = wrapper.step(np.zeros(LANES))
        rows.append(row)
        ends |= {(step + 1, lane): info["terminal_observation"] for lane, info in enumerate(infos) if info}
    return wrapper, {"rows": np.array(rows), "ends": ends}, by_lane


@pytest.mark.usefixtures("local_ray")
def test_one_runner_normalises_observations_as_vec_normalize_does() -> None:
    runner = one("batched", batch=150, environment__id="CartPole-v1", parameters__normalize_observations=1)
    episodes = runner.sample()
    wrapper, expected, by_lane = replayed(episodes)
    compared = 0
    for lane, own in enumerate(by_lane):
        at = 0
        for episode in own:
            seen = episode.get_observations()
            np.testing.assert_allclose(seen[:-1], expected["rows"][at : at + len(episode), lane], atol=1e-5)
            at += len(episode)
            last = expected["ends"][at, lane] if episode.is_done else expected["rows"][at, lane]
            np.testing.assert_allclose(seen[-1], last, atol=1e-5)
            compared += episode.is_done
    assert compared > 1
    mean, variance = runner._statistics.moments()
    np.testing.assert_allclose(mean[0], wrapper.obs_rms.mean, atol=1e-6)
    np.testing.assert_allclose(variance[0], wrapper.obs_rms.var, rtol=1e-5)


def random_rows(rows: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(3.0, 2.0, (rows, 4))


def test_states_of_runners_are_merged_into_those_of_all_rows_in_any_order() -> None:
    space = Box(-np.inf, np.inf, (4,), np.float32)
    runners = [NormalizedObservations(space, CHOICE) for _ in range(3)]
    for number, runner in enumerate(runners):
        for part in range(4):
            runner.statistics.update(random_rows(5, 10 * number + part))
    states = [runner.get_state() for runner in runners]
    first, second = (runners[0].merge_states(list(order)) for order in (states, states[::-1]))
    for mine, other in zip(first["base"], second["base"], strict=True):
        assert np.array_equal(mine, other)
    rows = np.concatenate([random_rows(5, 10 * number + part) for number in range(3) for part in range(4)])
    assert first["base"][0] == pytest.approx(60, abs=1e-3)
    np.testing.assert_allclose(first["base"][1], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(first["base"][2], rows.var(axis=0), rtol=1e-4)
    for runner in runners:
        runner.set_state(first)
    again = runners[0].merge_states([runner.get_state() for runner in runners])
    assert again["base"][0] == first["base"][0]  # nothing is counted twice


def rewards_of_lanes(seed: int) -> tuple[Any, Any]:
    """Return rewards and ends, shape (steps, lanes), with the pieces of `PIECES`."""
    rewards, dones = np.random.default_rng(seed).normal(1.0, 4.0, (STEPS, LANES)), np.zeros((STEPS, LANES), bool)
    for lane, lengths in enumerate(PIECES):
        dones[np.cumsum(lengths)[:-1] - 1, lane] = True
    return rewards, dones


def test_rewards_are_scaled_as_vec_normalize_does_over_several_batches() -> None:
    scale, got = RewardScale(GAMMA, num_lanes=LANES), []
    batches = [rewards_of_lanes(seed) for seed in (1, 2)]
    rewards, dones = (np.concatenate([batch[part] for batch in batches]) for part in (0, 1))
    nothing = np.zeros((2 * STEPS + 1, LANES, 4), np.float32)
    wrapper = VecNormalize(Played(nothing, rewards, dones, {}), gamma=GAMMA)
    wrapper.reset()
    expected = np.array([wrapper.step(np.zeros(LANES))[1] for _ in range(2 * STEPS)])
    for number, (own, _) in enumerate(batches):
        names, pieces = [], []
        for lane, lengths in enumerate(PIECES):
            for index, (start, length) in enumerate(zip(itertools.accumulate((0, *lengths)), lengths, strict=False)):
                # The last piece of a lane goes on as the first one of the next batch.
                names.append(f"{lane} {number if index == 0 else f'{number}.{index}'}")
                if index == len(lengths) - 1:
                    names[-1] = f"{lane} {number + 1}"
                pieces.append(own[start : start + length, lane])
        if number:
            state, scale = scale.state(), RewardScale(GAMMA, num_lanes=LANES)
            scale.set_state(state)
        joined = iter(scale.scaled(_of_one_episode(names), pieces))
        got.append(np.array([np.concatenate([next(joined) for _ in lengths]) for lengths in PIECES]).T)
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-5)


def _of_one_episode(names: list[str]) -> list[str]:
    """Return the names; a lane of one piece has one episode over all batches."""
    return ["1" if name.startswith("1 ") else name for name in names]


# --- weights ---------------------------------------------------------------------------------------------------------


def sb3_policy(actions: Any, **options: Any) -> ActorCriticPolicy:
    return ActorCriticPolicy(
        NUMBERS, actions, lambda _: 1e-2, net_arch={"pi": [16, 16], "vf": [16, 16]}, activation_fn=torch.nn.Tanh,
        **options,
    )  # fmt: skip


LAYERS = {
    "encoder.actor_encoder.net.mlp.0": "mlp_extractor.policy_net.0",
    "encoder.actor_encoder.net.mlp.2": "mlp_extractor.policy_net.2",
    "encoder.critic_encoder.net.mlp.0": "mlp_extractor.value_net.0",
    "encoder.critic_encoder.net.mlp.2": "mlp_extractor.value_net.2",
    "pi.net.mlp.0": "action_net",
    "vf.net.mlp.0": "value_net",
}
"""RLlib's name of each layer -> Stable-Baselines3's."""


@pytest.mark.parametrize("kind", [FusedPPOLearner, PPOTorchLearner])
def test_weights_are_orthogonal_as_stable_baselines_makes_them(kind: type) -> None:
    module = build(configured(kind, model=NETWORK, told={"orthogonal_init": 1})).module[DEFAULT_MODULE_ID]
    found, theirs = dict(module.named_modules()), dict(sb3_policy(CHOICE).named_modules())
    for ours, other in LAYERS.items():
        mine, reference = (torch.linalg.svdvals(each.weight) for each in (found[ours], theirs[other]))
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)
        assert not found[ours].bias.any()
        assert not theirs[other].bias.any()


def test_of_one_generator_they_are_the_same_numbers() -> None:
    module = build(configured(PPOTorchLearner, model=NETWORK)).module[DEFAULT_MODULE_ID]
    orthogonal(module, seed=11)
    gains = {"action_net": 0.01, "value_net": 1.0}
    torch.manual_seed(11)
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear):
            other = torch.nn.utils.skip_init(torch.nn.Linear, layer.in_features, layer.out_features)
            ActorCriticPolicy.init_weights(other, gains.get(LAYERS[name], math.sqrt(2)))
            assert torch.equal(other.weight, layer.weight), name


# --- one update ------------------------------------------------------------------------------------------------------


def fragments(actions: Any, seed: int = 0) -> list[SingleAgentEpisode]:
    """Return the pieces of `PIECES`, lane by lane; the first one that ends terminated, the others are cut."""
    return episodes(actions, lengths=tuple(itertools.chain(*PIECES)), ends="+..--.", seed=seed)


def sb3_update(module: Any, actions: Any, episodes: list[SingleAgentEpisode], **options: Any) -> dict[str, Any]:
    """Return the weights, by RLlib's names, after one update by Stable-Baselines3's PPO with this module's weights."""
    env = Played(np.zeros((2, LANES, 5), np.float32), None, None, {})
    env.observation_space, env.action_space = NUMBERS, actions
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
    buffer, last = algorithm.rollout_buffer, []
    lanes: list[list[SingleAgentEpisode]] = []
    remaining = iter(episodes)
    for lengths in PIECES:
        lanes.append([next(remaining) for _ in lengths])
    steps: list[list[tuple[Any, ...]]] = []
    for own_pieces in lanes:
        rows = []
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
    parameters = dict(policy.named_parameters())
    return {f"{ours}.{each}": parameters[f"{LAYERS[ours]}.{each}"] for ours in LAYERS for each in ("weight", "bias")}


def learner(kind: type, *arguments: Any, **options: Any) -> Any:
    return build(configured(kind, *arguments, gamma=GAMMA, model=NETWORK, **{**PUBLISHED, **options}))


def learn(given: Any, episodes: list[SingleAgentEpisode], **options: Any) -> dict[str, Any]:
    rllib = not isinstance(given, FusedPPOLearner)
    return update(given, as_rllib_samples(given, episodes) if rllib else copy.deepcopy(episodes), **options)


@pytest.mark.parametrize("kind", [FusedPPOLearner, PPOTorchLearner])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_an_update_is_that_of_stable_baselines(kind: type, epsilon: float) -> None:
    """Advantages of a minibatch, Adam's epsilon, clipping, entropy, bootstrapped limits of time: three epochs."""
    ours = learner(
        kind, told={"minibatch_advantages": 1, "adam_epsilon": epsilon, "orthogonal_init": 1}, entropy_coeff=0.02,
        **CLIPPED,
    )  # fmt: skip
    episodes = fragments(CHOICE)
    expected = sb3_update(
        ours.module[DEFAULT_MODULE_ID], CHOICE, episodes, learning_rate=1e-2, n_epochs=3, gae_lambda=0.9,
        clip_range=0.1, ent_coef=0.02, vf_coef=0.5, max_grad_norm=0.5, eps=epsilon,
    )  # fmt: skip
    before = weights(ours)
    learn(ours, episodes, num_epochs=3)
    moved = 0.0
    for name, value in weights(ours).items():
        if name in expected:
            torch.testing.assert_close(value, expected[name].detach(), rtol=0, atol=1e-5, msg=name)
            moved = max(moved, float((value - before[name]).abs().max()))
    assert moved > 1e-2


@pytest.mark.parametrize("kind", [FusedPPOLearner, PPOTorchLearner])
@pytest.mark.parametrize("reach", [0.02, 0.2])
def test_the_value_loss_is_clipped_as_cleanrl_does(kind: type, reach: float) -> None:
    """Stable-Baselines3 takes the clipped value alone; PPO2 and CleanRL take the larger error, computed here."""
    ours = learner(kind, told={"vf_clip_range": reach, "minibatch_advantages": 1}, lr=3e-2)
    module, episodes = copy.deepcopy(ours.module[DEFAULT_MODULE_ID].unwrapped()), fragments(CHOICE)
    rows = torch.from_numpy(np.concatenate([episode.get_observations()[:-1] for episode in episodes]))

    def values() -> Any:
        return module.compute_values({"obs": rows})

    old = values().detach()
    advantages = []
    for episode in episodes:
        seen, rewards = torch.from_numpy(episode.get_observations()), episode.get_rewards()
        known = module.compute_values({"obs": seen}).detach().numpy().astype(float)
        following = np.append(known[1:-1], 0.0 if episode.is_terminated else known[-1])
        running, own = 0.0, []
        for residual in (rewards + GAMMA * following - known[:-1])[::-1]:
            running = residual + GAMMA * 0.9 * running
            own.append(running)
        advantages += own[::-1]
    returns = old + torch.tensor(advantages, dtype=torch.float32)
    critic = [each for name, each in module.named_parameters() if name.startswith(("vf", "encoder.critic"))]
    optimizer = torch.optim.Adam(critic, lr=3e-2)
    for _ in range(3):
        new = values()
        unclipped = (new - returns) ** 2
        clipped = (old + torch.clamp(new - old, -reach, reach) - returns) ** 2
        loss = 0.5 * torch.max(unclipped, clipped).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = learn(ours, episodes, num_epochs=3)
    for name, value in module.state_dict().items():
        if name.startswith(("vf", "encoder.critic")):
            torch.testing.assert_close(weights(ours)[name], value, rtol=0, atol=1e-5, msg=name)
    assert found[f"{DEFAULT_MODULE_ID}/vf_loss"] > found[f"{DEFAULT_MODULE_ID}/vf_loss_unclipped"] + 1e-4


# --- what falls, and what goes on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FusedPPOLearner, PPOTorchLearner])
def test_learning_rates_and_the_clip_range_fall_linearly_from_iteration_to_iteration(kind: type) -> None:
    """CleanRL's first iteration has the whole value, as here; Stable-Baselines3 counts the rows that it learns from."""
    total, batch = 180, 36
    told = {"clip_end_fraction": [0.25, total], "vf_lr": 4e-2}
    ours, schedule = learner(kind, told=told, lr=[[0, 1e-2], [total, 2e-3]]), LinearSchedule(1.0, 0.25, 1.0)
    of_lr = LinearSchedule(1e-2, 2e-3, 1.0)
    for iteration in range(7):
        progress = max(1 - iteration * batch / total, 0.0)
        of_policy, of_value = ours.get_optimizer(DEFAULT_MODULE_ID).param_groups
        assert float(of_policy["lr"]) == pytest.approx(of_lr(progress), rel=1e-5)
        assert float(of_value["lr"]) == pytest.approx(4 * of_lr(progress), rel=1e-5)
        assert ours.clip_share == pytest.approx(schedule(progress))
        assert 1e-2 * (1 - iteration / 5 * 0.8) == pytest.approx(of_lr(progress)) or progress == 0  # CleanRL's formula
        learn(ours, fragments(CHOICE), step=(iteration + 1) * batch)


@pytest.mark.parametrize("kind", [FusedPPOLearner, PPOTorchLearner])
def test_a_checkpoint_holds_all_that_the_next_update_depends_on(kind: type) -> None:
    told = {
        "normalize_rewards": 1, "vf_lr": 2e-2, "adam_epsilon": 1e-4, "clip_end_fraction": [0.1, 100],
        "minibatch_advantages": 1, "vf_clip_range": 0.1, "orthogonal_init": 1,
    }  # fmt: skip
    options = {"told": told, "lr": [[0, 1e-2], [100, 1e-3]], **CLIPPED}
    first, second = (learner(kind, VECTOR, **options) for _ in range(2))
    learn(first, fragments(VECTOR), step=36, num_epochs=2)
    second.set_state(first.get_state())
    assert_equal(first, second)
    assert second.clip_share == first.clip_share < 1
    for each in (first, second):
        learn(each, fragments(VECTOR, seed=1), step=72, num_epochs=2)
    assert_close(first, second, atol=1e-7)
    assert type(first) in (FusedPPOLearner, ExtendedPPOTorchLearner)


# --- runners and evaluations -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local_ray")
def test_rllibs_runner_has_seen_the_same_observations_as_its_episodes_say() -> None:
    """The first one of an episode counts and the last one does not, as `VecNormalize` has it."""
    runner = one("stock", batch=150, environment__id="CartPole-v1", parameters__normalize_observations=1)
    plain = one("stock", batch=150, environment__id="CartPole-v1")
    state = plain.get_state()["rl_module"]
    for each in (runner, plain):
        each.set_state({"rl_module": {name: np.zeros_like(value) for name, value in state.items()}})  # same actions
    sampled = [each.sample(explore=False) for each in (runner, plain)]
    (piece,) = [each for each in runner._env_to_module.connectors if isinstance(each, NormalizedObservations)]
    rows = [episode.get_observations()[: len(episode) + (not episode.is_done)] for episode in sampled[1]]
    moments = piece.statistics.moments()
    count = float(piece.statistics.added[0].sum())
    assert count == pytest.approx(len(np.concatenate(rows)), abs=1.1 * LANES)  # resets come a step later
    np.testing.assert_allclose(moments[0][0], np.concatenate(rows).mean(axis=0), atol=0.05)
    last = sampled[0][-1].get_observations()[-1]
    np.testing.assert_allclose(last, scaled_by(sampled[1][-1].get_observations()[-1:], *moments)[0], atol=1e-5)


def test_evaluations_use_the_frozen_statistics_by_our_lanes_and_by_rllibs_runner() -> None:
    space = spec(environment__id="CartPole-v1", evaluation__episodes=5)
    config = with_spaces(PPOConfig().environment("CartPole-v1").debugging(seed=3))
    statistics = NormalizedObservations(config.observation_space, config.action_space).statistics
    statistics.update(np.random.default_rng(1).normal([0.5, 0.0, 0.1, 0.0], [2.0, 0.5, 0.05, 1.0], (50, 4)))
    torch.manual_seed(5)
    with runner_of(config) as runner:
        for parameter in runner.module.parameters():
            parameter.data *= 3
        plain = runner.get_state() | {"rl_module": {DEFAULT_MODULE_ID: runner.module.get_state()}}
    state = plain | {"env_to_module_connector": {"NormalizedObservations": statistics.state()}}
    experiments = [Experiment(config=config, runner_obstacle=obstacle) for obstacle in ("", "RLlib's runner plays")]
    returns = [evaluate(experiment, state, space).returns for experiment in experiments]
    assert returns[0] == returns[1] == evaluate(experiments[1], state, space).returns
    assert returns[0] != evaluate(experiments[0], plain, space).returns
    again = msgpacked(state)
    assert evaluate(experiments[0], again, space).returns == returns[0]


def msgpacked(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as the file of a policy gives it back."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / STATE_FILE).write_bytes(packed_state(state))
        return read_state(Path(folder))


# --- where the extensions are put in ---------------------------------------------------------------------------------


def test_fast_takes_what_a_configuration_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = {"normalize_observations": 1, "normalize_rewards": 1, "vf_clip_range": 0.2}
    config = PPOConfig().environment("CartPole-v1").learners(learner_config_dict=told)
    quick = study.fast(config)
    assert (quick.env_runner_cls, quick.learner_class) == (BatchedEnvRunner, FusedPPOLearner)
    assert not caplog.records
    assert isinstance(quick.build_env_to_module_connector()[0], NormalizedObservations)
    assert config.learner_class is PPOTorchLearner
    own = study.fast(config.copy(copy_frozen=False).training(shuffle_batch_per_epoch=False, grad_clip_by="value"))
    kept = study.fast(config.copy(copy_frozen=False).learners(learner_config_dict={**told, "mine": 1}))
    assert own.learner_class in (FusedPPOLearner, ExtendedPPOTorchLearner)
    assert kept.learner_class is ExtendedPPOTorchLearner
    assert kept.env_runner_cls is not BatchedEnvRunner


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            lambda config: config.learners(learner_class=type("Own", (PPOTorchLearner,), {})),
            "needs RLlib's own learner",
        ),
        (lambda config: config.learners(num_learners=2), "needs one learner"),
        (lambda config: config.learners(learner_connector=lambda *_: []), "the learner has connectors of its own"),
        (lambda config: config.env_runners(env_to_module_connector=lambda *_: []), "the runners have connectors"),
        (lambda config: config.multi_agent(policies={"a", "b"}), "needs an environment of one agent"),
    ],
)
def test_what_extensions_do_not_go_together_with_is_refused(changes: Any, what: str) -> None:
    config = PPOConfig().environment("CartPole-v1")
    config.learners(learner_config_dict={"normalize_observations": 1, "normalize_rewards": 1})
    with pytest.raises(ValueError, match=what):
        install(changes(config))
