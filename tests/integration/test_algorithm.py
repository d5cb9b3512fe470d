"""A setting becomes the configuration that was meant, and `rllib:` cannot break what the study rests on."""

from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from study.errors import SpaceError
from study.parameters import PARAMETERS
from study.spec import StudySpec
from study.trial.algorithm import build_config
from study.trial.effective import differences
from study.trial.environments import probe
from tests.integration.trials import trial_config


def config(rllib: dict[str, Any] | None = None, **changes: Any) -> PPOConfig:
    content = trial_config(rllib=rllib or {}, **changes)
    spec = StudySpec.model_validate(content["spec"])
    spaces = probe(spec.environment, "")
    return build_config(
        spec, setting=content["setting"], seed=content["seed"], spaces=spaces, execution=content["execution"]
    )


def fault(rllib: dict[str, Any], **changes: Any) -> tuple[str, str]:
    with pytest.raises(SpaceError) as raised:
        config(rllib, **changes)
    (only,) = raised.value.faults
    return only.place, f"{only.law} {only.fix}"


def test_every_parameter_reaches_rllib() -> None:
    odd = {
        "num_env_runners": 3,
        "num_envs_per_env_runner": 5,
        "train_batch_size": 1501,
        "minibatch_size": 77,
        "num_epochs": 7,
        "lr": 0.00123,
        "gamma": 0.977,
        "lambda": 0.911,
        "clip_param": 0.177,
        "entropy_coeff": 0.0133,
        "grad_clip": 0.77,
        "vf_clip_param": 55.5,
        "vf_loss_coeff": 0.33,
        "kl_coeff": 0.44,
        "kl_target": 0.022,
    }
    assert odd.keys() == PARAMETERS.keys()
    built = config(setting=odd, seed=17)
    rllib_names = {"lambda": "lambda_", "train_batch_size": "total_train_batch_size"}
    assert {name: getattr(built, rllib_names.get(name, name)) for name in odd} == odd
    assert (built.seed, built.grad_clip_by, built.rollout_fragment_length) == (17, "global_norm", "auto")
    assert (built.restart_failed_env_runners, built.num_learners) == (False, 0)
    assert (built.merge_env_runner_states, built.broadcast_env_runner_states) == (False, False)


def test_resources_and_network_reach_rllib() -> None:
    built = config(
        resources__num_cpus_for_main_process=3,
        resources__num_cpus_per_env_runner=2,
        resources__placement="spread",
        resources__sample_timeout_s=77.0,
        model__fcnet_hiddens=[32, 16],
        model__fcnet_activation="relu",
        model__vf_share_layers=True,
    )
    assert (built.num_cpus_for_main_process, built.num_cpus_per_env_runner) == (3, 2)
    assert (built.placement_strategy, built.sample_timeout_s) == ("SPREAD", 77.0)
    network = built.model_config
    assert (network["fcnet_hiddens"], network["fcnet_activation"], network["vf_share_layers"]) == (
        [32, 16],
        "relu",
        True,
    )


def test_an_override_is_applied() -> None:
    built = config({"training": {"use_kl_loss": False, "shuffle_batch_per_epoch": False}})
    assert (built.use_kl_loss, built.shuffle_batch_per_epoch) == (False, False)


@pytest.mark.parametrize(
    ("rllib", "place", "words"),
    [
        ({"trainin": {"use_kl_loss": False}}, "rllib.trainin", "Did you mean 'training'?"),
        ({"build_algo": {}}, "rllib.build_algo", "must be a method of PPOConfig"),
        ({"training": {"use_kl_los": False}}, "rllib.training.use_kl_los", "Did you mean 'use_kl_loss'?"),
        (
            {"fault_tolerance": {"restart_failed_env_runners": True}},
            "rllib",
            "got restart_failed_env_runners=True",
        ),
        ({"env_runners": {"create_local_env_runner": False}}, "rllib", "got create_local_env_runner=False"),
        ({"framework": {"framework": "tf2"}}, "rllib", "got framework_str=tf2"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(rllib: dict[str, Any], place: str, words: str) -> None:
    got_place, text = fault(rllib)
    assert (got_place, words in text) == (place, True), text


def test_values_that_rllib_refuses_are_a_fault_of_the_parameters() -> None:
    place, text = fault({}, setting={"minibatch_size": 500})
    assert place == "parameters"
    assert "minibatch_size" in text


def test_differences_names_what_differs() -> None:
    asked = {"lr": 1e-3, "num_env_runners": 2, "gamma": 0.99, "kl_coeff": 0.2}
    effective = {"lr": 1e-3, "num_env_runners": 1, "kl_coeff": 0.20000000298}
    assert differences(asked, effective) == ["num_env_runners: asked 2, got 1", "gamma: asked 0.99, got None"]
    assert differences({"entropy_coeff": 0.0}, {"entropy_coeff": 1e-9}) == ["entropy_coeff: asked 0.0, got 1e-09"]
