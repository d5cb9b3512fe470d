"""Tables as values and as text: honest numbers, four formats that say the same, nothing that breaks a reader."""

import io
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.tables.cells import TableColumn
from analysis.tables.numbers import estimate, plain
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows
from study.statistics import Estimate
from study.statistics.estimate import without_interval
from tests.unit.test_report import Outline

NASTY = '50_% & #1 {a|b} <i> ~^ \\ "q"\nline'
INFINITE = float("inf")


def known(value, low, high, n=3, method="t"):
    return Estimate(value=value, low=low, high=high, n=n, level=0.95, method=method)


ESTIMATES = [
    known(1.0, 1.0, 1.0, method="by definition"),
    known(1.9321, 1.9, 1.96),
    without_interval(3.4567, n=1, level=0.95, method="t"),
    None,
]
COLUMNS = (
    TableColumn(name="num_env_runners", unit="1", label="n", meaning="Runners."),
    TableColumn(name="speed_up", unit="1", label="S", meaning="T(n_ref) / T(n).", estimate=True),
    TableColumn(name="iteration_time_s", unit="s", label="T", meaning="Seconds."),
    TableColumn(name="why", unit="", meaning="Words."),
)


def table(**changes):
    frame = make_frame(
        {
            "num_env_runners": [1, 2, 4, 1000],
            **estimate_columns("speed_up", ESTIMATES),
            "iteration_time_s": [2.0, 1.0351, 1 / 3, None],
            "why": ["plain", NASTY, None, ""],
        }
    )
    values = {
        "key": "T2",
        "title": "Strong scaling",
        "frame": frame,
        "columns": COLUMNS,
        "definitions": ("S(n) = T(n_ref) / T(n).",),
        "n": 7,
        "n_failed": 1,
        "excluded": {"oversubscribed": 2, "emulated": 0},
        "conclusion": "At 2 runners the speed-up is 1.93 [1.90, 1.96].",
        "notes": ("A note with 5 % & more.",),
    }
    return Table(**(values | changes))


@pytest.mark.parametrize(
    ("value", "low", "high", "digits", "shown"),
    [
        (1.9321, 1.9, 1.96, 3, "1.93 [1.90, 1.96]"),
        (0.9996, 0.99, 1.01, 3, "1.00 [0.99, 1.01]"),
        (6963.4, 6801.2, 7120.9, 3, "6,963 [6,801, 7,121]"),
        (0.0004, -0.31, 0.32, 3, "0.000 [-0.310, 0.320]"),  # as many decimals as the interval needs
        (1.93, 1.9299, 1.9301, 3, "1.9300 [1.9299, 1.9301]"),  # the ends must not look alike …
        (1.93, 1.93 - 1e-12, 1.93 + 1e-12, 3, "1.93 [1.93, 1.93]"),  # … unless they are but for rounding
        (0.0112, 0.002, INFINITE, 3, "0.0112 [0.0020, ∞)"),
        (-0.0001, -0.2, 0.1, 2, "0.00 [-0.20, 0.10]"),  # no minus before a zero
        (1e-16, 0.0, 2e-16, 3, "0.00 [0.00, 0.00]"),
        (3.4567, None, None, 3, "3.46 "),
        (3.4567, -INFINITE, INFINITE, 3, "3.46 "),
    ],
)
def test_an_estimate_and_its_interval_share_decimals_that_fit_both(value, low, high, digits, shown):
    assert " ".join(estimate(value, low, high, digits=digits)) == shown


@given(
    value=st.floats(-1e6, 1e6),
    below=st.floats(0, 1e6),
    above=st.floats(0, 1e6),
    digits=st.integers(1, 5),
)
def test_what_is_shown_of_an_estimate_is_the_estimate_rounded(value, below, above, digits):
    shown, interval = estimate(value, value - below, value + above, digits=digits)
    ends = [float(end.replace(",", "")) for end in interval.strip("[]").split(", ")]
    decimals = len(shown.partition(".")[2])
    off = 0.5000001 * 10**-decimals
    assert float(shown.replace(",", "")) == pytest.approx(value, abs=off)
    assert ends == pytest.approx([value - below, value + above], abs=off)
    assert {len(end.partition(".")[2]) for end in interval.strip("[]").split(", ")} == {decimals}


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (46, 3, "46"),
        (12_345, 3, "12,345"),
        (0.33333, 3, "0.333"),
        (True, 3, "yes"),
        ("words", 3, "words"),
        (0.0, 3, "0"),
        (0.9996, 3, "1.00"),
        (5e-5, 3, "0.0000500"),
        (2e-6, 3, "2.00e-06"),
        (float("nan"), 3, "unknown"),
    ],
)
def test_other_values_are_shown_as_what_they_are(value, digits, shown):
    assert plain(value, digits) == shown


GOLDEN = """### T2. Strong scaling

At 2 runners the speed-up is 1.93 [1.90, 1.96].

| n | S | T (s) | why |
| ---: | ---: | ---: | :--- |
| 1 | 1.00 (by definition) | 2.00 | plain |
| 2 | 1.93 [1.90, 1.96] | 1.04 | 50_% & #1 {a\\|b} &lt;i> ~^ \\ "q" line |
| 4 | 3.46 (n=1, no interval) | 0.333 | - |
| 1,000 | - | - |  |
"""


def test_markdown_is_as_it_was_looked_at():
    assert table().to_markdown().startswith(GOLDEN)


def test_csv_keeps_every_digit_and_says_the_rest_above():
    text = table().to_csv()
    back = pd.read_csv(io.StringIO(text), comment="#")
    assert list(back) == [*table().frame]
    assert back["iteration_time_s"].tolist()[:3] == [2.0, 1.0351, 1 / 3]
    assert back["speed_up"].tolist()[:3] == [1.0, 1.9321, 3.4567]
    assert back[["speed_up_low", "speed_up_high"]].loc[1].tolist() == [1.9, 1.96]
    assert back[["speed_up_low", "speed_up_high"]].isna().all(axis=1).tolist() == [True, False, True, True]
    assert back["why"][1] == NASTY
    head = [line for line in text.splitlines() if line.startswith("# ")]
    assert "# n = 7 runs, 1 failed; left out: 2 (oversubscribed)." in head
    assert "# At 2 runners the speed-up is 1.93 [1.90, 1.96]." in head
    assert "# speed_up [1]: T(n_ref) / T(n)." in head


def test_latex_is_balanced_and_escapes_what_the_data_hold():
    text = table().to_latex()
    for word in ("table", "tabular", "minipage"):
        assert text.count(f"\\begin{{{word}}}") == text.count(f"\\end{{{word}}}") == 1
    bare = re.sub(r"(?m)^%.*$|%$|\\[\\{}%&#_$]", "", text)  # what is escaped, and LaTeX's own comments
    assert bare.count("{") == bare.count("}")
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert not re.search(r"[%#_~]", bare)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 5
    assert all(len(re.findall(r"(?<!\\)&", row)) == len(COLUMNS) - 1 for row in rows)
    assert r"50\_\% \& \#1 \{a\textbar{}b\} \textless{}i\textgreater{}" in text
    assert r"\textasciitilde{}\textasciicircum{} \textbackslash{}" in text
    assert r"\toprule" in text
    assert r"\caption{Strong scaling. At 2 runners the speed-up is 1.93 [1.90, 1.96].}" in text
    assert r"\label{tab:T2}" in text
    assert r"\begin{tabular}{rrrl}" in text


def test_html_can_be_read_without_a_screen():
    found = Outline(table().to_html())
    assert found.faults == found.stack == []
    tags = [tag for tag, _ in found.seen]
    assert tags.count("caption") == tags.count("table") == 1
    heads = [attributes for tag, attributes in found.seen if tag == "th"]
    assert [head["scope"] for head in heads] == ["col"] * 4 + ["row"] * 4
    region = next(attributes for tag, attributes in found.seen if attributes.get("role") == "region")
    labels = {attributes.get("id") for _, attributes in found.seen}
    assert region["aria-labelledby"] in labels
    assert region["tabindex"] == "0"
    assert found.rows == [4] * 5
    assert "<i>" in found.text  # as text, not as an element
    assert "i" not in tags
    assert "n = 7 runs, 1 failed" in found.text


def test_a_table_without_rows_says_why_in_every_format():
    empty = without_rows("T5", "Phases", "No phases. Run: x", n_failed=2)
    assert empty.empty
    for text in (empty.to_csv(), empty.to_markdown(), empty.to_latex(), Outline(empty.to_html()).text):
        assert "No phases" in text
        assert "2 failed" in text
    assert "tabular" not in empty.to_latex()
    assert "<table" not in empty.to_html()


def test_nullable_types_follow_the_values():
    frame = make_frame({"a": [1, None], "b": [1, 2.5], "c": ["x", None], "d": [True, False], "e": [None, None]})
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "Float64", "string", "boolean", "Float64"]


def test_people_are_shown_so_many_rows_and_told_of_the_rest():
    many = table(frame=make_frame({"why": [f"row {n}." for n in range(1_000)]}), columns=(COLUMNS[-1],))
    for text in (many.to_markdown(), many.to_latex(), Outline(many.to_html()).text):
        assert "row 299." in text
        assert "row 300." not in text
        assert "700 more rows; the CSV has all of them." in text
    assert "row 999." in many.to_csv()
    assert "more rows" not in table().to_markdown()
