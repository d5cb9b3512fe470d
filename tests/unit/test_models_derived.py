"""What follows from the model: by hand, by brute force, and inside its intervals on planted truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.models import derived
from analysis.models.calibration import verdict
from analysis.models.derived import runner_limit
from analysis.models.iteration_time import fit_iteration_time
from analysis.models.phases import design, phase_times
from study.errors import AnalysisError
from tests.unit.test_models_planted import TRUTH, grid, planted, vector

SETTING = ((4, 4000, 256, 4),)


@pytest.fixture(scope="module")
def exact():
    return fit_iteration_time(planted(np.random.default_rng(0), runs=1, noise=1e-9))


@pytest.fixture(scope="module")
def noisy():
    rng = np.random.default_rng(4)
    return fit_iteration_time(planted(rng, cells=grid((1, 2, 4, 8, 16))), rng=rng, level=0.95, num_resamples=300)


def true_times(cells, whole_steps=False):
    return phase_times(vector(TRUTH), design(cells, whole_steps=whole_steps))


def limit():
    """Return the first n after which one runner more is not worth its CPU, in the setting `SETTING`."""
    scales = np.arange(1, 200)
    rates = 4000 / true_times(grid(tuple(scales), SETTING))["iteration"]
    worth = np.diff(np.log(rates)) / np.diff(np.log(1 + scales))
    return scales[np.flatnonzero(worth < 0.5)[0]]


def test_the_runner_limit_is_the_first_runner_that_is_not_worth_it(exact, noisy):
    expected = limit()
    found = runner_limit(exact, grid((1,), SETTING))
    assert found.value == expected
    estimate = runner_limit(noisy, grid((1,), SETTING))
    assert estimate.low <= expected <= estimate.high


def test_a_search_that_finds_no_limit_names_none(exact, monkeypatch):
    monkeypatch.setattr(derived, "MOST_LIMIT", 20)
    assert runner_limit(exact, grid((1,), SETTING)) is None


def test_where_some_resamples_find_no_limit_its_interval_has_no_upper_end(noisy, monkeypatch):
    whole = runner_limit(noisy, grid((1,), SETTING))
    assert whole.low < whole.value < whole.high
    monkeypatch.setattr(derived, "MOST_LIMIT", int(whole.value))
    cut = runner_limit(noisy, grid((1,), SETTING))
    assert (cut.value, cut.high) == (whole.value, math.inf)
    assert cut.low == whole.low


def test_no_limit_has_more_lanes_than_the_batch_has_env_steps(noisy):
    waiting = grid((1,), ((8, 384, 96, 4),), step_wait_s=0.5)
    found = runner_limit(noisy, waiting)
    assert (found.value, found.high) == (48, 48)
    one = runner_limit(noisy, grid((1,), ((8, 8, 8, 1),), step_wait_s=0.5))
    assert one.value == 1


def test_a_calibration_says_learner_bound_and_how_much_is_left():
    bound = ((4, 4000, 32, 30),)
    runs = planted(np.random.default_rng(0), cells=grid((2, 4), bound, step_wait_s=0.0))
    found = verdict(runs)
    assert found.bound == "learner-bound"
    assert found.num_env_runners == 4
    assert found.sentence.startswith("You are learner-bound: learning takes ")
    # No number of runners gives more than that, by the truth.
    many = grid((4, 8, 16, 64, 256, 1024), bound, step_wait_s=0.0)
    best = (4000 / true_times(many, whole_steps=True)["iteration"]).max()
    assert best < found.most_env_steps_per_s.high
    assert found.most_gain.value == pytest.approx(1 / found.fixed_share.value)


def test_a_calibration_says_runner_bound_overhead_bound_or_undecided():
    slow = ((1, 4000, 512, 1),)
    more = verdict(planted(np.random.default_rng(0), cells=grid((2,), slow, step_wait_s=0.01)))
    assert more.bound == "runner-bound"
    assert "More runners can still help" in more.sentence
    collecting = TRUTH | {"d0": 0.05}
    heavy = planted(np.random.default_rng(0), cells=grid((16,), slow, step_wait_s=0.0), truth=collecting)
    assert verdict(heavy).bound == "overhead-bound"
    single = verdict(planted(np.random.default_rng(0), cells=grid((2,), slow, step_wait_s=0.01), runs=1))
    assert single.bound == "undecided"
    assert "n=1, no interval" in single.sentence
    with pytest.raises(AnalysisError, match="must share one setting"):
        verdict(planted(np.random.default_rng(0)))


def test_two_anchors_of_a_block_are_one_look_at_the_machine():
    runs = planted(np.random.default_rng(0), cells=grid((2,), SETTING), runs=6)
    pairs = verdict(replace(runs, block=np.array([1, 1, 2, 2, 3, 3])), level=0.95)
    assert pairs.fixed_share.n == 3 and pairs.fixed_share.value == verdict(runs).fixed_share.value
    fixed = runs.iteration_time_s - runs.slowest_runner_time_s
    logs = np.log(fixed / runs.iteration_time_s).reshape(3, 2).mean(axis=1)
    half = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / np.sqrt(3)
    assert pairs.fixed_share.high == pytest.approx(pairs.fixed_share.value * np.exp(half))
    alone = verdict(replace(runs, block=np.ones(6, dtype=np.int64)))
    assert not alone.fixed_share.has_interval
    assert alone.bound == "undecided" and "one block has no interval" in alone.sentence


def test_the_bound_holds_in_the_truth_for_every_larger_scale():
    for seed, (n, setting) in enumerate([(1, SETTING), (4, SETTING), (8, ((2, 2000, 128, 4),))]):
        runs = planted(np.random.default_rng(seed), cells=grid((n,), setting), runs=5)
        larger = grid(tuple(range(n, 300, 7)), setting)
        rates = setting[0][1] / true_times(larger, whole_steps=True)["iteration"]
        assert rates.max() < verdict(runs).most_env_steps_per_s.high


def test_no_verdict_rests_on_a_phase_without_time():
    runs = planted(np.random.default_rng(0), cells=grid((2,), ((1, 4000, 512, 1),)))
    idle = replace(runs, learning_time_s=np.zeros_like(runs.learning_time_s))
    with pytest.raises(AnalysisError, match=r"verdict: learning_time_s must be > 0 in every run, .* got 0"):
        verdict(idle)
