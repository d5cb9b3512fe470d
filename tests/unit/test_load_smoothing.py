"""RLlib's smoothed timers undone: planted raw times come back within the error that is stated."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from analysis.load.foreign_history import RLLIB_COEFFICIENT, invert, iterations_of, resolution


def smooth(raw, coefficient=RLLIB_COEFFICIENT):
    """RLlib's own recursion, in its order of operations."""
    value, means = np.nan, []
    for each in raw:
        value = each if np.isnan(value) else coefficient * each + (1.0 - coefficient) * value
        means.append(value)
    return np.array(means)


def times(size=200, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([[10.0], rng.gamma(9.0, 0.1, size - 1)])


def test_the_example_of_the_engine_facts():
    means = smooth([10.0] + [1.0] * 20)
    assert means[-1] == pytest.approx(8.36, abs=0.005)  # what RLlib reports after 20 iterations of a second
    assert invert(means, np.arange(1, 22)).values == pytest.approx([10.0] + [1.0] * 20, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_raw_times_come_back_within_the_stated_error(seed):
    raw = times(seed=seed)
    inverted = invert(smooth(raw), np.arange(1, 201))
    assert inverted.complete
    assert inverted.consistent
    assert (np.abs(inverted.values - raw) <= inverted.errors).all()
    assert inverted.errors.max() < 1e-11
    assert inverted.errors[0] < 1e-14  # the first value is itself


@pytest.mark.parametrize(
    ("rounded", "bound"),
    [
        (lambda means: means.astype(np.float32).astype(float), 1e-3),
        (lambda means: np.round(means, 4), 0.01),
        (lambda means: np.round(means, 2), 1.0),
    ],
)
def test_rounded_logs_say_how_little_they_tell(rounded, bound):
    raw = times()
    means = rounded(smooth(raw))
    inverted = invert(means, np.arange(1, 201))
    off = np.abs(inverted.values - raw)
    assert (off <= inverted.errors).all()
    assert off.max() > inverted.errors.max() / 50  # and not absurdly more than is lost
    assert inverted.errors.max() < bound


def test_digits_are_recognised():
    rng = np.random.default_rng(3)
    values = rng.random(50)
    assert resolution(values) == (2.0**-53, 0.0)
    assert resolution(values.astype(np.float32).astype(float)) == (2.0**-24, 0.0)
    assert resolution(np.round(values, 3)) == (2.0**-53, 0.0005)
    assert resolution(np.array([2.0, 2.0, 2.0, np.nan])) == (2.0**-53, 0.0)  # one value is no sign


def test_nothing_is_invented_for_what_is_missing():
    raw = times(20)
    means, iterations = smooth(raw), np.arange(1, 21)
    kept = np.array([at not in (5, 6, 12) for at in range(20)])
    inverted = invert(means[kept], iterations[kept])
    known = ~np.isnan(inverted.values)
    assert iterations[kept][~known].tolist() == [8, 14]  # the first after each gap
    assert inverted.values[known] == pytest.approx(raw[kept][known], abs=1e-10)
    assert not inverted.complete
    late = invert(means[3:], iterations[3:])
    assert np.isnan(late.values[0])  # what came before is not known
    assert late.values[1:] == pytest.approx(raw[4:], abs=1e-10)
    holed = means.copy()
    holed[7] = np.nan
    assert np.flatnonzero(np.isnan(invert(holed, iterations).values)).tolist() == [7, 8]


def test_a_series_that_is_no_such_mean_is_noticed():
    moving = np.convolve(times(50), np.ones(10) / 10, mode="valid")
    assert not invert(moving, np.arange(1, len(moving) + 1)).consistent


def ray_source(name):
    spec = importlib.util.find_spec("ray")  # the place, without importing it
    file = Path(spec.submodule_search_locations[0]) / "rllib/utils/metrics" / name if spec else None
    if file is None or not file.exists():
        pytest.skip("this Ray has no such file")
    return file.read_text()


def test_the_installed_rllib_smooths_by_this_formula():
    """The recursion in Ray's source, evaluated, is the one that is inverted here."""
    tree = ast.parse(ray_source("stats/ema.py"))
    (push,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "push"]
    (update,) = [
        node.value for node in ast.walk(push) if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
    ]
    formula = compile(ast.Expression(update), "ema.py", "eval")

    class Stats:
        _ema_coeff = RLLIB_COEFFICIENT
        _value = 10.0

    raw = times(30)
    means = [raw[0]]
    for each in raw[1:]:
        Stats._value = means[-1]
        means.append(eval(formula, {"self": Stats, "value": each}))
    assert means == smooth(raw).tolist()
    logger = ray_source("metrics_logger.py")
    assert 'if reduce == "ema" and ema_coeff is None:\n                    ema_coeff = 0.01' in logger


def results(raw_sampling, raw_learning, batch=500):
    """Histories of a run of the new stack as its MLflow callback leaves them, without the warm-up's slow start."""
    size = len(raw_sampling)
    each = raw_sampling + raw_learning + 0.2
    steps = range(1, size + 1)
    series = {
        "training_iteration": np.arange(1.0, size + 1),
        "num_env_steps_sampled_lifetime": batch * np.arange(1.0, size + 1),
        "time_total_s": np.cumsum(each),
        "time_this_iter_s": each,
        "timers/env_runner_sampling_timer": smooth(raw_sampling),
        "timers/learner_update_timer": smooth(raw_learning),
        "timers/synch_weights": smooth(np.full(size, 0.1)),
        "env_runners/episode_return_mean": np.arange(size) * 1.0,
    }
    return {key: list(zip(steps, values.tolist(), strict=True)) for key, values in series.items()}


def read(series):
    return iterations_of({key: values[-1][1] for key, values in series.items()}, series.__getitem__)


def test_a_complete_history_gives_raw_phases():
    sampling, learning = times(40, 1), times(40, 2) / 10
    result = read(results(sampling, learning))
    assert result.notes == []
    assert result.values["sampling_time_s"] == pytest.approx(sampling, abs=1e-9)
    assert result.values["learning_time_s"] == pytest.approx(learning, abs=1e-9)
    assert result.values["rest_time_s"] == pytest.approx(np.full(40, 0.1), abs=1e-9)
    assert result.values["train_batch_size_actual"].tolist() == [500.0] * 40
    row = next(result.rows(3))
    assert (row["trial"], row["iteration"], row["env_steps"]) == (3, 1, 500)


def test_gaps_and_restarts_are_told():
    series = results(times(10, 1), times(10, 2) / 10)
    holed = {key: [each for each in values if each[0] not in (4, 5)] for key, values in series.items()}
    result = read(holed)
    assert "2 of 10 iterations are missing from its history" in result.notes
    assert result.iteration.tolist() == [1, 2, 3, 6, 7, 8, 9, 10]
    assert np.isnan(result.values["sampling_time_s"][3])
    assert np.isnan(result.values["train_batch_size_actual"][3])
    assert any("1 of 8 values cannot be inverted" in note for note in result.notes)
    restarted = dict(series)
    restarted["training_iteration"] = [(step, step if step < 8 else step - 3) for step in range(1, 11)]
    result = read(restarted)
    assert result.iteration.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert result.values["time_total_s" if "time_total_s" in result.values else "wall_time_s"][4] == pytest.approx(
        series["time_total_s"][7][1]
    )
    assert any("set back" in note for note in result.notes)


def test_without_training_iteration_only_steps_that_count_iterations_are_numbered():
    series = results(times(10, 1), times(10, 2) / 10)
    series.pop("training_iteration")
    assert read(series).iteration.tolist() == list(range(1, 11))
    by_env_steps = {key: [(500 * step, value) for step, value in values] for key, values in series.items()}
    result = read(by_env_steps)
    assert len(result.iteration) == 0
    assert any("training_iteration was not logged" in note for note in result.notes)


def test_timers_that_contradict_the_clock_are_left_out():
    series = results(times(10, 1), times(10, 2) / 10)
    series["timers/learner_update_timer"] = [(step, 100.0) for step in range(1, 11)]
    result = read(series)
    assert "sampling_time_s" not in result.values
    assert any("longer than its iterations" in note for note in result.notes)


def test_the_windowed_means_of_the_old_stack_are_not_inverted():
    series = results(times(10, 1), times(10, 2) / 10)
    for key in [key for key in series if key.startswith("timers/")]:
        series.pop(key)
    series["timers/sample_time_ms"] = [(step, 1000.0) for step in range(1, 11)]
    result = read(series)
    assert "sampling_time_s" not in result.values
    assert any("moving mean of RLlib's old stack" in note for note in result.notes)
