"""A setting becomes the configuration that was meant, on the parts that can serve it."""

from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from study.designs.holdup.stages import RLLIB_DEFAULTS
from study.designs.registry import make_plan
from study.engine import engine_of_space
from study.errors import SpaceError
from study.planning import remarks
from study.space.parameters import ALGORITHMS, PARAMETERS, attribute
from study.space.spec import StudySpec
from study.trial.engine.learning.fused_learner import FusedPPOLearner
from study.trial.engine.sampling.batched_runner import BatchedEnvRunner
from study.trial.engine.sampling.runner import StockEnvRunner
from tests.integration.trials import built_config
from tests.spaces import cluster, spec


def config(**changes: Any) -> PPOConfig:
    return built_config(**changes)


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
    built = config(setting=odd, seed=17, algorithm=algorithm, budget__env_steps=9000)
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
    built = config(algorithm="A2C", setting={"train_batch_size": 160, "minibatch_size": 160})
    assert (built.num_epochs, built.minibatch_size, built.total_train_batch_size) == (1, None, 160)
    assert (built.lambda_, built.kl_coeff, built.standardization, built.optimizer) == (1.0, 0.0, "none", "rmsprop")
    assert built.learner_class is FusedPPOLearner


def test_our_components_serve_unless_the_space_says_otherwise() -> None:
    built = config()
    assert (built.env_runner_cls, built.learner_class) == (BatchedEnvRunner, FusedPPOLearner)
    assert (built.standardization, built.fallbacks) == ("steps", [])
    built = config(runner="stock", learner="rllib")
    assert (built.env_runner_cls, built.learner_class) == (StockEnvRunner, PPOTorchLearner)
    assert (built.standardization, built.fallbacks) == ("rllib", [])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "A2C"}, ""),
        ({"learner": "fused"}, ""),
        ({"resources__num_learners": 1}, ""),
        ({"resources__num_learners": 2, "learner": "fused"}, "there are several learners"),
        ({"resources__num_gpus_per_learner": 0.5}, "the learner has a GPU"),
    ],
)
def test_rllibs_learner_serves_where_the_fused_one_cannot(changes: dict[str, Any], reason: str) -> None:
    built = config(**changes)
    assert built.learner_class is (PPOTorchLearner if reason else FusedPPOLearner)
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
        config(setting={"minibatch_size": 500})


def test_the_baselines_of_rllibs_defaults_are_rllibs() -> None:
    assert set(RLLIB_DEFAULTS) == {name for name in ALGORITHMS["PPO"].parameters if not PARAMETERS[name].optional} - {
        "num_env_runners"
    }
    found = {name: getattr(PPOConfig(), attribute(name)) for name in RLLIB_DEFAULTS if name != "grad_clip"}
    assert {**found, "grad_clip": RLLIB_DEFAULTS["grad_clip"]} == dict(RLLIB_DEFAULTS)
    assert PPOConfig().grad_clip is None
