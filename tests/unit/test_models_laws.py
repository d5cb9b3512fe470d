"""Laws against published coefficients and second implementations."""

import numpy as np
import pytest
from scipy import optimize, stats

from analysis.models.laws import fit_amdahl, fit_usl, usl_peak, usl_throughput
from study.errors import AnalysisError

# The data sets of the R package usl 3.0: SPEC SDM91 on a Sun SPARCcenter 2000 (scripts per hour against users), and
# Gunther's ray tracer on an SGI Origin 2000 (operations per second against processors).
SCALES = np.repeat([1, 2, 4, 8, 16, 32, 46], 3).astype(float)


def noisy(rng, values, noise=0.03):
    return values * np.exp(rng.normal(0, noise, values.shape))


def test_usl_of_exact_data_is_that_of_the_r_packages_test():
    fit = fit_usl([1, 2, 4, 6, 8, 10], [1, 1.8868, 3.0769, 3.5294, 3.5398, 3.3557])
    assert [f"{each:.3g}" for each in (fit.contention.value, fit.coherency.value)] == ["0.02", "0.02"]
    assert f"{usl_peak((1, 0.001, 0.00001)):.4f}" == "316.0696"


def test_usl_agrees_with_a_second_implementation():
    rates = noisy(np.random.default_rng(0), usl_throughput((900, 0.06, 0.0008), SCALES))
    fit = fit_usl(SCALES, rates, level=0.9)

    def law(n, single, contention, coherency):
        return single * n / (1 + contention * (n - 1) + coherency * n * (n - 1))

    theta, covariance = np.array([800, 0.05, 0.001]), None
    for _ in range(5):  # relative to the fitted value
        sigma = law(SCALES, *theta)
        theta, covariance = optimize.curve_fit(law, SCALES, rates, p0=theta, sigma=sigma)
    assert fit.curve.theta[0] == pytest.approx(theta[0], rel=0.02)
    # Reciprocal and direct relative errors differ in second order of the noise.
    errors = np.sqrt(np.diag(covariance))
    for estimate, value, error in zip((fit.contention, fit.coherency), theta[1:], errors[1:], strict=True):
        assert estimate.value == pytest.approx(value, rel=0.02)
        half = stats.t.ppf(0.95, SCALES.size - 3) * error
        assert estimate.high - estimate.value == pytest.approx(half, rel=0.05)


def test_usl_is_unidentified_without_a_peak_or_with_few_scales():
    rng = np.random.default_rng(1)
    rising = fit_usl(SCALES, noisy(rng, 1000 / (0.05 + 0.95 / SCALES)))
    assert "holds 0" in rising.unidentified
    assert rising.peak is None
    assert rising.coherency.low == 0
    few = fit_usl([1, 8, 16, 32, 46], usl_throughput((900, 0.06, 0.0008), [1, 8, 16, 32, 46]))
    assert few.unidentified == "5 distinct numbers of runners, fewer than 6"
    assert few.peak is None


def test_usl_never_leaves_its_constraints():
    superlinear = 100 * SCALES**1.1
    fit = fit_usl(SCALES, superlinear)
    assert fit.contention.value == 0
    assert fit.coherency.value == 0


def test_amdahl_agrees_with_a_second_implementation():
    rates = noisy(np.random.default_rng(2), 1000 / (0.1 + 0.9 / SCALES))
    fit = fit_amdahl(SCALES, rates)

    def law(n, fraction, single):
        return (fraction + (1 - fraction) / n) / single

    theta = np.array([0.2, 800.0])
    for _ in range(5):
        theta, covariance = optimize.curve_fit(law, SCALES, 1 / rates, p0=theta, sigma=law(SCALES, *theta))
    half = stats.t.ppf(0.975, SCALES.size - 2) * np.sqrt(covariance[0, 0])
    assert fit.serial_fraction.value == pytest.approx(theta[0], rel=1e-5)
    assert fit.serial_fraction.high - fit.serial_fraction.value == pytest.approx(half, rel=1e-3)
    assert fit.throughput(1) == pytest.approx(theta[1], rel=1e-5)


def test_amdahl_of_two_exact_points_is_karp_and_flatts_fraction():
    # S(2) = 1.95 and S(8) = 5.9: the serial fractions that their formula gives, (1/S - 1/p) / (1 - 1/p).
    for speed_up, p in ((1.95, 2), (5.9, 8)):
        fit = fit_amdahl([1, p], [1, speed_up])
        assert fit.serial_fraction.value == pytest.approx((1 / speed_up - 1 / p) / (1 - 1 / p))
        assert not fit.serial_fraction.has_interval


def test_amdahl_does_not_credit_a_negative_fraction():
    # 2.92x on 2 nodes: the law cannot give it, and the fit lies apart from the runs in place of a negative fraction.
    fit = fit_amdahl([1, 1, 2, 2], [100, 101, 292, 293])
    assert fit.serial_fraction.value == 0
    assert np.abs(fit.throughput([1, 2]) / [100, 292] - 1).max() > 0.1


def test_too_few_scales_are_named():
    with pytest.raises(AnalysisError, match="at least 2 different numbers of runners, got 1"):
        fit_amdahl([4, 4], [100, 101])
    with pytest.raises(AnalysisError, match="at least 3 different"):
        fit_usl([1, 2], [100, 180])


def test_as_many_runs_as_unknowns_give_no_interval():
    fit = fit_usl([1, 8, 32], [100, 600, 900])
    assert not fit.contention.has_interval
