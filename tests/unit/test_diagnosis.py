"""Each label stands by its own figure, beyond its threshold, and by nothing else."""

from typing import Any

import pytest

from study.designs.holdup.certificate.diagnosis import Diagnosis, Finding, TrialHistory, diagnose, histories
from study.records.ledger import fold
from study.records.records import TrialStarted
from tests import holdup, synthetic
from tests.spaces import spec
from tests.values import replace

SPEC = spec()  # CartPole-v1: a score is the return over 500, solved from 450


def trial(
    *,
    seed: int = 1,
    runners: int = 4,
    status: str = "finished",
    timing: Any = "measured",
    final: float | None = 480.0,
    peak: float = 480.0,
    count: int = 30,
    digest: str = "d",
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
    basic = {"num_env_runners": runners, "num_envs_per_env_runner": 2, "train_batch_size": 400, "lambda": 0.95}
    row = synthetic.row(
        seed,
        setting=basic | (setting or {}),
        digest=digest,
        status=status,
        timing=timing,
        summary={"final_return": final, "peak_return": peak},
    )
    one = synthetic.iteration(seed, 1)
    iterations = tuple(
        replace(one, iteration=number, env_steps=400 * number, metrics=values | metrics)
        for number in range(1, count + 1)
    )
    return TrialHistory(row=row, iterations=iterations, evaluations=())


def finding(diagnosis: Diagnosis, label: str) -> Finding | None:
    return next((each for each in diagnosis.findings if each.label == label), None)


def test_a_sound_setting_has_no_label_and_every_figure() -> None:
    found = diagnose([trial(seed=seed) for seed in (1, 2, 3)], SPEC)
    assert found.labels == ()
    assert (found.digest, found.scale, found.n, found.num_failed) == ("d", 4, 3, 0)
    assert {each.label for each in found.findings} == {
        "starved",
        "learner-bound",
        "metric-lag",
        "unstable",
        "seed-fragile",
        "straggler",
    }


CASES: list[tuple[str, dict[str, Any], float, dict[str, Any]]] = [
    ("starved", {"count": 19}, 19, {"count": 20}),
    ("learner-bound", {"learning_time_s": 0.51}, 0.51, {"learning_time_s": 0.5}),
    # A fragment is 400 / (4 * 2) = 50 steps.
    (
        "fragment-short",
        {"setting": {"lambda": 1.0}, "episode_len_sum": 4 * 260.0},
        50 / 260,
        {"setting": {"lambda": 1.0}, "episode_len_sum": 4 * 240.0},
    ),
    ("metric-lag", {"episode_return_sum": 4 * 320.0}, 0.32, {"episode_return_sum": 4 * 340.0}),
    ("unstable", {"final": 310.0, "episode_return_sum": 4 * 310.0}, 0.34, {"final": 340.0, "episode_return_sum": 1360}),
    ("straggler", {"slowest_runner_time_s": 0.81}, 0.81 / 0.4, {"slowest_runner_time_s": 0.8}),
]


@pytest.mark.parametrize(("label", "beyond", "value", "within"), CASES, ids=[case[0] for case in CASES])
def test_a_label_stands_from_its_threshold_on(
    label: str, beyond: dict[str, Any], value: float, within: dict[str, Any]
) -> None:
    found = diagnose([trial(seed=seed, **beyond) for seed in (1, 2, 3)], SPEC)
    assert found.labels == (label,)
    figure = finding(found, label)
    assert figure is not None
    assert figure.value == pytest.approx(value)
    assert (figure.n, figure.num_beyond) == (3, 3)
    assert label not in diagnose([trial(seed=seed, **within) for seed in (1, 2, 3)], SPEC).labels


def test_the_median_decides_and_single_runs_are_counted() -> None:
    found = finding(diagnose([trial(seed=1, count=5), trial(seed=2), trial(seed=3)], SPEC), "starved")
    assert found is not None
    assert (found.applies, found.value, found.num_beyond) == (False, 30, 1)


def test_short_fragments_are_no_fault_below_lambda_1() -> None:
    assert finding(diagnose([trial(episode_len_sum=4000.0)], SPEC), "fragment-short") is None


def test_a_folded_trial_has_the_fragments_of_all_its_lanes() -> None:
    one = trial(setting={"lambda": 1.0, "num_env_runners": 1, "num_envs_per_env_runner": 8}, episode_len_sum=1040.0)
    found = finding(diagnose([one], SPEC), "fragment-short")
    assert found is not None
    assert found.value == pytest.approx(50 / 260)


def test_without_an_episode_there_is_no_figure_of_one() -> None:
    nothing = {"num_episodes": 0.0, "episode_len_sum": 0.0, "episode_return_sum": 0.0}
    found = diagnose([trial(setting={"lambda": 1.0}, **nothing)], SPEC)
    assert finding(found, "fragment-short") is None
    assert finding(found, "metric-lag") is None


def test_times_are_judged_where_they_are_measured_and_said_to_be_emulated_otherwise() -> None:
    slow: dict[str, Any] = {"learning_time_s": 0.9, "slowest_runner_time_s": 9.0}
    emulated = diagnose([trial(timing="emulated", **slow)], SPEC)
    assert emulated.labels == ("learner-bound (emulated share)",)
    assert finding(emulated, "straggler") is None
    for timing in ("oversubscribed", "tainted", None):
        assert diagnose([trial(timing=timing, **slow)], SPEC).labels == ()
    # Where some are measured, the others do not count.
    mixed = finding(diagnose([trial(seed=1), trial(seed=2, timing="emulated", **slow)], SPEC), "learner-bound")
    assert mixed is not None
    assert (mixed.n, mixed.basis, mixed.applies) == (1, "measured", False)


def test_the_warm_up_is_left_out_of_shares_of_time() -> None:
    one = trial(count=2)
    first = replace(one.iterations[0], metrics={"iteration_time_s": 100.0, "learning_time_s": 99.0})
    history = TrialHistory(row=one.row, iterations=(first, one.iterations[1]), evaluations=())
    found = finding(diagnose([history], SPEC), "learner-bound")
    assert found is not None
    assert found.value == pytest.approx(0.4)


@pytest.mark.parametrize(("solved", "applies"), [(0, False), (1, False), (2, True), (8, True), (9, False)])
def test_a_setting_is_seed_fragile_when_the_seed_decides(solved: int, applies: bool) -> None:
    trials = [trial(seed=seed, final=460.0 if seed < solved else 440.0) for seed in range(10)]
    assert ("seed-fragile" in diagnose(trials, SPEC).labels) == applies


def test_a_failed_run_is_not_solved_and_has_no_other_figure() -> None:
    failed = [trial(seed=seed, status="failed", final=None, count=3) for seed in (1, 2)]
    found = diagnose([*failed, trial(seed=3), trial(seed=4)], SPEC)
    assert found.labels == ("seed-fragile",)
    assert (found.n, found.num_failed) == (4, 2)
    updates = finding(found, "starved")
    assert updates is not None
    assert updates.n == 2


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


def test_a_whole_study_can_be_diagnosed() -> None:
    study = holdup.holdup_spec()
    records = holdup.study_records(study, until="baselines")
    ledger = fold((record, float(moment)) for moment, record in enumerate(records))
    started = [each for each in records if isinstance(each, TrialStarted) and each.anchor == "rllib_defaults"]
    found = diagnose([histories(records, ledger.rows)[each.trial] for each in started], study)
    assert found.n == len(started) == 2  # on the first two seeds of the race
