"""Simulated coverage that docstrings quote, in %, and the page of `study.statistics` does not; it must not drift."""

import numpy as np
import pytest
from scipy import stats

from study import statistics
from tests.benchmarks.coverage import SCORE as MEAN
from tests.benchmarks.coverage import SPREAD, scores

MARGIN = 0.05
SIZES = (5, 10, 20)


def near(percent, quoted, repetitions):
    """Return whether a simulated percentage is within 4 standard errors, and rounding, of the quoted one or range."""
    low, high = quoted if isinstance(quoted, tuple) else (quoted, quoted)

    def slack(share):
        return 400 * np.sqrt(max(share * (1 - share), 0.005) / repetitions) + 1

    return low - slack(low / 100) <= percent <= high + slack(high / 100)


@pytest.mark.parametrize(("failed", "quoted"), [(MARGIN / MEAN, 24), (0.10, 7)])
def test_a_margin_of_five_hundredths_is_passed_too_often(failed, quoted):
    rng, repetitions, passed = np.random.default_rng(0), 800, 0
    for _ in range(repetitions):
        winner = scores(rng, 20, failed)
        bound = statistics.difference_of_means(winner, scores(rng, 10, 0), side="lower").low
        passed += bound > -MARGIN and np.count_nonzero(winner) >= 19
    assert near(100 * passed / repetitions, quoted, repetitions), passed


def test_a_ratio_known_to_a_grid_holds_the_truth():
    """Times in a true ratio of 1.5, looked at every 50,000 steps: the recorded ones alone hold it hardly ever."""
    rng, grid, truth, studies = np.random.default_rng(7), 50_000.0, 1.5, 100
    held = np.zeros(2)
    for _ in range(studies):
        slow, fast = (rng.normal(mean, 5_000, 20) for mean in (truth * 55_000, 55_000))
        looks = [np.ceil(times / grid) * grid for times in (slow, fast)]
        since = {"first_since": looks[0] - grid, "second_since": looks[1] - grid}
        for place, options in enumerate(({}, since)):
            found = statistics.ratio_of_restricted_means(
                looks[0], looks[0] > 0, looks[1], looks[1] > 0, horizon=500_000, num_resamples=200, **options
            )
            held[place] += found.low <= truth <= found.high
    assert held[0] <= 0.5 * studies
    assert held[1] >= 0.95 * studies


@pytest.mark.parametrize(("n", "wilson_least"), [(5, 83), (10, 84), (20, 85)])
def test_clopper_pearson_never_covers_less_and_wilson_does(n, wilson_least):
    shares = np.linspace(0.001, 0.999, 999)
    chances = stats.binom.pmf(np.arange(n + 1)[:, np.newaxis], n, shares)

    def least(intervals):
        low, high = np.array(intervals).T[..., np.newaxis]
        return 100 * np.where((low <= shares) & (shares <= high), chances, 0).sum(axis=0).min()

    exact = [statistics.rate_interval(k, n) for k in range(n + 1)]
    assert least([(estimate.low, estimate.high) for estimate in exact]) >= 95
    wilson = [stats.binomtest(k, n).proportion_ci(method="wilson") for k in range(n + 1)]
    assert least([(interval.low, interval.high) for interval in wilson]) == pytest.approx(wilson_least, abs=0.5)


def rejections(first, second, repetitions):
    rng = np.random.default_rng(3)
    p_values = [
        statistics.better_with_permutation(first(rng), second(rng), rng=rng, num_resamples=199)
        for _ in range(repetitions)
    ]
    return 100 * np.mean(np.array(p_values) <= 0.05)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("failed", [0.0, 0.2])
def test_permutation_errs_at_most_at_its_level(n, failed):
    percent = rejections(lambda rng: scores(rng, n, failed), lambda rng: scores(rng, n, failed), 200)
    assert near(percent, (0, 5), 200), percent


@pytest.mark.parametrize(("n", "failed", "quoted"), [(5, 0.10, 48), (20, 0.10, 10)])
def test_permutation_is_no_test_of_equal_means_with_unequal_spread(n, failed, quoted):
    percent = rejections(
        lambda rng: scores(rng, n, failed), lambda rng: rng.normal(MEAN * (1 - failed), SPREAD, n), 200
    )
    assert near(percent, quoted, 200), percent
