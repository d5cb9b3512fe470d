"""Where a study stands: while its driver works, after it has ended or was killed, and when its records are damaged."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from filelock import FileLock
from rich.console import Console
from typer.testing import CliRunner

from analysis.status import read_status
from study.cli.commands import app
from study.cli.display import show
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.derived import pack
from study.records.records import StageDecided, read_lines
from tests import holdup, synthetic
from tests.values import replace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    return synthetic.make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def at_work(folder):
    """Hold the study as a driver does."""
    with FileLock(folder.path / ".lock"):
        yield folder


def printed(status, width):
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        show(console, status)
    return capture.get()


def rewrite(folder, moments):
    """Give the records of a study other times."""
    lines = folder.records.read_bytes().splitlines()
    content = [orjson.loads(line) | {"time": moment} for line, moment in zip(lines, moments, strict=True)]
    folder.records.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in content))


def test_while_it_runs_the_page_shows_what_runs_and_for_how_long(at_work):
    synthetic.append(
        at_work,
        synthetic.opened(),
        *synthetic.whole_trial(0),
        *synthetic.whole_trial(1, "failed"),
        synthetic.started(2),
        synthetic.built(2),
        synthetic.iteration(2, 1),
        synthetic.iteration(2, 2),
        synthetic.evaluation(2, 2),
    )
    started = next(line.time for line in read_lines(at_work.records) if getattr(line.record, "trial", None) == 2)
    status = read_status(at_work.path, moment=started + 100)
    (running,) = status.running
    assert (running.trial, running.num_env_runners, running.progress) == (2, 2, 0.5)
    line = next(line for line in printed(status, 140).splitlines() if line.split()[:2] == ["2", "2"])
    assert "2 min" in line and "50%" in line
    assert " 800 " in line  # 400 steps in 0.5 s, without the first iteration
    assert [row["trial"] for row in status.to_json()["running"]] == [2]
    assert (status.num_ended, status.num_trials) == (2, 3)
    assert status.counts == {"finished": 1, "failed": 1, "interrupted": 0, "running": 1}
    texts = [advice.text for advice in status.advice]
    assert "1 trial failed; the latest, trial 1: because of failed" in texts
    assert any(text.startswith("3 of 3 clocks are oversubscribed and in no efficiency table") for text in texts)


def test_trials_of_a_dead_driver_do_not_run(folder):
    synthetic.append(folder, synthetic.opened(), synthetic.started(0), synthetic.built(0))
    status = read_status(folder.path)
    assert (status.driver, status.running, status.left) == ("gone", (), None)
    assert status.advice[0].text.startswith("The driver ended without saying so")
    assert status.advice[0].command.endswith(f"--name demo --out {folder.path.parent} --resume")
    texts = [each.text for each in status.advice]
    assert "1 trial was interrupted; a resume runs it again." in texts
    assert any(text.startswith("1 of 1 clock is oversubscribed and in") for text in texts)


@pytest.mark.parametrize(
    ("reason", "state", "resumable"), [("time budget", "out of time", True), ("complete", "complete", False)]
)
def test_an_ended_study_says_how_and_what_goes_on_with_it(folder, reason, state, resumable):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), synthetic.closed(reason))
    status = read_status(folder.path)
    assert (status.driver, status.state) == ("ended", state)
    assert any(each.command.endswith(" --resume") for each in status.advice) == resumable
    with FileLock(folder.path / ".lock"):
        assert not any(each.command.endswith(" --resume") for each in read_status(folder.path).advice)
    packed = read_status(pack(folder, folder.path.parent / "packed").path)
    assert (packed.driver, packed.mirror, packed.counts["finished"]) == ("packed", None, 1)


@pytest.mark.parametrize("done", [0.25, 0.0])
def test_the_time_left_is_the_median_of_what_ended(at_work, done):
    synthetic.append(
        at_work,
        replace(synthetic.opened(), num_trials=10),
        *(record for number in range(3) for record in synthetic.whole_trial(number, length=1)),
        synthetic.started(3),
        replace(synthetic.evaluation(3, 1), progress=done),
    )
    # Trials of 10, 20 and 60 s one after another, then one that is a quarter done.
    moments = [0, 0, 1, 2, 3, 10, 10, 11, 12, 13, 30, 30, 31, 32, 33, 90, 90, 95]
    rewrite(at_work, [1_000.0 + moment for moment in moments])
    status = read_status(at_work.path, moment=1_100.0)
    assert status.left == (pytest.approx((7 - done) * 20), 3)


def test_silence_far_beyond_the_pace_is_told(at_work):
    synthetic.append(at_work, synthetic.opened(), synthetic.started(0), synthetic.built(0), synthetic.iteration(0, 1))
    rewrite(at_work, [1_000.0, 1_001.0, 1_041.0, 1_042.0])
    well, quiet = (read_status(at_work.path, moment=1_042.0 + silence) for silence in (299, 301))
    assert not any("may hang" in each.text for each in well.advice)
    assert any("Nothing was recorded for 301 s." in each.text for each in quiet.advice)


def test_mlflow_lags_by_the_records_after_its_cursor(folder):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), synthetic.closed())
    ends = [line.end for line in read_lines(folder.records)]
    mirror = MlflowMirror(folder)
    mirror.note(experiment_id="1", parent_run_id="r", offset=ends[2], seq=3)
    status = read_status(folder.path)
    assert status.mirror.behind == len(ends) - 3
    assert [each.command for each in status.advice if "MLflow" in each.text] == [f"python -m study sync {folder.path}"]
    mirror.note(offset=ends[-1], seq=len(ends))
    assert read_status(folder.path).mirror.behind == 0


def test_a_damaged_line_leaves_what_came_before(folder):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1))
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join([*lines[:8], b"garbage\n", *lines[8:]]))
    status = read_status(folder.path)
    assert status.counts == {"finished": 1, "failed": 0, "interrupted": 0, "running": 0}
    (problem,) = status.problems
    assert "line 9: must be a record" in problem
    assert problem.endswith("What follows is the state after the 8 records before it.")


def test_stage_and_plan_of_a_holdup_study(tmp_path):
    spec = holdup.holdup_spec()
    records = holdup.study_records(spec)
    whole = holdup.write_study(tmp_path / "whole", spec, records)
    status = read_status(whole.path)
    assert (status.guessed, status.num_ended) == (False, status.num_trials)
    race = next(
        place for place, each in enumerate(records) if isinstance(each, StageDecided) and each.next_stage == "race"
    )
    begun = read_status(holdup.write_study(tmp_path / "begun", spec, records[: race + 1]).path)
    assert (begun.stage, begun.guessed) == ("race", True)
    assert " of about " in printed(begun, 80)


def test_the_command_answers_and_refuses_and_loads_neither_engines_nor_pandas(folder, tmp_path):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), synthetic.closed())
    code = (
        "import sys; from study.cli.commands import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print('loaded:', *{'ray', 'torch', 'mlflow', 'optuna', 'pandas', 'scipy'} & sys.modules.keys())"
    )
    words = [sys.executable, "-c", code, "status", str(folder.path), "--json"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout.split("loaded:")[-1].split()) == (0, [])
    assert '"state": "complete"' in shown.stdout
    refused = CliRunner().invoke(app, ["status", str(tmp_path / "nowhere")])
    assert "must be the folder of a study" in str(refused.exception)
