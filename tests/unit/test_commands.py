"""The table of commands, and the commands that list things. Mistakes are in tests/e2e/test_bad_input.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.records.records import RecordLog
from tests import holdup, synthetic

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("words", [("schema",), ("--help",)])
def test_a_full_disk_is_said_without_a_traceback(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "study", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    said = "output: must be writable (No space left on device). Fix: Free some space, then run the same command again."
    assert (done.returncode, done.stderr) == (2, f"{said}\n")


@pytest.mark.parametrize(("words", "code"), [(["run", "a.yaml"], 2), (["run", "a.yaml", "--resume"], 75)])
def test_a_study_that_is_there_can_be_resumed_once_the_disk_has_space(tmp_path, monkeypatch, words, code):
    monkeypatch.setattr("sys.argv", ["run_study.py", *words])

    def full():
        with RecordLog(tmp_path / "records.jsonl") as log, monkeypatch.context() as disk:
            disk.setattr("os.write", lambda *_: 0)
            log.append(synthetic.opened())

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code


def test_status_of_a_folder_lists_kind_state_trials_and_best(tmp_path, monkeypatch):
    search = synthetic.make_folder(tmp_path / "a", "sqlite:///x.db")
    synthetic.append(search, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1, "failed"))
    holdup.write_study(tmp_path / "b", holdup.holdup_spec(), holdup.study_records(holdup.holdup_spec()))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "study.json").write_text("garbage")
    said = CliRunner().invoke(cli.app, ["status", str(tmp_path)], catch_exceptions=False).output
    _, first, second, third, *_ = (line.split() for line in said.splitlines())
    assert (first[0], first[1], first[2], first[4]) == ("a", "search", "2", "1")
    assert (second[:2], second[2] == second[3]) == (["b", "holdup"], True)
    assert third[:3] == ["c", "-", "-"] and "cannot be read" in said
    monkeypatch.chdir(tmp_path)
    assert "Start one" in CliRunner().invoke(cli.app, ["status"]).output
