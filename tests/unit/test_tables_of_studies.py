"""Every table of invented studies: planted numbers, refusals in words, what is shown apart, and what is missing."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.load import from_folder
from analysis.opened import Study
from analysis.tables.catalogue import TABLES, table_of
from study.designs.holdup.certificate import make_certificate
from tests import holdup
from tests.planted import NOISE, amdahl, run, study

SCALES = (1, 2, 4, 8, 16)


def table(name, rows, **changes):
    return table_of(name, Study(study(rows, **changes)))


def column(found, name):
    return [
        None if value is None else float(value)
        for value in found.frame[name].astype(object).where(found.frame[name].notna(), None)
    ]


def confounded(*, complete=False, blocks=2):
    """Return 1 runner at batch 2,000 against 2 at 4,000; 2.92 times the rate, 1.46 of it due to the batch."""
    rates = {(1, 2_000): 1_000.0, (2, 4_000): 2_920.0}
    if complete:
        rates |= {(2, 2_000): 2_000.0, (1, 4_000): 1_460.0}
    cells = [(seed, n, batch, rate) for seed in range(1, blocks + 1) for (n, batch), rate in rates.items()]
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


def busy(timing="oversubscribed", why="3 processes on 2 cores"):
    return [
        run(10 * n + seed, runners=n, seed=seed, iteration_time_s=4.0 / n, timing=timing, timing_reason=why)
        for n in (1, 2, 8)
        for seed in (1, 2, 2)
    ]


def test_where_no_clock_was_measured_what_ran_is_shown_outside_of_every_claim():
    rows = [*busy(), run(99, runners=46, timing="emulated")]
    hardware = {"space": "cartpole_sweep.yaml", "hardware": {"physical_cpus": 4}}
    found = table("strong_scaling", rows, sheet=hardware)
    assert "provisional" in found.title and "no speed-up and no efficiency" in found.conclusion
    assert column(found, "num_env_runners") == [1, 2, 8]
    assert column(found, "n") == [2, 2, 2], "two runs of one seed are one"
    assert column(found, "seen") == pytest.approx([800, 1_600, 6_400])
    assert set(found.frame["timing"]) == {"oversubscribed"}
    assert set(found.frame["timing_reason"]) == {"3 processes on 2 cores"}
    assert not any("speed_up" in name or "efficiency" in name for name in found.frame)
    # Two scales fit on its four cores: they are asked for on the same machine.
    assert "[1,2]" in found.command and "cartpole_sweep.yaml" in found.command
    assert Study(study(rows)).estimates("speed_up").empty
    assert table("strong_scaling", busy("tainted"), sheet={}).command == "python run_study.py --space waiting.yaml"
    assert table("strong_scaling", [row for row in busy() if row["num_env_runners"] == 1]).empty


def test_confounded_cells_are_refused_until_the_missing_cells_take_the_ratio_apart():
    data = study(confounded(), sheet={"space": "lunarlander_nodes.yaml"})
    found = table_of("strong_scaling", Study(data))
    assert found.empty
    assert "batch (2,000 against 4,000)" in found.conclusion
    assert "2 runners at batch 2,000" in found.conclusion
    assert found.command.startswith("python run_study.py")
    assert "2.92" not in found.to_markdown()  # the naive ratio is nowhere
    whole = Study(study(confounded(complete=True)))
    expected = {"ratio_total": 2.92, "ratio_runners": 2.0, "ratio_workload": 1.46}
    assert whole.estimates(expected).set_index("quantity")["value"].to_dict() == pytest.approx(expected)
    assert "give 2.00" in " ".join(whole.table("strong_scaling").notes)


def test_batches_within_the_time_between_two_evaluations_are_not_ranked():
    def table_of(every, confirmed):
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

    coarse, fine = table_of(20_000, "confirm"), table_of(5_000, "race")
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


@pytest.fixture(scope="module")
def data(folder):
    return from_folder(folder.path)


@pytest.fixture(scope="module")
def certified(data):
    return table_of("certificate", Study(data))


def test_the_arms_are_those_of_the_certificate(folder, certified):
    certificate = make_certificate(folder)
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
    found = table_of("certificate", Study(from_folder(begun.path)))
    assert found.empty
    assert "a certificate needs a confirmed study, got one at the stage" in found.conclusion
    assert "--resume" in found.conclusion


@pytest.mark.parametrize("content", ['{"verdict": ', "[]", '{"verdict": 1}'])
def test_a_damaged_certificate_costs_neither_estimates_nor_answer(data, tmp_path, content):
    (tmp_path / "certificate.json").write_text(content)
    opened = Study(replace(data, source=str(tmp_path), folder=None))
    assert opened.table("certificate").empty
    assert "score" in set(opened.estimates()["quantity"])
    assert len(opened.answer().unknown) == 1
