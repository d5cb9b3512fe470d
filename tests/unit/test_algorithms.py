"""What a space may say to each algorithm: parameters, defaults, batches and refusals."""

from typing import Any

import pytest

from study.errors import Fault, SpaceError
from study.space.algorithms import ALGORITHMS
from study.space.parameters import PARAMETERS, RULES
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
def test_names_are_known_and_said_once(algorithm: str) -> None:
    traits = ALGORITHMS[algorithm]
    assert set(traits.parameters) <= PARAMETERS.keys()
    assert not set(traits.parameters) & set(traits.given)
    assert traits.given.keys() <= PARAMETERS.keys()
    assert traits.rules.keys() <= RULES.keys()
    assert traits.defaults.keys() <= set(traits.parameters)
    assert all(PARAMETERS[name].allows(value) for name, value in {**traits.defaults, **traits.given}.items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_has_the_parameters_of_the_algorithm_and_no_others(algorithm: str) -> None:
    spec = space(algorithm)
    setting = runnable(spec, {"num_env_runners": 2})
    assert tuple(setting) == spec.parameter_names
    traits = ALGORITHMS[algorithm]
    told = {*traits.parameters, *traits.given} | ({"minibatch_size"} if traits.rules else set())
    assert set(setting) == told
    assert set(spec.to_json()["parameters"]) == set(traits.parameters)


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


@pytest.mark.parametrize(
    ("algorithm", "name", "said"),
    [
        ("A2C", "clip_param", "A2C has no such parameter"),
        ("A2C", "num_epochs", "A2C has no such parameter (it is always 1)"),
        ("A2C", "minibatch_size", "(every batch is one minibatch)"),
        ("IMPALA", "num_minibatches", "(every batch is one minibatch)"),
        ("IMPALA", "lambda", "IMPALA has no such parameter"),
        ("PPO", "rollout_fragment_length", "PPO has no such parameter"),
        ("APPO", "vf_clip_param", "APPO has no such parameter"),
    ],
)
def test_a_parameter_that_the_algorithm_lacks_is_refused(algorithm: str, name: str, said: str) -> None:
    value = {"clip_param": 0.1, "lambda": 0.9, "vf_clip_param": 10.0}.get(name, 10)
    fault = faults(algorithm, parameters={name: value})[f"parameters.{name}"]
    assert said in fault.rule


def test_batches_of_asynchronous_algorithms_hold_whole_fragments() -> None:
    fault = faults("IMPALA", parameters={"train_batch_size": 525})["parameters.train_batch_size"]
    assert fault.got == "525"
    assert "num_envs_per_env_runner x rollout_fragment_length x learners = 50 steps" in fault.rule
    spec = space("IMPALA", parameters={"train_batch_size": {"low": 300, "high": 900}, "num_envs_per_env_runner": 2})
    assert runnable(spec, {"num_env_runners": 4, "train_batch_size": 444})["train_batch_size"] == 400
    # Fewer steps than lanes: a batch is what a few of the runners bring.
    assert space("IMPALA", parameters={"num_env_runners": 200, "train_batch_size": 100}).scales == (200,)


def test_the_batch_of_a_baseline_is_held_to_the_same_fragments() -> None:
    def asked(batch: int, *, new: bool) -> StudySpec:
        baselines = [{"name": "mine", "parameters": {"train_batch_size": batch}}]
        content = {**SPACE, "algorithm": "IMPALA", "search": {"num_trials": 2, "baselines": baselines}}
        content["parameters"] = {"num_env_runners": [2, 100], "train_batch_size": {"low": 50, "high": 900}}
        return spec_of(content, asked=new)

    assert asked(50, new=True).scales == (2, 100)  # fewer steps than lanes, as above
    with pytest.raises(SpaceError, match=r"1 problem\n.*a batch holds whole fragments .*, got 525"):
        asked(525, new=True)
    asked(525, new=False)  # a study on record can still be read


@pytest.mark.parametrize("algorithm", ["APPO", "IMPALA"])
@pytest.mark.parametrize(
    ("parameters", "unit"),
    [
        ({"train_batch_size": {"low": 10, "high": 40}}, 50),
        ({"train_batch_size": {"low": 510, "high": 540}}, 50),
        ({"steps_per_env_runner": {"low": 10, "high": 40}}, 150),  # 30 to 120 steps of three runners, each as many
    ],
)
def test_a_sampled_batch_stays_in_its_range(algorithm: str, parameters: dict[str, Any], unit: int) -> None:
    scale = {"num_env_runners": 3, "num_envs_per_env_runner": 1, "rollout_fragment_length": 50}
    ((name, domain),) = parameters.items()
    assert f"a multiple of {unit} (" in faults(algorithm, parameters={**scale, **parameters})[f"parameters.{name}"].rule
    wide = space(algorithm, parameters={**scale, name: {**domain, "high": 640}})
    for value in range(domain["low"], 641, 7):
        batch = runnable(wide, {"num_env_runners": 3, name: value})["train_batch_size"]
        assert domain["low"] <= batch // (3 if name == "steps_per_env_runner" else 1) <= 640


@pytest.mark.parametrize(
    ("algorithm", "changes", "place"),
    [
        ("IMPALA", {"execution": "emulated"}, "execution"),
        ("IMPALA", {"learner": "fused"}, "learner"),
        ("APPO", {"standardization": "steps"}, "standardization"),
        ("A2C", {"learner": "rllib"}, "algorithm"),
        ("A2C", {"standardization": "steps"}, "standardization"),
        ("IMPALA", {"kind": "throughput", "throughput": {"grids": {"a": {"num_env_runners": [1, 2]}}}}, "algorithm"),
        ("PPO", {"learner": "rllib", "standardization": "none"}, "standardization"),
        (
            "IMPALA",
            {"environment": {**SPACE["environment"], "normalize_rewards": True}},
            "environment.normalize_rewards",
        ),
    ],
)
def test_what_does_not_go_with_an_algorithm_is_named(algorithm: str, changes: dict[str, Any], place: str) -> None:
    assert place in faults(algorithm, **changes)


@pytest.mark.parametrize(
    ("rllib", "said"),
    [
        ({"env_runners": {"observation_filter": "MeanStdFilter"}}, "RLlib's new API stack ignores it"),
        ({"env_runners": {"compress_observations": True}}, "RLlib's new API stack ignores it"),
        ({"training": {"model": {"fcnet_hiddens": [8]}}}, "the space has `model`"),
        ({"training": {"use_kl_loss": False}}, "the schema names this value already"),  # as kl_coeff: 0
    ],
)
def test_what_rllib_ignores_or_the_space_names_is_not_taken(rllib: dict[str, Any], said: str) -> None:
    (fault,) = faults("PPO", rllib=rllib).values()
    assert said in fault.rule


@pytest.mark.parametrize("algorithm", ["A2C", "APPO", "IMPALA"])
def test_a_hold_up_study_of_another_algorithm_has_one_fault(algorithm: str) -> None:
    holdup = {"target_scale": 4, "small_scale": 2}
    (fault,) = faults(algorithm, holdup=holdup, search={}, parameters={"lr": [1e-3, 1e-4]}).values()
    assert (fault.where, fault.rule, fault.got) == ("holdup", "a hold-up study needs PPO", f"algorithm: {algorithm}")


@pytest.mark.parametrize("fraction", [0.5, [0.0, 1.0]])
def test_a_learning_rate_falls_over_env_steps_and_nothing_else(fraction: Any) -> None:
    assert "lr_end_fraction" in space("IMPALA", parameters={"lr_end_fraction": fraction}).to_json()["parameters"]
    found = faults("IMPALA", parameters={"lr_end_fraction": fraction}, budget={"iterations": 5})
    assert found["parameters.lr_end_fraction"].rule == "a learning rate falls over budget.env_steps"
    space("IMPALA", parameters={"lr_end_fraction": 1.0}, budget={"iterations": 5})
    assert "parameters.lr_end_fraction" in faults("PPO", parameters={"lr_end_fraction": 0.5})
