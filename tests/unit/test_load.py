import pandas as pd
import pytest

from analysis import load
from study.errors import AnalysisError, RecordError
from study.metrics import METRICS
from tests import synthetic


@pytest.fixture
def study(tmp_path):
    folder = synthetic.make_folder(tmp_path / "study", "sqlite:////nowhere.db")
    synthetic.append(
        folder,
        synthetic.opened(),
        *synthetic.whole_trial(0),
        *synthetic.whole_trial(1, "failed"),
        synthetic.started(2),
        synthetic.iteration(2, 1),
        synthetic.ended(2, "interrupted"),
        *synthetic.whole_trial(2, attempt=2, length=4),
        synthetic.started(3),
    )
    return folder


def test_every_trial_is_a_row_the_failed_and_the_running_one_too(study):
    trials = load.trials(study.path)
    assert trials["trial"].tolist() == [0, 1, 2, 3]
    assert trials["status"].tolist() == ["finished", "failed", "finished", "running"]
    assert trials["execution"].tolist() == ["real"] * 4
    assert trials["execution"].dtype == trials["timing"].dtype == "string"
    assert trials["num_env_runners"].dtype == "Int64"
    assert trials["lr"].dtype == "Float64"
    assert trials.loc[3, "final_return"] is pd.NA
    assert {name for name, metric in METRICS.items() if metric.grain == "trial"} <= set(trials)


def test_curves_hold_the_latest_attempt_only(study):
    curves = load.curves(study.path)
    assert curves[curves["trial"] == 2]["iteration"].tolist() == [1, 2, 3, 4]
    assert curves["env_steps"].dtype == "int64"
    assert curves.loc[0, "iteration_time_s"] == 0.5
    assert {name for name, metric in METRICS.items() if metric.grain == "iteration"} <= set(curves)


def test_evaluations_are_means_of_their_episodes(study):
    evaluations = load.evaluations(study.path)
    assert (evaluations["num_episodes"] > 0).all()
    assert evaluations["eval_return"].notna().all()


def test_nothing_to_load_is_said(tmp_path):
    with pytest.raises(AnalysisError, match="must be the folder of a study"):
        load.trials(tmp_path)
    folder = synthetic.make_folder(tmp_path / "empty", "sqlite:////nowhere.db")
    with pytest.raises(AnalysisError, match="none yet"):
        load.trials(folder.path)
    assert load.curves(folder.path).empty


def test_damaged_records_are_named(study):
    study.records.write_text("garbage\n")
    with pytest.raises(RecordError, match=r"records\.jsonl"):
        load.trials(study.path)
