"""What is said of a plan before it runs. No Ray."""

import dataclasses

import pytest

from study.designs.registry import make_plan
from study.errors import SpaceError
from study.machine.shape import LOCAL, Speeds
from study.planning.needs import memory_mb
from study.planning.plan import remarks
from tests.spaces import cluster, read_again, spec


def said(space, *, cpus=2, cores=2, address=LOCAL, niceness=0):
    return list(remarks(space, make_plan(space, cluster(**{address: (cpus, cores)}, niceness=niceness))))


def test_what_is_emulated_says_how_many_cpus_are_missing_unless_it_was_asked_for():
    (line,) = said(spec())
    assert line.startswith("Emulated: trials of 1, 2 and 4 runners.") and "up to 5 CPUs, there are 2 cores" in line
    assert said(spec(), cpus=5, cores=5) == said(spec(execution="emulated")) == []


def test_trials_without_a_core_for_each_process_say_why():
    (line,) = said(spec(execution="real", parameters__num_env_runners=[1, 4, 59]), cpus=60)
    assert line.startswith("Oversubscribed: trials of 4 and 59 runners (5 CPUs reserved, 2 cores; 60 CPUs reserved")
    assert "--set execution=emulated" in line


LARGER = {"parameters__train_batch_size": {"low": 64, "high": 5000}, "budget__env_steps": 4000}


def test_a_batch_larger_than_the_whole_budget_is_refused_unless_on_record():
    before = spec(**LARGER)
    with pytest.raises(SpaceError, match=r"budget\.env_steps.*got 4,000 steps and a batch of 5,000.*Raise it to 5000"):
        read_again(before, asked=True)
    assert read_again(before) == before  # the rule came later than some studies


@pytest.mark.parametrize(("changes", "kb_per_step"), [({}, 1.2), ({"model__conv_net": "nature"}, 500)])
def test_the_memory_of_a_trial_holds_its_largest_batch(changes, kb_per_step):
    small, large = (
        spec(**changes, parameters__train_batch_size={"low": 200, "high": high}) for high in (1_000, 1_001_000)
    )
    grown = memory_mb(large, 2, "real") - memory_mb(small, 2, "real")
    assert grown == pytest.approx(1_000_000 * kb_per_step / 1024, abs=1)


def test_an_environment_whose_episodes_do_not_end_is_named_with_what_its_evaluations_take():
    space = spec(evaluation__episodes=50, evaluation__num_evaluations=10)
    endless = Speeds(seconds=2.0, step_s=1e-3, episode_steps=None, limit=None)

    def said(speeds: Speeds) -> list[str]:
        shape = dataclasses.replace(cluster(local=(2, 2)), speeds=speeds)
        return [each for each in remarks(space, make_plan(space, shape)) if each.startswith("Episodes: none ended")]

    (remark,) = said(endless)
    assert "in 2,000 random steps" in remark and "after 10,000" in remark and "85 min of each trial" in remark
    assert not said(dataclasses.replace(endless, limit=500))
    assert not said(dataclasses.replace(endless, episode_steps=30.0))
