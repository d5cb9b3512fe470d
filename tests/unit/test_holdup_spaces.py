"""Hold-up spaces that are refused, with what would be enough; rules, and the settings that they stand for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.designs.holdup.stages import RLLIB_DEFAULTS, rivals_of, scaled_rivals
from study.designs.search import default_setting
from study.space.parameters import overlay
from study.space.sections import MOST_STUDIES
from study.space.settings import fitted, resolve, rounded
from tests.spaces import spec
from tests.unit.test_stages import space


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


def test_rules_become_numbers_at_a_scale():
    base = {**default_setting(space()), **RULE}
    assert (resolve(base, 46)["train_batch_size"], resolve(base, 1)["minibatch_size"]) == (8648, 188)
    at = resolve(overlay(base, {"num_minibatches": 16, "lr_scaling_exponent": 0.5}), 46)
    assert (at["minibatch_size"], at["lr"]) == (8648 // 16, pytest.approx(1e-3 * (540 / 128) ** 0.5))
