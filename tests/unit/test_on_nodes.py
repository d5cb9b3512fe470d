"""What is said of an environment that works on the driver's machine and not on a node."""

import pytest
from gymnasium import error as gymnasium_error

from study.errors import SpaceError
from study.trial.engine.envs.environments import make_env
from study.trial.engine.envs.probing import probe, why_not_here
from study.trial.engine.envs.wrappers import Unusable
from study.trial.failures import RunnerStartError, of_runner
from tests.spaces import spec


def reason(env_id, error):
    rule, fix = why_not_here(error, env_id)
    return f"{rule} Fix: {fix}"


def raised(make, kind):
    with pytest.raises(kind) as caught:
        make()
    return caught.value


def test_a_module_that_is_missing_itself():
    environment = spec(environment__id="no_such_maze.envs:Maze").environment
    for error in (
        raised(lambda: make_env(environment), Unusable),
        raised(lambda: probe(environment, "space"), SpaceError),
    ):
        said = "module 'no_such_maze' is not installed there. Fix: Install no_such_maze on every node."
        assert reason(environment.id, error) == said


def test_a_module_that_the_environment_needs_at_import(tmp_path, monkeypatch):
    (tmp_path / "needy_maze.py").write_text("import no_such_planner.graphs")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = spec(environment__id="needy_maze:Maze").environment
    error = raised(lambda: make_env(environment), Unusable)
    said = "module 'needy_maze' needs 'no_such_planner', which is not installed. "
    assert reason(environment.id, error) == f"{said}Fix: Install no_such_planner on every node."


def test_a_module_that_a_constructor_needs():
    error = ModuleNotFoundError("No module named 'no_such_planner'", name="no_such_planner")
    assert "module 'my_maze' needs 'no_such_planner', which" in reason("my_maze:Maze", error)
    assert "'Maze-v0' needs 'no_such_planner', which" in reason("Maze-v0", error)


def test_an_id_that_only_the_drivers_packages_register():
    environment = spec(environment__id="NoSuchPlugin/Maze-v0").environment
    error = raised(lambda: make_env(environment), Unusable)
    assert isinstance(error.__cause__, gymnasium_error.UnregisteredEnv)
    said = "no environment 'NoSuchPlugin/Maze-v0' is known there. Fix: Install the package that registers it"
    assert reason(environment.id, error) == f"{said} on every node."


def test_anything_else_keeps_its_words():
    assert reason("my_maze:Maze", OSError("no display")) == (
        "OSError: no display. Fix: Make the environment work on every node."
    )
    unusable = Unusable(where="environment.id", rule="must be", fix="Do so.", code="must-be")
    assert reason("my_maze:Maze", unusable) == "must be. Fix: Do so."


def test_the_message_of_a_runner_is_found_in_what_ray_made_of_it():
    text = 'The actor died because of an error raised in its creation task\n  File "x"\n'
    said = "env runner 3 on 10.0.0.2 (b): module 'm' needs 'n', which is not installed. Fix: Install n on every node."
    module = RunnerStartError.__module__
    assert of_runner(RuntimeError(f"{text}{module}.RunnerStartError: {said}\n")) == said
    assert of_runner(RunnerStartError(said)) == said
    assert of_runner(RuntimeError(text)) is None
