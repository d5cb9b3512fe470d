"""Figures of time by value: what is drawn are the estimates, the title is the finding, pictures are reproducible."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure as Canvas

from analysis.figures import Importance, absent, all_figures, figure_of, importance
from analysis.figures import style as look
from analysis.figures.words import number, of_row, told_apart
from analysis.opened import Study
from study.errors import AnalysisError
from tests.planted import Truth, planted_runs
from tests.unit.tables_data import study

SCALES = (1, 2, 4, 8, 16, 46)
TRUTH = Truth(cells=tuple((n, 2048) for n in SCALES), blocks=3)
INVISIBLE = re.compile(r"<desc.*?</desc>|<title.*?</title>", re.DOTALL)
CONFOUNDED = Truth(cells=((10, 2048), (46, 8192)), blocks=3)


def throughput_study(runs):
    data = study([], kind="throughput", sheet={"space": "quickstart.yaml"})
    object.__setattr__(data, "runs", runs)
    return Study(data)


def joined(*parts):
    """Return the runs of several studies as those of one."""
    runs = pd.concat(parts, ignore_index=True)
    return runs.assign(trial=range(len(runs)))


@pytest.fixture(scope="module")
def runs():
    return planted_runs(TRUTH, np.random.default_rng(1))


@pytest.fixture(scope="module")
def planted(runs):
    return throughput_study(runs)


def of(study_, quantity):
    return study_.estimates(quantity, basis="measured").sort_values("num_env_runners")


def measured(figure):
    return figure.frame[figure.frame["kind"] == "measured"].sort_values("num_env_runners")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.934, "1.93"),
        (12345.6, "12,346"),
        (123456.0, "123,456"),
        (0.00123, "0.00123"),
        (-75.61, "-75.6"),
        (2e-5, "0.00002"),
        (float("inf"), "∞"),
        (float("nan"), "unknown"),
        (1.10, "1.1"),
    ],
)
def test_a_number_is_written_as_a_person_reads_it(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "n", "text"),
    [
        (1.9, 1.96, 5, "1.93 [1.90, 1.96] s (n=5)"),
        (1.9, np.inf, 5, "1.93 [1.90, ∞) s (n=5)"),
        (pd.NA, pd.NA, 1, "1.93 s (n=1, no interval)"),
        (-np.inf, np.inf, 1, "1.93 s (n=1, no interval)"),
        (pd.NA, pd.NA, pd.NA, "1.93 s by definition"),
    ],
)
def test_a_value_never_stands_without_its_interval(low, high, n, text):
    assert of_row(pd.Series({"value": 1.934, "low": low, "high": high, "n": n}), unit="s") == text


def test_a_workload_is_named_by_what_tells_it_apart():
    names = ["epochs 4, batch 384", "epochs 16, batch 384"]
    assert told_apart(names) == ["epochs 4", "epochs 16"]
    assert told_apart(names[:1]) == names[:1]


def test_a_figure_draws_the_estimates_and_nothing_else(planted):
    drawn = measured(figure_of(planted, "efficiency"))
    drawn = drawn[drawn["quantity"] == "efficiency_per_runner"]
    for name in ("num_env_runners", "value", "low", "high", "n"):
        assert drawn[name].tolist() == of(planted, "efficiency_per_runner")[name].tolist()


def test_a_title_is_the_finding(planted):
    share = float(of(planted, "efficiency_per_runner")["value"].iloc[-1])
    assert figure_of(planted, "efficiency").title == f"46 runners give {number(share, 2)} of the ideal"
    sampling = sum(
        float(of(planted, f"share_{name}")["value"].iloc[-1]) for name in ("runners", "imbalance", "transfer")
    )
    assert figure_of(planted, "phases").title.startswith(
        f"Sampling takes {number(100 * sampling, 2)} % of an iteration"
    )


def test_a_refused_comparison_is_not_drawn_and_names_the_field_and_the_command():
    figure = figure_of(throughput_study(planted_runs(CONFOUNDED, np.random.default_rng(1))), "efficiency")
    assert not figure.drawn
    for part in ("Refused.", "train_batch_size", "run_study.py"):
        assert part in f"{figure.missing} {figure.command}"
    with pytest.raises(AnalysisError, match="must have something to draw"):
        figure.to_svg()


def test_without_any_measured_clock_every_figure_of_time_says_so(runs):
    blind = throughput_study(runs.assign(timing="emulated"))
    for figure in all_figures(blind):
        assert "measured clock" in figure.missing


def test_many_workloads_are_small_multiples_and_one_scale_on_more_cpus_is_a_line_of_its_own():
    truths = [Truth(cells=tuple((n, batch) for n in (2, 4, 8))) for batch in (512, 1024, 2048, 4096, 8192)]
    parts = [planted_runs(truth, np.random.default_rng(place)) for place, truth in enumerate(truths)]
    many = figure_of(throughput_study(joined(*parts)), "efficiency")
    assert many.panels == 5 == measured(many)["panel"].nunique()
    canvas = Canvas(layout="constrained")
    many.draw(canvas.add_subplot())
    assert len(canvas.axes) == 6
    wide = parts[0].assign(num_cpus=parts[0]["num_cpus"] + 10)
    placed = throughput_study(joined(parts[0], wide))
    assert "an added CPU gives" not in placed.answer().sentence, "more CPUs for as many runners are no more runners"
    both = measured(figure_of(placed, "efficiency"))
    both = both[both["quantity"] == "efficiency_per_runner"]
    assert both.groupby("series")["num_cpus"].apply(list).to_dict() == {
        "placement 1": [3, 5, 9],
        "placement 2": [13, 15, 19],
    }


def test_both_engines_are_drawn_where_both_ran(runs):
    def ran(runner, learner):
        engine = {"effective_runner": {"runner_class": runner}, "effective_learner": {"learner_class": learner}}
        fields = runs["fingerprint"].map(json.loads)
        return runs.assign(fingerprint=fields.map(lambda each: json.dumps(each | engine, sort_keys=True)))

    both = joined(ran("BatchedEnvRunner", "LeanPPOLearner"), ran("StockEnvRunner", "PPOTorchLearner"))
    found = measured(figure_of(throughput_study(both), "efficiency"))
    assert set(found["engine"]) == {"batched+lean", "RLlib's own"}
    assert {name.split(",")[0] for name in found["series"]} == {"engine batched+lean", "engine RLlib's own"}


def test_weak_efficiency_has_its_own_figure():
    cells = tuple((n, 256 * n) for n in (2, 4, 8, 16))
    weak = throughput_study(planted_runs(Truth(cells=cells), np.random.default_rng(1)))
    drawn = measured(figure_of(weak, "weak_efficiency"))
    assert drawn.loc[drawn["quantity"] == "weak_efficiency", "num_env_runners"].tolist() == [2, 4, 8, 16]


def test_the_shares_of_an_iteration_add_up(planted):
    figure = figure_of(planted, "phases")
    assert figure.frame.groupby("bar")["value"].sum().tolist() == pytest.approx([1.0] * len(SCALES))
    seconds = of(planted, "iteration_time_s")["value"].tolist()
    assert figure.frame.drop_duplicates("bar")["seconds"].tolist() == seconds
    assert f"46 runners: an iteration of {number(seconds[-1])} s is" in figure.alt


def test_importance_is_drawn_in_the_order_of_its_mean():
    found = Importance(values={10: {"lr": 0.2, "batch": 0.8}, 46: {"lr": 0.9, "batch": 0.1}}, runs={10: 12, 46: 20})
    figure = importance(found, engine="batched+lean")
    assert list(dict.fromkeys(figure.frame["parameter"])) == ["lr", "batch"]
    assert figure.frame["n"].tolist() == [12, 20, 12, 20]
    assert figure.title == "Learning rate matters most with 46 runners, batch with 10"
    assert "46 runners: lr 0.9 and batch 0.1" in figure.alt
    assert not importance(Importance(values={}), engine="").drawn


def test_a_figure_without_data_says_why():
    assert not absent("nothing", "Nothing", "No data. Fix: record some.").drawn


@pytest.fixture(scope="module")
def drawn(planted):
    found = Importance(values={10: {"lr": 0.3, "batch": 0.7}})
    return [figure for figure in (*all_figures(planted), importance(found, engine="e")) if figure.drawn]


def test_pictures_are_reproducible_and_of_the_declared_kind(drawn):
    assert len(drawn) == 3
    for figure in drawn:
        text = figure.to_svg()
        assert text == figure.to_svg()
        assert "<metadata" not in text
        assert figure.to_png().startswith(b"\x89PNG")
        assert figure.to_pdf().startswith(b"%PDF")


def test_every_axis_has_a_unit_and_pyplot_keeps_no_figure(drawn):
    for figure in drawn:
        ax = Canvas().add_subplot()
        figure.draw(ax)
        assert re.fullmatch(r".+ \[.+\]", ax.get_xlabel()), figure.key
        assert ax.get_title(loc="left").replace("\n", " ") == figure.title
    assert pyplot.get_fignums() == []


def test_the_title_is_in_the_picture_unless_the_page_writes_it(drawn):
    for figure in drawn:
        seen = [INVISIBLE.sub("", figure.to_svg(titled=titled)) for titled in (True, False)]
        first = look.wrapped(figure.title, look.LONGEST_TITLE).splitlines()[0]
        assert [first in each for each in seen] == [True, False]


def test_an_svg_is_accessible_and_asks_for_nothing(drawn):
    for figure in drawn:
        text = figure.to_svg()
        root = ElementTree.fromstring(text)
        name = "{http://www.w3.org/2000/svg}"
        assert root.get("role") == "img"
        assert root.find(f"{name}title").text == figure.title
        assert root.find(f"{name}desc").text == figure.alt
        assert {f"{figure.key}-title", f"{figure.key}-desc"} == set(root.get("aria-labelledby").split())
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        assert all(each.startswith(f"{figure.key}-") for each in ids)
        assert set(re.findall(r'href="([^"]*)"', text)) <= {f"#{each}" for each in ids}
        assert '<style type="text/css">*' not in text


def test_hostile_names_stay_text(planted):
    title = '<script>alert("1")</script> & $\\nonsense{$'
    figure = figure_of(planted, "efficiency")
    frame = figure.frame.assign(series=[title if n % 2 else f"{title} 2" for n in range(len(figure.frame))])
    root = ElementTree.fromstring(replace(figure, title=title, frame=frame).to_svg())
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert any("<script>" in (element.text or "") for element in root.iter())


def test_labels_that_would_overlap_are_moved_apart_in_their_order():
    wanted, sizes = [0.9, 0.5, 0.52, 0.88], [0.1, 0.1, 0.2, 0.1]
    places = [look.spread(wanted, sizes)[label] for label in range(4)]
    assert np.argsort(places, kind="stable").tolist() == np.argsort(wanted, kind="stable").tolist()
    for one in range(4):
        for two in range(one):
            assert abs(places[one] - places[two]) >= (sizes[one] + sizes[two]) / 2 - 1e-9
    assert look.spread([0.1, 0.9], [0.1, 0.1]) == {0: pytest.approx(0.1), 1: pytest.approx(0.9)}


def test_a_number_and_its_percent_sign_stay_on_one_line():
    assert look.wrapped("learning takes 2.7 % of it", 19) == "learning takes\n2.7 % of it"


def test_tick_labels_that_would_overlap_are_left_out():
    kept = look.thinned([1, 2, 4, 8, 16, 32, 40, 46, 48], (0.8, 50), logarithmic=True)
    assert kept[-1] == 48
    assert 46 not in kept
    places = np.log(kept)
    assert np.diff(places).min() >= 0.07 * np.log(50 / 0.8)
    assert look.thinned([1, 2, 3], (0, 4), logarithmic=False) == [1, 2, 3]


def test_series_differ_by_more_than_their_colour():
    count = look.MAX_SERIES
    assert len(set(look.COLOURS)) == len(set(look.MARKS)) == len(look.DASHES) == count


def contrast(colour):
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 1.05 / (0.05 + 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])


def test_text_and_lines_stand_out_from_white_paper():
    assert contrast(look.INK) > 7
    assert contrast(look.GREY) > 4.5  # WCAG 2 for text
    assert min(contrast(colour) for colour in look.COLOURS[:4]) > 3  # WCAG 2 for graphics
