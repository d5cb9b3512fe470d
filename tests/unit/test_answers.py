"""What a study says first, and its figures: an answer for every kind and state, what is drawn, whole pictures."""

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from analysis.answers.answer import cost_and_clocks
from analysis.estimates.settings import learning_curves, settings_of
from analysis.figures import figure, figure_of
from analysis.opened import Study
from analysis.quantity import estimate_of
from analysis.tables.table import number
from study.records.ledger import Ledger
from study.statistics import iqm_interval
from tests import synthetic
from tests.examples import example
from tests.planted import Truth, as_frame, planted_runs, run, study
from tests.spaces import spec
from tests.values import replace


def test_a_throughput_study_says_its_gain_and_a_price_list():
    throughput = example("example_throughput").answer(price_per_cpu_hour=0.05)
    gain = "8 runners finish 3.86 times as many steps per hour as 2: 0.964 of the ideal."
    assert throughput.sentence.startswith(gain)
    measured = throughput.prices.frame[throughput.prices.frame["basis"] == "measured"].set_index("num_env_runners")
    assert list(measured.index) == [2, 4, 8]
    hours = 1e6 / measured["env_steps_per_s"] / 3600
    assert np.allclose(measured["hours_per_million_steps"], hours)
    assert np.allclose(measured["hours_per_million_steps_low"], 1e6 / measured["env_steps_per_s_high"] / 3600)
    assert np.allclose(measured["cost"], hours * measured["num_cpus"] * 0.05)


def test_what_a_study_took_counts_the_attempts_that_were_repeated():
    ledger = Ledger()
    for attempt, status in enumerate(("interrupted", "interrupted", "finished"), 1):
        end = synthetic.ended(0, status, attempt)
        costs = {"cpu_s_reserved": 3600.0 * attempt, "cpu_s_spent": 1800.0 * attempt}
        ledger.apply(synthetic.started(0, attempt), 0.0)
        ledger.apply(replace(end, summary=end.summary | costs), 1.0)
    data = study([run(0, attempt=3, cpu_s_reserved=3 * 3600.0)], spec=spec())
    assert cost_and_clocks(replace(data, ledger=ledger)).text.startswith("The study took 6.00 CPU-hours; ")
    shared = replace(data, runs=data.runs.assign(timing="oversubscribed"))
    said = "The study reserved 3.00 CPU-hours, partly of CPUs that several processes shared; "
    assert cost_and_clocks(shared).text.startswith(said)


@pytest.mark.parametrize("kind", ["search", "throughput"])
def test_a_study_of_times_that_were_not_measured_has_no_headline_of_returns(kind):
    """Nothing but the number of runners differs, so its question is the time; its returns are no answer to that."""
    busy = {"timing": "tainted", "timing_reason": "other programs used 30 % of the CPUs", "final_return": -240.0}
    rows = [run(n + seed, runners=n, seed=seed, iteration_time_s=1 / n, **busy) for n in (10, 20) for seed in (1, 2)]
    grid = {"search__sampler": "grid", "search__num_trials": None}
    space = spec(parameters={"num_env_runners": [10, 20], "lr": 1e-3, "train_batch_size": 400}, **grid)
    answer = Study(study(rows, kind=kind, spec=space if kind == "search" else None)).answer()
    assert answer.sentence.startswith("No clock was measured, mostly because of this: other programs used 30 %")
    assert "240" not in answer.to_text() and answer.rows is None
    assert answer.unknown[0].command == "python run_study.py --space waiting.yaml"
    measured = Study(study([{**row, "timing": "measured"} for row in rows], kind=kind, spec=space)).answer()
    assert ("-240" in measured.sentence) == (kind == "search")


@pytest.mark.parametrize(("planned", "commands"), [(3, 1), (2, 0)])
def test_a_study_is_resumed_in_its_own_folder_unless_it_is_complete(tmp_path, planned, commands):
    rows = [run(trial, status="failed", timing="tainted", reason="") for trial in range(2)]
    sheet = {"space": "mine.yaml", "num_trials": planned}
    answer = Study(study(rows, source=str(tmp_path / "invented"), sheet=sheet)).answer()
    assert answer.facts == ("First reason: no reason was recorded",)
    found = [each.command for each in answer.unknown if each.command]
    assert found == [f"python run_study.py --space mine.yaml --name invented --out {tmp_path} --resume"] * commands


@pytest.mark.parametrize(
    ("ends", "best"),
    [
        ({1_000: (300, 320), 2_000: (480, 470), 4_000: (100, 90)}, 2_000),
        ({1_000: (500, None), 2_000: (300, 310), 4_000: (100, 90)}, 2_000),  # a failed run has the score 0
        ({1_000: (500, 500), 2_000: (500, 500), 4_000: (500, 500)}, 1_000),  # the fewest steps to the target
    ],
)
def test_the_best_setting_of_a_search_is_the_one_with_the_highest_mean_score(ends, best):
    rows = []
    for place, (runners, batch) in enumerate((runners, batch) for runners in (2, 4) for batch in ends):
        for seed, value in enumerate(ends[batch], start=1):
            columns = {"status": "failed", "score": 0.0}
            if value is not None:
                columns = {"final_return": float(value), "score": value / 500, "env_steps": 60_000}
                columns |= {"env_steps_to_target": float(5 * batch + place)}
            rows.append(run(10 * place + seed, runners=runners, batch=batch, seed=seed, **columns))
    answer = Study(study(rows)).answer()
    assert f"train_batch_size: {best}" in answer.setting
    assert answer.setting.startswith("num_env_runners: 2 ")  # of equal ones that with fewer runners
    assert answer.rows.frame["num_env_runners"].tolist() == [2, 4]


@pytest.mark.parametrize(("cores", "commands"), [(2, 0), (5, 1)])
def test_real_runners_are_advised_with_a_command_only_where_this_machine_has_their_cpus(cores, commands):
    rows = [run(1, runners=4, timing="emulated", final_return=480.0, score=0.96)]
    answer = Study(study(rows, sheet={"space": "mine.yaml", "hardware": {"physical_cpus": cores}})).answer()
    (fact,) = [each for each in answer.unknown if "Real ones need 5 CPUs." in each.text]
    command = "python run_study.py --space mine.yaml --name invented_real --set execution=real"
    assert fact.command == command * commands
    assert ("--address" in fact.text) == (not commands)


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


def test_a_figure_draws_the_estimates_and_its_title_is_the_answer():
    runs = planted_runs(Truth(cells=tuple((n, 2048) for n in (1, 2, 4, 8, 16, 46))), np.random.default_rng(1))
    planted = Study(study(runs, kind="throughput"))
    drawn = figure_of(planted, "efficiency")
    of = planted.estimates("efficiency_per_runner", basis="measured").sort_values("num_env_runners")
    for name in ("num_env_runners", "value", "low", "high", "n"):
        assert drawn.frame[name].tolist() == of[name].tolist()
    assert planted.answer().sentence.startswith(drawn.title)
    assert drawn.title.endswith(f" {number(estimate_of(of.iloc[-1]))} of the ideal.")
    assert figure_of(planted, "phases").title in planted.answer().facts


@pytest.mark.parametrize("name", ["example_throughput", "example_study", "example_coinrun", "example_table"])
def test_pictures_are_reproducible_and_whole_and_every_point_and_text_is_inside(name):
    drawn = [each for each in example(name).figures.values() if each.drawn]
    pictures = drawn[0].pictures(["svg", "png", "pdf"])
    assert pictures == drawn[0].pictures(["svg", "png", "pdf"])
    assert ElementTree.fromstring(pictures["svg"]).tag.endswith("svg")
    assert pictures["png"].startswith(b"\x89PNG") and pictures["pdf"].startswith(b"%PDF")
    for each in drawn:
        assert_nothing_overlaps(each)
    assert pyplot.get_fignums() == []


FLOOR = 0.0


def learner(trial, *, seed=1, status="finished"):
    final = 100.0 if status == "finished" else None
    more = {"stage": "confirm", "variant": "study", "digest": "aaaaaa", "env_steps": 1000, "final_return": final}
    return run(trial, runners=10, batch=1000, seed=seed, status=status, score=1.0 if final else 0.0, **more)


def curve(trial, returns, *, steps=100):
    return [
        {"trial": trial, "env_steps": steps * k, "wall_time_s": 10.0 * k, "eval_return": value}
        for k, value in enumerate(returns, start=1)
    ]


def curves_of(runs, curves, *, floor=FLOOR):
    evaluations = pd.DataFrame([row for each in curves for row in each])
    return learning_curves([replace(each, floor=floor) for each in settings_of(as_frame(runs))], evaluations)


def test_a_curve_is_the_interquartile_mean_over_runs():
    finals = (10.0, 20.0, 30.0, 40.0, 90.0)
    runs = [learner(trial, seed=trial) for trial in range(5)]
    frame = curves_of(runs, [curve(trial, (1.0, finals[trial])) for trial in range(5)])
    assert frame["at"].tolist() == [100, 200]
    assert frame["value"].tolist() == [1.0, iqm_interval(finals).value]
    last = frame.iloc[-1]
    assert last["low"] < iqm_interval(finals).value < last["high"]
    assert last["n"] == 5


def test_a_failed_run_counts_at_the_floor_from_its_end_on():
    runs = [learner(0), learner(1, seed=2), learner(2, seed=3, status="failed")]
    curves = [curve(0, (50.0, 90.0, 90.0)), curve(1, (50.0, 90.0, 90.0)), curve(2, (50.0,))]
    frame = curves_of(runs, curves)
    at = frame.set_index("at")["value"]
    assert at[100] == 50
    assert at[300] == pytest.approx(iqm_interval([90, 90, FLOOR]).value)
    assert frame["n"].tolist()[-1] == 3
    assert frame["n_failed"].tolist()[-1] == 1
    assert curves_of(runs, curves, floor=None)["n"].max() == 2
    # A run that was evaluated at other moments keeps its last value.
    frame = curves_of(runs[:2], [curve(0, (10.0, 20.0), steps=100), curve(1, (0.0, 40.0), steps=150)])
    assert dict(zip(frame["at"], frame["value"], strict=True)) == {150: 5.0, 200: 10.0, 300: 30.0}
