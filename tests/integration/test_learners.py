"""What our learner and extensions compute, against RLlib, Stable-Baselines3, PyTorch, and the formulas, by value."""

import copy
import itertools
import logging
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

import study
from study.errors import TrialError
from study.trial import configuration
from study.trial.configuration import set_learner
from study.trial.engine.extensions import ExtendedPPOTorchLearner, NormalizedObservations, ScaledRewards, install
from study.trial.engine.learning import fused_learner
from study.trial.engine.learning.fused_learner import FusedPPOLearner, TrainBatch, fused_obstacle
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.evaluation import evaluate, runner_of
from study.trial.experiment import Experiment, with_spaces
from study.trial.policy import STATE_FILE, packed_state, read_state
from tests.integration.test_env_runners import one
from tests.spaces import spec

NUMBERS = Box(-1.0, 1.0, (5,), np.float32)
CHOICE, CHOICES, VECTOR = Discrete(3), MultiDiscrete([2, 3]), Box(-1.0, 1.0, (2,), np.float32)
UNSHARED = {"vf_share_layers": False}
LENGTHS = (7, 1, 20, 5, 2)
CLIPPED = {"grad_clip": 0.5, "grad_clip_by": "global_norm"}
kinds = pytest.mark.parametrize("kind", [FusedPPOLearner, PPOTorchLearner])


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave the user's cache alone; threads that wait for each other are slow where the cores have other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(threads)


def configured(
    kind: type,
    actions: Any = CHOICE,
    *,
    observations: Any = NUMBERS,
    model: dict[str, Any] | None = None,
    told: dict[str, Any] | None = None,
    standardization: str = "steps",
    optimizer: str | None = None,
    seed: int | None = 3,
    **training: Any,
) -> PPOConfig:
    config = PPOConfig().environment(observation_space=observations, action_space=actions)
    config.learners(learner_class=kind).training(**{"lr": 1e-2, **training}).debugging(seed=seed)
    config.rl_module(model_config=DefaultModelConfig(**{"fcnet_hiddens": [16, 16], **(model or {})}))
    config.learners(learner_config_dict=told or {})
    config.standardization = standardization
    install(config)
    if optimizer is not None:
        config.optimizer = optimizer
    return config


def build(config: PPOConfig) -> Any:
    spaces = {DEFAULT_MODULE_ID: (config.observation_space, config.action_space)}
    learner = config.learner_class(config=config, module_spec=config.get_multi_rl_module_spec(spaces=spaces))
    learner.build()
    return learner


def fused(*arguments: Any, **options: Any) -> Any:
    return build(configured(FusedPPOLearner, *arguments, **options))


def episodes(
    actions: Any = CHOICE, *, lengths: tuple[int, ...] = LENGTHS, ends: str = "+-.+-", seed: int = 0
) -> list[SingleAgentEpisode]:
    """Return pieces of episodes, each of which ends by termination (+), truncation (-), or not at all (.)."""
    random = np.random.default_rng(seed)
    for space in (actions, NUMBERS):
        space.seed(seed)

    def stacked(space: Any, count: int) -> Any:
        return np.stack([space.sample() for _ in range(count + 1)])[:count]

    return [
        SingleAgentEpisode(
            observations=InfiniteLookbackBuffer(stacked(NUMBERS, length + 1), 0, NUMBERS),
            actions=InfiniteLookbackBuffer(stacked(actions, length), 0, actions),
            rewards=InfiniteLookbackBuffer(random.normal(size=length), 0),
            infos=InfiniteLookbackBuffer([{}] * (length + 1), 0),
            terminated=end == "+",
            truncated=end == "-",
            observation_space=NUMBERS,
            action_space=actions,
            len_lookback_buffer=0,
        )
        for end, length in zip(ends, lengths, strict=False)
    ]


def as_rllib_samples(learner: Any, fragments: list[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    """Return copies with what RLlib's runners add, by the learner's weights; RLlib's learner appends to them."""
    module = learner.module[DEFAULT_MODULE_ID]
    copies = copy.deepcopy(fragments)
    for episode in copies:
        own = torch.from_numpy(episode.observations.data[:-1])
        inputs = module.forward_exploration({Columns.OBS: own})[Columns.ACTION_DIST_INPUTS]
        policy = module.get_exploration_action_dist_cls().from_logits(inputs)
        outputs = {
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: policy.logp(torch.from_numpy(episode.actions.data)),
        }
        episode.extra_model_outputs |= {name: InfiniteLookbackBuffer(part.numpy(), 0) for name, part in outputs.items()}
    return copies


def update(learner: Any, fragments: list[SingleAgentEpisode], *, step: int = 0, **options: Any) -> dict[str, Any]:
    return values(learner.update(episodes=fragments, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: step}, **options))


def values(results: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{module}/{name}": stats.peek() if hasattr(stats, "peek") else stats
        for module, metrics in results.items()
        for name, stats in metrics.items()
    }


def weights(learner: Any) -> dict[str, torch.Tensor]:
    module = learner.module[DEFAULT_MODULE_ID].unwrapped()
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_close(first: Any, second: Any, *, atol: float = 1e-5, rtol: float = 1e-4) -> None:
    torch.testing.assert_close(weights(first), weights(second), rtol=rtol, atol=atol)


def assert_equal(first: Any, second: Any) -> None:
    assert_close(first, second, atol=0.0, rtol=0.0)


ALL = {
    "normalize_rewards": 1,
    "orthogonal_init": 1,
    "adam_epsilon": 1e-5,
    "vf_lr": 2e-2,
    "minibatch_advantages": 1,
    "vf_clip_range": 0.2,
    "clip_end_fraction": [0.1, 100],
}
LR_FALLS = [[0, 1e-2], [100, 1e-3]]
CASES: dict[str, dict[str, Any]] = {
    "discrete, schedules": {"model": UNSHARED, "lr": LR_FALLS, "entropy_coeff": [[0, 0.1], [100, 0.0]]},
    "discrete, shared": {"model": {"vf_share_layers": True}, "vf_loss_coeff": 0.3, "lr": 1e-3, **CLIPPED},
    "multidiscrete": {"actions": CHOICES, "entropy_coeff": 0.02, "model": {"fcnet_activation": "relu"}},
    "box": {"actions": VECTOR, "model": UNSHARED, "entropy_coeff": 0.02, "clip_param": 0.05},
    "free standard deviations": {"actions": VECTOR, "model": {**UNSHARED, "free_log_std": True}, "lr": 3e-2},
    "no divergence": {"use_kl_loss": False, "lr": 3e-2, "model": {"fcnet_activation": "linear"}},
    "strong divergence": {"kl_coeff": 3.0, "lr": 3e-2, "vf_clip_param": 0.3, "model": {"fcnet_activation": "silu"}},
    "extensions": {"told": ALL, "actions": VECTOR, "model": UNSHARED, "entropy_coeff": 0.02, **CLIPPED},
    "two falling rates": {"told": {"vf_lr": 3e-3, "vf_clip_range": 0.05}, "model": UNSHARED, "lr": LR_FALLS},
}
SAME_METRICS = (
    "policy_loss",
    "vf_loss",
    "vf_loss_unclipped",
    "entropy",
    "mean_kl_loss",
    "total_loss",
    "curr_kl_coeff",
    "curr_entropy_coeff",
    "default_optimizer_learning_rate",
    "weights_seq_no",
)


@pytest.mark.parametrize("case", CASES)
def test_updates_with_the_full_batch_equal_rllibs(case: str) -> None:
    options = {"standardization": "rllib", **CASES[case]}
    theirs, ours = build(configured(PPOTorchLearner, **options)), fused(**options)
    assert type(theirs) is (ExtendedPPOTorchLearner if options.get("told") else PPOTorchLearner)
    assert fused_obstacle(ours.config) is None
    assert_equal(theirs, ours)
    start = weights(ours)
    for step, epochs in ((0, 1), (40, 3)):
        fragments = episodes(options.get("actions", CHOICE), seed=step)
        expected = update(theirs, as_rllib_samples(theirs, fragments), step=step, num_epochs=epochs)
        got = update(ours, fragments, step=step, num_epochs=epochs)
        assert_close(ours, theirs)
        for name in SAME_METRICS:
            key = f"{DEFAULT_MODULE_ID}/{name}"
            if key in expected:  # RLlib has no divergence coefficient where there is no divergence
                assert got[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-5), key
        # Everything else that RLlib reports is there, but what its connectors say of themselves.
        assert {key for key in expected if "learner_connector" not in key} <= got.keys()
    assert any(not torch.equal(value, start[name]) for name, value in weights(ours).items())


def test_minibatches_are_rllibs_over_the_same_rows() -> None:
    """RLlib learns from our own batch, which has no rows to mask, in order and around the ends of epochs."""
    theirs, ours = build(configured(PPOTorchLearner, model=UNSHARED)), fused(model=UNSHARED)
    fragments = episodes()
    batch = ours._rows(TrainBatch.of(fragments))
    outputs, taken = torch.from_numpy(batch.old), torch.from_numpy(batch.actions[:, 0])
    columns = {
        Columns.OBS: torch.from_numpy(batch.observations),
        Columns.ACTIONS: taken,
        Columns.ACTION_DIST_INPUTS: outputs,
        Columns.ACTION_LOGP: torch.distributions.Categorical(logits=outputs).log_prob(taken),
        Postprocessing.ADVANTAGES: torch.from_numpy(batch.rest[:, 0]),
        Postprocessing.VALUE_TARGETS: torch.from_numpy(batch.rest[:, 1]),
    }
    loop = {"num_epochs": 3, "minibatch_size": 8, "shuffle_batch_per_epoch": False}
    rows = MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=len(taken))
    timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: 0}
    expected = values(theirs.update(batch=rows, timesteps=timesteps, **loop))
    got = update(ours, fragments, **loop)
    assert_close(ours, theirs, rtol=1e-3)
    for name in (*SAME_METRICS, "vf_explained_var", "num_module_steps_trained", "module_train_batch_size_mean"):
        key = f"{DEFAULT_MODULE_ID}/{name}"
        assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
    updates = {int(state["step"]) for state in ours.get_optimizer(DEFAULT_MODULE_ID).state.values()}
    assert updates == {math.ceil(3 * sum(LENGTHS) / 8)}
    assert got[f"{ALL_MODULES}/num_env_steps_trained_lifetime"] == sum(LENGTHS)


def test_advantages_are_standardised_over_environment_steps() -> None:
    moments = {}
    for standardization in ("steps", "rllib"):
        learner = fused(standardization=standardization)
        advantages = learner._rows(TrainBatch.of(episodes())).rest[:, 0].astype(np.float64)
        moments[standardization] = (advantages.mean(), advantages.std())
    assert moments["steps"] == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0, abs=1e-6))
    assert abs(moments["rllib"][0]) > 0.01  # these fragments are short: RLlib's rows are an eighth of all


def shuffled(learner: Any) -> Any:
    for step in range(2):
        update(learner, episodes(seed=step), num_epochs=3, minibatch_size=8, shuffle_batch_per_epoch=True)
    return learner


def test_learning_depends_on_the_seed_and_on_nothing_else_in_the_process() -> None:
    first, second, *others = (fused(seed=seed) for seed in (3, 3, 4, None, None))
    for other in others:
        other.module[DEFAULT_MODULE_ID].load_state_dict(weights(first))
    shuffled(first)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002 (the global generators are what is disturbed)
    shuffled(second)
    assert_equal(first, second)
    for learners in itertools.combinations([first, *map(shuffled, others)], 2):
        with pytest.raises(AssertionError):
            assert_equal(*learners)


def test_only_observations_actions_and_rewards_of_steps_count() -> None:
    """Whatever stands before them in the buffers, which are read-only, and beside them in the episodes."""
    first, second, lookback = fused(), fused(), 3
    update(first, episodes(), num_epochs=2)
    longer = [*episodes(), *episodes(lengths=(0,))]
    for episode in longer:
        for name in ("observations", "actions", "rewards"):
            buffer = getattr(episode, name)
            data = np.concatenate([np.full((lookback, *buffer.data.shape[1:]), 77, buffer.data.dtype), buffer.data])
            data.flags.writeable = False
            setattr(episode, name, InfiniteLookbackBuffer(data, lookback, buffer.space))
        episode.extra_model_outputs = {Columns.ACTION_LOGP: InfiniteLookbackBuffer(np.zeros(len(episode)), 0)}
    update(second, longer, num_epochs=2)
    assert_equal(first, second)


@pytest.mark.parametrize(
    ("vf_clip_param", "at", "applied", "said"),
    [
        pytest.param(math.inf, 15, None, "1 of 3 minibatches", id="a loss that is not finite is left out"),
        pytest.param(10.0, 15, None, "1 of 3 minibatches", id="a gradient that is not finite is left out"),
        pytest.param(10.0, 30, 2, "1 of 3 minibatches", id="the last gradient that is not finite is left out"),
    ],
)
def test_what_is_not_finite_is_not_applied(
    vf_clip_param: float, at: int, applied: int | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One reward whose square is infinite in single precision: so is the norm, and the loss unless it is clipped."""
    options = {"standardization": "none", "gamma": 0.0, "lambda_": 0.0, "vf_clip_param": vf_clip_param}
    learner, untouched = fused(**options), fused(**options)
    fragments = episodes()
    ends = np.cumsum(LENGTHS)
    number = int(np.searchsorted(ends, at, side="right"))
    fragments[number].rewards.data[at - ends[number]] = 1e30
    with caplog.at_level(logging.WARNING):
        results = update(learner, fragments, num_epochs=1, minibatch_size=12)
    assert said in caplog.text
    assert math.isfinite(results[f"{DEFAULT_MODULE_ID}/total_loss"])
    assert all(torch.isfinite(value).all() for value in weights(learner).values())
    if applied is not None:  # in order: what is left is what the minibatches before would have taught
        update(untouched, episodes(), num_epochs=1, minibatch_size=12, num_total_minibatches=applied)
        assert_equal(learner, untouched)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": Dict({"a": CHOICE})}, "the action space is Dict"),
        ({"actions": Box(0, 3, (2,), np.int64)}, "the action space is Box"),
        ({"observations": Box(-1.0, 1.0, (8, 8, 2), np.float32), "model": {"conv_filters": [[4, 3, 2]]}}, "no vectors"),
        ({"grad_clip": 0.1, "grad_clip_by": "value"}, "grad_clip_by is value"),
        ({"model": {"fcnet_use_layernorm": True}}, "layer normalisation"),
        ({"model": {"fcnet_activation": "elu"}}, "an activation is none of relu"),
        ({}, None),
    ],
)
def test_what_it_cannot_serve_is_said(changes: dict[str, Any], words: str | None) -> None:
    reason = fused_obstacle(configured(PPOTorchLearner, **changes))
    assert reason is None if words is None else words in str(reason)


def test_where_jax_is_in_other_use_rllibs_own_serves_unless_the_fused_one_is_asked_for(monkeypatch: Any) -> None:
    def chosen(asked: str) -> tuple[type, str | None]:
        tried = configured(PPOTorchLearner)
        tried.fallbacks = []
        reason = set_learner(tried, "", asked=asked)
        return tried.learner_class, reason

    for module in (fused_learner, configuration):
        monkeypatch.setattr(module, "jax_obstacle", lambda: "JAX is in use")
    assert chosen("auto") == (PPOTorchLearner, "JAX is in use")
    for attempt in (lambda: chosen("fused"), fused):
        with pytest.raises(TrialError, match="JAX is in use"):
            attempt()


@pytest.mark.parametrize("home", ["/dev/null/no", "open to all"])
def test_without_a_safe_cache_folder_programs_are_not_kept(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import jax

    monkeypatch.setattr(jax.config, "update", lambda *values: pytest.fail(str(values)))
    monkeypatch.setenv("XDG_CACHE_HOME", home if home.startswith("/") else str(tmp_path))
    (tmp_path / "runner-scaling-study" / "compiled").mkdir(parents=True)
    (tmp_path / "runner-scaling-study" / "compiled").chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert fused().jax_platform == "cpu"
    assert "cannot be kept" in caplog.text


def test_weights_and_the_optimizer_s_state_are_where_rllib_looks_for_them() -> None:
    options = {"use_kl_loss": False, "standardization": "rllib"}  # RLlib's state lacks its coefficient
    first = fused(**options)
    update(first, episodes(), num_epochs=4, minibatch_size=8, shuffle_batch_per_epoch=True)
    state = pickle.dumps(first.get_state())
    again, theirs = fused(seed=9, **options), build(configured(PPOTorchLearner, seed=9, **options))
    for learner in (again, theirs):
        learner.set_state(pickle.loads(state))
    fragments = episodes(seed=1)
    update(theirs, as_rllib_samples(theirs, fragments), num_epochs=3)
    for learner in (first, again):  # in order: the generator of permutations is not restored
        update(learner, fragments, num_epochs=3)
    assert_equal(first, again)
    assert_close(first, theirs)


def test_an_update_of_a2c_is_the_one_written_out() -> None:
    """Returns bootstrapped where an episode goes on, their difference to the value as advantage, one RMSprop step."""
    gamma, entropy, of_value, lr = 0.9, 0.03, 0.4, 7e-4
    options = {"lr": lr, "gamma": gamma, "lambda_": 1.0, "clip_param": 1.0, "vf_clip_param": math.inf, "kl_coeff": 0.0}
    options |= {"entropy_coeff": entropy, "vf_loss_coeff": of_value, **CLIPPED}
    learner, other = (fused(standardization="none", optimizer="rmsprop", **options) for _ in range(2))
    module = other.module[DEFAULT_MODULE_ID].unwrapped()
    optimizer = torch.optim.RMSprop(module.parameters(), lr=lr, alpha=0.99, eps=1e-5)
    for number in range(3):
        fragments = episodes(seed=number)
        returns: list[float] = []
        for episode in fragments:
            with torch.no_grad():
                last = module.compute_values({Columns.OBS: torch.from_numpy(episode.observations.data[-1:])})
            following, backwards = 0.0 if episode.is_terminated else float(last), []
            for reward in episode.rewards.data[::-1]:
                following = reward + gamma * following
                backwards.append(following)
            returns += backwards[::-1]
        rows = {Columns.OBS: torch.from_numpy(np.concatenate([each.observations.data[:-1] for each in fragments]))}
        taken = torch.from_numpy(np.concatenate([each.actions.data for each in fragments]))
        targets, values = torch.tensor(returns, dtype=torch.float32), module.compute_values(rows)
        policy = torch.distributions.Categorical(logits=module._forward_train(rows)[Columns.ACTION_DIST_INPUTS])
        loss = -(policy.log_prob(taken) * (targets - values).detach()).mean()
        loss = loss + of_value * (values - targets).square().mean() - entropy * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIPPED["grad_clip"])
        optimizer.step()
        learner.update(episodes=fragments, timesteps={}, num_epochs=1, minibatch_size=len(taken))
        assert_close(learner, other, atol=1e-6)


# --- Stable-Baselines3 on the same rows ------------------------------------------------------------------------------

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.common.utils import LinearSchedule  # noqa: E402
from stable_baselines3.common.vec_env import VecEnv, VecNormalize  # noqa: E402

GAMMA, LANES, STEPS = 0.97, 3, 12
PIECES = ((5, 7), (12,), (3, 4, 5))
"""Lengths of the episodes' pieces in each lane; the last one of a lane goes on."""
NETWORK = {**UNSHARED, "fcnet_activation": "tanh"}
PUBLISHED = {"clip_param": 0.1, "vf_clip_param": math.inf, "vf_loss_coeff": 0.5, "use_kl_loss": False, "lambda_": 0.9}


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


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("kind", "lanes"), [("batched", 3), ("stock", 1)])
def test_a_runner_normalises_observations_as_vec_normalize_does(kind: str, lanes: int) -> None:
    """What this environment shows does not depend on what is done. RLlib's runner resets its lanes behind that."""
    options = {"lanes": lanes, "batch": 150, "environment__id": "tests.environments:Plain"}
    plain, runner = (one(kind, **options, parameters__normalize_observations=each) for each in (0, 1))
    steps = 150 // lanes
    observations, dones = np.zeros((steps + 1, lanes, 3), np.float32), np.zeros((steps, lanes), bool)
    finals, places, taken = {}, [], 0
    for episode in plain.sample():  # lane by lane
        lane, start = divmod(taken, steps)
        taken, end = taken + len(episode), start + len(episode)
        places.append((lane, start, end))
        observations[start : end + 1, lane] = episode.get_observations()
        if episode.is_done:
            dones[end - 1, lane], finals[end, lane] = True, episode.get_observations()[-1]
    assert len(finals) >= 6
    wrapper = VecNormalize(Played(observations, np.ones((steps, lanes)), dones, finals), gamma=GAMMA)
    rows, ends = [wrapper.reset()], {}
    for step in range(1, steps + 1):
        row, _, _, infos = wrapper.step(np.zeros(lanes))
        rows.append(row)
        ends |= {(step, lane): info["terminal_observation"] for lane, info in enumerate(infos) if info}
    for episode, (lane, start, end) in zip(runner.sample(), places, strict=True):
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
    wrapper = VecNormalize(Played(np.zeros((2 * STEPS + 1, LANES, 4), np.float32), rewards, dones, {}), gamma=GAMMA)
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


def learn(given: Any, episodes: list[SingleAgentEpisode], **options: Any) -> dict[str, Any]:
    rllib = not isinstance(given, FusedPPOLearner)
    return update(given, as_rllib_samples(given, episodes) if rllib else copy.deepcopy(episodes), **options)


@kinds
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
    got = {name: value for name, value in weights(ours).items() if name in expected}
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert max(float((value - before[name]).abs().max()) for name, value in got.items()) > 1e-2


@kinds
@pytest.mark.parametrize("reach", [0.02, 0.2])
def test_the_value_loss_is_clipped_as_cleanrl_does(kind: type, reach: float) -> None:
    """Stable-Baselines3 takes the clipped value alone; PPO2 and CleanRL take the larger error, computed here."""
    ours = learner(kind, told={"vf_clip_range": reach, "minibatch_advantages": 1}, lr=3e-2)
    module, episodes = copy.deepcopy(ours.module[DEFAULT_MODULE_ID].unwrapped()), fragments(CHOICE)
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
    found = learn(ours, episodes, num_epochs=3)
    for name, value in module.state_dict().items():
        if name.startswith(("vf", "encoder.critic")):
            torch.testing.assert_close(weights(ours)[name], value, rtol=0, atol=1e-5, msg=name)
    assert found[f"{DEFAULT_MODULE_ID}/vf_loss"] > found[f"{DEFAULT_MODULE_ID}/vf_loss_unclipped"] + 1e-4


@kinds
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


@kinds
def test_a_checkpoint_holds_all_that_the_next_update_depends_on(kind: type) -> None:
    options = {"told": ALL, "lr": LR_FALLS, **CLIPPED}
    first, second = (learner(kind, VECTOR, **options) for _ in range(2))
    learn(first, fragments(VECTOR), step=36, num_epochs=2)
    second.set_state(first.get_state())
    assert_equal(first, second)
    assert second.clip_share == first.clip_share < 1
    for each in (first, second):
        learn(each, fragments(VECTOR, seed=1), step=72, num_epochs=2)
    assert_close(first, second, atol=1e-7)
    assert type(first) in (FusedPPOLearner, ExtendedPPOTorchLearner)


def test_evaluations_use_the_frozen_statistics_by_our_lanes_and_by_rllibs_runner(tmp_path: Path) -> None:
    space = spec(environment__id="CartPole-v1", evaluation__episodes=5)
    config = with_spaces(PPOConfig().environment("CartPole-v1").debugging(seed=3))
    statistics = NormalizedObservations(config.observation_space, config.action_space)
    statistics.update(np.random.default_rng(1).normal([0.5, 0.0, 0.1, 0.0], [2.0, 0.5, 0.05, 1.0], (50, 4)))
    torch.manual_seed(5)
    with runner_of(config) as runner:
        for parameter in runner.module.parameters():
            parameter.data *= 3
        plain = runner.get_state() | {"rl_module": {DEFAULT_MODULE_ID: runner.module.get_state()}}
    state = plain | {"env_to_module_connector": {"NormalizedObservations": statistics.get_state()}}
    experiments = [Experiment(config=config, runner_obstacle=obstacle) for obstacle in ("", "RLlib's runner plays")]
    returns = [evaluate(experiment, state, space).returns for experiment in experiments]
    assert returns[0] == returns[1] == evaluate(experiments[1], state, space).returns
    assert returns[0] != evaluate(experiments[0], plain, space).returns
    (tmp_path / STATE_FILE).write_bytes(packed_state(state))
    assert evaluate(experiments[0], read_state(tmp_path), space).returns == returns[0]


def test_fast_takes_what_a_configuration_is_told() -> None:
    told = {"normalize_observations": 1, "normalize_rewards": 1, "vf_clip_range": 0.2}
    config = PPOConfig().environment("CartPole-v1").learners(learner_config_dict=told)
    quick = study.fast(config)
    assert (quick.env_runner_cls, quick.learner_class) == (BatchedEnvRunner, FusedPPOLearner)
    assert isinstance(quick.build_env_to_module_connector()[0], NormalizedObservations)
    kept = study.fast(config.copy(copy_frozen=False).learners(learner_config_dict={**told, "mine": 1}))
    assert kept.learner_class is ExtendedPPOTorchLearner
    assert kept.env_runner_cls is not BatchedEnvRunner


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
