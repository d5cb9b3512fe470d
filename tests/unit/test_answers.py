"""What a study says first: the value, its three writers, and an answer for every kind and state of a study."""

import re
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.answers.answer import cpu_hours, took
from analysis.estimates import QUANTITIES
from analysis.figures import FIGURES
from analysis.opened import Study
from analysis.tables.table import number
from study.records.ledger import Ledger
from tests import synthetic
from tests.examples import example
from tests.planted import run
from tests.planted import study as built_study
from tests.spaces import spec
from tests.values import replace

EXAMPLES = sorted(folder.name for folder in Path(analysis.__file__).parent.glob("example_*"))


@pytest.fixture(scope="module")
def throughput():
    return example("example_throughput").answer(price_per_cpu_hour=0.05)


@pytest.fixture(scope="module")
def holdup():
    return example("example_study").answer()


def test_a_throughput_study_says_its_gain_and_a_price_list(throughput):
    gain = "8 runners finish 3.86 times as many steps per hour as 2: 0.964 of the ideal."
    assert throughput.sentence.startswith(gain)
    prices = throughput.prices.frame
    assert prices["num_env_runners"].max() == 16  # nothing beyond twice the largest measured scale
    measured = prices[prices["basis"] == "measured"].set_index("num_env_runners")
    assert list(measured.index) == [2, 4, 8]
    hours = 1e6 / measured["env_steps_per_s"] / 3600
    assert np.allclose(measured["hours_per_million_steps"], hours)
    assert np.allclose(measured["hours_per_million_steps_low"], 1e6 / measured["env_steps_per_s_high"] / 3600)
    assert np.allclose(measured["cost"], hours * measured["num_cpus"] * 0.05)


def test_what_a_study_took_counts_the_attempts_that_were_repeated():
    ledger = Ledger()
    for attempt, status in enumerate(("interrupted", "interrupted", "finished"), 1):
        end = synthetic.ended(0, status, attempt)
        costs = {"cpu_s_reserved": 3600.0 * attempt, "cpu_s_spent": 1800.0 * attempt}
        ledger.apply(synthetic.started(0, attempt), 0.0)
        ledger.apply(replace(end, summary=end.summary | costs), 1.0)
    data = built_study([run(0, attempt=3, cpu_s_reserved=3 * 3600.0)], spec=spec())
    assert took(replace(data, ledger=ledger)) == "The study took 6.00 CPU-hours"
    shared = replace(data, runs=data.runs.assign(timing="oversubscribed"))
    assert took(shared) == "The study reserved 3.00 CPU-hours, partly of CPUs that several processes shared"


def test_a_hold_up_study_names_the_setting_by_its_values(holdup):
    content = example("example_study").certificate
    chosen = content["winner"]["resolved"]["46"]
    words = {"holds up": "Yes", "does not hold up": "No", "is not shown to hold up": "Not shown"}
    assert holdup.sentence.startswith(f"{words[content['rllib']['at']['46']]}: ")
    assert "with 46 of RLlib's own runners" in holdup.sentence
    assert f"lr: {chosen['lr']:.3e}".replace("e-0", "e-") in holdup.setting
    batch = f"train_batch_size: {chosen['train_batch_size']}"
    assert holdup.setting.startswith(f"num_env_runners: 46  num_envs_per_env_runner: 4  {batch}  ")
    assert holdup.prices is None  # emulated clocks have no price
    assert not re.search(rf"{content['winner']['digest']}|winner|@46", holdup.to_text())


def test_a_setting_of_which_every_run_failed_was_tried():
    failed = {"status": "failed", "timing": "tainted", "score": 0.0}
    tried = [
        (2, 1_000, {"final_return": 100.0, "score": 0.2}),
        (2, 2_000, failed),
        (2, 4_000, failed),
        (4, 900, failed),
    ]
    rows = [run(trial, runners=n, batch=batch, **more) for trial, (n, batch, more) in enumerate(tried)]
    answer = Study(built_study(rows, spec=spec())).answer()
    assert answer.facts[:2] == ("It is the best of 4 settings, judged by one run.", "Of 3 of them every run failed.")
    table = answer.rows.frame
    assert table["num_env_runners"].tolist() == [2, 4]
    assert table["setting"].tolist() == ["batch 1,000", "none: every run failed"]
    assert table["solved"].tolist() == ["0 of 3", "0 of 1"]
    assert (answer.rows.n, answer.rows.n_failed) == (4, 3)


def test_what_ran_once_is_not_called_equal_to_anything():
    rows = [run(n, runners=n, batch=400, iteration_time_s=4 / n) for n in (1, 2, 4)]
    fastest = run(8, runners=8, batch=6_400)
    answer = Study(built_study([*rows, fastest], kind="throughput")).answer()
    assert answer.setting.startswith("num_env_runners: 8  train_batch_size: 6400")
    assert "Fastest measured: 8 runners at batch 6,400, 6,400 (one run) steps a second." in answer.facts
    often = [run(seed, batch=1_000, seed=seed, final_return=500.0 - seed, score=1.0) for seed in range(5)]
    once = run(9, batch=4_000, final_return=3.0, score=0.0)
    assert not any("cannot be told from" in each for each in Study(built_study([*often, once])).answer().facts)


@pytest.mark.parametrize("kind", ["search", "throughput"])
def test_a_study_of_times_that_were_not_measured_has_no_headline_of_returns(kind):
    """Nothing but the number of runners differs, so its question is the time; its returns are no answer to that."""
    busy = {"timing": "tainted", "timing_reason": "other programs used 30 % of the CPUs", "final_return": -240.0}
    rows = [run(n + seed, runners=n, seed=seed, iteration_time_s=1 / n, **busy) for n in (10, 20) for seed in (1, 2)]
    grid = {"search__sampler": "grid", "search__num_trials": None}
    space = spec(parameters={"num_env_runners": [10, 20], "lr": 1e-3, "train_batch_size": 400}, **grid)
    answer = Study(built_study(rows, kind=kind, spec=space if kind == "search" else None)).answer()
    assert answer.sentence.startswith("No clock was measured, mostly because of this: other programs used 30 %")
    assert "240" not in answer.to_text() and answer.rows is None
    assert answer.unknown[0].command == "python run_study.py --space waiting.yaml"
    measured = Study(built_study([{**row, "timing": "measured"} for row in rows], kind=kind, spec=space)).answer()
    assert ("-240" in measured.sentence) == (kind == "search")


@pytest.mark.parametrize(("planned", "commands"), [(3, 1), (2, 0)])
def test_a_study_is_resumed_in_its_own_folder_unless_it_is_complete(tmp_path, planned, commands):
    rows = [run(trial, status="failed", timing="tainted", reason="") for trial in range(2)]
    sheet = {"space": "mine.yaml", "num_trials": planned}
    answer = Study(built_study(rows, source=str(tmp_path / "invented"), sheet=sheet)).answer()
    assert answer.facts == ("First reason: no reason was recorded",)
    found = [each.command for each in answer.unknown if each.command]
    assert found == [f"python run_study.py --space mine.yaml --name invented --out {tmp_path} --resume"] * commands


@pytest.mark.parametrize(
    ("ends", "best"),
    [
        ({1_000: (300, 320), 2_000: (480, 470), 4_000: (100, 90)}, 2_000),
        ({1_000: (500, None), 2_000: (300, 310), 4_000: (100, 90)}, 2_000),  # a failed run has the score 0
        ({1_000: (500, 500), 2_000: (500, 500), 4_000: (500, 500)}, 1_000),  # the fewest steps to the target
    ],
)
def test_the_best_setting_of_a_search_is_the_one_with_the_highest_mean_score(ends, best):
    rows = [
        run(10 * place + seed, runners=runners, batch=batch, seed=seed, status="failed", score=0.0)
        if value is None
        else run(
            *(10 * place + seed,),
            **{"runners": runners, "batch": batch, "seed": seed, "final_return": float(value), "score": value / 500},
            **{"env_steps": 60_000, "env_steps_to_target": float(5 * batch + place)},
        )
        for place, (runners, batch) in enumerate((runners, batch) for runners in (2, 4) for batch in ends)
        for seed, value in enumerate(ends[batch], start=1)
    ]
    answer = Study(built_study(rows)).answer()
    assert f"train_batch_size: {best}" in answer.setting
    assert answer.setting.startswith("num_env_runners: 2 ")  # of equal ones that with fewer runners
    assert answer.rows.frame["num_env_runners"].tolist() == [2, 4]


@pytest.mark.parametrize("kind", ["search", "throughput", "holdup"])
@pytest.mark.parametrize(
    ("status", "said"),
    [("failed", "All 2 trials failed"), ("running", "No answer yet: 0"), ("interrupted", "No answer")],
)
def test_a_study_without_results_says_what_is_there_and_what_is_missing(kind, status, said):
    rows = [{"status": status, "timing": None, "reason": "it broke"} for _ in range(2)]
    runs = [{"trial": number, "num_env_runners": 10, "seed": 1, **row} for number, row in enumerate(rows)]
    answer = Study(built_study(runs, kind=kind, sheet={"num_trials": 5})).answer()
    assert answer.sentence.startswith(said if status != "failed" or kind != "holdup" else "")
    assert answer.unknown
    assert "nan" not in answer.to_text().lower().split()


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_every_view_says_is_a_fact(name):
    """Terminal, Markdown, page and titles of figures print the sentences of the narrator, each unchanged."""
    study = example(name)
    answer, facts = study.answer(), {each.text for each in study.findings}
    assert answer.findings == study.findings
    assert {*answer.facts, *answer.limits, *(each.text for each in answer.unknown)} <= facts
    text = " ".join(answer.to_text(80).split())
    for fact in study.findings:
        if fact.role in ("answer", "support", "unknown"):
            assert " ".join(fact.text.split()) in text
            assert fact.quantity in {"", *QUANTITIES}
    subjects = {subject for _, subject, _ in FIGURES.values()}
    assert {figure.title for figure in study.figures.values()} <= facts | subjects


@pytest.mark.parametrize(
    ("labels", "basis"),
    [
        (("measured", "measured"), "measured"),
        (("measured", "tainted"), "tainted"),
        (("tainted", "oversubscribed"), "oversubscribed"),
        (("measured", "emulated"), "emulated"),
    ],
)
def test_the_basis_of_an_answer_follows_the_labels_of_the_clocks(labels, basis):
    rows = [
        run(seed, seed=seed, timing=timing, final_return=9.0, score=0.1, cpu_s_spent=3.0)
        for seed, timing in enumerate(labels)
    ]
    lost = run(9, seed=9, status="failed", timing="tainted")
    found = Study(built_study([*rows, lost])).estimates(["final_return", "cpu_s_spent"])
    assert set(found["basis"]) == {basis}
    assert found["num_cpus"].isna().all() == (basis == "emulated")


@pytest.mark.parametrize("name", ["example_study", "example_throughput"])
def test_with_a_price_a_study_of_any_kind_has_a_cost(name):
    study = example(name)
    hours = cpu_hours(study.data)
    assert hours == pytest.approx(study.trials["cpu_s_reserved"].sum() / 3600, rel=0.05)
    said = f"At 0.5 for a CPU-hour its trials cost {number(0.5 * hours)}."
    assert said in study.answer(price_per_cpu_hour=0.5).facts
    assert not any("for a CPU-hour" in each for each in study.answer().facts)
