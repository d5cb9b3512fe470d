"""A space that names a script: the script's values, what the study sets, and what only the script may say."""

import pytest

from study.driver.opening import RunOptions, resumed_identity
from study.engine import OWN, engine_of_space, other_engine
from study.errors import RecordError, SpaceError
from study.space.parsing import parse_space
from study.space.settings import runnable
from study.space.space_file import Source
from tests.holdup import write_study
from tests.script_facts import facts, script_spec
from tests.spaces import read_again

WITHOUT_LR = {"values": {name: value for name, value in facts().values.items() if name != "lr"}}


def test_the_script_gives_what_the_space_does_not_say_and_an_equal_value_is_not_set() -> None:
    spec = script_spec()
    assert (spec.algorithm, spec.environment.id) == ("PPO", "CartPole-v1")
    setting = runnable(spec, {"num_env_runners": 2, "lr": 0.002})
    assert setting == {
        "num_env_runners": 2,
        "num_envs_per_env_runner": 1,
        "train_batch_size": 400,
        "minibatch_size": 100,
        "num_epochs": 2,
        "lr": 0.002,
        "gamma": 0.99,
        "vf_clip_param": 10.0,
    }
    spec = script_spec(
        parameters={"num_env_runners": [2, 4], "lr": 0.001, "grad_clip": 0.5, "steps_per_env_runner": 100}
    )
    assert runnable(spec, {"num_env_runners": 4})["train_batch_size"] == 400


def test_a_recorded_spec_is_read_back_and_another_script_is_another_study() -> None:
    spec = script_spec()
    assert read_again(spec) == spec
    other = script_spec(facts(source={"file": "my_train.py", "sha256": "1" * 64}))
    assert other.digest() != spec.digest()


def test_a_person_writes_no_facts() -> None:
    source = Source(name="space", content=script_spec().to_json(), lines={"script": 3})
    with pytest.raises(SpaceError, match=r"script \(line 3\): is found in the script, and not written"):
        parse_space(source)


def test_off_policy_batches_have_nothing_to_do_with_lanes() -> None:
    values = {"num_env_runners": 1, "num_envs_per_env_runner": 1, "train_batch_size": 8, "lr": None, "num_epochs": 1}
    spec = script_spec(
        facts(algorithm="SAC", base_algorithm="SAC", values=values, runner_obstacle="the algorithm is SAC"),
        parameters={"num_env_runners": [1, 46]},
    )
    assert spec.learner_in_use == "rllib"
    assert runnable(spec, {"num_env_runners": 46}) == {
        "num_env_runners": 46,
        "num_envs_per_env_runner": 1,
        "train_batch_size": 8,
    }


@pytest.mark.parametrize(
    ("found", "engine"),
    [
        ({}, "batched+fused"),
        ({"learner_obstacle": "the module is recurrent"}, "batched+RLlib"),
        ({"runner_obstacle": "callbacks are the script's own"}, "RLlib+fused"),
        ({"runner_obstacle": "there are several agents", "learner_obstacle": "there are several agents"}, OWN),
    ],
)
def test_the_engine_is_that_which_can_serve_the_script(found, engine) -> None:
    spec = script_spec(facts(**found))
    assert engine_of_space(spec) == engine
    assert (other_engine(spec) is None) == (engine == OWN), "RLlib alone can run it"


def test_a_resume_says_what_changed_in_the_script(tmp_path) -> None:
    folder = write_study(tmp_path, script_spec(), [])
    other = facts(source={"file": "my_train.py", "sha256": "1" * 64}, values={**facts().values, "gamma": 0.9})
    options = RunOptions(name="demo", out=tmp_path, resume=True)
    assert resumed_identity(folder, script_spec(), options).name == "demo"
    with pytest.raises(RecordError, match=r"needs the script that the study was started with, got .*values"):
        resumed_identity(folder, script_spec(other), options)
