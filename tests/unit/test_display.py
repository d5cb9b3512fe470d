"""What a person sees of plans and results, on narrow and wide terminals."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from analysis.status import cautions
from study.cli.display import Display, answer_of, headline, print_end, print_plan
from study.designs.registry import design_of, make_plan
from study.driver.conductor import Stop
from study.driver.run import StudyResult
from study.records.ledger import Ledger, ledger_of
from study.records.records import Evaluation, StudyClosed
from tests import synthetic
from tests.holdup import holdup_spec
from tests.spaces import cluster, spec
from tests.values import replace

SMALL = cluster(local=(5, 3), memory_mb=24_000)


def printed(show, *values, width, terminal=False, **options):
    console = Console(width=width, force_terminal=terminal, color_system=None, record=True, quiet=False)
    with console.capture() as capture:
        show(console, *values, **options)
    return capture.get()


def test_the_plan_shows_execution_and_the_label_of_each_scale():
    lines = printed(print_plan, make_plan(spec(), SMALL), spec(), width=80, name="demo").splitlines()
    rows = [line.split() for line in lines if line.split()[0].isdigit()]
    assert [(row[0], row[2], row[3], row[-1]) for row in rows] == [
        ("1", "real", "2", "measured"),
        ("2", "real", "3", "measured"),
        ("4", "emulated", "1", "emulated"),
    ]


def test_the_plan_names_environment_and_stages():
    stages = printed(print_plan, make_plan(holdup_spec(), SMALL), holdup_spec(), width=140, name="demo")
    assert "Environment: CartPole-v1. " in stages and "Stages: search, race, confirm." in stages


QUIET = """
import sys
from study.console import SteadyConsole
from study.cli.display import Display
display = Display(SteadyConsole(file=sys.stderr, width=140))
for _ in range(3):
    display.note("a line" * 10_000)
print("still there", flush=True)
"""


@pytest.mark.parametrize("where", ["a pipe that nobody reads", "a full disk"])
def test_a_log_that_cannot_be_written_does_not_end_the_study(where):
    read, write = os.pipe() if where == "a pipe that nobody reads" else (None, os.open("/dev/full", os.O_WRONLY))
    if read is not None:
        os.close(read)
    done = subprocess.run([sys.executable, "-c", QUIET], stdout=subprocess.PIPE, stderr=write, text=True)
    os.close(write)
    assert done.stdout == "still there\n"
    assert done.returncode == 0 or where == "a full disk"  # Python itself minds what it cannot flush


def course(*records, num_trials=4, stop=None):
    """Return what the display asks of a conductor, after records that were written a minute apart."""
    ledger = Ledger()
    for minute, record in enumerate(records):
        ledger.apply(record, 60.0 * minute)
    plan, space = SimpleNamespace(num_trials=num_trials), spec()
    return SimpleNamespace(ledger=ledger, plan=plan, spec=space, design=design_of(space), phase="", stop=stop)


def test_the_headline_counts_what_runs():
    built = course(synthetic.started(0), synthetic.built(0), synthetic.started(1))
    assert headline(built).split(" · ") == ["0 of 4 trials ended", "2 running (1 starting)"]


def test_the_time_left_is_known_once_a_trial_has_finished_and_until_the_study_stops():
    begun = course(synthetic.started(0), synthetic.built(0), synthetic.iteration(0, 1))
    assert "left" not in headline(begun)
    assert headline(course(*synthetic.whole_trial(0))).split(" · ")[-1].startswith("about ")
    text = headline(course(*synthetic.whole_trial(0), stop=Stop(reason="stopped", detail="received SIGINT")))
    assert text.endswith("stopping: received SIGINT") and "left" not in text


def test_lines_say_each_change_of_a_trial_once():
    console, session = Console(width=140, record=True, file=io.StringIO()), course(synthetic.started(0))
    display = Display(console)
    display.watch(session)
    for record in [*synthetic.whole_trial(0)][1:]:
        session.ledger.apply(record, 60.0)
        display.update()
    lines = [line for line in console.export_text().splitlines() if "trial 0: " in line]
    assert [line.count("of training") for line in lines] == [1]


def never_ending(trial=0, final=100.0):
    """Return the row of a finished trial whose last evaluation was cut in every episode."""
    ledger = Ledger()
    for record in synthetic.whole_trial(trial):
        if isinstance(record, Evaluation):
            record = replace(record, num_cut=len(record.returns))
        ledger.apply(record, 0.0)
    row = ledger.rows[trial]
    row.setting["minibatch_size"], row.summary["final_return"], row.iterations = 64, final, None
    return row


def test_episodes_that_never_end_and_studies_that_learnt_nothing_are_told():
    (cut,) = cautions(spec(), [never_ending(0), never_ending(1)])
    assert "evaluation.max_episode_steps=10000" in cut
    _, nothing = cautions(spec(), [never_ending(0, final=1.0), never_ending(1, final=24.0)])
    assert nothing.startswith("Nothing was learnt")
    assert len(list(cautions(spec(), [never_ending(0, final=1.0), never_ending(1, final=26.0)]))) == 1
    assert len(list(cautions(spec(), [never_ending(0, final=1.0)]))) == 1, "one setting is not the study"


def test_a_study_ends_with_its_answer_and_then_with_what_to_type_next(tmp_path):
    folder = synthetic.make_folder(tmp_path / "demo", f"sqlite:///{tmp_path}/mlflow.db")
    failed = synthetic.whole_trial(2, "failed")
    closed, identity = StudyClosed(session=1, reason="until", detail="for a test"), folder.identity()
    synthetic.append(folder, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1), *failed, closed)
    rows = tuple(ledger_of(folder.records).rows.values())
    result = StudyResult(folder=folder, identity=identity, rows=rows, closed=closed, mirrors=())
    answer = answer_of(folder.path)
    assert not isinstance(answer, str), answer
    text = printed(print_end, result, "python run_study.py x.yaml --resume", answer, width=100, terminal=True)
    places = [
        answer.sentence.split(",")[0][:40],
        "demo: at the end of the stage that was asked for (for a test)",
        "3 of 3 trials ended (2 finished, 1 failed)",
        "1 trial failed; the latest",
    ]
    places += [
        "Resume with: python run_study.py x.yaml --resume",
        "python -m study report ",
        "mlflow ui --backend-store-uri",
    ]
    found = [text.index(place) for place in places]
    assert found == sorted(found)
    assert "The answer is away." in printed(print_end, result, "", "The answer is away.", width=100)


def test_an_answer_that_cannot_be_given_is_a_sentence(tmp_path, monkeypatch):
    assert "must be the folder of a study" in answer_of(tmp_path / "nowhere")
    monkeypatch.setattr("analysis.open", lambda folder: 1 // 0)
    assert answer_of(tmp_path).startswith("The answer cannot be given: ZeroDivisionError: ")

    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("analysis.open", interrupted)
    assert "python -m study report" in answer_of(tmp_path)
