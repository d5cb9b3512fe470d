"""Tables and the report: honest numbers, five formats that say the same, safe text, files that stand alone."""

import csv
import io
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load import from_folder
from analysis.opened import Study
from analysis.report import MOST, make_report, parse_formats, to_html, write
from analysis.tables import TABLES
from analysis.tables import table_of as table_by_name
from analysis.tables.table import Table, TableColumn, estimate, text_table, without_rows, wrapped
from study.errors import AnalysisError
from tests import holdup
from tests.examples import example
from tests.planted import NOISE, Truth, amdahl, as_frame, evaluations_of, planted_runs, run, study
from tests.values import replace


class Outline(HTMLParser):
    """What a page is made of: its elements with their attributes, in order, and its text."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


NASTY = '50_% & #1 {a|b} <i> ~^ \\ "q"\nline'
INFINITE = float("inf")


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (1.9321, 1.9, 1.96, "1.93 [1.90, 1.96]"),
        (0.9996, 0.99, 1.01, "1.00 [0.99, 1.01]"),
        (6963.4, 6801.2, 7120.9, "6,963 [6,801, 7,121]"),
        (0.0004, -0.31, 0.32, "0.000 [-0.310, 0.320]"),  # as many decimals as the interval needs
        (1.93, 1.9299, 1.9301, "1.9300 [1.9299, 1.9301]"),  # the ends must not look alike …
        (1.93, 1.93 - 1e-12, 1.93 + 1e-12, "1.93 [1.93, 1.93]"),  # … unless they are but for rounding
        (0.0112, 0.002, INFINITE, "0.0112 [0.0020, ∞)"),
        (-0.0001, -0.2, 0.1, "0.000 [-0.200, 0.100]"),  # no minus before a zero
        (1e-16, 0.0, 2e-16, "0.00 [0.00, 0.00]"),
        (3.4567, None, None, "3.46 "),
        (3.4567, -INFINITE, INFINITE, "3.46 "),
    ],
)
def test_an_estimate_and_its_interval_share_decimals_that_fit_both(value, low, high, shown):
    assert " ".join(estimate(value, low, high)) == shown


@given(value=st.floats(-1e6, 1e6), below=st.floats(0, 1e6), above=st.floats(0, 1e6))
def test_what_is_shown_of_an_estimate_is_the_estimate_rounded(value, below, above):
    shown, interval = estimate(value, value - below, value + above)
    ends = [float(end.replace(",", "")) for end in interval.strip("[]").split(", ")]
    decimals = len(shown.partition(".")[2])
    off = 0.5000001 * 10**-decimals
    assert float(shown.replace(",", "")) == pytest.approx(value, abs=off)
    assert ends == pytest.approx([value - below, value + above], abs=off)


def table(name, rows, **changes):
    return table_by_name(name, Study(study(rows, **changes)))


@pytest.fixture(scope="module")
def scaling():
    others = [run(90, timing="oversubscribed"), run(91, status="failed", timing="tainted")]
    return table("strong_scaling", [*amdahl((1, 2, 4, 8), blocks=2), *others])


def test_csv_keeps_every_digit_and_says_the_rest_above(scaling):
    for one in (scaling, *example("example_study").tables.values(), *example("example_throughput").tables.values()):
        if not one.empty:
            back = pd.read_csv(io.StringIO(one.to_csv()), comment="#")
            assert list(back) == [*one.frame] and len(back) == len(one.frame)
            for name in one.frame.select_dtypes("number"):
                values = one.frame[name].astype(float).replace([INFINITE, -INFINITE], np.nan)
                assert back[name].astype(float).equals(values.reset_index(drop=True)), (one.key, name)
    lines = scaling.to_csv().splitlines()
    assert (
        "# n = 8 runs, 1 failed; left out: 1 (oversubscribed)." in lines
        and f"# Engine unknown: {scaling.conclusion}" in lines
    )
    assert any(line.startswith("# speed_up [1]: ") for line in lines)


def test_a_terminal_cuts_nothing_and_people_are_told_of_rows_that_are_not_shown(scaling):
    natural = max(map(len, text_table(scaling, 1_000).splitlines()))
    assert text_table(scaling, natural) == text_table(scaling, 1_000)
    assert ("[" in text_table(scaling, natural), "[" in text_table(scaling, natural - 1)) == (True, False)
    assert max(map(len, scaling.to_text(natural).splitlines())) <= natural
    assert wrapped(f"{'x' * 30} well-known 5 %", 12) == f"{'x' * 30}\nwell-known\n5 %"
    frame, column = pd.DataFrame({"why": [f"row {n}." for n in range(1_000)]}), TableColumn("why", "", "", "Words.")
    many = Table(key="T2", title="", frame=frame, columns=(column,), conclusion="")
    for text in (many.to_markdown(), many.to_latex(), Outline(many.to_html()).text):
        assert ("row 299." in text, "row 300." in text) == (True, False)
        assert "700 more rows; the CSV has all of them." in text
    assert "row 999." in many.to_csv() and "more rows" not in many.to_csv()
    odd = replace(many, frame=pd.DataFrame({"why": [NASTY]}))
    assert r"50\_\% \& \#1" in odd.to_latex()
    assert pd.read_csv(io.StringIO(odd.to_csv()), comment="#")["why"].tolist() == [NASTY]


def test_a_table_without_rows_says_why_in_every_format():
    empty = without_rows("T2", "Strong scaling", "Nothing ran.", "x", n_failed=2)
    assert empty.empty
    for text in (empty.to_csv(), empty.to_markdown(), empty.to_latex(), Outline(empty.to_html()).text, repr(empty)):
        assert "Nothing ran. Run: x" in text
        assert "2 failed" in text
    assert "tabular" not in empty.to_latex()
    assert "<table" not in empty.to_html()


def confounded(*, complete=False):
    """Return 1 runner at batch 2,000 against 2 at 8,000, with 2.92 times the rate; `complete`: also the other cells."""
    rates = {(1, 2_000): 1_000.0, (2, 8_000): 2_920.0}
    if complete:
        rates |= {(2, 2_000): 1_500.0, (1, 8_000): 1_600.0}
    cells = [(seed, n, batch, rate) for seed in (1, 2) for (n, batch), rate in rates.items()]
    return [
        run(trial, runners=n, batch=batch, seed=seed, iteration_time_s=NOISE[seed - 1] * batch / rate)
        for trial, (seed, n, batch, rate) in enumerate(cells)
    ]


def test_what_ran_without_a_measured_clock_is_shown_apart_with_its_cause_and_what_would_measure_it():
    why = {"timing": "oversubscribed", "timing_reason": "3 processes on 2 cores"}
    cells = [(n, seed) for n in (1, 2, 8) for seed in (1, 2, 2)]
    rows = [run(at, runners=n, seed=seed, iteration_time_s=4.0 / n, **why) for at, (n, seed) in enumerate(cells)]
    sheet = {"space": "cartpole_sweep.yaml", "hardware": {"physical_cpus": 4}}
    found = table("strong_scaling", [*rows, run(99, runners=46, timing="emulated")], sheet=sheet)
    assert "provisional" in found.title and "no speed-up and no efficiency" in found.conclusion
    shown = found.frame.set_index("num_env_runners")[["n", "seen", "timing", "timing_reason"]].to_numpy().tolist()
    # Two runs of one seed are one.
    assert shown == [[2, rate, *why.values()] for rate in (800, 1_600, 6_400)]
    assert not any("speed_up" in name or "efficiency" in name for name in found.frame)
    assert "[1, 2]" in found.command and "cartpole_sweep.yaml" in found.command, "two scales fit on its four cores"
    assert Study(study(rows)).estimates("speed_up").empty


def test_confounded_cells_are_refused_until_the_missing_cells_take_the_ratio_apart():
    found = table("strong_scaling", confounded())
    assert found.empty and not found.command
    assert "batch (2,000 against 8,000)" in found.conclusion
    assert "2 runners at batch 2,000" in found.conclusion
    assert "2.92" not in found.to_markdown()  # the naive ratio is nowhere
    figure = Study(study(confounded())).figures["efficiency"]
    assert not figure.drawn and "refused" in figure.missing
    with pytest.raises(AnalysisError, match="must have something to draw"):
        figure.pictures(["svg"])
    whole = Study(study(confounded(complete=True)))
    parts = {
        "ratio_total": 2.92,
        "ratio_runners": (1.5 * 2920 / 1600) ** 0.5,
        "ratio_workload": (1.6 * 2920 / 1500) ** 0.5,
    }
    found = whole.estimates(parts).set_index("quantity")
    for end in ("value", "low", "high"):  # a block's slowness cancels
        assert found[end].to_dict() == pytest.approx(parts)
    (note,) = whole.table("strong_scaling").notes
    assert "2.92 [2.92, 2.92]x env steps/s" in note and "give 1.65" in note


def test_batches_within_the_time_between_two_evaluations_are_not_ranked():
    def table_of_(every, stage):
        rows = [
            run(at, runners=2, batch=batch, seed=at % 5, iteration_time_s=batch / 1_000, stage=stage, digest=str(batch))
            for at, batch in enumerate(np.repeat([1_000, 4_000], 5).tolist())
        ]
        rows = [
            {**row, "env_steps": 60_000, "env_steps_to_target": 20_000 + 10_000 * (row["trial"] // 5)} for row in rows
        ]
        return table("steps_to_target", rows, evaluations=lambda: evaluations_of(as_frame(rows), every=every))

    coarse, fine = table_of_(20_000, "confirm"), table_of_(5_000, "race")
    assert "20,000 [0, 20,000] at 2 runners, batch 1,000" in coarse.conclusion
    assert "cannot be told from 1 of the other 1 rows" in coarse.conclusion
    assert "20,000 [15,000, 20,000] at 2 runners, batch 1,000" in fine.conclusion
    assert fine.notes[0] == "Runs on seeds that settings were chosen by: the best ones look better than they are."


def ended_as(status):
    return [run(n, runners=n, status=status, timing=None, reason="it broke") for n in (1, 2, 4)]


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([], "No run is finished with a measured clock", "No answer yet: 0"),
        (amdahl((4,)), "There is one scale only", ""),
        (amdahl(blocks=1), "the speed-up is 8.26 (one run)", ""),
        (ended_as("failed"), "No run is finished with a measured", "All 3 trials failed"),
        (ended_as("running"), "No run is finished with a measured", "No answer yet: 0"),
        (ended_as("interrupted"), "No run is finished with a measured", "No answer"),
        ([*amdahl((1, 2)), run(90, runners=4, status="running", timing=None)], "From 1 to 2 runners", ""),
    ],
    ids=["empty", "one scale", "one seed", "all failed", "all running", "interrupted", "still running"],
)
def test_bad_input_gives_an_answer_and_every_table_with_a_sentence(rows, words, said):
    tables = [*Study(study(rows)).tables.values()]
    assert [each.key for each in tables] == [key for key, *_ in TABLES.values()]
    assert words in tables[0].conclusion
    for each in tables:
        assert len(each.conclusion) > 20
        for text in (each.to_markdown(), each.to_csv(), each.to_latex(), each.to_html()):
            assert "nan" not in text.lower()
            assert "None" not in text.replace(each.conclusion, "")
        if not each.frame.empty or each.key in ("T2", "T3", "T5", "T8", "T11"):
            assert each.n_failed == sum(row["status"] == "failed" for row in rows), each.key
    for kind in ("search", "throughput", "holdup"):
        answer = Study(study(rows, kind=kind, sheet={"num_trials": 5})).answer()
        assert answer.sentence.startswith(said if said[:3] != "All" or kind != "holdup" else "")
        assert answer.unknown and "nan" not in answer.to_text().lower().split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = holdup.holdup_spec()
    return holdup.write_study(tmp_path_factory.mktemp("study") / "demo", spec)


@pytest.mark.parametrize("content", ['{"verdict": ', "[]", '{"verdict": 1}'])
def test_a_damaged_certificate_costs_neither_estimates_nor_answer(folder, tmp_path, content):
    (tmp_path / "certificate.json").write_text(content)
    opened = Study(replace(from_folder(folder.path), source=str(tmp_path), folder=None))
    assert opened.table("certificate").empty
    assert "score" in set(opened.estimates()["quantity"])
    assert len(opened.answer().unknown) == 1


HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)> & ünï'


@pytest.fixture(scope="module")
def report():
    truth = Truth(cells=((2, 2048), (4, 2048), (8, 2048), (2, 4096)), blocks=3, failed=1)
    return make_report(Study(study(planted_runs(truth, np.random.default_rng(2)))))


def filled(report, text):
    """Return a report with a text wherever a study's names, reasons and sentences stand."""
    facts = tuple(replace(each, text=text) for each in report.answer.findings)
    words = {"title": text, "conclusion": text, "notes": (text,), "definitions": (text,)}
    tables = [
        replace(each, frame=each.frame.assign(**dict.fromkeys(each.frame.select_dtypes("string"), text)), **words)
        for each in report.tables
    ]
    figures = tuple(replace(each, title=text, alt=text, caption=text) for each in report.figures)
    told = {"name": text, "summary": text, "answer": replace(report.answer, findings=facts)}
    return replace(report, tables=tuple(tables), figures=figures, **told)


@pytest.mark.parametrize("name", ["planted", "example_throughput", "example_study", "example_coinrun"])
def test_a_page_has_at_most_five_tables_and_figures_and_none_is_empty(report, name):
    made = report if name == "planted" else make_report(example(name))
    above, below = [each.key for each in made.answer.tables], [each.key for each in made.shown_tables]
    assert 1 <= len(above) + len(below) <= MOST and not {*above} & {*below}
    assert not any(each.empty for each in made.shown_tables)
    assert (made.beside is not None) + len(made.shown_figures) <= MOST
    assert all(f"`{each.key}` ({each.title})" in made.files[-2] for each in made.tables if not each.empty)


def test_names_and_reasons_are_text_and_never_elements(report):
    page = to_html(filled(report, HOSTILE))
    seen = Outline(page).seen
    assert "script" not in {tag for tag, _ in seen}
    assert all(named.get("class") == "picture" for tag, named in seen if tag == "img")
    assert not any(name.startswith("on") for _, named in seen for name in named)
    assert page.count("&lt;script&gt;") > 10


def test_a_page_is_whole_and_asks_for_nothing(report):
    page = to_html(report)
    seen = Outline(page).seen
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    headings = [int(tag[1]) for tag, _ in seen if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == headings[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    ids = [named["id"] for _, named in seen if "id" in named]
    assert len(ids) == len(set(ids))
    asks = [named[key] for _, named in seen for key in ("src", "href", "xlink:href", "action", "data") if key in named]
    asks = [each for each in asks if not each.startswith("data:image/svg+xml;base64,")]
    assert all(each.startswith("#") and each[1:] in ids for each in asks)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", page)
    assert "default-src 'none'" in page
    texts = [named["alt"] for tag, named in seen if tag == "img"]
    assert len(texts) >= 2 and all(texts)


def test_formats_are_some_of_those_that_there_are():
    assert parse_formats("csv, HTML,csv") == ("html", "csv")
    for text in ("", "csv,pdf"):
        with pytest.raises(AnalysisError, match="--format: must be some of html, csv, tex"):
            parse_formats(text)


def test_the_files_are_all_there_and_stale_ones_go(report, tmp_path):
    drawn, missing = ([each.key for each in report.figures if each.drawn is is_drawn] for is_drawn in (True, False))
    stale = [tmp_path / f"figures/{missing[0]}.svg", tmp_path / "tables/answer.csv"]
    for file in (*stale, mine := tmp_path / "figures" / "mine.svg"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("of an earlier report")
    files = write(report, tmp_path, ("html", "csv", "tex"))
    assert files[0] == tmp_path / "report.html"
    assert all(file.stat().st_size > 0 for file in files)
    forms = {f"tables/{each.key}.{form}" for each in report.tables for form in ("csv", "tex")}
    pictures = {f"figures/{key}.{form}" for key in drawn for form in ("svg", "png", "csv", "pdf")}
    assert {file.relative_to(tmp_path).as_posix() for file in files} == {"report.html", *forms, *pictures}
    assert mine.exists() and not any(file.exists() for file in stale)
    with (tmp_path / "tables" / "T2.csv").open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [row["num_env_runners"] for row in rows] == ["2", "4", "8"]
