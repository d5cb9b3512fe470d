"""Each label stands by its own figure, beyond its threshold, and by nothing else."""

from typing import Any

import pytest

from study.designs.holdup.diagnosis import TrialHistory, diagnose, histories
from study.records.ledger import fold
from tests import synthetic
from tests.spaces import spec
from tests.values import replace

SPEC = spec()  # CartPole-v1: a score is the return over 500, solved from 450
SLOW: dict[str, Any] = {"learning_time_s": 0.9, "slowest_runner_time_s": 9.0}


def trial(
    *,
    seed: int = 1,
    status: str = "finished",
    timing: Any = "measured",
    final: float | None = 480.0,
    count: int = 30,
    setting: dict[str, float] | None = None,
    **metrics: float | None,
) -> TrialHistory:
    """A sound trial of 30 iterations of 400 steps with episodes of 100 steps; nothing about it is labelled."""
    values: dict[str, float | None] = {
        "iteration_time_s": 1.0,
        "learning_time_s": 0.4,
        "slowest_runner_time_s": 0.5,
        "mean_runner_time_s": 0.4,
        "num_episodes": 4.0,
        "episode_len_sum": 400.0,
        "episode_return_sum": 4 * 470.0,
    }
    basic = {"num_env_runners": 4, "num_envs_per_env_runner": 2, "train_batch_size": 400, "lambda": 0.95}
    summary = {"final_return": final, "peak_return": 480.0}
    row = synthetic.row(
        seed, setting=basic | (setting or {}), digest="d", status=status, timing=timing, summary=summary
    )
    one = synthetic.iteration(seed, 1)
    iterations = tuple(
        replace(one, iteration=number, env_steps=400 * number, metrics=values | metrics)
        for number in range(1, count + 1)
    )
    return TrialHistory(row=row, iterations=iterations, evaluations=())


def finding(trials: list[TrialHistory], label: str) -> dict[str, Any] | None:
    return next((each for each in diagnose(trials, SPEC)["findings"] if each["label"] == label), None)


def three(**changes: Any) -> list[TrialHistory]:
    return [trial(seed=seed, **changes) for seed in (1, 2, 3)]


LAMBDA: dict[str, Any] = {"setting": {"lambda": 1.0}}
FOLDED = {"setting": {"lambda": 1.0, "num_env_runners": 1, "num_envs_per_env_runner": 8}}
CASES: list[tuple[str, dict[str, Any], float, dict[str, Any]]] = [
    ("starved", {"count": 19}, 19, {"count": 20}),
    ("learner-bound", {"learning_time_s": 0.51}, 0.51, {"learning_time_s": 0.5}),
    # A fragment is 400 / (4 * 2) = 50 steps, also where one stock runner had all environments.
    ("fragment-short", LAMBDA | {"episode_len_sum": 1040.0}, 50 / 260, LAMBDA | {"episode_len_sum": 960.0}),
    ("fragment-short", FOLDED | {"episode_len_sum": 1040.0}, 50 / 260, {"episode_len_sum": 4000.0}),
    ("metric-lag", {"episode_return_sum": 4 * 320.0}, 0.32, {"episode_return_sum": 4 * 340.0}),
    ("unstable", {"final": 310.0, "episode_return_sum": 4 * 310.0}, 0.34, {"final": 340.0, "episode_return_sum": 1360}),
    ("straggler", {"slowest_runner_time_s": 0.81}, 0.81 / 0.4, {"slowest_runner_time_s": 0.8}),
]


@pytest.mark.parametrize(("label", "beyond", "value", "within"), CASES)
def test_a_label_stands_from_its_threshold_on(
    label: str, beyond: dict[str, Any], value: float, within: dict[str, Any]
) -> None:
    found = diagnose(three(**beyond), SPEC)
    assert (found["labels"], found["n"], found["num_failed"]) == ([label], 3, 0)
    figure = finding(three(**beyond), label)
    assert figure is not None
    assert (figure["value"], figure["n"], figure["num_beyond"]) == (pytest.approx(value), 3, 3)
    assert label not in diagnose(three(**within), SPEC)["labels"]


def test_the_median_decides_and_single_runs_are_counted() -> None:
    found = finding([trial(seed=1, count=5), trial(seed=2), trial(seed=3)], "starved")
    assert found is not None
    assert (found["applies"], found["value"], found["num_beyond"]) == (False, 30, 1)


def test_what_a_run_does_not_have_is_no_figure_of_it() -> None:
    nothing: dict[str, Any] = {"num_episodes": 0.0, "episode_len_sum": 0.0, "episode_return_sum": 0.0}
    for label in ("fragment-short", "metric-lag"):
        assert finding([trial(**LAMBDA, **nothing)], label) is None
    assert finding([trial(episode_len_sum=4000.0)], "fragment-short") is None  # no fault below lambda 1
    one = trial(count=2)
    first = replace(one.iterations[0], metrics={"iteration_time_s": 100.0, "learning_time_s": 99.0})
    warm = finding([replace(one, iterations=(first, one.iterations[1]))], "learner-bound")
    assert warm is not None
    assert warm["value"] == pytest.approx(0.4)  # the warm-up is left out of shares of time


def test_times_are_judged_where_they_are_measured_and_said_to_be_emulated_otherwise() -> None:
    assert diagnose([trial(timing="emulated", **SLOW)], SPEC)["labels"] == ["learner-bound (emulated share)"]
    for timing in ("oversubscribed", "tainted", None):
        assert diagnose([trial(timing=timing, **SLOW)], SPEC)["labels"] == []
    # Where some are measured, the others do not count.
    mixed = finding([trial(seed=1), trial(seed=2, timing="emulated", **SLOW)], "learner-bound")
    assert mixed is not None
    assert (mixed["n"], mixed["basis"], mixed["applies"]) == (1, "measured", False)


@pytest.mark.parametrize(("solved", "applies"), [(0, False), (1, False), (2, True), (8, True), (9, False)])
def test_a_setting_is_seed_fragile_when_the_seed_decides(solved: int, applies: bool) -> None:
    trials = [trial(seed=seed, final=460.0 if seed < solved else 440.0) for seed in range(10)]
    assert ("seed-fragile" in diagnose(trials, SPEC)["labels"]) == applies


def test_a_failed_run_is_not_solved_and_has_no_other_figure() -> None:
    failed = [trial(seed=seed, status="failed", final=None, count=3) for seed in (1, 2)]
    found = diagnose([*failed, trial(seed=3), trial(seed=4)], SPEC)
    assert (found["labels"], found["n"], found["num_failed"]) == (["seed-fragile"], 4, 2)
    assert {each["n"] for each in found["findings"] if each["label"] != "seed-fragile"} == {2}


def test_histories_hold_the_latest_attempt_only() -> None:
    records = [
        *list(synthetic.whole_trial(0, "interrupted", length=5)),
        *list(synthetic.whole_trial(0, attempt=2, length=2)),
        *list(synthetic.whole_trial(1)),
    ]
    ledger = fold((record, float(moment)) for moment, record in enumerate(records))
    found = histories(records, ledger.rows)
    assert [len(found[number].iterations) for number in (0, 1)] == [2, 3]
    assert [len(found[number].evaluations) for number in (0, 1)] == [1, 1]
    assert found[0].row.attempt == 2
