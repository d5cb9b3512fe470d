"""Names and levels of Procgen's games."""

from typing import Any

import pytest

from study.errors import SpaceError
from study.space.sections import GAMES, NUM_TEST_LEVELS, task_of
from tests.spaces import spec


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
def test_policies_are_tested_on_levels_that_were_not_trained_on(kwargs: dict[str, Any], levels: Any) -> None:
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
