"""IMPALA's network, and rewards in units of the deviation of returns: by value, for either learner."""

from typing import Any

import numpy as np
import pytest
import torch

from study.trial.engine.learning.encoders import ImpalaEncoder
from study.trial.engine.learning.rewards import RewardScale
from study.trial.messages import TrialResult
from tests.integration import trials
from tests.integration.trials import built_config, of_kind, running, weights_of
from tests.needs import needs_qt


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


def test_the_returns_that_scale_rewards_are_those_of_whole_episodes() -> None:
    """In pieces, over several batches; the deviation is that of the discounted sums so far."""
    gamma, scale = 0.9, RewardScale(0.9)
    one, other = np.arange(1.0, 9.0), np.arange(3.0) - 5
    scale.scaled(["a", "b", "a"], [one[:3], other, one[3:5]])
    (scaled,) = scale.scaled(["a"], [one[5:]])
    sums = [sum(gamma**k * each[t - k] for k in range(t + 1)) for each in (one, other) for t in range(len(each))]
    np.testing.assert_allclose(scaled, one[5:] / np.std(sums), rtol=1e-4)
    assert scale.scaled(["c"], [np.array([1e6, 0.0])])[0].max() <= 10


def play(**changes: Any) -> tuple[list[TrialResult], dict[str, Any]]:
    with running(execution="emulated", environment__id="Acrobot-v1", **changes) as trial:
        return trials.play(trial), weights_of(trial)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("parts", [{}, {"runner": "stock", "learner": "rllib"}], ids=["ours", "rllib"])
def test_what_is_recorded_are_the_environments_rewards(parts: dict[str, Any]) -> None:
    (plain, weights), (scaled, others) = play(**parts), play(**parts, environment__normalize_rewards=True)
    first, second = (of_kind(results, "iteration")[0].metrics for results in (plain, scaled))
    for name in ("episode_return_sum", "num_episodes", "train_batch_size_actual"):
        assert first[name] == second[name]
    assert second["vf_loss"] < first["vf_loss"]  # Acrobot's returns are in the tens, and then about 1
    assert any(not np.array_equal(weights[name], others[name]) for name in weights)
