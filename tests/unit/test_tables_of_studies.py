"""T1 to T8 of invented studies: the planted numbers, the refusals in words, and what is shown apart."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.estimates.results import Results
from analysis.tables.catalogue import TABLES, all_tables
from analysis.tables.learning import steps_to_target
from analysis.tables.scaling import decomposition, strong_scaling, trials_against_runners
from analysis.tables.sheet import every_trial, study_sheet
from analysis.tables.times import phases
from tests.unit.tables_data import NOISE, amdahl, run, study

SCALES = (1, 2, 4, 8, 16)


def column(table, name):
    return [
        None if value is None else float(value)
        for value in table.frame[name].astype(object).where(table.frame[name].notna(), None)
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
    table = strong_scaling(Results(study(amdahl(SCALES))))
    times = [0.2 + 3.0 / n for n in SCALES]
    speed_up = [times[0] / each for each in times]
    assert column(table, "num_env_runners") == list(SCALES)
    assert column(table, "speed_up") == pytest.approx(speed_up)
    assert column(table, "efficiency_n") == pytest.approx([s / n for s, n in zip(speed_up, SCALES, strict=True)])
    assert column(table, "efficiency_p") == pytest.approx(
        [s * 2 / (n + 1) for s, n in zip(speed_up, SCALES, strict=True)]  # P = n + 1
    )
    assert column(table, "karp_flatt")[1:] == pytest.approx([0.2 / 3.2] * 4)
    assert column(table, "iteration_time_s")[0] == pytest.approx(3.2 * np.mean(NOISE[:3]))
    assert column(table, "n") == [3] * 5
    assert table.conclusion.startswith(
        "From 1 to 16 runners, the speed-up is 8.26 [8.26, 8.26]: 0.516 [0.516, 0.516] per runner and "
        "0.972 [0.972, 0.972] per CPU; T(1) = 3.21 ["
    )
    assert table.notes[0].startswith("n_ref = 1, T(n_ref) = 3.21 [")


def test_the_reference_row_is_no_estimate():
    first = next(
        line for line in strong_scaling(Results(study(amdahl()))).to_markdown().splitlines() if "by definition" in line
    )
    assert first.startswith("| 1 | 1.00")
    assert first.count("1.00 (by definition)") == 3  # S, E_n, E_P


def test_where_environments_wait_there_is_no_efficiency_per_cpu():
    waits = {"environment": {"id": "Waiting-v0", "step_wait_ms": 2.0}}
    rows = [run(at, runners=n, iteration_time_s=4.0 / n, workload=waits) for at, n in enumerate((1, 2, 4))]
    table = strong_scaling(Results(study(rows)))
    assert column(table, "efficiency_n") == pytest.approx([1, 1, 1])
    assert not {name for name in table.frame if name.startswith(("efficiency_p", "marginal"))}
    assert "per CPU" not in table.conclusion


@pytest.mark.parametrize(("pairs", "said"), [((2,), "2 trials of 2 runners step 0.500 ["), ((), "Only one way")])
def test_trials_side_by_side_are_compared_with_the_one_large_trial(pairs, said):
    rows = [
        run(100 * seed + 10 * trials + one, runners=4 // trials, seed=seed, iteration_time_s=trials**2,
            baseline=f"allocation {trials} x {4 // trials}", started=float(seed), ended=seed + 1.0)
        for seed in (1, 2, 3) for trials in (1, *pairs) for one in range(trials)
    ]  # fmt: skip
    assert said in trials_against_runners(Results(study(rows, kind="throughput"))).conclusion


def test_confounded_cells_get_a_refusal_with_the_differing_field_and_the_command():
    data = study(confounded(), sheet={"space": "lunarlander_nodes.yaml"})
    table, parts = strong_scaling(Results(data)), decomposition(Results(data))
    assert table.empty
    assert table.conclusion.startswith("Efficiency is refused. 1 runner, batch 2,000 against 2 runners, batch 4,000")
    assert "batch (2,000 against 4,000)" in table.conclusion
    assert table.command.startswith("python run_study.py")
    assert parts.empty
    assert "2 runners at batch 2,000" in parts.conclusion
    assert parts.command == table.command
    assert "2.92" not in table.to_markdown()  # the naive ratio is nowhere


def test_with_the_missing_cells_the_ratio_is_taken_apart():
    data = study(confounded(complete=True))
    table = decomposition(Results(data))
    factors = dict(zip(table.frame["part"], table.frame["factor"].astype(float), strict=True))
    logs = dict(zip(table.frame["part"], table.frame["log"].astype(object), strict=True))
    assert factors["total"] == pytest.approx(2.92)
    assert factors["runners"] == pytest.approx(2.0)
    assert factors["workload"] == pytest.approx(1.46)
    assert factors["interaction"] == pytest.approx(1.0)
    assert logs["runners"] + logs["workload"] == pytest.approx(logs["total"])
    assert table.n == 8
    assert "2.92 [" in table.conclusion
    refused = [note for note in strong_scaling(Results(data)).notes if note.startswith("Refused")]
    assert len(refused) == 1
    assert "Taken apart (T7)" in refused[0]


def test_runs_without_a_measured_clock_are_in_no_table_of_times():
    rows = [*amdahl((1, 2)), run(50, runners=46, timing="oversubscribed"), run(52, runners=46, timing="emulated")]
    rows += [run(53, runners=4, timing="tainted", status="failed")]
    data = study(rows)
    table = strong_scaling(Results(data))
    assert 46 not in column(table, "num_env_runners")
    assert dict(table.excluded) == {"emulated": 1, "oversubscribed": 1}
    shown = every_trial(Results(data)).frame.set_index("trial")
    assert shown.loc[[50, 52, 53], "timing"].tolist() == ["oversubscribed", "emulated", "tainted"]


def test_a_folded_run_is_shown_at_the_scale_that_it_stands_for():
    folded = run(1, timing="emulated", stands_for_runners=46, num_cpus=2)
    data = study([run(0), folded])
    assert every_trial(Results(data)).frame.set_index("trial").loc[1, "num_env_runners"] == 46
    assert "at 2 scales from 1 to 46 runners" in study_sheet(Results(data)).conclusion


def test_the_phases_name_the_cells_that_wait_for_one_runner():
    times = {"sampling_time_s": 3.0, "slowest_runner_time_s": 3.0, "mean_runner_time_s": 1.0}
    rows = [run(seed, runners=4, seed=seed, iteration_time_s=4.0, **times) for seed in (1, 2, 3)]
    assert phases(Results(study(rows))).notes[0] == (
        "Straggler at 4 runners: the slowest one takes 3.00 [3.00, 3.00] times as long as the mean one."
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
        return steps_to_target(Results(study(rows, read_evaluations=lambda: seen)))

    coarse, fine = table_of(20_000, "confirm"), table_of(5_000, "race")
    assert coarse.conclusion.startswith(
        "The fewest env steps to the target: 20,000 [0, 20,000] at 2 runners, batch 1,000, reached by "
        "5 of 5 runs; cannot be told from 2 runners, batch 4,000. The soonest, in s: "
    )
    assert "up to 20,000 env steps apart" in coarse.notes[0]
    assert fine.conclusion.startswith(
        "The fewest env steps to the target: 20,000 [15,000, 20,000] at 2 runners, batch 1,000, reached by 5 of 5 runs."
    )
    assert fine.notes[0] == "Runs on seeds that settings were chosen by: the best ones look better than they are."


def test_the_sheet_says_what_is_equal_and_what_differs():
    rows = [*amdahl((1, 2)), run(70, runners=2, workload={"threads": {"torch_threads_main": 2}, "num_epochs": 8})]
    table = study_sheet(Results(study(rows, problems=("Something is missing.",))))
    entries = {(group, entry): value for group, entry, value in table.frame.astype(str).itertuples(index=False)}
    assert entries["workload", "differs: num_epochs"] == "4; 8"
    assert entries["software", "versions"] == "ray 2.60.0"
    assert entries["study", "clocks"] == "7 measured"
    assert table.notes == ("Something is missing.",)
    assert table.conclusion == (
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
        [table.key for table in tables]
        == [key for key, *_ in TABLES.values()]
        == ["T1", "T2", "T3", "T4", "T5", "T7", "T8", "T9", "T11", "trials"]
    )
    assert words in tables[1].conclusion
    for table in tables:
        assert len(table.conclusion) > 20
        assert "Traceback" not in table.conclusion
        for text in (table.to_markdown(), table.to_csv(), table.to_latex(), table.to_html()):
            assert "nan" not in text.lower().replace("nanosecond", "")
            assert "None" not in text.replace(f"{table.conclusion}", "")
        failed = sum(row["status"] == "failed" for row in rows)
        if not table.frame.empty or table.key in ("T2", "T3", "T4", "T5", "T8", "T9", "T11"):
            assert table.n_failed == failed, table.key


def test_of_equal_returns_the_trial_with_the_fewest_steps_to_the_target_comes_first():
    rows = [
        run(number, runners=4, final_return=500.0, env_steps_to_target=steps)
        for number, steps in enumerate((9, 7, None))
    ]
    table = every_trial(Results(study([*rows, run(3, runners=4, final_return=501.0)], kind="search")))
    assert table.frame["trial"].tolist() == [3, 1, 0, 2]
    assert '>Every trial <span class="above">In every row: seed = 1, ' in table.to_html()


def test_results_are_computed_once_for_all_tables():
    results = Results(study(amdahl((1, 2))))
    all_tables(results)
    assert results.strong is results.strong
    assert {"strong", "weak", "phases", "allocation", "to_target", "models"} <= set(vars(results))


def test_what_the_data_do_not_allow_is_the_sentence_of_its_error():
    data = study(amdahl())
    broken = data.runs.assign(fingerprint=data.runs["fingerprint"].astype(object).map(lambda _: json.dumps([1])))
    data = study([], name="broken")
    object.__setattr__(data, "runs", broken)
    table = strong_scaling(Results(data))
    assert table.empty
    assert "must be the JSON text of an object" in table.conclusion
