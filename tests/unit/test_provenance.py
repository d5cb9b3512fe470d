"""Provenance holds what a reader needs, as JSON, and no secret."""

import json
import os
import subprocess
from importlib import metadata

from study.records.provenance import git_state, provenance


def test_commit_and_dirty_flag(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # an account may sign its commits

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        answer = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        )
        return answer.stdout.strip()

    assert git_state(tmp_path) is None
    git("init")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path)["dirty"] is True
    monkeypatch.setenv("PATH", str(tmp_path))  # where no git is installed
    assert git_state(tmp_path) is None


def test_it_is_json_that_describes_this_process_and_keeps_no_secret(monkeypatch):
    line = "run.py --tracking-uri=postgresql://me:s3cret@db/x --password s3cret --api-key=s3cret --name a"
    monkeypatch.setattr("sys.argv", [*line.split(), "--config-args", "--hf-token s3cret -n 2"])
    found = provenance({})
    assert found["command"] == [
        *("run.py", "--tracking-uri=postgresql://***@db/x", "--password", "***", "--api-key=***", "--name", "a"),
        *("--config-args", "--hf-token *** -n 2"),
    ]
    assert "s3cret" not in json.dumps(found)
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["mlflow"] == metadata.version("mlflow")
    assert 1 <= found["usable_cpus"] <= found["logical_cpus"]
    assert found["memory_mb"] > 100
    assert found["scheduler"] is None
