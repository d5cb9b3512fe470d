"""What a study plans: its trials, what each needs, how it runs, how long it takes, and what its times are worth."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study import load_space
from study.designs.registry import make_plan
from study.errors import ClusterError
from study.machine.load import NodeLoad
from study.machine.shape import Speeds
from study.planning import (
    Process,
    evaluation_due,
    execution_of,
    fits,
    guess_seconds,
    label_at_start,
    network_size,
    num_cpus,
    processes,
    progress_of,
    remarks,
)
from study.records.ledger import Label, disturbances, label_at_end, reserved
from study.space.sections import BudgetSpec
from tests import synthetic
from tests.spaces import cluster, requests_of, spec
from tests.values import replace

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
def test_one_scale_of_several_is_not_real_alone_and_alike_trials_reuse_their_process(scales, cores, real):
    space = spec(parameters__num_env_runners=scales)
    for promised in (0, 9):  # whatever Ray hands out
        there = machine(cores, num_cpus=promised)
        assert [scale for scale in scales if execution_of(space, scale, there) == "real"] == real
        assert make_plan(space, there).reuses_processes == (real == [])


@pytest.mark.parametrize(
    ("wanted", "nodes", "pack", "spread"),
    [  # of CPUs alone `tests/integration/test_ray_placement.py` asks Ray
        ([(1, 5), (1, 5)], [(2, 10, 0)], True, True),
        ([(1, 6), (1, 6)], [(2, 10, 0)], False, False),
        ([(1, 6), (1, 6)], [(2, 10, 0), (2, 10, 0)], True, True),
        ([(1, 1), (1, 1, 1)], [(1, 10, 0), (1, 10, 1)], True, True),
        ([(1, 1), (1, 1, 1)], [(1, 10, 1), (1, 10, 0)], True, True),
        ([(2, 1), (3, 1), (2, 1), (3, 1)], [(4, 10, 0), (6, 10, 0)], True, False),  # spread: 3 and 3 leave 1 and 3
    ],
)
def test_a_trial_fits_where_ray_would_place_it(wanted, nodes, pack, spread):
    assert [fits([Process(*each) for each in wanted], nodes, spread=way) for way in (False, True)] == [pack, spread]


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


def test_a_network_has_the_weights_of_the_one_that_is_built():
    """As many as were read back from modules of PPO, which have biases and last layers besides."""
    square = network_size(spec(model__fcnet_hiddens=[64, 64]), (42, 42, 3))
    game = network_size(load_space("coinrun_ppo.yaml"), ())
    assert square[0] == pytest.approx(5_974_693, rel=1e-3)
    assert game[0] == pytest.approx(2_177_712, rel=1e-2)


def test_guesses_follow_what_costs_time():
    def seconds(scale=4, execution="real", speeds=None, **changes):
        space = spec(**{"budget__env_steps": 1_000_000, "parameters__num_epochs": 1} | changes)
        return guess_seconds(space, scale, replace(machine(8), speeds=speeds), execution)

    assert seconds(scale=1) > seconds(scale=4)
    assert seconds(runner="stock") > seconds(learner="rllib") > seconds()
    # Ten more milliseconds for each of a million steps, four runners side by side.
    assert seconds(environment__step_wait_ms=10) - seconds() == pytest.approx(1_000_000 * 0.010 / 4)
    assert seconds(environment__step_wait_ms=10, execution="emulated") == seconds(execution="emulated")
    # Measured: 24 ms an epoch of one step with RLlib's own convolutions on 42 x 42 pixels.
    own = Speeds(step_s=13e-6, episode_steps=0.0, observation_shape=(42, 42, 3))
    epochs = [seconds(execution="emulated", speeds=own, parameters__num_epochs=number) for number in (1, 2)]
    assert (epochs[1] - epochs[0]) / 1_000_000 == pytest.approx(24e-3, rel=0.3)
    played = {"evaluation__episodes": 10, "evaluation__num_evaluations": 5, "execution": "emulated"}
    for length, steps in ((0.0, 0), (100.0, 100), (None, 10_000)):  # an episode without an end is cut
        found = seconds(speeds=Speeds(step_s=2e-3, episode_steps=length), **played)
        assert found == pytest.approx((1_000_000 + 10 * 5 * steps) * (2e-3 + 30e-6) + 2 + 6, rel=0.01)
    assert seconds(budget__env_steps=None, budget__time_s=60.0) == pytest.approx(60 + 6, abs=3)


# --- what is said of it first -----------------------------------------------------------------------------------------


TUNED = {"low": 1e-4, "high": 1e-2}
SCALES = {"parameters__num_env_runners": [1, 2, 4, 8, 16, 32, 46], "parameters__lr": TUNED, "execution": "emulated"}
PLAYED = {"execution": "emulated", "evaluation__episodes": 10, "evaluation__num_evaluations": 5}
WIDER = {"execution": "real", "parameters__num_env_runners": [1, 4, 59]}


@pytest.mark.parametrize(
    ("changes", "here", "said"),
    [
        ({}, (2, 2), r"Emulated: trials of 1, 2 and 4 runners\..*up to 5 CPUs, there are 2 cores"),
        ({}, (5, 5), None),
        ({"execution": "emulated"}, (2, 2), None),
        (WIDER, (60, 2), r"Oversubscribed: trials of 4 and 59 runners \(5 CPUs .*; 60 CPUs .*--set execution=emulated"),
        (
            {**SCALES, "search": {"num_trials": 14}},
            (2, 2),
            "Few trials: 14 trials over 7 .* about 2 for .*--trials",
        ),
        ({**SCALES, "search": {"num_trials": 21}}, (2, 2), None),
        ({**SCALES, "search": {"num_trials": 14, "sampler": "random"}}, (2, 2), None),
        ({**PLAYED, "speeds": None}, (2, 2), "Endless: no episode of CartPole-v1 ended.*takes 3 min of CPU"),
        ({**PLAYED, "speeds": 100.0}, (2, 2), None),
        ({**PLAYED, "speeds": 9.0, "outside": "7 at place 0"}, (2, 2), r"Outside: .* CartPole-v1 .*\(7 at place 0\)"),
    ],
)
def test_what_a_person_may_not_expect_of_a_plan_is_said_first(changes, here, said):
    space = spec(**{name: value for name, value in changes.items() if name not in ("speeds", "outside")})
    given = {"episode_steps": changes.get("speeds"), "outside": changes.get("outside", "")}
    speeds = Speeds(step_s=2e-3, **given) if "speeds" in changes else None
    found = [*remarks(space, make_plan(space, replace(cluster(local=here), speeds=speeds)))]
    assert len(found) == (said is not None)
    assert all(re.match(said, line) for line in found)


# --- the label of a timing: at the start, and as the records settle it at the end ------------------------------------


SMALL, MIXED = cluster(local=(47, 2)), cluster(a=8, b=(8, 2))
MEASURED = Label(timing="measured", reason="2 CPUs reserved of 2 cores")
PROVISIONAL = Label(timing="measured", reason="environments wait 2.5 ms a step", provisional=True)


def words(label):
    return f"{label.timing}: {label.reason}"


@pytest.mark.parametrize(
    ("there", "scale", "nodes", "said"),
    [
        (SMALL, 1, None, words(MEASURED)),
        (SMALL, 1, {"127.0.0.1": 2}, words(MEASURED)),  # a private Ray names its one node otherwise
        (SMALL, 2, None, "oversubscribed: 3 CPUs reserved, 2 cores"),
        # Of several nodes one hands out more than it has; nobody knows beforehand where Ray will place a trial.
        (MIXED, 1, {"a": 2}, "measured: 2 CPUs reserved of 10 cores"),
        (MIXED, 1, None, "oversubscribed: b: Ray hands out 8 CPUs, 2 cores"),
        (MIXED, 1, {"a": 1, "b": 1}, "oversubscribed: b: Ray hands out 8 CPUs, 2 cores"),
        # A host may register with Ray after the driver has read the cluster's shape, with hyper-threads as CPUs.
        (cluster(a=8), 1, {"a": 1, "c": 1}, "oversubscribed: c joined after the study began: its cores are not known"),
        (cluster(a=8), 1, {"a": 2, "c": 0}, "measured: 2 CPUs reserved of 8 cores"),
    ],
)
def test_every_process_has_a_core_of_its_own_or_the_times_are_not_measured(there, scale, nodes, said):
    assert words(label_at_start(spec(), there, scale, "real", nodes)) == said
    waiting = label_at_start(spec(environment__step_wait_ms=2.5), there, scale, "real", nodes)
    assert (waiting.timing, waiting.provisional) == ("measured", True) or words(waiting) == said
    emulated = label_at_start(spec(), there, 46, "emulated")
    assert emulated == Label(timing="emulated", reason="lanes of 46 runners stepped in 1 process")


def load(foreign=0.0, stolen=0.0, *, cores=4, host="gros-12", largest=""):
    return NodeLoad(
        host=host, num_cores=cores, seconds=10.0, foreign_cores=foreign, stolen_cores=stolen, largest=largest
    )


def end(label, *, failed=False, dropped=0, lost=0, pressure=0.0, restarts=0, loads=()):
    """Return what is said in the end of a trial of two runners that began with a label."""
    began = {"timing": label.timing, "timing_reason": label.reason, "provisional": label.provisional}
    row, counts = synthetic.row(0, node_loads=list(loads), **began), {"num_healthy_env_runners": 2 - lost}
    row.add(1, {**counts, "num_dropped_samples": dropped, "num_env_runner_restarts": restarts})
    row.add(2, {"iteration_time_s": 2.0, "train_batch_size_actual": 400, "cpu_pressure": pressure})
    return words(label_at_end(row, failed=failed))


FOREIGN = "foreign load on gros-12: 1.7 of 36 cores busy with other processes"
BUSY = load(1.7, cores=36)


@pytest.mark.parametrize(
    ("pressure", "loads", "timing", "said"),
    [
        (0.0499, [], "measured", "CPU pressure 5.0%"),
        (0.05, [], "oversubscribed", "CPU pressure 5.0%"),
        (None, [], "oversubscribed", "CPU pressure unknown"),
        (0.01, [BUSY], "measured", "CPU pressure 1.0%"),  # it waits, and nobody had to wait for it
    ],
)
def test_cpu_pressure_settles_what_was_provisional(pressure, loads, timing, said):
    assert end(PROVISIONAL, pressure=pressure, loads=loads) == f"{timing}: {PROVISIONAL.reason}; {said}"
    assert end(MEASURED, pressure=pressure, loads=loads) == (f"tainted: {FOREIGN}" if loads else words(MEASURED))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ({"lost": 2}, "2 runners lost"),
        ({"lost": 1, "dropped": 3}, "1 runner lost, 3 samples dropped"),
        ({"restarts": 1}, "1 runner restarted"),
        ({"failed": True}, "the trial failed"),
        ({"loads": [BUSY], "pressure": None}, FOREIGN),
        ({"lost": 1, "loads": [BUSY, BUSY], "pressure": 0.4}, f"1 runner lost, {FOREIGN}, {FOREIGN}"),
    ],
)
def test_what_went_wrong_or_disturbed_a_trial_taints_its_times(events, reason):
    assert end(MEASURED, **events) == end(PROVISIONAL, **events) == f"tainted: {reason}"
    for timing in ("emulated", "oversubscribed"):
        assert end(Label(timing=timing, reason="x"), **events) == f"{timing}: x"


# --- what a load of others makes of a trial's times: values worked out by hand --------------------------------------


@pytest.mark.parametrize(
    ("load", "held", "said"),
    [
        (load(1.7, cores=36, largest="stress-ng"), (36, 0), f"{FOREIGN} (most by stress-ng)"),
        (load(0.09), (4, 0), None),
        (load(0.11), (4, 0), "0.1 of 4 cores"),
        (load(2.05), (2, 0), None),  # cores that the study leaves free are free for others
        (load(2.2), (2, 0), "2.2 of 4 cores"),
        (load(0.2), (9, 0), "0.2 of 4 cores"),  # more processes than cores leave nothing free
        # Three cores are held, one of them by a trial that has ended: its CPU time looks like that of a stranger.
        (load(1.9), (3, 1.0), None),
        (load(2.2), (3, 1.0), "2.2 of 4 cores"),
        (load(0.5), None, "0.5 of 4 cores"),  # a host of which nothing is known has nothing free
        (load(stolen=0.09), (1, 0), None),
        (load(stolen=0.3), (1, 0), "stolen time on gros-12: its hypervisor withheld 0.3 of 4 cores"),
        (load(stolen=0.3, cores=32), (32, 0), None),  # 1 % of each
    ],
)
def test_a_tenth_of_a_core_beside_those_that_are_free_is_too_much(load, held, said):
    found = disturbances([load], {} if held is None else {"gros-12": held})
    assert found == [] if said is None else (len(found) == 1 and said in found[0])


def test_machines_of_one_host_name_are_counted_apart():
    placement = [
        {"host": "a", "machine": f"a/{boot}", "num_cpus": cpus} for boot, cpus in (("1", 2), ("2", 1), ("1", 1))
    ]
    row = synthetic.row(0)
    row.apply(replace(synthetic.built(0), placement=placement), 1.0)
    assert row.cpus_per_machine == {"a/1": 3, "a/2": 1}
    loads = [replace(load(1.2, host="a"), machine=machine) for machine in ("a/1", "a/2")]
    (line,) = disturbances(loads, {machine: (cpus, 0.0) for machine, cpus in row.cpus_per_machine.items()})
    assert line.startswith("foreign load on a: ")  # one core is free on the first one, three on the other
    row.apply(replace(synthetic.built(0), placement=[{"host": "a", "num_cpus": 2}]), 1.0)
    assert row.cpus_per_machine == {"a": 2}  # a record of before there were machines


def beside(trial, *, started=0.0, ended=None, timed=(100.0, 110.0), num_cpus=3, **hosts):
    times = {"started": started, "ended_at": ended, "timed_from": timed[0], "timed_to": timed[1]}
    return synthetic.row(trial, num_cpus=num_cpus, cpus_per_machine=hosts, **times)


@pytest.mark.parametrize(
    ("others", "on_a", "on_b"),
    [
        ([], (2, 0), (1, 0)),
        ([beside(1, started=50.0, a=4)], (6, 0), (1, 0)),
        ([beside(1, started=107.5, a=4)], (3, 0), (1, 0)),
        ([beside(1, started=50.0, ended=105.0, a=4)], (4, 2), (1, 0)),  # it ended meanwhile
        ([beside(1, ended=99.0, a=4), beside(2, started=111.0, a=4)], (2, 0), (1, 0)),
        ([beside(1, started=50.0, ended=105.0, num_cpus=6)], (5, 3), (4, 3)),  # it never came up: anywhere
    ],
)
def test_another_trial_holds_its_cpus_for_its_share_of_the_time(others, on_a, on_b):
    """Trial 0 is timed from second 100 to second 110 on hosts a and b."""
    assert reserved(beside(0, a=2, b=1), others) == {"a": on_a, "b": on_b}
    assert reserved(beside(0, timed=(100.0, None), a=2), others) == {}  # there is no timed part
