"""Figures by value: what is drawn are the estimates, failed runs stay in, pictures are whole and reproducible."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from analysis.estimates.settings import learning_curves, settings_of
from analysis.figures import figure, figure_of
from analysis.opened import Study
from analysis.quantity import estimate_of
from analysis.tables.table import number
from study.adopted.loading import load_space
from study.errors import AnalysisError
from study.statistics import iqm, mean_interval
from tests.examples import example
from tests.planted import Truth, as_frame, planted_runs, study
from tests.planted import run as planted_run

SCALES = (1, 2, 4, 8, 16, 46)
TRUTH = Truth(cells=tuple((n, 2048) for n in SCALES), blocks=3)
CONFOUNDED = Truth(cells=((10, 2048), (46, 8192)), blocks=3)
EXAMPLES = ("example_throughput", "example_study", "example_coinrun", "example_table")


def throughput_study(runs):
    return Study(study(runs, kind="throughput", sheet={"space": "quickstart.yaml"}))


def assert_nothing_overlaps(each):
    """No run of a small sample lies outside of its axis, no letter outside of the picture, none upon another."""
    with figure.rc_context(figure.RC):
        canvas = Canvas(figsize=(figure.WIDTH_IN, each.height_in), layout="constrained")
        ax = canvas.add_subplot()
        each.draw(ax, titled=False)
        renderer = FigureCanvasAgg(canvas).get_renderer()
        canvas.draw(renderer)
    assert re.fullmatch(r".+ \[.+\]", ax.get_xlabel()), each.key
    if each.key in ("score", "steps_to_target", "return_steps"):
        low, high = ax.get_ylim() if each.key == "return_steps" else ax.get_xlim()
        assert each.frame["value"].between(low, high).all(), each.key
    legend = ax.get_legend()
    ticks = [(ax.get_xlim(), tick.get_position()[0], tick) for tick in ax.get_xticklabels()]
    ticks += [(ax.get_ylim(), tick.get_position()[1], tick) for tick in ax.get_yticklabels()]
    texts = [tick for ends, at, tick in ticks if min(ends) <= at <= max(ends)] + [ax.xaxis.label, ax.yaxis.label]
    texts += legend.get_texts() if legend is not None else []
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text() and text.get_visible()]
    width, height = canvas.get_size_inches() * canvas.dpi
    for place, box in enumerate(boxes):
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, each.key
        for other in boxes[:place]:
            across = min(box.x1, other.x1) - max(box.x0, other.x0)
            down = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(across, down) <= 0.3 * min(box.height, other.height), each.key


@pytest.fixture(scope="module")
def runs():
    return planted_runs(TRUTH, np.random.default_rng(1))


@pytest.fixture(scope="module")
def planted(runs):
    return throughput_study(runs)


def of(study_, quantity):
    return study_.estimates(quantity, basis="measured").sort_values("num_env_runners")


def test_a_figure_draws_the_estimates_and_its_title_is_the_answer(planted):
    drawn = figure_of(planted, "efficiency")
    for name in ("num_env_runners", "value", "low", "high", "n"):
        assert drawn.frame[name].tolist() == of(planted, "efficiency_per_runner")[name].tolist()
    assert planted.answer().sentence.startswith(drawn.title)
    share = estimate_of(of(planted, "efficiency_per_runner").iloc[-1])
    assert drawn.title.endswith(f" {number(share)} of the ideal.")
    assert figure_of(planted, "phases").title in planted.answer().facts


def test_a_refused_comparison_is_not_drawn_and_names_the_field_and_the_missing_cells():
    refused = figure_of(throughput_study(planted_runs(CONFOUNDED, np.random.default_rng(1))), "efficiency")
    assert not refused.drawn
    for part in ("refused", "batch (2,048 against 8,192)", "46 runners at batch 2,048"):
        assert part in refused.missing
    with pytest.raises(AnalysisError, match="must have something to draw"):
        refused.pictures(["svg"])


def test_the_shares_of_an_iteration_add_up(planted):
    drawn = figure_of(planted, "phases")
    assert drawn.frame.groupby("bar")["value"].sum().tolist() == pytest.approx([1.0] * len(SCALES))
    seconds = of(planted, "iteration_time_s")["value"].tolist()
    assert drawn.frame.drop_duplicates("bar")["seconds"].tolist() == seconds
    assert f"46 runners: an iteration of {number(seconds[-1])} s is" in drawn.alt


# --- pictures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=EXAMPLES)
def drawn(request):
    return [each for each in example(request.param).figures.values() if each.drawn]


def test_pictures_are_reproducible_and_of_the_declared_kind(drawn):
    pictures = drawn[0].pictures(["svg", "png", "pdf"])
    assert pictures == drawn[0].pictures(["svg", "png", "pdf"])
    assert ElementTree.fromstring(pictures["svg"]).tag.endswith("svg")
    assert pictures["png"].startswith(b"\x89PNG")
    assert pictures["pdf"].startswith(b"%PDF")


def test_every_point_and_text_of_a_picture_is_inside_of_it(drawn):
    for each in drawn:
        assert_nothing_overlaps(each)
    assert pyplot.get_fignums() == []


def test_a_figure_on_axes_of_ones_own_is_whole():
    canvas = Canvas(figsize=(5, 3.5))
    ax = canvas.add_subplot()
    example("example_throughput").plot("efficiency", ax=ax)
    renderer = FigureCanvasAgg(canvas).get_renderer()
    canvas.draw(renderer)
    width, height = canvas.bbox.size
    for each in (ax.get_legend(), ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label):
        box = each.get_window_extent(renderer)
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height, each


# --- what was learnt ------------------------------------------------------------------------------------------------

FLOOR = 0.0


def learner(trial, *, n=10, status="finished", digest="aaaaaa111111", **more):
    finished = status == "finished"
    learnt = {"score": 1.0 if finished else 0.0, "final_return": 100.0 if finished else None, "cpu_s_spent": 10.0}
    place = {"runners": n, "batch": 100 * n, "status": status, "stage": "confirm", "variant": "study"}
    ends = {"env_steps": 1000, "wall_time_s": 100.0, "lr": 0.001 if digest.startswith("a") else 0.002}
    return planted_run(trial, **{**place, **learnt, **ends, "digest": digest, **more})


def curve(trial, returns, *, steps=100, seconds=10.0):
    return [
        {"trial": trial, "env_steps": steps * k, "wall_time_s": seconds * k, "eval_return": value}
        for k, value in enumerate(returns, start=1)
    ]


def curves_of(runs, curves, *, floor=FLOOR):
    evaluations = pd.DataFrame([row for each in curves for row in each])
    return learning_curves([replace(each, floor=floor) for each in settings_of(as_frame(runs))], evaluations)


def learnt(runs, curves=(), **changes):
    evaluations = pd.DataFrame([row for each in curves for row in each])
    known = {"evaluations": lambda: evaluations} if curves else {}
    return Study(study(runs, **{"kind": "holdup", **known, **changes}))


def test_a_curve_is_the_interquartile_mean_over_runs():
    finals = (10.0, 20.0, 30.0, 40.0, 90.0)
    runs = [learner(trial, seed=trial) for trial in range(5)]
    frame = curves_of(runs, [curve(trial, (1.0, finals[trial])) for trial in range(5)])
    assert frame["at"].tolist() == [100, 200]
    assert frame["value"].tolist() == [1.0, iqm(finals)]
    last = frame.iloc[-1]
    assert last["low"] < iqm(finals) < last["high"]
    assert last["n"] == 5


def test_a_failed_run_counts_at_the_floor_from_its_end_on():
    runs = [learner(0), learner(1, seed=2), learner(2, seed=3, status="failed")]
    curves = [curve(0, (50.0, 90.0, 90.0)), curve(1, (50.0, 90.0, 90.0)), curve(2, (50.0,))]
    frame = curves_of(runs, curves)
    at = frame.set_index("at")["value"]
    assert at[100] == 50
    assert at[300] == pytest.approx(iqm([90, 90, FLOOR]))
    assert frame["n"].tolist()[-1] == 3
    assert frame["n_failed"].tolist()[-1] == 1
    assert curves_of(runs, curves, floor=None)["n"].max() == 2
    # A run that was evaluated at other moments keeps its last value.
    frame = curves_of(runs[:2], [curve(0, (10.0, 20.0), steps=100), curve(1, (0.0, 40.0), steps=150)])
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
            runs.append(learner(trial, n=n, seed=seed, digest=digest, baseline=baseline, final_return=returns[-1],
                            env_steps_to_target=hit, score=1 - place / 10))  # fmt: skip
            curves.append(curve(trial, returns))
    return learnt(runs, curves, spec=load_space("acrobot_holdup"))


def test_the_curves_of_a_hold_up_study_are_those_of_the_arms_and_one_run_is_called_one_run():
    drawn_ = figure_of(arms_study(), "return_steps")
    assert list(dict.fromkeys(drawn_.frame["series"])) == [
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
        learner(0, n=10, digest="", score=0.5, final_return=50.0, env_steps_to_target=900),
        learner(1, n=10, digest="", lr=0.5, env_steps_to_target=500, **best),
        learner(2, n=46, digest="", **best),
    ]
    found = learnt([row | {"stage": "search"} for row in runs], kind="search")
    drawn_ = figure_of(found, "score")
    assert drawn_.frame[["kind", "value"]].to_numpy().tolist() == [["estimate", 0.9]] * 2
    assert all(name.endswith("one run") for name in drawn_.frame["row"])
    assert drawn_.pictures(["svg"]), "without any interval"
    steps = figure_of(found, "steps_to_target").frame
    assert steps.loc[steps["kind"] == "estimate", "value"].tolist() == [500]


def test_scores_are_means_with_failures_as_zero():
    scores = [0.9, 1.0, 0.8, 0.95, 0.0]
    runs = [learner(seed, seed=seed, score=score) for seed, score in enumerate(scores[:4], 1)]
    runs += [learner(9, seed=9, status="failed", score=None), learner(3, n=46)]
    drawn_ = figure_of(learnt(runs), "score")
    means = drawn_.frame[drawn_.frame["kind"] == "estimate"].set_index("num_env_runners")
    expected = mean_interval(scores)
    assert means.loc[10, ["value", "low", "high"]].tolist() == [expected.value, expected.low, expected.high]
    assert "1 failed run." in drawn_.caption
    assert sorted(drawn_.frame.loc[drawn_.frame["kind"] == "run", "value"]) == sorted(scores)
    assert means.loc[46, ["low", "high"]].isna().all()
    few = figure_of(learnt(runs[1:]), "score").frame.set_index(
        "num_env_runners"
    )  # four runs, of which one is not solved
    assert few.loc[10, ["low", "high"]].isna().all(axis=None)


def test_without_a_scale_of_scores_returns_are_compared():
    rows = [
        learner(0, n=1, final_return=3.0),
        learner(1, n=2, final_return=5.0, seed=2),
        learner(2, n=2, seed=3, status="failed"),
    ]
    found = learnt([{**row, "score": None, "stage": None} for row in rows], kind="search")
    drawn_ = figure_of(found, "score")
    means = drawn_.frame.loc[drawn_.frame["kind"] == "estimate", ["num_env_runners", "value"]]
    assert means.to_numpy().tolist() == [[1, 3.0], [2, 5.0]]
    assert drawn_.title == found.answer().sentence == "The best setting has 1 runner, batch 100: return 3.00 (one run)."
