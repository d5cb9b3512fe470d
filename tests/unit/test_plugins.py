"""Environments that installed packages register by an entry point of the group `gymnasium.envs`."""

import gymnasium
import pytest

from study.errors import SpaceError
from study.trial.engine.envs.probing import probe
from tests.spaces import spec

PLUGIN = """
import gymnasium

def register():
    gymnasium.register("Maze-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=50)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with environments in the namespace `MyPlugin`, and others in none."""
    info = tmp_path / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[gymnasium.envs]\nMyPlugin = my_plugin:register\n__root__ = my_plugin:register\n"
    )
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


@pytest.mark.parametrize("env_id", ["MyPlugin/Maze-v0", "Maze-v0"])
def test_an_environment_of_an_installed_package_is_found_by_its_id(installed, env_id):
    assert env_id not in gymnasium.registry
    assert probe(spec(environment__id=env_id).environment, "space").observation_space.shape == (4,)


def test_a_name_that_the_package_lacks_gets_the_nearest(installed):
    with pytest.raises(SpaceError, match="Did you mean 'MyPlugin/Maze-v0'"):
        probe(spec(environment__id="MyPlugin/Mace-v0").environment, "space")


def test_only_packages_that_may_know_the_id_are_asked(installed):
    with pytest.raises(SpaceError, match="no such environment"):
        probe(spec(environment__id="Other/Maze-v0").environment, "space")
    assert not [name for name in gymnasium.registry if name.endswith("Maze-v0")]
