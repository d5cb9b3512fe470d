"""How often the models' 90 % intervals hold the planted truth: the figures that their docstrings quote."""

from collections import Counter

import numpy as np
import pytest

from analysis.models.calibration import verdict
from analysis.models.derived import runner_limit
from analysis.models.iteration_time import fit_iteration_time
from tests.unit.test_models_derived import SETTING, limit, true_times
from tests.unit.test_models_planted import TRUTH, grid, planted


def holds(estimate, truth):
    return bool(estimate.low <= truth <= estimate.high)


def shares(counts, repetitions):
    found = {name: count / repetitions for name, count in counts.items()}
    print({name: round(share, 3) for name, share in found.items()})  # noqa: T201 (the figures for the docstrings)
    return found


@pytest.mark.heavy
@pytest.mark.parametrize(("runs", "noise", "least"), [(3, 0.03, 0.84), (5, 0.03, 0.84), (2, 0.05, 0.8)])
def test_the_iteration_time_model_covers_as_its_docstring_says(runs, noise, least):
    counts, repetitions = Counter(), 200
    cells, seen, unseen = grid((1, 2, 4, 8, 16)), grid((8, 40, 46)), grid((8, 40, 46), settings=((4, 6000, 192, 6),))
    truths = [true_times(each, whole_steps=True)["iteration"] for each in (seen, unseen)]
    errors = []
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        fit = fit_iteration_time(planted(rng, cells=cells, runs=runs, noise=noise), rng=rng, num_resamples=300)
        counts.update(name for name, each in fit.parameters.items() if name != "r" and holds(each, TRUTH[name]))
        for place, where, truth in zip(("seen", "unseen"), (seen, unseen), truths, strict=True):
            rates = where.train_batch_size / truth
            for cell, prediction, rate in zip(where.num_env_runners, fit.predict(where), rates, strict=True):
                settings = len(where) // 3
                counts[f"{place} {cell:g}"] += holds(prediction, rate) / settings
        errors.append(np.median(np.abs(fit.iteration_time_s(unseen) / truths[1] - 1)))
    found = shares(counts, repetitions)
    assert all(least <= share <= 0.96 for share in found.values())
    assert np.median(errors) < 0.05


@pytest.mark.heavy
def test_without_runner_times_larger_scales_are_covered_less():
    counts, repetitions = Counter(), 200
    cells, target = grid((1, 2, 4, 8, 16)), grid((8, 16, 46))
    names = [f"{n:g}, k {k:g}" for n, k in zip(target.num_env_runners, target.num_envs_per_env_runner, strict=True)]
    truth = target.train_batch_size / true_times(target, whole_steps=True)["iteration"]
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        fit = fit_iteration_time(planted(rng, cells=cells, runner_times=False), rng=rng, num_resamples=200)
        for name, prediction, value in zip(names, fit.predict(target), truth, strict=True):
            counts[name] += holds(prediction, value)
    found = shares(counts, repetitions)
    assert min(share for name, share in found.items() if not name.startswith("46")) >= 0.75
    assert min(found.values()) >= 0.65


@pytest.mark.heavy
def test_derived_quantities_cover_as_their_docstrings_say():
    counts, repetitions = Counter(), 200
    cells, one, worth = grid((1, 2, 4, 8, 16)), grid((46,), SETTING), limit()
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        fit = fit_iteration_time(planted(rng, cells=cells), rng=rng, num_resamples=300)
        counts["limit"] += holds(runner_limit(fit, one), worth)
        runs = planted(rng, cells=grid((8,), SETTING))
        times = true_times(grid((8,), SETTING), whole_steps=True)
        fixed = times["iteration"][0] - times["slowest_runner"][0]
        counts["verdict's limit"] += holds(verdict(runs).most_env_steps_per_s, 4000 / fixed)
    found = shares(counts, repetitions)
    assert all(0.83 <= share <= 0.97 for name, share in found.items() if name != "limit")
    assert found["limit"] >= 0.85  # whole numbers: an interval may hold them by width 0 or not at all
