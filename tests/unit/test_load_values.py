"""Columns and fingerprints, by value."""

import json
from typing import get_args

import pandas as pd
import pytest

from analysis import load
from analysis.fingerprint import common, fingerprint
from analysis.load.columns import ITERATION_COLUMNS
from analysis.load.frames import frame_of
from study.errors import RecordError
from study.space.settings import Variant, spec_of
from tests import holdup, synthetic
from tests.values import replace

EFFECTIVE = {"runner_class": "BatchedEnvRunner", "torch_threads_learner": 2, "num_learners": 0, "hostnames": ["n0"]}


def study_of(tmp_path, *records):
    folder = synthetic.make_folder(tmp_path, "sqlite:////nowhere.db")
    synthetic.append(folder, synthetic.opened(), *records)
    return load.from_folder(folder.path).runs.set_index("trial")


def with_setting(trial, **changes):
    record = synthetic.started(trial)
    return replace(record, setting=record.setting | changes)


def built(trial, **effective):
    return replace(synthetic.built(trial), effective=EFFECTIVE | effective)


def test_scale_seed_and_placement_are_not_in_the_fingerprint(tmp_path):
    first, second = with_setting(0), replace(with_setting(1, num_env_runners=46), seed=77, num_cpus=47)
    runs = study_of(tmp_path / "a", first, built(0), second, built(1))
    assert runs["fingerprint"].nunique() == 1
    content = json.loads(runs["fingerprint"].iloc[0])
    assert list(content) == sorted(content)
    assert not {"num_env_runners", "num_cpus", "seed", "stage", "nodes"} & content.keys()
    assert (content["train_batch_size"], content["lr"]) == (400, 0.00025)
    assert content["environment"]["id"] == "CartPole-v1"
    assert content["versions"] == {"ray": "2.60.0"}
    assert runs["learner_threads"].tolist() == [2, 2]
    assert runs["num_learners"].tolist() == [0, 0]
    assert runs["num_nodes"].tolist() == [2, 2]


def test_learners_are_in_the_fingerprint_as_built_else_as_asked_for(tmp_path):
    runs = study_of(
        tmp_path / "a",
        *(with_setting(0), built(0)),
        *(with_setting(1, num_learners=2), built(1, num_learners=2)),
        *(with_setting(2, num_learners=2), synthetic.ended(2, "failed")),
        *(with_setting(3), synthetic.built(3)),  # a record that does not tell: the space does
    )
    assert runs["num_learners"].tolist() == [0, 2, 2, 0]
    assert [json.loads(text)["num_learners"] for text in runs["fingerprint"]] == [0, 2, 2, 0]
    # The failed one counts with those of as many learners, by what was read back from them.
    assert runs.loc[1, "fingerprint"] == runs.loc[2, "fingerprint"] != runs.loc[0, "fingerprint"]


@pytest.mark.parametrize(
    ("setting", "effective"),
    [
        *(({name: value}, {}) for name, value in (("train_batch_size", 401), ("lr", 0.1), ("minibatch_size", 8))),
        ({}, {"torch_threads_learner": 4}),
        ({}, {"runner_class": "SingleAgentEnvRunner"}),
    ],
)
def test_the_workload_and_what_ran_it_are_in_the_fingerprint(tmp_path, setting, effective):
    records = (with_setting(0), built(0), with_setting(1, **setting), built(1, **effective))
    assert study_of(tmp_path / "a", *records)["fingerprint"].nunique() == 2


@pytest.mark.parametrize("variant", get_args(Variant))
def test_a_variant_is_the_workload_of_the_space_that_it_runs_under(variant):
    spec = holdup.holdup_spec()

    def of(spec, variant=None):
        return common(spec.to_json(), {}, variant)

    assert of(spec, variant) == of(spec_of(spec, variant))
    assert len({fingerprint(of(spec, each)) for each in get_args(Variant)}) == 2


def test_a_trial_that_never_came_up_belongs_to_the_workload_of_those_that_did(tmp_path):
    runs = study_of(
        tmp_path / "a",
        *(with_setting(0), built(0)),
        *(with_setting(1), synthetic.ended(1, "failed")),
        *(with_setting(2, lr=0.5), synthetic.ended(2, "failed")),
    )
    assert runs.loc[1, "fingerprint"] == runs.loc[0, "fingerprint"]
    assert runs.loc[2, "fingerprint"] != runs.loc[0, "fingerprint"]
    assert runs.loc[1, "learner_threads"] is pd.NA


def test_absent_is_na_and_never_zero():
    lines = {name: [None, None] for name in ITERATION_COLUMNS} | {"trial": [0, 1], "iteration": [1, 1]}
    lines["kl"] = [0.0, None]
    frame = frame_of(lines, ITERATION_COLUMNS, where="here")
    assert frame["kl"].tolist() == [0.0, pd.NA]
    assert frame["env_steps"].isna().all()
    with pytest.raises(RecordError, match=r"here: trial 1: kl must be a number, got True"):
        frame_of(lines | {"kl": [0.0, True]}, ITERATION_COLUMNS, where="here")
