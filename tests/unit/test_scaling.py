"""Estimates by value and by their properties: speed-up, phases, steps to the target, refusals, prices, the frame."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import analysis
from analysis.estimates import QUANTITIES
from analysis.estimates.settings import runs_per_setting, settings_of
from analysis.estimates.targets import BEFORE, targets_of, watched
from analysis.fingerprint import differing
from analysis.opened import Study
from analysis.quantity import DTYPES
from analysis.scaling.blocks import quotient_of, ratio_of_totals, select
from study.errors import AnalysisError
from study.space.parameters import PARAMETERS, SCALE
from study.statistics import Estimate
from tests import planted as invented
from tests.examples import ANALYSIS, example
from tests.planted import Truth, evaluations_of, fingerprint, planted_runs

QUIET = {"noise": 0.0, "block_noise": 0.0, "phase_noise": 0.0}
STRONG = Truth(**QUIET)


def run(n, seconds, *, seed=1, batch=1000, **changes):
    return invented.run(0, runners=n, batch=batch, seed=seed, iteration_time_s=seconds, **changes)


def made(*rows):
    return Study(invented.study([{**each, "trial": trial} for trial, each in enumerate(rows)], kind="throughput"))


def planted(truth=STRONG, seed=0):
    return planted_runs(truth, np.random.default_rng(seed))


def values(study, quantity, **where):
    return study.estimates(quantity, basis="measured", **where)["value"].tolist()


def one(study, quantity, **where):
    ((_, found),) = study.estimates(quantity, basis="measured", **where).iterrows()
    return found


def test_speed_up_and_efficiencies_of_a_worked_example():
    # T(1) = 10 s, T(4) = 4 s: S = 2.5, E_n = 0.625, E_P = 2.5 * 2 / 5 = 1.
    found = made(run(1, 10.0), run(4, 4.0))
    for quantity, expected in {
        "speed_up": [1, 2.5],
        "efficiency_per_runner": [1, 0.625],
        "efficiency_per_cpu": [1, 1.0],
        "marginal_efficiency": [np.log(2.5) / np.log(5 / 2)],
    }.items():
        assert values(found, quantity) == pytest.approx(expected), quantity
    assert values(found, "env_steps_per_s") == pytest.approx([100, 250])
    four = one(found, "speed_up", num_env_runners=4)
    assert (four["base"], four["n"]) == ("1 runner on 1 node", 1) and pd.isna(four["low"])


def test_a_ratio_is_paired_by_block_and_its_interval_is_students():
    times = {1: [10.0, 20.0, 40.0], 2: [6.0, 11.0, 25.0]}
    rows = [run(n, seconds, seed=seed) for n in times for seed, seconds in enumerate(times[n], 1)]
    speed_up = one(made(*rows), "speed_up", num_env_runners=2)
    logs = np.log(np.array(times[1]) / np.array(times[2]))
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert speed_up["value"] == pytest.approx(np.exp(logs.mean()))
    assert tuple(speed_up[["low", "high"]]) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    assert speed_up["n"] == 3


def test_without_common_seeds_the_cells_are_independent_samples():
    ones, others = [10.0, 12.0, 11.0], [6.0, 5.0, 6.5, 5.5]
    rows = [run(1, s, seed=i) for i, s in enumerate(ones)] + [run(2, s, seed=10 + i) for i, s in enumerate(others)]
    speed_up = one(made(*rows), "speed_up", num_env_runners=2)
    welch = stats.ttest_ind(np.log(ones), np.log(others), equal_var=False).confidence_interval(0.95)
    assert tuple(speed_up[["low", "high"]]) == pytest.approx((np.exp(welch.low), np.exp(welch.high)))
    assert speed_up["method"].startswith("Welch") and speed_up["n"] == 7


def test_the_error_of_a_rate_is_cochrans():
    y, x = np.array([10.0, 14.0, 9.0, 20.0]), np.array([2.0, 3.0, 2.5, 4.0])
    found = ratio_of_totals(y, x, [1, 2, 3, 4])
    ratio = y.sum() / x.sum()
    error = np.sqrt(np.sum((y - ratio * x) ** 2) / 3 / 4) / x.mean()  # Cochran (6.13) without finite correction
    assert found.value == pytest.approx(ratio)
    assert np.log(found.high / ratio) == pytest.approx(stats.t.ppf(0.975, 3) * error / ratio)


def test_every_other_run_is_counted_under_its_reason():
    others = {
        "failed": run(2, 1.0, status="failed", timing="tainted", timed_s=None),
        "oversubscribed": run(2, 1.0, timing="oversubscribed"),
        "emulated": run(2, 1.0, timing="emulated"),
        "tainted": run(2, 1.0, timing="tainted"),
        "timing unknown": run(2, 1.0, timing=None),
        "no timed iterations": run(2, 1.0, timed_iterations=0),
        "running": run(2, 1.0, status="running", timing=None),
        "no run of equal workload at another scale": run(2, 1.0, fingerprint=fingerprint(1000, lr=1.0)),
    }
    study = made(run(1, 2.0), run(2, 1.0), *others.values())
    assert study.strong.excluded == dict.fromkeys(others, 1)
    assert (study.strong.n, study.strong.n_failed) == (2, 1)
    assert study.estimates("speed_up")["n_failed"].tolist() == [0, 1]
    assert values(study, "speed_up") == pytest.approx([1, 2])


def test_a_gain_is_over_the_next_smaller_scale_on_as_many_nodes():
    """A node more makes each iteration twice as long: compared with a row of other nodes, eight would gain nothing."""
    cells_ = ((4, 1, 4.0), (4, 2, 8.0), (8, 1, 2.0), (8, 2, 4.0), (16, 3, 3.0))
    rows = [run(n, seconds, num_nodes=nodes, seed=seed) for n, nodes, seconds in cells_ for seed in (1, 2)]
    found = made(*rows)
    assert found.estimates("speed_up")["num_nodes"].tolist() == [1, 2, 1, 2, 3]
    assert values(found, "speed_up") == pytest.approx([1, 0.5, 2, 1, 4 / 3])
    assert found.estimates("marginal_efficiency")["base"].tolist() == [
        "4 runners on 1 node",
        "4 runners on 2 nodes",
        "8 runners on 2 nodes",
    ]
    assert values(found, "marginal_efficiency")[:2] == pytest.approx([np.log(2) / np.log(9 / 5)] * 2)


def test_a_quotient_of_estimates_has_the_interval_of_recovered_variances():
    usual = {"level": 0.95, "method": ""}
    first = Estimate(value=4.0, low=2.0, high=12.0, n=5, **usual)
    second = Estimate(value=2.0, low=1.0, high=6.0, n=3, **usual)
    found = quotient_of(first, second)
    below, above = np.hypot(np.log(2), np.log(3)), np.hypot(np.log(3), np.log(2))
    assert (found.value, found.n) == (pytest.approx(2.0), 3)
    assert (found.low, found.high) == pytest.approx((2 * np.exp(-below), 2 * np.exp(above)))


WEAK = Truth(cells=((1, 256), (2, 512), (4, 1024), (4, 256)), **QUIET)


def test_weak_scaling_compares_equal_steps_per_runner():
    study = Study(invented.study(planted(WEAK)))
    assert study.estimates("weak_efficiency")["train_batch_size"].tolist() == [256, 512, 1024]
    assert study.weak.excluded == {"no run of equal workload at another scale": 3}
    expected = WEAK.iteration_s(1, 256) / WEAK.iteration_s(4, 1024)
    assert values(study, "weak_efficiency")[2] == pytest.approx(expected)
    assert study.weak.refusals == ()


def test_hardware_is_named_and_not_decomposed():
    rows = [run(16, 2.0), run(32, 1.0, fingerprint=fingerprint(1000, cpu_model="Another", smt=True))]
    (refusal,) = made(*rows).strong.refusals
    differs = {"cpu_model": ("Planted CPU", "Another"), "smt": ("absent", True)}
    assert differing(refusal.first.fingerprint, refusal.second.fingerprint) == differs
    assert not refusal.parts and "same hardware" in refusal.reason


@pytest.mark.parametrize("factor", [0.01, 1.0, 37.0])
def test_neither_the_unit_of_time_nor_the_order_of_rows_matters(factor):
    frame = planted(Truth(cells=((1, 256), (2, 256), (2, 512), (1, 512)), blocks=3), seed=3)
    order = np.random.default_rng(int(factor)).permutation(len(frame))
    slower = frame.assign(timed_s=frame["timed_s"] * factor)
    before, after = (Study(invented.study(each)) for each in (frame, slower.iloc[order].reset_index(drop=True)))
    powers = {"iteration_time_s": 1, "env_steps_per_s": -1, "speed_up": 0, "weak_efficiency": 0, "steps_to_target": 0}
    for quantity, power in (powers | {"share_learn": 0, "time_to_target_s": 1}).items():
        found, expected = (each.estimates(quantity, basis="measured") for each in (after, before))
        assert len(found) and found["n"].tolist() == expected["n"].tolist()
        for name in ("value", "low", "high"):
            wanted = expected[name].astype(float) * factor**power
            assert found[name].astype(float).tolist() == pytest.approx(wanted.tolist(), nan_ok=True), quantity


def test_phases_are_those_planted():
    truth = Truth(cells=((4, 2048),), **QUIET)
    found = Study(invented.study(planted(truth))).estimates().set_index("quantity")["value"]
    iteration, mean = truth.iteration_s(4, 2048), truth.step_s * 2048 / 4
    seconds = {"runners": mean, "imbalance": 0.2 * mean, "transfer": 0.01, "learning": truth.learning_s(2048)}
    seconds |= {"sync": 0.005, "rest": 0.005}
    assert [found[f"seconds_{name}"] for name in seconds] == pytest.approx([*seconds.values()])
    shares = [found[f"share_{'learn' if name == 'learning' else name}"] for name in seconds]
    assert shares == pytest.approx([each / iteration for each in seconds.values()])
    assert found["share_sample"] == pytest.approx((1.2 * mean + 0.01) / iteration)


LEARN = Truth(
    cells=((2, 1024), (4, 1024), (4, 4096)), blocks=5, budget_steps=20 * 4096, steps_noise=0.0, failed=1, **QUIET
)


def test_steps_time_and_cost_to_target():
    frame = planted(LEARN)
    frame.loc[frame["status"] == "failed", "seed"] = 6
    found = Study(invented.study(frame))
    large = {"num_env_runners": 4, "train_batch_size": 4096}
    # 10,000 * (1 + 4096 / 2048) = 30,000 steps, the next whole iteration being the 8th.
    assert values(found, "steps_to_target", **large) == [8 * 4096]
    steps = np.array([15 * 1024] * 5 + [20 * 4096])  # one failed: it is censored at the horizon
    base = one(found, "steps_to_target", num_env_runners=2)
    assert base["value"] == pytest.approx(steps.mean())
    assert (base["n"], base["n_failed"], base["n_censored"]) == (6, 1, 1)
    seconds = 8 * 4096 / LEARN.rate(4, 4096)
    assert values(found, "time_to_target_s", **large) == pytest.approx([seconds])
    assert values(found, "cpu_hours_to_target", **large) == pytest.approx([5 * seconds / 3600])
    assert found.targets.notes[-1].startswith("Steps are counted up to 81,920 env steps.")
    early = frame.copy()  # where a failed run broke off does not matter
    early.loc[early["status"] == "failed", "env_steps"] = 2048
    assert Study(invented.study(early)).targets == found.targets


def test_the_interval_holds_the_env_steps_between_two_evaluations():
    truth = Truth(cells=((2, 1024), (2, 4096)), blocks=5, budget_steps=20 * 4096, **QUIET)
    frame = planted(truth)
    frame["env_steps_to_target"] = [40_000 if batch == 1024 else 80_000 for batch in frame["train_batch_size"]]
    found = Study(invented.study(frame, evaluations=lambda: evaluations_of(frame, every=40_000)))
    base, large = (one(found, "steps_to_target", train_batch_size=batch) for batch in (1024, 4096))
    assert (base.value, base.low, base.high) == (40_000, 0, 40_000)
    assert (large.low, large.high) == pytest.approx((40_000, 80_000))
    # The clock is exact here, and a run may have got there at once.
    soon, late = (one(found, "time_to_target_s", train_batch_size=batch) for batch in (1024, 4096))
    assert (late.low, late.high) == pytest.approx((40_000 / truth.rate(2, 4096), 80_000 / truth.rate(2, 4096)))
    assert soon.low == 0 < soon.value
    assert "up to 40,000 env steps apart" in found.targets.notes[-1]
    exactly = targets_of(settings_of(frame), select(frame).runs).rows  # where nobody has said since when
    ends = {(row["estimate"].low, row["estimate"].high) for row in exactly if row["quantity"] == "steps_to_target"}
    assert (40_000, 40_000) in ends


def test_a_run_that_ended_at_the_target_was_not_last_seen_below_it():
    frame = planted(Truth(cells=((2, 1024),), blocks=2, **QUIET))
    frame["env_steps"], frame["env_steps_to_target"] = 60_000, pd.array([40_000, pd.NA], dtype="Int64")
    seen = evaluations_of(frame, every=20_000)
    assert watched(frame, seen, target=450.0)[BEFORE].tolist() == [20_000, 60_000]
    seen.loc[(seen["trial"] == frame["trial"][1]) & (seen["env_steps"] == 60_000), "eval_return"] = 500.0
    assert watched(frame, seen, target=450.0)[BEFORE].tolist() == [20_000, 40_000]
    assert watched(frame, seen, target=None)[BEFORE].tolist() == [20_000, 40_000]
    assert watched(frame, seen.iloc[:0], target=450.0)[BEFORE].tolist() == [0, 0]


EXAMPLES = ("example_throughput", "example_study", "example_table", "example_coinrun")
ABOUT = ["engine", "workload", "arm", "num_env_runners", "num_cpus", "train_batch_size", "quantity"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_frame_has_its_columns_and_each_estimate_once(name):
    frame = example(name).estimates()
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
    assert (frame["kind"] == example(name).kind).all()


def test_a_failed_run_has_a_score_of_zero_where_runs_are_scored_and_none_elsewhere():
    rows = [
        invented.run(trial, seed=trial, final_return=500.0, score=1.0, status=status)
        for trial, status in enumerate(("finished", "finished", "finished", "failed"))
    ]
    assert Study(invented.study(rows)).estimates("score")[["value", "n"]].to_numpy().tolist() == [[0.75, 4]]
    # Where nothing is scored: 0 is the best return of some environments.
    rows = [invented.run(0, lr=1e-3, final_return=-150.0), invented.run(1, lr=2e-3, status="failed")]
    study = Study(invented.study(rows))
    assert study.estimates("score").empty
    assert study.estimates("final_return")["value"].tolist() == [-150.0]


def test_runs_that_differ_in_any_parameter_are_no_replicates():
    changes = [{}, *({name: 7} for name in PARAMETERS if name != SCALE), {"max_iterations": 7}]
    rows = [invented.run(at, **change, final_return=float(at)) for at, change in enumerate(changes)]
    study, count = Study(invented.study(rows)), len(rows)
    assert sorted(study.estimates("final_return")["value"]) == [*range(count)]
    assert runs_per_setting(study.trials) == [1] * count
    assert f"return {count - 1}" in study.answer().sentence
    assert f"best of {count}" in study.answer().facts[0]


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
def test_a_wrong_name_is_answered_with_the_right_one(ask, problem, fix):
    with pytest.raises(AnalysisError, match=rf"^{problem}.* Fix: .*{fix}"):
        ask(example("example_throughput"))


def test_marl_eval_has_every_evaluation_of_every_seed(tmp_path):
    study = example("example_study")
    content = json.loads(study.export(tmp_path / "runs.json", "marl-eval").read_text())
    (chosen,) = (each for each in study.settings if (each.name, each.num_env_runners) == ("the chosen setting", 46))
    seeds = content["gymnasium"]["Acrobot-v1"]["the chosen setting, 46 runners"]
    assert len(seeds) == len(chosen.runs)
    for _, run in chosen.runs.iterrows():
        found = dict(seeds[f"seed_{run['seed']}"])
        assert found.pop("absolute_metrics") == {"return": [run["final_return"]], "score": [run["score"]]}
        seen = study.evaluations[study.evaluations["trial"] == run["trial"]]
        expected = [(int(step), [value]) for step, value in zip(seen["env_steps"], seen["eval_return"], strict=True)]
        assert [(each["step_count"], each["return"]) for each in found.values()] == expected


def test_rliable_reads_the_scores_of_a_study(tmp_path):
    metrics = pytest.importorskip("rliable.metrics")  # its bootstrap needs arch, which is not made for today's pandas
    study = example("example_study")
    scores = json.loads(study.export(tmp_path / "a", "rliable").read_text())
    mine = np.array(scores["the chosen setting, 46 runners"])
    (mean,) = study.estimates("score", arm="the chosen setting", num_env_runners=46)["value"]
    assert len(scores) == len(study.settings) and metrics.aggregate_mean(mine) == pytest.approx(mean)


def test_failed_runs_are_exported_as_zero_and_what_cannot_be_is_refused(tmp_path):
    def exported(where, **changes):
        best = {"final_return": 90.0, **changes}
        rows = [invented.run(0, seed=2, status="failed", **changes), invented.run(1, seed=1, **best)]
        return Study(invented.study(rows)).export(tmp_path / where, "rliable")

    assert json.loads(exported("a.json", score=0.9).read_text()) == {"the only setting, 1 runner": [[0.9], [0.0]]}
    with pytest.raises(AnalysisError, match=r"every run must have a number, .* Fix: Give `environment.floor`"):
        exported("b.json")
    with pytest.raises(AnalysisError, match="must be writable"):
        exported("missing/a", score=0.9)


def test_studies_stand_in_one_frame():
    sources = [str(ANALYSIS / name) for name in ("example_throughput", "example_coinrun")]
    counts = analysis.compare(sources)["study"].value_counts().to_dict()
    assert counts == {source: len(example(Path(source).name).estimates()) for source in sources}
