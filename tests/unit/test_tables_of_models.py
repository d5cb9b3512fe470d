"""T9 and T10 on runs that obey the iteration-time model, and on runs that do not."""

import math

import numpy as np
import pytest

from analysis.estimates.fits import _steps_by_batch, merged, on_cell_means, thinned
from analysis.estimates.results import Results
from analysis.figures.catalogue import all_figures
from analysis.models import derived
from analysis.models.comparison import leave_one_scale_out
from analysis.opened import Study
from analysis.tables.catalogue import all_tables
from analysis.tables.columns import FIRST_COMMAND
from analysis.tables.models import model_comparison, recommendation
from tests.planted import as_frame
from tests.unit.tables_data import amdahl, run, study

ALPHA, BETA, COLLECT_STEP, COLLECT_RUNNER = 1e-3, 2e-4, 2e-6, 1e-4
MINIBATCH_S, STEP_S, CONNECT_S = 2e-3, 5e-6, 1e-6
ENVS, MINIBATCH, EPOCHS = 4, 128, 4
CEILING = 1 / (EPOCHS * (MINIBATCH_S / MINIBATCH + STEP_S) + CONNECT_S + COLLECT_STEP)
"""env steps/s, whatever n is."""


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


def advice(table):
    return {(row.question, row.basis): row for row in table.frame.itertuples()}


def test_the_recommendation_tells_what_is_measured_from_what_is_predicted(results):
    table = recommendation(results)
    found = advice(table)
    assert found["Fastest: highest throughput", "measured"].choice.startswith("32 runners")
    ceiling = found["Ceiling of the throughput, of all batches", "predicted, extrapolated"]
    assert ceiling.value == pytest.approx(CEILING, rel=0.05)
    assert ceiling.value_low < ceiling.value < ceiling.value_high
    knee = next(row for (question, _), row in found.items() if question.startswith("Knee"))
    batch = 2_560  # of equally often run settings the first
    learning = 0.01 + CONNECT_S * batch + EPOCHS * batch / MINIBATCH * (MINIBATCH_S + STEP_S * MINIBATCH)
    grid = np.arange(1, 200, 0.01)
    sampling = batch / (grid * ENVS) * (ALPHA + BETA * ENVS) + COLLECT_RUNNER * grid + COLLECT_STEP * batch
    assert knee.value == pytest.approx(grid[sampling <= learning][0], rel=0.05)
    assert set(table.frame["basis"]) <= {"measured", "predicted", "predicted, extrapolated", "bound, extrapolated"}
    assert table.n == 36


def test_what_was_measured_has_the_level_that_the_definitions_name(results):
    assert results.models.verdict.fixed_share.level == 0.95
    assert results.models.fit.level == 0.9
    said = recommendation(results).definitions
    assert any("(90 %)" in each and "Amdahl's law and the USL are 95 %" in each for each in said)
    assert any("95 % interval where no other level is named" in each for each in said)


def test_the_end_of_a_search_is_no_advice(results, monkeypatch):
    monkeypatch.setattr(derived, "MOST_LIMIT", 2)
    table = recommendation(results)
    assert ("Do not go beyond", "predicted") not in advice(table)
    assert any(note.startswith("No limit up to ") for note in table.notes)


def test_the_measured_limit_is_where_a_cpu_more_gave_less_than_half_its_share(results):
    limit = advice(recommendation(results))["Do not go beyond", "measured"]
    strong = results.strong.groups[0].rows
    first = next(row for row in strong if row.marginal is not None and row.marginal.high < 0.5)
    before = strong[strong.index(first) - 1]
    assert limit.choice == f"n = {before.num_env_runners}"
    assert limit.value == pytest.approx(first.marginal.value)


def test_the_conclusion_begins_with_what_binds(results):
    text = recommendation(results).conclusion
    assert text.startswith("You are learner-bound: learning takes ")
    assert "however many runners are added" in text
    assert "Do not go beyond n = " in text


def test_models_are_compared_on_cells_that_they_did_not_see(results):
    table = model_comparison(results)
    frame = table.frame.set_index(["split", "model"])
    larger = frame.loc["n <= 16 predicts larger n"]
    assert {"iteration time", "Amdahl", "USL", "Ernest"} <= set(larger.index)
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


def test_a_model_that_does_not_fit_its_own_runs_predicts_nothing():
    table = recommendation(Results(study(amdahl())))  # learning time that shrinks with the runners
    assert set(table.frame["basis"]) == {"measured", "bound, extrapolated"}
    assert any("does not describe these runs" in note for note in table.notes)


def test_the_best_batch_of_each_scale_follows_from_steps_and_clock():
    critical, least = 8_000, 100_000
    columns = {
        "env_steps_to_target": lambda batch: round(least * (1 + batch / critical)),
        "env_steps": lambda batch: 10 * least,
    }
    table = recommendation(Results(study(obedient((1, 4, 16), (1_280, 2_560, 5_120), noise=0.002, **columns))))
    found = {key[0]: row for key, row in advice(table).items() if key[0].startswith("Best batch")}
    assert list(found) == ["Best batch at 1 runner", "Best batch at 4 runners", "Best batch at 16 runners"]
    for n, row in zip((1, 4, 16), found.values(), strict=True):
        fixed = 0.01 + 1e-4 + COLLECT_RUNNER * n + 1e-3 + 1e-4 * n + 2e-3
        per_step = (ALPHA / ENVS + BETA) / n + COLLECT_STEP + CONNECT_S
        per_step += EPOCHS / MINIBATCH * (MINIBATCH_S + STEP_S * MINIBATCH)
        assert row.value == pytest.approx(math.sqrt(fixed * critical / per_step), rel=0.15)
        assert row.basis.startswith("predicted")


def test_the_critical_batch_rests_on_the_confirmation_where_there_is_one():
    rows = [
        run(trial, batch=batch, seed=trial, env_steps_to_target=10_000, env_steps=50_000, digest="abc", stage=stage)
        for trial, (batch, stage) in enumerate([(1_280, "race"), (2_560, "confirm"), (5_120, "confirm")])
    ]
    assert _steps_by_batch(as_frame(rows))[0] == [2_560, 5_120]
    assert _steps_by_batch(as_frame(rows).assign(stage=None))[0] == [1_280, 2_560, 5_120]


def test_without_measured_runs_there_is_no_recommendation_but_a_command():
    rows = [run(index, runners=n, timing="emulated") for index, n in enumerate((1, 2))]
    table = recommendation(Results(study(rows)))
    assert table.empty
    assert table.command == FIRST_COMMAND
    assert dict(table.excluded) == {"emulated": 2}


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


def test_a_model_on_cell_means_sees_one_run_a_cell():
    seen = Results(study(obedient())).models.observations
    given = []

    def model(fitted, where, rng):
        given.append(fitted)
        return np.zeros(len(where)), [""] * len(where)

    on_cell_means(model)(seen, seen.cells, np.random.default_rng(1))
    (means,) = given
    assert len(means) == 12
    cell = (seen.cells.num_env_runners == 4) & (seen.cells.train_batch_size == 5_120)
    same = (means.cells.num_env_runners == 4) & (means.cells.train_batch_size == 5_120)
    assert means.learning_time_s[same] == pytest.approx(seen.learning_time_s[cell].mean())


@pytest.mark.parametrize("name", ["learning_time_s", "sync_time_s"])
def test_a_phase_without_time_costs_no_other_table_or_figure(name):
    data = study([row | {name: 0.0} for row in amdahl()])
    results = Results(data)
    tables = {table.key: table for table in all_tables(results)}
    assert all_figures(Study(data))
    assert "the speed-up is" in tables["T2"].conclusion
    refused = f"{name}: must be > 0 in every run" in " ".join(tables["T9"].notes)
    assert refused == (name == "learning_time_s")


def test_runs_without_a_fingerprint_are_in_no_fit():
    rows = [*amdahl((1, 2)), *(dict(row, trial=90, fingerprint=None) for row in amdahl((4,), blocks=1))]
    results = Results(study(rows))
    assert dict(results.models.selection.excluded) == {"no fingerprint": 1}
    assert len(results.models.observations) == 6
