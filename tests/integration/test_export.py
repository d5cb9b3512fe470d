"""The exported script configures RLlib as the study itself would."""

import contextlib
from typing import Any

import pytest

from study.exporting.script import plain_script
from study.space.parameters import ALGORITHMS, PARAMETERS, SCALE, Value
from study.space.spec import StudySpec
from study.trial.parts import SET_BY_STUDY, same
from tests.integration.trials import config_of
from tests.spaces import spec

ELSEWHERE = {"env", "observation_space", "action_space", "disable_env_checking", "evaluation_config", "_model_config"}
"""What is set otherwise in a study; the network is compared below."""
SIZES = "num_env_runners num_learners seed rollout_fragment_length minibatch_size total_train_batch_size model_config"


def run(script: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "export"}
    exec(compile(script, "export.py", "exec"), names)
    return names


def assert_same(names: dict[str, Any], spec: StudySpec, setting: dict[str, Value]) -> None:
    theirs = names["make_config"](seed=5)
    theirs.validate()
    ours = config_of(spec, setting=setting, seed=5)
    assert theirs.total_train_batch_size == setting["train_batch_size"]
    compared = vars(theirs).keys() - SET_BY_STUDY - ELSEWHERE - {"_env_to_module_connector", "_learner_connector"}
    for name in (*compared, *SIZES.split(), "use_kl_loss", "min_time_s_per_iteration"):
        assert same(getattr(theirs, name, None), getattr(ours, name, None)), name


def test_what_rllib_has_no_option_for_is_in_the_script() -> None:
    space = spec(budget__env_steps=8000, runner="stock", learner="rllib")
    told = {"normalize_observations": 1, "normalize_rewards": 1, "vf_lr": 1e-3, "clip_end_fraction": 0.5}
    plain = {name: each.default for name, each in PARAMETERS.items() if name in space.parameter_names}
    setting = {**plain, SCALE: 2, **told}
    script = plain_script(space, setting, header=[], seed=5, iterations=None)
    assert "import study" not in script
    assert "from study" not in script
    assert_same(run(script), space, setting)
    theirs, ours = run(script)["make_config"](seed=5), config_of(space, setting=setting, seed=5)
    assert theirs.learner_class.__name__ == ours.learner_class.__name__ == "ExtendedPPOTorchLearner"
    assert theirs.learner_config_dict == ours.learner_config_dict == {**told, "clip_end_fraction": [0.5, 8000]}
    assert type(theirs.build_env_to_module_connector()[0]).__name__ == "NormalizedObservations"
    assert "install" not in plain_script(space, plain | {SCALE: 2}, header=[], seed=5, iterations=None)


@pytest.mark.parametrize("algorithm", ["PPO", "APPO", "IMPALA"])
def test_so_does_that_of_a_trial_of_any_algorithm(algorithm: str) -> None:
    given = {} if algorithm == "PPO" else {"parameters__minibatch_size": None}
    space = spec(algorithm=algorithm, budget__env_steps=8000, **given)
    traits = ALGORITHMS[algorithm]
    setting = {
        name: traits.defaults.get(name, PARAMETERS[name].default)
        for name in traits.parameters
        if algorithm not in PARAMETERS[name].optional
    }
    setting |= {SCALE: 2} | {name: value for name, value in traits.given.items() if name in PARAMETERS}
    if algorithm == "APPO":
        setting |= {"kl_coeff": 0.5, "lr_end_fraction": 0.1}
    names = run(plain_script(space, setting, header=[], seed=5, iterations=None))
    assert_same(names, space, setting)
    assert type(names["make_config"]()).__name__ == f"{algorithm}Config"
    with contextlib.closing(names["make_env"]()) as env:
        assert env.observation_space.dtype == env.reset(seed=1)[0].dtype == "float32"
