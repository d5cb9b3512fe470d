"""An environment in a folder that only the driver's machine has, on a cluster whose second node cannot see it."""

import shutil
import subprocess
from pathlib import Path

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

import gymnasium
import numpy as np
import my_helper
from gymnasium.spaces import Box, Discrete


class Maze(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def __init__(self):
        self.length = int(Path(__file__).with_name("length.txt").read_text())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return my_helper.look(self.np_random), {}

    def step(self, action):
        self.steps += 1
        return my_helper.look(self.np_random), 1.0, self.steps == self.length, False, {}
"""
HELPER = """
import numpy as np


def look(random):
    return random.uniform(-1, 1, 2).astype(np.float32)
"""
TOKEN = "a-token-of-these-tests-" + "0" * 16
HIDE = 'mount -t tmpfs none "$0" && hostname node-2 && exec "$@"'


def hiding(folder: Path) -> list[str]:
    """Return the words before a command that sees an empty folder in place of one, under a host name of its own."""
    return ["unshare", "--mount", "--uts", "sh", "-c", HIDE, str(folder)]


def may_hide(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*hiding(folder), "true"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A person's own folder: a package with a file that git ignores, and a module beside it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "my_maze").mkdir()
    (folder / "my_maze" / "__init__.py").write_text(MAZE)
    (folder / "my_maze" / "length.txt").write_text("20")
    (folder / "my_maze" / ".gitignore").write_text("*.txt\n")
    (folder / "my_helper.py").write_text(HELPER)
    (folder / "space.yaml").write_text(SPACE)
    return folder


@pytest.fixture(scope="module")
def cluster(mine):
    if not may_hide(mine):
        pytest.skip("this user may not hide folders from programs (unshare --mount)")
    cluster = Cluster(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    try:
        cluster.start_head(2)
        cluster.add_node(2, "127.0.0.2", within=hiding(mine))
        yield cluster
    finally:
        cluster.stop()


def test_an_environment_in_a_folder_of_the_driver_runs_on_a_node_that_lacks_the_folder(cluster, mine):
    words = command("--space", "space.yaml", "--address", cluster.address)
    done, folder = run([*cluster.settings, *words], mine, timeout=300), mine / "studies" / "space"
    assert done.returncode == 0, done.stdout + done.stderr
    (opened,) = [record for record in records(folder) if isinstance(record, StudyOpened)]
    assert sorted(opened.provenance["own_modules"]) == ["my_helper", "my_maze"]
    assert all(len(digest) == 64 for digest in opened.provenance["own_modules"].values())
    (built,) = [record for record in records(folder) if isinstance(record, TrialBuilt)]
    assert "node-2" in {place["host"] for place in built.placement}
    (ended,) = [record for record in records(folder) if isinstance(record, TrialEnded)]
    assert ended.status == "finished"
