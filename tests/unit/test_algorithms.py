"""What a space may say to each algorithm: parameters, defaults and batches; refusals are in `test_space_rules`."""

from typing import Any

import pytest

from study.space.parameters import ALGORITHMS, PARAMETERS, REPLACED
from study.space.settings import runnable
from study.space.spec import StudySpec
from tests.spaces import spec


def space(algorithm: str, **parameters: Any) -> StudySpec:
    return spec(algorithm=algorithm, parameters={"num_env_runners": [2, 4], **parameters})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_has_the_parameters_of_the_algorithm_and_no_others(algorithm: str) -> None:
    of_it, traits = space(algorithm), ALGORITHMS[algorithm]
    setting = runnable(of_it, {"num_env_runners": 2})
    assert tuple(setting) == of_it.parameter_names
    told = {*traits.parameters, *(REPLACED.get(name, name) for name in traits.given)}
    left_out = {name for name, parameter in PARAMETERS.items() if algorithm in parameter.optional}
    assert set(setting) == told - left_out
    assert set(of_it.to_json()["parameters"]) == set(traits.parameters) - left_out


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "PPO"])
def test_a_batch_is_one_minibatch_learnt_from_once(algorithm: str) -> None:
    setting = runnable(space(algorithm, train_batch_size=1000), {"num_env_runners": 2})
    assert (setting["train_batch_size"], setting["minibatch_size"], setting["num_epochs"]) == (1000, 1000, 1)


def test_defaults_are_those_of_the_algorithm_unless_a_rule_stands_in() -> None:
    assert [space(algorithm).domain("lr") for algorithm in ("PPO", "A2C", "IMPALA")] == [3e-4, 7e-4, 5e-4]
    assert space("IMPALA", lr=1e-3).domain("lr") == 1e-3
    grown = space("IMPALA", steps_per_env_runner=250)
    assert runnable(grown, {"num_env_runners": 4})["train_batch_size"] == 1000
    assert (space("APPO").learner, space("A2C").learner_in_use) == ("rllib", "fused")


@pytest.mark.parametrize("algorithm", ["APPO", "IMPALA"])
@pytest.mark.parametrize(("name", "each"), [("train_batch_size", 1), ("steps_per_env_runner", 3)])
def test_a_sampled_batch_is_whole_fragments_in_its_range(algorithm: str, name: str, each: int) -> None:
    scale = {"num_env_runners": 3, "num_envs_per_env_runner": 2, "rollout_fragment_length": 25}
    wide = space(algorithm, **scale, **{name: {"low": 50, "high": 640}})
    for value in range(50, 641, 7):
        batch = runnable(wide, {"num_env_runners": 3, name: value})["train_batch_size"]
        assert batch % (50 * each) == 0 and 50 <= batch // each <= 640
