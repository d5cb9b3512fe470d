"""T9, and what is predicted, on runs that obey the iteration-time model, and on runs that do not."""

import math

import numpy as np
import pytest

from analysis.estimates.fits import merged, thinned
from analysis.estimates.predictions import fitted, prediction_rows
from analysis.estimates.results import Results
from analysis.estimates.throughput import Names
from analysis.figures import all_figures
from analysis.models.comparison import leave_one_scale_out
from analysis.opened import Study
from analysis.tables.catalogue import all_tables
from analysis.tables.models import model_comparison
from analysis.tables.times import phases
from tests.unit.tables_data import amdahl, run, study

ALPHA, BETA, COLLECT_STEP, COLLECT_RUNNER = 1e-3, 2e-4, 2e-6, 1e-4
MINIBATCH_S, STEP_S, CONNECT_S = 2e-3, 5e-6, 1e-6
ENVS, MINIBATCH, EPOCHS = 4, 128, 4


def obedient(scales=(1, 2, 4, 8, 16, 32), batches=(2_560, 5_120), *, blocks=3, noise=0.01, **columns):
    """Return runs with the times of the model, each phase with a little noise of its own."""
    rng = np.random.default_rng(7)
    rows = []
    for seed in range(1, blocks + 1):
        for batch in batches:
            for n in scales:
                runner, slower, collect, learning, sync, rest = (
                    time * float(np.exp(noise * rng.standard_normal()))
                    for time in (
                        batch / (n * ENVS) * (ALPHA + BETA * ENVS),
                        1e-4,
                        COLLECT_RUNNER * n + COLLECT_STEP * batch,
                        0.01
                        + CONNECT_S * batch
                        + math.ceil(EPOCHS * batch / MINIBATCH) * (MINIBATCH_S + STEP_S * MINIBATCH),
                        1e-3 + 1e-4 * n,
                        2e-3,
                    )
                )
                sampling = runner + slower + collect
                whole = sampling + learning + sync + rest
                times = {
                    "sampling_time_s": sampling,
                    "slowest_runner_time_s": runner + slower,
                    "mean_runner_time_s": runner,
                    "learning_time_s": learning,
                    "sync_time_s": sync,
                    "rest_time_s": rest,
                }
                environment = {"environment": {"id": "Busy-v0"}}
                row = run(len(rows), runners=n, batch=batch, seed=seed, iteration_time_s=whole, workload=environment)
                rows.append(row | times | {name: value(batch) for name, value in columns.items()})
    return rows


@pytest.fixture(scope="module")
def results():
    return Results(study(obedient()))


def test_a_prediction_has_the_level_that_the_definitions_name(results):
    assert results.models.verdict.fixed_share.level == 0.95
    assert results.models.fit.level == 0.9


def test_the_phases_say_what_binds(results):
    assert phases(results).notes[-1].startswith("You are learner-bound: learning takes ")


def test_a_model_that_does_not_fit_its_own_runs_predicts_nothing():
    results = Results(study(amdahl()))  # learning time that shrinks with the runners
    assert "does not describe these runs" in fitted(results.models)
    rows = prediction_rows(results, Names(results.measured))
    assert not {"limit_num_env_runners", "env_steps_per_s"} & {row.quantity for row in rows}


def test_models_are_compared_on_cells_that_they_did_not_see(results):
    table = model_comparison(results)
    frame = table.frame.set_index(["split", "model"])
    larger = frame.loc["n <= 16 predicts larger n"]
    assert set(larger.index) == {"iteration time", "Amdahl", "USL"}
    assert larger.loc["iteration time", "median_error"] < 0.05
    assert larger.loc["iteration time", ["num_predicted", "num_held_out"]].tolist() == [2, 2]
    assert "iteration time 0.0" in table.conclusion
    assert table.conclusion.startswith(
        "Median error on held-out cells (`n <= 16 predicts larger n`), the least first: "
    )
    refused = frame.loc[("leave one (k, B, m, E) out", "Amdahl")]
    assert refused["num_predicted"] == 0
    assert "knows one workload only" in refused["why_not"]
    assert table.n == 36
    assert any(note.startswith("USL: contention") for note in table.notes)


def test_of_many_runs_equally_many_of_each_cell_are_fitted():
    seen = Results(study(obedient(blocks=5))).models.selection.groups[0]
    few = thinned(seen, most=30)
    numbers = few.cells.numbered()
    assert sorted(np.bincount(numbers)) == [2] * 12
    assert thinned(seen, most=60) is seen
    assert len(thinned(seen, most=5)) == 5  # fewer than there are cells


def test_merged_folds_hold_out_every_run_once():
    seen = Results(study(obedient(scales=(1, 2, 4, 8, 16), blocks=1))).models.observations
    whole = leave_one_scale_out(seen)
    few = merged(whole, most=2)
    assert (len(whole.folds), len(few.folds)) == (5, 2)
    assert np.sum([held for _, held in few.folds], axis=0).tolist() == [1] * len(seen)
    assert all((fitted == ~held).all() for fitted, held in few.folds)
    assert merged(whole, most=5) is whole


@pytest.mark.parametrize("name", ["learning_time_s", "sync_time_s"])
def test_a_phase_without_time_costs_no_other_table_or_figure(name):
    data = study([row | {name: 0.0} for row in amdahl()])
    results = Results(data)
    tables = {table.key: table for table in all_tables(results)}
    assert all_figures(Study(data))
    assert "the speed-up is" in tables["T2"].conclusion
    refused = f"{name}: must be > 0 in every run" in " ".join(tables["T9"].notes)
    assert refused == (name == "learning_time_s")
