"""What our learner computes, against RLlib, PyTorch, and the formulas, by value."""

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

from study.errors import TrialError
from study.trial import configuration
from study.trial.configuration import set_learner
from study.trial.engine.extensions import ExtendedPPOTorchLearner, install
from study.trial.engine.learning import fused_learner
from study.trial.engine.learning.fused_learner import FusedPPOLearner, TrainBatch, fused_obstacle

NUMBERS = Box(-1.0, 1.0, (5,), np.float32)
CHOICE, CHOICES, VECTOR = Discrete(3), MultiDiscrete([2, 3]), Box(-1.0, 1.0, (2,), np.float32)
UNSHARED = {"vf_share_layers": False}
LENGTHS = (7, 1, 20, 5, 2)
CLIPPED = {"grad_clip": 0.5, "grad_clip_by": "global_norm"}
KINDS = (FusedPPOLearner, PPOTorchLearner)
kinds = pytest.mark.parametrize("kind", KINDS)


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
    samples = fragments if isinstance(learner, FusedPPOLearner) else as_rllib_samples(learner, fragments)
    return values(learner.update(episodes=samples, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: step}, **options))


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
    "shared, no divergence": {
        **{"model": {"vf_share_layers": True, "fcnet_activation": "linear"}, "use_kl_loss": False},
        **{"vf_loss_coeff": 0.3, **CLIPPED},
    },
    "multidiscrete": {"actions": CHOICES, "entropy_coeff": 0.02, "model": {"fcnet_activation": "relu"}},
    "box": {"actions": VECTOR, "model": UNSHARED, "entropy_coeff": 0.02, "clip_param": 0.05},
    "free standard deviations": {"actions": VECTOR, "model": {**UNSHARED, "free_log_std": True}, "lr": 3e-2},
    "strong divergence": {"kl_coeff": 3.0, "lr": 3e-2, "vf_clip_param": 0.3, "model": {"fcnet_activation": "silu"}},
    "extensions": {
        **{"told": ALL, "actions": VECTOR, "model": UNSHARED, "entropy_coeff": 0.02},
        **{"lr": LR_FALLS, **CLIPPED},
    },
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
    for step in (0, 40):
        fragments = episodes(options.get("actions", CHOICE), seed=step)
        expected = update(theirs, fragments, step=step, num_epochs=3)
        got = update(ours, fragments, step=step, num_epochs=3)
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
    first, second, *others = (fused(seed=seed, model=UNSHARED) for seed in (3, 3, 4, None, None))
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
    update(first, episodes(), num_epochs=1, minibatch_size=12)
    longer = [*episodes(), *episodes(lengths=(0,))]
    for episode in longer:
        for name in ("observations", "actions", "rewards"):
            buffer = getattr(episode, name)
            data = np.concatenate([np.full((lookback, *buffer.data.shape[1:]), 77, buffer.data.dtype), buffer.data])
            data.flags.writeable = False
            setattr(episode, name, InfiniteLookbackBuffer(data, lookback, buffer.space))
        episode.extra_model_outputs = {Columns.ACTION_LOGP: InfiniteLookbackBuffer(np.zeros(len(episode)), 0)}
    update(second, longer, num_epochs=1, minibatch_size=12)
    assert_equal(first, second)


@pytest.mark.parametrize(
    ("vf_clip_param", "at", "applied"),
    [
        pytest.param(math.inf, 15, None, id="a loss that is not finite is left out"),
        pytest.param(10.0, 15, None, id="a gradient that is not finite is left out"),
        pytest.param(10.0, 30, 2, id="the last gradient that is not finite is left out"),
    ],
)
def test_what_is_not_finite_is_not_applied(
    vf_clip_param: float, at: int, applied: int | None, caplog: pytest.LogCaptureFixture
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
    assert "1 of 3 minibatches" in caplog.text
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
    ],
)
def test_what_it_cannot_serve_is_said(changes: dict[str, Any], words: str) -> None:
    assert words in str(fused_obstacle(configured(PPOTorchLearner, **changes)))


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
        fused()
    assert "cannot be kept" in caplog.text


@kinds
@pytest.mark.parametrize("told", [{}, ALL], ids=["plain", "extensions"])
def test_a_checkpoint_of_either_learner_holds_all_that_the_next_update_of_each_depends_on(
    kind: type, told: dict[str, Any]
) -> None:
    # RLlib's state lacks its coefficient of the divergence.
    options = {"told": told, "lr": LR_FALLS, "use_kl_loss": False, "standardization": "rllib", **CLIPPED}
    first = build(configured(kind, VECTOR, model=UNSHARED, **options))
    update(first, episodes(VECTOR), step=36, num_epochs=2)
    state = pickle.dumps(first.get_state())
    others = [build(configured(other, VECTOR, model=UNSHARED, seed=9, **options)) for other in KINDS]
    for other in others:
        other.set_state(pickle.loads(state))
        assert_equal(first, other)
        assert getattr(other, "clip_share", 1.0) == getattr(first, "clip_share", 1.0)
    for each in (first, *others):
        update(each, episodes(VECTOR, seed=1), step=72, num_epochs=2)
        assert_close(first, each)


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
