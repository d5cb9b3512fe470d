"""The iteration-time model recovers what was planted, and says what it cannot tell."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from analysis.models.iteration_time import fit_iteration_time
from analysis.models.observations import Cells, Observations
from analysis.models.phases import INDEX, UNKNOWNS, design, phase_times, straggling
from analysis.models.regression import nonnegative, nonnegative_of_resamples
from analysis.models.resampling import degrees_of_freedom, percentile_estimate, run_weights
from study.errors import AnalysisError
from tests.unit.test_models_planted import TRUTH, cells_of, grid, planted, vector


def one(**given):
    defaults = {"num_env_runners": 1, "train_batch_size": 1000, "minibatch_size": 100, "num_epochs": 3}
    return cells_of(**(defaults | given))


def iteration(truth, cells):
    return phase_times(vector(truth), design(cells))


def test_the_formula_by_hand():
    cells = one(
        num_env_runners=3,
        num_envs_per_env_runner=4,
        train_batch_size=1000,
        minibatch_size=96,
        num_epochs=2,
        num_learners=2,
        learner_threads=2,
        episode_len=50,
        step_wait_s=0.001,
    )
    times = iteration(TRUTH | {"r": 1e-4}, cells)
    # 1000 steps over 12 lanes: 83 each and 4 more, which the first runner's lanes take: 84 vector steps, 336 steps.
    own = (84 * 2e-4 + 336 * 5e-5) * 1.02
    z = float(straggling(np.array([3.0]))[0])
    slowest = own * (1 + 0.05 * z) + 1000 * 1e-6 + 336 * 0.001
    assert z == pytest.approx(0.8694, abs=1e-4)  # expected largest of 3 normals: 0.8463
    assert times["slowest_runner"][0] == pytest.approx(slowest)
    mean = (1000 / 12 * 2e-4 + 1000 / 3 * 5e-5) * 1.02 + 1000 * 1e-6 + 1000 / 3 * 0.001
    assert times["mean_runner"][0] == pytest.approx(mean)
    assert times["sampling"][0] == pytest.approx(slowest + 3 * 8e-4 + 1000 * 2e-6)
    updates = 11  # ceil(2 * 1000 / (2 * 96)) = ceil(10.4)
    learning = 5e-3 + 500 * 8e-6 + 3e-5 * (6 + 1000 / 50 / 2) + updates * (9e-4 + 1.6e-6 * 96 / 2 + 1e-4)
    assert times["learning"][0] == pytest.approx(learning)
    assert times["sync"][0] == pytest.approx(2e-3 + 3 * 3e-4)
    total = sum(times[name][0] for name in ("sampling", "learning", "sync", "rest"))
    assert times["iteration"][0] == pytest.approx(total)


def test_lanes_share_a_batch_as_the_runners_do():
    lanes = pytest.importorskip("study.trial.engine.sampling.lanes")
    for n, k, batch in ((46, 1, 800), (46, 4, 4000), (7, 3, 1000), (8, 4, 4000), (5, 8, 17)):
        layout = lanes.LaneLayout(num_env_runners=n, num_envs_per_env_runner=k, num_processes=n)
        first = layout.fragment(0, batch)
        at = design(one(num_env_runners=n, num_envs_per_env_runner=k, train_batch_size=batch))
        assert at.slowest_runner[0, 0] == first.num_vector_steps
        assert at.slowest_runner[0, 1] == first.env_steps(k)


def test_straggling_is_nothing_for_one_runner_and_blom_for_more():
    assert straggling(np.array([1.0])) == pytest.approx(0)
    # Expected largest of n standard normal numbers (Harter 1961): 1.5388 at 10, 2.1 or so at 46.
    assert straggling(np.array([10.0])) == pytest.approx(1.5388, abs=0.01)


def test_without_noise_every_unknown_comes_back():
    fit = fit_iteration_time(planted(np.random.default_rng(0), runs=1, noise=1e-9))
    assert fit.unidentified == ("r",)
    for name, value in TRUTH.items():
        assert fit.coefficients[INDEX[name]] == pytest.approx(value, rel=1e-3, abs=1e-9), name
    assert fit.closure < 1e-6


def test_with_noise_the_unknowns_lie_in_their_intervals_as_often_as_these_say():
    # All 15 unknowns together over ten seeds; each by itself over 200 in the docstring of `fit_iteration_time`.
    held = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        fit = fit_iteration_time(planted(rng), rng=rng, level=0.9, num_resamples=150)
        held += [each.low <= TRUTH[name] <= each.high for name, each in fit.parameters.items() if name != "r"]
        assert fit.closure <= 0.025
        assert fit.parameters["a"].high / fit.parameters["a"].low < 1.1
        assert fit.parameters["d0"].high / fit.parameters["d0"].low < 1.1
    assert len(held) == 150
    assert 0.82 <= np.mean(held) <= 0.96


def test_fitted_on_16_it_predicts_40_and_46_within_the_aim():
    target = grid((40, 46))
    truth = iteration(TRUTH, target)["iteration"]
    errors = []
    for seed in range(20):
        fit = fit_iteration_time(planted(np.random.default_rng(seed), cells=grid((1, 2, 4, 8, 16))))
        errors.append(np.abs(fit.iteration_time_s(target) / truth - 1))
    assert np.median(errors) < 0.02  # the aim is 5 %
    assert np.max(errors) < 0.08


def test_predictions_carry_intervals_and_say_what_is_outside():
    rng = np.random.default_rng(1)
    fit = fit_iteration_time(planted(rng, cells=grid((1, 2, 4, 8, 16))), rng=rng, num_resamples=200)
    cells = grid((8, 46), settings=((4, 4000, 256, 4),))
    inside, outside = fit.predict(cells)
    times = fit.times(cells)
    total = sum(times[name] for name in ("sampling", "learning", "sync", "rest"))
    for each, time_s in zip((inside, outside), total, strict=True):
        assert each.low < each.value < each.high
        assert each.value == pytest.approx(4000 / time_s)
    assert inside.n == 60


def test_without_runner_times_the_sum_of_both_per_step_costs_comes_back():
    fit = fit_iteration_time(planted(np.random.default_rng(0), runs=1, noise=1e-9, runner_times=False))
    assert not fit.split_sampling
    assert "gamma" in fit.unidentified
    assert "gamma" not in fit.parameters
    for name, value in (TRUTH | {"gamma": 0.0, "d1": TRUTH["d1"] + TRUTH["gamma"]}).items():
        assert fit.coefficients[INDEX[name]] == pytest.approx(value, rel=0.02, abs=1e-9), name


def test_what_the_runs_do_not_tell_apart_is_named():
    # One k, one m and one E: vector steps and env steps are the same thing, and so are minibatches and the batch.
    cells = grid(settings=((4, 4000, 128, 10), (4, 8000, 128, 10)))
    fit = fit_iteration_time(planted(np.random.default_rng(0), cells=cells))
    assert {"alpha", "beta"} <= set(fit.unidentified)
    assert {"a", "b", "c1"} <= set(fit.unidentified)
    assert not {"d0", "d1"} & set(fit.unidentified)


def test_learners_that_reduce_gradients_cost_their_time():
    both = [
        grid((1, 2, 4, 8), num_learners=learners, learner_threads=threads) for learners in (1, 2) for threads in (1, 2)
    ]
    cells = Cells(**{name: np.concatenate([getattr(each, name) for each in both]) for name in Cells.__slots__})
    truth = TRUTH | {"r": 4e-4}
    fit = fit_iteration_time(planted(np.random.default_rng(0), cells=cells, runs=1, noise=1e-9, truth=truth))
    assert "r" not in fit.unidentified
    assert fit.coefficients[INDEX["r"]] == pytest.approx(4e-4, rel=1e-2)


def test_waits_are_known_and_not_fitted():
    waiting = planted(np.random.default_rng(0), cells=grid(step_wait_s=0.004), runs=1, noise=1e-9)
    fit = fit_iteration_time(waiting)
    assert fit.coefficients[INDEX["beta"]] == pytest.approx(TRUTH["beta"], rel=1e-3)
    idle = grid((8,), step_wait_s=0.0)
    assert fit.iteration_time_s(idle) == pytest.approx(iteration(TRUTH, idle)["iteration"], rel=1e-4)


def test_the_order_of_runs_and_the_unit_of_time_change_nothing():
    seen = planted(np.random.default_rng(3), cells=grid(step_wait_s=0.0))
    fit = fit_iteration_time(seen)
    shuffled = fit_iteration_time(seen.take(np.random.default_rng(0).permutation(len(seen))))
    assert shuffled.coefficients == pytest.approx(fit.coefficients, rel=1e-6, abs=1e-12)
    times = [name for name in Observations.__slots__ if name.endswith("_time_s")]
    doubled = fit_iteration_time(replace(seen, **{name: 2 * getattr(seen, name) for name in times}))
    scale = np.where(np.arange(len(UNKNOWNS)) == INDEX["cv"], 1, 2)
    assert doubled.coefficients == pytest.approx(scale * fit.coefficients, rel=1e-6, abs=1e-12)


def test_permuted_runners_show_no_effect_of_runners():
    rng = np.random.default_rng(5)
    seen = planted(rng, runs=3, cells=grid(settings=((4, 4000, 256, 4),), step_wait_s=0.0))
    sham = replace(seen.cells, num_env_runners=rng.permutation(seen.cells.num_env_runners))
    fit = fit_iteration_time(replace(seen, cells=sham), rng=rng, num_resamples=300)
    for name in ("s1", "r1"):
        assert fit.parameters[name].low < 0.6 * TRUTH[name], name


def test_one_scale_is_refused_and_single_runs_have_no_cell_to_scatter_in():
    with pytest.raises(AnalysisError, match="two different numbers of runners"):
        fit_iteration_time(planted(np.random.default_rng(0), cells=grid((4,))))
    rng = np.random.default_rng(0)
    single = fit_iteration_time(planted(rng, runs=1), rng=rng, num_resamples=100)
    assert single.degrees == 35  # the 36 lone runs tell of their scatter about the model
    assert single.parameters["a"].has_interval
    without = fit_iteration_time(planted(rng, runs=3))
    assert not without.parameters["a"].has_interval


@pytest.mark.parametrize("name", ["sampling_time_s", "learning_time_s", "mean_runner_time_s", "slowest_runner_time_s"])
def test_a_phase_that_took_no_time_is_refused(name):
    seen = planted(np.random.default_rng(0))
    without = replace(seen, **{name: np.where(np.arange(len(seen)) == 3, 0.0, getattr(seen, name))})
    law = rf"{name}: must be > 0 in every run, .* got 0 \(not > 0 in 1 of {len(seen)} runs\)\. Fix"
    with pytest.raises(AnalysisError, match=law):
        fit_iteration_time(without)


def test_a_phase_that_may_take_no_time_is_fitted_by_zero():
    seen = planted(np.random.default_rng(0))
    fit = fit_iteration_time(replace(seen, rest_time_s=np.zeros(len(seen))), rng=np.random.default_rng(0))
    assert fit.parameters["r0"].value == fit.parameters["r0"].high == fit.parameters["r1"].high == 0


def test_nonnegative_is_least_squares_relative_to_the_fit():
    rng = np.random.default_rng(0)
    features = rng.uniform(1, 2, (50, 3))
    target = features @ [1.0, 0.0, 2.0] * np.exp(rng.normal(0, 0.1, 50))
    theta = nonnegative(features, target, rounds=12)

    def error(candidate):
        return np.sum(((features @ candidate - target) / (features @ theta)) ** 2)

    found = optimize.minimize(error, np.ones(3), bounds=[(0, None)] * 3, method="L-BFGS-B", options={"ftol": 1e-15})
    assert theta == pytest.approx(found.x, abs=1e-4)


def test_many_resamples_at_once_are_the_same_least_squares():
    rng = np.random.default_rng(0)
    for truth in ([1.0, 0.5, 2.0], [1.0, 0.0, 2.0]):  # the second needs the bound in about half of the resamples
        features = rng.uniform(1, 2, (40, 3))
        features[:, 2] *= 1e4  # columns of very different size
        fitted = features @ truth + 0.1
        target = fitted * np.exp(rng.normal(0, 0.1, 40))
        weights = run_weights(np.repeat(np.arange(20), 2), num_resamples=60, rng=rng)
        found = nonnegative_of_resamples(features, target, weights, fitted=fitted, offset=0.1)
        for theta, each in zip(found, weights, strict=True):
            root = np.sqrt(each) / fitted
            expected = optimize.nnls(features * root[:, None], (target - 0.1) * root)[0]
            assert theta == pytest.approx(expected, rel=1e-6, abs=1e-9)
    # Two equal columns and an empty one have no single answer, but a fit all the same.
    twins = np.column_stack([features[:, 0], features[:, 0], np.zeros(40)])
    theta = nonnegative_of_resamples(twins, 3 * features[:, 0], weights, fitted=3 * features[:, 0])
    assert theta.sum(axis=1) == pytest.approx(3)
    assert (theta >= 0).all()


def test_resamples_have_the_variance_of_a_mean():
    # Two runs per cell: drawing both with replacement would give half of the variance.
    cells = np.repeat(np.arange(40), 2)
    weights = run_weights(cells, num_resamples=4000, rng=np.random.default_rng(0))
    assert weights.sum(axis=1) == pytest.approx(80)
    values = np.random.default_rng(1).normal(0, 1, 80)
    means = weights @ values / 80
    within = sum(np.var(values[cells == each], ddof=1) for each in range(40)) * 2 / 80**2
    assert means.var() == pytest.approx(within, rel=0.08)
    assert degrees_of_freedom(cells) == 40
    assert degrees_of_freedom(np.array([0, 1, 2, 2, 2])) == 3


def test_the_runs_of_a_cell_in_one_block_are_one_look_at_it():
    cells, blocks = np.array([0, 0, 0, 0, 1, 1]), np.array([1, 1, 2, 2, 1, 2])
    weights = run_weights(cells, num_resamples=500, rng=np.random.default_rng(0), blocks=blocks)
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 2] == weights[:, 3]).all()
    assert (weights[:, 0] != weights[:, 2]).all()  # one of the two blocks is drawn
    assert weights.sum(axis=1) == pytest.approx(6)
    assert degrees_of_freedom(cells) == 4
    assert degrees_of_freedom(cells, blocks) == 2
    assert degrees_of_freedom(np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64)) == 0  # one block: no interval


def test_percentiles_of_infinite_resamples_stay_honest():
    draws = np.array([1.0] * 90 + [np.inf] * 10)
    estimate = percentile_estimate(1.0, draws, n=5, degrees=50, level=0.9)
    assert (estimate.low, estimate.high) == (1.0, np.inf)
    assert not percentile_estimate(1.0, draws, n=1, degrees=0, level=0.9).has_interval
