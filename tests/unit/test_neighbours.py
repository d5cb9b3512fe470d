"""What a study holds beside a trial, by hand: trial 0 is timed from second 100 to second 110 on hosts a and b."""

import pytest

from study.records.timing import Reserved, reserved
from tests import synthetic


def row(trial, *, started=0.0, ended=None, timed=(100.0, 110.0), num_cpus=3, **hosts):
    times = {"started": started, "ended_at": ended, "timed_from": timed[0], "timed_to": timed[1]}
    return synthetic.row(trial, num_cpus=num_cpus, cpus_per_machine=hosts, **times)


@pytest.mark.parametrize(
    ("others", "on_a", "on_b"),
    [
        pytest.param([], Reserved(num_cpus=2), Reserved(num_cpus=1), id="alone"),
        pytest.param([row(1, started=50.0, a=4)], Reserved(num_cpus=6), Reserved(num_cpus=1), id="all the time"),
        pytest.param([row(1, started=107.5, a=4)], Reserved(num_cpus=3), Reserved(num_cpus=1), id="came later"),
        pytest.param(
            [row(1, started=50.0, ended=105.0, a=4)],
            Reserved(num_cpus=4, ended=2),
            Reserved(num_cpus=1),
            id="ended meanwhile",
        ),
        pytest.param(
            [row(1, ended=99.0, a=4), row(2, started=111.0, a=4)],
            Reserved(num_cpus=2),
            Reserved(num_cpus=1),
            id="ended before, began after",
        ),
        pytest.param(
            [row(1, started=50.0, ended=105.0, num_cpus=6)],
            Reserved(num_cpus=5, ended=3),
            Reserved(num_cpus=4, ended=3),
            id="never came up: it may have been anywhere",
        ),
    ],
)
def test_another_trial_holds_its_cpus_for_its_share_of_the_time(others, on_a, on_b):
    assert reserved(row(0, a=2, b=1), others) == {"a": on_a, "b": on_b}


def test_without_a_timed_part_there_is_nothing_to_say():
    assert reserved(row(0, timed=(None, None), a=2), []) == {}
    assert reserved(row(0, timed=(100.0, None), a=2), []) == {}
