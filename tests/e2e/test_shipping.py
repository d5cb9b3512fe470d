"""An environment in a folder that only the driver's machine has, on a cluster whose second node cannot see it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from study.records.records import StudyOpened, TrialBuilt, TrialEnded
from tests.e2e.commands import ROOT, command, records, run, study
from tests.e2e.test_live_cluster import Cluster

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
"""Let a program see an empty folder in place of one, under a host name of its own."""


class HalfBlind(Cluster):
    """A cluster behind a token whose second node sees an empty folder in place of `hidden`.

    Only its head imports from `head_has`.
    """

    def __init__(self, hidden: Path, head_has: Path) -> None:
        super().__init__()
        self._hidden, self._head_has = hidden, head_has

    @property
    def settings(self) -> list[str]:
        """Words that give a command the cluster's environment."""
        return ["env", "RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={TOKEN}", f"RAY_TMPDIR={self.folder}"]

    def _ray_start(self, *words: object) -> None:
        program = [*self.settings, str(Path(sys.executable).parent / "ray"), "start", "--disable-usage-stats"]
        if "--head" in words:
            program = [*self.settings, f"PYTHONPATH={ROOT}{os.pathsep}{self._head_has}", *program[len(self.settings) :]]
        else:
            program = ["unshare", "--mount", "--uts", "sh", "-c", HIDE, str(self._hidden), *program]
        done = run([*program, *map(str, words)], self.folder, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr


def may_hide(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--mount", "--uts", "sh", "-c", HIDE, folder, "true"], capture_output=True)
    return tried.returncode == 0


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
def cluster(mine, tmp_path_factory):
    if not may_hide(mine):
        pytest.skip("this user may not hide folders from programs (unshare --mount)")
    cluster = HalfBlind(mine, tmp_path_factory.mktemp("head_has"))
    try:
        cluster.start_head(2)
        cluster.add_node(2, "127.0.0.2")
        yield cluster
    finally:
        cluster.stop()


def study_on(cluster, mine, name, *options, **environment):
    settings = [*cluster.settings, *(f"{key}={value}" for key, value in environment.items())]
    words = command("--space", "space.yaml", "--name", name, "--address", cluster.address, *options)
    return run([*settings, *words], mine, timeout=300), mine / "studies" / name


def test_an_environment_in_a_folder_of_the_driver_runs_on_a_node_that_lacks_the_folder(cluster, mine):
    done, folder = study_on(cluster, mine, "ships")
    assert done.returncode == 0, done.stdout + done.stderr
    (opened,) = [record for record in records(folder) if isinstance(record, StudyOpened)]
    assert sorted(opened.provenance["own_modules"]) == ["my_helper", "my_maze"]
    assert all(len(digest) == 64 for digest in opened.provenance["own_modules"].values())
    (built,) = [record for record in records(folder) if isinstance(record, TrialBuilt)]
    assert "node-2" in {place["host"] for place in built.placement}
    (ended,) = [record for record in records(folder) if isinstance(record, TrialEnded)]
    assert ended.status == "finished"


@pytest.mark.heavy
def test_the_doctor_finds_that_it_works_on_every_node(cluster, mine):
    words = study("doctor", "--address", cluster.address, "--space", "space.yaml", "--json")
    done = run([*cluster.settings, *words], mine, timeout=300)
    findings = [each for each in json.loads(done.stdout) if "my_maze:Maze" in each["found"]]
    assert {each["level"] for each in findings} == {"ok"}, done.stdout + done.stderr


@pytest.mark.heavy
def test_what_cannot_travel_is_refused_before_anything_is_written(cluster, mine, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "my_mazes").mkdir(parents=True)
    (tmp_path / "one" / "my_mazes" / "maze.py").write_text(MAZE)
    (tmp_path / "one" / "my_mazes" / "length.txt").write_text("20")
    path = os.pathsep.join(map(str, (ROOT, mine, tmp_path / "one", tmp_path / "two")))
    done, folder = study_on(cluster, mine, "refused", "--set", "environment.id=my_mazes.maze:Maze", PYTHONPATH=path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "environment.id: what nodes get of module 'my_mazes' must be one folder, got a namespace" in done.stderr
    assert "Fix: Make it a folder with an __init__.py, or install 'my_mazes' on every node." in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()


@pytest.mark.heavy
def test_what_is_not_installed_on_a_node_is_named_with_the_node(cluster, mine):
    (cluster._head_has / "my_planner.py").write_text("")
    helper = mine / "my_helper.py"
    helper.write_text(f"import my_planner\n{HELPER}")
    try:
        path = os.pathsep.join(map(str, (ROOT, cluster._head_has)))
        done, folder = study_on(cluster, mine, "lacks", PYTHONPATH=path)
    finally:
        helper.write_text(HELPER)
    assert done.returncode == 1, done.stdout + done.stderr
    (ended,) = [record for record in records(folder) if isinstance(record, TrialEnded)]
    assert ended.status == "failed"
    assert "on 127.0.0.2 (node-2): module 'my_maze' needs 'my_planner', which is not installed." in ended.reason
    assert ended.reason.endswith("Fix: Install my_planner on every node.")
    assert "Traceback" not in done.stdout + done.stderr
