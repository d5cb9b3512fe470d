"""The label of a timing: at the start, and as the records settle it at the end."""

import pytest

from study.machine.load import NodeLoad
from study.planning import label_at_start
from study.records.timing import Label, disturbances, label_at_end, reserved
from tests import synthetic
from tests.spaces import cluster as cluster_of
from tests.spaces import spec
from tests.values import replace

SMALL = cluster_of(local=(47, 2))
WAITING = {"environment__step_wait_ms": 2.5}
MEASURED = Label(timing="measured", reason="2 CPUs reserved of 2 cores")
PROVISIONAL = Label(timing="measured", reason="environments wait 2.5 ms a step", provisional=True)


def start(cluster=SMALL, *, scale=4, execution="real", nodes=None, **changes):
    return label_at_start(
        spec(**changes), cluster, num_env_runners=scale, execution=execution, processes_per_node=nodes
    )


def end(label, *, failed=False, dropped=0, lost=0, pressure=0.0, restarts=0, loads=()):
    """Return how a trial of two runners ends that began with a label."""
    began = {"timing": label.timing, "timing_reason": label.reason, "provisional": label.provisional}
    row, counts = synthetic.row(0, node_loads=list(loads), **began), {"num_healthy_env_runners": 2 - lost}
    row.add(1, {**counts, "num_dropped_samples": dropped, "num_env_runner_restarts": restarts})
    row.add(2, {"iteration_time_s": 2.0, "train_batch_size_actual": 400, "cpu_pressure": pressure})
    return label_at_end(row, failed=failed)


def test_every_process_has_a_core_or_the_timing_is_oversubscribed():
    assert start(scale=1) == MEASURED
    assert start(scale=2) == Label(timing="oversubscribed", reason="3 CPUs reserved, 2 cores")


def test_an_emulated_trial_says_so_whatever_the_cores():
    assert start(scale=46, execution="emulated") == Label(
        timing="emulated", reason="lanes of 46 runners stepped in 1 process"
    )


def test_an_overclaimed_node_among_several_is_not_measured():
    cluster = cluster_of(a=8, b=(8, 2))
    assert start(cluster, scale=1, nodes={"a": 2}).timing == "measured"
    planned = start(cluster, scale=1)  # nobody knows yet where Ray will place it: nothing is promised
    shared = start(cluster, scale=1, nodes={"a": 1, "b": 1})
    assert planned == shared
    assert shared == Label(timing="oversubscribed", reason="b: Ray hands out 8 CPUs, 2 cores")
    assert start(cluster, scale=1, nodes={"b": 2}, **WAITING).provisional


def test_a_node_that_nobody_has_counted_is_not_measured():
    """A host may register with Ray after the driver has read the cluster's shape, with hyper-threads as CPUs."""
    known = cluster_of(a=8)
    late = start(known, scale=1, nodes={"a": 1, "c": 1})
    assert late == Label(timing="oversubscribed", reason="c joined after the study began: its cores are not known")
    assert start(known, scale=1, nodes={"a": 2, "c": 0}).timing == "measured"
    assert start(SMALL, scale=1, nodes={"127.0.0.1": 2}) == MEASURED  # a private Ray names its one node otherwise


@pytest.mark.parametrize(
    ("pressure", "timing", "words"),
    [
        (0.0, "measured", "CPU pressure 0.0%"),
        (0.0499, "measured", "CPU pressure 5.0%"),
        (0.05, "oversubscribed", "CPU pressure 5.0%"),
        (0.4, "oversubscribed", "CPU pressure 40.0%"),
        (None, "oversubscribed", "CPU pressure unknown"),
    ],
)
def test_cpu_pressure_settles_what_was_provisional(pressure, timing, words):
    settled = end(PROVISIONAL, pressure=pressure)
    assert settled == Label(timing=timing, reason=f"environments wait 2.5 ms a step; {words}")
    assert end(MEASURED, pressure=pressure) == MEASURED


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ({"dropped": 1}, "1 sample dropped"),
        ({"lost": 2}, "2 runners lost"),
        ({"lost": 1, "dropped": 3}, "1 runner lost, 3 samples dropped"),
        ({"restarts": 1}, "1 runner restarted"),
        ({"failed": True}, "the trial failed"),
    ],
)
def test_a_failed_trial_a_lost_runner_or_a_dropped_sample_is_never_measured(events, reason):
    assert end(MEASURED, **events) == end(PROVISIONAL, **events) == Label(timing="tainted", reason=reason)
    emulated = Label(timing="emulated", reason="x")
    assert end(emulated, **events) == emulated


def test_what_others_did_on_a_node_is_the_reason_where_somebody_had_to_wait():
    told, busy = "foreign load on gros-12: 1.7 of 36 cores busy with other processes", load(1.7, cores=36)
    assert end(PROVISIONAL, pressure=0.01, loads=[busy]).timing == "measured"  # waiting, and nobody had to
    for label, pressure in ((MEASURED, None), (MEASURED, 0.01), (PROVISIONAL, None), (PROVISIONAL, 0.4)):
        assert end(label, pressure=pressure, loads=[busy]) == Label(timing="tainted", reason=told)
    assert end(MEASURED, lost=1, loads=[busy, busy]).reason == f"1 runner lost, {told}, {told}"
    for timing in ("oversubscribed", "emulated"):
        label = Label(timing=timing, reason="x")
        assert end(label, loads=[busy]) == label


# --- what a load of others makes of a trial's times: values worked out by hand --------------------------------------


def load(foreign=0.0, stolen=0.0, *, cores=4, host="gros-12", largest=""):
    return NodeLoad(
        host=host, num_cores=cores, seconds=10.0, foreign_cores=foreign, stolen_cores=stolen, largest=largest
    )


def found(*loads, **reserved):
    return disturbances(loads, {host.replace("_", "-"): held for host, held in reserved.items()})


def held(cpus, ended=0.0):
    return cpus, ended


def test_where_every_core_is_reserved_a_tenth_of_one_is_too_much():
    assert found(load(1.7, cores=36, largest="stress-ng"), gros_12=held(36)) == [
        "foreign load on gros-12: 1.7 of 36 cores busy with other processes (most by stress-ng)"
    ]


@pytest.mark.parametrize(
    ("foreign", "reserved", "disturbed"),
    [
        (0.09, {"gros_12": held(4)}, False),
        (0.11, {"gros_12": held(4)}, True),
        # Cores that the study leaves free are free for others.
        (2.05, {"gros_12": held(2)}, False),
        (2.2, {"gros_12": held(2)}, True),
        # More processes than cores leave nothing free.
        (0.2, {"gros_12": held(9)}, True),
        # Three cores are held, one of them by a trial that has ended: its CPU time looks like that of a stranger.
        (1.9, {"gros_12": held(3, ended=1.0)}, False),
        (2.2, {"gros_12": held(3, ended=1.0)}, True),
        # A host of which nothing is known has nothing free.
        (0.5, {}, True),
    ],
)
def test_a_tenth_of_a_core_beside_those_that_are_free_is_too_much(foreign, reserved, disturbed):
    assert len(found(load(foreign), **reserved)) == disturbed


def test_stolen_time_counts_by_itself():
    assert found(load(stolen=0.09), gros_12=held(1)) == []
    assert found(load(stolen=0.3), gros_12=held(1)) == [
        "stolen time on gros-12: its hypervisor withheld 0.3 of 4 cores"
    ]
    assert found(load(stolen=0.3, cores=32), gros_12=held(32)) == []  # 1 % of each


def test_machines_of_one_host_name_are_counted_apart():
    placement = [
        {"host": "a", "machine": f"a/{boot}", "num_cpus": cpus} for boot, cpus in (("1", 2), ("2", 1), ("1", 1))
    ]
    row = synthetic.row(0)
    row.apply(replace(synthetic.built(0), placement=placement), 1.0)
    assert row.cpus_per_machine == {"a/1": 3, "a/2": 1}
    loads = [replace(load(1.2, host="a"), machine=machine) for machine in ("a/1", "a/2")]
    (line,) = disturbances(loads, {machine: held(cpus) for machine, cpus in row.cpus_per_machine.items()})
    assert line.startswith("foreign load on a: ")  # one core is free on the first one, three on the other
    row.apply(replace(synthetic.built(0), placement=[{"host": "a", "num_cpus": 2}]), 1.0)
    assert row.cpus_per_machine == {"a": 2}  # a record of before there were machines


# --- what a study holds beside a trial, by hand: trial 0 is timed from second 100 to second 110 on hosts a and b -----


def beside(trial, *, started=0.0, ended=None, timed=(100.0, 110.0), num_cpus=3, **hosts):
    times = {"started": started, "ended_at": ended, "timed_from": timed[0], "timed_to": timed[1]}
    return synthetic.row(trial, num_cpus=num_cpus, cpus_per_machine=hosts, **times)


@pytest.mark.parametrize(
    ("others", "on_a", "on_b"),
    [
        pytest.param([], held(2), held(1), id="alone"),
        pytest.param([beside(1, started=50.0, a=4)], held(6), held(1), id="all the time"),
        pytest.param([beside(1, started=107.5, a=4)], held(3), held(1), id="came later"),
        pytest.param(
            [beside(1, started=50.0, ended=105.0, a=4)],
            held(4, 2),
            held(1),
            id="ended meanwhile",
        ),
        pytest.param(
            [beside(1, ended=99.0, a=4), beside(2, started=111.0, a=4)],
            held(2),
            held(1),
            id="ended before, began after",
        ),
        pytest.param(
            [beside(1, started=50.0, ended=105.0, num_cpus=6)],
            held(5, 3),
            held(4, 3),
            id="never came up: it may have been anywhere",
        ),
    ],
)
def test_another_trial_holds_its_cpus_for_its_share_of_the_time(others, on_a, on_b):
    assert reserved(beside(0, a=2, b=1), others) == {"a": on_a, "b": on_b}


def test_without_a_timed_part_there_is_nothing_to_say():
    assert reserved(beside(0, timed=(None, None), a=2), []) == {}
    assert reserved(beside(0, timed=(100.0, None), a=2), []) == {}
