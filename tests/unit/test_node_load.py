"""What a load of others makes of a trial's times: values worked out by hand."""

import pytest

from study.hosts.load import NodeLoad
from study.records.node_load import Reserved, disturbances, reserved_on


def load(foreign=0.0, stolen=0.0, *, cores=4, host="gros-12", largest=""):
    return NodeLoad(
        host=host, num_cores=cores, seconds=10.0, foreign_cores=foreign, stolen_cores=stolen, largest=largest
    )


def found(*loads, **reserved):
    return disturbances(loads, {host.replace("_", "-"): held for host, held in reserved.items()})


def held(cpus, ended=0.0):
    return Reserved(num_cpus=cpus, ended=ended)


def test_a_quiet_node_disturbs_nobody():
    assert found(load(0.09), gros_12=held(4)) == []


def test_where_every_core_is_reserved_a_tenth_of_one_is_too_much():
    assert found(load(1.7, cores=36, largest="stress-ng"), gros_12=held(36)) == [
        "foreign load on gros-12: 1.7 of 36 cores busy with other processes (most by stress-ng)"
    ]
    assert len(found(load(0.11), gros_12=held(4))) == 1


@pytest.mark.parametrize(("foreign", "disturbed"), [(2.0, False), (2.05, False), (2.2, True)])
def test_cores_that_the_study_leaves_free_are_free_for_others(foreign, disturbed):
    assert bool(found(load(foreign), gros_12=held(2))) == disturbed


def test_more_processes_than_cores_leave_nothing_free():
    assert len(found(load(0.2), gros_12=held(9))) == 1


def test_what_a_neighbour_that_ended_had_reserved_may_have_been_its_own():
    # Three cores are held, one of them by a trial that has ended: its CPU time looks like that of a stranger.
    assert found(load(1.9), gros_12=held(3, ended=1.0)) == []
    assert len(found(load(2.2), gros_12=held(3, ended=1.0))) == 1


def test_a_host_of_which_nothing_is_known_has_nothing_free():
    assert len(found(load(0.5))) == 1


def test_stolen_time_counts_by_itself():
    assert found(load(stolen=0.09), gros_12=held(1)) == []
    assert found(load(stolen=0.3), gros_12=held(1)) == [
        "stolen time on gros-12: its hypervisor withheld 0.3 of 4 cores"
    ]
    assert found(load(stolen=0.3, cores=32), gros_12=held(32)) == []  # 1 % of each


def test_every_node_is_named():
    assert [line.split(":")[0] for line in found(load(3.0), load(3.0, host="b"), gros_12=held(4), b=held(4))] == [
        "foreign load on gros-12",
        "foreign load on b",
    ]


def test_cpus_are_counted_by_host():
    placement = [
        {"host": "a", "num_cpus": 2},
        {"host": "b", "num_cpus": 1},
        {"host": "a", "num_cpus": 1},
    ]
    assert reserved_on(placement) == {"a": 3, "b": 1}
    assert reserved_on([]) == {}
