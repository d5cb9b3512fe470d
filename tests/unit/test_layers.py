"""What a space puts around an environment, by value; and the names of Procgen's games."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from study.errors import SpaceError
from study.space.sections import GAMES, NUM_TEST_LEVELS, task_of
from study.trial.engine.envs.lane_envs import stacked
from tests.spaces import spec


class Counts(gymnasium.Env[Any, Any]):
    """Observes (step, step squared), pays the step, ends after seven."""

    observation_space: Any = Box(-1.0, 100.0, (2,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.seen(), float(self.steps), self.steps == 7, False, {}

    def seen(self) -> Any:
        return np.array([self.steps, self.steps**2], np.float32)


def test_observations_are_stacked_newest_last_and_begin_as_copies() -> None:
    env = stacked(Counts(), 3)
    assert env.observation_space.shape == (6,)
    first, _ = env.reset()
    np.testing.assert_array_equal(first, [0, 0] * 3)
    env.step(0)
    second, *_ = env.step(0)
    np.testing.assert_array_equal(second, [0, 0, 1, 1, 2, 4])
    again, _ = env.reset()
    np.testing.assert_array_equal(again, [0, 0] * 3)


def test_images_are_stacked_by_their_channels() -> None:
    class Picture(Counts):
        observation_space: Any = Box(0.0, 1.0, (4, 4, 3), np.float32)

        def seen(self) -> Any:
            return np.full((4, 4, 3), self.steps / 10, np.float32)

    env = stacked(Picture(), 2)
    env.reset()
    observation, *_ = env.step(0)
    assert observation.shape == env.observation_space.shape == (4, 4, 6)
    np.testing.assert_allclose(observation[0, 0], [0, 0, 0, 0.1, 0.1, 0.1], rtol=1e-6)


# Procgen


def test_a_game_is_a_task_of_envpool_with_levels_to_train_on() -> None:
    assert len(GAMES) == 16
    assert task_of("procgen:coinrun", {}) == ("CoinrunEasy-v0", {"num_levels": 200, "start_level": 0})
    hard = task_of("procgen:bigfish", {"distribution_mode": "hard", "use_backgrounds": False})
    assert hard == ("BigfishHard-v0", {"num_levels": 500, "start_level": 0, "use_backgrounds": False})


@pytest.mark.parametrize(
    ("kwargs", "levels"),
    [
        ({}, (200, NUM_TEST_LEVELS)),
        ({"distribution_mode": "hard"}, (500, NUM_TEST_LEVELS)),
        ({"num_levels": 10, "start_level": 90}, (100, NUM_TEST_LEVELS)),
    ],
)
def test_policies_are_tested_on_levels_that_were_not_trained_on(
    kwargs: dict[str, Any], levels: tuple[int, int]
) -> None:
    space = spec(environment__id="procgen:coinrun", environment__kwargs=kwargs, parameters__train_batch_size=800)
    assert space.environment.backend == "envpool"
    _, tested = task_of("procgen:coinrun", space.evaluated_environment.kwargs)
    assert (tested["start_level"], tested["num_levels"]) == levels


def test_who_trains_on_all_levels_is_tested_on_all_and_who_names_levels_gets_them() -> None:
    changes: dict[str, Any] = {"environment__id": "procgen:coinrun", "parameters__train_batch_size": 800}
    all_levels = spec(**changes, environment__kwargs={"num_levels": 0})
    assert all_levels.evaluated_environment.kwargs == {"num_levels": 0}
    own = spec(**changes, evaluation__kwargs={"num_levels": 5, "start_level": 7})
    assert own.evaluated_environment.kwargs == {"num_levels": 5, "start_level": 7}


def test_a_game_that_is_none_is_named() -> None:
    with pytest.raises(SpaceError, match=r"environment\.id: .* Fix: Did you mean 'procgen:coinrun'\?"):
        spec(environment__id="procgen:conrun")
