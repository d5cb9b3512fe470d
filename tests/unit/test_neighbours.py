"""What a study holds beside a trial, by hand: trial 0 is timed from second 100 to second 110 on hosts a and b."""

import pytest

from study.driver.neighbours import Neighbours
from study.records.ledger import TrialRow
from study.records.timing import Reserved


def row(trial, *, started=0.0, ended=None, timed=(100.0, 110.0), num_cpus=3, **hosts):
    return TrialRow(
        trial=trial,
        attempt=1,
        seed=1,
        setting={"num_env_runners": 2},
        proposed={},
        iterations=None,
        anchor=None,
        optuna_number=trial,
        num_cpus=num_cpus,
        execution="real",
        started=started,
        ended_at=ended,
        timed_from=timed[0],
        timed_to=timed[1],
        cpus_per_host=hosts,
    )


def reserved(*others, own=None):
    rows = {0: own or row(0, a=2, b=1)} | {other.trial: other for other in others}
    neighbours = Neighbours(rows)
    for trial in rows:
        neighbours.began(trial)
    return neighbours.reserved(0)


def test_alone():
    assert reserved() == {"a": Reserved(num_cpus=2), "b": Reserved(num_cpus=1)}


def test_one_that_runs_all_the_time_holds_its_cpus_where_it_is():
    assert reserved(row(1, started=50.0, a=4))["a"] == Reserved(num_cpus=6)
    assert reserved(row(1, started=50.0, a=4))["b"] == Reserved(num_cpus=1)


def test_one_that_came_later_counts_for_its_share_of_the_time():
    assert reserved(row(1, started=107.5, a=4))["a"].num_cpus == pytest.approx(3.0)


def test_one_that_ended_meanwhile_is_told_apart():
    assert reserved(row(1, started=50.0, ended=105.0, a=4))["a"] == Reserved(num_cpus=4.0, ended=2.0)


def test_one_that_ended_before_or_began_after_holds_nothing():
    assert reserved(row(1, ended=99.0, a=4), row(2, started=111.0, a=4))["a"] == Reserved(num_cpus=2)


def test_one_that_never_came_up_may_have_been_anywhere():
    held = reserved(row(1, started=50.0, ended=105.0, num_cpus=6))
    assert held == {"a": Reserved(num_cpus=5.0, ended=3.0), "b": Reserved(num_cpus=4.0, ended=3.0)}


def test_one_that_did_not_run_at_the_same_time_is_not_looked_at():
    rows = {0: row(0, a=2), 1: row(1, a=4)}
    neighbours = Neighbours(rows)
    neighbours.began(1)
    neighbours.ended(1)
    neighbours.began(0)
    assert neighbours.reserved(0)["a"] == Reserved(num_cpus=2)
    assert neighbours.reserved(1)["a"] == Reserved(num_cpus=4)


def test_without_a_timed_part_there_is_nothing_to_say():
    assert reserved(own=row(0, timed=(None, None), a=2)) == {}
    assert reserved(own=row(0, timed=(100.0, None), a=2)) == {}
