"""Figures of what was learnt, by value: failed runs stay in, censored times are shown."""

from dataclasses import replace

import pandas as pd
import pytest

from analysis.estimates.settings import learning_curves, settings_of
from analysis.figures import figure_of
from analysis.opened import Study
from study.adopted.loading import load_space
from study.statistics import iqm, mean_interval
from tests import planted as tables_data
from tests.planted import as_frame, study

FLOOR = 0.0


def run(trial, *, n=10, status="finished", digest="aaaaaa111111", **more):
    finished = status == "finished"
    learnt = {"score": 1.0 if finished else 0.0, "final_return": 100.0 if finished else None, "cpu_s_spent": 10.0}
    place = {"runners": n, "batch": 100 * n, "status": status, "stage": "confirm", "variant": "study"}
    ends = {"env_steps": 1000, "wall_time_s": 100.0, "lr": 0.001 if digest.startswith("a") else 0.002}
    return tables_data.run(trial, **{**place, **learnt, **ends, "digest": digest, **more})


def curve(trial, returns, *, steps=100, seconds=10.0):
    return [
        {"trial": trial, "env_steps": steps * k, "wall_time_s": seconds * k, "eval_return": value}
        for k, value in enumerate(returns, start=1)
    ]


def curves_of(runs, curves, *, floor=FLOOR):
    evaluations = pd.DataFrame([row for each in curves for row in each])
    return learning_curves([replace(each, floor=floor) for each in settings_of(as_frame(runs))], evaluations)


def of(runs, curves=(), **changes):
    evaluations = pd.DataFrame([row for each in curves for row in each])
    known = {"evaluations": lambda: evaluations} if curves else {}
    return Study(study(runs, **{"kind": "holdup", **known, **changes}))


def test_a_curve_is_the_interquartile_mean_over_runs():
    finals = (10.0, 20.0, 30.0, 40.0, 90.0)
    runs = [run(trial, seed=trial) for trial in range(5)]
    frame = curves_of(runs, [curve(trial, (1.0, finals[trial])) for trial in range(5)])
    assert frame["at"].tolist() == [100, 200]
    assert frame["value"].tolist() == [1.0, iqm(finals)]
    last = frame.iloc[-1]
    assert last["low"] < iqm(finals) < last["high"]
    assert last["n"] == 5


def test_a_failed_run_counts_at_the_floor_from_its_end_on():
    runs = [run(0), run(1, seed=2), run(2, seed=3, status="failed")]
    curves = [curve(0, (50.0, 90.0, 90.0)), curve(1, (50.0, 90.0, 90.0)), curve(2, (50.0,))]
    frame = curves_of(runs, curves)
    at = frame.set_index("at")["value"]
    assert at[100] == 50
    assert at[300] == pytest.approx(iqm([90, 90, FLOOR]))
    assert frame["n"].tolist()[-1] == 3
    assert frame["n_failed"].tolist()[-1] == 1
    assert curves_of(runs, curves, floor=None)["n"].max() == 2


def test_runs_evaluated_at_other_moments_keep_their_last_value():
    runs = [run(0), run(1, seed=2)]
    frame = curves_of(runs, [curve(0, (10.0, 20.0), steps=100), curve(1, (0.0, 40.0), steps=150)])
    assert dict(zip(frame["at"], frame["value"], strict=True)) == {150: 5.0, 200: 10.0, 300: 30.0}


ARMS = [
    ("winner", 46, "aaaaaa", (-90.0, -75.0, -70.0)),
    ("winner", 10, "aaaaaa", (-90.0, -80.0, -76.0)),
    ("best_small", 10, "bbbbbb", (-95.0, -85.0, -80.0)),
    ("naive_growth", 46, "cccccc", (-500.0, -92.0, -86.0)),
]


def arms_study():
    runs, curves = [], []
    for place, (baseline, n, digest, returns) in enumerate(ARMS):
        for seed in range(2):
            trial = 2 * place + seed
            hit = None if baseline == "naive_growth" and seed else 100 * (place + 1)
            runs.append(run(trial, n=n, seed=seed, digest=digest, baseline=baseline, final_return=returns[-1],
                            env_steps_to_target=hit, score=1 - place / 10))  # fmt: skip
            curves.append(curve(trial, returns))
    return of(runs, curves, spec=load_space("acrobot_holdup"))


def test_the_curves_of_a_hold_up_study_are_those_of_the_arms_and_one_run_is_called_one_run():
    figure = figure_of(arms_study(), "return_steps")
    assert list(dict.fromkeys(figure.frame["series"])) == [
        "the chosen setting, 46 runners",
        "the best of 10 runners, 10 runners",
        "RLlib's defaults, batch grown, 46 runners",
    ]


def test_a_run_that_never_reached_the_target_is_drawn_at_its_end_and_no_digest_is_shown():
    found = arms_study()
    frame = figure_of(found, "steps_to_target").frame
    assert frame.loc[frame["kind"] == "not reached", "value"].tolist() == [1000]
    assert (figure_of(found, "score").frame["kind"] == "estimate").sum() == 4
    for each in found.figures.values():
        assert not {"aaaaaa", "bbbbbb", "cccccc"} & set(f"{each.title} {each.alt} {each.caption}".split())


def test_a_search_shows_the_best_setting_of_each_scale_and_no_run_of_another():
    best = {"score": 0.9, "final_return": 90.0}
    runs = [
        run(0, n=10, digest="", score=0.5, final_return=50.0, env_steps_to_target=900),
        run(1, n=10, digest="", lr=0.5, env_steps_to_target=500, **best),
        run(2, n=46, digest="", **best),
    ]
    found = of([row | {"stage": "search"} for row in runs], kind="search")
    figure = figure_of(found, "score")
    assert figure.frame[["kind", "value"]].to_numpy().tolist() == [["estimate", 0.9]] * 2
    assert all(name.endswith("one run") for name in figure.frame["row"])
    assert figure.to_svg(), "without any interval"
    steps = figure_of(found, "steps_to_target").frame
    assert steps.loc[steps["kind"] == "estimate", "value"].tolist() == [500]


def test_every_number_of_runners_is_drawn_however_many_there_are():
    scales = (1, 2, 4, 8, 16, 32, 46)
    runs = [run(n, n=n, digest="", final_return=float(n), score=n / 50, stage="search") for n in scales]
    found = of(runs, [curve(n, (0.0, n)) for n in scales], kind="search")
    for key in ("score", "return_steps"):
        figure = figure_of(found, key)
        assert sorted(figure.frame["num_env_runners"].unique()) == list(scales)
        assert figure.to_svg()


def test_scores_are_means_with_failures_as_zero():
    scores = [0.9, 1.0, 0.8, 0.95, 0.0]
    runs = [run(seed, seed=seed, score=score) for seed, score in enumerate(scores[:4], 1)]
    runs += [run(9, seed=9, status="failed", score=None), run(3, n=46)]
    figure = figure_of(of(runs), "score")
    means = figure.frame[figure.frame["kind"] == "estimate"].set_index("num_env_runners")
    expected = mean_interval(scores)
    assert means.loc[10, ["value", "low", "high"]].tolist() == [expected.value, expected.low, expected.high]
    assert "1 failed run." in figure.caption
    assert sorted(figure.frame.loc[figure.frame["kind"] == "run", "value"]) == sorted(scores)
    assert means.loc[46, ["low", "high"]].isna().all()
    few = figure_of(of(runs[1:]), "score").frame.set_index("num_env_runners")  # four runs, of which one is not solved
    assert few.loc[10, ["low", "high"]].isna().all(axis=None)


def test_without_a_scale_of_scores_returns_are_compared():
    rows = [run(0, n=1, final_return=3.0), run(1, n=2, final_return=5.0, seed=2), run(2, n=2, seed=3, status="failed")]
    found = of([{**row, "score": None, "stage": None} for row in rows], kind="search")
    figure = figure_of(found, "score")
    means = figure.frame.loc[figure.frame["kind"] == "estimate", ["num_env_runners", "value"]]
    assert means.to_numpy().tolist() == [[1, 3.0], [2, 5.0]]
    assert figure.title == found.answer().sentence == "The best setting has 1 runner, batch 100: return 3.00 (one run)."
