"""The course of a study, driven without Ray: a model of it with kills and resumes in any order; examples by value."""

import heapq
import math
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from study.driver.conductor import MEMORY_PAUSE_S, MOST_SETBACKS, TAKEN_BACK, Fault
from study.driver.trial_queue import SLACK, admit
from study.records.records import TrialEnded, TrialStarted
from tests.driven import CLUSTER, Session, assert_whole, records, rows
from tests.spaces import cluster, spec

NUM_TRIALS = 6
SPACES = {way: spec(execution=way, search__num_trials=NUM_TRIALS) for way in ("real", "emulated")}


class Study(RuleBasedStateMachine):
    """A study and what it should be: of each trial the number of its attempt, and how that stands."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="conductor-"))
        self.attempts: dict[int, int] = {}
        self.standing: dict[int, str] = {}
        self.settings: dict[int, dict[str, float]] = {}

    @initialize(execution=st.sampled_from(sorted(SPACES)))
    def begin(self, execution: str) -> None:
        self.space = SPACES[execution]
        self.open()

    def open(self) -> None:
        self.session = Session(self.path, self.space, keep_going=True)
        self.conductor = self.session.conductor
        self.lost: dict[int, int] = {}
        self.deaths = 0
        for trial in self.running:  # left by a kill
            self.standing[trial] = "interrupted"

    @property
    def running(self) -> list[int]:
        return [trial for trial, standing in self.standing.items() if standing == "running"]

    def one(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.running))

    # --- what happens ----------------------------------------------------------------------------------------------

    @rule()
    def start(self) -> None:
        started = self.conductor.next_trial()
        if started is None:
            assert self.running or all(each in ("finished", "failed") for each in self.standing.values())
            return
        trial = started.trial
        assert self.standing.get(trial) in (None, "interrupted")
        assert started.attempt == self.attempts.get(trial, 0) + 1
        assert self.settings.setdefault(trial, started.setting) == started.setting, "an attempt has another setting"
        self.attempts[trial], self.standing[trial] = started.attempt, "running"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def iterate(self, data: st.DataObject) -> None:
        self.session.iterate(self.one(data))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["finished", "failed"]), again=st.booleans())
    def end(self, data: st.DataObject, how: str, again: bool) -> None:
        trial = self.one(data)
        if how == "finished":
            self.session.finish(trial)
            self.deaths = 0
        else:
            self.conductor.end(trial, "failed", "planted")
        self.standing[trial] = how
        if again:
            self.conductor.end(trial, "failed", "told too late")

    def lose_one(self, trial: int) -> None:
        self.lost[trial] = self.lost.get(trial, 0) + 1
        self.standing[trial] = "failed" if self.lost[trial] > TAKEN_BACK else "interrupted"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), loss=st.sampled_from(["node", "process"]))
    def lose(self, data: st.DataObject, loss: str) -> None:
        trial = self.one(data)
        self.conductor.fail(trial, Fault(f"its {loss} has died", loss))
        self.lose_one(trial)

    @rule()
    def engine_dies(self) -> None:
        self.deaths += 1
        hopeless = self.deaths > MOST_SETBACKS
        self.conductor.tune_died("out of memory.")
        for trial in self.running:
            if hopeless:
                self.standing[trial] = "interrupted"
            else:
                self.lose_one(trial)
        assert (self.conductor.stop is not None) == hopeless
        if hopeless:
            self.close("error")

    @rule()
    def stop(self) -> None:
        self.conductor.end_early("stopped", "received SIGTERM")
        assert self.conductor.next_trial() is None
        self.close("stopped")

    def close(self, reason: str) -> None:
        for trial in self.running:
            self.standing[trial] = "interrupted"
        closed = self.conductor.close()
        done = len(self.standing) == NUM_TRIALS and {*self.standing.values()} <= {"finished", "failed"}
        assert closed.reason == ("complete" if done else reason)
        self.session.log.close()
        self.open()

    @rule(torn=st.binary(max_size=9))
    def kill(self, torn: bytes) -> None:
        self.session.log.close()
        with self.session.folder.records.open("ab") as file:
            file.write(b'{"schema":1,"seq":' + torn.replace(b"\n", b""))
        self.open()

    # --- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def the_records_are_what_happened(self) -> None:
        if not hasattr(self, "conductor"):
            return
        found = rows(self.path)
        assert {trial: row.status for trial, row in found.items()} == self.standing
        assert {trial: row.attempt for trial, row in found.items()} == self.attempts
        for trial, row in self.conductor.ledger.rows.items():  # how far it has come is told more often than recorded
            assert replace(row, progress=0.0) == replace(found[trial], progress=0.0)

    @invariant()
    def no_more_run_than_have_cores(self) -> None:
        if len(self.running) > 1:
            held = sum(self.conductor.ledger.rows[trial].num_cpus for trial in self.running)
            assert held <= CLUSTER.capacity

    def teardown(self) -> None:
        if hasattr(self, "conductor"):
            for trial in self.running:
                self.session.finish(trial)
            assert self.session.run_all().reason == "complete"
            failed = [trial for trial, standing in self.standing.items() if standing == "failed"]
            assert_whole(self.path, NUM_TRIALS, failed)
            longer = Session(self.path, spec(execution=self.space.execution, search__num_trials=NUM_TRIALS + 2))
            assert longer.run_all().reason == "complete"
            assert_whole(self.path, NUM_TRIALS + 2, failed)
            first: dict[int, object] = {}
            began = [each for each in records(self.path) if isinstance(each, TrialStarted)]
            assert all(first.setdefault(each.trial, each.setting) == each.setting for each in began)
        shutil.rmtree(self.path)


TestStudy = Study.TestCase
TestStudy.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# --- what a row says --------------------------------------------------------------------------------------------------


def test_the_rate_leaves_out_the_first_iteration_and_the_final_return_all_but_the_last_tenth(tmp_path):
    session = Session(tmp_path)
    trial = session.conductor.next_trial().trial
    session.iterate(trial, 1, iteration_time_s=50.0)
    session.iterate(trial, 2, iteration_time_s=2.0)
    for progress, value in ((0.1, math.nan), (0.5, 400.0), (0.89, 300.0), (0.9, 100.0), (1.0, 200.0)):
        session.evaluate(trial, value, progress=progress)
    session.conductor.finish(trial, None)
    summary = session.conductor.ledger.rows[trial].summary
    assert summary["env_steps_per_s"] == pytest.approx(50.0)
    assert summary["final_return"] == pytest.approx(150.0)
    assert summary["score"] == pytest.approx(0.3)
    assert summary["peak_return"] == 400.0  # of those that are numbers
    assert summary["wall_time_s"] == 4.0


@pytest.mark.parametrize("killed", [False, True])
def test_the_label_of_environments_that_wait_is_settled_at_the_end_or_by_a_resume(tmp_path, killed):
    space = spec(environment__step_wait_ms=5)
    session = Session(tmp_path, space)
    while (started := session.conductor.next_trial()).setting["num_env_runners"] != 4:
        session.conductor.end(started.trial, "failed", "not this one")
    trial = started.trial
    for number, (seconds, pressure) in enumerate(((30.0, 1.0), (2.0, 0.10), (8.0, 0.02)), start=1):
        session.iterate(trial, number, iteration_time_s=seconds, cpu_pressure=pressure)
    row = session.conductor.ledger.rows[trial]
    assert (row.timing, row.provisional) == ("measured", True)
    if killed:
        session.log.close()
        Session(tmp_path, space).log.close()
    else:
        session.evaluate(trial, 250.0)
        session.conductor.finish(trial, None)
        assert (row.timing, row.provisional) == ("measured", False)
        session.log.close()
    again = rows(tmp_path)[trial]
    assert (again.status, again.timing) == ("interrupted" if killed else "finished", "measured")
    assert "CPU pressure 3.6%" in again.timing_reason  # after the warm-up: (2 x 0.10 + 8 x 0.02) / 10


def test_an_attempt_that_a_killed_driver_left_costs_no_more_than_it_was_seen(tmp_path, monkeypatch):
    session = Session(tmp_path)
    trial = session.conductor.next_trial().trial
    session.iterate(trial)
    row = session.conductor.ledger.rows[trial]
    seen, cpus = row.last_seen - row.started, row.num_cpus
    session.log.close()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3 * 86400)  # killed on Friday, resumed on Monday
    Session(tmp_path)
    (ended,) = (record for record in records(tmp_path) if isinstance(record, TrialEnded))
    assert ended.summary["cpu_s_reserved"] == pytest.approx(seen * cpus)
    assert rows(tmp_path)[trial].ended_at == pytest.approx(row.started + seen)


# --- what is dealt out ------------------------------------------------------------------------------------------------


def test_no_more_trials_run_side_by_side_than_there_are_gpus(tmp_path):
    space = spec(execution="emulated", resources__num_gpus_per_learner=0.3)
    session = Session(tmp_path, space, cluster=cluster(local=8, num_gpus=1))
    started = [session.conductor.next_trial() for _ in range(4)]
    assert [trial is None for trial in started] == [False, False, False, True]
    session.finish(started[0].trial)
    assert session.conductor.next_trial() is not None


def test_a_time_budget_stops_the_study_and_starts_nothing_that_would_not_end(tmp_path, monkeypatch):
    session = Session(tmp_path, deadline=time.monotonic() - 1)
    assert session.conductor.exhausted
    assert session.conductor.close().reason == "time budget"
    session.log.close()
    session = Session(tmp_path, deadline=time.monotonic() + 1200)
    for _ in range(3):  # one of each scale, so that every duration is known
        trial = session.conductor.next_trial().trial
        session.conductor.ledger.rows[trial].started -= 300
        session.finish(trial)
    assert not session.conductor.exhausted
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 950)
    assert session.conductor.exhausted
    assert session.conductor.stop.detail == "no further trial would end within the time budget"


# --- what goes wrong --------------------------------------------------------------------------------------------------


def fail(session, number, reason="step 3: ValueError (my_env.py, line 12, in step)"):
    """Let trials fail one after another, until the session ends; return how many have."""
    for done in range(number):
        if session.conductor.must_stop:
            return done
        session.conductor.end(session.conductor.next_trial().trial, "failed", reason.replace("3", str(done)))
    return number


@pytest.mark.parametrize(("num_scales", "most"), [(1, 4), (3, 4), (6, 6)])
def test_a_study_whose_first_trials_fail_in_the_same_way_stops_and_says_where(tmp_path, num_scales, most):
    scales = list(range(1, num_scales + 1))
    space = spec(search__num_trials=24, parameters__num_env_runners=scales, execution="emulated")
    session = Session(tmp_path, space)
    assert fail(session, 12) == most
    closed = session.conductor.close()
    assert (closed.reason, session.conductor.is_broken) == ("error", True)
    assert "my_env.py, line 12" in closed.detail
    assert "--keep-going" in closed.detail
    session.log.close()
    resumed = Session(tmp_path, space)  # with the environment mended: one that finishes proves it
    resumed.finish(resumed.conductor.next_trial().trial)
    assert fail(resumed, 9) == 9


@pytest.mark.parametrize("why", ["keep going", "one finished", "another reason"])
def test_a_study_goes_on_where_the_person_wants_or_trials_differ(tmp_path, why):
    session = Session(tmp_path, spec(search__num_trials=24, execution="emulated"), keep_going=why == "keep going")
    if why == "one finished":
        session.finish(session.conductor.next_trial().trial)
    if why == "another reason":
        fail(session, 1, "the learner diverged")
    assert fail(session, 12) == 12
    assert not session.conductor.is_broken


def test_where_memory_is_short_a_study_waits_and_after_a_while_stops(tmp_path, monkeypatch):
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    session = Session(tmp_path, spec(search__num_trials=9, execution="emulated"))
    conductor = session.conductor

    def run_short() -> tuple[int, str]:
        trial = conductor.next_trial().trial
        conductor.fail(trial, Fault("memory", "memory"))
        assert conductor.next_trial() is None  # nothing starts at once
        clock[0] += MEMORY_PAUSE_S
        return trial, conductor.ledger.rows[trial].status

    assert [run_short() for _ in range(2)] == [(0, "interrupted")] * 2
    session.finish(conductor.next_trial().trial)  # one that finishes shows that there is memory
    assert [run_short() for _ in range(3)] == [(1, "interrupted")] * 2 + [(1, "failed")]
    assert run_short() == (2, "interrupted")
    assert conductor.stop is None
    assert run_short() == (2, "interrupted")
    assert (conductor.stop.reason, "--resume" in conductor.stop.detail) == ("error", True)


# --- backfill: small trials fill gaps, and the large one neither waits for ever nor idles the cluster ----------------


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
