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
from tests.holdup import write_study
from tests.scripts import FACTS, facts, forked_readings, script_spec
from tests.spaces import read_again


def read_back(text: str, of: ScriptFacts):
    source = read_text(text, name="my_space.yaml")
    source.content["script"] = of.model_dump(mode="json")
    return parse_space(source)


def test_a_space_varies_runners_batch_and_learning_rate_around_the_script_s_values():
    known = facts(stop={"training_iteration": 200})
    spec = read_back(space_text(known, config="my_train.py", args="--num-agents 2", runners=(1, 10, 46)), known)
    assert (spec.config, spec.config_args, spec.scales) == ("my_train.py", "--num-agents 2", (1, 10, 46))
    assert {name: (domain.low, domain.high, domain.log) for name, domain in spec.tuned.items()} == {
        "train_batch_size": (100, 1600, True),
        "lr": (1e-4, 1e-2, True),
    }
    (baseline,) = spec.search.baselines
    assert (baseline.name, baseline.parameters) == ("my_train", {"train_batch_size": 400, "lr": 0.001})
    assert (spec.search.num_trials, spec.fixed["num_epochs"]) == (12, 2)  # what the space does not name: the script's


VALUES = FACTS["values"]
OF_DQN = {name: VALUES[name] for name in ("num_env_runners", "num_envs_per_env_runner", "lr")} | {
    "train_batch_size": 32
}


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        ({"algorithm": "DQN", "base_algorithm": "DQN", "values": OF_DQN}, (8, 128)),  # of a replay buffer: no lanes
        ({"algorithm": "VPG", "base_algorithm": "Algorithm"}, None),  # it may not be read
        ({"schedules": ["lr"], "values": {**VALUES, "lr": None}}, (100, 1600)),
    ],
)
def test_what_can_be_varied_depends_on_the_algorithm_and_on_schedules(changes, batch):
    known = facts(**changes, searched=["broadcast_interval", "lr"])
    text = space_text(known, config="my_train.py")
    spec = read_back(text, known)
    assert (spec.scales, "lr" in spec.tuned) == ((1, 2, 4), "schedules" not in changes)
    found = spec.tuned.get("train_batch_size")
    assert (None if found is None else (found.low, found.high)) == batch
    assert "`broadcast_interval` and `lr`" in text
    assert ("(drawn)" in text) == ("lr" in spec.tuned)
    assert spec.budget.env_steps == 100 * known.values["train_batch_size"]  # its end is not known


@pytest.mark.parametrize(
    ("stop", "algorithm", "budget"),
    [
        ({"training_iteration": 5}, "PPO", (2000, None)),
        ({"training_iteration": 5, "env_runners/num_env_steps_sampled_lifetime": 1800}, "PPO", (1800, None)),
        ({"env_runners/num_env_steps_sampled_lifetime": 100}, "PPO", (400, None)),  # it trains a whole batch
        ({"training_iteration": 5}, "APPO", (40_000, None)),  # an iteration is a span of time
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
        planned = CliRunner().invoke(app, ["run", "--dry-run", "--space", "my_space.yaml"])
        assert planned.exit_code == 0, planned.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--config", "my_train.py", "--runners", "1,0"], "--runners: must be distinct numbers of runners above zero"),
        (["--config", "my_train.py", "--config-args", "it's"], "--config-args: must be words, got it's"),
        (["--config", "my_train.py", "--space", "quickstart.yaml"], "--space: must be given, or --config in its place"),
        (["--space", "quickstart.yaml", "--runners", "1,2"], "--runners, --config-args: belong to --config"),
    ],
)
def test_options_of_a_script_say_what_is_wrong(words, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(SCRIPT)
    (fault,) = CliRunner().invoke(app, ["run", "--dry-run", *words]).exception.faults
    assert str(fault).startswith(problem)


# --- what the study sets ----------------------------------------------------------------------------------------------


def test_the_script_gives_what_the_space_does_not_say() -> None:
    spec = script_spec()
    assert (spec.algorithm, spec.environment.id) == ("PPO", "CartPole-v1")
    own = {name: value for name, value in facts().values.items() if value is not None}
    assert runnable(spec, {"num_env_runners": 2, "lr": 0.002}) == {**own, "lr": 0.002}
    varied = {"num_env_runners": [2, 4], "lr": 0.001, "grad_clip": 0.5, "steps_per_env_runner": 100}
    assert runnable(script_spec(parameters=varied), {"num_env_runners": 4})["train_batch_size"] == 400
    values = {"num_env_runners": 1, "num_envs_per_env_runner": 1, "train_batch_size": 8}
    sac = facts(algorithm="SAC", base_algorithm="SAC", values=values, runner_obstacle="the algorithm is SAC")
    spec = script_spec(sac, parameters={"num_env_runners": [1, 46]})
    assert spec.learner_in_use == "rllib"
    assert runnable(spec, {"num_env_runners": 46}) == {**values, "num_env_runners": 46}, "no batch of lanes"


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


def test_another_script_is_another_study_and_a_resume_says_what_changed(tmp_path) -> None:
    spec = script_spec()
    assert read_again(spec) == spec
    source = {"file": "my_train.py", "sha256": "1" * 64}
    other = script_spec(facts(source=source, values={**facts().values, "gamma": 0.9}))
    assert other.digest() != spec.digest()
    folder, options = write_study(tmp_path, spec, []), RunOptions(name="demo", out=tmp_path, resume=True)
    assert resumed_identity(folder, spec, options).name == "demo"
    with pytest.raises(RecordError, match=r"needs the script that the study was started with, got .*values"):
        resumed_identity(folder, other, options)
