"""Estimators against published values and second implementations, and refusals."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from study import statistics
from study.errors import AnalysisError
from tests.benchmarks.coverage import BEGIN, END, PAGE, ROWS, SIZES, cell

# Student's sleep data (Biometrika 6, 1908), as in R's data set `sleep`.
SLEEP_ONE = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_TWO = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

# Multiples of 1/64, so that sums are exact and ties are frequent.
SCORES = st.integers(-128, 128).map(lambda number: number / 64)
SAMPLES = st.lists(SCORES, min_size=2, max_size=12)


def generator():
    return np.random.default_rng(0)


def iqm(values):
    return statistics.iqm_interval(values).value


def ends(estimate):
    return estimate.value, estimate.low, estimate.high


def test_one_and_two_samples_as_r():
    differences = np.subtract(SLEEP_ONE, SLEEP_TWO)
    np.testing.assert_allclose(ends(statistics.mean_interval(differences)), [-1.58, -2.4598858, -0.7001142], atol=1e-6)
    estimate = statistics.difference_of_means(SLEEP_ONE, SLEEP_TWO)
    np.testing.assert_allclose((*ends(estimate), estimate.n), [-1.58, -3.3654832, 0.2054832, 20], atol=1e-6)


def test_no_spread_is_the_point_and_one_run_is_no_interval():
    for same in ([0.93] * 3, [0.0] * 20):
        assert ends(statistics.mean_interval(same)) == (pytest.approx(same[0]),) * 3
        assert ends(statistics.difference_of_means(same, same)) == (0, 0, 0)
        assert ends(statistics.iqm_interval(same)) == (pytest.approx(same[0]),) * 3
    one_steady = statistics.difference_of_means([1.0, 1.0, 1.0], [0.0, 0.5, 1.0])
    steady_and_mean = statistics.mean_interval([0.0, 0.5, 1.0])
    assert one_steady.low == pytest.approx(1 - steady_and_mean.high)
    assert ends(statistics.mean_interval([0.93])) == (0.93, -np.inf, np.inf)
    for alone in (
        statistics.difference_of_means([1.0], [0.0, 1.0], side="lower"),
        statistics.iqm_interval([1.0]),
        statistics.ratio_of_means([1.0], [1.0, 2.0]),
    ):
        assert not alone.has_interval


@settings(deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False), SCORES)
def test_order_does_not_matter_and_a_constant_shifts(values, random, constant):
    shuffled = random.sample(values, len(values))
    moved = np.add(values, constant)
    np.testing.assert_allclose(ends(statistics.mean_interval(shuffled)), ends(statistics.mean_interval(values)))
    np.testing.assert_allclose(
        ends(statistics.mean_interval(moved)), np.add(ends(statistics.mean_interval(values)), constant), atol=1e-12
    )
    assert iqm(shuffled) == iqm(values)
    assert iqm(moved) == pytest.approx(iqm(values) + constant, abs=1e-12)
    back = statistics.difference_of_means(values, moved)
    forth = statistics.difference_of_means(moved, values)
    np.testing.assert_allclose(ends(back), (-forth.value, -forth.high, -forth.low), atol=1e-12)


def test_iqm_cuts_whole_runs():
    assert iqm([100, 0, 3, 1, 2, 4, 0, 100]) == 2.5
    assert iqm([0, 0, 1, 1, 1, 1, 1, 1, 2, 8]) == 1.0  # 2 of 10 from each end
    assert iqm([0, 0, 9]) == 3.0  # none of 3
    hides_failures = [0.0] * 5 + [1.0] * 15
    assert iqm(hides_failures) == 1.0


def test_the_bootstrap_is_expanded_as_students_t():
    # n = 10: sqrt(10 / 9) * 2.262157 = 2.384521, whose normal tail is 0.855 %, not 2.5 %.
    values = np.linspace(0, 1, 10) ** 1.5
    estimate = statistics.iqm_interval(values)
    same_resamples = stats.bootstrap(
        (np.sort(values),),
        lambda resample, axis: stats.trim_mean(resample, 0.25, axis=axis),
        n_resamples=2_000,
        confidence_level=1 - 2 * stats.norm.sf(2.384521),
        method="percentile",
        rng=np.random.default_rng(statistics.SEED),
    ).confidence_interval
    np.testing.assert_allclose([estimate.low, estimate.high], same_resamples, rtol=1e-4)
    assert estimate.method == "expanded percentile bootstrap"
    assert statistics.iqm_interval(values[::-1]) == estimate


@pytest.mark.parametrize("values", [[0.2, 0.9], [0.2, 0.9, 1.0], [0.2, 0.9, 1.0, 1.1]])
def test_below_five_runs_the_interquartile_mean_has_students_t(values):
    ours = statistics.iqm_interval(values)
    # SciPy's test of Yuen against a sample without spread; of two and three runs none is cut.
    theirs = stats.ttest_ind(values, np.zeros(4), trim=0.25, equal_var=False)
    half = stats.t.ppf(0.975, theirs.df) * ours.value / theirs.statistic
    assert ends(ours) == pytest.approx((iqm(values), ours.value - half, ours.value + half))


def test_below_five_runs_no_bootstrap_has_an_interval_and_its_method_says_why():
    for few, many, has in ((4, 20, False), (20, 4, False), (5, 5, True)):
        first, second = np.linspace(1, 2, few), np.linspace(1, 2, many)
        for since in (None, (first - 0.5, second)):
            ratio = statistics.ratio_of_means(first, second, since=since)
            assert ratio.has_interval is has and (ratio.method == statistics.TOO_FEW) is not has


def test_below_five_runs_of_two_kinds_there_is_no_interval():
    few, some, many = [0.9, 1.0, 0.95, 0.0], [True, True, True, False], np.linspace(0.8, 1, 20)
    difference = statistics.difference_of_means
    for estimate, n in (
        (lambda values, kinds: statistics.mean_interval(values, solved=kinds), 4),
        (lambda values, kinds: statistics.iqm_interval(values, solved=kinds), 4),
        (lambda values, kinds: difference(values, many, solved=kinds and (kinds, many > 0)), 24),
        (lambda values, kinds: difference(many, values, solved=kinds and (many > 0, kinds)), 24),
    ):
        mixed, plain = estimate(few, some), estimate(few, None)
        assert (mixed.value, mixed.n, mixed.method) == (plain.value, n, statistics.MIXED)
        assert plain.has_interval and not mixed.has_interval
        for solved in ([True] * 4, [False] * 4):  # runs of one kind
            assert estimate(few, solved) == plain
        assert estimate([*few, 0.1], [*some, False]) == estimate([*few, 0.1], None)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 5.
    [(81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (0, 20, 0.0, 0.1684), (1, 29, 0.0009, 0.1776)],
)
def test_shares_as_newcombe(successes, n, low, high):
    estimate = statistics.rate_interval(successes, n)
    np.testing.assert_allclose(ends(estimate), [successes / n, low, high], atol=5.1e-5)
    assert estimate.n == n


def test_a_ratio_without_spread_is_the_point_and_says_nothing_where_all_times_are_the_horizon():
    nothing = statistics.ratio_of_means([5.0] * 5, [5.0] * 6)
    assert (nothing.value, nothing.n, nothing.has_interval) == (1, 11, False)
    assert ends(statistics.ratio_of_means([2.0] * 5, [1.0] * 5)) == (2, 2, 2)


@given(st.lists(SCORES, min_size=2, max_size=5), st.lists(SCORES, min_size=2, max_size=4))
@settings(deadline=None, max_examples=30)
def test_permutation_counts_all_assignments(first, second):
    def t(ours, theirs):
        """Welch's t as a sign and an exact square; the greatest where neither sample varies."""
        lead = Fraction(sum(ours), len(ours)) - Fraction(sum(theirs), len(theirs))
        squared = sum(exact_variance(each) / len(each) for each in (ours, theirs))
        sign = (lead > 0) - (lead < 0)
        return (sign, 0) if squared == 0 else (0, sign * lead**2 / squared)

    def exact_variance(sample):
        mean = Fraction(sum(sample), len(sample))
        return sum((each - mean) ** 2 for each in sample) / (len(sample) - 1)

    pool = [round(64 * score) for score in first + second]
    found = []
    for chosen in itertools.combinations(range(len(pool)), len(first)):
        ours = [pool[at] for at in chosen]
        found.append(t(ours, [each for at, each in enumerate(pool) if at not in chosen]))
    expected = np.mean([each >= found[0] for each in found])
    assert statistics.better_with_permutation(first, second, rng=generator()) == pytest.approx(expected)
    # A third of these is no binary fraction: equal assignments must still be recognised.
    thirds = np.divide(first, 3) + 0.1, np.divide(second, 3) + 0.1
    assert statistics.better_with_permutation(*thirds, rng=generator()) == pytest.approx(expected)


def test_holm_as_r():
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(statistics.holm([0.5, 0.6]), [1.0, 1.0])


RNG = generator()
GOOD = [1.0, 2.0, 4.0, 3.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.iqm_interval([]), r"^values: .*, got .*\. Fix: .*\.$"),
        (lambda: statistics.difference_of_means(GOOD, [1.0, np.nan]), "^second: "),
        (lambda: statistics.ratio_of_means([[1.0]], [1.0]), "^first: "),
        (lambda: statistics.difference_of_means(GOOD, GOOD, level=95), "estimate: .*level=95"),
        (lambda: replace(statistics.mean_interval(GOOD), value=np.nan), "estimate: .*got nan"),
        (lambda: statistics.rate_interval(3, 2), "successes: .* got 3 of 2"),
        (lambda: statistics.better_with_permutation([1.0], GOOD, rng=RNG), "first, second: .* got 1 and 4"),
    ],
)
def test_what_is_out_of_range_is_refused(call, message):
    with pytest.raises(AnalysisError, match=message):
        call()


def test_the_ends_of_a_ratio_hold_the_time_between_two_looks():
    def ratio(*since):
        return statistics.ratio_of_means(np.full(5, 6.0), np.full(5, 2.0), since=since)

    found = ratio(np.full(5, 5.0), np.full(5, 1.0))
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 2.5, 6.0))
    opened = ratio(np.full(5, 5.0), np.zeros(5))  # the faster may have been there from the beginning
    assert (opened.value, opened.low, opened.high) == pytest.approx((3.0, 2.5, np.inf))
    assert not ratio(np.zeros(5), np.zeros(5)).has_interval
    assert ratio(np.full(5, 6.0), np.full(5, 1.0)).low == pytest.approx(3.0)


# --- coverage: the page's table, and a few of its cells simulated here ------------------------------------------------

BY_NAME = {row.what: row for row in ROWS}


def printed():
    """Return the page's cells: row -> n -> percent, or None."""
    lines = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines]
    return {
        row[0]: {n: None if text == "none" else int(text) for n, text in zip(SIZES, row[3:-1], strict=True)}
        for row in cells
    }


def test_the_page_has_a_row_for_every_simulated_interval():
    assert list(printed()) == list(BY_NAME)


CELLS = {
    "mean score, 10 % of runs fail": 5,
    "mean score, 30 % of runs fail": 3,
    "difference of means, 50 % of one fail": 5,
    "lower bound of a difference, none fails": 5,
    "lower bound, 5 % of the first fail": 20,
    "interquartile mean, none fails": 4,
    "interquartile mean, 20 % fail": 5,
    "ratio of times to target, 20 % never reach it": 4,
    "ratio of times to target": 10,
    "speed-up, paired by block": 3,
}
"""Row of the page -> number of runs of the cell that is simulated every time."""


@pytest.mark.parametrize(
    ("what", "sizes", "repetitions", "points"),
    [
        *((what, [n], 100, 16) for what, n in CELLS.items()),
        # The seeds are fixed: two points are for another machine's last digits.
        *(pytest.param(what, SIZES, None, 2, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)]) for what in BY_NAME),
    ],
)
def test_a_cell_is_what_the_page_says(what, sizes, repetitions, points):
    for n in sizes:
        expected = printed()[what][n]
        found = cell(BY_NAME[what], n, **({} if repetitions is None else {"repetitions": repetitions}))
        assert found == expected if expected is None else found == pytest.approx(expected, abs=points), n
