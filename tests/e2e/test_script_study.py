"""A study of somebody's own script, by the real commands: run, evaluate, film, export, and MLflow."""

import ast
import json

import pytest
from mlflow.tracking import MlflowClient

from study.records.records import Evaluation, Iteration
from tests.e2e.commands import command, records, run, study

pytestmark = pytest.mark.minutes

SCRIPT = """
import os
import sys

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

sys.path.insert(0, "lib")
os.environ["DIFFICULTY"] = "hard"
from parts import connect


class Longest(RLlibCallback):
    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("longest", len(episode), reduce="max", window=50)


config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=1, num_envs_per_env_runner=2, env_to_module_connector=connect)
    .training(lr=0.003, train_batch_size_per_learner=400, minibatch_size=100, num_epochs=4)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], use_lstm=True, lstm_cell_size=8, max_seq_len=8))
    .callbacks(Longest)
)

if __name__ == "__main__":
    config.build_algo().train()
"""

PARTS = """
import os
from ray.rllib.connectors.env_to_module import MeanStdFilter

def connect(env=None, spaces=None, device=None):
    assert os.environ["DIFFICULTY"] == "hard"
    assert os.path.exists("lib/parts.py"), "relative names begin in the folder of the command"
    return MeanStdFilter()
"""

SPACE = """
config: my_train.py
parameters: {num_env_runners: 1, lr: 0.01}
budget: {env_steps: 1200}
search: {sampler: grid, seeds: [1]}
evaluation: {episodes: 12, num_evaluations: 1}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    (place / "my_train.py").write_text(SCRIPT)
    (place / "lib").mkdir()
    (place / "lib" / "parts.py").write_text(PARTS)
    (place / "space.yaml").write_text(SPACE)
    run(command("--space", "space.yaml", "--name", "own", "--tracking-uri", "sqlite:///mlflow.db"), place)
    return place


def test_the_policy_gets_the_returns_on_record_and_is_filmed(place):
    (recorded,) = [each for each in records(place / "studies" / "own") if isinstance(each, Evaluation)]
    found = json.loads(
        run(study("evaluate", "studies/own", "--trial", 0, "--json", "--video", "film.mp4"), place).stdout
    )
    assert (found["returns"], found["as_recorded"]) == (recorded.returns, True)
    assert (place / "film.mp4").stat().st_size > 1000


def test_the_callback_s_metric_is_in_the_records_and_in_mlflow(place):
    iterations = [each for each in records(place / "studies" / "own") if isinstance(each, Iteration)]
    logged = [each.metrics["custom/longest"] for each in iterations]
    assert len(logged) == 3 and all(value > 0 for value in logged)
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    (trial,) = [each for each in runs if any(name.endswith("custom/longest") for name in each.data.metrics)]
    (name,) = [name for name in trial.data.metrics if name.endswith("custom/longest")]
    assert [point.value for point in client.get_metric_history(trial.info.run_id, name)] == logged


def test_the_trial_s_values_are_printed_as_calls_and_as_a_space(place):
    calls = run(study("export", "studies/own", "--trial", 0), place)
    assert ast.unparse(ast.parse(calls.stdout)) == "config.training(lr=0.01)"
    (place / "again.yaml").write_text(run(study("export", "studies/own", "--format", "yaml"), place).stdout)
    run(command("--space", "again.yaml", "--dry-run"), place)
