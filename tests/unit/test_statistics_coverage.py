"""Simulated coverage: a docstring quotes these shares (in %), and they must not drift."""

import numpy as np
import pytest
from scipy import stats

from study import statistics
from tests.benchmarks.coverage import SCORE as MEAN
from tests.benchmarks.coverage import SPREAD, scores, times

MARGIN = 0.05
FAILED = (0.0, 0.05, 0.10, 0.20)
SIZES = (5, 10, 20)


def coverage(interval, truth, repetitions):
    intervals = [interval() for _ in range(repetitions)]
    return 100 * np.mean([estimate.low <= truth <= estimate.high for estimate in intervals])


def near(percent, quoted, repetitions):
    """Return whether a simulated percentage is within 4 standard errors, and rounding, of the quoted one or range."""
    low, high = quoted if isinstance(quoted, tuple) else (quoted, quoted)

    def slack(share):
        return 400 * np.sqrt(max(share * (1 - share), 0.005) / repetitions) + 1

    return low - slack(low / 100) <= percent <= high + slack(high / 100)


def cells(quoted, *, heavy):
    """Return a parameter per (n, failed) of a docstring's table; all but those at n = 20 only where heavy."""
    return [
        pytest.param(n, failed, quoted[n][column], id=f"{n} runs, {failed:.0%} failed")
        for n in SIZES
        for column, failed in enumerate(FAILED)
        if heavy or (n == 20 and failed in (0.0, 0.05))
    ]


MEAN_COVERS = {5: (95, 78, 53, 68), 10: (95, 61, 66, 88), 20: (95, 66, 88, 92)}
LOWER_COVERS = {5: (96, 72, 51, 68), 10: (95, 68, 66, 90), 20: (95, 77, 87, 92)}
IQM_COVERS = {5: [(92, 95)] * 4, 10: [(95.5, 97.5)] * 4, 20: [(95.5, 97.5)] * 4}
RATIO_COVERS = {5: [(93, 95)] * 4, 10: [(90, 95)] * 4, 20: [(93, 95)] * 4}


@pytest.mark.parametrize(("n", "failed", "quoted"), cells(MEAN_COVERS, heavy=True))
def test_mean_interval_covers_as_its_docstring_says(n, failed, quoted):
    rng = np.random.default_rng(n)
    percent = coverage(lambda: statistics.mean_interval(scores(rng, n, failed)), MEAN * (1 - failed), 400)
    assert near(percent, quoted, 400), percent


@pytest.mark.parametrize(("n", "failed", "quoted"), cells(LOWER_COVERS, heavy=True))
def test_welch_covers_as_its_docstring_says(n, failed, quoted):
    rng = np.random.default_rng(n)

    def lower():
        return statistics.difference_of_means(scores(rng, n, failed), scores(rng, 10, 0), side="lower")

    def alike():
        return statistics.difference_of_means(scores(rng, n, failed), scores(rng, n, failed))

    percent = coverage(lower, -MEAN * failed, 400)
    assert near(percent, quoted, 400), percent
    percent = coverage(alike, 0, 200)
    assert near(percent, (94, 99), 200), percent


@pytest.mark.parametrize(("failed", "quoted"), [(MARGIN / MEAN, 24), (0.10, 7)])
def test_a_margin_of_five_hundredths_is_passed_too_often(failed, quoted):
    rng, repetitions, passed = np.random.default_rng(0), 800, 0
    for _ in range(repetitions):
        winner = scores(rng, 20, failed)
        bound = statistics.difference_of_means(winner, scores(rng, 10, 0), side="lower").low
        passed += bound > -MARGIN and np.count_nonzero(winner) >= 19
    assert near(100 * passed / repetitions, quoted, repetitions), passed


def iqm_coverage(n, failed, repetitions):
    rng = np.random.default_rng(n)
    truth = stats.trim_mean(scores(rng, 400_000, failed), 0.25)
    return coverage(lambda: statistics.iqm_interval(scores(rng, n, failed), num_resamples=500), truth, repetitions)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("failed", [0.0, 0.2])
def test_iqm_interval_covers_below_five_runs(n, failed):
    assert near(iqm_coverage(n, failed, 300), (92, 96), 300)


def ratio_coverage(n, failed, repetitions):
    rng = np.random.default_rng(n)
    truth = times(rng, 400_000, 0.6, failed)[0].mean() / times(rng, 400_000, 0.3, failed)[0].mean()

    def interval():
        slow, fast = times(rng, n, 0.6, failed), times(rng, n, 0.3, failed)
        return statistics.ratio_of_restricted_means(*slow, *fast, horizon=1.0, num_resamples=500)

    return coverage(interval, truth, repetitions)


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


@pytest.mark.parametrize(("n", "failed", "quoted"), cells(IQM_COVERS, heavy=False))
def test_iqm_interval_covers_as_its_docstring_says(n, failed, quoted):
    assert near(iqm_coverage(n, failed, 150), quoted, 150)


@pytest.mark.parametrize(("n", "failed", "quoted"), cells(RATIO_COVERS, heavy=False))
def test_ratio_covers_as_its_docstring_says(n, failed, quoted):
    assert near(ratio_coverage(n, failed, 150), quoted, 150)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("measure", "table"),
    [(iqm_coverage, IQM_COVERS), (ratio_coverage, RATIO_COVERS)],
)
def test_bootstraps_cover_as_their_docstrings_say(measure, table):
    for n, failed, quoted in (cell.values for cell in cells(table, heavy=True)):
        percent = measure(n, failed, 1000)
        assert near(percent, quoted, 1000), (n, failed, percent)


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
