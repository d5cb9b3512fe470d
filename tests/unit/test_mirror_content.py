"""What MLflow gets of a record: values worked out by hand."""

import json
import math
from dataclasses import replace

from study.mirrors import mlflow_content as content
from study.records.records import Evaluation, Iteration, StudyOpened, TrialEnded
from tests.spaces import spec
from tests.synthetic import built, ended, evaluation, iteration, opened, started


def place(process, number, node, host, *runners):
    return {
        "process": process,
        "number": number,
        "runners": list(runners),
        "node": node,
        "host": host,
        "num_cpus": 1,
    }


PLACEMENT = [
    place("main", 0, "n0", "gros-12"),
    *(place("runner", number, "n0", "gros-12", number) for number in (1, 2, 3, 7)),
    place("runner", 4, "n1", "gros-13", 4),
    place("learner", 1, "n1", "gros-13"),
    place("learner", 2, "n1", "gros-13"),
]


def values(points) -> dict[str, float]:
    assert len({point.key for point in points}) == len(points)
    return {point.key: point.value for point in points}


def test_an_iteration():
    points = content.iteration_points(iteration(0, 3), 1234)
    assert values(points) == {
        "iteration_time_s": 0.5,
        "train_batch_size_actual": 400.0,
        "num_episodes": 2.0,
        "kl": 0.03,
        "training_return": 45.0,  # 90 / 2
        "env_steps_per_s": 800.0,
        "wall_time_s": 1.5,
        "env_steps": 1200.0,
    }
    assert {(point.time_ms, point.step) for point in points} == {(1234, 1200)}


def test_no_episode_means_no_return():
    assert "training_return" not in values(content.iteration_points(iteration(0, 1), 0))


def test_what_is_not_finite_is_not_sent():
    record = iteration(0, 2, kl=math.nan, entropy=math.inf, vf_loss=-math.inf)
    assert not {"kl", "entropy", "vf_loss"} & set(values(content.iteration_points(record, 0)))


def test_a_quantity_of_another_version_or_grain_is_not_sent():
    record = iteration(0, 2, surprise=1.0, score=1.0)
    assert not {"surprise", "score"} & set(values(content.iteration_points(record, 0)))


def test_an_evaluation_is_the_mean_of_its_returns():
    assert values(content.evaluation_points(evaluation(0, 2), 0)) == {"eval_return": 30.0}


def test_an_evaluation_without_episodes_has_no_return():
    empty = Evaluation(**{name: getattr(evaluation(0, 2), name) for name in Evaluation.__slots__} | {"returns": []})
    assert content.evaluation_points(empty, 0) == []


def test_a_summary_goes_to_the_last_step():
    points = content.ended_points(ended(0, "failed"), 99, 1200)
    assert values(points) == {"env_steps_per_s": 777.0, "score": 0.0, "wall_time_s": 1.5}
    assert {(point.time_ms, point.step) for point in points} == {(99, 1200)}


def test_params_are_flat_and_the_same_for_every_trial():
    params = content.trial_params(started(7, runners=46), spec())
    assert params == {
        "num_env_runners": "46",
        "train_batch_size": "400",
        "lr": "0.00025",
        "seed": "5",
        "anchor": "none",
        "execution": "real",
        "environment": "CartPole-v1",
        "algorithm": "PPO",
        "sampler": "random",
    }


def test_names_are_for_people():
    assert content.trial_name(started(7, runners=46)) == "trial 7 · 46 runners"
    assert content.trial_name(started(0, runners=1)) == "trial 0 · 1 runner"


def test_a_run_and_its_study_name_the_engine():
    parts = {"runner_class": "StockEnvRunner", "learner_class": "PPOTorchLearner"}
    assert content.built_tags(replace(built(0), effective=parts))["engine"] == "RLlib's own"


def test_tags():
    assert content.built_tags(built(0)) == {
        "engine": "unknown",
        "timing": "oversubscribed",
        "timing_reason": "3 processes on 2 cores",
        "nodes": "n0, n1",
        "effective": json.dumps(built(0).effective),
    }
    long = replace(built(0), effective={"fallbacks": ["x" * 5000]})
    assert "effective" not in content.built_tags(long)  # what is cut is no JSON
    assert content.ended_tags(ended(0)) == {
        "status": "finished",
        "checkpoint": "checkpoints/trial_00000",
        "timing": "oversubscribed",
        "timing_reason": "3 processes on 2 cores",
    }
    placed = replace(built(0), placement=PLACEMENT)
    assert content.built_tags(placed)["placement"] == "gros-12: main, runners 1-3, 7; gros-13: runner 4, learners 1-2"
    same = [{**place, "host": "here"} for place in PLACEMENT]
    text = content.built_tags(replace(built(0), placement=same))["placement"]
    assert text == "n0 (here): main, runners 1-3, 7; n1 (here): runner 4, learners 1-2"
    tags = content.opened_tags(opened())
    assert tags["provenance.git.commit"] == "abc"
    assert tags["cluster.num_nodes"] == "1"


def test_a_long_reason_is_cut():
    record = TrialEnded(trial=0, attempt=1, status="failed", reason="x" * 9000, summary={}, checkpoint=None)
    assert len(content.ended_tags(record)["reason"]) == 5000


def test_every_outcome_has_a_status():
    assert set(content.RUN_STATUS.values()) == {"FINISHED", "FAILED", "KILLED"}
    assert content.STUDY_STATUS["time budget"] == "KILLED"
    assert isinstance(opened(), StudyOpened)
    assert isinstance(iteration(0, 1), Iteration)


def test_episodes_that_were_cut_are_a_tag_of_the_trial():
    summary = {"num_cut": 6.0, "num_eval_episodes": 8.0}
    assert content.ended_tags(replace(ended(0), summary=summary))["episodes_cut"] == "6 of 8"
    assert "episodes_cut" not in content.ended_tags(replace(ended(0), summary={**summary, "num_cut": 0.0}))
