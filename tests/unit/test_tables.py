"""Tables as values and as text: honest numbers, five formats that say the same, nothing that breaks a reader."""

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.tables.numbers import estimate
from analysis.tables.table import Table, TableColumn, table_of, without_rows
from study.statistics import Estimate, without_interval
from tests.unit.test_report import Outline

NASTY = '50_% & #1 {a|b} <i> ~^ \\ "q"\nline'
INFINITE = float("inf")
EXACT = Estimate(value=1.0, low=1.0, high=1.0, n=1, level=0.95, method="by definition")
KNOWN = Estimate(value=1.9321, low=1.9, high=1.96, n=3, level=0.95, method="t")
SINGLE = without_interval(3.4567, n=1, level=0.95, method="t")
COLUMNS = (
    TableColumn("num_env_runners", "1", "n", "Runners."),
    TableColumn("speed_up", "1", "S", "T(n_ref) / T(n).", estimate=True),
    TableColumn("iteration_time_s", "s", "T", "Seconds."),
    TableColumn("why", "", "", "Words."),
    TableColumn("never", "1", "never", "Without any value."),
)
ROWS = [
    {"num_env_runners": 1, "speed_up": EXACT, "iteration_time_s": 2.0, "why": "plain"},
    {"num_env_runners": 2, "speed_up": KNOWN, "iteration_time_s": 1.0351, "why": NASTY},
    {"num_env_runners": 4, "speed_up": SINGLE, "iteration_time_s": 1 / 3},
    {"num_env_runners": 1000, "why": ""},
]
TABLE = table_of(
    "T2",
    "Strong scaling",
    COLUMNS,
    ROWS,
    "At 2 runners the speed-up is 1.93 [1.90, 1.96].",
    n=7,
    n_failed=1,
    excluded={"oversubscribed": 2, "emulated": 0},
    definitions=("S(n) = T(n_ref) / T(n).",),
    notes=("A note with 5 % & more.",),
)


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


def test_markdown_is_as_it_was_looked_at():
    assert TABLE.to_markdown().startswith(
        """### T2. Strong scaling

At 2 runners the speed-up is 1.93 [1.90, 1.96].

| n | S | T (s) | why |
| ---: | ---: | ---: | :--- |
| 1 | 1.00 (by definition) | 2.00 | plain |
| 2 | 1.93 [1.90, 1.96] | 1.04 | 50_% & #1 {a\\|b} &lt;i> ~^ \\ "q" line |
| 4 | 3.46 (one run) | 0.333 | - |
| 1,000 | - | - |  |
"""
    )


def test_csv_keeps_every_digit_and_says_the_rest_above():
    text = TABLE.to_csv()
    back = pd.read_csv(io.StringIO(text), comment="#")
    assert list(back) == [*TABLE.frame]
    assert back["iteration_time_s"].tolist()[:3] == [2.0, 1.0351, 1 / 3]
    assert back["speed_up"].tolist()[:3] == [1.0, 1.9321, 3.4567]
    ends = back[["speed_up_low", "speed_up_high"]]
    assert ends.loc[1].tolist() == [1.9, 1.96]
    assert ends.isna().all(axis=1).tolist() == [True, False, True, True]
    assert back["why"][1] == NASTY
    assert "# n = 7 runs, 1 failed; left out: 2 (oversubscribed)." in text.splitlines()
    assert "# At 2 runners the speed-up is 1.93 [1.90, 1.96]." in text.splitlines()
    assert "# speed_up [1]: T(n_ref) / T(n)." in text.splitlines()


def test_html_can_be_read_without_a_screen():
    found = Outline(TABLE.to_html())
    assert found.faults == found.stack == []
    tags = [tag for tag, _ in found.seen]
    assert tags.count("caption") == tags.count("table") == 1
    assert "i" not in tags and "<i>" in found.text  # as text, not as an element
    assert [named["scope"] for tag, named in found.seen if tag == "th"] == ["col"] * 4 + ["row"] * 4
    region = next(named for _, named in found.seen if named.get("role") == "region")
    assert region["aria-labelledby"] in {named.get("id") for _, named in found.seen}
    assert region["tabindex"] == "0"
    assert found.rows == [4] * 5
    assert "n = 7 runs, 1 failed" in found.text


@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_cuts_nothing(width):
    text = TABLE.to_text(width)
    assert max(map(len, text.splitlines())) <= width
    assert ("[1.90, 1.96]" in text.partition("\n  ")[2]) == (width == 100), "a narrow one leaves the intervals out"
    assert "…" not in text and "line" in text


def test_a_table_without_rows_says_why_in_every_format():
    empty = without_rows("T2", "Strong scaling", "Nothing ran.", "x", n_failed=2)
    assert empty.empty
    for text in (empty.to_csv(), empty.to_markdown(), empty.to_latex(), Outline(empty.to_html()).text, repr(empty)):
        assert "Nothing ran. Run: x" in text
        assert "2 failed" in text
    assert "tabular" not in empty.to_latex()
    assert "<table" not in empty.to_html()


def test_people_are_shown_so_many_rows_and_told_of_the_rest():
    frame = pd.DataFrame({"why": [f"row {n}." for n in range(1_000)]})
    many = Table(key="T2", title="", frame=frame, columns=(COLUMNS[3],), conclusion="")
    for text in (many.to_markdown(), many.to_latex(), Outline(many.to_html()).text):
        assert "row 299." in text
        assert "row 300." not in text
        assert "700 more rows; the CSV has all of them." in text
    assert "row 999." in many.to_csv()
