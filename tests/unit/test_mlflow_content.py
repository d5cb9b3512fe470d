"""What MLflow and TensorBoard get of a record, by values worked out by hand."""

import json
import math

import pytest

from study.mirrors import mlflow_mirror as content
from study.mirrors.mirror import points_of
from study.records.records import Line
from tests.spaces import spec
from tests.synthetic import built, ended, fold, iteration, make_folder, opened, started, whole_trial
from tests.values import replace

URI = "postgresql://me:secret@db/mlflow"


def ledger(*records):
    return fold((record, float(moment)) for moment, record in enumerate(records))


def points(record, *before):
    found = points_of(Line(seq=0, time=1.234, record=record, end=1), ledger(*before).rows[record.trial])
    assert len({point.key for point in found}) == len(found)
    return found


def values(record, *before):
    return {point.key: point.value for point in points(record, *(before or (started(0),)))}


def test_an_iteration_has_what_is_finite_and_known():
    absent = {"kl": math.nan, "entropy": math.inf, "surprise": 1.0, "score": 1.0}
    assert values(iteration(0, 3, **absent)) == {
        "training_return": 45.0,  # 90 / 2
        "env_steps_per_s": 800.0,
        "iteration_time_s": 0.5,
        "train_batch_size_actual": 400.0,
        "num_episodes": 2.0,
        "wall_time_s": 1.5,
        "env_steps": 1200.0,
    }
    assert {(point.time_ms, point.step) for point in points(iteration(0, 3), started(0))} == {(1234, 1200)}
    assert "training_return" not in values(iteration(0, 1))  # no episode has ended


def test_the_summary_comes_behind_the_last_iteration_and_repeats_nothing_of_it():
    *before, end = whole_trial(0)
    assert {(point.time_ms, point.step) for point in points(end, *before)} == {(5001, 1200)}  # the clock was set back
    assert values(end, *before) == {"env_steps_per_s": 777.0, "final_return": 30.0, "score": 0.5}  # wall_time_s is said
    same = replace(end, summary={"env_steps_per_s": 800.0, "env_steps": 1200, "wall_time_s": 1.5, "score": 0.5})
    assert values(same, *before) == {"score": 0.5}


def test_a_run_says_what_a_trial_was_and_how_it_ended():
    row = ledger(started(7, runners=46)).rows[7]
    assert content.trial_params(row, spec()) == {
        **{"num_env_runners": 46, "train_batch_size": 400, "lr": 0.00025, "seed": 5, "baseline": "none"},
        **{"execution": "real", "environment": "CartPole-v1", "algorithm": "PPO", "sampler": "random"},
    }
    parts = {"runner_class": "StockEnvRunner", "learner_class": "PPOTorchLearner"}
    rows = ledger(
        *(started(0), built(0), ended(0), started(1), replace(built(1), effective=parts), ended(1, "failed")),
        *(started(2), replace(ended(2, "failed"), reason="x" * 9000)),
    ).rows
    assert content.trial_tags(rows[0], ended=False) == {
        **{"engine": "unknown", "status": "finished", "checkpoint": "checkpoints/trial_00000"},
        **{"timing": "oversubscribed", "timing_reason": "3 processes on 2 cores"},
    }
    failed = content.trial_tags(rows[1], ended=False)
    assert (failed["reason"], failed["engine"]) == ("because of failed", "RLlib's own")
    assert len(content.trial_tags(rows[2], ended=False)["reason"]) == 5000


def test_a_study_says_what_it_is_and_who_works_on_it(tmp_path):
    identity = make_folder(tmp_path / "demo", URI).identity()
    tags = content.study_tags(identity, spec(), ledger(opened()), ended=False)
    assert (tags["provenance.git.commit"], tags["cluster.num_nodes"], tags["status"]) == ("abc", "1", "running")
    assert tags["mlflow.source.name"] == "python -m study run demo.yaml"
    assert content.study_tags(identity, spec(), ledger(opened()), ended=True)["status"] == "killed"


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("config_args", "--hf-token s3cret -n 2", "--hf-token *** -n 2"),
        ("config_kwargs", {"api_token": "t0", "hub": {"passwords": ["t0ken"]}, "pad_token": 0},
         {"api_token": "***", "hub": {"passwords": ["***"]}, "pad_token": 0}),
        ("script", {"values": {"lr": 1e-3}, "settings": {"env_config": {"hf_token": "s3cret"}}},
         {"values": {"lr": 1e-3}, "settings": {"env_config": {"hf_token": "***"}}}),
    ],
)  # fmt: skip
def test_the_identity_shows_no_secret_of_a_script(tmp_path, name, given, shown):
    identity = make_folder(tmp_path / "demo", URI).identity()
    text = content.identity_text(replace(identity, spec={**identity.spec, name: given}))
    assert json.loads(text)["spec"][name] == shown
    assert "secret" not in text
