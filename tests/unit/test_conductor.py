"""The course of a study, driven without Ray: kills at every step, resumes, failures, stops."""

import math
import time
import zipfile

import pytest

from study.records.ledger import ledger_of
from study.records.records import StudyClosed, TrialEnded
from tests.driven import ROOMY, Driven, assert_whole, policy, records
from tests.reported import built, evaluation, iteration, report
from tests.spaces import cluster, spec


class Session(Driven):
    """A session whose trials have two iterations."""

    def __init__(self, path, space=None, **options):
        super().__init__(path, space or spec(execution="real"), **options)

    def iterate(self, trial, number=1, **metrics):
        reported = [built()] if number == 1 else []
        report(self.conductor, trial, *reported, iteration(number, cpu_time_s=1.0, **metrics), progress=number / 4)

    def evaluate(self, trial, *returns, progress=1.0):
        report(self.conductor, trial, evaluation(iteration(2), *returns, progress=progress), progress=progress)

    def finish(self, trial, final=250.0, policy=None):
        self.iterate(trial, 1)
        self.iterate(trial, 2)
        self.evaluate(trial, final)
        self.conductor.finish(trial, policy)

    def run_all(self):
        while not self.conductor.exhausted:
            started = self.conductor.next_trial()
            assert started is not None
            self.finish(started.trial)
        closed = self.conductor.close()
        self.log.close()
        return closed


def test_a_study_runs_to_its_end(tmp_path):
    assert Session(tmp_path).run_all().reason == "complete"
    assert_whole(tmp_path, 6)
    row = ledger_of(tmp_path / "records.jsonl").rows[0]
    assert row.summary["final_return"] == 250.0
    assert row.summary["score"] == pytest.approx(0.5)
    assert row.summary["wall_time_s"] == 4.0
    assert row.summary["cpu_s_reserved"] == pytest.approx((row.ended_at - row.started) * row.num_cpus, abs=0.5)


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
    assert summary["peak_return"] == 400.0  # of those that are numbers


def test_no_more_trials_run_side_by_side_than_there_are_gpus(tmp_path):
    space = spec(execution="emulated", resources__num_gpus_per_learner=0.3)
    session = Session(tmp_path, space, cluster=cluster(local=8, num_gpus=1))
    started = [session.conductor.next_trial() for _ in range(4)]
    assert [trial is None for trial in started] == [False, False, False, True]
    session.finish(started[0].trial)
    assert session.conductor.next_trial() is not None


def waiting_trial(session, *pressures, runners=4, **metrics):
    """Start the trial of four runners, whose environments wait, and report iterations of (seconds, pressure)."""
    while (started := session.conductor.next_trial()).setting["num_env_runners"] != runners:
        session.conductor.end(started.trial, "failed", "not this one")
    for number, (seconds, pressure) in enumerate(pressures, start=1):
        session.iterate(started.trial, number, iteration_time_s=seconds, cpu_pressure=pressure, **metrics)
    return started.trial


WAITING = {"environment__step_wait_ms": 5}
STEADY = ((30.0, 1.0), (2.0, 0.10), (8.0, 0.02))  # after the warm-up (2 x 0.10 + 8 x 0.02) / 10 = 0.036


@pytest.mark.parametrize(
    ("pressures", "metrics", "timing", "words"),
    [
        (STEADY, {}, "measured", "CPU pressure 3.6%"),
        (((1.0, 0.0), (8.0, 0.10), (2.0, 0.02)), {}, "oversubscribed", "CPU pressure 8.4%"),
        (((1.0, 0.0),), {}, "oversubscribed", "CPU pressure unknown"),
        (STEADY, {"num_dropped_samples": 2}, "tainted", "2 samples dropped"),
    ],
)
def test_the_label_of_environments_that_wait_is_settled_and_recorded_at_the_end(
    tmp_path, pressures, metrics, timing, words
):
    session = Session(tmp_path, spec(**WAITING))
    trial = waiting_trial(session, *pressures, **metrics)
    row = session.conductor.ledger.rows[trial]
    assert (row.timing, row.provisional) == ("measured", True)
    session.evaluate(trial, 250.0)
    session.conductor.finish(trial, None)
    assert (row.timing, row.provisional) == (timing, False)
    assert words in row.timing_reason
    session.log.close()
    ended = records(tmp_path)[-1]
    assert (ended.timing, ended.timing_reason) == (row.timing, row.timing_reason)
    again = ledger_of(tmp_path / "records.jsonl").rows[trial]
    assert (again.timing, again.timing_reason) == (row.timing, row.timing_reason)


def test_a_resume_settles_the_label_of_a_killed_attempt_from_the_records_alone(tmp_path):
    session = Session(tmp_path, spec(**WAITING))
    trial = waiting_trial(session, *STEADY)
    session.log.close()  # a kill
    resumed = Session(tmp_path, spec(**WAITING))
    row = resumed.conductor.ledger.rows[trial]
    assert (row.status, row.timing) == ("interrupted", "measured")
    assert "CPU pressure 3.6%" in row.timing_reason
    resumed.log.close()
    assert isinstance(records(tmp_path)[-1], TrialEnded)


def test_a_measured_trial_that_lost_something_is_tainted_and_an_unbuilt_one_has_no_label(tmp_path):
    session = Session(tmp_path)
    trial = waiting_trial(session, (2.0, 0.0), runners=1, num_dropped_samples=1)
    session.conductor.end(trial, "failed", "boom")
    row = session.conductor.ledger.rows[trial]
    assert (row.timing, row.timing_reason) == ("tainted", "the trial failed, 1 sample dropped")
    other = session.conductor.next_trial().trial
    session.conductor.end(other, "failed", "never came up")
    assert session.conductor.ledger.rows[other].timing is None


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
    space = spec(search__num_trials=24, execution="emulated")
    session = Session(tmp_path, space, keep_going=why == "keep going")
    if why == "one finished":
        session.finish(session.conductor.next_trial().trial)
    if why == "another reason":
        fail(session, 1, "the learner diverged")
    assert fail(session, 12) == 12
    assert not session.conductor.is_broken


def test_a_trial_that_ends_without_an_evaluation_has_failed(tmp_path):
    session = Session(tmp_path)
    trial = session.conductor.next_trial().trial
    session.iterate(trial)
    session.conductor.finish(trial, None)
    assert session.conductor.ledger.rows[trial].status == "failed"


def test_a_longer_plan_extends_the_study(tmp_path):
    Session(tmp_path).run_all()
    assert Session(tmp_path, spec(search__num_trials=9, execution="real")).run_all().reason == "complete"
    assert_whole(tmp_path, 9)


def test_a_time_budget_stops_the_study_and_starts_nothing_that_would_not_end(tmp_path):
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
    session.conductor._queue.deadline = time.monotonic() + 250
    assert session.conductor.exhausted
    assert session.conductor.stop.detail == "no further trial would end within the time budget"


def test_a_batch_is_a_multiple_of_the_lanes_and_of_the_learners_and_minibatches_fit(tmp_path):
    space = spec(
        search__num_trials=30,
        parameters__minibatch_size={"low": 30, "high": 600},
        parameters__num_envs_per_env_runner=[1, 5],
        resources__num_learners=3,
    )
    session = Session(tmp_path, space)
    seen = set()
    while (started := session.conductor.next_trial()) is not None:
        setting = started.setting
        lanes = setting["num_env_runners"] * setting["num_envs_per_env_runner"]
        assert setting["train_batch_size"] % lanes == setting["train_batch_size"] % 3 == 0
        assert setting["minibatch_size"] % 3 == 0
        assert 30 <= setting["minibatch_size"] <= setting["train_batch_size"] <= 800
        seen.add(setting["minibatch_size"])
        session.finish(started.trial)
    assert len(seen) > 5


def test_a_batch_that_a_person_wrote_is_not_rounded(tmp_path):
    anchor = [{"name": "mine", "parameters": {"train_batch_size": 333}}]
    session = Session(tmp_path, spec(search__baselines=anchor))
    assert session.conductor.next_trial().setting["train_batch_size"] == 333


def test_trials_that_ran_side_by_side_in_a_dead_engine_run_one_by_one_and_only_the_culprit_fails(tmp_path):
    session = Session(tmp_path, spec(search__num_trials=8), cluster=ROOMY)
    beside = [session.conductor.next_trial().trial for _ in range(2)]
    culprit = beside[1]
    session.conductor.tune_died("out of memory.")
    assert session.conductor.next_trial().trial == beside[0]
    assert session.conductor.next_trial() is None  # nothing beside a suspect, nor a suspect beside others
    session.finish(beside[0])
    assert session.conductor.next_trial().trial == culprit
    assert session.conductor.next_trial() is None
    session.conductor.tune_died("out of memory.")
    assert session.conductor.ledger.rows[culprit].status == "failed"
    assert session.conductor.stop is None
    assert session.run_all().reason == "complete"
    assert_whole(tmp_path, 8, failed=(culprit,))


def test_no_trial_is_blamed_for_an_engine_that_dies_under_every_one(tmp_path):
    session = Session(tmp_path, spec(search__num_trials=8), cluster=ROOMY)
    beside = [session.conductor.next_trial().trial for _ in range(2)]
    for _ in range(2):
        session.conductor.tune_died("out of memory.")
        session.conductor.next_trial()
    assert session.conductor.stop is None
    session.conductor.tune_died("out of memory.")
    assert session.conductor.stop.reason == "error"
    statuses = [session.conductor.ledger.rows[trial].status for trial in beside]
    assert statuses == ["failed", "interrupted"]  # the first may have been the cause, both cannot


def test_an_engine_that_dies_again_before_any_trial_has_started_ends_the_study(tmp_path):
    session = Session(tmp_path)
    session.conductor.next_trial()
    session.conductor.tune_died("boom.")
    assert session.conductor.stop is None
    session.conductor.tune_died("boom.")
    assert session.conductor.stop.reason == "error"
    assert session.conductor.close().reason == "error"


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
    again = ledger_of(tmp_path / "records.jsonl").rows[trial]
    assert again.ended_at == pytest.approx(row.started + seen)


def test_a_table_that_cannot_be_written_costs_no_record(tmp_path, monkeypatch):
    session = Session(tmp_path)

    def full(path, rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("study.driver.conductor.write_table", full)
    session.conductor.end(session.conductor.next_trial().trial, "failed", "it did not learn")
    session.conductor.next_trial()
    session.conductor.close()
    session.conductor.write_table()  # as the end of a session does
    ended = [record.status for record in records(tmp_path) if isinstance(record, TrialEnded)]
    assert ended == ["failed", "interrupted"]
    assert isinstance(list(records(tmp_path))[-1], StudyClosed)


def test_a_policy_is_inside_its_folder_as_a_whole_or_not_at_all(tmp_path):
    session = Session(tmp_path)
    whole = policy({"first.bin": b"abc", "../../second.bin": b"abc" * 100})
    torn = bytearray(whole)
    torn[torn.index(b"abcabc")] ^= 1  # the second file is damaged, the first one is not
    trial = session.conductor.next_trial().trial
    with pytest.raises(zipfile.BadZipFile):
        session.finish(trial, policy=bytes(torn))
    assert not session.folder.checkpoint(trial).exists()
    session.conductor.finish(trial, whole)
    files = sorted(tmp_path.parent.rglob("*.bin"))
    assert files == [session.folder.checkpoint(trial) / name for name in ("first.bin", "second.bin")]
    assert [entry.name for entry in session.folder.checkpoints.iterdir()] == [session.folder.checkpoint(trial).name]
