"""The baselines are what they say."""

from ray.rllib.algorithms.ppo import PPOConfig

from study.designs.holdup.arms import RLLIB_DEFAULTS
from study.space.parameters import ALGORITHMS, SCALE


def test_rllibs_defaults_are_rllibs():
    assert set(RLLIB_DEFAULTS) == set(ALGORITHMS["PPO"].parameters) - {SCALE}
    config = PPOConfig()
    for name, value in RLLIB_DEFAULTS.items():
        if name == "grad_clip":
            assert config.grad_clip is None
        else:
            assert getattr(config, {"lambda": "lambda_"}.get(name, name)) == value, name
