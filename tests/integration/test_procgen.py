"""The 16 games of Procgen: they step, train and are evaluated on levels that nobody trained on."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from study.records.records import Evaluation, Iteration, TrialBuilt
from study.space.sections import GAMES, EnvironmentSpec
from study.trial.engine.envs.environments import EnvFactory
from tests.contract.test_lane_envs import Played
from tests.integration.trials import play, running

pytest.importorskip("envpool")


def has_qt() -> bool:
    try:
        ctypes.CDLL("libQt5Gui.so.5")
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.skipif(not has_qt(), reason="Procgen needs a library of the system: Debian's libqt5gui5"),
    pytest.mark.packages,
]

LANES, STEPS = 4, 20


def game(name: str, **kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"id": f"procgen:{name}", "backend": "envpool", "kwargs": kwargs})


@pytest.mark.parametrize("name", GAMES)
def test_a_game_steps(name: str) -> None:
    played, random = Played(EnvFactory(game(name)), range(LANES)), np.random.default_rng(0)
    first = played.reset()
    for _ in range(STEPS):
        observations, rewards, *_ = played.step(random.integers(15, size=LANES))
        assert np.isfinite(rewards).all()
    assert observations.shape == (LANES, 64, 64, 3)
    assert 0 <= observations.min() < observations.max() <= 1
    assert not np.array_equal(first, observations)


def first_pictures(levels: dict[str, int]) -> list[bytes]:
    return [each.tobytes() for each in Played(EnvFactory(game("coinrun", **levels)), range(40)).reset()]


def test_levels_are_those_that_were_named() -> None:
    one = first_pictures({"num_levels": 1, "start_level": 3})
    assert len(set(one)) == 1
    few = set(first_pictures({"num_levels": 3, "start_level": 3}))
    assert 1 < len(few) <= 3
    assert one[0] in few
    others = first_pictures({"num_levels": 100_000, "start_level": 200})
    assert len(set(others)) > 30
    assert not few & set(others)


@pytest.mark.usefixtures("local_ray")
def test_a_game_trains_and_is_evaluated_on_other_levels() -> None:
    with running(
        execution="emulated",
        setting={"num_env_runners": 1, "num_envs_per_env_runner": 4, "train_batch_size": 64, "minibatch_size": 32},
        environment__id="procgen:coinrun",
        model={"conv_net": "nature", "vf_share_layers": True},
        parameters__train_batch_size=800,
        budget__env_steps=128,
        evaluation__episodes=2,
        evaluation__num_evaluations=1,
        evaluation__max_episode_steps=30,
    ) as trial:
        records = [record for result in play(trial) for record in result.records]
    assert [type(record) for record in records] == [TrialBuilt, Iteration, Iteration, Evaluation]
    # Two epochs of 64 steps and the four rows that RLlib's learner appends, in minibatches of 32.
    assert records[2].metrics["num_gradient_updates"] == 5
    assert all(math.isfinite(value) for value in records[3].returns)
    assert trial._spec.evaluated_environment.kwargs["start_level"] == 200
