"""Settings that others publish: each is a space that runs; a space may name them; a wrong name says what there is."""

import math

import pytest
from scipy import stats

from study.errors import SpaceError
from study.space.parameters import NAMES, SCALE
from study.space.settings import runnable
from tests import spaces
from tests.benchmarks.published import Published, compare, engines_of, published, space
from tests.spaces import read_again
from tests.unit.test_space_rules import HELD_UP

ALL = [(source, environment) for source, entries in published().items() for environment in entries]


@pytest.mark.parametrize(("source", "environment"), ALL, ids=map("-".join, ALL))
def test_every_published_setting_is_a_space_that_runs_as_it_is_written_or_says_what_it_lacks(source, environment):
    entry = published()[source][environment]
    for engine in engines_of(entry):
        of_it = spaces.spec_of(space(environment, entry, engine, 2))
        setting = runnable(of_it, {SCALE: 1, **of_it.fixed})
        assert {name: setting.get(name, NAMES[name].default) for name in entry.parameters} == entry.parameters
        assert setting["train_batch_size"] % entry.num_envs == 0
    assert sum(said is not None for said in entry.evaluation.model_dump().values()) == 1
    named = spaces.with_changes(HELD_UP, environment__id=environment, holdup__published=source)
    if entry.lacks:
        with pytest.raises(SpaceError, match=r"holdup\.published: .* what this program can run"):
            spaces.spec_of(named)
    else:
        of_it = spaces.spec_of(named)
        assert of_it.holdup.published == entry.parameters and read_again(of_it).digest() == of_it.digest()


def test_a_name_that_means_nothing_is_one_fault_that_says_what_there_is():
    for environment, name, said in (
        ("CartPole-v1", "rl_zoo", r"got rl_zoo\. Fix: Did you mean 'rl_zoo3'\?"),
        ("MountainCar-v0", "slm_lab", r"got slm_lab\. Fix: Use one of: cleanrl, rl_zoo3"),
        ("Taxi-v3", "cleanrl", r"for Taxi-v3 .*got cleanrl\. Fix: There is none"),
    ):
        with pytest.raises(SpaceError, match=rf"1 problem\n  holdup\.published: .*{said}"):
            spaces.spec_of(spaces.with_changes(HELD_UP, environment__id=environment, holdup__published=name))


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
