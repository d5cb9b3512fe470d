"""Settings that others publish: each is a space that runs; a space may name them; a wrong name says what there is."""

import math

import pytest
from scipy import stats

from study.errors import SpaceError
from study.space.parameters import NAMES, SCALE
from study.space.published import Published, published
from study.space.settings import runnable
from tests import spaces
from tests.benchmarks.published import compare, engines_of, space
from tests.driven import Session
from tests.spaces import read_again, requests_of, spec
from tests.unit.test_space_rules import HELD_UP

ALL = [(source, environment) for source, entries in published().items() for environment in entries]


@pytest.mark.parametrize(("source", "environment"), ALL, ids=map("-".join, ALL))
def test_every_published_setting_is_a_space_that_runs_as_it_is_written_or_says_what_it_lacks(source, environment):
    entry = published()[source][environment]
    for engine in engines_of(entry):
        of_it = spaces.spec_of(space(environment, entry, engine, 2), asked=True)
        setting = runnable(of_it, {SCALE: 1, **of_it.fixed}, written=tuple(entry.parameters))
        assert {name: setting.get(name, NAMES[name].default) for name in entry.parameters} == entry.parameters
        assert setting["train_batch_size"] % entry.num_envs == 0
    assert sum(said is not None for said in entry.evaluation.model_dump().values()) == 1
    named = {"environment__id": environment, "search__baselines": [{"published": source}], "search__num_trials": 9}
    if entry.lacks:
        with pytest.raises(SpaceError, match=r"search\.baselines\.0\.published: this program has no "):
            spec(**named)
    else:
        (baseline,) = spec(**named).search.baselines
        assert (baseline.name, baseline.parameters) == (source, entry.parameters)


def test_a_published_baseline_runs_as_published_at_every_scale_and_the_sampler_does_not_learn_from_it(tmp_path):
    named = [{"published": "rl_zoo3", "parameters": {"gamma": 0.97}}, {"name": "mine", "parameters": {"lr": 1e-3}}]
    of_it = spec(search__baselines=named, search__num_trials=9, execution="real")
    assert read_again(of_it) == of_it
    expected = {**published()["rl_zoo3"]["CartPole-v1"].parameters, "gamma": 0.97}
    session = Session(tmp_path, of_it)
    started = [session.conductor.next_trial() for _ in range(1)]
    session.finish(0)
    while (one := session.conductor.next_trial()) is not None:
        started.append(one)
        session.finish(one.trial)
    assert [(each.anchor, each.num_env_runners) for each in started[:6]] == [
        (name, scale) for name in ("rl_zoo3", "mine") for scale in (1, 2, 4)
    ]
    for each in started[:3]:
        assert {name: each.setting[name] for name in expected} == expected
        assert each.setting["num_envs_per_env_runner"] == 2
    assert [each.optuna_number for each in started] == [None, None, None, 0, 1, 2, 3, 4, 5]
    assert [request.index_at_scale for request in requests_of(of_it)[3:6]] == [0, 0, 0]


def test_a_published_learning_rate_is_not_scaled_and_its_batch_takes_the_place_of_a_rule():
    of_it = spec(
        search__baselines=[{"published": "cleanrl"}],
        search__num_trials=9,
        parameters__lr_scaling_exponent=0.5,
        parameters__train_batch_size=None,
        parameters__steps_per_env_runner=[200, 400],
    )
    for request in requests_of(of_it)[:3]:
        setting = runnable(of_it, {**request.setting, SCALE: request.num_env_runners}, written=tuple(request.setting))
        assert (setting["lr"], setting["train_batch_size"], setting["minibatch_size"]) == (2.5e-4, 512, 128)


def test_a_hold_up_study_names_a_published_setting():
    changes = {"holdup__published": "cleanrl"}
    of_it = spaces.spec_of(spaces.with_changes(HELD_UP, **changes), asked=True)
    assert of_it.holdup.published == published()["cleanrl"]["CartPole-v1"].parameters
    assert read_again(of_it).digest() == of_it.digest()


@pytest.mark.parametrize(
    ("environment", "name", "said"),
    [
        ("CartPole-v1", "rl_zoo", r"got rl_zoo\. Fix: Did you mean 'rl_zoo3'\? It has CartPole-v1, Acrobot-v1"),
        ("CartPole-v1", "nobody", r"got nobody\. Fix: Use one of: cleanrl, rl_zoo3, slm_lab\."),
        ("MountainCar-v0", "slm_lab", r"slm_lab publishes settings of CartPole-v1.* Fix: Use one of: cleanrl, rl_zoo3"),
        ("Pendulum-v1", "rl_zoo3", r"this program has no generalised state-dependent exploration"),
        ("Taxi-v3", "cleanrl", r"got Taxi-v3\. Fix: Nothing is published for Taxi-v3"),
    ],
)
def test_a_name_that_means_nothing_is_one_fault_that_says_what_there_is(environment, name, said):
    for base, changes, place in (
        (spaces.BASE, {"search__baselines": [{"published": name}]}, "search.baselines.0.published"),
        (HELD_UP, {"holdup__published": name}, "holdup.published"),
    ):
        with pytest.raises(SpaceError, match=said) as caught:
            spaces.spec_of(spaces.with_changes(base, environment__id=environment, **changes))
        assert [fault.where for fault in caught.value.faults] == [place]


def entry(**changes) -> Published:
    one = published()["cleanrl"]["CartPole-v1"]
    return one.model_copy(update={"mean": 100.0, "sd": 10.0, "n": 3, "over": "seeds", **changes})


def test_the_table_compares_with_seeds_by_welch_and_takes_one_agent_as_one_draw():
    ours = [90.0, 110.0, 120.0, 130.0]
    found = compare(ours, entry())
    theirs = [90.0, 100.0, 110.0]  # mean 100, deviation 10
    welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert found["difference_interval"] == pytest.approx([welch.low, welch.high])
    assert found["difference"] == pytest.approx(12.5) and found["agrees"]
    low, high = compare(ours, entry(over="episodes", n=500))["difference_interval"]
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, 3) * stats.tstd(ours) * math.sqrt(1 / 4 + 1))
    assert not compare([80.0, 81.0, 82.0], entry())["agrees"]
    assert compare([-200.0, -200.0], entry(mean=-200.0, sd=0.0))["difference_interval"] == [0.0, 0.0]
