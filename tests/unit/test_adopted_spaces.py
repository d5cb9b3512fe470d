"""A space written around a script says what the script says, and the loader reads it back."""

import pytest
from typer.testing import CliRunner

from study.adopted.writing import space_text
from study.cli.commands import app
from study.space.parsing import parse_space
from study.space.space_file import read_text
from study.space.spec import ScriptFacts
from tests.adopted import forked_readings
from tests.script_facts import facts as script_facts

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
    known = facts(stop={"env_runners/episode_return_mean": 300.0, "training_iteration": 200})
    text = space_text(known, config="my_train.py", args="--num-agents 2", runners=(1, 10, 46))
    spec = read_back(text, known)
    assert (spec.config, spec.config_args, spec.scales) == ("my_train.py", "--num-agents 2", (1, 10, 46))
    assert {name: (domain.low, domain.high, domain.log) for name, domain in spec.tuned.items()} == {
        "train_batch_size": (500, 8000, True),
        "lr": (9e-5, 9e-3, True),
    }
    assert (spec.environment.floor, spec.environment.target, spec.environment.reference) == (None, 300, None)
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
    assert "100 batches, 200,000 steps" in text  # its end is not known: a loop of its own is not read
    assert "100 batches" not in space_text(facts(stop={"training_iteration": 20}), config="my_train.py")


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
        (["quickstart.yaml", "--runners", "1,2"], "--runners: belongs to --config"),
    ],
)
def test_options_of_a_script_say_what_is_wrong(words, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(SCRIPT)
    (fault,) = CliRunner().invoke(app, ["run", "--dry-run", *words]).exception.faults
    assert str(fault).startswith(problem)
