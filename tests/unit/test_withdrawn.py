"""What is gone is answered with one line that says so."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["replay", "analysis/example_table"], "replay"),
        (["export", "analysis/example_study", "--format", "patch"], "--format patch"),
    ],
)
def test_a_command_or_an_option_that_is_gone_is_said_in_one_line(words, where):
    done = subprocess.run([sys.executable, "-m", "study", *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{where}: is withdrawn since version 0.13.0. Fix: ")
