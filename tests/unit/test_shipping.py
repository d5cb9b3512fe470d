"""Which modules of an environment travel to the nodes of a cluster, and what is said of those that cannot."""

import importlib
import sys

import pytest

from study.errors import ClusterError
from study.machine.shipping import OwnModule, own_modules, runtime_env
from tests.spaces import spec


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A person's own folder, from which modules are imported; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def modules(env_id):
    return own_modules(spec(environment__id=env_id).environment)


def test_a_file_a_package_and_what_was_imported_beside_it_travel_whole(mine):
    (mine / "ship_package" / "envs").mkdir(parents=True)
    for name in ("ship_main.py", "ship_beside.py", "ship_idle.py", "ship_package/__init__.py"):
        (mine / name).write_text("import ship_beside" if name == "ship_main.py" else "")
    assert modules("ship_package.envs:Maze") == (OwnModule(name="ship_package", path=mine / "ship_package"),)
    (alone,) = modules("ship_main:Maze")
    assert runtime_env([alone])["py_modules"] == [str(mine / "ship_main.py")]
    importlib.import_module("ship_main")
    assert [each.name for each in modules("ship_main:Maze")] == ["ship_main", "ship_beside"]


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        "gymnasium.envs.classic_control:CartPoleEnv",  # site-packages
        "unittest.mock:Mock",  # standard library
        "study.trial.engine.envs.environments:EnvFactory",  # every node has this project
        "__main__:Maze",
        "no_such_module:Maze",
    ],
)
def test_what_is_installed_or_not_there_stays(env_id):
    assert modules(env_id) == ()


def test_what_ray_has_brought_itself_stays(tmp_path, monkeypatch):
    place = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0"
    place.mkdir(parents=True)
    (place / "ship_of_job.py").touch()
    monkeypatch.syspath_prepend(str(place))
    assert modules("ship_of_job:Maze") == ()


def test_what_is_no_python_source_is_refused(mine):
    with pytest.raises(ClusterError, match="must be a folder or a"):
        runtime_env([OwnModule(name="ship_compiled", path=mine / "ship_compiled.cpython-311-x86_64-linux-gnu.so")])


def test_the_digest_follows_content_and_names_but_no_caches(mine):
    folder = mine / "ship_digest"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1")
    module = OwnModule(name="ship_digest", path=folder)
    first = module.digest
    (folder / "__pycache__" / "x.pyc").write_text("x")
    assert module.digest == first
    (folder / "data.txt").write_text("1")
    second = module.digest
    (folder / "data.txt").rename(folder / "other.txt")
    assert len({first, second, module.digest}) == 3


def test_variables_of_a_script_travel_and_what_it_removes_stays_as_a_node_has_it():
    assert runtime_env((), {"DIFFICULTY": "hard"}) == {"env_vars": {"DIFFICULTY": "hard"}}
    assert runtime_env(()) is None
