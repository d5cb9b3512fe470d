"""What a space may say to each algorithm: parameters, defaults, batches and refusals."""

from typing import Any

import pytest

from study.errors import Fault, SpaceError
from study.space.parameters import ALGORITHMS, PARAMETERS, REPLACED
from study.space.settings import runnable
from study.space.spec import StudySpec
from tests.spaces import spec_of

SPACE: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "floor": 0, "reference": 500, "target": 450},
    "parameters": {"num_env_runners": [2, 4]},
    "budget": {"env_steps": 10_000},
    "search": {"num_trials": 2},
}


def space(algorithm: str, *, parameters: dict[str, Any] | None = None, **sections: Any) -> StudySpec:
    content = {**SPACE, "algorithm": algorithm, **sections}
    content["parameters"] = {**SPACE["parameters"], **(parameters or {})}
    return spec_of(content)


def faults(algorithm: str, **changes: Any) -> dict[str, Fault]:
    with pytest.raises(SpaceError) as caught:
        space(algorithm, **changes)
    return {fault.where: fault for fault in caught.value.faults}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_has_the_parameters_of_the_algorithm_and_no_others(algorithm: str) -> None:
    spec = space(algorithm)
    setting = runnable(spec, {"num_env_runners": 2})
    assert tuple(setting) == spec.parameter_names
    traits = ALGORITHMS[algorithm]
    told = {*traits.parameters, *(REPLACED.get(name, name) for name in traits.given)}
    left_out = {name for name, parameter in PARAMETERS.items() if algorithm in parameter.optional}
    assert set(setting) == told - left_out
    assert set(spec.to_json()["parameters"]) == set(traits.parameters) - left_out


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "PPO"])
def test_a_batch_is_one_minibatch_learnt_from_once(algorithm: str) -> None:
    setting = runnable(space(algorithm, parameters={"train_batch_size": 1000}), {"num_env_runners": 2})
    assert (setting["train_batch_size"], setting["minibatch_size"], setting["num_epochs"]) == (1000, 1000, 1)


def test_defaults_are_those_of_the_algorithm_unless_a_rule_stands_in() -> None:
    assert space("PPO").domain("lr") == 3e-4
    assert space("A2C").domain("lr") == 7e-4
    assert space("IMPALA").domain("train_batch_size") == 500
    assert space("IMPALA", parameters={"lr": 1e-3}).domain("lr") == 1e-3
    grown = space("IMPALA", parameters={"steps_per_env_runner": 250})
    assert runnable(grown, {"num_env_runners": 4})["train_batch_size"] == 1000
    assert space("APPO").learner == "rllib"
    assert space("A2C").learner_in_use == "fused"


def test_batches_of_asynchronous_algorithms_hold_whole_fragments() -> None:
    fault = faults("IMPALA", parameters={"train_batch_size": 525})["parameters.train_batch_size"]
    assert fault.got == "525" and "a multiple of 50" in fault.rule
    spec = space("IMPALA", parameters={"train_batch_size": {"low": 300, "high": 900}, "num_envs_per_env_runner": 2})
    assert runnable(spec, {"num_env_runners": 4, "train_batch_size": 444})["train_batch_size"] == 400
    # Fewer steps than lanes: a batch is what a few of the runners bring.
    assert space("IMPALA", parameters={"num_env_runners": 200, "train_batch_size": 100}).scales == (200,)


@pytest.mark.parametrize("algorithm", ["APPO", "IMPALA"])
@pytest.mark.parametrize(("name", "each"), [("train_batch_size", 1), ("steps_per_env_runner", 3)])
def test_a_sampled_batch_is_whole_fragments_in_its_range(algorithm: str, name: str, each: int) -> None:
    scale = {"num_env_runners": 3, "num_envs_per_env_runner": 1, "rollout_fragment_length": 50}
    wide = space(algorithm, parameters={**scale, name: {"low": 50, "high": 640}})
    for value in range(50, 641, 7):
        batch = runnable(wide, {"num_env_runners": 3, name: value})["train_batch_size"]
        assert batch % (50 * each) == 0 and 50 <= batch // each <= 640
