import contextlib
import importlib.util
import sys
import threading
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from study.driver.run import settled
from study.errors import SpaceError, TrialError
from study.machine.shipping import own_modules
from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.environments import EnvFactory, make_env, make_lane_envs
from study.trial.engine.envs.probing import (
    Spaces,
    check_network,
    probe,
    probe_study,
    sharing_of,
    speeds_of,
    why_not_here,
)
from tests.spaces import spec

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")


def environment(env_id: str, **content: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"id": env_id, "floor": 0, "reference": 1, "target": 1, **content})


def fault(env_id: str, **content: Any) -> tuple[str, str]:
    with pytest.raises(SpaceError) as raised:
        probe(environment(env_id, **content), "my.yaml")
    (only,) = raised.value.faults
    assert str(raised.value).startswith("my.yaml: 1 problem")
    return only.where, f"{only.problem} {only.fix}"


@pytest.mark.parametrize(
    ("env_id", "kwargs", "features"),
    [
        ("LunarLander-v3", {"continuous": True}, 8),
        ("FrozenLake-v1", {}, 16),  # Discrete: one-hot
        ("Blackjack-v1", {}, 32 + 11 + 2),  # Tuple of Discrete
        ("tests.environments:Mixed", {}, 3 + 2 + 4 + 2),  # Dict of everything
    ],
)
def test_observations_are_flat_floats(env_id: str, kwargs: dict[str, Any], features: int) -> None:
    space = probe(environment(env_id, kwargs=kwargs), "my.yaml").observation_space
    assert (space.shape, space.dtype) == ((features,), np.float32)
    observation, _ = make_env(environment(env_id, kwargs=kwargs)).reset(seed=1)
    assert observation.dtype == np.float32
    assert space.contains(observation)


HERE = "tests.environments:"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Acrobot-v0", {}, "got 'Acrobot-v0'. Did you mean 'Acrobot-v1'?"),
    ("no_such_module_here:Env", {}, "module 'no_such_module_here' must be there"),
    (f"{HERE}Atstep", {}, "Did you mean 'tests.environments:AtStep'?"),
    ("../my_maze:Maze", {}, "module '../my_maze' must be there"),
    ("json:JSONDecoder", {}, "must make a gymnasium.Env"),
    (f"{HERE}NoSpaces", {}, "must have an `observation_space` of arrays of a fixed size, got None"),
    (f"{HERE}TupleActions", {}, "actions must be"),
    (f"{HERE}Returns", {"reward": [1.0]}, "must be finite numbers, got [1.0] of shape (1,)"),
    (f"{HERE}OldApi", {}, "(expected 5, got 3). Try it in Python, as Gymnasium has it: reset(seed=0) returns"),
    (f"{HERE}NanObservation", {"at_step": 0}, "must be finite, the first one is not"),
    (f"{HERE}AtStep", {"at_step": 1}, "ZeroDivisionError: planted fault at step 1"),
    # A constructor that fails says so on one line, and its arguments are not blamed.
    (f"{HERE}BreaksAtOnce", {"how": "mistake"}, "got TypeError: unsupported operand"),
    (f"{HERE}BreaksAtOnce", {"how": "exit"}, "got SystemExit: the licence server says no (environments.py, line "),
    # An id of another library is not taken for a slip.
    ("Nowhere/Maze-v0", {}, "or module:Id of a package that registers it, as ale_py:ALE/Pong-v5."),
]


BY_ENVPOOL: list[tuple[str, dict[str, Any], str, str]] = [
    ("Acrobt-v1", {}, "id", "Did you mean 'Acrobot-v1'?"),
    (f"{HERE}Plain", {}, "id", "no such environment, got 'tests.environments:Plain'"),
    ("ConnectFour-v1", {}, "id", "must be for one player"),
    ("MiniGrid-Empty-5x5-v0", {}, "id", "observations are one array, got 'MiniGrid-Empty-5x5-v0' with Dict"),
    ("Taxi-v3", {}, "id", "or `backend: gymnasium`"),
    ("CartPole-v1", {"gravitation": 3}, "kwargs", "gravitation"),
    ("CartPole-v1", {"batch_size": 2}, "kwargs", "batch_size"),
    ("Catch-v0", {"height": "many"}, "kwargs", "__init__(): incompatible constructor arguments. Change"),
]


@pytest.mark.parametrize(
    ("backend", "env_id", "kwargs", "where", "words"),
    [
        *(("gymnasium", env_id, kwargs, "id", words) for env_id, kwargs, words in REFUSED),
        *(pytest.param("envpool", *each, marks=needs_envpool) for each in BY_ENVPOOL),
    ],
)
def test_what_cannot_be_made_or_trained_is_refused_in_one_line(backend, env_id, kwargs, where, words) -> None:
    place, text = fault(env_id, kwargs=kwargs, backend=backend)
    assert (place, words in text, "\n" in text) == (f"environment.{where}", True, False), text


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("CartPole-v1", {"gravitation": 3}, "must suit the constructor of 'CartPole-v1'"),
        ("LunarLander-v3", {"continuous": True}, r"\(8,\) and Discrete\(4\), got \(8,\) and Box\(-1.0, 1.0, \(2,\),"),
        ("FrozenLake-v1", {"is_slippery": False}, None),
    ],
)
def test_the_environment_of_the_evaluation_is_tried_too(env_id: str, kwargs: dict[str, Any], words: str | None) -> None:
    asked = spec(environment__id=env_id, evaluation__kwargs=kwargs)
    if words is None:
        assert probe_study(asked, "my.yaml").observation_space.shape == (16,)
        return
    with pytest.raises(SpaceError, match=rf"my\.yaml: 1 problem\n  evaluation\.kwargs: .*{words}"):
        probe_study(asked, "my.yaml")


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("ends", r"environment\.id: the process of an environment must live .*, got exit code 3"),
        ("raises", r"ZeroDivisionError: planted fault.*environments\.py, line \d+"),
    ],
)
def test_what_fails_in_the_process_that_tries_it_is_refused_here(does, words) -> None:
    asked = spec(environment__id=f"{HERE}AtStep", environment__kwargs={"at_step": 1, "does": does})
    with pytest.raises(SpaceError, match=words):
        probe_study(asked, "my.yaml")
    assert speeds_of(asked.environment) is None


def test_threads_and_words_of_an_environment_stay_out_of_the_process_that_tries_it(capfd) -> None:
    before = threading.active_count()
    assert probe_study(spec(environment__id="tests.environments:LeavesAThread"), "my.yaml").observation_space.shape
    assert speeds_of(spec(environment__id="tests.environments:LeavesAThread").environment) is not None
    assert (threading.active_count(), "licence" in "".join(capfd.readouterr())) == (before, False)


def test_what_an_environment_imports_where_it_is_tried_is_known_here(tmp_path, monkeypatch) -> None:
    (tmp_path / "tried_maze.py").write_text(
        "from tests.environments import Plain\n"
        "class Maze(Plain):\n    def __init__(self):\n        import tried_helper\n        super().__init__()\n"
    )
    (tmp_path / "tried_helper.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = spec(environment__id="tried_maze:Maze")
    probe_study(asked, "my.yaml")
    assert "tried_helper" not in sys.modules
    assert [each.name for each in own_modules(asked.environment)] == ["tried_maze", "tried_helper"]


def test_an_environment_whose_first_step_hangs_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("study.trial.engine.envs.probing.PROBE_TIMEOUT_S", 0.3)
    assert "made, reset and stepped within" in fault(f"{HERE}AtStep", kwargs={"at_step": 1, "does": "hangs"})[1]


def test_images_stay_images_in_the_unit_range_and_blocks_keep_their_values() -> None:
    space = probe(environment("tests.environments:Picture"), "").observation_space
    assert (space.shape, space.dtype, space.low.min(), space.high.max()) == ((4, 6, 3), np.float32, 0, 1)
    image, _ = make_env(environment("tests.environments:Picture")).reset(seed=0)
    assert (image[0, 5, 2], image[3, 0, 1], image.sum()) == (1, np.float32(0.2), np.float32(1.2))
    block, _ = make_env(environment("tests.environments:Block")).reset(seed=0)
    assert (block.shape, block.dtype, block.min(), block.max()) == ((2, 3, 4), np.float32, -5, 5)


# EnvPool


def test_an_envpool_that_is_missing_says_so(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    place, text = fault("CartPole-v1", backend="envpool")
    assert (place, "pip install 'envpool" in text) == ("environment.backend", True)
    with pytest.raises(TrialError, match=r"environment\.backend: what .* needs of EnvPool must be installed"):
        make_lane_envs(EnvFactory(environment("CartPole-v1", backend="envpool")), [1])


@needs_envpool
@pytest.mark.parametrize(
    ("env_id", "shape"),
    [
        ("HalfCheetah-v5", (17,)),  # float64, and float64 actions
        ("CarRacing-v3", (96, 96, 3)),  # channels last
        ("Pong-v5", (84, 84, 4)),  # channels first
    ],
)
def test_what_envpool_observes(env_id: str, shape: tuple[int, ...]) -> None:
    of_it = environment(env_id, backend="envpool")
    spaces, env = probe(of_it, ""), make_env(of_it)
    assert (spaces.observation_space.shape, spaces.observation_space.dtype) == (shape, np.float32)
    for observation in (env.reset(seed=3)[0], env.step(env.action_space.sample())[0]):
        assert observation.dtype == np.float32
        assert spaces.observation_space.contains(observation)
        assert len(shape) == 1 or 0.3 < observation.max() <= 1


@pytest.mark.parametrize(
    ("shape", "filters", "words"),
    [
        ((5,), [[16, 4, 2]], r"convolutions are for images, got observations of shape \(5,\)"),
        ((50, 50, 3), None, r"model\.conv_filters: must be given: .* got observations of shape \(50, 50, 3\)"),
        ((3, 84, 84), None, r"environment\.id: images must have their channels last, .* shape \(3, 84, 84\)"),
        ((3, 84, 84), [[16, 4, 2]], None),
        ((50, 50, 3), [[16, 4, 2]], None),
        ((84, 84, 4), None, None),
    ],
)
def test_convolutions_are_asked_for_where_rllib_has_none(shape, filters, words):
    spaces = Spaces(observation_space=Box(0, 1, shape, np.float32), action_space=Discrete(2))
    model = spec(model__conv_filters=filters).model
    refused = contextlib.nullcontext() if words is None else pytest.raises(SpaceError, match=words)
    with refused:
        check_network(model, spaces, "space")


def test_what_is_missing_on_a_node_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy_maze.py").write_text("import no_such_planner.graphs")
    monkeypatch.syspath_prepend(str(tmp_path))
    for env_id, missing in (
        ("no_such_maze.envs:Maze", "module 'no_such_maze' must be there, which 'no_such_maze.envs:Maze' needs"),
        ("needy_maze:Maze", "module 'no_such_planner' must be there, which 'needy_maze:Maze' needs"),
        ("NoSuchPlugin/Maze-v0", "no such environment, got 'NoSuchPlugin/Maze-v0'"),
    ):
        for make, kind in ((make_env, TrialError), (lambda spec: probe(spec, "space"), SpaceError)):
            with pytest.raises(kind) as raised:
                make(environment(env_id))
            rule, fix = why_not_here(raised.value, env_id)
            assert missing in rule and "every node" in fix


def test_an_environment_is_played_for_a_moment_until_it_fails():
    found = speeds_of(spec(environment__id="CartPole-v1").environment)
    assert 10 < found.episode_steps < 60 and found.observation_shape == (4,)
    assert 0 < found.step_s < 0.1
    assert speeds_of(spec(environment__id="NoSuch-v0").environment) is None
    fails = {"environment__id": "tests.environments:AtStep", "environment__kwargs": {"at_step": 3}}
    assert speeds_of(spec(**fails).environment).step_s > 0
    strays = {**fails, "environment__kwargs": {"at_step": 3, "does": "strays"}}
    assert speeds_of(spec(**strays).environment).outside == "2.5 at place 1, where -1 to 1 are declared"
    assert not speeds_of(spec(environment__id="tests.environments:Plain").environment).outside


# --- simulators that keep state in their process ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sharing"),
    [
        ("CartPole-v1", "harmless"),
        ("tests.environments:Mixed", "harmless"),
        ("tests.environments:DrawsGlobally", "harmless"),
        ("tests.environments:OneWorld", "wrong"),  # as libsumo, or a physics client that everybody uses
        ("tests.environments:OnlyOne", "wrong"),  # the second one cannot be made
        ("tests.environments:Unseeded", "unknown"),
        ("tests.environments:AtStep", "harmless"),  # both raise alike: the trials will say so
    ],
)
def test_what_sharing_a_process_does(name: str, sharing: str) -> None:
    kwargs = {"at_step": 7} if name.endswith("AtStep") else {}
    assert sharing_of(environment(name, kwargs=kwargs)) == sharing


def test_a_study_whose_environments_would_share_a_process_that_they_may_not_is_refused() -> None:
    noted: list[str] = []
    alone = {"environment__id": "tests.environments:OneWorld", "parameters__num_envs_per_env_runner": 1}

    def settle(changes):
        asked = spec(**changes)
        options = {"fused_obstacle": "", "source": "my.yaml", "note": noted.append}
        return settled(asked, sharing=sharing_of(asked.environment), **options)

    kept = settle(alone)
    assert (kept.environment.process, len(noted)) == ("own", 1)
    assert "keeps state in its process" in kept.not_emulated
    several = {**alone, "parameters__num_envs_per_env_runner": 2}
    for changes, place in ((several, "num_envs_per_env_runner"), ({**alone, "execution": "emulated"}, "execution")):
        with pytest.raises(SpaceError, match=rf"my\.yaml: 1 problem\n  .*{place}: "):
            settle(changes)
        with pytest.raises(SpaceError, match=place):
            spec(**changes, environment__process="own")
    assert settle({}).environment == spec().environment
    assert len(noted) == 1
