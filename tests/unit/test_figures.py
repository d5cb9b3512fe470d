"""Figures of time by value: what is drawn are the estimates, the title is a finding, pictures are reproducible."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from analysis.figures import figure, figure_of
from analysis.opened import Study
from analysis.quantity import estimate_of
from analysis.tables.numbers import number
from study.errors import AnalysisError
from tests.examples import example
from tests.planted import Truth, planted_runs, study

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


def test_a_refused_comparison_is_not_drawn_and_names_the_field_and_the_command():
    refused = figure_of(throughput_study(planted_runs(CONFOUNDED, np.random.default_rng(1))), "efficiency")
    assert not refused.drawn
    for part in ("refused", "train_batch_size", "run_study.py"):
        assert part in f"{refused.missing} {refused.command}"
    with pytest.raises(AnalysisError, match="must have something to draw"):
        refused.to_svg()


def test_every_scale_that_has_data_is_drawn_however_many_there_are():
    scales = (1, 2, 4, 8, 12, 16, 24, 32, 40, 46)
    many = throughput_study(planted_runs(Truth(cells=tuple((n, 2048) for n in scales)), np.random.default_rng(1)))
    for key in ("efficiency", "phases"):
        drawn = figure_of(many, key)
        assert drawn.frame["num_env_runners"].drop_duplicates().tolist() == list(scales)
        assert_nothing_overlaps(drawn)


def test_without_any_measured_clock_every_figure_of_time_says_so(runs):
    for each in throughput_study(runs.assign(timing="emulated")).figures.values():
        assert "measured clock" in each.missing


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
    pictures = drawn[0].pictures(["inline", "svg", "png", "pdf"])
    assert pictures == drawn[0].pictures(["inline", "svg", "png", "pdf"])
    assert pictures["png"].startswith(b"\x89PNG")
    assert pictures["pdf"].startswith(b"%PDF")
    first = figure.wrapped(drawn[0].title, figure.LONGEST_TITLE).splitlines()[0]
    seen = ["".join(ElementTree.fromstring(pictures[form]).itertext()) for form in ("inline", "svg")]
    shown = [re.search(rf">{re.escape(first)}<", pictures[form].decode()) is not None for form in ("inline", "svg")]
    assert shown == [False, "<" not in first]
    assert first in seen[1]


def test_every_point_and_text_of_a_picture_is_inside_of_it(drawn):
    for each in drawn:
        assert_nothing_overlaps(each)
    assert pyplot.get_fignums() == []


def test_hostile_names_stay_text(planted):
    title = '<script>alert("1")</script> & $\\nonsense{$'
    efficiency = figure_of(planted, "efficiency")
    frame = efficiency.frame.assign(series=[title if n % 2 else f"{title} 2" for n in range(len(efficiency.frame))])
    root = ElementTree.fromstring(replace(efficiency, title=title, frame=frame).to_svg())
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert any("<script>" in (element.text or "") for element in root.iter())


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
