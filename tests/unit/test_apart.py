"""Environments that keep state in their process: noticed before the first trial, and each played in its own."""

import contextlib
import os
from functools import partial

import numpy as np
import pytest

from study.errors import TrialError
from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.apart import ApartEnv
from study.trial.engine.envs.environments import EnvFactory, make_env, make_lane_envs
from study.trial.engine.envs.probing import sharing_of
from study.trial.settling import with_lasting_process
from tests.spaces import spec as space


def environment(name: str, **values: object) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"id": name, **values})


@pytest.mark.parametrize(
    ("name", "sharing"),
    [
        ("CartPole-v1", "harmless"),
        ("tests.environments:Plain", "harmless"),
        ("tests.environments:Mixed", "harmless"),
        ("tests.environments:DrawsGlobally", "harmless"),
        ("tests.environments:OneWorld", "wrong"),  # as libsumo, or a physics client that everybody uses
        ("tests.environments:OnlyOne", "wrong"),  # the second one cannot be made
        ("tests.environments:Unseeded", "unknown"),
        ("tests.environments:Raises", "harmless"),  # both raise alike: the trials will say so
    ],
)
def test_what_sharing_a_process_does(name: str, sharing: str) -> None:
    kwargs = {"at_step": 7} if name.endswith("Raises") else {}
    assert sharing_of(environment(name, kwargs=kwargs)) == sharing


def returns(factory: EnvFactory, lanes: int) -> list[float]:
    """Play an episode of 20 steps in each of several lanes, and return the sums of rewards."""
    with contextlib.closing(make_lane_envs(factory, range(lanes))) as envs:
        seen = np.zeros((lanes, *envs.observation_space.shape), np.float32)
        rewards, ends, cuts = np.zeros(lanes, np.float32), np.zeros(lanes, bool), np.zeros(lanes, bool)
        totals = np.zeros(lanes)
        envs.reset(seen)
        for _ in range(20):
            envs.step(np.ones(lanes, np.int64), seen, rewards, ends, cuts)
            totals += rewards
        return totals.tolist()


def test_lanes_of_their_own_processes_play_as_one_alone() -> None:
    alone = returns(EnvFactory(environment("tests.environments:OneWorld")), 1)
    apart = returns(EnvFactory(environment("tests.environments:OneWorld", process="own")), 4)
    shared = returns(EnvFactory(environment("tests.environments:OneWorld", process="shared")), 4)
    assert apart == alone * 4
    assert shared != alone * 4


def test_an_environment_apart_is_the_one_that_was_asked_for() -> None:
    spec = environment("CartPole-v1")
    with contextlib.closing(ApartEnv(partial(make_env, spec))) as apart, contextlib.closing(EnvFactory(spec)()) as here:
        assert (apart.observation_space, apart.action_space) == (here.observation_space, here.action_space)
        np.testing.assert_array_equal(apart.reset(seed=3)[0], here.reset(seed=3)[0])
        for one, other in zip(apart.step(1), here.step(1), strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_it_raises_comes_with_the_traceback_there() -> None:
    with contextlib.closing(
        ApartEnv(partial(make_env, environment("tests.environments:Raises", kwargs={"at_step": 1})))
    ) as env:
        env.reset(seed=0)
        with pytest.raises(ZeroDivisionError, match="planted fault") as caught:
            env.step(1)
    assert "tests/environments.py" in "".join(caught.value.__notes__)


def test_a_simulator_that_ends_its_process_is_named_and_nothing_is_left() -> None:
    env = ApartEnv(partial(make_env, environment("tests.environments:EndsItsProcess")))
    env.reset(seed=0)
    with pytest.raises(TrialError, match="exit code 3"):
        env.step(1)
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(env._process._process.pid, 0)


def test_a_study_notes_it_once_and_keeps_it() -> None:
    noted: list[str] = []
    asked = space(environment={"id": "tests.environments:OneWorld"})
    kept = with_lasting_process(asked, note=noted.append)
    assert kept.environment.process == "own"
    assert len(noted) == 1
    assert "process of its own" in noted[0]
    plain = space()
    assert with_lasting_process(plain, note=noted.append).digest() == plain.digest()
