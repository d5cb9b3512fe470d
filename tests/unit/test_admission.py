import heapq
import math

from hypothesis import given
from hypothesis import strategies as st

from study.driver.trial_queue import SLACK, Running, Waiting, admit


def w(num_cpus, duration=10.0):
    return Waiting(num_cpus=num_cpus, duration=duration)


def r(num_cpus, end):
    return Running(num_cpus=num_cpus, end=end)


def first(queue, running, **options):
    return admit(queue, running, **options)[0]


def test_a_later_trial_overtakes_only_if_it_ends_about_when_the_first_can_start():
    running = [r(2, 9.0)]
    assert first([w(4), w(2, 18.0)], running, capacity=4, now=0) == 1  # half of 18 s after it
    assert first([w(4), w(2, 18.1)], running, capacity=4, now=0) is None


def test_a_later_trial_may_run_beside_the_first():
    # At t=8 there are 6 CPUs, the first takes 4: a long trial of 2 does not delay it, one of 3 does.
    assert first([w(4), w(2, 99)], [r(3, 8.0)], capacity=6, now=0) == 1
    assert first([w(4), w(3, 99)], [r(3, 8.0)], capacity=6, now=0) is None


def simulate(jobs, capacity, backfill):
    """Return (makespan, busy CPU-seconds / (capacity x makespan), start of each job); durations are as estimated."""
    queue, running, now, starts, used = list(range(len(jobs))), [], 0.0, {}, 0.0
    promises = {}
    while queue or running:
        while True:
            waiting = [w(*jobs[i]) for i in queue]
            held = [r(cpus, end) for end, cpus in running]
            if not queue:
                break
            shown, promised = waiting[: None if backfill else 1], promises.get(queue[0], math.inf)
            index, promises[queue[0]] = admit(shown, held, capacity=capacity, now=now, promised=promised)
            if index is None:
                break
            job = queue.pop(index)
            starts[job] = now
            used += jobs[job][0] * jobs[job][1]
            heapq.heappush(running, (now + jobs[job][1], jobs[job][0]))
        now, _ = heapq.heappop(running)
    return now, used / (capacity * now), starts


@given(st.lists(st.tuples(st.integers(1, 12), st.floats(0.5, 20)), min_size=1, max_size=25))
def test_every_job_runs_once_and_the_cpus_never_suffice_for_more(jobs):
    _, share, starts = simulate(jobs, 8, backfill=True)
    assert sorted(starts) == list(range(len(jobs)))
    assert share > 0
    events = sorted({start for start in starts.values()})
    for moment in events:
        load = sum(cpus for job, (cpus, length) in enumerate(jobs) if starts[job] <= moment < starts[job] + length)
        alone = sum(starts[job] <= moment < starts[job] + length for job, (_, length) in enumerate(jobs)) == 1
        assert load <= 8 or alone  # one larger than the machine


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0.5, 20)), min_size=2, max_size=25))
def test_backfill_delays_the_first_in_the_queue_by_no_more_than_the_slack(jobs):
    """EASY's promise concerns the head at each moment; for the first job that has to wait it is checkable."""
    _, _, strict = simulate(jobs, 8, backfill=False)
    _, _, easy = simulate(jobs, 8, backfill=True)
    head = next((job for job in range(len(jobs)) if strict[job] > 0), None)
    if head is not None:
        assert easy[head] <= strict[head] + SLACK * max(length for _, length in jobs) + 1e-9


def test_a_47_cpu_trial_among_small_ones_neither_starves_nor_idles_the_cluster():
    jobs = [(5, 10.0)] * 12 + [(47, 10.0)] + [(5, 10.0)] * 40
    _, share, starts = simulate(jobs, 48, backfill=True)
    assert starts[12] <= 20.0
    assert share > 0.85


def test_ends_that_come_later_than_expected_let_nobody_overtake_for_longer() -> None:
    """Ends are overestimated anew at every look: without its promise the first one would wait for ever."""
    queue = [Waiting(num_cpus=46, duration=20.0), Waiting(num_cpus=4, duration=20.0)]
    at_first = [Running(num_cpus=44, end=25.0)]
    index, promised = admit(queue, at_first, capacity=48, now=0.0)
    assert (index, promised) == (1, 25.0)
    later = [Running(num_cpus=44, end=60.0)]
    assert first(queue, later, capacity=48, now=20.0) == 1
    assert first(queue, later, capacity=48, now=20.0, promised=promised) is None
    assert first(queue, [], capacity=48, now=30.0, promised=promised) == 0
