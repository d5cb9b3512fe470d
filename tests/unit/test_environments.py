import pickle
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit

from study.errors import SpaceError
from study.spec import EnvironmentSpec
from study.trial.environments import env_factory, make_env, probe


def environment(env_id: str, **content: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"id": env_id, "floor": 0, "reference": 1, "target": 1, **content})


def fault(env_id: str, **content: Any) -> tuple[str, str]:
    with pytest.raises(SpaceError) as raised:
        probe(environment(env_id, **content), "my.yaml")
    (only,) = raised.value.faults
    assert str(raised.value).startswith("my.yaml: 1 problem")
    return only.place, f"{only.law} {only.fix}"


@pytest.mark.parametrize(
    ("env_id", "kwargs", "features"),
    [
        ("CartPole-v1", {}, 4),
        ("Acrobot-v1", {}, 6),
        ("LunarLander-v3", {"continuous": True}, 8),
        ("FrozenLake-v1", {}, 16),  # Discrete: one-hot
        ("Blackjack-v1", {}, 32 + 11 + 2),  # Tuple of Discrete
        ("tests.environments:Mixed", {}, 3 + 2 + 4 + 2),  # Dict of everything
    ],
)
def test_observations_are_flat_floats(env_id: str, kwargs: dict[str, Any], features: int) -> None:
    spaces = probe(environment(env_id, kwargs=kwargs), "my.yaml")
    assert isinstance(spaces.observation_space, Box)
    assert spaces.observation_space.shape == (features,)
    assert spaces.observation_space.dtype == np.float32
    observation, _ = make_env(environment(env_id, kwargs=kwargs)).reset(seed=1)
    assert observation.dtype == np.float32
    assert spaces.observation_space.contains(observation)


def test_kwargs_reach_the_constructor() -> None:
    assert isinstance(probe(environment("LunarLander-v3"), "").action_space, Discrete)
    assert isinstance(probe(environment("LunarLander-v3", kwargs={"continuous": True}), "").action_space, Box)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "tests.environments:Endless"])
def test_episodes_are_truncated_at_the_limit(env_id: str) -> None:
    env = make_env(environment(env_id, max_episode_steps=3))
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_without_a_limit_the_environment_keeps_its_own() -> None:
    env = make_env(environment("Acrobot-v1"))
    while not isinstance(env, TimeLimit):
        env = env.env
    assert env._max_episode_steps == 500


def test_the_factory_travels() -> None:
    factory = pickle.loads(pickle.dumps(env_factory(environment("CartPole-v1"))))
    assert factory({"ignored": 1}).reset(seed=3)[0] == pytest.approx(
        make_env(environment("CartPole-v1")).reset(seed=3)[0]
    )


def test_an_unknown_id_names_the_nearest() -> None:
    place, text = fault("Acrobt-v1")
    assert place == "environment.id"
    assert "'Acrobt-v1'" in text
    assert "Did you mean 'Acrobot-v1'?" in text


def test_an_unknown_module_is_named() -> None:
    place, text = fault("no_such_module_here:Env")
    assert (place, "'no_such_module_here'" in text) == ("environment.id", True)


def test_an_unknown_class_names_the_nearest() -> None:
    place, text = fault("tests.environments:Raise")
    assert place == "environment.id"
    assert "Did you mean 'tests.environments:Raises'?" in text


def test_a_module_that_lacks_a_dependency_names_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_much.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, text = fault("needs_much:Env")
    assert "needs 'not_there_at_all'" in text


def test_a_missing_extra_is_named() -> None:
    pytest.importorskip("gymnasium")
    try:
        import mujoco  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        _, text = fault("Ant-v5")
        assert "mujoco" in text.lower()
    else:
        pytest.skip("MuJoCo is installed")


def test_an_unknown_argument_is_a_fault_of_kwargs() -> None:
    place, text = fault("CartPole-v1", kwargs={"gravitation": 3})
    assert (place, "gravitation" in text) == ("environment.kwargs", True)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("tests.environments:OldApi", "`step`"),
        ("tests.environments:GraphObservations", "observations must be arrays"),
        ("tests.environments:TupleActions", "actions must be"),
        ("json:JSONDecoder", "must make a gymnasium.Env"),
    ],
)
def test_what_cannot_be_trained_is_refused(env_id: str, words: str) -> None:
    place, text = fault(env_id)
    assert (place, words in text) == ("environment.id", True)


def test_what_the_environment_raises_is_shown() -> None:
    _, text = fault("tests.environments:Raises", kwargs={"at_step": 1})
    assert "ZeroDivisionError: planted fault at step 1" in text


def test_a_probe_is_quick() -> None:
    started = time.perf_counter()
    probe(environment("Acrobot-v1"), "")
    assert time.perf_counter() - started < 1


def test_an_environment_whose_first_step_hangs_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("study.trial.environments.PROBE_TIMEOUT_S", 0.3)
    hangs = EnvironmentSpec(id="tests.environments:Hangs", kwargs={"at_step": 1}, floor=0, reference=1, target=1)
    with pytest.raises(SpaceError, match="made, reset and stepped within"):
        probe(hangs, "test")
