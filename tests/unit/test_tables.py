"""Tables as values and as text: honest numbers, five formats that say the same, nothing that breaks a reader."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load import from_folder
from analysis.opened import Study
from analysis.tables import TABLES
from analysis.tables import table_of as table_by_name
from analysis.tables.table import Table, TableColumn, estimate, table_of, without_rows
from study.designs.holdup.certificate import make_certificate
from study.statistics import Estimate, without_interval
from tests import holdup
from tests.planted import NOISE, amdahl, run, study
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


def test_a_terminal_cuts_nothing_and_people_are_told_of_rows_that_are_not_shown():
    text = TABLE.to_text(40)
    assert max(map(len, text.splitlines())) <= 40
    assert "[1.90, 1.96]" not in text.partition("\n  ")[2], "a narrow one leaves the intervals out"
    frame = pd.DataFrame({"why": [f"row {n}." for n in range(1_000)]})
    many = Table(key="T2", title="", frame=frame, columns=(COLUMNS[3],), conclusion="")
    for text in (many.to_markdown(), many.to_latex(), Outline(many.to_html()).text):
        assert ("row 299." in text, "row 300." in text) == (True, False)
        assert "700 more rows; the CSV has all of them." in text
    assert "row 999." in many.to_csv()


def test_a_table_without_rows_says_why_in_every_format():
    empty = without_rows("T2", "Strong scaling", "Nothing ran.", "x", n_failed=2)
    assert empty.empty
    for text in (empty.to_csv(), empty.to_markdown(), empty.to_latex(), Outline(empty.to_html()).text, repr(empty)):
        assert "Nothing ran. Run: x" in text
        assert "2 failed" in text
    assert "tabular" not in empty.to_latex()
    assert r"50\_\% \& \#1" in TABLE.to_latex()
    assert "<table" not in empty.to_html()


# --- of studies ---------------------------------------------------------------------------------------------------

SCALES = (1, 2, 4, 8, 16)


def table(name, rows, **changes):
    return table_by_name(name, Study(study(rows, **changes)))


def column(found, name):
    return [
        None if value is None else float(value)
        for value in found.frame[name].astype(object).where(found.frame[name].notna(), None)
    ]


def confounded(*, complete=False):
    """Return 1 runner at batch 2,000 against 2 at 4,000; 2.92 times the rate, 1.46 of it due to the batch."""
    rates = {(1, 2_000): 1_000.0, (2, 4_000): 2_920.0}
    if complete:
        rates |= {(2, 2_000): 2_000.0, (1, 4_000): 1_460.0}
    cells = [(seed, n, batch, rate) for seed in (1, 2) for (n, batch), rate in rates.items()]
    return [
        run(trial, runners=n, batch=batch, seed=seed, iteration_time_s=NOISE[seed - 1] * batch / rate)
        for trial, (seed, n, batch, rate) in enumerate(cells)
    ]


def test_strong_scaling_shows_the_planted_speed_up_and_efficiencies():
    found = table("strong_scaling", amdahl(SCALES))
    times = [0.2 + 3.0 / n for n in SCALES]
    speed_up = [times[0] / each for each in times]
    assert column(found, "num_env_runners") == list(SCALES)
    assert column(found, "speed_up") == pytest.approx(speed_up)
    expected = [s / n for s, n in zip(speed_up, SCALES, strict=True)]
    assert column(found, "efficiency_per_runner") == pytest.approx(expected)
    expected = [s * 2 / (n + 1) for s, n in zip(speed_up, SCALES, strict=True)]  # P = n + 1
    assert column(found, "efficiency_per_cpu") == pytest.approx(expected)
    assert column(found, "karp_flatt")[1:] == pytest.approx([0.2 / 3.2] * 4)
    assert column(found, "iteration_time_s")[0] == pytest.approx(3.2 * np.mean(NOISE[:3]))
    assert column(found, "n") == [3] * 5
    reference = next(line for line in found.to_markdown().splitlines() if line.startswith("| 1 |"))
    assert reference.count("1.00 (by definition)") == 3  # S, E_n, E_P: the reference is no estimate


def test_what_ran_without_a_measured_clock_is_shown_apart_with_its_cause_and_what_would_measure_it():
    def busy(timing="oversubscribed", scales=(1, 2, 8)):
        why = {"timing": timing, "timing_reason": "3 processes on 2 cores"}
        cells = [(n, seed) for n in scales for seed in (1, 2, 2)]
        return [run(at, runners=n, seed=seed, iteration_time_s=4.0 / n, **why) for at, (n, seed) in enumerate(cells)]

    hardware = {"space": "cartpole_sweep.yaml", "hardware": {"physical_cpus": 4}}
    found = table("strong_scaling", [*busy(), run(99, runners=46, timing="emulated")], sheet=hardware)
    assert "provisional" in found.title and "no speed-up and no efficiency" in found.conclusion
    assert column(found, "num_env_runners") == [1, 2, 8]
    assert column(found, "n") == [2, 2, 2], "two runs of one seed are one"
    assert column(found, "seen") == pytest.approx([800, 1_600, 6_400])
    assert set(found.frame["timing"]) == {"oversubscribed"}
    assert set(found.frame["timing_reason"]) == {"3 processes on 2 cores"}
    assert not any("speed_up" in name or "efficiency" in name for name in found.frame)
    assert "[1, 2]" in found.command and "cartpole_sweep.yaml" in found.command, "two scales fit on its four cores"
    assert Study(study(busy())).estimates("speed_up").empty
    assert table("strong_scaling", busy("tainted"), sheet={}).command == "python run_study.py --space waiting.yaml"
    assert table("strong_scaling", busy(scales=(1,))).empty


def test_confounded_cells_are_refused_until_the_missing_cells_take_the_ratio_apart():
    found = table("strong_scaling", confounded())
    assert found.empty and not found.command
    assert "batch (2,000 against 4,000)" in found.conclusion
    assert "2 runners at batch 2,000" in found.conclusion
    assert "2.92" not in found.to_markdown()  # the naive ratio is nowhere
    whole = Study(study(confounded(complete=True)))
    expected = {"ratio_total": 2.92, "ratio_runners": 2.0, "ratio_workload": 1.46}
    assert whole.estimates(expected).set_index("quantity")["value"].to_dict() == pytest.approx(expected)
    assert "give 2.00" in " ".join(whole.table("strong_scaling").notes)


def test_batches_within_the_time_between_two_evaluations_are_not_ranked():
    def table_of_(every, confirmed):
        rows = []
        for batch, steps in ((1_000, 20_000), (4_000, 30_000)):
            for seed in range(1, 6):
                columns = {"env_steps_to_target": steps, "env_steps": 60_000, "stage": confirmed, "digest": str(batch)}
                rows.append(
                    run(len(rows), runners=2, batch=batch, seed=seed, iteration_time_s=batch / 1_000, **columns)
                )
        seen = pd.DataFrame(
            [(row["trial"], step, step / 1_000, 0.0) for row in rows for step in range(every, 60_001, every)],
            columns=["trial", "env_steps", "wall_time_s", "eval_return"],
        ).astype({"trial": "Int64", "env_steps": "Int64", "wall_time_s": "Float64", "eval_return": "Float64"})
        return table("steps_to_target", rows, evaluations=lambda: seen)

    coarse, fine = table_of_(20_000, "confirm"), table_of_(5_000, "race")
    assert "20,000 [0, 20,000] at 2 runners, batch 1,000" in coarse.conclusion
    assert "cannot be told from 1 of the other 1 rows" in coarse.conclusion
    assert "20,000 [15,000, 20,000] at 2 runners, batch 1,000" in fine.conclusion
    assert fine.notes[0] == "Runs on seeds that settings were chosen by: the best ones look better than they are."


BAD_INPUT = {
    "empty": ([], "No run is finished with a measured clock"),
    "one scale": (amdahl((4,)), "There is one scale only"),
    "one seed": (amdahl(blocks=1), "the speed-up is 8.26 (one run)"),
    "all failed": (
        [run(i, runners=n, status="failed", timing="tainted") for i, n in enumerate((1, 2, 4))],
        "No run is finished with a measured clock",
    ),
    "still running": (
        [*amdahl((1, 2)), run(90, runners=4, status="running", timing=None), run(91, runners=4, status="interrupted")],
        "From 1 to 2 runners",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gives_every_table_with_a_sentence(name):
    rows, words = BAD_INPUT[name]
    tables = [*Study(study(rows)).tables.values()]
    assert [each.key for each in tables] == [key for key, *_ in TABLES.values()]
    assert words in tables[0].conclusion
    failed = sum(row["status"] == "failed" for row in rows)
    for each in tables:
        assert len(each.conclusion) > 20
        for text in (each.to_markdown(), each.to_csv(), each.to_latex(), each.to_html()):
            assert "nan" not in text.lower()
            assert "None" not in text.replace(each.conclusion, "")
        if not each.frame.empty or each.key in ("T2", "T3", "T5", "T8", "T11"):
            assert each.n_failed == failed, each.key


# --- hold-up ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = holdup.holdup_spec()
    return holdup.write_study(tmp_path_factory.mktemp("study") / "demo", spec, holdup.study_records(spec))


def test_the_arms_are_those_of_the_certificate(folder):
    certificate, certified = make_certificate(folder), table_by_name("certificate", Study(from_folder(folder.path)))
    frame = certified.frame
    assert not frame["arm"].str.contains("winner|@|_").any()
    assert frame["num_env_runners"].tolist() == [arm["scale"] for arm in certificate["arms"].values()]
    for shown, arm in zip(frame.index, certificate["arms"].values(), strict=True):
        assert frame.loc[shown, "arm"].endswith("RLlib's own engine") == (arm["variant"] == "stock")
        assert frame.loc[shown, ["score", "score_low", "score_high"]].tolist() == pytest.approx(
            [arm["score"]["value"], arm["score"]["low"], arm["score"]["high"]]
        )
        counts = ["n", "n_failed", "n_censored"]
        assert frame.loc[shown, counts].tolist() == [arm[name] for name in counts]
    assert certified.n == sum(arm["n"] for arm in certificate["arms"].values())


def test_a_study_that_is_not_confirmed_says_how_to_go_on(tmp_path):
    spec = holdup.holdup_spec()
    records = holdup.study_records(spec)
    begun = holdup.write_study(tmp_path / "begun", spec, records[: len(records) // 4])
    found = table_by_name("certificate", Study(from_folder(begun.path)))
    assert found.empty
    assert "a certificate needs a confirmed study, got one at the stage" in found.conclusion
    assert "--resume" in found.conclusion


@pytest.mark.parametrize("content", ['{"verdict": ', "[]", '{"verdict": 1}'])
def test_a_damaged_certificate_costs_neither_estimates_nor_answer(folder, tmp_path, content):
    (tmp_path / "certificate.json").write_text(content)
    opened = Study(replace(from_folder(folder.path), source=str(tmp_path), folder=None))
    assert opened.table("certificate").empty
    assert "score" in set(opened.estimates()["quantity"])
    assert len(opened.answer().unknown) == 1
