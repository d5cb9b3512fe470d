"""The fused learner does what the lean one does, minibatch by minibatch, and what RLlib's does on whole batches."""

import copy
import logging
import math
import pickle

import jax
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from study.errors import TrialError
from study.trial.engine.learning import fused_learner, fused_program
from study.trial.engine.learning.encoders import NORMALIZE, StudyCatalog
from study.trial.engine.learning.fused_learner import FusedPPOLearner, fused_obstacle, fused_or_lean
from study.trial.engine.learning.lean_learner import LeanPPOLearner
from tests.integration.test_lean_learner import (
    CASES,
    CHOICE,
    IMAGES,
    NESTED,
    NUMBERS,
    SAME_METRICS,
    UNSHARED,
    Nested,
    as_rllib_samples,
    assert_equal,
    build,
    configured,
    episodes,
    one_thread,
    update,
    values,
    weights,
)

pytestmark = pytest.mark.minutes  # most of it is compiling
__all__ = ["one_thread"]
NOT_SERVED = ("images", "another module", "clipped by norm", "clipped by value")
SERVED = [case for case in CASES if case not in NOT_SERVED]
MINIBATCHES = {"num_epochs": 4, "minibatch_size": 8, "shuffle_batch_per_epoch": True}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Leave the user's cache alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def fused(*arguments, **options):
    return build(configured(FusedPPOLearner, *arguments, **options))


def assert_close(first, second, *, atol):
    for name, value in weights(first).items():
        torch.testing.assert_close(value, weights(second)[name], rtol=1e-4, atol=atol, msg=name)


@pytest.mark.parametrize("case", SERVED)
def test_updates_with_the_full_batch_equal_rllibs(case):
    options = {"standardization": "rllib", **CASES[case]}
    theirs, ours = build(configured(PPOTorchLearner, **options)), fused(**options)
    for step, epochs in ((0, 1), (40, 3)):
        fragments = episodes(options.get("actions", CHOICE), options.get("observations", NUMBERS), seed=step)
        expected = update(theirs, as_rllib_samples(theirs, fragments), step=step, num_epochs=epochs)
        got = update(ours, fragments, step=step, num_epochs=epochs)
        assert_close(ours, theirs, atol=1e-5)
        for name in SAME_METRICS:
            key = f"{DEFAULT_MODULE_ID}/{name}"
            if key in expected:
                assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("case", SERVED)
def test_shuffled_minibatches_are_those_of_the_lean_learner(case):
    options = CASES[case]
    lean, ours = build(configured(LeanPPOLearner, **options)), fused(**options)
    start = weights(ours)
    for seed in range(2):  # differences of last bits grow from one update to the next
        fragments = episodes(options.get("actions", CHOICE), options.get("observations", NUMBERS), seed=seed)
        expected = update(lean, copy.deepcopy(fragments), step=30 * seed, **MINIBATCHES)
        got = update(ours, fragments, step=30 * seed, **MINIBATCHES)
    assert_close(ours, lean, atol=1e-4)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, float) and "throughput" not in key:
            assert got[key] == pytest.approx(value, rel=2e-3, abs=1e-4, nan_ok=True), key
    assert any(not torch.equal(value, start[name]) for name, value in weights(ours).items())


def test_normalised_observations_are_what_the_network_sees():
    options = {"model": {**UNSHARED}}
    built = []
    for kind in (LeanPPOLearner, FusedPPOLearner):
        config = configured(kind, **options)
        module_class = config.get_default_rl_module_spec().module_class
        model = {**config.model_config, NORMALIZE: True}
        config.rl_module(model_config=model)
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, catalog_class=StudyCatalog))
        assert fused_obstacle(config) is None
        built.append(build(config))
    for seed in range(3):
        for learner in built:
            update(learner, episodes(seed=seed), **MINIBATCHES)
    assert_close(*built, atol=1e-5)


def test_weights_and_adam_s_state_are_where_rllib_looks_for_them():
    without = {"use_kl_loss": False}  # RLlib's state lacks its coefficient
    first = fused(**without)
    update(first, episodes(), **MINIBATCHES)
    state = pickle.loads(pickle.dumps(first.get_state()))
    restored = [fused(seed=9, **without), build(configured(LeanPPOLearner, seed=9, **without))]
    for learner in (first, *restored):
        if learner is not first:
            learner.set_state(state)
        update(learner, episodes(seed=1), num_epochs=3)  # in order: the generator of permutations is not restored
    assert_equal(first, restored[0])
    assert_close(first, restored[1], atol=1e-5)


def test_an_update_that_diverges_ends_and_leaves_the_weights(caplog):
    ours = fused()
    fragments = episodes()
    fragments[0].rewards.data[0] = np.inf
    before = weights(ours)
    with caplog.at_level(logging.WARNING):
        got = values(ours.update(episodes=fragments, timesteps={"num_env_steps_sampled_lifetime": 0}, **MINIBATCHES))
    assert not math.isfinite(got[f"{DEFAULT_MODULE_ID}/total_loss"])
    assert "1 of 1 minibatches had a gradient that is not finite" in caplog.text
    for name, value in weights(ours).items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"observations": IMAGES, "model": {"conv_filters": [[4, 3, 2], [4, 3, 2]]}}, "no vectors"),
        ({"observations": NESTED, "module": Nested}, "no vectors"),
        ({"grad_clip": 0.1, "grad_clip_by": "value"}, "grad_clip_by is value"),
        ({"use_critic": False}, "use_critic is off"),
    ],
)
def test_what_it_cannot_serve_is_said(options, reason):
    assert reason in fused_obstacle(configured(PPOTorchLearner, **options))


@pytest.mark.parametrize("rest", [{"num_learners": 2}, {"grad_clip": 0.1, "grad_clip_by": "value"}])
def test_what_it_cannot_serve_is_not_built(rest):
    config = configured(FusedPPOLearner)
    for name, value in rest.items():
        setattr(config, name, value)
    with pytest.raises(TrialError) as caught:
        build(config)
    assert caught.value.code == "fused-cannot-serve"


@pytest.mark.parametrize("insists", [True, False])
def test_where_jax_is_in_other_use_the_lean_one_serves_unless_the_fused_one_is_asked_for(insists, monkeypatch):
    monkeypatch.setattr(fused_learner, "jax_obstacle", lambda: "JAX is in use")
    fallbacks = []
    if insists:
        with pytest.raises(TrialError) as caught:
            fused_or_lean(configured(PPOTorchLearner), "fused", fallbacks)
        assert (caught.value.code, caught.value.got) == ("fused-cannot-serve", "JAX is in use")
        with pytest.raises(TrialError):
            fused()
    else:
        assert fused_or_lean(configured(PPOTorchLearner), "auto", fallbacks) is LeanPPOLearner
        assert fallbacks == ["learner: the lean learner instead of the fused one: JAX is in use"]


@pytest.mark.parametrize("home", ["cannot be made", "is unknown", "is open to all"])
def test_without_a_safe_cache_folder_programs_are_not_kept(home, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fused_program, "use_cache", lambda folder: pytest.fail(str(folder)))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no" if home == "cannot be made" else str(tmp_path))
    if home == "is unknown":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(fused_learner.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    (tmp_path / "runner-scaling-study" / "compiled").mkdir(parents=True)
    (tmp_path / "runner-scaling-study" / "compiled").chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert fused().jax_platform == "cpu"
    assert "cannot be kept" in caplog.text


def test_double_precision_of_other_code_does_not_reach_it():
    with jax.enable_x64(True):
        ours = fused()
        update(ours, episodes(), **MINIBATCHES)
    assert all(value.dtype is not torch.float64 for value in weights(ours).values())


def test_rows_and_minibatches_are_padded_to_few_sizes():
    sizes = [fused_program.padded(length) for length in range(1, 10_000)]
    assert all(size >= length for length, size in enumerate(sizes, 1))
    assert all(size <= 1.5 * length for length, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 30
