"""The per-seed results of a study as rliable reads them, and in MARL-eval's shape."""

import json

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.load import StudyData
from analysis.opened import Study
from study.errors import AnalysisError
from study.statistics import iqm
from tests import planted as tables_data
from tests.examples import example

CHOSEN = "the chosen setting, 46 runners"


def arm(study: Study, name: str = CHOSEN) -> pd.DataFrame:
    return next(each.runs for each in study.settings if f"{each.name}, {each.num_env_runners} runners" == name)


def test_rliable_reads_the_scores_of_a_study(tmp_path):
    metrics = pytest.importorskip("rliable.metrics")  # its bootstrap needs arch, which is not made for today's pandas
    study = example("example_study")
    path = study.export(tmp_path / "scores.json", "rliable")
    scores = {name: np.array(values) for name, values in json.loads(path.read_text()).items()}
    assert len(scores) == len(study.settings)
    assert sorted(scores[CHOSEN][:, 0]) == sorted(arm(study)["score"])

    (mean,) = study.estimates("score", arm="the chosen setting", num_env_runners=46)["value"]
    assert metrics.aggregate_iqm(scores[CHOSEN]) == pytest.approx(iqm(scores[CHOSEN][:, 0]))
    assert metrics.aggregate_mean(scores[CHOSEN]) == pytest.approx(mean)
    assert metrics.aggregate_optimality_gap(scores[CHOSEN]) == pytest.approx(np.maximum(1 - scores[CHOSEN], 0).mean())


def test_marl_eval_has_every_evaluation_of_every_seed(tmp_path):
    study = example("example_study")
    content = json.loads(study.export(tmp_path / "runs.json", "marl-eval").read_text())
    algorithms, runs = content["gymnasium"]["Acrobot-v1"], arm(study)
    seeds = algorithms[CHOSEN]
    assert sorted(seeds) == sorted(f"seed_{seed}" for seed in runs["seed"])
    for _, run in runs.iterrows():
        found = dict(seeds[f"seed_{run['seed']}"])
        assert found.pop("absolute_metrics") == {"return": [run["final_return"]], "score": [run["score"]]}
        seen = study.evaluations[study.evaluations["trial"] == run["trial"]]
        expected = [(int(step), [value]) for step, value in zip(seen["env_steps"], seen["eval_return"], strict=True)]
        assert [(each["step_count"], each["return"]) for each in found.values()] == expected
        assert list(found) == [f"step_{place}" for place in range(len(seen))]


def invented(**changes) -> StudyData:
    rows = [
        tables_data.run(0, seed=1, final_return=90.0, **changes),
        tables_data.run(1, seed=2, status="failed", **changes),
    ]
    return tables_data.study(rows)


def test_a_failed_run_is_one_of_the_runs(tmp_path):
    scored = Study(invented(score=0.9))
    assert json.loads(scored.export(tmp_path / "a.json", "rliable").read_text()) == {
        "the only setting, 1 runner": [[0.9], [0.0]]
    }
    with pytest.raises(AnalysisError, match=r"every run must have a number, .* Fix: Give `environment.floor`"):
        Study(invented()).export(tmp_path / "b.json", "rliable")


def test_what_cannot_be_exported_is_refused(tmp_path):
    study = example("example_study")
    with pytest.raises(AnalysisError, match="format: must be rliable or marl-eval, got 'csv'"):
        study.export(tmp_path / "a", "csv")
    with pytest.raises(AnalysisError, match="must be writable"):
        study.export(tmp_path / "missing" / "a", "rliable")
    with pytest.raises(AnalysisError, match="a run must have ended with its whole budget"):
        analysis.open("analysis/example_throughput").export(tmp_path / "a", "rliable")
