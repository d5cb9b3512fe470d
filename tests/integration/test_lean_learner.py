"""The lean learner does what RLlib's does, on the rows it says, and whatever the process around it does."""

import copy
import logging
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import tree
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from ray.rllib.utils.torch_utils import explained_variance

from study.trial.engine.learning import lean_learner
from study.trial.engine.learning.advantages import generalised_advantages, phantom_advantages
from study.trial.engine.learning.batches import gather_fragments, minibatch_indices
from study.trial.engine.learning.lean_learner import LeanPPOLearner, lean_obstacle

NUMBERS = Box(-1.0, 1.0, (5,), np.float32)
IMAGES = Box(-1.0, 1.0, (8, 8, 2), np.float32)
NESTED = Dict({"a": Box(-1.0, 1.0, (3,), np.float32), "b": Box(-1.0, 1.0, (2,), np.float64)})
CHOICE, CHOICES, VECTOR = Discrete(3), MultiDiscrete([2, 3]), Box(-1.0, 1.0, (2,), np.float32)
UNSHARED = {"vf_share_layers": False}
LENGTHS = (7, 1, 20, 5, 2)


class Nested(TorchRLModule, ValueFunctionAPI):
    """A module of someone else, over a dictionary of observations."""

    def setup(self) -> None:
        self.body = torch.nn.Linear(5, 16)
        self.policy, self.value = torch.nn.Linear(16, 3), torch.nn.Linear(16, 1)

    def hidden(self, batch: dict[str, Any]) -> torch.Tensor:
        observations = batch[Columns.OBS]
        return torch.tanh(self.body(torch.cat([observations["a"], observations["b"]], -1)))

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(self.hidden(batch))}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self.value(self.hidden(batch)).squeeze(-1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow where the cores have other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def configured(
    kind: type,
    actions: Any = CHOICE,
    *,
    observations: Any = NUMBERS,
    model: dict[str, Any] | None = None,
    module: type | None = None,
    standardization: str = "steps",
    seed: int | None = 3,
    **training: Any,
) -> PPOConfig:
    config = PPOConfig().environment(observation_space=observations, action_space=actions)
    config.learners(learner_class=kind).training(**{"lr": 1e-2, **training}).debugging(seed=seed)
    config.rl_module(model_config=DefaultModelConfig(**{"fcnet_hiddens": [16, 16], **(model or {})}))
    if module is not None:
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module))
    config.standardization = standardization
    return config


def build(config: PPOConfig) -> Any:
    spaces = {DEFAULT_MODULE_ID: (config.observation_space, config.action_space)}
    learner = config.learner_class(config=config, module_spec=config.get_multi_rl_module_spec(spaces=spaces))
    learner.build()
    return learner


def lean(*arguments: Any, **options: Any) -> Any:
    return build(configured(LeanPPOLearner, *arguments, **options))


def episodes(
    actions: Any = CHOICE, observations: Any = NUMBERS, *, lengths: tuple[int, ...] = LENGTHS, seed: int = 0
) -> list[SingleAgentEpisode]:
    """Return fragments that end by termination, truncation, or not at all, in turn."""
    random = np.random.default_rng(seed)
    for space in (actions, observations):
        space.seed(seed)

    def stacked(space: Any, count: int) -> Any:
        samples = [space.sample() for _ in range(count + 1)]
        return tree.map_structure(lambda *parts: np.stack(parts)[:count], *samples)

    return [
        SingleAgentEpisode(
            observations=InfiniteLookbackBuffer(stacked(observations, length + 1), 0, observations),
            actions=InfiniteLookbackBuffer(stacked(actions, length), 0, actions),
            rewards=InfiniteLookbackBuffer(random.normal(size=length), 0),
            infos=InfiniteLookbackBuffer([{}] * (length + 1), 0),
            terminated=index % 3 == 0,
            truncated=index % 3 == 1,
            observation_space=observations,
            action_space=actions,
            len_lookback_buffer=0,
        )
        for index, length in enumerate(lengths)
    ]


def as_rllib_samples(learner: Any, fragments: list[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    """Return copies with what RLlib's runners add, by the learner's weights; RLlib's learner appends to them."""
    module = learner.module[DEFAULT_MODULE_ID]
    copies = copy.deepcopy(fragments)
    for episode in copies:
        own = tree.map_structure(lambda part: torch.from_numpy(part[:-1]).float(), episode.observations.data)
        inputs = module.forward_exploration({Columns.OBS: own})[Columns.ACTION_DIST_INPUTS]
        policy = module.get_exploration_action_dist_cls().from_logits(inputs)
        outputs = {
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: policy.logp(torch.from_numpy(episode.actions.data)),
        }
        episode.extra_model_outputs = {name: InfiniteLookbackBuffer(part.numpy(), 0) for name, part in outputs.items()}
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


def assert_equal(first: Any, second: Any) -> None:
    mine, other = weights(first), weights(second)
    assert mine.keys() == other.keys()
    assert not [name for name in mine if not torch.equal(mine[name], other[name])]


CASES: dict[str, dict[str, Any]] = {
    "discrete, unshared": {"model": UNSHARED, "entropy_coeff": 0.02, "lr": 3e-2},
    "discrete, shared": {"model": {"vf_share_layers": True}, "vf_loss_coeff": 0.3, "lr": 1e-3},
    "multidiscrete": {"actions": CHOICES, "entropy_coeff": 0.02, "model": {"fcnet_activation": "relu"}},
    "box": {"actions": VECTOR, "model": UNSHARED, "entropy_coeff": 0.02, "clip_param": 0.05},
    "free standard deviations": {"actions": VECTOR, "model": {**UNSHARED, "free_log_std": True}, "lr": 3e-2},
    "no divergence": {"use_kl_loss": False, "lr": 3e-2},
    "strong divergence": {"kl_coeff": 3.0, "lr": 3e-2, "model": UNSHARED},
    "errors clipped": {"vf_clip_param": 0.3},
    "clipped by global norm": {"grad_clip": 0.1, "grad_clip_by": "global_norm"},
    "clipped by norm": {"grad_clip": 0.1, "grad_clip_by": "norm", "model": UNSHARED},
    "clipped by value": {"grad_clip": 0.01, "grad_clip_by": "value"},
    "hardly clipped": {"grad_clip": 1e3, "grad_clip_by": "global_norm", "gamma": 0.5, "lambda_": 0.7},
    "schedules": {"lr": [[0, 1e-2], [100, 1e-3]], "entropy_coeff": [[0, 0.1], [100, 0.0]]},
    "images": {"observations": IMAGES, "model": {"conv_filters": [[4, 3, 2], [4, 3, 2]]}},
    "another module": {"observations": NESTED, "module": Nested},
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
    theirs, ours = build(configured(PPOTorchLearner, **options)), lean(**options)
    assert_equal(theirs, ours)
    start = weights(ours)
    for step, epochs in ((0, 1), (40, 3)):
        fragments = episodes(options.get("actions", CHOICE), options.get("observations", NUMBERS), seed=step)
        expected = update(theirs, as_rllib_samples(theirs, fragments), step=step, num_epochs=epochs)
        got = update(ours, fragments, step=step, num_epochs=epochs)
        for name, value in weights(ours).items():
            torch.testing.assert_close(value, weights(theirs)[name], rtol=1e-4, atol=2e-6, msg=f"{case}: {name}")
        for name in SAME_METRICS:
            key = f"{DEFAULT_MODULE_ID}/{name}"
            if key in expected:  # RLlib has no divergence coefficient where there is no divergence
                assert got[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
        # Everything else that RLlib reports is there, but what its connectors say of themselves.
        assert {key for key in expected if "learner_connector" not in key} <= got.keys()
    assert any(not torch.equal(value, start[name]) for name, value in weights(ours).items())


def test_the_divergence_coefficient_went_up_and_down() -> None:
    coefficients = {}
    for lr in (1e-1, 1e-6):
        learner = lean(lr=lr)
        coefficients[lr] = update(learner, episodes(), num_epochs=5)[f"{DEFAULT_MODULE_ID}/curr_kl_coeff"]
    assert coefficients == {1e-1: pytest.approx(0.3), 1e-6: pytest.approx(0.1)}


def test_the_explained_variance_is_rllibs_over_environment_steps() -> None:
    learner = lean(lr=1e-6)
    fragments = episodes()
    module = learner.module[DEFAULT_MODULE_ID]
    batch = learner._make_batch(gather_fragments(fragments), learner.config)
    with torch.no_grad():
        predicted = module.compute_values({Columns.OBS: batch.observations})
    got = update(learner, fragments, num_epochs=1)[f"{DEFAULT_MODULE_ID}/vf_explained_var"]
    assert got == pytest.approx(explained_variance(batch.targets, predicted).item(), rel=1e-4)


def test_minibatches_are_rllibs_over_the_same_rows() -> None:
    """RLlib learns from our own batch, which has no rows to mask, in order and around the ends of epochs."""
    theirs, ours = build(configured(PPOTorchLearner, model=UNSHARED)), lean(model=UNSHARED)
    fragments = episodes()
    batch = ours._make_batch(gather_fragments(fragments), ours.config)
    columns = {
        Columns.OBS: batch.observations,
        Columns.ACTIONS: batch.actions.squeeze(-1),
        Columns.ACTION_DIST_INPUTS: batch.old,
        Columns.ACTION_LOGP: batch.old_log_probs,
        Postprocessing.ADVANTAGES: batch.advantages,
        Postprocessing.VALUE_TARGETS: batch.targets,
    }
    loop = {"num_epochs": 3, "minibatch_size": 8, "shuffle_batch_per_epoch": False}
    rows = MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=len(batch))
    timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: 0}
    expected = values(theirs.update(batch=rows, timesteps=timesteps, **loop))
    got = update(ours, fragments, **loop)
    for name, value in weights(ours).items():
        torch.testing.assert_close(value, weights(theirs)[name], rtol=1e-3, atol=1e-5)
    for name in (*SAME_METRICS, "vf_explained_var", "num_module_steps_trained", "module_train_batch_size_mean"):
        key = f"{DEFAULT_MODULE_ID}/{name}"
        assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
    updates = {int(state["step"]) for state in ours.get_optimizer(DEFAULT_MODULE_ID).state.values()}
    assert updates == {math.ceil(3 * sum(LENGTHS) / 8)}
    assert got[f"{ALL_MODULES}/num_env_steps_trained"] == sum(LENGTHS)
    assert got[f"{ALL_MODULES}/num_env_steps_trained_lifetime"] == sum(LENGTHS)
    assert got[f"{DEFAULT_MODULE_ID}/num_module_steps_trained_lifetime"] == 8 * math.ceil(3 * sum(LENGTHS) / 8)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 4))
def test_in_order_minibatches_hold_the_rows_of_rllibs_iterator(steps: int, size: int, epochs: int) -> None:
    batch = MultiAgentBatch({"m": SampleBatch({"row": torch.arange(steps)})}, env_steps=steps)
    iterator = MiniBatchCyclicIterator(
        batch, num_epochs=epochs, minibatch_size=size, shuffle_batch_per_epoch=False, num_total_minibatches=0
    )
    expected = [minibatch["m"]["row"].tolist() for minibatch in iterator]
    count = math.ceil(epochs * steps / size)
    got = [index.tolist() for index in minibatch_indices(steps, size=size, count=count, generator=None)]
    assert got == expected


def test_every_epoch_is_shuffled_the_first_one_too() -> None:
    generator = torch.Generator().manual_seed(0)
    minibatches = [index.tolist() for index in minibatch_indices(10, size=4, count=10, generator=generator)]
    assert {len(index) for index in minibatches} == {4}
    rows = [row for index in minibatches for row in index]
    orders = [rows[start : start + 10] for start in range(0, 40, 10)]
    assert [sorted(order) for order in orders] == [list(range(10))] * 4
    assert len({tuple(order) for order in [*orders, list(range(10))]}) == 5


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_rllibs_phantom_rows_included(
    fragments: list[tuple[int, bool]], gamma: float, lambda_: float
) -> None:
    random = np.random.default_rng(0)
    lengths, terminated = map(np.array, zip(*fragments, strict=True))
    before, rewards = random.normal(size=(2, lengths.sum())).astype(np.float32).astype(np.float64)
    bootstrap = random.normal(size=len(lengths)).astype(np.float32).astype(np.float64)
    ends = np.cumsum(lengths)  # RLlib's row goes behind each fragment
    done = np.zeros(lengths.sum(), dtype=bool)
    done[ends - 1] = terminated
    cut = np.zeros(lengths.sum(), dtype=bool)
    cut[ends - 1] = ~terminated
    rows = np.insert(before, ends, bootstrap).astype(np.float32)
    expected = compute_value_targets(
        values=rows,
        rewards=np.insert(rewards, ends, 0.0).astype(np.float32),
        terminateds=np.insert(done, ends, False),
        truncateds=np.insert(cut, ends, False),
        gamma=gamma,
        lambda_=lambda_,
    )
    common = {"values": before, "bootstrap": bootstrap, "lengths": lengths, "gamma": gamma, "lambda_": lambda_}
    own = generalised_advantages(**common, rewards=rewards, terminated=terminated)
    phantoms = phantom_advantages(**common, advantages=own)
    got = np.insert(own + before, ends, phantoms + bootstrap)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_advantages_are_standardised_over_environment_steps() -> None:
    fragments = gather_fragments(episodes())
    moments = {}
    for standardization in ("steps", "rllib"):
        learner = lean(standardization=standardization)
        advantages = learner._make_batch(fragments, learner.config).advantages.double()
        moments[standardization] = (advantages.mean().item(), advantages.std(correction=0).item())
    assert moments["steps"] == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0, abs=1e-6))
    assert abs(moments["rllib"][0]) > 0.01  # these fragments are short: RLlib's rows are an eighth of all


def shuffled(learner: Any) -> Any:
    for step in range(2):
        update(learner, episodes(seed=step), num_epochs=3, minibatch_size=8, shuffle_batch_per_epoch=True)
    return learner


def test_learning_depends_on_the_seed_and_on_nothing_else_in_the_process() -> None:
    first, second, other = lean(seed=3), lean(seed=3), lean(seed=4)
    other.module[DEFAULT_MODULE_ID].load_state_dict(weights(first))
    shuffled(first)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002 (the global generators are what is disturbed)
    shuffled(second)
    shuffled(other)
    assert_equal(first, second)
    with pytest.raises(AssertionError):
        assert_equal(first, other)


def test_without_a_seed_two_learners_shuffle_differently() -> None:
    first, second = lean(seed=None), lean(seed=None)
    second.module[DEFAULT_MODULE_ID].load_state_dict(weights(first))
    with pytest.raises(AssertionError):
        assert_equal(shuffled(first), shuffled(second))


def strided(fragments: list[SingleAgentEpisode], lookback: int) -> list[SingleAgentEpisode]:
    """Return the same fragments as every second element of longer, read-only arrays, behind a lookback buffer."""

    def view(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        wide = np.full((len(part) + lookback, 2, *part.shape[1:]), 77, dtype=part.dtype)
        wide[lookback:, 1] = part
        wide.flags.writeable = False
        return wide[:, 1]

    copies = copy.deepcopy(fragments)
    for episode in copies:
        for name in ("observations", "actions", "rewards"):
            buffer = getattr(episode, name)
            setattr(episode, name, InfiniteLookbackBuffer(view(buffer.data), lookback, buffer.space))
        episode.extra_model_outputs = {Columns.ACTION_LOGP: InfiniteLookbackBuffer(np.zeros(len(episode)), 0)}
        assert len(episode) == len(episode.actions)
    return copies


@pytest.mark.parametrize("lookback", [0, 1, 3])
def test_only_observations_actions_and_rewards_count(lookback: int) -> None:
    first, second = lean(), lean()
    fragments = episodes()
    update(first, fragments, num_epochs=2)
    update(second, strided(fragments, lookback), num_epochs=2)
    assert_equal(first, second)


def test_episodes_are_left_as_they_are() -> None:
    fragments = episodes()
    update(lean(), fragments, num_epochs=2)
    for before, after in zip(episodes(), fragments, strict=True):
        assert len(before) == len(after)
        assert np.array_equal(before.observations.data, after.observations.data)
        assert (before.is_terminated, before.is_truncated) == (after.is_terminated, after.is_truncated)


def test_empty_fragments_are_left_out() -> None:
    first, second = lean(), lean()
    update(first, episodes(), num_epochs=2)
    update(second, [*episodes(), *episodes(lengths=(0,))], num_epochs=2)
    assert_equal(first, second)
    with pytest.raises(ValueError, match="at least one step"):
        update(lean(), episodes(lengths=(0,)))


def test_a_batch_in_pieces_is_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = lean(observations=IMAGES, model={"conv_filters": [[4, 3, 2], [4, 3, 2]]})
    fragments = gather_fragments(episodes(observations=IMAGES))
    whole = learner._make_batch(fragments, learner.config)
    monkeypatch.setattr(lean_learner, "_ROWS_PER_FORWARD", 4)
    pieces = learner._make_batch(fragments, learner.config)
    for name in ("observations", "old", "old_log_probs", "advantages", "targets"):
        torch.testing.assert_close(getattr(whole, name), getattr(pieces, name))


def test_a_loss_that_is_not_finite_is_reported_and_learns_nothing() -> None:
    learner = lean()
    fragments = episodes()
    fragments[0].rewards.data[3] = np.nan
    before = weights(learner)
    results = update(learner, fragments, num_epochs=2, minibatch_size=8, shuffle_batch_per_epoch=True)
    assert math.isnan(results[f"{DEFAULT_MODULE_ID}/total_loss"])
    assert math.isnan(results[f"{DEFAULT_MODULE_ID}/policy_loss"])
    for name, value in weights(learner).items():
        assert torch.equal(value, before[name])
    results = update(learner, episodes(), num_epochs=2)
    assert math.isfinite(results[f"{DEFAULT_MODULE_ID}/total_loss"])


def test_the_first_loss_that_is_not_finite_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, untouched = lean(), lean()
    calls, true_loss = [], learner._loss

    def poisoned(*arguments: Any) -> Any:
        calls.append(None)
        total, parts = true_loss(*arguments)
        return (total * math.nan if len(calls) == 2 else total), parts

    monkeypatch.setattr(learner, "_loss", poisoned)
    results = update(learner, episodes(), num_epochs=1, minibatch_size=12)
    assert (len(calls), math.isnan(results[f"{DEFAULT_MODULE_ID}/total_loss"])) == (2, True)
    update(untouched, episodes(), num_epochs=1, minibatch_size=12, num_total_minibatches=1)
    assert_equal(learner, untouched)


def test_a_gradient_that_is_not_finite_is_not_applied(caplog: pytest.LogCaptureFixture) -> None:
    learner, untouched = lean(), lean()
    calls = []

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return gradient * (math.nan if len(calls) == 3 else 1.0)

    handle = next(iter(learner.module[DEFAULT_MODULE_ID].parameters())).register_hook(poison)
    with caplog.at_level(logging.WARNING):
        results = update(learner, episodes(), num_epochs=1, minibatch_size=12)
    assert "1 of 3 minibatches" in caplog.text
    assert math.isfinite(results[f"{DEFAULT_MODULE_ID}/total_loss"])
    # The third minibatch was the last one: what is left is what two would have taught.
    update(untouched, episodes(), num_epochs=1, minibatch_size=12, num_total_minibatches=2)
    assert_equal(learner, untouched)
    handle.remove()


@pytest.mark.parametrize(
    ("changes", "attributes", "words"),
    [
        ({"learner_connector": lambda *_: []}, {}, "learner_connector is set"),
        ({"use_critic": False}, {}, "use_critic is off"),
        ({"use_gae": False}, {}, "use_gae is off"),
        ({"actions": Dict({"a": CHOICE})}, {}, "the action space is Dict"),
        ({"actions": Box(0, 3, (2,), np.int64)}, {}, "the action space is Box"),
        ({}, {"torch_compile_learner": True}, "torch_compile_learner is on"),
        ({}, {"_torch_grad_scaler_class": torch.amp.GradScaler}, "_torch_grad_scaler_class is set"),
        ({}, {"_torch_lr_scheduler_classes": [object]}, "_torch_lr_scheduler_classes is set"),
        ({}, {"add_default_connectors_to_learner_pipeline": False}, "connectors_to_learner_pipeline is off"),
        ({}, {}, None),
    ],
)
def test_what_it_cannot_serve_is_said(changes: dict[str, Any], attributes: dict[str, Any], words: str | None) -> None:
    config = configured(PPOTorchLearner, **changes)
    assert attributes.keys() <= vars(config).keys()
    vars(config).update(attributes)
    reason = lean_obstacle(config)
    assert reason is None if words is None else words in str(reason)


def test_a_module_that_it_cannot_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="use PPOTorchLearner"):
        lean(model={"use_lstm": True})


@pytest.mark.parametrize(("num_learners", "cpus", "threads"), [(0, 2, 3), (1, 2, 2), (1, "auto", 1), (1, 0.5, 1)])
def test_only_a_learner_with_a_process_of_its_own_sets_threads(num_learners: int, cpus: Any, threads: int) -> None:
    torch.set_num_threads(3)
    config = configured(LeanPPOLearner)
    build(config.learners(num_learners=num_learners, num_cpus_per_learner=cpus))
    assert torch.get_num_threads() == threads


@pytest.fixture(scope="module", name="pair")
def make_pair(local_ray: None) -> Iterator[LearnerGroup]:
    config = configured(LeanPPOLearner, model=UNSHARED, grad_clip=0.1, seed=3)
    config.learners(num_learners=2, num_cpus_per_learner=1)
    spaces = {DEFAULT_MODULE_ID: (config.observation_space, config.action_space)}
    group = config.build_learner_group(spaces=spaces)
    yield group
    group.shutdown()


def from_each(group: LearnerGroup, function: Any) -> list[Any]:
    return [result.get() for result in group.foreach_learner(function)]


def state_of(learner: Any) -> dict[str, Any]:
    state = {name: value.numpy() for name, value in weights(learner).items()}
    return state | {"kl_coeff": learner.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID].item()}


def remote_update(group: LearnerGroup, fragments: list[SingleAgentEpisode], **options: Any) -> list[dict[str, Any]]:
    timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: 0}
    results = group.update(episodes=copy.deepcopy(fragments), timesteps=timesteps, **options)
    return [values(result) for result in results]


def test_two_learners_are_one_learner_on_the_union(pair: LearnerGroup) -> None:
    alone = lean(model=UNSHARED, grad_clip=0.1, seed=3)
    # RLlib makes shards of 19 and 19 steps, of 9 and 10, and of 12 and 12, and cuts no fragment in two.
    for step, lengths in enumerate([(9, 9, 6, 6, 4, 4), (6, 6, 3, 2, 2), (12, 12)]):
        fragments = episodes(lengths=lengths, seed=step)
        expected = update(alone, fragments, num_epochs=3)
        results = remote_update(pair, fragments, num_epochs=3)
        for name in (*SAME_METRICS, "vf_explained_var"):
            key = f"{DEFAULT_MODULE_ID}/{name}"
            assert results[0][key] == results[1][key], key
            assert results[0][key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
    first, second = from_each(pair, state_of)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    for name, value in state_of(alone).items():
        np.testing.assert_allclose(first[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_two_learners_agree_where_their_shards_differ(pair: LearnerGroup) -> None:
    before = from_each(pair, state_of)[0]
    options = [
        {"num_epochs": 2, "minibatch_size": 8, "shuffle_batch_per_epoch": True},
        {"num_epochs": 1, "minibatch_size": 40, "shuffle_batch_per_epoch": True},  # RLlib hands on 0 minibatches
        {"num_epochs": 2},
    ]
    for step, own in enumerate(options):
        results = remote_update(pair, episodes(lengths=(11, 7, 3, 2), seed=step), **own)
        assert [result[f"{DEFAULT_MODULE_ID}/mean_kl_loss"] for result in results[1:]] == [
            results[0][f"{DEFAULT_MODULE_ID}/mean_kl_loss"]
        ]
        first, second = from_each(pair, state_of)
        assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not all(np.array_equal(first[name], before[name]) for name in first)


def test_num_total_minibatches_is_honoured() -> None:
    learner = lean()
    update(learner, episodes(), num_epochs=5, minibatch_size=8, num_total_minibatches=2)
    assert {int(state["step"]) for state in learner.get_optimizer(DEFAULT_MODULE_ID).state.values()} == {2}


@pytest.mark.usefixtures("local_ray")
def test_rllibs_ppo_runs_with_it() -> None:
    env = gymnasium.make("CartPole-v1")
    config = configured(LeanPPOLearner, env.action_space, observations=env.observation_space)
    config.environment("CartPole-v1").env_runners(num_env_runners=0)
    config.training(train_batch_size_per_learner=200, minibatch_size=50, num_epochs=2)
    algorithm = config.build_algo()
    try:
        for iteration in (1, 2):
            result = algorithm.train()
            steps = result["env_runners"]["num_env_steps_sampled_lifetime"]
            assert steps == 200 * iteration
            assert result["learners"][ALL_MODULES]["num_env_steps_trained_lifetime"] == steps
            assert result["learners"][DEFAULT_MODULE_ID]["num_module_steps_trained_lifetime"] == 2 * steps
            assert math.isfinite(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
        runner = algorithm.env_runner_group.local_env_runner.module
        mine = weights(algorithm.learner_group._learner)
        assert all(torch.equal(value, mine[name]) for name, value in runner.state_dict().items())
    finally:
        algorithm.stop()
