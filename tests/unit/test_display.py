"""What a person sees of plans and results, on narrow and wide terminals."""

import os
import subprocess
import sys

import pytest
from rich.console import Console

from study.display import print_plan, print_result
from study.planning.plan import make_plan
from study.planning.shape import LOCAL, ClusterShape, NodeShape
from study.tracking.ledger import Ledger, best_per_scale
from tests import synthetic
from tests.spaces import spec

SMALL = ClusterShape(nodes=(NodeShape(address=LOCAL, num_cpus=5, physical_cpus=2, memory_mb=24_000),))


def printed(show, *values, width, **options):
    console = Console(width=width, force_terminal=False, record=True, quiet=False)
    with console.capture() as capture:
        show(console, *values, **options)
    return capture.get()


@pytest.mark.parametrize("width", [80, 120])
def test_the_plan_shows_execution_and_the_label_of_each_scale(width):
    lines = printed(print_plan, make_plan(spec(), SMALL), width=width, name="demo").splitlines()
    rows = [line.split() for line in lines if line.split()[0].isdigit()]
    assert [(row[0], row[2], row[3], row[-1]) for row in rows] == [
        ("1", "real", "2", "measured"),
        ("2", "emulated", "1", "emulated"),
        ("4", "emulated", "1", "emulated"),
    ]
    assert max(map(len, lines)) <= width


def test_the_plan_says_what_a_provisional_label_depends_on():
    text = printed(print_plan, make_plan(spec(environment__step_wait_ms=5), SMALL), width=120, name="demo")
    assert text.count(" measured* ") == 2
    assert "measured*: environments wait; oversubscribed if CPU pressure reaches 5%." in text


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        ("emulated", "emulated: the lanes of all runners in few processes; these times"),
        ("oversubscribed", "oversubscribed: more processes than cores"),
        ("tainted", "tainted: a runner or sample was lost or others used its nodes; these times"),
        ("measured", ""),
    ],
)
def test_what_times_are_not_worth_is_said_below_the_table(timing, words):
    ledger = Ledger()
    for record in synthetic.whole_trial(0):
        ledger.apply(record, 0.0)
    row = ledger.rows[0]
    row.setting["minibatch_size"] = 64
    row.timing = timing
    text = printed(print_result, [row], best_per_scale([row]), width=80, table_file="trials.csv")
    assert f" {timing} " in text  # whole on a narrow terminal too
    assert " finished" in text
    notes = [line for line in text.splitlines() if "these times and rates" in line]
    assert [note[: len(words)] for note in notes] == ([words] if words else [])


QUIET = """
import sys
from study.console import SteadyConsole
from study.display import PlainDisplay
display = PlainDisplay(SteadyConsole(file=sys.stderr, width=140))
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
