"""Hold-up spaces that are refused, with what would be enough; rules, and the settings that they stand for."""

import pytest

from study.designs.holdup.baselines import default_setting, fixed_baselines, scaled_baselines
from study.designs.holdup.stages import digest_of
from study.errors import ClusterError, SpaceError
from study.options import all_overrides
from study.planning.plan import make_plan
from study.planning.shape import LOCAL, ClusterShape, NodeShape
from study.space.rules import overlay, resolve
from study.space.settings import rounded, runnable
from study.space.spec import load_space
from tests.spaces import spec
from tests.unit.test_stages import HOLDUP, space

CLUSTER = ClusterShape(nodes=(NodeShape(address=LOCAL, num_cpus=2, physical_cpus=2, memory_mb=64_000),))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rank_seeds": {"first": 8, "count": 4}},
            ["holdup.rank_seeds", "share no seed with tune_seeds", "Begin at 9"],
        ),
        ({"test_seeds": {"first": 102, "count": 9}}, ["holdup.test_seeds", "share no seed with rank_seeds"]),
        ({"test_seeds": {"first": 1001, "count": 4}}, ["the confirmation needs 5, got 4", "Set count: 5"]),
        ({"rank_seeds": {"first": 101, "count": 1}}, ["race and stress needs 2, got 1"]),
        ({"target_scale": 1}, ["must not lie below every searched scale ([2, 6, 8]), got 1"]),
        ({"target_scale": 46}, ["must be among parameters.num_env_runners", "holdup.unseen_scales"]),
        ({"small_scale": 3}, ["must be among parameters.num_env_runners"]),
        ({"small_scale": 6}, ["must be the smallest searched scale"]),
        ({"unseen_scales": [6, 12]}, ["scales that no earlier stage runs, got [6]"]),
        ({"num_settings": 4, "num_rounds": 1}, ["the race needs 4 settings", "got 3 of 4", "Raise it to 6"]),
        ({"stress": {"num_settings": 5, "num_seeds": 2}}, ["must not exceed race.num_settings"]),
        ({"num_rounds": 3}, ["every round needs 4 settings"]),
        ({"unseen_scales": [12, 12]}, ["holdup.unseen_scales: must be distinct"]),
        ({"measure": {"scales": [2, 2]}}, ["holdup.measure.scales: must be distinct"]),
        ({"calibrate": {"num_points": 3, "num_seeds": 9}}, ["calibration needs 9, got 8"]),
        ({"baselines": ["published"], "published": {"lr": -1.0}}, ["holdup.published.lr: must be > 0, got -1.0"]),
        (
            {"baselines": ["published"], "published": {"train_batch_size": 9, "steps_per_env_runner": 9}},
            ["takes the place of train_batch_size, got both"],
        ),
        ({"baselines": ["published"]}, ["belong together"]),
        ({"published": {"lr": 1e-4}}, ["belong together"]),
        ({"baselines": ["published"], "published": {"batch": 1}}, ["holdup.published.batch", "unknown parameter"]),
        ({"baselines": ["published"], "published": {"num_epochs": 1.5}}, ["must be a whole number"]),
    ],
)
def test_bad_stages_are_refused_with_what_would_be_enough(changes, words):
    with pytest.raises(SpaceError) as error:
        space(holdup=changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"search__sampler": "grid", "search__num_trials": None}, "a hold-up study proposes settings"),
        ({"search__num_trials": 9}, "a hold-up study counts itself"),
        ({"search__seeds": [1, 2], "search__num_trials": None}, "seeds of its own"),
        ({"budget__iterations": 9, "search__num_trials": None}, "Give budget.env_steps instead"),
        ({"resources__num_learners": 2, "search__num_trials": None}, "learners cannot share evenly"),
        ({"evaluation__num_evaluations": 1, "search__num_trials": None}, "two consecutive evaluations"),
    ],
)
def test_what_belongs_to_ordinary_studies_is_refused(changes, words):
    content = {"holdup": HOLDUP, "parameters__num_env_runners": [2, 6, 8], "search__seeds": [1], **changes}
    with pytest.raises(SpaceError) as error:
        spec(**content)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["normalize_observations", "normalize_rewards"])
def test_rllibs_own_parts_confirm_nothing_that_they_cannot_train_on(name):
    changes = {f"environment__{name}": True, "holdup": {"confirm": {**HOLDUP["confirm"], "num_seeds_stock": 2}}}
    with pytest.raises(SpaceError) as error:
        space(**changes)
    assert f"environment.{name}: must be left out where RLlib's own parts confirm the winner" in str(error.value)
    assert "set holdup.confirm.num_seeds_stock: 0" in str(error.value)
    assert getattr(space(**{f"environment__{name}": True}).environment, name)  # these leave RLlib's arm out


def test_a_budget_that_is_far_too_small_is_refused_before_anything_runs():
    with pytest.raises(ClusterError, match=r"holdup.cpu_hours: must pay .* Fix: set it to 0\.\d or more"):
        make_plan(space(holdup={"cpu_hours": 0.001}), CLUSTER)


@pytest.mark.parametrize("objective", ["time_to_target_s", "cpu_s_to_target", "return_and_cpu_s"])
def test_no_clock_is_compared_with_another(objective):
    """On two cores one runner is real and four are emulated."""
    mixed = spec(search__objective=objective)
    with pytest.raises(ClusterError, match=rf"search.objective: {objective} needs"):
        make_plan(mixed, CLUSTER)
    if objective != "time_to_target_s":
        make_plan(spec(search__objective=objective, execution="emulated"), CLUSTER)
    make_plan(spec(search__objective="env_steps_to_target"), CLUSTER)


def test_a_replicate_has_seeds_that_no_other_number_has():
    used = set()
    for number in range(3):
        holdup = load_space(
            "holdup_small.yaml", overrides=all_overrides("holdup_small.yaml", None, number, None)
        ).holdup
        sets = [set(each.seeds) for each in (holdup.tune_seeds, holdup.rank_seeds, holdup.test_seeds)]
        assert len(set.union(*sets)) == sum(map(len, sets))
        assert not used & set.union(*sets)
        used |= set.union(*sets)


def test_seconds_are_no_objective_in_emulation():
    with pytest.raises(SpaceError, match="only environment steps are a fact"):
        spec(execution="emulated", search__objective="time_to_target_s")


def test_a_rule_and_its_parameter_exclude_each_other():
    with pytest.raises(SpaceError, match="takes the place of train_batch_size, got both"):
        spec(parameters__steps_per_env_runner=100)


RULE = {"steps_per_env_runner": 188, "minibatch_size": 512, "num_epochs": 10, "lr": 1e-3}


def test_rules_become_numbers_at_a_scale():
    base = {**default_setting(space()), **RULE}
    assert resolve(base, 46)["train_batch_size"] == 8648
    assert resolve(base, 1)["minibatch_size"] == 188  # never larger than the batch
    grown = overlay(base, {"num_minibatches": 16, "lr_scaling_exponent": 0.5})
    assert "minibatch_size" not in grown
    at = resolve(grown, 46)
    assert at["minibatch_size"] == 8648 // 16
    assert at["lr"] == pytest.approx(1e-3 * (540 / 128) ** 0.5)


def test_a_sampled_share_is_a_multiple_of_the_lanes_of_a_runner_at_every_scale():
    wanted = spec(
        parameters={
            "num_env_runners": [1, 7, 46],
            "num_envs_per_env_runner": 4,
            "steps_per_env_runner": {"low": 30, "high": 211, "log": True},
            "lr": {"low": 1e-4, "high": 1e-2},
        }
    )
    for scale in wanted.scales:
        for steps in (30, 33, 101, 211):
            rule = rounded(wanted, {"num_env_runners": scale, "steps_per_env_runner": steps, "lr": 1e-3})
            assert rule["steps_per_env_runner"] % 4 == 0
            assert 30 <= rule["steps_per_env_runner"] <= 211
            assert abs(rule["steps_per_env_runner"] - steps) < 4
            again = runnable(wanted, rule)
            assert again["train_batch_size"] == rule["steps_per_env_runner"] * scale


def test_a_complete_setting_runs_as_it_is_whatever_the_space_fixes():
    """A rule of the space does not apply to a baseline that has none: its rate would be scaled behind its back."""
    wanted = space()
    wanted = wanted.model_copy(update={"parameters": wanted.parameters.model_copy(update={"lr_scaling_exponent": 0.5})})
    for setting in (*fixed_baselines(wanted.holdup).values(), *scaled_baselines(default_setting(wanted), 2).values()):
        assert runnable(wanted, {**setting, "num_env_runners": 8}, written=tuple(setting)) == resolve(setting, 8)


def test_baselines_carry_the_small_scale_up_as_published():
    base = {**default_setting(space()), **RULE, "steps_per_env_runner": 100, "minibatch_size": 200, "lr": 2e-3}
    scaled = {name: resolve(setting, 8) for name, setting in scaled_baselines(base, 2).items()}
    small = resolve(base, 2)
    assert scaled["best_small_unchanged"] == {**small, "num_env_runners": 8}
    assert scaled["best_small_batch_grown"] == {**small, "num_env_runners": 8, "train_batch_size": 800}
    hilton = scaled["best_small_minibatch_grown"]
    assert (hilton["train_batch_size"], hilton["minibatch_size"]) == (800, 800)
    assert hilton["lr"] == pytest.approx(2e-3 * 2)  # four times the minibatch, twice the rate
    assert resolve(scaled_baselines(base, 2)["best_small_minibatch_grown"], 2)["lr"] == pytest.approx(2e-3)


def test_naive_growth_changes_the_batch_and_nothing_else():
    fixed = fixed_baselines(space().holdup)
    plain, naive = (resolve(fixed[name], 46) for name in ("rllib_defaults", "naive_growth"))
    assert {name for name in plain if plain[name] != naive[name]} == {"train_batch_size"}
    assert naive["train_batch_size"] == 400 * 46


def test_a_digest_is_of_values_not_of_their_form():
    assert digest_of({"a": 1, "b": 2.0}) == digest_of({"b": 2, "a": 1.0})
    assert digest_of({"a": 1}) != digest_of({"a": 1.0000001})
