"""A setting becomes the configuration that was meant, on the parts that can serve it, and so does a script of it."""

import contextlib
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from study.designs.registry import make_plan
from study.engine import engine_of_space
from study.errors import SpaceError
from study.exporting.script import plain_script
from study.planning import remarks
from study.space.parameters import ALGORITHMS, PARAMETERS, SCALE, Value, attribute
from study.space.spec import StudySpec
from study.trial.configuration import SET_BY_STUDY, same
from study.trial.engine.envs.environments import make_env
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.runner import StockEnvRunner
from tests.integration.trials import built_config, config_of
from tests.spaces import cluster, spec

SIZES = {"num_env_runners": 3, "num_envs_per_env_runner": 5, "train_batch_size": 1400, "minibatch_size": 77}


@pytest.mark.parametrize("algorithm", ["PPO", "APPO", "IMPALA"])
def test_every_parameter_reaches_rllib(algorithm: str) -> None:
    """Each has a value of its own; whoever adds a parameter has nothing to do here."""
    names = ALGORITHMS[algorithm].parameters
    odd = {
        name: SIZES.get(name, 0.0137 * number if PARAMETERS[name].kind is float else number)
        for number, name in enumerate(PARAMETERS, start=2)
        if name in names
    }
    odd = {name: value if PARAMETERS[name].allows(value) else 1 for name, value in odd.items()}
    told = {name for name in odd if PARAMETERS[name].read is not None and PARAMETERS[name].optional}
    built = built_config(setting=odd, seed=17, algorithm=algorithm, budget__env_steps=9000)
    expected = {attribute(name): value for name, value in odd.items() if name not in told}
    expected["total_train_batch_size"] = expected.pop("train_batch_size")
    expected["lr"] = [[0, odd["lr"]], [9000, pytest.approx(odd["lr"] * odd["lr_end_fraction"])]]
    if algorithm != "PPO":
        expected |= {"num_epochs": 1, "minibatch_size": None}
        expected |= {"vtrace": True, "use_env_runner_state_server": True}
    else:
        # Normalised observations: their statistics are merged.
        expected |= {"rollout_fragment_length": "auto", "merge_env_runner_states": "training_only"}
    assert {name: PARAMETERS[name].value_in(built) for name in told} == {
        name: pytest.approx(odd[name]) for name in told
    }
    assert {name: getattr(built, name) for name in expected} == expected
    assert (built.seed, built.grad_clip_by, built.num_learners) == (17, "global_norm", 0)
    assert (built.restart_failed_env_runners, built.broadcast_env_runner_states) == (False, algorithm == "PPO")


def test_a2c_is_ppo_with_one_plain_update() -> None:
    built = built_config(algorithm="A2C", setting={"train_batch_size": 160, "minibatch_size": 160})
    assert (built.num_epochs, built.minibatch_size, built.total_train_batch_size) == (1, None, 160)
    assert (built.lambda_, built.kl_coeff, built.standardization, built.optimizer) == (1.0, 0.0, "none", "rmsprop")
    assert built.learner_class is FusedPPOLearner


OURS, THEIRS = (BatchedEnvRunner, FusedPPOLearner, "steps"), (StockEnvRunner, PPOTorchLearner, "rllib")


@pytest.mark.parametrize(
    ("changes", "parts", "reason"),
    [
        ({}, OURS, ""),
        ({"learner": "fused"}, OURS, ""),
        ({"resources__num_learners": 1}, OURS, ""),
        ({"runner": "stock", "learner": "rllib"}, THEIRS, ""),
        ({"resources__num_learners": 2, "learner": "fused"}, (OURS[0], *THEIRS[1:]), "there are several learners"),
        ({"resources__num_gpus_per_learner": 0.5}, (OURS[0], *THEIRS[1:]), "the learner has a GPU"),
    ],
)
def test_our_components_serve_where_they_can(changes: dict[str, Any], parts: tuple[Any, ...], reason: str) -> None:
    built = built_config(**changes)
    assert (built.env_runner_cls, built.learner_class, built.standardization) == parts
    assert built.fallbacks == ([f"learner: RLlib's own learner instead of the fused one: {reason}"] if reason else [])


def test_the_plan_says_why_rllibs_learner_serves() -> None:
    def said(space: StudySpec) -> list[str]:
        return [line for line in remarks(space, make_plan(space, cluster(n=4))) if "earner" in line]

    assert said(spec()) == said(spec(learner="rllib")) == []
    several = spec(resources__num_learners=2)
    assert said(several) == ["Learner: RLlib's own. The fused one cannot do the same: there are several learners."]
    assert engine_of_space(several) == "batched+RLlib"


def test_values_that_rllib_refuses_are_a_fault_of_the_parameters() -> None:
    with pytest.raises(SpaceError, match=r"parameters: RLlib must accept the values, got .*minibatch_size"):
        built_config(setting={"minibatch_size": 500})


# --- the exported script ----------------------------------------------------------------------------------------------

ELSEWHERE = {"env", "observation_space", "action_space", "disable_env_checking", "evaluation_config", "_model_config"}
"""What is set otherwise in a study; the network is compared below."""
OTHERS = "num_env_runners num_learners seed rollout_fragment_length minibatch_size total_train_batch_size model_config"


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
    for name in (*compared, *OTHERS.split(), "use_kl_loss", "min_time_s_per_iteration"):
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


@pytest.mark.parametrize(
    ("env_id", "kwargs", "model"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}, {"fcnet_hiddens": [32]}),
        ("FrozenLake-v1", {}, {}),
        ("tests.environments:Mixed", {}, {}),
        ("tests.environments:Block", {}, {"conv_filters": [[8, 2, 2]]}),
        ("tests.environments:Picture", {}, {"conv_filters": [[8, 2, 2]], "fcnet_hiddens": [16]}),
    ],
)
def test_a_script_has_the_environment_as_the_study_sees_it_the_network_and_the_budget(
    env_id: str, kwargs: dict[str, Any], model: dict[str, Any]
) -> None:
    environment = {"environment__id": env_id, "environment__kwargs": kwargs, "environment__max_episode_steps": 7}
    space = spec(**environment, model=model, runner="stock", learner="rllib")
    setting = {name: PARAMETERS[name].default for name in space.parameter_names} | {SCALE: 2}
    script = plain_script(space, setting, header=[], iterations=None)
    assert_same(names := run(script), space, setting)
    assert "env_steps < 1000" in script
    played = []
    for make in (names["make_env"], lambda: make_env(space.environment)):
        with contextlib.closing(make()) as env:
            env.action_space.seed(1)
            steps = [env.reset(seed=1), *(env.step(env.action_space.sample()) for _ in range(7))]
            played.append([env.observation_space, [each[:-1] for each in steps]])
    np.testing.assert_equal(*played)
