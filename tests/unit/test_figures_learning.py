"""Figures of what was learnt, by value: failed runs stay in, censored times are counted, the front is the front."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

from analysis.figures import cost_return_front, return_curves, score, to_target
from analysis.figures.settings import arms, legend_of, one_per_scale, per_setting
from analysis.figures.times import _medians
from analysis.scaling.targets import watched
from study.statistics import iqm, mean_interval, median_time
from tests.planted import as_frame

FLOOR = 0.0


def run(trial, *, n=10, seed=1, status="finished", digest="aaaaaa111111", **more):
    base = {
        "study": "s",
        "trial": trial,
        "status": status,
        "stage": "confirm",
        "variant": "study",
        "digest": digest,
        "seed": seed,
        "num_env_runners": n,
        "train_batch_size": 100 * n,
        "lr": 0.001 if digest.startswith("a") else 0.002,
        "timing": "measured",
        "env_steps": 1000,
        "wall_time_s": 100.0,
        "score": 1.0 if status == "finished" else 0.0,
        "final_return": 100.0 if status == "finished" else None,
        "cpu_s_spent": 10.0,
    }
    return base | more


def curve(trial, returns, *, steps=100, seconds=10.0):
    return [
        {"trial": trial, "env_steps": steps * k, "wall_time_s": seconds * k, "eval_return": value}
        for k, value in enumerate(returns, start=1)
    ]


def returns_of(runs, curves, **more):
    evaluations = pd.DataFrame([row for each in curves for row in each])
    return return_curves(as_frame(runs), evaluations, **({"against": "env_steps", "floor": FLOOR} | more))


def test_a_curve_is_the_interquartile_mean_over_runs():
    finals = (10.0, 20.0, 30.0, 40.0, 90.0)
    runs = [run(trial, seed=trial) for trial in range(5)]
    figure = returns_of(runs, [curve(trial, (1.0, finals[trial])) for trial in range(5)])
    assert figure.frame["at"].tolist() == [100, 200]
    assert figure.frame["eval_return"].tolist() == [1.0, iqm(finals)]
    last = figure.frame.iloc[-1]
    assert last["low"] < iqm(finals) < last["high"]
    assert last["n"] == 5
    assert "return after 200 env steps is 30" in figure.alt


def test_a_failed_run_counts_at_the_floor_from_its_end_on():
    runs = [run(0), run(1, seed=2), run(2, seed=3, status="failed")]
    curves = [curve(0, (50.0, 90.0, 90.0)), curve(1, (50.0, 90.0, 90.0)), curve(2, (50.0,))]
    figure = returns_of(runs, curves)
    at = figure.frame.set_index("at")["eval_return"]
    assert at[100] == 50
    assert at[300] == pytest.approx(iqm([90, 90, FLOOR]))
    assert figure.frame["n"].tolist()[-1] == 3
    assert "1 failed run counted at the floor" in figure.caption
    without = returns_of(runs, curves, floor=None)
    assert without.frame["n"].max() == 2
    assert "1 failed run not in the band" in without.caption


def test_one_run_has_no_band():
    figure = returns_of([run(0)], [curve(0, (1.0, 2.0))])
    assert figure.frame[["low", "high"]].isna().all(axis=None)
    assert "no interval" in figure.alt


def test_wall_clock_is_that_of_measured_runs_alone():
    runs = [run(0), run(1, seed=2, timing="emulated")]
    curves = [curve(0, (1.0, 2.0), seconds=30.0), curve(1, (1.0, 9.0), seconds=1.0)]
    figure = returns_of(runs, curves, against="wall_time_s")
    assert figure.frame["at"].tolist() == [30.0, 60.0]
    assert figure.frame["n"].max() == 1
    nothing = returns_of(runs[1:], curves[1:], against="wall_time_s")
    assert "not those of n runners" in nothing.missing


def test_runs_evaluated_at_other_moments_keep_their_last_value():
    runs = [run(0), run(1, seed=2)]
    figure = returns_of(runs, [curve(0, (10.0, 20.0), steps=100), curve(1, (0.0, 40.0), steps=150)])
    assert dict(zip(figure.frame["at"], figure.frame["eval_return"], strict=True)) == {150: 5.0, 200: 10.0, 300: 30.0}


def test_medians_of_resamples_are_kaplan_meier():
    rng = np.random.default_rng(3)
    times = rng.integers(1, 6, size=(300, 7)).astype(float)  # many ties
    reached = rng.random((300, 7)) < 0.7
    expected = [median_time(one, two) for one, two in zip(times, reached, strict=True)]
    assert _medians(times, reached).tolist() == expected


def target_runs():
    hits = (100, 200, None, 400, None)
    return [
        run(trial, seed=trial, env_steps_to_target=hit, status="failed" if trial == 4 else "finished")
        for trial, hit in enumerate(hits)
    ]


def test_runs_without_the_target_are_censored_and_drawn():
    figure = to_target(as_frame(target_runs()), quantity="env_steps")
    lost = figure.frame[figure.frame["kind"] == "not reached"]
    assert lost["value"].tolist() == [1000, 1000]
    (middle,) = figure.frame.loc[figure.frame["kind"] == "median", "value"]
    assert middle == median_time([100, 200, 1000, 400, 1000], [True, True, False, True, False]) == 400
    assert "3 of 5 reached it" in figure.alt
    assert "2 runs that ended without the target" in figure.caption


@pytest.mark.parametrize(("quantity", "factor"), [("env_steps", 1.0), ("time", 0.1)])
def test_an_interval_holds_the_time_since_a_run_was_last_seen_below_the_target(quantity, factor):
    runs = as_frame(
        [run(trial, seed=trial, env_steps_to_target=300, time_to_target_s=30.0) for trial in range(4)]
        + [run(4, seed=4, env_steps_to_target=500, time_to_target_s=50.0)]
    )
    seen = pd.DataFrame([row for trial in range(5) for row in curve(trial, (0, 0, 0 if trial == 4 else 90, 90, 90))])
    seen = seen[(seen["trial"] != 4) | (seen["env_steps"] % 200 != 0)]
    (middle,) = middles(to_target(watched(runs, seen, target=90.0), quantity=quantity))
    assert (middle["value"], middle["low"]) == pytest.approx((300 * factor, 200 * factor))
    assert middle["high"] == pytest.approx(500 * factor)
    (exact,) = middles(to_target(runs, quantity=quantity))
    assert exact["low"] == pytest.approx(300 * factor)
    (at_once,) = middles(to_target(watched(runs, seen.iloc[:0], target=90.0), quantity=quantity))
    assert at_once["low"] == 0


def test_a_lower_end_that_no_run_has_is_on_the_axis():
    hits = [(2, 20_000)] * 5 + [(8, 200_000)] * 5
    runs = as_frame(
        [run(at, n=n, seed=at, env_steps_to_target=hit, env_steps=250_000) for at, (n, hit) in enumerate(hits)]
    )
    seen = pd.DataFrame(
        [row for at in range(10) for row in curve(at, (0.0, 90.0 * (at < 5)) + (0.0,) * 20, steps=10_000)]
    )
    figure = to_target(watched(runs, seen, target=90.0), quantity="env_steps")
    assert min(middle["low"] for middle in middles(figure)) == 10_000
    axes = Canvas().add_subplot()
    figure.draw(axes)
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] < 10_000
    assert "the intervals hold all of it" in figure.caption and "end at 0" not in figure.caption
    at_once = to_target(watched(runs, seen.iloc[:0], target=90.0), quantity="env_steps")
    assert "end at 0" in at_once.caption
    assert "which is not known" in to_target(runs, quantity="env_steps").caption


def middles(figure):
    assert figure.to_svg()
    return figure.frame[figure.frame["kind"] == "median"].to_dict("records")


def test_a_median_that_fewer_than_half_reached_is_said_and_not_drawn():
    runs = [run(trial, seed=trial, env_steps_to_target=100 if trial == 0 else None) for trial in range(4)]
    figure = to_target(as_frame(runs), quantity="env_steps")
    assert "fewer than half reached it (1 of 4 reached it)" in figure.alt
    assert np.isinf(figure.frame.loc[figure.frame["kind"] == "median", "value"]).all()
    assert figure.to_svg()


def test_time_to_the_target_needs_a_measured_clock():
    runs = [row | {"timing": "emulated", "time_to_target_s": 5.0} for row in target_runs()]
    assert "measured clock" in to_target(as_frame(runs), quantity="time").missing
    assert to_target(as_frame(runs), quantity="env_steps").drawn
    never = as_frame([run(0)])
    assert "No run reached the target" in to_target(never, quantity="env_steps").missing


def test_scores_are_means_with_failures_as_zero():
    runs = [run(0, score=0.9), run(1, seed=2, score=1.0), run(2, seed=3, status="failed", score=None), run(3, n=46)]
    figure = score(as_frame(runs))
    means = figure.frame[figure.frame["kind"] == "mean"].set_index("num_env_runners")
    expected = mean_interval([0.9, 1.0, 0.0])
    assert means.loc[10, ["score", "low", "high"]].tolist() == [expected.value, expected.low, expected.high]
    assert means.loc[10, "n_failed"] == 1
    assert means.loc[46, ["low", "high"]].isna().all()
    assert "1 (n=1, no interval) with 46 runners" in figure.alt


def test_the_front_holds_the_runs_that_no_other_beats():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(60, 2))
    costs, returns = np.exp(values[:, 0]), values[:, 1].round(1)
    runs = [
        run(trial, n=10 if trial % 2 else 46, cpu_s_spent=costs[trial], final_return=returns[trial])
        for trial in range(60)
    ]
    figure = cost_return_front(as_frame([*runs, run(60, status="failed", cpu_s_spent=0.001)]))
    for n, some in figure.frame.groupby("num_env_runners"):
        peers = [trial for trial in range(60) if (10 if trial % 2 else 46) == n]
        best = {
            one
            for one in peers
            if not any(
                (costs[two] <= costs[one] and returns[two] > returns[one])
                or (costs[two] < costs[one] and returns[two] >= returns[one])
                for two in peers
            )
        }
        assert set(some.loc[some["on_front"], "trial"]) == best
    assert "1 failed run" in figure.caption


def test_far_outliers_do_not_flatten_the_front():
    runs = [run(trial, final_return=-75.0 - trial % 7, cpu_s_spent=10.0 + trial) for trial in range(40)]
    figure = cost_return_front(as_frame([*runs, run(40, final_return=-500.0)]))
    assert figure.frame.loc[figure.frame["beyond"], "trial"].tolist() == [40]
    assert "1 run far below the others" in figure.caption


def test_arms_are_replicates_and_the_most_replicated_are_shown():
    runs = [run(0), run(1, seed=2), run(2, digest="bbbbbb"), run(3, n=46, digest="bbbbbb"), run(4, n=46)]
    shortened = run(5, seed=9, stage="calibrate")
    stock = run(6, seed=9, variant="stock")
    found = arms(as_frame([*runs, shortened, stock, run(7, status="running")]))
    assert (found[0].setting, found[0].num_env_runners, found[0].trials) == ("aaaaaa111111", 10, (0, 1))
    assert sum(len(arm.trials) for arm in found) == 5
    chosen, left_out = one_per_scale(found)
    assert [arm.num_env_runners for arm in chosen] == [10, 46]
    assert left_out.startswith("2 more cells")
    settings, _ = per_setting(found)
    assert list(settings) == ["aaaaaa111111", "bbbbbb"]
    assert legend_of(as_frame(runs), chosen) == "Setting aaaaaa: lr 0.001."
    every = [arm for each in settings.values() for arm in each]
    assert legend_of(as_frame(runs), every) == "Setting aaaaaa: lr 0.001; setting bbbbbb: lr 0.002."


def test_runs_of_an_unknown_scale_are_counted_and_not_drawn():
    """As in other people's experiments."""
    unknown = run(9) | {"num_env_runners": None}
    figure = score(as_frame([run(0), run(1, seed=2), unknown]))
    assert "1 run of an unknown number of runners: not drawn." in figure.caption
    assert set(figure.frame["num_env_runners"]) == {10}
    nothing = [unknown]
    assert "number of runners is not known" in score(as_frame(nothing)).missing
    assert "known scale" in returns_of(nothing, [curve(9, [1.0, 2.0])]).missing


def test_a_baseline_at_one_scale_is_shown_if_it_was_replicated():
    both = [run(0), run(1, n=46)]
    baseline = [run(2, n=46, digest="bbbbbb"), run(3, n=46, digest="bbbbbb", seed=2)]
    once = run(4, n=46, digest="cccccc")
    settings, left_out = per_setting(arms(as_frame([*both, *baseline, once])))
    assert list(settings) == ["aaaaaa111111", "bbbbbb"]
    assert left_out.startswith("1 more setting")


def test_once_there_is_a_confirmation_settings_are_judged_by_it_alone():
    runs = [run(0, stage="search", score=1.2), run(1, seed=2, score=0.9), run(2, seed=3, score=0.8)]
    assert [arm.trials for arm in arms(as_frame(runs))] == [(1, 2)]
    assert "confirmation alone" in score(as_frame(runs)).caption
    assert "better than they are" in score(as_frame(runs[:1])).caption


def test_two_settings_never_share_a_name():
    runs = [run(0, digest="", anchor="naive"), run(1, digest="", anchor="naive", lr=0.5)]
    assert [arm.label for arm in arms(as_frame(runs))] == ["naive", "naive #2"]


def test_a_failed_run_without_a_clock_still_counts_against_the_time():
    runs = [run(0, time_to_target_s=40.0), run(1, seed=2, time_to_target_s=50.0)]
    failed = run(2, seed=3, status="failed", timing="tainted", wall_time_s=None)
    figure = to_target(as_frame([*runs, failed]), quantity="time")
    assert "2 of 3 reached it" in figure.alt
    assert figure.frame.loc[figure.frame["kind"] == "not reached", "value"].tolist() == [100.0]


def test_without_a_digest_a_setting_is_its_parameters():
    runs = [run(0, digest=""), run(1, digest="", seed=2), run(2, digest="", seed=3, lr=0.003)]
    found = arms(as_frame(runs))
    assert [arm.trials for arm in found] == [(0, 1), (2,)]
    assert [arm.label for arm in found] == ["lr 0.002", "lr 0.003"]


@pytest.mark.parametrize("draw", [score, cost_return_front, lambda runs: to_target(runs, quantity="env_steps")])
def test_a_study_without_learning_says_so(draw):
    runs = as_frame([run(0, stage="throughput", score=None, final_return=None, cpu_s_spent=None)])
    assert draw(runs).missing.count("Fix:") == 1
