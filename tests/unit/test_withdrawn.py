"""What is gone is answered with one line that says so."""

import sys

import pytest

from study.cli import commands


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["replay", "analysis/example_table"], "replay"),
        (["export", "analysis/example_study", "--format", "patch"], "export --format patch"),
        (["export", "--format=patch", "analysis/example_study"], "export --format patch"),
    ],
)
def test_a_command_or_an_option_that_is_gone_is_said_in_one_line(words, where, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["study", *words])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(f"{where}: was withdrawn in version 0.13.0. Fix: ")
