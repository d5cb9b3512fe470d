"""The label of a timing: at the start, and as the records settle it at the end."""

import pytest

from study.machine.load import NodeLoad
from study.planning import label_at_start
from study.records.ledger import Label, disturbances, label_at_end, reserved
from tests import synthetic
from tests.spaces import cluster as cluster_of
from tests.spaces import spec
from tests.values import replace

SMALL = cluster_of(local=(47, 2))
MEASURED = Label(timing="measured", reason="2 CPUs reserved of 2 cores")
PROVISIONAL = Label(timing="measured", reason="environments wait 2.5 ms a step", provisional=True)


def oversubscribed(reason):
    return Label(timing="oversubscribed", reason=reason)


@pytest.mark.parametrize(
    ("cluster", "scale", "nodes", "label"),
    [
        (SMALL, 1, None, MEASURED),
        (SMALL, 1, {"127.0.0.1": 2}, MEASURED),  # a private Ray names its one node otherwise
        (SMALL, 2, None, oversubscribed("3 CPUs reserved, 2 cores")),
        # Of several nodes one hands out more than it has; nobody knows beforehand where Ray will place a trial.
        (cluster_of(a=8, b=(8, 2)), 1, {"a": 2}, replace(MEASURED, reason="2 CPUs reserved of 10 cores")),
        (cluster_of(a=8, b=(8, 2)), 1, None, oversubscribed("b: Ray hands out 8 CPUs, 2 cores")),
        (cluster_of(a=8, b=(8, 2)), 1, {"a": 1, "b": 1}, oversubscribed("b: Ray hands out 8 CPUs, 2 cores")),
        # A host may register with Ray after the driver has read the cluster's shape, with hyper-threads as CPUs.
        (
            cluster_of(a=8),
            1,
            {"a": 1, "c": 1},
            oversubscribed("c joined after the study began: its cores are not known"),
        ),
        (cluster_of(a=8), 1, {"a": 2, "c": 0}, replace(MEASURED, reason="2 CPUs reserved of 8 cores")),
    ],
)
def test_every_process_has_a_core_of_its_own_or_the_times_are_not_measured(cluster, scale, nodes, label):
    def start(**changes):
        return label_at_start(
            spec(**changes), cluster, num_env_runners=scale, execution="real", processes_per_node=nodes
        )

    assert start() == label
    waiting = start(environment__step_wait_ms=2.5)
    assert (waiting.timing, waiting.provisional) == ("measured", True) or waiting == label
    emulated = label_at_start(spec(), cluster, num_env_runners=46, execution="emulated", processes_per_node=None)
    assert emulated == Label(timing="emulated", reason="lanes of 46 runners stepped in 1 process")


def load(foreign=0.0, stolen=0.0, *, cores=4, host="gros-12", largest=""):
    return NodeLoad(
        host=host, num_cores=cores, seconds=10.0, foreign_cores=foreign, stolen_cores=stolen, largest=largest
    )


def end(label, *, failed=False, dropped=0, lost=0, pressure=0.0, restarts=0, loads=()):
    """Return how a trial of two runners ends that began with a label."""
    began = {"timing": label.timing, "timing_reason": label.reason, "provisional": label.provisional}
    row, counts = synthetic.row(0, node_loads=list(loads), **began), {"num_healthy_env_runners": 2 - lost}
    row.add(1, {**counts, "num_dropped_samples": dropped, "num_env_runner_restarts": restarts})
    row.add(2, {"iteration_time_s": 2.0, "train_batch_size_actual": 400, "cpu_pressure": pressure})
    return label_at_end(row, failed=failed)


@pytest.mark.parametrize(
    ("pressure", "timing", "words"),
    [
        (0.0, "measured", "CPU pressure 0.0%"),
        (0.0499, "measured", "CPU pressure 5.0%"),
        (0.05, "oversubscribed", "CPU pressure 5.0%"),
        (None, "oversubscribed", "CPU pressure unknown"),
    ],
)
def test_cpu_pressure_settles_what_was_provisional(pressure, timing, words):
    settled = end(PROVISIONAL, pressure=pressure)
    assert settled == Label(timing=timing, reason=f"environments wait 2.5 ms a step; {words}")
    assert end(MEASURED, pressure=pressure) == MEASURED


FOREIGN = "foreign load on gros-12: 1.7 of 36 cores busy with other processes"
BUSY = load(1.7, cores=36)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ({"dropped": 1}, "1 sample dropped"),
        ({"lost": 2}, "2 runners lost"),
        ({"lost": 1, "dropped": 3}, "1 runner lost, 3 samples dropped"),
        ({"restarts": 1}, "1 runner restarted"),
        ({"failed": True}, "the trial failed"),
        ({"loads": [BUSY], "pressure": None}, FOREIGN),
        ({"loads": [BUSY], "pressure": 0.4}, FOREIGN),
        ({"lost": 1, "loads": [BUSY, BUSY], "pressure": 0.4}, f"1 runner lost, {FOREIGN}, {FOREIGN}"),
    ],
)
def test_what_went_wrong_or_disturbed_a_trial_taints_its_times(events, reason):
    assert end(MEASURED, **events) == end(PROVISIONAL, **events) == Label(timing="tainted", reason=reason)
    for other in (Label(timing="emulated", reason="x"), oversubscribed("x")):
        assert end(other, **events) == other
    assert end(PROVISIONAL, pressure=0.01, loads=[BUSY]).timing == "measured"  # it waits, and nobody had to wait for it
    assert end(MEASURED, pressure=0.01, loads=[BUSY]).reason == FOREIGN


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
        pytest.param([], (2, 0), (1, 0), id="alone"),
        pytest.param([beside(1, started=50.0, a=4)], (6, 0), (1, 0), id="all the time"),
        pytest.param([beside(1, started=107.5, a=4)], (3, 0), (1, 0), id="came later"),
        pytest.param([beside(1, started=50.0, ended=105.0, a=4)], (4, 2), (1, 0), id="ended meanwhile"),
        pytest.param([beside(1, ended=99.0, a=4), beside(2, started=111.0, a=4)], (2, 0), (1, 0), id="apart"),
        # One that never came up may have been anywhere.
        pytest.param([beside(1, started=50.0, ended=105.0, num_cpus=6)], (5, 3), (4, 3), id="unknown"),
    ],
)
def test_another_trial_holds_its_cpus_for_its_share_of_the_time(others, on_a, on_b):
    """Trial 0 is timed from second 100 to second 110 on hosts a and b."""
    assert reserved(beside(0, a=2, b=1), others) == {"a": on_a, "b": on_b}
    assert reserved(beside(0, timed=(100.0, None), a=2), others) == {}  # there is no timed part
