"""What a trial needs, and whether it runs real or emulated."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.designs.registry import design_of
from study.machine.shape import Speeds
from study.planning.guess import guess_seconds
from study.planning.needs import (
    Process,
    execution_of,
    fits,
    memory_mb,
    num_cpus,
    num_gpus,
    processes,
)
from tests.spaces import cluster, spec


def machine(cores, *, num_cpus=0, memory_mb=64_000):
    return cluster(local=(max(cores, num_cpus), cores), memory_mb=memory_mb)


def bundles(space, scale, execution):
    return [process.bundle for process in processes(space, scale, execution)]


def test_a_real_trial_reserves_for_the_main_process_every_runner_and_every_learner():
    space = spec(
        resources__num_cpus_per_env_runner=2,
        resources__num_cpus_for_main_process=3,
        resources__num_learners=2,
        resources__num_cpus_per_learner=5,
        resources__num_gpus_per_learner=0.5,
    )
    assert bundles(space, 2, "real") == [
        {"CPU": 3},
        {"CPU": 2},
        {"CPU": 2},
        {"CPU": 5, "GPU": 0.5},
        {"CPU": 5, "GPU": 0.5},
    ]
    assert num_cpus(space, 4, "real") == 3 + 8 + 10
    assert num_gpus(space) == 1
    assert memory_mb(space, 4, "real") == 3 * 700 + 4 * 300


def test_without_learner_processes_the_gpu_is_the_main_process_s():
    space = spec(resources__num_gpus_per_learner=1)
    assert bundles(space, 1, "real") == [{"CPU": 1, "GPU": 1}, {"CPU": 1}]
    assert num_gpus(space) == 1


@pytest.mark.parametrize(
    ("wanted", "scale", "expected"),
    [(1, 4, 0), (3, 4, 3), (3, 2, 2), (3, 1, 0)],
)
def test_an_emulated_trial_reserves_for_the_processes_that_step_lanes_not_for_runners(wanted, scale, expected):
    space = spec(resources__emulation_processes=wanted, resources__num_cpus_per_env_runner=2)
    assert bundles(space, scale, "emulated") == [{"CPU": 1}] + [{"CPU": 2}] * expected


def test_the_memory_of_an_emulated_trial_grows_with_its_lanes_and_little():
    space = spec()  # two lanes for each runner
    assert memory_mb(space, 1, "emulated") == 901
    assert memory_mb(space, 1000, "emulated") == 1500
    assert memory_mb(spec(learner="rllib"), 1000, "emulated") == 1300  # without JAX
    split = spec(resources__emulation_processes=2)
    assert memory_mb(split, 1000, "emulated") == 900 + 2 * (300 + 300)
    apart = spec(resources__num_learners=1)  # the program is where the learner is
    assert [process.memory_mb for process in processes(apart, 1, "real")] == [700, 300, 900]


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
        ({"resources__num_cpus_per_env_runner": 2}, 9, "real"),
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
    assert [scale for scale in scales if execution_of(space, scale, machine(cores)) == "real"] == real


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
        ((3, 1, 1, 2), (4, 2, 1), True, True),
        ((2, 2, 1, 1, 1, 1), (4, 4), True, True),
        ((2, 3, 2, 3), (4, 6), True, False),  # spread: 3 and 3 on different nodes, which leaves 1 and 3
    ],
)
def test_a_trial_fits_where_ray_would_place_it(cpus, nodes, pack, spread):
    assert placeable(cpus, nodes) == pack
    assert placeable(cpus, nodes, spread=True) == spread


def test_memory_and_gpus_take_part_in_it():
    assert placeable((1, 1), (2,), memory_mb=5)
    assert not placeable((1, 1), (2,), memory_mb=6)
    assert placeable((1, 1), (2, 2), memory_mb=6)
    learner, runner = Process(num_cpus=1, memory_mb=1, num_gpus=1), Process(num_cpus=1, memory_mb=1)
    for rooms in ([(1, 0), (1, 1)], [(1, 1), (1, 0)]):
        assert fits([runner, learner], [(cpus, 10, gpus) for cpus, gpus in rooms], spread=False)


@given(st.integers(1, 12), st.integers(0, 12))
def test_execution_depends_on_cores_never_on_the_cpus_that_ray_hands_out(cores, more):
    space = spec()
    for scale in space.scales:
        assert execution_of(space, scale, machine(cores)) == execution_of(
            space, scale, machine(cores, num_cpus=cores + more)
        )
    assert design_of(space).num_cpus(space, machine(cores)) == design_of(space).num_cpus(
        space, machine(cores, num_cpus=cores + more)
    )


def test_the_largest_trial_is_reckoned_as_it_will_run():
    assert design_of(spec()).num_cpus(spec(), machine(2)) == 1  # all are emulated
    assert design_of(spec()).num_cpus(spec(), machine(3)) == 3  # one runner and two are real
    assert design_of(spec(execution="real")).num_cpus(spec(execution="real"), machine(2)) == 5


def test_guesses_follow_what_costs_time():
    def seconds(scale=4, execution="real", cores=8, **changes):
        space = spec(budget__env_steps=1_000_000, parameters__num_epochs=1, **changes)
        return guess_seconds(space, scale, machine(cores), execution=execution)

    assert seconds(scale=1) > seconds(scale=4)
    assert seconds(runner="stock") > 2 * seconds()
    assert seconds(learner="rllib") > seconds()
    assert seconds(execution="emulated") == pytest.approx(seconds(execution="emulated", cores=1))
    assert seconds(execution="emulated", resources__emulation_processes=4) < seconds(execution="emulated")
    # Ten more milliseconds for each of a million steps, four runners side by side.
    waiting = seconds(environment__step_wait_ms=10) - seconds()
    assert waiting == pytest.approx(1_000_000 * 0.010 / 4)
    assert seconds(environment__step_wait_ms=10, execution="emulated") == seconds(execution="emulated")
    # Unlike waiting, working needs cores: two of them here.
    working = seconds(environment__step_cpu_ms=10, cores=2) - seconds(cores=2)
    assert working == pytest.approx(1_000_000 * 0.010 / 2)
    # Every step is seen once by the policy and once, in one epoch, by the learner.
    pictures = seconds(model__conv_net="nature", execution="emulated") - seconds(learner="rllib", execution="emulated")
    assert pictures == pytest.approx(1_000_000 * (0.2e-3 + 0.65e-3))
    assert seconds(model__conv_net="impala") > 4 * seconds(model__conv_net="nature")


def test_what_was_measured_of_the_environment_counts_in_steps_and_evaluations():
    space = spec(
        evaluation__episodes=10, evaluation__num_evaluations=5, budget__env_steps=100_000, parameters__num_epochs=2
    )

    def seconds(**changes) -> float:
        speeds = Speeds(**{"seconds": 1.0, "step_s": 13e-6, "episode_steps": 100.0, "limit": None} | changes)
        return guess_seconds(space, 1, replace(machine(2), speeds=speeds), execution="emulated")

    plain, steps = seconds(), 100_000 + 5 * 10 * 100
    assert seconds(step_s=2e-3) - plain == pytest.approx(steps * (2e-3 - 13e-6))
    assert seconds(limit=400) > plain, "a policy may play for longer than random actions do"
    endless = seconds(episode_steps=None)
    assert endless - plain == pytest.approx(5 * 10 * (10_000 - 100) * 33e-6)
    # 2.1 million products for each row: 2 epochs over all steps, 80 picoseconds each, and once forwards for a step.
    image = seconds(observation_shape=(42, 42, 1)) - plain
    assert image == pytest.approx(2.1e6 * (100_000 * 2 * 8e-11 + steps * 2.5e-11), rel=0.02)
