"""`python -m study evaluate` on a study that really ran: the figures on record come out again, and a film of them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.records.records import Evaluation, TrialStarted
from tests.e2e.commands import command, records, run, study

SPACE = """
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 100}
parameters:
  num_env_runners: [1, 2]
  num_envs_per_env_runner: 2
  train_batch_size: 400
  lr: {low: 1.0e-3, high: 1.0e-2, log: true}
  minibatch_size: 64
  num_epochs: 4
budget: {env_steps: 2000}
execution: emulated
search: {sampler: random, num_trials: 2, seeds: [1]}
evaluation: {episodes: 70, num_evaluations: 2}
"""
"""More episodes than are played side by side, so that lanes go on with another one."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    (place / "space.yaml").write_text(SPACE)
    run(command("--space", "space.yaml", "--name", "tiny"), place)
    return place


@pytest.fixture(scope="module")
def folder(place):
    return place / "studies" / "tiny"


def evaluated(*words):
    """Run the command in this process; return what it says as JSON."""
    done = CliRunner().invoke(cli.app, ["evaluate", *map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_recorded_final_evaluation_comes_out_return_by_return(folder):
    ends = [each for each in records(folder) if isinstance(each, Evaluation) and each.progress >= 1]
    recorded = {each.trial: each.returns for each in ends}
    assert sorted(recorded) == [0, 1]
    for trial, returns in recorded.items():
        found = evaluated(folder, "--trial", trial)
        assert (found["returns"], found["n"], found["seed"], found["as_recorded"]) == (returns, 70, 10_000, True)
        assert len(set(returns)) > 10  # not equal by being all the same
    best = max(recorded, key=lambda trial: np.mean(recorded[trial]))
    found = evaluated(folder)
    assert (found["trial"], found["chosen_among"], found["returns"]) == (best, 2, recorded[best])
    other = evaluated(folder, "--trial", 0, "--episodes", 5, "--seed", 3)
    assert other["returns"] != recorded[0][:5] and other["as_recorded"] is None


def test_the_command_says_the_numbers_and_its_film_goes_to_mlflow(folder, place):
    from mlflow import MlflowClient

    done = run(study("evaluate", folder, "--video", f"{folder}/clips/best.mp4"), place)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny: trial ")
    assert any(line.startswith("These are the returns of the trial's last evaluation on record") for line in lines)
    assert lines[-1] == f"Film: {folder}/clips/best.mp4"
    assert "WARNING" not in done.stderr  # RLlib's, of its own deprecated calls
    run(study("sync", folder), place)
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "tiny"]
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`study.role` = 'study'")
    assert [each.path for each in client.list_artifacts(parent.info.run_id, "clips")] == ["clips/best.mp4"]


def test_a_trial_is_repeated_on_new_seeds_as_a_study_beside_it(folder, place):
    for _ in range(2):  # the same line goes on with it: nothing is left to do
        done = run(study("repeat", folder, "--trial", 1, "--seeds", 2), place)
    began = {each.trial: each for each in records(folder) if isinstance(each, TrialStarted)}
    again = [each for each in records(place / "studies" / "tiny-trial-1") if isinstance(each, TrialStarted)]
    assert sorted(each.seed for each in again) == [2, 3]
    assert {json.dumps(each.setting) for each in again} == {json.dumps(began[1].setting)}
    assert {each.execution for each in again} == {"emulated"}  # as the trial ran, where one real runner would fit
    assert "tiny-trial-1" in done.stdout
