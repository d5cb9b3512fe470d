"""What a study plans: its trials, what each of them needs, whether it runs real or emulated, how long it takes."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.designs.registry import make_plan
from study.errors import ClusterError
from study.machine.shape import Speeds
from study.planning import (
    Process,
    evaluation_due,
    execution_of,
    fits,
    guess_seconds,
    num_cpus,
    processes,
    progress_of,
    remarks,
)
from study.space.sections import BudgetSpec
from tests.spaces import cluster, requests_of, spec

# --- the trials of a search ------------------------------------------------------------------------------------------


@given(st.integers(3, 60), st.integers(0, 40), st.integers(0, 5))
def test_scales_and_seeds_are_dealt_evenly_and_a_longer_plan_begins_with_the_shorter_one(number, more, sampler_seed):
    requests = requests_of(spec(search__num_trials=number, search__sampler_seed=sampler_seed))
    assert [request.trial for request in requests] == list(range(number))
    counts = Counter(request.num_env_runners for request in requests)
    assert set(counts) == {1, 2, 4}
    assert max(counts.values()) - min(counts.values()) <= 1
    for scale in counts:
        seeds = Counter(request.seed for request in requests if request.num_env_runners == scale)
        assert abs(seeds[1] - seeds[2]) <= 1
    assert requests_of(spec(search__num_trials=number + more, search__sampler_seed=sampler_seed))[:number] == requests


def test_baselines_without_a_scale_come_first_at_every_scale_and_a_grid_has_every_cell_on_every_seed():
    baselines = [{"name": "a", "parameters": {"lr": 0.001}}, {"name": "b", "parameters": {"num_env_runners": 4}}]
    requests = requests_of(spec(search__baselines=baselines, search__num_trials=9))
    first = [(request.name, request.num_env_runners) for request in requests[:5]]
    assert (first[:4], first[4][0]) == ([("a", 1), ("a", 2), ("a", 4), ("b", 4)], None)
    # What a baseline leaves out is this project's default, or the middle of the space where that is outside.
    assert all(request.setting["lr"] == 0.001 for request in requests[:3])
    assert requests[0].setting["train_batch_size"] == 400 and requests[3].setting["lr"] == 3e-4
    ranges = {"parameters__train_batch_size": [200, 400], "parameters__lr": [0.1, 0.2, 0.3]}
    requests = requests_of(spec(search__sampler="grid", search__num_trials=None, **ranges))
    cells = {(each.num_env_runners, each.seed, *sorted(each.given.items())) for each in requests}
    assert len(requests) == len(cells) == 3 * 2 * 2 * 3


# --- what a trial needs ----------------------------------------------------------------------------------------------


def machine(cores, *, num_cpus=0, memory_mb=64_000):
    return cluster(local=(max(cores, num_cpus), cores), memory_mb=memory_mb)


def bundles(space, scale, execution):
    return [process.bundle for process in processes(space, scale, execution)]


def test_a_real_trial_reserves_for_the_main_process_every_runner_and_every_learner():
    sizes = {"num_cpus_per_env_runner": 2, "num_cpus_for_main_process": 3, "num_learners": 2}
    sizes |= {"num_cpus_per_learner": 5, "num_gpus_per_learner": 0.5}
    space = spec(**{f"resources__{name}": value for name, value in sizes.items()})
    assert bundles(space, 2, "real") == [{"CPU": 3}, *[{"CPU": 2}] * 2, *[{"CPU": 5, "GPU": 0.5}] * 2]
    assert num_cpus(space, 4, "real") == 3 + 8 + 10
    assert bundles(spec(resources__num_cpus_per_env_runner=2), 4, "emulated") == [{"CPU": 1}]
    # Without learner processes the GPU is the main process's.
    assert bundles(spec(resources__num_gpus_per_learner=1), 1, "real") == [{"CPU": 1, "GPU": 1}, {"CPU": 1}]


def test_the_memory_of_a_trial_holds_lanes_learner_batch_and_network():
    def memory(scale, execution, **changes):
        return [process.memory_mb for process in processes(spec(**changes), scale, execution)]

    assert memory(1, "emulated") == [901]  # two lanes for each runner
    assert memory(1000, "emulated") == [1500]
    assert memory(1000, "emulated", learner="rllib") == [1300]  # without JAX
    assert memory(1, "real", resources__num_learners=1) == [700, 300, 900]  # the program is where the learner is
    for changes, kb_per_step in (({}, 1.2), ({"model__conv_net": "nature"}, 500)):
        small, large = (
            memory(1, "emulated", **changes, parameters__train_batch_size={"low": 200, "high": high})
            for high in (1_000, 1_001_000)
        )
        assert large[0] - small[0] == pytest.approx(1_000_000 * kb_per_step / 1024, abs=1)
    grown = sum(memory(1, "real", model__fcnet_hiddens=[8, 2**20])) - sum(memory(1, "real"))
    # Two networks of 8 Mi weights of 4 bytes: five times in the main process, once in the runner.
    assert grown == pytest.approx(6 * 2 * 8 * 4, abs=2)
    with pytest.raises(ClusterError, match=r"model\.fcnet_hiddens"):
        make_plan(spec(model__fcnet_hiddens=[1_000_000_000]), machine(8))


@pytest.mark.parametrize(
    ("changes", "cores", "execution"),
    [
        ({}, 5, "real"),
        ({}, 4, "emulated"),
        ({"execution": "real"}, 2, "real"),
        ({"execution": "emulated"}, 64, "emulated"),
        ({"runner": "stock"}, 2, "emulated"),
        ({"algorithm": "IMPALA", "parameters__minibatch_size": None}, 2, "real"),  # its policy lag needs a clock
        ({"environment__step_wait_ms": 1}, 2, "real"),
        ({"resources__num_cpus_per_env_runner": 2}, 8, "emulated"),
        ({"resources__num_learners": 1}, 5, "emulated"),
        ({"resources__memory_per_env_runner_mb": 20_000}, 8, "emulated"),
    ],
)
def test_auto_is_real_where_every_process_has_a_core_or_does_not_need_one(changes, cores, execution):
    assert execution_of(spec(**changes), 4, machine(cores)) == execution


@pytest.mark.parametrize(
    ("scales", "cores", "real"), [([1, 2, 4], 2, []), ([1, 2, 4], 3, [1, 2]), ([1, 2, 4], 5, [1, 2, 4]), ([1], 2, [1])]
)
def test_one_scale_of_several_is_not_real_alone(scales, cores, real):
    space = spec(parameters__num_env_runners=scales)
    for promised in (0, 9):  # whatever Ray hands out
        there = machine(cores, num_cpus=promised)
        assert [scale for scale in scales if execution_of(space, scale, there) == "real"] == real


def placeable(cpus, nodes, *, spread=False, memory_mb=1):
    wanted = [Process(num_cpus=number, memory_mb=memory_mb) for number in cpus]
    return fits(wanted, [(number, 10, 0) for number in nodes], spread=spread)


@pytest.mark.parametrize(
    ("cpus", "nodes", "pack", "spread"),
    [
        ((1, 1, 1, 1), (2, 2), True, True),
        ((1, 1, 1, 1), (0, 4), True, True),  # a head without CPUs
        ((2, 2, 1), (3, 1), False, False),
        ((1, 2, 2, 2, 3), (4, 5, 1), True, True),  # first fit, in the nodes' order, finds no place for the last one
        # Both could be placed, and wait for ever: the process of three CPUs goes to the node of four.
        ((2, 3, 2), (4, 3), False, False),
        ((1, 3, 2, 2), (4, 3, 1), False, False),
        ((3, 1, 1), (4, 1), True, True),
        ((2, 3, 2, 3), (4, 6), True, False),  # spread: 3 and 3 on different nodes, which leaves 1 and 3
    ],
)
def test_a_trial_fits_where_ray_would_place_it(cpus, nodes, pack, spread):
    assert placeable(cpus, nodes) == pack
    assert placeable(cpus, nodes, spread=True) == spread


def test_memory_and_gpus_take_part_in_it():
    assert [placeable((1, 1), (2,), memory_mb=each) for each in (5, 6)] == [True, False]
    assert placeable((1, 1), (2, 2), memory_mb=6)
    learner, runner = Process(num_cpus=1, memory_mb=1, num_gpus=1), Process(num_cpus=1, memory_mb=1)
    for rooms in ([(1, 0), (1, 1)], [(1, 1), (1, 0)]):
        assert fits([runner, learner], [(cpus, 10, gpus) for cpus, gpus in rooms], spread=False)


# --- what is refused, and what is planned -----------------------------------------------------------------------------

REAL = {"execution": "real"}
WIDE = {"parameters__num_env_runners": [1], "resources__num_cpus_per_env_runner": 3, "search__num_trials": 1, **REAL}
GPUS = {"resources__num_gpus_per_learner": 1, "resources__num_learners": 2}
IMPALA = {"algorithm": "IMPALA", "parameters__minibatch_size": None, "parameters__train_batch_size": 500}
SECONDS = {"parameters__num_env_runners": [1, 46], "parameters__train_batch_size": 400, "budget__time_s": 60.0}


@pytest.mark.parametrize(
    ("changes", "nodes", "words", "enough"),
    [
        (REAL, {"n0": 4}, "4 runners need 5 CPUs.*, got n0 with 4 CPUs", {"n0": 5}),
        (REAL, {"n0": 8, "memory_mb": 1300}, "2 runners need 3 CPUs, 1500 MB", {"n0": 8, "memory_mb": 2400}),
        (REAL, {"n0": 2, "n1": 2}, "4 runners need 5 CPUs", {"n0": 3, "n1": 2}),
        # 3 GB in all, but only one node has CPUs
        (REAL, {"n0": 8, "n1": 0, "memory_mb": 1500}, "on one node", {"n0": 4, "n1": 4, "memory_mb": 1500}),
        (WIDE, {"n0": 2, "n1": 2}, "on one node", {"n0": 1, "n1": 3}),
        (GPUS, {"n0": 8}, r"3 CPUs, 2 GPUs.*, no GPU\. Fix: Run where the GPUs", {"n0": 8, "num_gpus": 2}),
        ({"resources__num_cpus_for_main_process": 3}, {"n0": 2}, "1 runner needs 3 CPUs", {"n0": 3}),
        (IMPALA, {"n0": 2}, "2 runners need 3 CPUs", {"n0": 5}),  # never emulated
        (SECONDS, {"n0": 2}, r"budget.time_s: .*1 runner would be emulated", {"n0": 47}),
    ],
)
def test_a_trial_that_can_never_run_is_refused_with_the_ways_out(changes, nodes, words, enough):
    with pytest.raises(ClusterError, match=words) as caught:
        make_plan(spec(**changes), cluster(**nodes))
    assert ("or set execution: emulated" in str(caught.value)) == (changes in (REAL, WIDE))
    make_plan(spec(**changes), cluster(**enough))
    if changes == REAL:
        make_plan(spec(), cluster(**nodes))


def test_processes_are_reused_only_where_all_trials_are_alike_and_alone():
    def reuses(cores=2, **changes):
        return make_plan(spec(**changes), cluster(n0=(8, cores))).reuses_processes

    assert reuses(execution="emulated")
    assert not reuses(execution="real")
    assert reuses(execution="auto")  # one scale of three would have room: all are emulated
    assert not reuses(cores=3, execution="auto")  # one runner and two are real


# --- how long it takes ------------------------------------------------------------------------------------------------


def test_the_first_limit_reached_ends_a_trial_and_limits_that_are_not_given_do_not_count():
    def used(limit=20, **done):
        share = {"env_steps": 500, "iterations": 2, "time_s": 1.0, **done}
        return progress_of(BudgetSpec(env_steps=1000, time_s=100.0), limit, **share)

    assert (used(), used(iterations=12), used(time_s=70.0)) == (0.5, 0.6, 0.7)
    assert used(time_s=100.0) == used(env_steps=1300) == 1
    assert used(limit=None, iterations=10**9) == 0.5


@given(num=st.integers(1, 20), iterations=st.integers(1, 60))
def test_evaluations_are_evenly_spaced_and_the_last_is_at_the_end(num, iterations):
    budget = BudgetSpec(iterations=iterations)
    shares = [progress_of(budget, iterations, env_steps=0, iterations=i, time_s=0) for i in range(iterations + 1)]
    due = [i for i in range(1, iterations + 1) if evaluation_due(shares[i - 1], shares[i], num)]
    assert due[-1] == iterations
    assert len(due) == min(num, iterations)
    if iterations % num == 0:
        assert due == list(range(iterations // num, iterations + 1, iterations // num))


def test_guesses_follow_what_costs_time():
    def seconds(scale=4, execution="real", speeds=None, **changes):
        space = spec(**{"budget__env_steps": 1_000_000, "parameters__num_epochs": 1} | changes)
        return guess_seconds(space, scale, replace(machine(8), speeds=speeds), execution)

    assert seconds(scale=1) > seconds(scale=4)
    assert seconds(runner="stock") > seconds(learner="rllib") > seconds()
    # Ten more milliseconds for each of a million steps, four runners side by side.
    assert seconds(environment__step_wait_ms=10) - seconds() == pytest.approx(1_000_000 * 0.010 / 4)
    assert seconds(environment__step_wait_ms=10, execution="emulated") == seconds(execution="emulated")
    # As measured for pictures of 64 x 64: 0.2 and 0.65 ms.
    assert seconds(execution="emulated", model__conv_net="nature") == pytest.approx(
        850 + seconds(execution="emulated", learner="rllib")
    )
    measured = Speeds(step_s=2e-3, episode_steps=100.0)
    played = {"evaluation__episodes": 10, "evaluation__num_evaluations": 5, "execution": "emulated"}
    assert seconds(speeds=measured, **played) == pytest.approx(1_005_000 * (2e-3 + 30e-6) + 2 + 6, rel=0.01)
    unplayed = seconds(speeds=replace(measured, episode_steps=None), **played)
    assert seconds(speeds=measured, **played) - unplayed == pytest.approx(10 * 5 * 100 * (2e-3 + 30e-6))
    assert seconds(budget__env_steps=None, budget__time_s=60.0) == pytest.approx(60 + 6, abs=3)


# --- what is said of it first -----------------------------------------------------------------------------------------


def said(space, *, cpus=2, cores=2):
    return list(remarks(space, make_plan(space, cluster(local=(cpus, cores)))))


def test_what_is_emulated_or_has_no_core_for_each_process_is_said_unless_it_was_asked_for():
    (line,) = said(spec())
    assert line.startswith("Emulated: trials of 1, 2 and 4 runners.") and "up to 5 CPUs, there are 2 cores" in line
    assert said(spec(), cpus=5, cores=5) == said(spec(execution="emulated")) == []
    (line,) = said(spec(execution="real", parameters__num_env_runners=[1, 4, 59]), cpus=60)
    assert line.startswith("Oversubscribed: trials of 4 and 59 runners (5 CPUs reserved, 2 cores; 60 CPUs reserved")
    assert "--set execution=emulated" in line
