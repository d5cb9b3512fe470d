"""Backfill: small trials fill gaps, and the large one neither waits for ever nor idles the cluster."""

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.driver.trial_queue import SLACK, admit


@pytest.mark.parametrize(
    ("queue", "running", "capacity", "admitted"),
    [
        ([(4, 10), (2, 18.0)], (2, 9.0), 4, 1),  # half of 18 s after the first could start
        ([(4, 10), (2, 18.1)], (2, 9.0), 4, None),
        # At t=8 there are 6 CPUs, the first takes 4: a long trial of 2 does not delay it, one of 3 does.
        ([(4, 10), (2, 99)], (3, 8.0), 6, 1),
        ([(4, 10), (3, 99)], (3, 8.0), 6, None),
    ],
)
def test_a_later_trial_overtakes_only_if_the_first_hardly_waits_for_it(queue, running, capacity, admitted):
    assert admit(queue, [running], capacity=capacity, now=0)[0] == admitted


def simulate(jobs, capacity, backfill):
    """Return the share of the CPUs that were busy, and the start of each job; durations are as estimated."""
    queue, running, now, starts, used = list(range(len(jobs))), [], 0.0, {}, 0.0
    promises = {}
    while queue or running:
        while queue:
            waiting, held = [jobs[i] for i in queue], [(cpus, end) for end, cpus in running]
            shown, promised = waiting[: None if backfill else 1], promises.get(queue[0], math.inf)
            index, promises[queue[0]] = admit(shown, held, capacity=capacity, now=now, promised=promised)
            if index is None:
                break
            job = queue.pop(index)
            starts[job] = now
            used += jobs[job][0] * jobs[job][1]
            heapq.heappush(running, (now + jobs[job][1], jobs[job][0]))
        now, _ = heapq.heappop(running)
    return used / (capacity * now), starts


JOBS = st.lists(st.tuples(st.integers(1, 12), st.floats(0.5, 20)), min_size=1, max_size=25)


@given(JOBS)
def test_every_job_runs_once_and_the_cpus_never_suffice_for_more(jobs):
    _, starts = simulate(jobs, 8, backfill=True)
    assert sorted(starts) == list(range(len(jobs)))
    for moment in starts.values():
        at_once = [cpus for job, (cpus, length) in enumerate(jobs) if starts[job] <= moment < starts[job] + length]
        assert sum(at_once) <= 8 or len(at_once) == 1  # one larger than the machine


@given(JOBS)
def test_backfill_delays_the_first_in_the_queue_by_no_more_than_the_slack(jobs):
    """EASY's promise concerns the head at each moment; for the first job that has to wait it is checkable."""
    jobs = [(min(cpus, 8), length) for cpus, length in jobs]
    (_, strict), (_, easy) = (simulate(jobs, 8, backfill=each) for each in (False, True))
    head = next((job for job in range(len(jobs)) if strict[job] > 0), None)
    if head is not None:
        assert easy[head] <= strict[head] + SLACK * max(length for _, length in jobs) + 1e-9


def test_a_47_cpu_trial_among_small_ones_neither_starves_nor_idles_the_cluster():
    jobs = [(5, 10.0)] * 12 + [(47, 10.0)] + [(5, 10.0)] * 40
    share, starts = simulate(jobs, 48, backfill=True)
    assert starts[12] <= 20.0
    assert share > 0.85


def test_ends_that_come_later_than_expected_let_nobody_overtake_for_longer() -> None:
    """Ends are overestimated anew at every look: without its promise the first one would wait for ever."""
    queue = [(46, 20.0), (4, 20.0)]
    index, promised = admit(queue, [(44, 25.0)], capacity=48, now=0.0)
    assert (index, promised) == (1, 25.0)
    later = [(44, 60.0)]
    assert admit(queue, later, capacity=48, now=20.0)[0] == 1
    assert admit(queue, later, capacity=48, now=20.0, promised=promised)[0] is None
    assert admit(queue, [], capacity=48, now=30.0, promised=promised)[0] == 0
