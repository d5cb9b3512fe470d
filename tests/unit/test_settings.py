"""What the fields of a space become: settings of each algorithm and scale, rules, rivals, levels of Procgen's games."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.designs.holdup.stages import RLLIB_DEFAULTS, rivals_of, scaled_rivals
from study.designs.search import default_setting
from study.errors import SpaceError
from study.space.parameters import ALGORITHMS, PARAMETERS, REPLACED
from study.space.sections import GAMES, MOST_STUDIES, NUM_TEST_LEVELS, task_of
from study.space.settings import fitted, resolve, rounded, runnable
from study.space.spec import StudySpec
from tests.spaces import spec
from tests.unit.test_stages import space


def of_algorithm(algorithm: str, **parameters: Any) -> StudySpec:
    return spec(algorithm=algorithm, parameters={"num_env_runners": [2, 4], **parameters})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_has_the_parameters_of_the_algorithm_and_no_others(algorithm: str) -> None:
    of_it, traits = of_algorithm(algorithm), ALGORITHMS[algorithm]
    setting = runnable(of_it, {"num_env_runners": 2})
    assert tuple(setting) == of_it.parameter_names
    told = {*traits.parameters, *(REPLACED.get(name, name) for name in traits.given)}
    left_out = {name for name, parameter in PARAMETERS.items() if algorithm in parameter.optional}
    assert set(setting) == told - left_out
    assert set(of_it.to_json()["parameters"]) == set(traits.parameters) - left_out
    if algorithm != "PPO":  # a batch is one minibatch, learnt from once
        assert (setting["minibatch_size"], setting["num_epochs"]) == (setting["train_batch_size"], 1)


def test_defaults_are_those_of_the_algorithm_unless_a_rule_stands_in() -> None:
    assert [of_algorithm(algorithm).domain("lr") for algorithm in ("PPO", "A2C", "IMPALA")] == [3e-4, 7e-4, 5e-4]
    assert of_algorithm("IMPALA", lr=1e-3).domain("lr") == 1e-3
    grown = of_algorithm("IMPALA", steps_per_env_runner=250)
    assert runnable(grown, {"num_env_runners": 4})["train_batch_size"] == 1000
    assert (of_algorithm("APPO").learner, of_algorithm("A2C").learner_in_use) == ("rllib", "fused")


@pytest.mark.parametrize("algorithm", ["APPO", "IMPALA"])
@pytest.mark.parametrize(("name", "each"), [("train_batch_size", 1), ("steps_per_env_runner", 3)])
def test_a_sampled_batch_is_whole_fragments_in_its_range(algorithm: str, name: str, each: int) -> None:
    scale = {"num_env_runners": 3, "num_envs_per_env_runner": 2, "rollout_fragment_length": 25}
    wide = of_algorithm(algorithm, **scale, **{name: {"low": 50, "high": 640}})
    for value in range(50, 641, 7):
        batch = runnable(wide, {"num_env_runners": 3, name: value})["train_batch_size"]
        assert batch % (50 * each) == 0 and 50 <= batch // each <= 640


# --- rules, and what they stand for at a scale ------------------------------------------------------------------------


@settings(deadline=None)
@given(
    name=st.sampled_from(["train_batch_size", "steps_per_env_runner"]),
    scales=st.lists(st.integers(1, 46), min_size=1, max_size=3, unique=True),
    num_envs=st.integers(1, 8),
    low=st.integers(1, 300),
    drawn=st.floats(0, 1),
)
def test_what_is_sampled_becomes_a_multiple_of_the_lanes_inside_its_range(name, scales, num_envs, low, drawn):
    """Every lane delivers the same number of steps, at every scale, also of a setting that was rounded before."""
    low = max(low, num_envs * max(scales)) if name == "train_batch_size" else max(low, num_envs)
    high = low + num_envs * max(scales) + 50
    own = {
        "num_env_runners": scales,
        "num_envs_per_env_runner": num_envs,
        name: {"low": low, "high": high},
        "lr": [1, 2],
    }
    space_of = spec(parameters={**own, "minibatch_size": 1}, budget__env_steps=10**7)
    value = low + round(drawn * (high - low))
    for scale in space_of.scales:
        found = rounded(space_of, {name: value, "lr": 1}, scale)
        lanes = num_envs * (scale if name == "train_batch_size" else 1)
        assert found[name] % lanes == 0 and low <= found[name] <= high
        assert abs(found[name] - value) <= lanes
        steps = fitted(space_of, found, scale)["train_batch_size"]
        assert steps == found[name] * (1 if name == "train_batch_size" else scale)


RULE = {"steps_per_env_runner": 188, "minibatch_size": 512, "num_epochs": 10, "lr": 1e-3}


def test_baselines_carry_the_small_scale_up_as_published_and_naive_growth_the_batch():
    base = {**default_setting(space()), **RULE, "steps_per_env_runner": 100, "minibatch_size": 200, "lr": 2e-3}
    del base["lr_scaling_exponent"]  # as in a space without it
    scaled = {name: resolve(setting, 8) for name, setting in scaled_rivals(base, 2).items()}
    small = resolve(base, 2)
    assert resolve(base, 1)["minibatch_size"] == 100  # at most the batch
    assert scaled["best_small_unchanged"] == {**small, "num_env_runners": 8}
    assert scaled["best_small_batch_grown"] == {**small, "num_env_runners": 8, "train_batch_size": 800}
    hilton = scaled["best_small_minibatch_grown"]
    assert (hilton["train_batch_size"], hilton["minibatch_size"]) == (800, 800)
    assert hilton["lr"] == pytest.approx(2e-3 * 2)  # four times the minibatch, twice the rate
    assert resolve(scaled_rivals(base, 2)["best_small_minibatch_grown"], 2)["lr"] == pytest.approx(2e-3)
    naive = resolve(rivals_of(space().holdup, {"lr": 1.0}, base)["naive_growth"], 46)
    plain = resolve(RLLIB_DEFAULTS, 46)
    assert {name for name in plain if plain[name] != naive[name]} == {"train_batch_size"}
    assert naive["train_batch_size"] == 400 * 46


def test_what_has_the_winners_numbers_or_anothers_is_no_rival():
    base = {**default_setting(space()), **RULE, "steps_per_env_runner": 100, "minibatch_size": 200}
    every = rivals_of(space().holdup, {"lr": 1.0}, base)
    assert list(every) == [
        *("best_small_unchanged", "best_small_batch_grown", "best_small_minibatch_grown"),
        "naive_growth",
    ]
    grown = scaled_rivals(base, 2)["best_small_batch_grown"]
    assert list(rivals_of(space().holdup, grown, base)) == [name for name in every if name != "best_small_batch_grown"]
    published = space(published={"lr": 1e-3}).holdup
    assert list(rivals_of(published, {"lr": 1.0}, base))[3:] == ["published", "naive_growth"]


def test_two_studies_of_different_numbers_share_no_seed():
    def seeds(number):
        asked = space(race={"num_settings": 4, "blocks": [50, 50]}, confirm={"num_seeds": 500})
        section = asked.with_seed(number).holdup
        return [*section.search_seeds, *section.race_seeds, *section.test_seeds]

    every = [seed for number in (1, 2, 3, MOST_STUDIES) for seed in seeds(number)]
    assert len(set(every)) == len(every) and max(every) < 2**30


# --- Procgen ----------------------------------------------------------------------------------------------------------


def test_a_game_is_a_task_of_envpool_with_levels_to_train_on() -> None:
    assert len(GAMES) == 16
    assert task_of("procgen:coinrun", {}) == ("CoinrunEasy-v0", {"num_levels": 200, "start_level": 0})
    hard = task_of("procgen:bigfish", {"distribution_mode": "hard", "use_backgrounds": False})
    assert hard == ("BigfishHard-v0", {"num_levels": 500, "start_level": 0, "use_backgrounds": False})
    with pytest.raises(SpaceError, match=r"environment\.id: .* Fix: Did you mean 'procgen:coinrun'\?"):
        spec(environment__id="procgen:conrun")


@pytest.mark.parametrize(
    ("trained", "own", "levels"),
    [
        ({}, {}, (200, NUM_TEST_LEVELS)),
        ({"distribution_mode": "hard"}, {}, (500, NUM_TEST_LEVELS)),
        ({"num_levels": 10, "start_level": 90}, {}, (100, NUM_TEST_LEVELS)),
        ({"num_levels": 0}, {}, (0, 0)),  # who trains on all levels is tested on all
        ({}, {"num_levels": 5, "start_level": 7}, (7, 5)),
    ],
)
def test_policies_are_tested_on_levels_that_were_not_trained_on_or_that_are_named(trained, own, levels) -> None:
    kwargs = {"environment__kwargs": trained, "evaluation__kwargs": own}
    game = spec(environment__id="procgen:coinrun", parameters__train_batch_size=800, **kwargs)
    assert game.environment.backend == "envpool"
    _, tested = task_of("procgen:coinrun", game.evaluated_environment.kwargs)
    assert (tested["start_level"], tested["num_levels"]) == levels
