"""The conductor against a small model of a study: starts, ends, losses, stops, kills and resumes in any order."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from study.driver.conductor import TAKEN_BACK
from study.records.records import TrialStarted
from tests.driven import CLUSTER, assert_whole, records, rows
from tests.spaces import spec
from tests.unit.test_conductor import Session

NUM_TRIALS = 6
SPACES = {
    "real": spec(execution="real", search__num_trials=NUM_TRIALS),
    "emulated": spec(execution="emulated", search__num_trials=NUM_TRIALS),
}


class Study(RuleBasedStateMachine):
    """A study and what it should be: of each trial the number of its attempt, and how that stands."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="conductor-"))
        self.attempts: dict[int, int] = {}
        self.standing: dict[int, str] = {}
        self.settings: dict[int, dict[str, float]] = {}
        self.lost: dict[tuple[int, str], int] = {}

    @initialize(execution=st.sampled_from(sorted(SPACES)))
    def begin(self, execution: str) -> None:
        self.space = SPACES[execution]
        self.open()

    def open(self) -> None:
        self.session = Session(self.path, self.space, keep_going=True)
        self.conductor = self.session.conductor
        self.lost = {}
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
    @rule(data=st.data(), again=st.booleans())
    def finish(self, data: st.DataObject, again: bool) -> None:
        trial = self.one(data)
        self.session.finish(trial)
        self.standing[trial] = "finished"
        if again:
            self.conductor.end(trial, "failed", "told too late")

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        trial = self.one(data)
        self.conductor.end(trial, "failed", "planted")
        self.standing[trial] = "failed"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), loss=st.sampled_from(["node", "process"]))
    def lose(self, data: st.DataObject, loss: str) -> None:
        trial = self.one(data)
        self.conductor.lose(trial, loss, f"its {loss} has died")
        self.lost[trial, loss] = self.lost.get((trial, loss), 0) + 1
        self.standing[trial] = "failed" if self.lost[trial, loss] > TAKEN_BACK[loss] else "interrupted"

    @precondition(lambda self: self.running)
    @rule()
    def engine_dies(self) -> None:
        before = self.running
        self.conductor.tune_died("out of memory.")
        failed = [trial for trial in before if self.conductor.ledger.rows[trial].status == "failed"]
        for trial in before:
            self.standing[trial] = "failed" if trial in failed else "interrupted"
        if self.conductor.stop is not None:  # it dies under everything
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
            began = [each for each in records(self.path) if isinstance(each, TrialStarted)]
            assert all(each.setting == began[[one.trial for one in began].index(each.trial)].setting for each in began)
        shutil.rmtree(self.path)


TestStudy = Study.TestCase
TestStudy.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
