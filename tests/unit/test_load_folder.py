"""The frames of a folder against a second implementation over raw lines, and every kind of bad folder."""

import json
import lzma
import math
from pathlib import Path

import orjson
import pandas as pd
import pytest

import analysis
from analysis import load
from study.errors import AnalysisError
from study.metrics import OF_ITERATIONS, WARMUP_ITERATIONS
from study.records.derived import table_row
from study.records.folder import StudyFolder
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
    synthetic.append(
        folder,
        synthetic.opened(),
        *synthetic.whole_trial(0, length=6),
        *synthetic.whole_trial(1, "failed"),
        synthetic.started(2),
        synthetic.built(2),
        synthetic.iteration(2, 1, iteration_time_s=9.0),
        synthetic.iteration(2, 2, iteration_time_s=9.0),
        synthetic.evaluation(2, 2),
        synthetic.ended(2, "interrupted"),
        synthetic.started(4, runners=4, execution="emulated"),
        synthetic.ended(4, "failed"),
        synthetic.opened(2),
        *synthetic.whole_trial(2, attempt=2, length=4),
        synthetic.started(3),
        replace(synthetic.built(3), timing="measured", provisional=True),
        synthetic.iteration(3, 1),
    )
    return folder


@pytest.fixture
def staged(tmp_path):
    """A complete hold-up study."""
    spec = holdup.holdup_spec()
    return holdup.write_study(tmp_path / "staged", spec, holdup.study_records(spec))


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
        episodes = math.fsum(metrics.get("num_episodes") or 0 for metrics in timed)
        length = math.fsum(metrics.get("episode_len_sum") or 0 for metrics in timed)
        row["episode_len"] = length / episodes if episodes and length else None
        peaks = [line["metrics"].get("peak_rss_mb") for line in lines]
        row["peak_rss_mb"] = max((peak for peak in peaks if peak is not None), default=None)
        result[trial] = row
    return result


def assert_equal(got, expected, name, *, exact=True):
    if expected is None:
        assert pd.isna(got), name
    elif isinstance(expected, float) and not exact:
        assert got == pytest.approx(expected, rel=1e-12), name
    else:
        assert got == expected, name


@pytest.mark.parametrize("which", ["study", "staged", "example"])
def test_the_frame_is_what_the_ledger_says(which, request):
    folder = StudyFolder(EXAMPLE) if which == "example" else request.getfixturevalue(which)
    runs = load.from_folder(folder.path).runs
    ledger = ledger_of(folder.records)
    means = raw_means(folder.records)
    assert runs["trial"].tolist() == sorted(ledger.rows)
    told = (*PARAMETERS, "attempt", "status", "seed", "execution", "timing", "num_cpus", "baseline", "stage", "digest")
    for line in runs.to_dict("records"):
        row = ledger.rows[line["trial"]]
        table = table_row(row)
        for name in (*told, "variant", "stands_for_runners"):
            assert_equal(line[name], table.get(name), name)
        assert_equal(line["reason"], row.reason or None, "reason")
        for name in row.summary.keys() - {"env_steps_per_s"}:
            assert_equal(line[name], table[name], name)
        rate = row.env_steps_per_s()
        assert_equal(line["env_steps_per_s"], row.summary.get("env_steps_per_s") if rate is None else rate, "rate")
        assert_equal(line["startup_time_s"], row.summary.get("startup_time_s", row.startup_time_s), "startup_time_s")
        for name, value in means[line["trial"]].items():
            assert_equal(line[name], value, name, exact=False)


def test_rates_are_totals_over_totals_after_the_first_iteration(tmp_path):
    folder = synthetic.make_folder(tmp_path / "study", "sqlite:////nowhere.db")
    times, steps = [100.0, 1.0, 3.0, 2.0], [400, 400, 200, 300]
    records = [
        synthetic.iteration(0, at, iteration_time_s=time, train_batch_size_actual=float(step), sampling_time_s=time / 2)
        for at, (time, step) in enumerate(zip(times, steps, strict=True), start=1)
    ]
    synthetic.append(folder, synthetic.opened(), synthetic.started(0), synthetic.built(0), *records)
    run = load.from_folder(folder.path).runs.iloc[0]
    assert (run["timed_env_steps"], run["timed_s"], run["timed_iterations"]) == (900, 6.0, 3)
    assert run["env_steps_per_s"] == 150.0  # and neither the mean of rates nor with the 100 s
    assert run["iteration_time_s"] == 2.0
    assert run["sampling_time_s"] == 1.0
    assert run["learning_time_s"] is pd.NA


def test_a_running_trial_shows_how_far_it_is(study):
    run = load.from_folder(study.path).runs.set_index("trial").loc[3]
    assert run["status"] == "running"
    assert run["timing"] is pd.NA
    assert run["timing_reason"] == "not settled yet: 3 processes on 2 cores"
    assert (run["wall_time_s"], run["env_steps"], run["startup_time_s"]) == (0.5, 400, 3.5)
    assert run["final_return"] is pd.NA
    assert run["ended"] is pd.NA


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
    assert iterations["entropy"].isna().all()


def test_the_sheet_tells_every_session_and_the_problems_what_is_unfinished_or_failed(study):
    data = load.from_folder(study.path)
    assert data.kind == "search"
    assert data.sheet["environment"]["id"] == "CartPole-v1"
    assert data.sheet["versions"] == {"ray": "2.60.0"}
    assert data.sheet["counts"] == {"finished": 2, "failed": 2, "interrupted": 0, "running": 1}
    assert [session["session"] for session in data.sheet["sessions"]] == [1, 2]
    json.dumps(data.sheet)
    problems = " ".join(data.problems)
    assert "still running" in problems
    limits = " ".join(analysis.open(study.path).answer().limits)
    for said in ("2 failed runs", "because of failed", "no run has a measured clock"):
        assert said in limits


def test_nothing_to_show_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(AnalysisError, match=r"must be the folder of a study, got none.*Fix"):
        load.from_folder(tmp_path)
    folder = synthetic.make_folder(tmp_path / "empty", "sqlite:////nowhere.db")
    with pytest.raises(AnalysisError, match=r"must have records, got none.*Fix"):
        load.from_folder(folder.path)
    folder.records.write_bytes(b"")
    with pytest.raises(AnalysisError, match="a study needs a session, got none yet"):
        load.from_folder(folder.path)


def test_a_study_without_a_trial_says_so_in_its_answer(tmp_path):
    folder = synthetic.make_folder(tmp_path / "empty", "sqlite:////nowhere.db")
    synthetic.append(folder, synthetic.opened())
    study = analysis.open(folder.path)
    assert study.trials.empty and study.estimates().empty and study.curves.empty
    assert study.answer().sentence == "No answer yet: 0 of 3 trials have ended."
    assert all(table.empty or table.key == "T1" for table in study.tables.values())
    assert not any(figure.drawn for figure in study.figures.values())


def test_a_torn_last_line_is_left_out_and_left_alone(study):
    whole = load.from_folder(study.path)
    with study.records.open("ab") as file:
        file.write(b'{"schema":1,"seq":31,"ti')
    torn = load.from_folder(study.path)
    pd.testing.assert_frame_equal(torn.runs, whole.runs)
    assert study.records.read_bytes().endswith(b'"ti')  # reading repairs nothing


def test_a_space_of_another_version_is_shown_as_written(study):
    content = json.loads(study.identity_file.read_text())
    content["spec"]["budget"] = {"env_steps": "many"}
    study.identity_file.write_text(json.dumps(content))
    data = load.from_folder(study.path)
    assert data.spec is None
    assert data.sheet["environment"]["id"] == "CartPole-v1"
    assert any("not one of this version" in problem and "budget.env_steps" in problem for problem in data.problems)
