"""Networks that RLlib lacks, normalised observations and rewards: by value, and in any layout of processes."""

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from study.trial.engine.learning.encoders import (
    LARGEST,
    ImpalaEncoder,
    ObservationNormalizer,
    RunningMoments,
    normalizers_of,
)
from study.trial.engine.sampling.acting import network_of
from study.trial.messages import TrialResult
from tests.integration import trials
from tests.integration.trials import built_config, of_kind, running, weights_of
from tests.needs import needs_qt


def test_moments_are_those_of_all_that_was_shown() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(5.0, 3.0, (size, 4)) for size in (7, 1, 300)]
    moments = RunningMoments((4,))
    for batch in batches:
        moments.add(torch.from_numpy(batch))
    together = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, together.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, together.var(axis=0), rtol=1e-12)
    assert float(moments.count) == 308


def test_observations_are_normalised_and_clipped() -> None:
    normalizer = ObservationNormalizer((2,))
    normalizer.add(torch.tensor([[5.0, 1.0], [1.0, -1.0]]))
    seen = normalizer(torch.tensor([[3.0, 0.0], [5.0, -1.0], [3.0, 1e6]]))
    np.testing.assert_allclose(seen, [[0.0, 0.0], [1.0, -1.0], [0.0, LARGEST]], atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_numpy_and_torch_see_the_same_normalised_policy(shared: bool) -> None:
    config = built_config(environment__normalize_observations=True, model__vf_share_layers=shared)
    module = config.get_rl_module_spec().build()
    assert len(list(normalizers_of(module))) == (1 if shared else 2)
    for normalizer in normalizers_of(module):
        normalizer.add(torch.stack([torch.full((4,), 3.0), torch.full((4,), -1.0)]))
    observations = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    with torch.inference_mode():
        expected = module._forward({Columns.OBS: torch.from_numpy(observations)})[Columns.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(network_of(module)(observations), expected, atol=1e-5)


@needs_qt
@pytest.mark.packages
def test_impalas_convolutions_are_those_of_the_paper() -> None:
    pytest.importorskip("envpool")
    space = {"environment__id": "procgen:coinrun", "model": {"conv_net": "impala", "vf_share_layers": True}}
    config = built_config(**space, parameters__train_batch_size=800)
    module = config.get_rl_module_spec().build()
    encoder = module.encoder.encoder
    assert isinstance(encoder, ImpalaEncoder)
    convolutions = [each for each in encoder.modules() if isinstance(each, torch.nn.Conv2d)]
    assert [each.out_channels for each in convolutions] == [16] * 5 + [32] * 10
    assert encoder.net[-2].in_features == 8 * 8 * 32  # 64 pixels, halved three times
    assert encoder.net[-2].out_features == 256


NORMALIZED = {"environment__normalize_observations": True, "environment__normalize_rewards": True}


def play(execution: str, processes: int = 1, **changes: Any) -> tuple[list[TrialResult], dict[str, Any]]:
    changes |= {"resources__emulation_processes": processes, "environment__id": "Acrobot-v1"}
    with running(execution=execution, **changes) as trial:
        return trials.play(trial), weights_of(trial)


@pytest.mark.minutes
@pytest.mark.usefixtures("local_ray")
def test_normalising_does_not_depend_on_who_steps_the_lanes() -> None:
    one, two = play("emulated", **NORMALIZED), play("emulated", 2, **NORMALIZED)
    moments = [name for name in one[1] if "normalizer" in name]
    assert len(moments) == 6  # mean, variance and count, of policy and value function
    for name, value in one[1].items():
        np.testing.assert_allclose(two[1][name], value, atol=1e-4)
    assert all(one[1][name] == 800 for name in moments if name.endswith("count"))
    returns, again = (of_kind(results, "evaluation")[-1].returns for results, _ in (one, two))
    assert returns == again


@pytest.mark.usefixtures("local_ray")
def test_what_is_recorded_are_the_environments_rewards() -> None:
    (plain, weights), (scaled, others) = (
        play("emulated"),
        play("emulated", environment__normalize_rewards=True),
    )
    first, second = (of_kind(results, "iteration")[0].metrics for results in (plain, scaled))
    for name in ("episode_return_sum", "num_episodes", "train_batch_size_actual"):
        assert first[name] == second[name]
    assert second["vf_loss"] < first["vf_loss"]  # Acrobot's returns are in the tens, and then about 1
    assert any(not np.array_equal(weights[name], others[name]) for name in weights)
