"""The course of a throughput study without Ray: killed and resumed, failed and told."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.records.ledger import best_per_scale
from study.space.settings import BASE_CELL
from tests.driven import Driven, assert_whole, rows
from tests.reported import built, iteration, report
from tests.spaces import cluster, throughput_spec

CLUSTER = cluster(local=(8, 2))
PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s")
SMALL = {
    "throughput__blocks": 2,
    "throughput__grids": {"strong": {"num_env_runners": [1, 2, 4]}},
}
NUM_TRIALS = 2 * (2 + 2)
"""Of `SMALL`: two anchors and two other cells in each block."""


class Drive(Driven):
    """A session whose trials have three iterations."""

    def __init__(self, path, space=None):
        super().__init__(path, space or throughput_spec(**SMALL), cluster=CLUSTER)

    def finish(self, trial, *, pressure=0.01, seconds=None):
        """Report three iterations; one with n runners takes 4 / n seconds, the first twice as long and all sampling."""
        row = self.conductor.ledger.rows[trial]
        seconds = 4.0 / row.num_env_runners if seconds is None else seconds
        report(self.conductor, trial, built(startup_time_s=None), progress=0.0)
        for number in (1, 2, 3):
            time_s = seconds * (2 if number == 1 else 1)
            shares = (1.0, 0.0, 0.0, 0.0) if number == 1 else (0.3, 0.6, 0.02, 0.08)
            metrics = {name: share * time_s for name, share in zip(PHASES, shares, strict=True)}
            one = iteration(number, steps=400, seconds=time_s, cpu_pressure=pressure, **metrics)
            report(self.conductor, trial, one, progress=number / 3)
        self.conductor.finish(trial, None)

    def run(self, finish=None, *, most=None):
        return super().run(finish or self.finish, most=most)


def test_a_study_runs_to_its_end_one_trial_at_a_time(tmp_path):
    drive = Drive(tmp_path)
    together = []
    for started in drive.groups():
        together.append(len(started))
        for one in started:
            drive.finish(one.trial)
    assert drive.conductor.close().reason == "complete"
    assert together == [1] * NUM_TRIALS
    found = rows(tmp_path)
    assert sorted(found) == list(range(NUM_TRIALS))
    for row in found.values():
        assert (row.status, row.stage, row.optuna_number, row.iterations) == ("finished", "throughput", None, 3)
        assert (row.summary["final_return"], row.summary["score"], row.checkpoint) == (None, None, None)
        assert row.summary["env_steps_per_s"] == pytest.approx(100 * row.num_env_runners)
        assert row.setting["num_learners"] == 0
        assert row.rule["train_batch_size"] == row.setting["train_batch_size"]
        assert row.digest
    assert {row.seed for row in found.values()} == {1, 2}
    assert {row.anchor for row in found.values()} == {
        BASE_CELL,
        "n=1 k=1 B=400 m=100 E=4",
        "n=4 k=1 B=400 m=100 E=4",
    }
    assert best_per_scale(found.values()) == {}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    Drive(path := tmp_path_factory.mktemp("undisturbed")).run()
    return {number: (row.anchor, row.seed, row.setting) for number, row in rows(path).items()}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(0, NUM_TRIALS - 1), max_size=4))
def test_killed_anywhere_and_resumed_every_trial_ends_exactly_once(tmp_path_factory, undisturbed, kills):
    path = tmp_path_factory.mktemp("study")
    for most in kills:
        Drive(path).run(most=most)
    closed = Drive(path).run()
    assert closed.reason == "complete"
    assert_whole(path, NUM_TRIALS)
    # The same cells in the same blocks, however often it was killed.
    assert {number: (row.anchor, row.seed, row.setting) for number, row in rows(path).items()} == undisturbed
