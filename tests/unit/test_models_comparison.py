"""Hold-out errors: right by hand, and nothing of a held-out run reaches a model."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.models.comparison import MODELS, Split, compare, larger_scales, leave_one_scale_out, leave_settings_out
from analysis.models.observations import RUNNER_TIMES, TIMES
from tests.unit.test_models_planted import grid, planted

SCALES, SETTINGS = (1, 4, 16, 40), ((4, 4000, 256, 4), (8, 8000, 512, 10))


def every_split(seen):
    return [leave_one_scale_out(seen), larger_scales(seen), leave_settings_out(seen)]


def rows(found, split=None):
    return {each.model: each for each in found if split is None or each.split == split}


def disturbed(observations, where):
    """Multiply every time, and the episodes' lengths, of some runs by a hundred."""
    times = {name: np.where(where, 100.0, 1.0) * getattr(observations, name) for name in (*TIMES, *RUNNER_TIMES)}
    lengths = np.where(where, 2.0, observations.cells.episode_len)
    return replace(observations, cells=replace(observations.cells, episode_len=lengths), **times)


@pytest.mark.parametrize("make", [leave_one_scale_out, larger_scales, leave_settings_out])
def test_what_was_measured_in_held_out_runs_changes_no_prediction(make):
    seen = planted(np.random.default_rng(0), cells=grid(SCALES, SETTINGS), runs=2)
    for fold in make(seen).folds[-2:]:
        one = Split(name="one fold", folds=(fold,))
        honest = compare(seen, [one], MODELS, rng=np.random.default_rng(1))
        other = compare(disturbed(seen, fold[1]), [one], MODELS, rng=np.random.default_rng(1))
        for before, after in zip(honest, other, strict=True):
            for here, there in zip(before.cells, after.cells, strict=True):
                assert here.cell == there.cell
                assert here.predicted_s == pytest.approx(there.predicted_s, nan_ok=True)
                assert there.observed_s == pytest.approx(100 * here.observed_s)


def test_a_model_gets_the_fitted_runs_and_bare_cells():
    seen, got = planted(np.random.default_rng(0), runs=2), []

    def spy(fitted, where):
        got.append((fitted, where))
        return np.ones(len(where)), [""] * len(where)

    compare(seen, rng=np.random.default_rng(0), splits=[leave_one_scale_out(seen)], models={"spy": spy})
    assert len(got) == 9
    for fitted, where in got:
        assert not set(fitted.cells.num_env_runners) & set(where.num_env_runners)
        assert len(fitted) == 64
        assert len(where) == 4
        assert np.isnan(where.episode_len).all()


def test_splits_hold_out_what_they_say():
    seen = planted(np.random.default_rng(0), runs=2)
    for split, count in ((leave_one_scale_out(seen), 9), (leave_settings_out(seen), 4), (larger_scales(seen), 1)):
        assert len(split.folds) == count
        for fitted, held in split.folds:
            assert (fitted ^ held).all()
    fitted, held = larger_scales(seen).folds[0]
    assert set(seen.cells.num_env_runners[fitted]) == {1, 2, 4, 8, 16}
    assert set(seen.cells.num_env_runners[held]) == {24, 32, 40, 46}
    assert larger_scales(planted(np.random.default_rng(0), cells=grid((1, 2, 4)))).folds == ()


def test_errors_by_hand():
    seen = planted(np.random.default_rng(0), cells=grid((1, 2), settings=((4, 4000, 256, 4),)), runs=2)
    seen = replace(seen, iteration_time_s=np.array([1.0, 3.0, 1.0, 1.0]))

    def two(fitted, where):
        return np.full(len(where), 1.5), [""] * len(where)

    (row,) = compare(seen, rng=np.random.default_rng(0), splits=[leave_one_scale_out(seen)], models={"two": two})
    # Cell means 2 and 1: off by 25 % and 50 %.
    assert row.median_error.value == pytest.approx(0.375)
    assert not row.median_error.has_interval  # a bootstrap of two cells holds nothing
    assert row.max_error == pytest.approx(0.5)
    assert row.worst["num_env_runners"] == 2
    assert (row.num_predicted, row.num_held_out, row.num_fitted) == (2, 2, 2)


def test_every_model_has_a_row_and_one_that_cannot_says_why():
    seen = planted(np.random.default_rng(0), cells=grid(SCALES, SETTINGS))
    found = compare(seen, every_split(seen), MODELS, rng=np.random.default_rng(0))
    assert len(found) == 3 * len(MODELS)
    unseen = rows(found, "leave one (k, B, m, E) out")
    assert unseen["iteration time"].num_predicted == 8
    for name in ("Amdahl", "USL"):
        assert unseen[name].median_error is None
        assert unseen[name].max_error is None
        (reason, count), *none = unseen[name].not_applicable.items()
        assert reason == "knows one workload only, and no fitted run is of it"
        assert (count, none) == (8, [])


def test_the_iteration_time_model_beats_its_rivals_on_planted_data():
    seen = planted(np.random.default_rng(2))
    larger = rows(compare(seen, [larger_scales(seen)], MODELS, rng=np.random.default_rng(0)))
    ours = larger["iteration time"].median_error
    assert ours.value < 0.02
    for name in ("Amdahl", "USL"):
        assert larger[name].median_error.value > 2 * ours.value
        assert larger[name].num_predicted == 16
    left = compare(seen, rng=np.random.default_rng(0), splits=[leave_one_scale_out(seen)], models=MODELS)
    assert rows(left)["iteration time"].median_error.value <= 0.04


def test_unseen_batches_minibatches_and_epochs_within_the_aim():
    settings = [(k, 1000 * k * e, m, e) for k in (2, 4) for m in (128, 256, 512) for e in (4, 10)]
    seen = planted(np.random.default_rng(0), cells=grid((1, 4, 16), settings=tuple(settings)))
    found = compare(seen, rng=np.random.default_rng(0), splits=[leave_settings_out(seen)], models=MODELS)
    assert rows(found)["iteration time"].median_error.value <= 0.06


def test_too_few_scales_is_a_reason_and_no_exception():
    seen = planted(np.random.default_rng(0), cells=grid((1, 2, 8), settings=((4, 4000, 256, 4),)))
    found = rows(compare(seen, every_split(seen), MODELS, rng=np.random.default_rng(0)), "leave one n out")
    assert "at least 3 different numbers of runners, got 2" in next(iter(found["USL"].not_applicable))
    assert found["Amdahl"].num_predicted == 3
