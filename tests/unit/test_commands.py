"""The table of commands, and the commands that list things. Mistakes are in tests/e2e/test_bad_input.py."""

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study.adopted.loading import load_space
from study.cli import commands as cli
from study.cli.run import _resume_command
from study.options import space_names, study_folders
from study.records.log import RecordLog
from study.space.space_file import SHIPPED
from tests import holdup, synthetic

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_that_resumes_is_the_one_that_was_typed(monkeypatch):
    typed = ["run_study.py", "my space.yaml", "--set", "parameters.lr={low: 1e-4, high: 1e-2}", "--set=execution=real"]
    mirrors = ["--tracking-uri", "sqlite:///a.db", "--optuna-storage=postgresql://db/x"]
    monkeypatch.setattr(sys, "argv", [*typed, *mirrors, "--resume-or-start"])
    assert shlex.split(_resume_command()) == ["python", *typed, *mirrors, "--resume"]
    secret = ["--optuna-storage=postgresql://me:secret@db/x", "--tracking-uri", "http://me:secret@mlflow"]
    monkeypatch.setattr(sys, "argv", [*typed, *secret])
    assert shlex.split(_resume_command()) == ["python", *typed, "--resume"], "a resume refuses `***@db`"


@pytest.mark.parametrize("words", [("schema",), ("--help",)])
def test_a_full_disk_is_said_without_a_traceback(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "study", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    said = "output: must be writable (No space left on device). Fix: Free some space, then run the same command again."
    assert (done.returncode, done.stderr) == (2, f"{said}\n")


@pytest.mark.parametrize(("number", "code"), [(errno.EDQUOT, 2), (errno.EACCES, 70)])
def test_of_what_the_system_refuses_only_a_full_disk_is_no_fault(number, code, capsys):
    def refuse():
        raise OSError(number, "refused", "a file")

    with pytest.raises(SystemExit) as ended:
        cli._guarded(refuse)
    assert (ended.value.code, "Traceback" in capsys.readouterr().err) == (code, code == 70)


@pytest.mark.parametrize(("words", "code"), [(["run", "a.yaml"], 2), (["run", "a.yaml", "--resume"], 75)])
def test_a_study_that_is_there_can_be_resumed_once_the_disk_has_space(tmp_path, monkeypatch, words, code):
    monkeypatch.setattr("sys.argv", ["run_study.py", *words])

    def full():
        with RecordLog(tmp_path / "records.jsonl") as log, monkeypatch.context() as disk:
            disk.setattr("os.write", lambda *_: 0)
            log.append(synthetic.opened())

    with pytest.raises(SystemExit) as ended:
        cli._guarded(full)
    assert ended.value.code == code


@pytest.mark.parametrize("words", [("schema",), ("spaces", "--json")])
def test_a_pipe_that_nobody_reads_is_no_mistake(words):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "study", *words], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def as_json(*words):
    result = CliRunner().invoke(cli.app, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_spaces_lists_the_shipped_and_the_local_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text((SHIPPED / "quickstart.yaml").read_text())
    (tmp_path / "wrong.yaml").write_text("environment: {id: 5}\n")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "latin.yaml").write_bytes(b"environment: caf\xe9\n")
    (tmp_path / "folder.yaml").mkdir()
    found = {each["space"]: each for each in as_json("spaces")}
    assert set(found) == {file.name for file in SHIPPED.glob("*.yaml")} | {"mine.yaml", "wrong.yaml"}
    assert found["mine.yaml"] | {"space": ""} == found["quickstart.yaml"] | {"space": ""}
    assert found["quickstart.yaml"]["trials"] == load_space("quickstart.yaml").search.num_trials
    assert {found[name]["kind"] for name in ("scaling.yaml", "throughput.yaml", "laptop.yaml")} == {
        *("holdup", "throughput", "search")
    }
    assert (found["wrong.yaml"]["kind"], found["wrong.yaml"]["about"][:6]) == (None, "wrong:")
    monkeypatch.chdir(ROOT)
    assert len(as_json("spaces")) == len(list(SHIPPED.glob("*.yaml")))
    text = CliRunner().invoke(cli.app, ["spaces"]).output
    assert all(file.name in text for file in SHIPPED.glob("*.yaml"))


def test_status_of_a_folder_lists_kind_state_trials_and_best(tmp_path, monkeypatch):
    search = synthetic.make_folder(tmp_path / "a", "sqlite:///x.db")
    synthetic.append(search, synthetic.opened(), *synthetic.whole_trial(0), *synthetic.whole_trial(1, "failed"))
    holdup.write_study(tmp_path / "b", holdup.holdup_spec(), holdup.study_records(holdup.holdup_spec()))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "study.json").write_text("garbage")
    first, second, third = as_json("status", tmp_path)
    assert (first["study"], first["kind"], first["ended"], first["failed"]) == ("a", "search", 2, 1)
    assert (second["kind"], second["ended"] == second["trials"] > 0) == ("holdup", True)
    assert (third["kind"], third["ended"], third["state"][:14]) == (None, None, "cannot be read")
    assert CliRunner().invoke(cli.app, ["status", str(tmp_path)]).output.count("\n") >= 4
    monkeypatch.chdir(tmp_path)
    assert "Start one" in CliRunner().invoke(cli.app, ["status"]).output


def test_a_shell_completes_commands_spaces_and_studies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("studies/one", "elsewhere/two"):
        Path(folder).mkdir(parents=True)
        Path(folder, "study.json").write_text("{}")
    Path("mine.yaml").write_text("")
    assert space_names("mi") == ["mine.yaml"]
    assert "quickstart.yaml" in space_names("")
    assert study_folders("") == study_folders("studies/") == ["studies/one"]
    assert study_folders("elsewhere/t") == ["elsewhere/two"]
    words = {"_STUDY_COMPLETE": "complete_bash", "COMP_WORDS": "study sta", "COMP_CWORD": "1"}
    result = CliRunner(env=words).invoke(cli.app, [], prog_name="study")
    assert "status" in result.output


def test_the_schema_accepts_the_shipped_spaces():
    jsonschema = pytest.importorskip("jsonschema")
    from ruamel.yaml import YAML

    schema = json.loads(CliRunner().invoke(cli.app, ["schema"]).stdout)
    check, read = jsonschema.Draft202012Validator(schema), YAML(typ="safe").load
    for file in SHIPPED.glob("*.yaml"):
        check.validate(read(file.read_text()))
    misspelt = (SHIPPED / "laptop.yaml").read_text().replace("num_env_runners", "num_env_runner")
    assert list(check.iter_errors(read(misspelt)))
