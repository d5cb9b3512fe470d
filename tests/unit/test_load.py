"""The frames of a folder against a second implementation over raw lines, fingerprints by value, and bad folders."""

import json
import lzma
import math
from pathlib import Path

import orjson
import pandas as pd
import pytest

import analysis
from analysis import load
from analysis.load.columns import ITERATION_COLUMNS
from analysis.load.folder import frame_of
from study.errors import AnalysisError, RecordError
from study.metrics import OF_ITERATIONS, WARMUP_ITERATIONS
from study.records.folder import StudyFolder, table_row
from study.records.ledger import ledger_of
from study.records.records import Evaluation, Iteration, read_lines
from study.space.parameters import PARAMETERS
from tests import holdup, synthetic
from tests.values import replace

EXAMPLE = Path(__file__).resolve().parents[2] / "analysis/example_study"


@pytest.fixture
def study(tmp_path):
    """Finished, failed, started again, emulated and running trials."""
    folder = synthetic.make_folder(tmp_path / "study", "sqlite:////nowhere.db")
    its = synthetic
    first = (its.opened(), *its.whole_trial(0, length=6), *its.whole_trial(1, "failed"), its.started(2), its.built(2))
    ends = (its.iteration(2, 1, iteration_time_s=9.0), its.evaluation(2, 2), its.ended(2, "interrupted"))
    emulated = (its.started(4, runners=4, execution="emulated"), its.ended(4, "failed"))
    second = (its.opened(2), *its.whole_trial(2, attempt=2, length=4), its.started(3))
    running = (replace(its.built(3), timing="measured", provisional=True), its.iteration(3, 1))
    synthetic.append(folder, *first, *ends, *emulated, *second, *running)
    return folder


@pytest.fixture
def staged(tmp_path):
    """A complete hold-up study."""
    spec = holdup.holdup_spec()
    return holdup.write_study(tmp_path / "staged", spec)


def raw_means(records) -> dict[int, dict]:
    """Work out the timed means from raw lines: a second, naive implementation."""
    kept: dict[int, list[dict]] = {}
    attempts: dict[int, int] = {}
    with lzma.open(records) if records.suffix == ".xz" else records.open("rb") as file:
        for raw in file:
            line = orjson.loads(raw)
            if line["kind"] == "trial_started":
                attempts[line["trial"]], kept[line["trial"]] = line["attempt"], []
            elif line["kind"] == "iteration" and line["attempt"] == attempts[line["trial"]]:
                kept[line["trial"]].append(line)
    result = {}
    for trial, lines in kept.items():
        timed = [line["metrics"] for line in lines if line["iteration"] > WARMUP_ITERATIONS]
        row = {"iterations": len(lines) or None, "timed_iterations": len(timed) if lines else None}
        for name in [name for name, how in OF_ITERATIONS.items() if how == "mean"]:
            values = [metrics[name] for metrics in timed if metrics.get(name) is not None]
            row[name] = math.fsum(values) / len(values) if values else None
        result[trial] = row
    return result


@pytest.mark.parametrize("which", ["study", "staged", "example"])
def test_the_frame_is_what_the_ledger_says(which, request):
    folder = StudyFolder(EXAMPLE) if which == "example" else request.getfixturevalue(which)
    runs, ledger, means = load.from_folder(folder.path).runs, ledger_of(folder.records), raw_means(folder.records)
    assert runs["trial"].tolist() == sorted(ledger.rows)
    told = (*PARAMETERS, "attempt", "status", "seed", "execution", "timing", "num_cpus", "baseline", "stage", "digest")
    for line in runs.to_dict("records"):
        row = ledger.rows[line["trial"]]
        expected = {name: table_row(row).get(name) for name in (*told, "variant", "stands_for_runners")}
        expected |= {"reason": row.reason or None, **means[row.trial]}
        expected |= {name: value for name, value in row.summary.items() if name != "env_steps_per_s"}
        for name, value in expected.items():
            wanted = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
            assert pd.isna(line[name]) if value is None else line[name] == wanted, name


def test_rates_are_totals_over_totals_after_the_first_iteration(tmp_path):
    records = [
        synthetic.iteration(0, at, iteration_time_s=time, train_batch_size_actual=float(step), sampling_time_s=time / 2)
        for at, (time, step) in enumerate([(100.0, 400), (1.0, 400), (3.0, 200), (2.0, 300)], start=1)
    ]
    run = study_of(tmp_path, synthetic.started(0), synthetic.built(0), *records).iloc[0]
    assert (run["timed_env_steps"], run["timed_s"], run["timed_iterations"]) == (900, 6.0, 3)
    assert run["env_steps_per_s"] == 150.0  # and neither the mean of rates nor with the 100 s
    assert (run["iteration_time_s"], run["sampling_time_s"]) == (2.0, 1.0)


def test_a_running_trial_shows_how_far_it_is(study):
    run = load.from_folder(study.path).runs.set_index("trial").loc[3]
    assert run["status"] == "running"
    assert run["timing_reason"] == "not settled yet: 3 processes on 2 cores"
    assert (run["wall_time_s"], run["env_steps"], run["startup_time_s"]) == (0.5, 400, 3.5)
    assert run["timing"] is run["final_return"] is run["ended"] is pd.NA


def test_iterations_and_evaluations_are_those_of_the_latest_attempts(study):
    data, latest = load.from_folder(study.path), {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}
    lines = [line.record for line in read_lines(study.records)]
    own = [each for each in lines if isinstance(each, (Iteration, Evaluation)) and latest[each.trial] == each.attempt]
    iterations, evaluations = data.iterations(), data.evaluations()
    assert list(iterations) == list(load.ITERATION_COLUMNS)
    wanted = [each for each in own if isinstance(each, Iteration)]
    for name in ("trial", "iteration", "env_steps", "wall_time_s"):
        assert iterations[name].tolist() == [getattr(each, name) for each in wanted]
    for name in wanted[0].metrics.keys() & set(iterations):
        known = [value for each in wanted if (value := each.metrics[name]) is not None]
        assert iterations[name].dropna().tolist() == known
    seen = [each for each in own if isinstance(each, Evaluation)]
    assert evaluations["eval_return"].tolist() == [sum(each.returns) / len(each.returns) for each in seen]
    assert evaluations["num_episodes"].tolist() == [len(each.returns) for each in seen]


def test_the_sheet_and_the_problems_say_what_is_known_unfinished_or_failed(study):
    data = load.from_folder(study.path)
    assert (data.kind, data.sheet["environment"]["id"], data.sheet["num_sessions"]) == ("search", "CartPole-v1", 2)
    assert data.sheet["versions"] == {"ray": "2.60.0"}
    json.dumps(data.sheet)
    assert "still running" in " ".join(data.problems)
    limits = " ".join(analysis.open(study.path).answer().limits)
    for said in ("2 failed runs", "because of failed", "no run has a measured clock"):
        assert said in limits


def test_nothing_to_show_is_an_error_with_a_way_out_or_an_answer_that_says_so(tmp_path):
    with pytest.raises(AnalysisError, match=r"must be the folder of a study, got none.*Fix"):
        load.from_folder(tmp_path)
    folder = synthetic.make_folder(tmp_path / "empty", "sqlite:////nowhere.db")
    with pytest.raises(AnalysisError, match=r"must have records, got none.*Fix"):
        load.from_folder(folder.path)
    folder.records.write_bytes(b"")
    with pytest.raises(AnalysisError, match="a study needs a session, got none yet"):
        load.from_folder(folder.path)
    synthetic.append(folder, synthetic.opened())
    study = analysis.open(folder.path)
    assert study.trials.empty and study.estimates().empty and study.curves.empty and study.evaluations.empty
    assert study.answer().sentence == "No answer yet: 0 of 3 trials have ended."
    assert all(table.empty for table in study.tables.values())
    assert not any(figure.drawn for figure in study.figures.values())


def test_a_space_of_another_version_is_shown_as_written(study):
    content = json.loads(study.identity_file.read_text())
    content["spec"]["budget"] = {"env_steps": "many"}
    study.identity_file.write_text(json.dumps(content))
    data = load.from_folder(study.path)
    assert data.spec is None and data.sheet["environment"]["id"] == "CartPole-v1"
    assert any("not one of this version" in problem and "budget.env_steps" in problem for problem in data.problems)


EFFECTIVE = {"runner_class": "BatchedEnvRunner", "torch_threads_learner": 2, "num_learners": 0, "hostnames": ["n0"]}


def study_of(tmp_path, *records):
    folder = synthetic.make_folder(tmp_path / "a", "sqlite:////nowhere.db")
    synthetic.append(folder, synthetic.opened(), *records)
    return load.from_folder(folder.path).runs.set_index("trial")


def with_setting(trial, **changes):
    record = synthetic.started(trial)
    return replace(record, setting=record.setting | changes)


def built(trial, **effective):
    return replace(synthetic.built(trial), effective=EFFECTIVE | effective)


def test_scale_seed_and_placement_are_not_in_the_fingerprint_and_what_ran_is(tmp_path):
    first, second = with_setting(0), replace(with_setting(1, num_env_runners=46), seed=77, num_cpus=47)
    others = [({}, {"torch_threads_learner": 4}), ({}, {"runner_class": "SingleAgentEnvRunner"})]
    others += [({name: value}, {}) for name, value in (("train_batch_size", 401), ("lr", 0.1), ("minibatch_size", 8))]
    numbered = enumerate(others, start=2)
    records = [
        each for at, (setting, effective) in numbered for each in (with_setting(at, **setting), built(at, **effective))
    ]
    runs = study_of(tmp_path, first, built(0), second, built(1), *records)
    assert runs.loc[0, "fingerprint"] == runs.loc[1, "fingerprint"]
    assert runs["fingerprint"].nunique() == 1 + len(others)
    content = json.loads(runs.loc[0, "fingerprint"])
    assert list(content) == sorted(content)
    assert not {"num_env_runners", "num_cpus", "seed", "stage", "nodes"} & content.keys()
    assert (content["train_batch_size"], content["lr"]) == (400, 0.00025)
    assert (content["environment"]["id"], content["versions"]) == ("CartPole-v1", {"ray": "2.60.0"})
    assert runs.loc[1, ["learner_threads", "num_learners", "num_nodes"]].tolist() == [2, 0, 2]


def test_learners_are_in_the_fingerprint_as_built_else_as_asked_for(tmp_path):
    runs = study_of(
        tmp_path,
        *(with_setting(0), built(0)),
        *(with_setting(1, num_learners=2), built(1, num_learners=2)),
        *(with_setting(2, num_learners=2), synthetic.ended(2, "failed")),
        *(with_setting(3), synthetic.built(3)),  # a record that does not tell: the space does
    )
    assert (
        [json.loads(text)["num_learners"] for text in runs["fingerprint"]]
        == runs["num_learners"].tolist()
        == [0, 2, 2, 0]
    )
    # One that never came up counts with those of as many learners, by what was read back from them.
    assert runs.loc[1, "fingerprint"] == runs.loc[2, "fingerprint"] != runs.loc[0, "fingerprint"]
    assert runs.loc[2, "learner_threads"] is pd.NA


def test_absent_is_na_and_never_zero():
    lines = {name: [None, None] for name in ITERATION_COLUMNS} | {"trial": [0, 1], "iteration": [1, 1]}
    frame = frame_of(lines | {"kl": [0.0, None]}, ITERATION_COLUMNS, where="here")
    assert frame["kl"].tolist() == [0.0, pd.NA]
    assert frame["env_steps"].isna().all()
    with pytest.raises(RecordError, match=r"here: kl must hold values of type Float64 alone"):
        frame_of(lines | {"kl": [0.0, "much"]}, ITERATION_COLUMNS, where="here")
