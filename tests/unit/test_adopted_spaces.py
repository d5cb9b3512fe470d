"""A space that names a script: what it says, what the study sets; and one that is written around a script."""

import pytest
from typer.testing import CliRunner

from study.adopted.loading import space_text
from study.cli.commands import app
from study.driver.opening import RunOptions, resumed_identity
from study.engine import OWN, engine_of_space, other_engine
from study.errors import RecordError
from study.space.parsing import parse_space, read_text
from study.space.settings import runnable
from study.space.spec import ScriptFacts
from tests.adopted import forked_readings
from tests.holdup import write_study
from tests.script_facts import facts as script_facts
from tests.script_facts import script_spec
from tests.spaces import read_again

VALUES = {
    "num_env_runners": 3,
    "num_envs_per_env_runner": 2,
    "train_batch_size": 2000,
    "minibatch_size": 128,
    "num_epochs": 6,
    "lr": 0.0009,
    "gamma": 0.99,
    "grad_clip": None,
}


def facts(**changes) -> ScriptFacts:
    return script_facts(**{"values": VALUES, **changes})


def read_back(text: str, of: ScriptFacts):
    source = read_text(text, name="my_space.yaml")
    source.content["script"] = of.model_dump(mode="json")
    return parse_space(source)


def test_runners_batch_and_learning_rate_are_varied_around_the_scripts_values():
    known = facts(stop={"training_iteration": 200})
    text = space_text(known, config="my_train.py", args="--num-agents 2", runners=(1, 10, 46))
    spec = read_back(text, known)
    assert (spec.config, spec.config_args, spec.scales) == ("my_train.py", "--num-agents 2", (1, 10, 46))
    assert {name: (domain.low, domain.high, domain.log) for name, domain in spec.tuned.items()} == {
        "train_batch_size": (500, 8000, True),
        "lr": (9e-5, 9e-3, True),
    }
    assert (spec.budget.env_steps, spec.search.num_trials) == (400_000, 12)
    (baseline,) = spec.search.baselines
    assert (baseline.name, baseline.parameters) == ("my_train", {"train_batch_size": 2000, "lr": 0.0009})
    assert spec.fixed["num_epochs"] == 6  # what the space does not name stays the script's


def test_a_schedule_is_not_varied_and_what_tune_would_choose_is_said():
    without = {name: VALUES[name] for name in VALUES if name != "lr"}
    known = facts(schedules=["lr"], values=without, searched=["broadcast_interval", "gamma"])
    text = space_text(known, config="my_train.py")
    spec = read_back(text, known)
    assert (spec.scales, set(spec.tuned)) == ((1, 3, 6), {"train_batch_size"})
    assert "`broadcast_interval` and `gamma`" in text
    assert spec.budget.env_steps == 100 * 2000  # its end is not known: a loop of its own is not read


def test_a_batch_of_a_replay_buffer_may_be_smaller_and_one_that_may_not_be_read_is_not_varied():
    of_dqn = {name: VALUES[name] for name in ("num_env_runners", "num_envs_per_env_runner", "lr", "gamma")}
    known = facts(algorithm="DQN", base_algorithm="DQN", values={**of_dqn, "train_batch_size": 32})
    spec = read_back(space_text(known, config="my_train.py", runners=(1, 46)), known)
    assert (spec.tuned["train_batch_size"].low, spec.tuned["train_batch_size"].high) == (8, 128)
    assert spec.search.baselines[0].parameters == {"train_batch_size": 32, "lr": 0.0009}
    known = facts(algorithm="VPG", base_algorithm="Algorithm")
    text = space_text(known, config="my_train.py")
    assert set(read_back(text, known).tuned) == {"lr"}


@pytest.mark.parametrize(
    ("stop", "algorithm", "budget"),
    [
        ({"training_iteration": 5}, "PPO", (10_000, None)),
        ({"training_iteration": 5, "env_runners/num_env_steps_sampled_lifetime": 9000}, "PPO", (9000, None)),
        ({"env_runners/num_env_steps_sampled_lifetime": 100}, "PPO", (2000, None)),  # it trains a whole batch
        ({"training_iteration": 5}, "APPO", (200_000, None)),  # an iteration is a span of time
        ({"time_total_s": 60}, "PPO", (None, 60)),
    ],
)
def test_the_budget_is_the_scripts_own_limit(stop, algorithm, budget):
    known = facts(stop=stop, base_algorithm=algorithm, algorithm=algorithm)
    spec = read_back(space_text(known, config="my_train.py", runners=(1,)), known)
    assert (spec.budget.env_steps, spec.budget.time_s) == budget


SCRIPT = """
from ray.rllib.algorithms.ppo import PPOConfig
config = PPOConfig().environment("CartPole-v1").training(lr=0.0007, train_batch_size_per_learner=512)
other = config.copy().training(lr=0.1)
"""


def test_the_commands_write_a_space_that_they_read_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(SCRIPT)
    with forked_readings():
        written = CliRunner().invoke(app, ["run", "--dry-run", "--config", "my_train.py:config", "--runners", "1,2"])
        assert written.exit_code == 0, written.output
        (tmp_path / "my_space.yaml").write_text(written.stdout)
        planned = CliRunner().invoke(app, ["run", "--dry-run", "my_space.yaml"])
        assert planned.exit_code == 0, planned.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--config", "my_train.py", "--runners", "1,0"], "--runners: must be distinct numbers of runners above zero"),
        (["--config", "my_train.py", "--config-args", "it's"], "--config-args: must be words, got it's"),
        (["--config", "my_train.py", "quickstart.yaml"], "--config: takes the place of a space"),
        (["quickstart.yaml", "--runners", "1,2"], "--runners, --config-args: belong to --config"),
    ],
)
def test_options_of_a_script_say_what_is_wrong(words, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(SCRIPT)
    (fault,) = CliRunner().invoke(app, ["run", "--dry-run", *words]).exception.faults
    assert str(fault).startswith(problem)


# --- what the study sets ----------------------------------------------------------------------------------------------


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
    other = script_spec(script_facts(source={"file": "my_train.py", "sha256": "1" * 64}))
    assert other.digest() != spec.digest()


def test_off_policy_batches_have_nothing_to_do_with_lanes() -> None:
    values = {"num_env_runners": 1, "num_envs_per_env_runner": 1, "train_batch_size": 8, "lr": None, "num_epochs": 1}
    spec = script_spec(
        script_facts(algorithm="SAC", base_algorithm="SAC", values=values, runner_obstacle="the algorithm is SAC"),
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
    spec = script_spec(script_facts(**found))
    assert engine_of_space(spec) == engine
    assert (other_engine(spec) is None) == (engine == OWN), "RLlib alone can run it"


def test_a_resume_says_what_changed_in_the_script(tmp_path) -> None:
    folder = write_study(tmp_path, script_spec(), [])
    other = script_facts(
        source={"file": "my_train.py", "sha256": "1" * 64}, values={**script_facts().values, "gamma": 0.9}
    )
    options = RunOptions(name="demo", out=tmp_path, resume=True)
    assert resumed_identity(folder, script_spec(), options).name == "demo"
    with pytest.raises(RecordError, match=r"needs the script that the study was started with, got .*values"):
        resumed_identity(folder, script_spec(other), options)
