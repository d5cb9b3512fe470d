"""The course of a study, driven without Ray: a model of it with kills and resumes in any order; examples by value."""

import dataclasses
import heapq
import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from study.designs.registry import make_plan
from study.driver.conductor import MEMORY_PAUSE_S, MOST_SETBACKS, TAKEN_BACK, Fault
from study.driver.trial_queue import PATIENCE, TrialQueue
from study.planning import Process
from study.records.records import TrialEnded
from tests.driven import Session, essence, records, rows
from tests.holdup import Invented, holdup_spec, luck
from tests.spaces import cluster, spec, throughput_spec

SEARCH = {"search__num_trials": 6}
STUDIES = {
    "real": (Session, spec(execution="real", **SEARCH)),
    "emulated": (Session, spec(execution="emulated", **SEARCH)),
    "throughput": (Session, throughput_spec(throughput__grids={"strong": {"num_env_runners": [1, 2, 4]}})),
    "hold-up": (Invented, holdup_spec()),
}


def outcome(row):
    """Return what a trial comes to, by what it is: some fail, and some return no number."""
    chance = luck("end", row.trial, row.seed)
    return 250 + 200 * luck(row.seed, row.digest) if chance < 0.6 else math.nan if chance < 0.8 else None


def fails(row):
    final = outcome(row)
    return final is None or (math.isnan(final) and row.stage != "throughput")  # where nothing is learnt


class Study(RuleBasedStateMachine):
    """A study and what it should be: of each trial the number of its attempt, and how that stands.

    Trials end in any order, or are lost; the engine dies; drivers are stopped and killed. What a study has decided and
    run at its end is what it decides and runs where nothing disturbs it.
    """

    undisturbed: ClassVar = dict[str, Any]()

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="conductor-"))
        self.attempts: dict[int, int] = {}
        self.standing: dict[int, str] = {}
        self.given_up = set[int]()
        """Trials that were lost too often."""

    @initialize(name=st.sampled_from(sorted(STUDIES)))
    def begin(self, name: str) -> None:
        self.kind, self.space = STUDIES[name]
        if name not in self.undisturbed:
            self.kind(self.path / "undisturbed", self.space, keep_going=True).run(outcome)
            self.undisturbed[name] = essence(self.path / "undisturbed")
        self.expected = self.undisturbed[name]
        self.open()

    def open(self) -> None:
        self.session = self.kind(self.path / "study", self.space, keep_going=True)
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

    @rule(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        for _ in range(count):
            exhausted = self.conductor.exhausted  # as Tune asks: a decision may be due
            if self.conductor.queue.part_ended:
                self.conductor.queue.begin_part()
            if (started := self.conductor.next_trial()) is None:
                assert self.running or exhausted
                return
            trial = started.trial
            assert self.standing.get(trial) in (None, "interrupted")
            assert started.attempt == self.attempts.get(trial, 0) + 1
            self.attempts[trial], self.standing[trial] = started.attempt, "running"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 8), again=st.booleans())
    def end(self, data: st.DataObject, count: int, again: bool) -> None:
        for _ in range(count):
            if not self.running:
                return
            row = self.session.rows[trial := self.one(data)]
            self.session.finish(trial, outcome(row))
            self.standing[trial] = "failed" if fails(row) else "finished"
            self.deaths = self.deaths if fails(row) else 0
            if again:
                self.conductor.end(trial, "failed", "told too late")
            self.start(1)

    def lose_one(self, trial: int) -> None:
        self.lost[trial] = self.lost.get(trial, 0) + 1
        self.standing[trial] = "failed" if self.lost[trial] > TAKEN_BACK else "interrupted"
        self.given_up |= {trial} if self.lost[trial] > TAKEN_BACK else set()

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
        ended = {*self.standing.values()} <= {"finished", "failed"}
        whole = ended and self.space.holdup is None and len(self.standing) == len(self.expected[1])
        assert closed.reason == ("complete" if whole else reason)
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
        found = rows(self.path / "study")
        assert {trial: row.status for trial, row in found.items()} == self.standing
        assert {trial: row.attempt for trial, row in found.items()} == self.attempts
        for trial, row in self.session.rows.items():  # how far it has come is told more often than recorded
            assert repr(replace(row, progress=0.0)) == repr(replace(found[trial], progress=0.0))  # one may hold NaN

    @invariant()
    def no_more_run_than_have_cores(self) -> None:
        if len(self.running) > 1:
            assert self.space.throughput is None, "each alone"
            held = sum(self.session.rows[trial].num_cpus for trial in self.running)
            assert held <= self.conductor.plan.cluster.capacity

    @invariant()
    def test_seeds_wait_for_the_settings_and_belong_to_the_confirmation(self) -> None:
        if self.attempts and self.space.holdup is not None:
            judged = [row for row in self.session.rows.values() if row.seed in self.space.holdup.test_seeds]
            frozen = self.conductor.ledger.frozen
            assert all(row.stage == "confirm" and row.digest in frozen.settings for row in judged)

    def teardown(self) -> None:
        if hasattr(self, "conductor"):
            self.kill(b"")
            assert self.session.run(outcome).reason == "complete"
            found = rows(self.path / "study").values()
            assert {row.trial for row in found if row.status == "failed"} == self.given_up | {
                row.trial for row in found if fails(row)
            }
            taken, started, ended = essence(self.path / "study")
            assert {*ended.values()} == {1} and ended.keys() == started.keys()
            if not self.given_up or self.space.holdup is None:
                assert (taken, started, ended) == self.expected
        shutil.rmtree(self.path)


TestStudy = Study.TestCase
TestStudy.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_longer_search_begins_with_the_shorter_one(tmp_path):
    for number in (6, 8):
        assert Session(tmp_path, spec(execution="real", search__num_trials=number)).run().reason == "complete"
        assert essence(tmp_path)[2] == dict.fromkeys(range(number), 1)  # each has ended once


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
    space = spec(environment__step_wait_ms=5, parameters__num_env_runners=4)
    session = Session(tmp_path, space)
    trial = session.conductor.next_trial().trial
    for number, (seconds, pressure) in enumerate(((30.0, 1.0), (2.0, 0.10), (8.0, 0.02)), start=1):
        session.iterate(trial, number, iteration_time_s=seconds, cpu_pressure=pressure)
    row = session.rows[trial]
    assert (row.timing, row.provisional) == ("measured", True)
    if not killed:
        session.evaluate(trial, 250.0)
        session.conductor.finish(trial, None)
    session.log.close()
    if killed:
        Session(tmp_path, space).log.close()
    again = rows(tmp_path)[trial]
    assert (again.status, again.timing) == ("interrupted" if killed else "finished", "measured")
    assert (row.provisional, again.provisional) == (killed, False)
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


@pytest.mark.parametrize(
    ("num_scales", "before", "most"),
    [(1, "", 4), (3, "", 4), (6, "", 6), (3, "keep going", 12), (3, "one finished", 12), (3, "another reason", 12)],
)
def test_a_study_whose_first_trials_all_fail_in_the_same_way_stops_and_says_where(tmp_path, num_scales, before, most):
    scales = list(range(1, num_scales + 1))
    space = spec(search__num_trials=24, parameters__num_env_runners=scales, execution="emulated")
    session = Session(tmp_path, space, keep_going=before == "keep going")
    if before == "one finished":
        session.finish(session.conductor.next_trial().trial)
    if before == "another reason":
        fail(session, 1, "the learner diverged")
    assert fail(session, 12) == most
    assert session.conductor.is_broken == (before == "")
    if before == "":
        closed = session.conductor.close()
        assert closed.reason == "error"
        assert "my_env.py, line 12" in closed.detail and "--keep-going" in closed.detail
        session.log.close()
        resumed = Session(tmp_path, space)  # with the environment mended: one that finishes proves it
        resumed.finish(resumed.conductor.next_trial().trial)
        assert fail(resumed, 9) == 9


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


# --- small trials fill gaps, and the large one neither waits for ever nor idles the cluster --------------------------


def starts(trials, capacity):
    """Return when each trial starts, of (runners, seconds) that are as planned, and the busy share of the CPUs."""
    plan = make_plan(spec(execution="real", search__num_trials=len(trials) + 3), cluster(local=capacity))
    (like, *_), (kind, *_) = plan.requests, plan.kinds
    requests = [replace(like, trial=trial, num_env_runners=runners) for trial, (runners, _) in enumerate(trials)]
    sizes = {each: Process(num_cpus=each[0] + 1, memory_mb=1) for each in trials}
    kinds = [
        dataclasses.replace(kind, num_env_runners=runners, seconds=seconds, processes=(size,))
        for (runners, seconds), size in sizes.items()
    ]
    plan, now, ends, found = dataclasses.replace(plan, requests=requests, kinds=kinds), 0.0, [], {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        queue = TrialQueue(plan, {}, deadline=None)
        while queue.waiting or ends:
            while (request := queue.next()) is not None:
                queue.begin(request)
                found[request.trial] = now
                heapq.heappush(ends, (now + trials[request.trial][1], request.trial))
            now, ended = heapq.heappop(ends)
            del queue.running[ended]
    return found, sum((runners + 1) * seconds for runners, seconds in trials) / (capacity * now)


SECONDS = {4: 10.0, 11: 3.0, 46: 4.0}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(SECONDS)), min_size=1, max_size=25))
def test_no_trial_waits_for_those_behind_it_but_for_a_share_of_its_own_time(runners):
    found, _ = starts([(each, SECONDS[each]) for each in runners], 48)
    for trial, each in enumerate(runners):
        first_from = max((found[before] for before in range(trial)), default=0.0)
        assert found[trial] <= first_from + PATIENCE * SECONDS[each] + max(SECONDS.values())


def test_a_47_cpu_trial_among_small_ones_neither_starves_nor_idles_the_cluster():
    found, share = starts([(4, 10.0)] * 12 + [(46, 10.0)] + [(4, 10.0)] * 40, 48)
    assert found[12] <= 20.0
    assert share > 0.85
