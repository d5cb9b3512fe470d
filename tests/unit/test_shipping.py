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


def names(env_id):
    return [module.name for module in own_modules(spec(environment__id=env_id).environment)]


def package(folder, name, text=""):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    return folder / name


def test_a_file_of_ones_own_travels(mine):
    (mine / "ship_file.py").write_text("")
    (module,) = own_modules(spec(environment__id="ship_file:Maze").environment)
    assert module.paths == (mine / "ship_file.py",)
    assert runtime_env([module])["py_modules"] == [str(mine / "ship_file.py")]


def test_a_package_travels_whole(mine):
    package(package(mine, "ship_package"), "envs")
    (module,) = own_modules(spec(environment__id="ship_package.envs:Maze").environment)
    assert (module.name, module.paths) == ("ship_package", (mine / "ship_package",))


def test_modules_beside_it_travel_once_they_are_imported(mine):
    for name in ("ship_main", "ship_beside", "ship_idle"):
        (mine / f"{name}.py").write_text("import ship_beside" if name == "ship_main" else "")
    assert names("ship_main:Maze") == ["ship_main"]
    importlib.import_module("ship_main")
    assert names("ship_main:Maze") == ["ship_main", "ship_beside"]


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
    assert names(env_id) == []


def test_what_ray_has_brought_itself_stays(tmp_path, monkeypatch):
    place = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0"
    package(place, "ship_of_job")
    monkeypatch.syspath_prepend(str(place))
    assert names("ship_of_job:Maze") == []


def test_a_folder_without_init_travels_but_not_several_of_one_name(mine, monkeypatch):
    (mine / "ship_loose").mkdir()
    (module,) = own_modules(spec(environment__id="ship_loose.maze:Maze").environment)
    assert runtime_env([module])["py_modules"] == [str(mine / "ship_loose")]
    (mine / "more" / "ship_loose").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(mine / "more"))
    found = own_modules(spec(environment__id="ship_loose.maze:Maze").environment)
    with pytest.raises(ClusterError, match=r"must be one folder or one .*Fix: Make it a folder"):
        runtime_env(found)


def test_what_is_no_python_source_is_refused(mine):
    library = mine / "ship_compiled.cpython-311-x86_64-linux-gnu.so"
    library.touch()
    with pytest.raises(ClusterError, match="must be one folder or one"):
        runtime_env([OwnModule(name="ship_compiled", paths=(library,))])


def test_the_digest_follows_content_and_names_but_no_caches(mine):
    folder = package(mine, "ship_digest", "a = 1")
    module = OwnModule(name="ship_digest", paths=(folder,))
    first = module.digest
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("x")
    assert module.digest == first
    (folder / "data.txt").write_text("1")
    second = module.digest
    (folder / "data.txt").rename(folder / "other.txt")
    assert len({first, second, module.digest}) == 3


def test_variables_of_a_script_travel_and_what_it_removes_stays_as_a_node_has_it():
    assert runtime_env((), {"DIFFICULTY": "hard"}) == {"env_vars": {"DIFFICULTY": "hard"}}
    assert runtime_env(()) is None
