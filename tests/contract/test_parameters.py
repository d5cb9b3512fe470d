"""Each parameter is set in RLlib's own configuration and read back by its entry, and by nothing else."""

import contextlib
from typing import Any

import pytest
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.models.utils import get_filter_config

from study.planning import DEFAULT_FILTERS
from study.space.parameters import ALGORITHMS, PARAMETERS, SCALE, Value

CONFIGS: dict[str, Any] = {"PPO": PPOConfig, "APPO": APPOConfig, "IMPALA": IMPALAConfig}
OF_EACH = [(algorithm, name) for algorithm in CONFIGS for name in ALGORITHMS[algorithm].parameters]


def other_value(name: str) -> Value:
    """Return a value that is no default, ours or RLlib's."""
    if PARAMETERS[name].kind is float:
        return 0.37
    return 24 if PARAMETERS[name].allows(24) else 1


@pytest.mark.parametrize("learners", [0, 2])
@pytest.mark.parametrize(("algorithm", "name"), OF_EACH)
def test_what_is_set_is_read_back_and_leaves_the_rest_as_it_was(algorithm: str, name: str, learners: int) -> None:
    config, plain = (CONFIGS[algorithm]().learners(num_learners=learners) for _ in range(2))
    PARAMETERS[name].apply(config, other_value(name), env_steps=50_000)
    read = {each: PARAMETERS[each].value_in for each in ALGORITHMS[algorithm].parameters}
    assert [each for each, value_in in read.items() if value_in(config) != value_in(plain)] == [name]
    assert read[name](config) == pytest.approx(other_value(name))


def test_rllib_s_defaults_are_those_of_the_entries() -> None:
    config = PPOConfig()
    for name, parameter in PARAMETERS.items():
        if parameter.rllib is not None and name != "grad_clip":  # RLlib clips none
            assert parameter.value_in(config) == parameter.rllib, name
        assert parameter.rllib is not None or parameter.optional or name == SCALE or "PPO" not in parameter.algorithms
    assert config.grad_clip is None
    for algorithm in ("APPO", "IMPALA"):
        config = CONFIGS[algorithm]()
        for name, value in ALGORITHMS[algorithm].defaults.items():
            assert PARAMETERS[name].value_in(config) == value or (algorithm, name) == ("APPO", "kl_coeff"), name


def test_rllib_s_own_convolutions_are_those_of_the_plan() -> None:
    found = {}
    for size in range(1, 200):
        with contextlib.suppress(ValueError):
            layers = get_filter_config((size, size, 3))
            found[size] = tuple((filters, *{*kernel}, stride) for filters, kernel, stride in layers)
    assert found == DEFAULT_FILTERS
