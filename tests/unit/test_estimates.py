"""The frame of estimates: planted values, one value and interval for a quantity, prices, predictions, comparisons."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.estimates import QUANTITIES
from analysis.estimates.settings import runs_per_setting
from analysis.opened import Study
from analysis.quantity import DTYPES
from analysis.scaling.clock import price_of_an_hour
from study.errors import AnalysisError
from study.space.parameters import PARAMETERS, SCALE
from study.statistics import Estimate, iqm
from tests import planted
from tests.examples import example
from tests.planted import Truth, planted_runs

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
EXAMPLES = ("example_throughput", "example_study", "example_table", "example_coinrun")
ABOUT = ["engine", "workload", "arm", "num_env_runners", "num_cpus", "train_batch_size", "quantity"]


@pytest.fixture(scope="module")
def studies() -> dict[str, Study]:
    return {name: example(name) for name in EXAMPLES}


@pytest.fixture(scope="module")
def certificate():
    return json.loads((ANALYSIS / "example_study" / "certificate.json").read_text())


def estimate(value: float, low: float = -math.inf, high: float = math.inf) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=3, level=0.95, method="planted")


def one(study: Study, quantity: str, **selection: object) -> pd.Series:
    rows = study.estimates(quantity, **selection)
    assert len(rows) == 1, rows
    return rows.iloc[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_frame_has_its_columns_and_each_estimate_once(studies, name):
    frame = studies[name].estimates()
    assert {column: str(frame[column].dtype) for column in frame} == dict(DTYPES)
    assert set(frame["quantity"]) <= set(QUANTITIES)
    assert not frame.duplicated(ABOUT).any()
    assert frame["value"].notna().all()
    known = frame.dropna(subset=["low", "high"])
    assert ((known["low"] <= known["value"]) & (known["value"] <= known["high"])).all()
    assert (frame["low"].isna() == frame["high"].isna()).all()
    assert (frame["n"].isna() == frame["method"].eq("by definition")).all()
    assert frame.attrs["units"] == {name: QUANTITIES[name].unit for name in frame["quantity"].unique()}
    assert set(frame["basis"]) <= {"measured", "predicted", "extrapolated", "emulated"}
    assert (frame["kind"] == studies[name].kind).all()


def test_planted_times_come_back():
    truth = Truth(noise=1e-4, phase_noise=1e-4, block_noise=1e-4)
    study = Study(planted.study(planted_runs(truth, np.random.default_rng(1))))
    rates = study.estimates("env_steps_per_s", basis="measured").set_index("num_env_runners")["value"]
    efficiency = study.estimates("efficiency_per_runner").set_index("num_env_runners")["value"]
    hours = study.estimates("hours_per_million_steps", basis="measured").set_index("num_env_runners")["value"]
    assert list(rates.index) == [2, 4, 8, 16]
    for n in rates.index:
        assert rates[n] == pytest.approx(truth.rate(n, 2048), rel=2e-3)
        assert hours[n] == pytest.approx(1e6 / 3600 / truth.rate(n, 2048), rel=2e-3)
        assert efficiency[n] == pytest.approx(truth.speed_up(n, 2, 2048) * 2 / n, rel=2e-3)


def test_the_arms_have_the_values_and_intervals_of_the_certificate(studies, certificate):
    study = studies["example_study"]
    quantities = {"solved_share": "solve_rate", "score": "score", "cpu_s_spent": "cpu_s_spent"}
    quantities["final_return"] = "iqm_final_return"
    (chosen,) = (arm for arm in certificate["arms"].values() if (arm["name"], arm["scale"]) == ("winner", 46))
    for quantity, name in quantities.items():
        row = one(study, quantity, arm="the chosen setting", num_env_runners=46)
        assert {each: row[each] for each in chosen[name]} == pytest.approx(chosen[name]), quantity
    for arm in certificate["arms"].values():  # the other arms have other names, and the same values
        rows = study.estimates("steps_to_target", num_env_runners=arm["scale"])
        (row,) = (row for _, row in rows.iterrows() if row["value"] == pytest.approx(arm["env_steps_to_target"]))
        assert pd.isna(row["low"]) == (arm["n"] == 1)


def test_a_failed_run_has_a_score_of_zero_where_runs_are_scored_and_none_elsewhere():
    rows = [
        planted.run(trial, seed=trial, final_return=500.0, score=1.0, status=status)
        for trial, status in enumerate(("finished", "finished", "finished", "failed"))
    ]
    score = one(Study(planted.study(rows)), "score")
    assert (score["value"], score["n"]) == (0.75, 4)
    # Where nothing is scored: 0 is the best return of some environments.
    rows = [planted.run(0, lr=1e-3, final_return=-150.0), planted.run(1, lr=2e-3, status="failed")]
    study = Study(planted.study(rows))
    assert study.estimates("score").empty
    assert study.estimates("final_return")["value"].tolist() == [-150.0]


@pytest.mark.parametrize("name", [*(name for name in PARAMETERS if name != SCALE), "max_iterations"])
def test_runs_that_differ_in_any_parameter_are_no_replicates(name):
    rows = [planted.run(number, **{name: number + 1}, final_return=float(number)) for number in range(3)]
    study = Study(planted.study(rows, kind="search"))
    assert sorted(study.estimates("final_return")["value"]) == [0.0, 1.0, 2.0]
    assert runs_per_setting(study.trials) == [1, 1, 1]
    assert "return 2" in study.answer().sentence
    assert "best of 3" in study.answer().facts[0]


@pytest.mark.parametrize(
    ("gain", "before", "after", "price"),
    [
        (estimate(1.5, 1.2, 1.8), 3, 5, (1.0, -0.5, 7.0)),
        (estimate(2.0, 1.9, 2.1), 3, 5, (-1.0, -1.181818, -0.777778)),
        (estimate(1.5, 0.9, 1.8), 3, 5, (1.0, -0.5, math.inf)),
        (estimate(1.5), 3, 5, (1.0, -math.inf, math.inf)),
    ],
    ids=["costs", "saves both", "may save none", "no interval"],
)
def test_an_hour_saved_costs_more_cpu_hours_over_fewer_hours(gain, before, after, price):
    found = price_of_an_hour(gain, before, after)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx(price)
    assert price_of_an_hour(estimate(1.0, 0.9, 1.1), before, after) is None  # no hour is saved


def test_nothing_is_predicted_beyond_twice_the_largest_measured_scale(studies):
    study = studies["example_throughput"]
    rates = study.estimates("env_steps_per_s")
    assert set(rates.loc[rates["basis"] == "measured", "num_env_runners"]) == {2, 4, 8}
    assert set(rates.loc[rates["basis"] == "predicted", "num_env_runners"]) == {3, 6}
    assert set(rates.loc[rates["basis"] == "extrapolated", "num_env_runners"]) == {12, 16}
    assert set(study.estimates("most_speed_up")["basis"]) == {"extrapolated"}
    assert study.estimates([]).empty


@pytest.mark.parametrize(
    ("ask", "problem", "fix"),
    [
        (lambda study: study.estimates("efficiency"), "quantity: .*'efficiency'", "'efficiency_per_runner'"),
        (lambda study: study.estimates(scale=8), "column: .*'scale'", "'value'"),
        (lambda study: study.table("strong"), "table: .*'strong'", "'strong_scaling'"),
        (lambda study: study.plot("speedup"), "figure: .*'speedup'", "'efficiency'"),
        (lambda study: study.estimates("throughput"), "quantity: .*'throughput'", "'env_steps_per_s'"),
    ],
    ids=["quantity", "column", "table", "figure", "label"],
)
def test_a_wrong_name_is_answered_with_the_right_one(studies, ask, problem, fix):
    with pytest.raises(AnalysisError, match=rf"^{problem}.* Fix: .*{fix}"):
        ask(studies["example_throughput"])


def test_studies_stand_in_one_frame(studies):
    sources = [str(ANALYSIS / name) for name in ("example_throughput", "example_coinrun")]
    found = analysis.compare(sources)
    expected = [len(analysis.open(source).estimates()) for source in sources]
    assert found["study"].value_counts().to_dict() == dict(zip(sources, expected, strict=True))


# --- for other tools --------------------------------------------------------------------------------------------------


def test_rliable_reads_the_scores_of_a_study(tmp_path):
    metrics = pytest.importorskip("rliable.metrics")  # its bootstrap needs arch, which is not made for today's pandas
    study, name = example("example_study"), "the chosen setting, 46 runners"
    scores = {
        name: np.array(values)
        for name, values in json.loads(study.export(tmp_path / "a", "rliable").read_text()).items()
    }
    (chosen,) = (each for each in study.settings if (each.name, each.num_env_runners) == ("the chosen setting", 46))
    assert len(scores) == len(study.settings)
    assert scores[name][:, 0].tolist() == chosen.runs.sort_values("seed")["score"].tolist()
    (mean,) = study.estimates("score", arm="the chosen setting", num_env_runners=46)["value"]
    assert metrics.aggregate_iqm(scores[name]) == pytest.approx(iqm(scores[name][:, 0]))
    assert metrics.aggregate_mean(scores[name]) == pytest.approx(mean)


def test_marl_eval_has_every_evaluation_of_every_seed(tmp_path):
    study = example("example_study")
    content = json.loads(study.export(tmp_path / "runs.json", "marl-eval").read_text())
    (chosen,) = (each for each in study.settings if (each.name, each.num_env_runners) == ("the chosen setting", 46))
    seeds = content["gymnasium"]["Acrobot-v1"]["the chosen setting, 46 runners"]
    assert sorted(seeds) == sorted(f"seed_{seed}" for seed in chosen.runs["seed"])
    for _, run in chosen.runs.iterrows():
        found = dict(seeds[f"seed_{run['seed']}"])
        assert found.pop("absolute_metrics") == {"return": [run["final_return"]], "score": [run["score"]]}
        seen = study.evaluations[study.evaluations["trial"] == run["trial"]]
        expected = [(int(step), [value]) for step, value in zip(seen["env_steps"], seen["eval_return"], strict=True)]
        assert [(each["step_count"], each["return"]) for each in found.values()] == expected
        assert list(found) == [f"step_{place}" for place in range(len(seen))]


def test_a_failed_run_is_exported_and_what_cannot_be_is_refused(tmp_path):
    def invented(**changes):
        rows = [
            planted.run(0, seed=2, status="failed", **changes),
            planted.run(1, seed=1, final_return=90.0, **changes),
        ]
        return Study(planted.study(rows))

    exported = json.loads(invented(score=0.9).export(tmp_path / "a.json", "rliable").read_text())
    assert exported == {"the only setting, 1 runner": [[0.9], [0.0]]}
    with pytest.raises(AnalysisError, match=r"every run must have a number, .* Fix: Give `environment.floor`"):
        invented().export(tmp_path / "b.json", "rliable")
    with pytest.raises(AnalysisError, match="must be writable"):
        invented(score=0.9).export(tmp_path / "missing" / "a", "rliable")
    with pytest.raises(AnalysisError, match="format: must be rliable or marl-eval, got 'csv'"):
        invented(score=0.9).export(tmp_path / "a", "csv")
    with pytest.raises(AnalysisError, match="a run must have ended with its whole budget"):
        example("example_throughput").export(tmp_path / "a", "rliable")
