"""The commands as a person types them, in a folder of their own, and what they leave behind."""

import collections
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
OWN = {"STARTED_BY_TESTS": str(os.getpid())}
"""In the environment of what these tests start: others run studies on this machine too."""

SPACE = """
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 450}
parameters:
  num_env_runners: [1, 2]
  num_envs_per_env_runner: 2
  train_batch_size: {low: 200, high: 400, log: true}
  lr: {low: 1.0e-4, high: 1.0e-2, log: true}
  minibatch_size: 64
  num_epochs: 2
budget: {env_steps: 800}
search: {sampler: tpe, num_trials: 4, seeds: [1, 2]}
evaluation: {episodes: 4, num_evaluations: 2}
"""


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TUNE_", "MLFLOW_"))}
    return {**kept, **OWN, "PYTHONPATH": str(ROOT), "COLUMNS": "140"}


def command(*arguments):
    return [sys.executable, str(ROOT / "run_study.py"), *map(str, arguments)]


def study(*arguments):
    return [sys.executable, "-m", "study", *map(str, arguments)]


def run(words, cwd, *, timeout=600, codes=(0,)):
    """Run a command to its end, which must be with one of these codes; return it with its output."""
    done = subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout)
    assert done.returncode in codes, (done.returncode, done.stdout, done.stderr)
    return done


def ray_processes():
    """Return the ids of the processes of Rays that these tests have started and that run now."""
    found = []
    for process in psutil.process_iter(["pid", "name"]):
        with contextlib.suppress(psutil.Error):
            if process.info["name"] in ("gcs_server", "raylet") and OWN.items() <= process.environ().items():
                found.append(process.info["pid"])
    return found


def records(folder):
    """Return the records of a study, none where it has none yet."""
    from study.records.folder import StudyFolder
    from study.records.records import read_lines

    file = StudyFolder(folder).records
    return [line.record for line in read_lines(file)] if file.exists() else []


def mlflow_trials(uri, name):
    """Return (number of the trial, status) of every trial's run that MLflow shows."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id], "tags.`study.role` = 'trial'", max_results=1000)
    return sorted((int(run.data.tags["study.trial"]), run.info.status) for run in runs)


def assert_whole(folder, uri, num_trials, failed=()):
    """Every trial ended once, in the records and in MLflow, and every attempt began once and counted from 1."""
    from study.records.folder import StudyFolder

    ends, begun = [], collections.defaultdict(list)
    for record in records(folder):
        match record.kind:
            case "trial_started":
                begun[record.trial].append(record.attempt)
            case "iteration":
                begun[record.trial, record.attempt].append(record.iteration)
            case "trial_ended" if record.status != "interrupted":
                ends.append(record.trial)
    assert sorted(ends) == list(range(num_trials))
    expected = [(trial, "FAILED" if trial in failed else "FINISHED") for trial in range(num_trials)]
    assert mlflow_trials(uri, StudyFolder(folder).identity().name) == expected
    for numbers in begun.values():
        assert numbers == list(range(1, len(numbers) + 1)), "something began anew without saying so"
