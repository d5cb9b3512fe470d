"""An environment in a folder that only the driver's machine has, on a cluster whose second node cannot see it."""

import contextlib
import shutil
import subprocess

import pytest

from study.records.records import StudyOpened, TrialBuilt, TrialEnded
from tests.e2e.clusters import Cluster
from tests.e2e.commands import command, records, run

SPACE = """
environment: {id: "my_maze:Maze", floor: 0, reference: 20, target: 15}
parameters: {num_env_runners: 2, num_envs_per_env_runner: 2, train_batch_size: 200, minibatch_size: 100}
budget: {env_steps: 400}
search: {sampler: random, num_trials: 1}
evaluation: {episodes: 2, num_evaluations: 1}
resources: {placement: spread}
"""
MAZE = """
from pathlib import Path

import my_helper
from tests.environments import Plain


class Maze(Plain):
    def __init__(self):
        super().__init__(my_helper.number(Path(__file__).with_name("length.txt")))
"""
HELPER = """
def number(file):
    return int(file.read_text())
"""
TOKEN = "a-token-of-these-tests-" + "0" * 16
HIDE = ("unshare", "--mount", "--uts", "sh", "-c", 'mount -t tmpfs none "$0" && hostname node-2 && exec "$@"')
"""Words before a folder and a command, which then sees an empty folder there, under a host name of its own."""


@pytest.fixture
def mine(tmp_path):
    """A person's own folder: a package with a file that git ignores, and a module beside it."""
    (tmp_path / "my_maze").mkdir()
    files = {"__init__.py": MAZE, "length.txt": "20", ".gitignore": "*.txt\n", "../my_helper.py": HELPER}
    for name, text in (files | {"../space.yaml": SPACE}).items():
        (tmp_path / "my_maze" / name).write_text(text)
    return tmp_path


@pytest.fixture
def cluster(mine):
    if shutil.which("unshare") is None or subprocess.run([*HIDE, mine, "true"], capture_output=True).returncode:
        pytest.skip("this user may not hide folders from programs (unshare --mount)")
    with contextlib.closing(Cluster(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)) as cluster:
        cluster.start_head(2)
        cluster.add_node(2, "127.0.0.2", within=[*HIDE, str(mine)])
        yield cluster


def test_an_environment_in_a_folder_of_the_driver_runs_on_a_node_that_lacks_the_folder(cluster, mine):
    words = command("--space", "space.yaml", "--address", cluster.address)
    run([*cluster.settings, *words], mine, timeout=300)
    folder = mine / "studies" / "space"
    (opened,) = [record for record in records(folder) if isinstance(record, StudyOpened)]
    assert sorted(opened.provenance["own_modules"]) == ["my_helper", "my_maze"]
    assert all(len(digest) == 64 for digest in opened.provenance["own_modules"].values())
    (built,) = [record for record in records(folder) if isinstance(record, TrialBuilt)]
    assert "node-2" in {place["host"] for place in built.placement}
    (ended,) = [record for record in records(folder) if isinstance(record, TrialEnded)]
    assert ended.status == "finished"
