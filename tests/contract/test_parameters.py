"""Each parameter is set in RLlib's own configuration and read back by its entry, and by nothing else."""

from typing import Any

import pytest
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

from study.space.parameters import ALGORITHMS, END_FRACTION, PARAMETERS, SCALE, Value, set_all

CONFIGS: dict[str, Any] = {"PPO": PPOConfig, "APPO": APPOConfig, "IMPALA": IMPALAConfig}
STEPS = 50_000
OF_EACH = [(algorithm, name) for algorithm in CONFIGS for name in ALGORITHMS[algorithm].parameters]


def other_value(name: str) -> Value:
    """Return a value that is no default, ours or RLlib's."""
    if PARAMETERS[name].kind is float:
        return 0.37
    return 24 if PARAMETERS[name].allows(24) else 1


@pytest.mark.parametrize("learners", [0, 2])
@pytest.mark.parametrize(("algorithm", "name"), OF_EACH)
def test_what_is_set_is_read_back(algorithm: str, name: str, learners: int) -> None:
    config, parameter = CONFIGS[algorithm]().learners(num_learners=learners), PARAMETERS[name]
    assert parameter.value_in(config) != other_value(name)
    parameter.apply(config, other_value(name), env_steps=STEPS)
    assert parameter.value_in(config) == pytest.approx(other_value(name))


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_a_setting_is_applied_and_leaves_the_rest_as_it_was(algorithm: str) -> None:
    names = [name for name in ALGORITHMS[algorithm].parameters if name != SCALE]
    setting = {name: other_value(name) for name in names}
    config = CONFIGS[algorithm]()
    set_all(config, setting, env_steps=STEPS)
    assert {name: PARAMETERS[name].value_in(config) for name in names} == pytest.approx(setting)
    if END_FRACTION in setting:
        assert config.lr == [[0, 0.37], [STEPS, pytest.approx(0.37 * 0.37)]]
    config, plain = CONFIGS[algorithm](), CONFIGS[algorithm]()
    set_all(config, {"lr": 0.37}, env_steps=STEPS)
    assert [name for name in names if PARAMETERS[name].value_in(config) != PARAMETERS[name].value_in(plain)] == ["lr"]


def test_rllib_s_defaults_are_those_of_the_entries() -> None:
    config = PPOConfig()
    for name, parameter in PARAMETERS.items():
        if parameter.rllib is not None and name != "grad_clip":  # RLlib clips none
            assert parameter.value_in(config) == parameter.rllib, name
    for algorithm in ("APPO", "IMPALA"):
        config = CONFIGS[algorithm]()
        for name, value in ALGORITHMS[algorithm].defaults.items():
            assert PARAMETERS[name].value_in(config) == value or (algorithm, name) == ("APPO", "kl_coeff"), name
