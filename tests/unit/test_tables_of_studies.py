"""Every table of invented studies: planted numbers, refusals in words, what is shown apart, and what is missing."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.estimates.results import Results
from analysis.figures import all_figures
from analysis.load import from_folder
from analysis.opened import Study
from analysis.tables.catalogue import TABLES, all_tables, table_of
from study.designs.holdup.certificate import make_certificate
from study.errors import AnalysisError
from tests import holdup
from tests.unit.tables_data import NOISE, amdahl, run, study

SCALES = (1, 2, 4, 8, 16)


def table(name, rows, **changes):
    return table_of(name, Results(study(rows, **changes)))


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
    assert found.conclusion.startswith(
        "From 1 to 16 runners, the speed-up is 8.26 [8.26, 8.26]: 0.516 [0.516, 0.516] per runner and "
        "0.972 [0.972, 0.972] per CPU; T(1) = 3.21 ["
    )
    assert "0.063 at 16 runners and constant" in found.conclusion
    reference = next(line for line in found.to_markdown().splitlines() if line.startswith("| 1 |"))
    assert reference.count("1.00 (by definition)") == 3  # S, E_n, E_P: the reference is no estimate


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (lambda n: 10.0 / n**1.5, "negative at 2, 4 and 8 runners"),
        (lambda n: 1 + 10 / n + 0.3 * n, "overhead grows with the runners"),
        (lambda n: 1 + 10 / n, "a serial part, no growing cost"),
    ],
    ids=["superlinear", "overhead", "serial part"],
)
def test_the_serial_fractions_are_read(seconds, said):
    rows = [
        run(10 * n + seed, runners=n, seed=seed, iteration_time_s=seconds(n) * (1 + 1e-3 * seed * (1 + 1 / n)))
        for n in (1, 2, 4, 8)
        for seed in (1, 2, 3)
    ]
    assert said in table("strong_scaling", rows).conclusion


def test_oversteps_of_the_batch_are_told():
    rows = [run(0), run(1, runners=46, timed_env_steps=5 * 3_238)]
    assert any(
        note.startswith("At 46 runners an iteration held +1.2% env steps against the reference")
        for note in table("strong_scaling", rows).notes
    )


def busy(*, timing="oversubscribed", why="3 processes on 2 cores"):
    return [
        run(10 * n + seed, runners=n, seed=seed, iteration_time_s=4.0 / n, timing=timing, timing_reason=why)
        for n in (1, 2, 8)
        for seed in (1, 2)
    ]


def test_where_no_clock_was_measured_what_ran_is_shown_outside_of_every_claim():
    rows = [*busy(), run(99, runners=46, timing="emulated")]
    hardware = {"space": "cartpole_sweep.yaml", "hardware": {"physical_cpus": 4}}
    found = table("strong_scaling", rows, sheet=hardware)
    assert "provisional" in found.title and "no speed-up and no efficiency" in found.conclusion
    assert column(found, "num_env_runners") == [1, 2, 8] and column(found, "n") == [2, 2, 2]
    assert column(found, "seen") == pytest.approx([800, 1_600, 6_400])
    assert set(found.frame["timing"]) == {"oversubscribed"}
    assert set(found.frame["timing_reason"]) == {"3 processes on 2 cores"}
    assert not {name for name in found.frame if "speed_up" in name or "efficiency" in name or name.endswith("_low")} - {
        "seen_low"
    }
    # Two scales fit on its four cores: they are asked for on the same machine.
    assert "[1,2]" in found.notes[0] and "cartpole_sweep.yaml" in found.notes[0]
    assert Study(study(rows)).estimates("speed_up").empty
    other = table("strong_scaling", busy(timing="tainted", why="other programs"), sheet={})
    assert other.notes[0] == "To measure it: python run_study.py --space waiting.yaml"
    assert table("strong_scaling", busy()[:2]).empty  # one scale


@pytest.mark.parametrize(("pairs", "said"), [((2,), "2 trials of 2 runners step 0.500 ["), ((), "Only one way")])
def test_trials_side_by_side_are_compared_with_the_one_large_trial(pairs, said):
    rows = [
        run(100 * seed + 10 * trials + one, runners=4 // trials, seed=seed, iteration_time_s=trials**2,
            baseline=f"allocation {trials} x {4 // trials}", started=float(seed), ended=seed + 1.0)
        for seed in (1, 2, 3) for trials in (1, *pairs) for one in range(trials)
    ]  # fmt: skip
    assert said in table("trials_against_runners", rows, kind="throughput").conclusion


def test_confounded_cells_get_a_refusal_with_the_differing_field_and_the_command():
    data = study(confounded(), sheet={"space": "lunarlander_nodes.yaml"})
    found, parts = (table_of(name, Results(data)) for name in ("strong_scaling", "runners_and_batch"))
    assert found.empty
    assert found.conclusion.startswith("Efficiency is refused. 1 runner, batch 2,000 against 2 runners, batch 4,000")
    assert "batch (2,000 against 4,000)" in found.conclusion
    assert found.command.startswith("python run_study.py")
    assert parts.empty
    assert "2 runners at batch 2,000" in parts.conclusion
    assert parts.command == found.command
    assert "2.92" not in found.to_markdown()  # the naive ratio is nowhere


def test_with_the_missing_cells_the_ratio_is_taken_apart():
    found = table("runners_and_batch", confounded(complete=True))
    (row,) = found.frame.to_dict("records")
    expected = {"ratio_total": 2.92, "ratio_runners": 2.0, "ratio_workload": 1.46, "ratio_interaction": 1.0}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["arm"] == "1 runner, batch 2,000 -> 2 runners, batch 4,000 (batch: 2,000 -> 4,000)"
    assert found.n == 8 and "2.92 [" in found.conclusion
    (refused,) = (
        note for note in table("strong_scaling", confounded(complete=True)).notes if note.startswith("Refused")
    )
    assert "Taken apart (T7)" in refused


def test_runs_without_a_measured_clock_are_in_no_table_of_times():
    rows = [*amdahl((1, 2)), run(50, runners=46, timing="oversubscribed"), run(52, runners=46, timing="emulated")]
    rows += [run(53, runners=4, timing="tainted", status="failed")]
    found = table("strong_scaling", rows)
    assert 46 not in column(found, "num_env_runners")
    assert dict(found.excluded) == {"emulated": 1, "oversubscribed": 1}
    shown = table("trials", rows).frame.set_index("trial")
    assert shown.loc[[50, 52, 53], "timing"].tolist() == ["oversubscribed", "emulated", "tainted"]


def test_a_folded_run_is_shown_at_the_scale_that_it_stands_for():
    folded = run(1, timing="emulated", stands_for_runners=46, num_cpus=2)
    rows = [run(0), folded]
    assert table("trials", rows).frame.set_index("trial").loc[1, "num_env_runners"] == 46
    assert "at 2 scales from 1 to 46 runners" in table("study_sheet", rows).conclusion


def test_the_phases_name_the_cells_that_wait_for_one_runner():
    times = {"sampling_time_s": 3.0, "slowest_runner_time_s": 3.0, "mean_runner_time_s": 1.0}
    rows = [run(seed, runners=4, seed=seed, iteration_time_s=4.0, **times) for seed in (1, 2, 3)]
    assert table("phases", rows).notes[0] == (
        "Straggler at 4 runners: the mean runner takes 0.333 [0.333, 0.333] of the time of the slowest one."
    )


def test_batches_within_the_time_between_two_evaluations_are_not_ranked():
    def table_of(every, confirmed):
        rows = []
        for batch, steps in ((1_000, 20_000), (4_000, 30_000)):
            for seed in range(1, 6):
                columns = {"env_steps_to_target": steps, "env_steps": 60_000, "stage": confirmed, "digest": "abc"}
                rows.append(
                    run(len(rows), runners=2, batch=batch, seed=seed, iteration_time_s=batch / 1_000, **columns)
                )
        seen = pd.DataFrame(
            [(row["trial"], step, step / 1_000, 0.0) for row in rows for step in range(every, 60_001, every)],
            columns=["trial", "env_steps", "wall_time_s", "eval_return"],
        ).astype({"trial": "Int64", "env_steps": "Int64", "wall_time_s": "Float64", "eval_return": "Float64"})
        return table("steps_to_target", rows, read_evaluations=lambda: seen)

    coarse, fine = table_of(20_000, "confirm"), table_of(5_000, "race")
    assert coarse.conclusion.startswith(
        "The fewest env steps to the target: 20,000 [0, 20,000] at 2 runners, batch 1,000, reached by "
        "5 of 5 runs; cannot be told from 2 runners, batch 4,000. The soonest, in s: "
    )
    assert "up to 20,000 env steps apart" in coarse.notes[-1]
    assert fine.conclusion.startswith(
        "The fewest env steps to the target: 20,000 [15,000, 20,000] at 2 runners, batch 1,000, reached by 5 of 5 runs."
    )
    assert fine.notes[0] == "Runs on seeds that settings were chosen by: the best ones look better than they are."


def test_the_sheet_says_what_is_equal_and_what_differs():
    rows = [*amdahl((1, 2)), run(70, runners=2, workload={"threads": {"torch_threads_main": 2}, "num_epochs": 8})]
    found = table("study_sheet", rows, problems=("Something is missing.",))
    entries = {(group, entry): value for group, entry, value in found.frame.astype(str).itertuples(index=False)}
    assert entries["workload", "differs: num_epochs"] == "4; 8"
    assert entries["software", "versions"] == "ray 2.60.0"
    assert entries["study", "clocks"] == "7 measured"
    assert found.notes == ("Something is missing.",)
    assert found.conclusion == (
        "invented: 7 trials on Waiting-v0 at 2 scales from 1 to 2 runners, 2 workloads; 7 of them with "
        "a measured clock."
    )


BAD_INPUT = {
    "empty": ([], "No run is finished with a measured clock"),
    "one run": (amdahl((4,), blocks=1), "There is one scale only (4 runners, batch 3,200; one measured run)"),
    "one scale": (amdahl((4,)), "There is one scale only (4 runners, batch 3,200; 3 measured runs)"),
    "one seed": (amdahl(blocks=1), "the speed-up is 8.26 (n=1, no interval)"),
    "all failed": (
        [run(i, runners=n, status="failed", timing="tainted") for i, n in enumerate((1, 2, 4))],
        "No run is finished with a measured clock",
    ),
    "mixed fingerprints": (confounded(), "Efficiency is refused"),
    "two machines": (
        [
            run(i, runners=n, seed=s, workload={"cpu_model": m})
            for i, (n, m, s) in enumerate([(1, "A", 1), (2, "B", 1)])
        ],
        "CPU model (A against B)",
    ),
    "still running": (
        [*amdahl((1, 2)), run(90, runners=4, status="running", timing=None), run(91, runners=4, status="interrupted")],
        "From 1 to 2 runners",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gives_every_table_with_a_sentence(name):
    rows, words = BAD_INPUT[name]
    tables = all_tables(Results(study(rows)))
    assert (
        [each.key for each in tables]
        == [key for key, *_ in TABLES.values()]
        == ["T1", "T2", "T3", "T4", "T5", "T7", "T8", "T9", "T11", "trials"]
    )
    assert words in tables[1].conclusion
    for each in tables:
        assert len(each.conclusion) > 20
        assert "Traceback" not in each.conclusion
        for text in (each.to_markdown(), each.to_csv(), each.to_latex(), each.to_html()):
            assert "nan" not in text.lower().replace("nanosecond", "")
            assert "None" not in text.replace(f"{each.conclusion}", "")
        failed = sum(row["status"] == "failed" for row in rows)
        if not each.frame.empty or each.key in ("T2", "T3", "T4", "T5", "T8", "T9", "T11"):
            assert each.n_failed == failed, each.key


def test_of_equal_returns_the_trial_with_the_fewest_steps_to_the_target_comes_first():
    rows = [
        run(number, runners=4, final_return=500.0, env_steps_to_target=steps)
        for number, steps in enumerate((9, 7, None))
    ]
    found = table("trials", [*rows, run(3, runners=4, final_return=501.0)], kind="search")
    assert found.frame["trial"].tolist() == [3, 1, 0, 2]
    assert '>Every trial <span class="above">In every row: seed = 1, ' in found.to_html()


def test_what_the_data_do_not_allow_is_the_sentence_of_its_error():
    data = study(amdahl())
    broken = data.runs.assign(fingerprint=data.runs["fingerprint"].astype(object).map(lambda _: json.dumps([1])))
    found = table_of("strong_scaling", Results(replace(data, runs=broken)))
    assert found.empty and "must be the JSON text of an object" in found.conclusion


# --- models -------------------------------------------------------------------------------------------------------

ALPHA, BETA, COLLECT_STEP, COLLECT_RUNNER = 1e-3, 2e-4, 2e-6, 1e-4
MINIBATCH_S, STEP_S, CONNECT_S = 2e-3, 5e-6, 1e-6
ENVS, MINIBATCH, EPOCHS = 4, 128, 4


def obedient(scales=(1, 2, 4, 8, 16, 32), batches=(2_560, 5_120), *, blocks=3, noise=0.01, **columns):
    """Return runs with the times of the model, each phase with a little noise of its own."""
    rng = np.random.default_rng(7)
    rows = []
    for seed in range(1, blocks + 1):
        for batch in batches:
            for n in scales:
                runner, slower, collect, learning, sync, rest = (
                    time * float(np.exp(noise * rng.standard_normal()))
                    for time in (
                        batch / (n * ENVS) * (ALPHA + BETA * ENVS),
                        1e-4,
                        COLLECT_RUNNER * n + COLLECT_STEP * batch,
                        0.01
                        + CONNECT_S * batch
                        + math.ceil(EPOCHS * batch / MINIBATCH) * (MINIBATCH_S + STEP_S * MINIBATCH),
                        1e-3 + 1e-4 * n,
                        2e-3,
                    )
                )
                sampling = runner + slower + collect
                whole = sampling + learning + sync + rest
                times = {
                    "sampling_time_s": sampling,
                    "slowest_runner_time_s": runner + slower,
                    "mean_runner_time_s": runner,
                    "learning_time_s": learning,
                    "sync_time_s": sync,
                    "rest_time_s": rest,
                }
                environment = {"environment": {"id": "Busy-v0"}}
                row = run(len(rows), runners=n, batch=batch, seed=seed, iteration_time_s=whole, workload=environment)
                rows.append(row | times | {name: value(batch) for name, value in columns.items()})
    return rows


@pytest.fixture(scope="module")
def results():
    return Results(study(obedient()))


def test_a_prediction_has_the_level_that_the_definitions_name(results):
    levels = results.frame.groupby(["quantity", "basis"])["level"].first()
    assert levels["fixed_share", "measured"] == 0.95
    assert levels["env_steps_per_s", "predicted"] == 0.9
    assert "90 %" in table_of("models", results).definitions[-1]


def test_the_phases_say_what_more_runners_can_give(results):
    said = table_of("phases", results).notes[-1]
    most = results.frame.set_index("quantity").loc["most_speed_up", "value"]
    assert said.startswith("With 32 runners ") and f"at most {most:.3f} [" in said


def test_a_model_that_does_not_fit_its_own_runs_predicts_nothing():
    found = Results(study(amdahl()))  # learning time that shrinks with the runners
    assert not {"predicted", "extrapolated"} & set(
        found.frame.loc[found.frame["quantity"] == "env_steps_per_s", "basis"]
    )
    assert "limit_num_env_runners" not in set(found.frame["quantity"])
    with pytest.raises(AnalysisError, match="must describe its own runs"):
        found.predict(3)


def test_models_are_compared_on_cells_that_they_did_not_see(results):
    found = table_of("models", results)
    frame = found.frame.set_index(["split", "model"])
    larger = frame.loc["n <= 16 predicts larger n"]
    assert set(larger.index) == {"iteration time", "Amdahl", "USL"}
    assert larger.loc["iteration time", "median_error"] < 0.05
    assert larger.loc["iteration time", ["num_predicted", "num_held_out"]].tolist() == [2, 2]
    assert "iteration time 0.0" in found.conclusion
    assert found.conclusion.startswith(
        "Median error on held-out cells (`n <= 16 predicts larger n`), the least first: "
    )
    refused = frame.loc[("leave one (k, B, m, E) out", "Amdahl")]
    assert refused["num_predicted"] == 0
    assert "knows one workload only" in refused["why_not"]
    assert found.n == 36
    assert any(note.startswith("USL: contention") for note in found.notes)


@pytest.mark.parametrize("name", ["learning_time_s", "sync_time_s"])
def test_a_phase_without_time_costs_no_other_table_or_figure(name):
    data = study([row | {name: 0.0} for row in amdahl()])
    results = Results(data)
    tables = {each.key: each for each in all_tables(results)}
    assert all_figures(Study(data))
    assert "the speed-up is" in tables["T2"].conclusion
    refused = f"{name}: must be > 0 in every run" in " ".join(tables["T9"].notes)
    assert refused == (name == "learning_time_s")


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
    return table_of("certificate", Results(data))


def test_the_arms_are_those_of_the_certificate(folder, certified):
    certificate = make_certificate(folder)
    frame = certified.frame
    assert not frame["arm"].str.contains("winner|@|_|folded").any()
    assert frame["num_env_runners"].tolist() == [arm["scale"] for arm in certificate["arms"].values()]
    for shown, arm in zip(frame.index, certificate["arms"].values(), strict=True):
        assert frame.loc[shown, "arm"].endswith(", one RLlib runner with all environments") == arm["folded"]
        assert frame.loc[shown, ["score", "score_low", "score_high"]].tolist() == pytest.approx(
            [arm["score"]["value"], arm["score"]["low"], arm["score"]["high"]]
        )
        counts = ["n", "n_failed", "n_censored"]
        assert frame.loc[shown, counts].tolist() == [arm[name] for name in counts]
    assert certified.n == sum(arm["n"] for arm in certificate["arms"].values())


def test_the_verdict_is_the_conclusion_and_its_laws_are_notes(folder, certified):
    verdict = make_certificate(folder)["verdict"]
    assert certified.conclusion.startswith(
        f"At 6 runners the chosen setting {verdict['sentence']}. Its mean score less"
    )
    assert ", ∞), n=13." in certified.conclusion  # a lower bound: one-sided; the small scale needs no second half
    laws = [note for note in certified.notes if note.startswith(("kept: ", "BROKEN: ", "not judged: "))]
    assert len(laws) == len(verdict["checks"])
    assert all(check["law"] in law for check, law in zip(verdict["checks"].values(), laws, strict=True))


def test_no_number_of_the_table_stands_without_interval_or_n(certified):
    assert "1,200 (n=8, no interval)" in certified.to_markdown()


def test_a_written_certificate_is_read_and_not_made_again(folder, data, tmp_path):
    certificate = make_certificate(folder)
    certificate["verdict"]["sentence"] = "was read from the file"
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    found = table_of("certificate", Results(replace(data, source=str(tmp_path), folder=None)))
    assert "the chosen setting was read from the file" in found.conclusion


def test_a_study_that_is_not_confirmed_says_how_to_go_on(tmp_path):
    spec = holdup.holdup_spec()
    records = holdup.study_records(spec)
    begun = holdup.write_study(tmp_path / "begun", spec, records[: len(records) // 4])
    found = table_of("certificate", Results(from_folder(begun.path)))
    assert found.empty
    assert "a certificate needs a confirmed study, got one at the stage" in found.conclusion
    assert "--resume" in found.conclusion


def test_a_damaged_certificate_is_told(data, tmp_path):
    (tmp_path / "certificate.json").write_text('{"verdict": ')
    assert table_of("certificate", Results(replace(data, source=str(tmp_path), folder=None))).conclusion.startswith(
        "No certificate. "
    )


@pytest.mark.parametrize("content", ["{}", "[]", '{"verdict": 1}'])
def test_a_damaged_certificate_costs_neither_estimates_nor_answer(data, tmp_path, content):
    (tmp_path / "certificate.json").write_text(content)
    opened = Study(replace(data, source=str(tmp_path), folder=None))
    assert "got a damaged file" in opened.table("certificate").conclusion
    assert "score" in set(opened.estimates()["quantity"])
    (missing,) = opened.answer().unknown
    assert missing.text == "whether a setting holds up: certificate.json is damaged."
    assert missing.command.startswith("python -m study certificate write ")


def test_other_studies_have_none():
    assert "asks for no setting that holds up" in table_of("certificate", Results(study(amdahl((1,))))).conclusion
