"""Figures by value: what is drawn is what was computed, the words hold its numbers, pictures are reproducible."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

from analysis.figures import Line, efficiency, fits, importance, phases, throughput
from analysis.figures import style as look
from analysis.figures.figure import Figure, absent
from analysis.figures.marks import series
from analysis.figures.words import counted, listed, number, sentence, with_interval
from analysis.scaling import strong_scaling, weak_scaling
from analysis.scaling.phases import phases as phases_of
from study.errors import AnalysisError
from study.statistics import Estimate
from tests.planted import Truth, planted_runs

SCALES = (1, 2, 4, 8, 16, 46)
TRUTH = Truth(cells=tuple((n, 2048) for n in SCALES), blocks=3)
CONFOUNDED = Truth(cells=((10, 2048), (46, 8192)), blocks=3)


@pytest.fixture(scope="module")
def runs():
    return planted_runs(TRUTH, np.random.default_rng(1))


@pytest.fixture(scope="module")
def scaling(runs):
    return strong_scaling(runs)


def estimate(value, low=None, high=None, n=3):
    low, high = value if low is None else low, value if high is None else high
    return Estimate(value=value, low=low, high=high, n=n, level=0.95, method="given")


def rows(figure, kind):
    return figure.frame[figure.frame["kind"] == kind]


def labels(figure):
    """Draw a figure and return the texts of its axes."""
    ax = Canvas().add_subplot()
    figure.draw(ax)
    return ax.get_xlabel(), ax.get_ylabel()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.934, "1.93"),
        (12345.6, "12,346"),
        (123456.0, "123,000"),
        (0.00123, "0.00123"),
        (-75.61, "-75.6"),
        (2e-5, "2.00e-05"),
        (float("inf"), "∞"),
        (float("nan"), "unknown"),
        (1.10, "1.1"),
    ],
)
def test_a_number_is_written_as_a_person_reads_it(value, text):
    assert number(value) == text


def test_a_value_never_stands_without_its_interval():
    assert with_interval(1.934, 1.9, 1.96, 5, unit="s") == "1.93 [1.90, 1.96] s (n=5)"
    assert with_interval(1.934, np.nan, np.nan, 1) == "1.93 (n=1, no interval)"
    assert with_interval(1.934, float("-inf"), float("inf"), 1) == "1.93 (n=1, no interval)"


def test_words_are_joined_as_in_a_sentence():
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == "none"
    assert counted(1, "run") == "1 run"
    assert counted(1200, "run") == "1,200 runs"
    assert sentence("what is said") == "What is said."


def test_throughput_draws_what_strong_scaling_computed(scaling, runs):
    figure = throughput(scaling, runs)
    (group,) = scaling.groups
    measured = rows(figure, "measured")
    assert measured["num_env_runners"].tolist() == [row.num_env_runners for row in group.rows]
    for name, part in (("env_steps_per_s", "value"), ("low", "low"), ("high", "high")):
        assert measured[name].tolist() == [getattr(row.env_steps_per_s, part) for row in group.rows]
    assert measured["n"].tolist() == [row.n for row in group.rows]
    first, last = group.rows[0].env_steps_per_s, group.rows[-1].env_steps_per_s
    assert with_interval(first.value, first.low, first.high, first.n) in figure.alt
    assert with_interval(last.value, last.low, last.high, last.n) in figure.alt
    assert f"{number(last.value / first.value)} times as much, where 46 is ideal" in figure.alt


def test_the_ideal_line_goes_through_the_reference(scaling, runs):
    ideal = rows(throughput(scaling, runs), "ideal")
    reference = scaling.groups[0].rows[0].env_steps_per_s.value
    assert ideal["num_env_runners"].tolist() == [1, 46]
    assert ideal["env_steps_per_s"].tolist() == pytest.approx([reference, 46 * reference])


def test_rows_without_a_measured_clock_are_hollow_and_in_no_line(scaling, runs):
    emulated = runs.copy()
    emulated["timing"] = "emulated"
    emulated["env_steps_per_s"] = emulated["env_steps_per_s"] * 100
    figure = throughput(scaling, pd.concat([runs, emulated]))
    hollow = rows(figure, "not measured")
    assert len(hollow) == len(emulated)
    assert set(hollow["series"]) == {"emulated"}
    assert rows(figure, "measured")["env_steps_per_s"].max() < hollow["env_steps_per_s"].min()
    assert f"{len(emulated)} runs emulated" in figure.alt
    assert rows(throughput(scaling, runs), "not measured").empty


def test_no_line_is_drawn_where_nothing_may_be_compared():
    runs = planted_runs(CONFOUNDED, np.random.default_rng(1))
    figure = throughput(strong_scaling(runs), runs)
    assert set(figure.frame["kind"]) == {"alone"}
    assert len(figure.frame) == len(runs)
    assert "No line is drawn" in figure.alt


def test_without_any_rate_a_figure_says_why():
    runs = planted_runs(CONFOUNDED, np.random.default_rng(1))
    runs["timing"], runs["env_steps_per_s"] = "emulated", pd.NA
    figure = throughput(strong_scaling(runs), runs)
    assert not figure.drawn
    assert "measured clock" in figure.missing
    with pytest.raises(AnalysisError, match="measured clock"):
        figure.to_svg()


def test_fits_and_ceiling_are_drawn_as_predictions(scaling, runs):
    lines = fits(scaling, runs)
    assert [line.label for line in lines] == ["Amdahl fit", "USL fit"]
    assert "serial fraction" in lines[0].note
    figure = throughput(scaling, runs, lines=lines, ceiling=estimate(9000.0, 8000.0, 10000.0))
    measured = rows(figure, "measured").set_index("num_env_runners")["env_steps_per_s"]
    for line in lines:  # the law was planted: both come near the marks
        assert np.interp(46, line.num_env_runners, line.env_steps_per_s) == pytest.approx(measured[46], rel=0.15)
    assert set(rows(figure, "ceiling")["env_steps_per_s"]) == {9000.0}
    assert "prediction" in figure.caption
    assert "9,000 [8,000, 10,000] env steps/s" in figure.alt


def test_runs_beside_others_of_their_cell_are_in_no_fit(scaling, runs):
    beside = runs.assign(anchor="allocation 2 x 3", timed_s=runs["timed_s"] * 5, env_steps_per_s=1.0)
    assert fits(scaling, pd.concat([runs, beside]))[0].note == fits(scaling, runs)[0].note


def test_a_law_with_too_few_scales_is_left_out():
    runs = planted_runs(Truth(cells=((2, 2048), (4, 2048))), np.random.default_rng(1))
    assert [line.label for line in fits(strong_scaling(runs), runs)] == ["Amdahl fit"]


def test_efficiency_draws_both_efficiencies(scaling):
    figure = efficiency(scaling)
    (group,) = scaling.groups
    for kind, name in (("per runner, E_n", "efficiency_n"), ("per CPU, E_P", "efficiency_p")):
        drawn = rows(figure, kind)
        assert drawn["efficiency"].tolist() == [getattr(row, name).value for row in group.rows]
    last = group.rows[-1].efficiency_n
    assert with_interval(last.value, last.low, last.high, last.n) in figure.alt
    assert "relative to 1" in figure.alt


def test_a_refused_efficiency_is_not_drawn():
    runs = planted_runs(CONFOUNDED, np.random.default_rng(1))
    figure = efficiency(strong_scaling(runs, space="quickstart.yaml"))
    assert not figure.drawn
    assert figure.missing.startswith("Refused.")
    assert "train_batch_size" in figure.missing
    assert "run_study.py" in figure.missing


def test_weak_efficiency_has_its_own_figure():
    cells = tuple((n, 256 * n) for n in (2, 4, 8, 16))
    runs = planted_runs(Truth(cells=cells), np.random.default_rng(1))
    figure = efficiency(weak_scaling(runs), key="weak_efficiency")
    assert figure.key == "weak_efficiency"
    assert figure.title.startswith("Weak")
    assert rows(figure, "per runner, E_n")["num_env_runners"].tolist() == [2, 4, 8, 16]


def test_one_scale_on_two_placements_becomes_two_series(scaling):
    from dataclasses import replace

    (group,) = scaling.groups
    spread = [replace(row, num_nodes=2) for row in group.rows[1:]]
    both = dict(series(replace(group, rows=(*group.rows, *spread))))
    assert [len(each) for each in both.values()] == [len(group.rows), len(spread)]
    assert [name.rsplit(", ", 1)[1] for name in both] == ["1 node", "2 nodes"]


def test_stacked_phases_add_up_to_the_iteration(runs):
    figure = phases(phases_of(runs))
    parts = figure.frame[figure.frame["phase"] != "iteration"].groupby("num_env_runners")["seconds"].sum()
    whole = figure.frame[figure.frame["phase"] == "iteration"].set_index("num_env_runners")["seconds"]
    assert parts.to_dict() == pytest.approx(whole.to_dict())
    assert parts.index.tolist() == list(SCALES)
    assert "46 runners: one iteration takes" in figure.alt


def test_importance_is_drawn_in_the_order_of_its_mean():
    values = {10: {"lr": 0.2, "batch": 0.8}, 46: {"lr": 0.9, "batch": 0.1}}
    figure = importance(values, runs={10: 12, 46: 20})
    assert list(dict.fromkeys(figure.frame["parameter"])) == ["lr", "batch"]
    assert figure.frame["n"].tolist() == [12, 20, 12, 20]
    assert "46 runners: lr 0.9 and batch 0.1" in figure.alt
    assert not importance({}).drawn


def test_a_figure_is_drawn_or_says_why():
    empty = absent("nothing", "Nothing", "No data. Fix: record some.")
    assert not empty.drawn
    with pytest.raises(AnalysisError, match="is drawn, or says why"):
        Figure(key="x", title="x", alt="", caption="", frame=pd.DataFrame())
    with pytest.raises(AnalysisError, match="alt text"):
        Figure(key="x", title="x", alt="", caption="", frame=pd.DataFrame(), painter=lambda ax, frame: None)
    with pytest.raises(AnalysisError, match="lower case"):
        absent("No Key", "x", "because")


@pytest.fixture(scope="module")
def drawn(scaling, runs):
    lines = (Line(label="a fit", num_env_runners=np.array([1.0, 46.0]), env_steps_per_s=np.array([900.0, 9000.0])),)
    return [
        throughput(scaling, runs, lines=lines, ceiling=estimate(9000.0, 8000.0, 10000.0)),
        efficiency(scaling),
        phases(phases_of(runs)),
        importance({10: {"lr": 0.2, "batch": 0.8}}, runs={10: 12}),
    ]


def test_every_axis_has_a_unit(drawn):
    for figure in drawn:
        for label in labels(figure):
            assert re.search(r"\w+.* \[.+\]$", label), (figure.key, label)


def test_the_same_frame_makes_the_same_bytes(drawn):
    for figure in drawn[1:2]:
        assert figure.to_svg() == figure.to_svg()
        assert figure.to_png() == figure.to_png()
        assert figure.to_pdf() == figure.to_pdf()
        assert "<metadata" not in figure.to_svg()


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


def test_hostile_names_stay_text(runs):
    scaling = strong_scaling(runs)
    from dataclasses import replace

    group = replace(scaling.groups[0], label='<script>alert("1")</script> & $\\nonsense{$')
    figure = throughput(replace(scaling, groups=(group,)), runs)
    root = ElementTree.fromstring(figure.to_svg())
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert any("<script>" in (element.text or "") for element in root.iter())


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


def test_pyplot_is_never_loaded():
    code = (
        "import sys, numpy as np; from analysis.figures import importance;"
        "importance({1: {'lr': 1.0}}).to_png(); print('matplotlib.pyplot' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
