"""Provenance holds what a reader needs, as JSON, and no secret."""

import json
import os
import subprocess
from importlib import metadata

import pytest

from study.records import provenance as module
from study.records.provenance import provenance


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("RAY_", "TUNE_", "SLURM_", "OAR_", "PBS_", "KUBERNETES_")):
            monkeypatch.delenv(name)


def test_it_is_json_and_describes_this_process():
    found = provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["mlflow"] == metadata.version("mlflow")
    assert 1 <= found["usable_cpus"] <= found["logical_cpus"]
    assert found["memory_mb"] > 100
    assert found["time"].endswith("+00:00")
    assert found["scheduler"] is None


def test_commit_and_dirty_flag(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # an account may sign its commits

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        answer = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        )
        return answer.stdout.strip()

    assert module._git(tmp_path) is None
    git("init")
    assert module._git(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert module._git(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a").write_text("2")
    assert module._git(tmp_path)["dirty"] is True


def test_a_missing_git_is_no_error(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._git(tmp_path) is None


def test_variables_are_kept_but_no_secret(monkeypatch):
    for name, value in {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "s3cret",
        "RAY_REDIS_PASSWORD": "s3cret",
        "RAY_AUTH_TOKEN_PATH": "/s3cret",
        "RAY_ADDRESS": "redis://me:s3cret@head:6379",
        "RAY_RUNTIME_ENV": '{"env_vars": {"X": "s3cret"}}',
        "TUNE_MAX_PENDING_TRIALS_PG": "1",
        "OMP_NUM_THREADS": "2",
        "AWS_REGION": "s3cret",
    }.items():
        monkeypatch.setenv(name, value)
    found = provenance()
    assert found["environment"] == {
        "OMP_NUM_THREADS": "2",
        "RAY_ADDRESS": "redis://***@head:6379",
        "RAY_AUTH_MODE": "token",
        "RAY_RUNTIME_ENV": "***",
        "TUNE_MAX_PENDING_TRIALS_PG": "1",
    }
    assert "s3cret" not in json.dumps(found)


def test_the_command_line_is_kept_but_no_secret(monkeypatch):
    line = "run.py --tracking-uri=postgresql://me:s3cret@db/x --password s3cret --api-key=s3cret --name a"
    monkeypatch.setattr("sys.argv", [*line.split(), "--config-args", "--hf-token s3cret -n 2"])
    shown = provenance()["command"]
    assert shown[0] == "run.py"
    assert shown[1] == "--tracking-uri=postgresql://***@db/x"
    assert shown[2:7] == ["--password", "***", "--api-key=***", "--name", "a"]
    assert shown[7:] == ["--config-args", "--hf-token *** -n 2"]


def test_variables_of_a_script_are_recorded_without_secrets():
    found = provenance({}, {"DIFFICULTY": "hard", "WANDB_API_KEY": "x", "HOME": None})["environment"]
    assert [found[name] for name in ("DIFFICULTY", "WANDB_API_KEY", "HOME")] == ["hard", "***", None]
