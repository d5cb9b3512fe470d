"""What a person sees: the plan, progress, where a study stands, its end, and of an output that cannot be written."""

import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import orjson
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from analysis.status import cautions, read_status
from study.cli import commands as cli
from study.cli.display import answer_of, headline, plan_text, print_end, status_text
from study.designs.registry import make_plan
from study.driver.run import StudyResult
from study.mirrors.mlflow_mirror import MlflowMirror
from study.records.folder import pack
from study.records.ledger import Ledger, ledger_of
from study.records.records import Evaluation, RecordLog, StageDecided, StudyClosed, read_lines
from tests import holdup, synthetic
from tests.driven import Session
from tests.spaces import cluster, spec
from tests.values import replace

ROOT = Path(__file__).resolve().parents[2]
SMALL = cluster(local=(5, 3), memory_mb=24_000)


@pytest.fixture
def folder(tmp_path):
    return synthetic.make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")


# --- before and while it runs -----------------------------------------------------------------------------------------


def test_the_plan_shows_execution_and_the_label_of_each_scale_environment_and_stages():
    rows = [line.split() for line in plan_text(make_plan(spec(), SMALL), spec(), name="demo").splitlines()]
    assert [(row[0], row[2], row[3], row[-1]) for row in rows if row[0].isdigit()] == [
        ("1", "real", "2", "measured"),
        ("2", "real", "3", "measured"),
        ("4", "emulated", "1", "emulated"),
    ]
    stages = plan_text(make_plan(holdup.holdup_spec(), SMALL), holdup.holdup_spec(), name="demo")
    assert "Environment: CartPole-v1. " in stages and "Stages: search, race, confirm." in stages


def test_the_headline_counts_what_runs_and_knows_the_time_left_once_a_trial_has_finished(tmp_path):
    session = Session(tmp_path, spec(execution="emulated", search__num_trials=4))
    first, _ = session.conductor.next_trial(), session.conductor.next_trial()
    session.iterate(first.trial)
    assert headline(session.conductor).split(" · ") == ["0 of 4 trials ended", "2 running (1 starting)"]
    session.rows[first.trial].started -= 60
    session.finish(first.trial)
    assert headline(session.conductor).split(" · ")[-1].startswith("about ")
    session.conductor.end_early("stopped", "received SIGINT")
    text = headline(session.conductor)
    assert text.endswith("stopping: received SIGINT") and "left" not in text


# --- where it stands --------------------------------------------------------------------------------------------------


def rewrite(folder, moments):
    """Give the records of a study other times."""
    lines = folder.records.read_bytes().splitlines()
    content = [orjson.loads(line) | {"time": moment} for line, moment in zip(lines, moments, strict=True)]
    folder.records.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in content))


def status_of(folder, *, at_work, moment=None):
    """Return how a study stands, with a driver that holds it or without."""
    if not at_work:
        return read_status(folder.path, moment=moment)
    with FileLock(folder.path / ".lock"):
        return read_status(folder.path, moment=moment)


def test_while_it_runs_the_page_shows_what_runs_and_for_how_long_and_what_goes_wrong(folder):
    whole = [*synthetic.whole_trial(0), *synthetic.whole_trial(1, "failed")]
    second = [synthetic.iteration(2, 1), synthetic.iteration(2, 2), synthetic.evaluation(2, 2)]
    synthetic.append(folder, synthetic.opened(), *whole, synthetic.started(2), synthetic.built(2), *second)
    started = next(line.time for line in read_lines(folder.records) if getattr(line.record, "trial", None) == 2)
    status = status_of(folder, at_work=True, moment=started + 100)
    (running,) = status.running
    assert (running.trial, running.num_env_runners, running.progress) == (2, 2, 0.5)
    line = next(line for line in status_text(status).splitlines() if line.startswith("trial 2: 2 runners"))
    # 400 steps in 0.5 s, without the first iteration
    assert all(text in line for text in ("in 2 min", "50% done", " 800 "))
    assert (status.num_ended, status.num_trials) == (2, 3)
    assert status.counts == Counter(finished=1, failed=1, running=1)
    texts = [advice.text for advice in status.advice]
    assert "1 trial failed; the latest, trial 1: because of failed" in texts
    assert any(text.startswith("3 of 3 clocks are oversubscribed and in no efficiency table") for text in texts)
    gone = status_of(folder, at_work=False)
    assert (gone.driver, gone.running, gone.left) == ("gone", (), None)
    assert gone.advice[0].text.startswith("The driver ended without saying so")
    assert gone.advice[0].command.endswith(f"--name demo --out {folder.path.parent} --resume")
    assert "1 trial was interrupted; a resume runs it again." in [each.text for each in gone.advice]


@pytest.mark.parametrize(
    ("reason", "state", "resumable"), [("time budget", "out of time", True), ("complete", "complete", False)]
)
def test_an_ended_study_says_how_and_what_goes_on_with_it(folder, reason, state, resumable):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), synthetic.closed(reason))
    status = read_status(folder.path)
    assert (status.driver, status.state) == ("ended", state)
    assert any(each.command.endswith(" --resume") for each in status.advice) == resumable
    assert not any(each.command.endswith(" --resume") for each in status_of(folder, at_work=True).advice)
    packed = read_status(pack(folder, folder.path.parent / "packed").path)
    assert (packed.driver, packed.mirror, packed.counts["finished"]) == ("packed", None, 1)


@pytest.mark.parametrize("done", [0.25, 0.0])
def test_the_time_left_is_the_median_of_what_ended(folder, done):
    ended = [record for number in range(3) for record in synthetic.whole_trial(number, length=1)]
    running = [synthetic.started(3), replace(synthetic.evaluation(3, 1), progress=done)]
    synthetic.append(folder, replace(synthetic.opened(), num_trials=10), *ended, *running)
    # Trials of 10, 20 and 60 s one after another, then one that is a quarter done.
    moments = [0, 0, 1, 2, 3, 10, 10, 11, 12, 13, 30, 30, 31, 32, 33, 90, 90, 95]
    rewrite(folder, [1_000.0 + moment for moment in moments])
    assert status_of(folder, at_work=True, moment=1_100.0).left == (pytest.approx((7 - done) * 20), 3)


def test_silence_far_beyond_the_pace_is_told(folder):
    begun = [synthetic.started(0), synthetic.built(0), synthetic.iteration(0, 1)]
    synthetic.append(folder, synthetic.opened(), *begun)
    rewrite(folder, [1_000.0, 1_001.0, 1_041.0, 1_042.0])
    for silence, told in ((299, False), (301, True)):
        advice = status_of(folder, at_work=True, moment=1_042.0 + silence).advice
        assert any("Nothing was recorded for 301 s." in each.text for each in advice) == told


def test_mlflow_lags_by_the_records_after_its_cursor(folder):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), synthetic.closed())
    lines = [*read_lines(folder.records)]
    mirror = MlflowMirror(folder)
    mirror.last = lines[2]
    mirror.note(experiment_id="1", parent_run_id="r")
    status = read_status(folder.path)
    assert status.mirror.behind == len(lines) - 3
    assert [each.command for each in status.advice if "MLflow" in each.text] == [f"python -m study sync {folder.path}"]
    mirror.last = lines[-1]
    mirror.note()
    assert read_status(folder.path).mirror.behind == 0


def test_a_damaged_line_leaves_what_came_before(folder):
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1))
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join([*lines[:8], b"garbage\n", *lines[8:]]))
    status = read_status(folder.path)
    assert status.counts == Counter(finished=1)
    (problem,) = status.problems
    assert "line 9: must be a record" in problem


def test_stage_and_plan_of_a_holdup_study(tmp_path):
    space = holdup.holdup_spec()
    records = holdup.study_records(space)
    status = read_status(holdup.write_study(tmp_path / "whole", space, records).path)
    assert (status.guessed, status.num_ended) == (False, status.num_trials)
    race = [getattr(each, "next_stage", None) if isinstance(each, StageDecided) else None for each in records]
    begun = read_status(holdup.write_study(tmp_path / "begun", space, records[: race.index("race") + 1]).path)
    assert (begun.stage, begun.guessed) == ("race", True)
    assert " of about " in status_text(begun)


def test_episodes_that_never_end_and_studies_that_learnt_nothing_are_told():
    def never_ending(trial, final):
        """Return the row of a finished trial whose last evaluation was cut in every episode."""
        ledger = Ledger()
        for record in synthetic.whole_trial(trial):
            cut = {"num_cut": len(record.returns)} if isinstance(record, Evaluation) else {}
            ledger.apply(replace(record, **cut), 0.0)
        row = ledger.rows[trial]
        row.summary["final_return"], row.iterations = final, None
        return row

    for finals, learnt in (((100.0, 100.0), True), ((1.0, 24.0), False), ((1.0, 26.0), True), ((1.0,), True)):
        cut, *nothing = cautions(spec(), [never_ending(trial, final) for trial, final in enumerate(finals)])
        assert "evaluation.max_episode_steps=10000" in cut
        assert [text[:19] for text in nothing] == ([] if learnt else ["Nothing was learnt:"]), finals


def test_a_folder_of_studies_is_shown(tmp_path, monkeypatch):
    search = synthetic.make_folder(tmp_path / "a", "sqlite:///x.db")
    synthetic.append(search, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1, "failed"))
    holdup.write_study(tmp_path / "b", holdup.holdup_spec())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "study.json").write_text("garbage")
    text = CliRunner().invoke(cli.app, ["status", str(tmp_path)]).output
    texts = ("2 of 3 trials ended · 1 failed", "82 of 82 trials ended", "c: cannot be read")
    assert [text.count(each) for each in texts] == [1, 1, 1]
    refused = CliRunner().invoke(cli.app, ["status", str(tmp_path / "nowhere")])
    assert "must be the folder of a study" in str(refused.exception)
    monkeypatch.chdir(tmp_path)
    assert "Start one" in CliRunner().invoke(cli.app, ["status"]).output


# --- at the end -------------------------------------------------------------------------------------------------------


def test_a_study_ends_with_its_answer_and_then_with_what_to_type_next(folder, capsys):
    failed = synthetic.whole_trial(2, "failed")
    closed = StudyClosed(session=1, reason="until", detail="for a test")
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1), *failed, closed)
    rows = tuple(ledger_of(folder.records).rows.values())
    result = StudyResult(folder=folder, rows=rows, closed=closed)
    answer = answer_of(folder.path)
    assert not isinstance(answer, str), answer
    print_end(result, "python run_study.py x.yaml --resume", answer)
    text = capsys.readouterr().out
    places = (
        answer.sentence.split(",")[0][:40],
        "demo: at the end of the stage that was asked for (for a test)",
        "3 of 3 trials ended · 1 failed",
        "1 trial failed; the latest",
        "Resume with: python run_study.py x.yaml --resume",
        "python -m study report ",
        "mlflow ui --backend-store-uri",
    )
    found = [text.index(place) for place in places]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("raised", "said"),
    [(ZeroDivisionError("planted"), "The answer cannot be given: ZeroDivisionError"), (KeyboardInterrupt(), "report")],
)
def test_an_answer_that_cannot_be_given_is_a_sentence(tmp_path, monkeypatch, raised, said):
    def broken(folder):
        raise raised

    monkeypatch.setattr("analysis.open", broken)
    assert said in answer_of(tmp_path)


# --- an output that cannot be written ---------------------------------------------------------------------------------


def called(*words, **settings):
    """Return how a call of the installed command ended."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["runner-scaling-study"].partition(":")
    code = f"import sys; from {module} import {name}; sys.argv[0] = 'runner-scaling-study'; {name}()"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, **settings}
    return subprocess.run([sys.executable, "-c", code, *words], **pipes)


DRY_RUN = ("run", "--space", "quickstart.yaml", "--dry-run")


@pytest.mark.parametrize("words", [("run", "--help"), DRY_RUN])
@pytest.mark.parametrize("where", ["a pipe that nobody reads", "nowhere", "letters of one byte"])
def test_an_output_that_does_not_take_all_of_it_ends_no_call_in_a_traceback(words, where):
    settings = {}
    if where == "a pipe that nobody reads":
        read, settings["stdout"] = os.pipe()
        os.close(read)
    elif where == "nowhere":
        settings |= {"stdout": None, "preexec_fn": lambda: os.close(1)}
    else:
        settings |= {"env": {**os.environ, "PYTHONIOENCODING": "ascii"}}
    done = called(*words, **settings)
    assert done.stderr == ""
    assert done.returncode == 0 or words[-1] == "--help"


def test_a_full_disk_is_said_without_a_traceback():
    with Path("/dev/full").open("w") as full:
        done = called("--help", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in done.stderr and "Fix: " in done.stderr


def test_a_log_on_a_full_disk_does_not_end_the_study():
    code = "from study.cli.display import Display; Display().note('a line' * 10_000); print('still there', flush=True)"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.stdout == "still there\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "--study", "1"), "report: Missing argument"),
        (("run", "--trials", "x"), "run: Invalid value for '--trials'"),
        (("statu",), "runner-scaling-study: No such command 'statu'. Did you mean 'status'?"),
    ],
)
def test_a_call_that_is_not_taken_is_told_with_its_place_and_where_to_look(words, said):
    done = called(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr and "Fix: Look at `runner-scaling-study" in done.stderr


@pytest.mark.parametrize(("words", "code"), [(["run", "a.yaml"], 2), (["run", "a.yaml", "--resume"], 75)])
def test_a_study_that_is_there_can_be_resumed_once_the_disk_has_space(tmp_path, monkeypatch, words, code):
    monkeypatch.setattr("sys.argv", ["run_study.py", *words])

    def full(**_):
        with RecordLog(tmp_path / "records.jsonl") as log, monkeypatch.context() as disk:
            disk.setattr("os.write", lambda *_: 0)
            log.append(synthetic.opened())

    monkeypatch.setattr(cli, "get_command", lambda app: full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
