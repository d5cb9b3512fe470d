"""A person's mistakes: an error that names the place and the way out, exit code 2, nothing started, nothing lost.

In this process, but for three: what a shell sees, which modules a command loads, and a library that is hidden.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.errors import ClusterError, RecordError, SpaceError, StudyError
from tests.e2e.commands import SPACE, command, environment, run

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder of the person's own, with a space."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def study(*words):
    """Return what a command prints, in this process."""
    result = CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words):
    """Return the error of a command, which has begun nothing and says what to do."""
    with pytest.raises(StudyError) as caught:
        study(*words)
    assert "Fix: " in str(caught.value)
    assert not Path("studies").exists()
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("CartPole-v1", "CartPol-v1", "environment.id"),
        ("CartPole-v1", "nowhere:Env", "environment.id"),
        ("CartPole-v1", "CartPole-v1, kwargs: {x: 1}", "environment.kwargs"),
        ("episodes: 4", "episodes: 4, kwargs: {x: 1}", "evaluation.kwargs"),
        ("CartPole-v1", "bare:Bare", "environment.id"),  # without spaces
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_with_its_line(place, old, new, where):
    assert old in SPACE
    (place / "space.yaml").write_text(SPACE.replace(old, new))
    (place / "bare.py").write_text("import gymnasium\n\n\nclass Bare(gymnasium.Env):\n    pass\n")
    (fault,) = refused("run", "--space", "space.yaml").faults
    assert (fault.where, fault.line is not None) == (where, True)


slow = functools.partial(pytest.param, marks=pytest.mark.minutes)
MYSQL, NOBODY = "mysql://me:s3cr@127.0.0.1/runs", "postgresql+nobody://h/runs"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (["--time-budget", "soon"], SpaceError, "--time-budget: must be a duration above zero, got 'soon'"),
        (["--set", "lr=0.1"], SpaceError, "lr: unknown key"),
        (["--config", "other.py"], SpaceError, "--space: must be given, or --config in its place"),
        (["--name", "a/b"], SpaceError, "--name: must consist of letters"),
        (["--until", "race"], SpaceError, "--until: only a study with stages (hold-up) takes it"),
        (["--set", "environment.id=ALE/Pong-v5"], SpaceError, "as ale_py:ALE/Pong-v5"),
        (["--resume"], SpaceError, "--resume: "),
        (["--tracking-uri", "file:///tmp/x"], ClusterError, "tracking URI: "),
        slow(["--tracking-uri", MYSQL], ClusterError, "MLflow mysql://***@127.0.0.1/runs: must take"),
        slow(["--tracking-uri", NOBODY], ClusterError, "Fix: For PostgreSQL pip install"),
        (["--address", "127.0.0.1:9"], ClusterError, "--address 127.0.0.1:9: "),
        (["--address", "nonsense"], ClusterError, "--address nonsense: "),
        (["--set", "resources.memory_main_mb=10000000"], ClusterError, "10000201 MB"),
        (["--out", "/proc/nowhere"], RecordError, "--out"),
    ],
)
def test_a_wrong_option_or_what_is_not_there_is_refused_before_anything_starts(options, kind, words):
    error = refused("run", "--space", "space.yaml", *options)
    assert isinstance(error, kind)
    assert words in str(error) and "s3cr" not in str(error)


def test_a_python_without_the_packages_is_told_what_to_install():
    words, root = [sys.executable, "-S", "run_study.py"], Path(cli.__file__).parents[2]
    done = subprocess.run(words, capture_output=True, text=True, env={}, cwd=root)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
    assert re.search(r"got no '\w+'\. Fix: Run `pip install -e \.`", done.stderr), done.stderr


def test_help_plan_and_refusals_do_not_import_an_engine(place):
    calls = [
        ["--help"],
        ["--space", "space.yaml", "--dry-run"],
        ["--space", "nowhere.yaml"],
        ["--space", "space.yaml", "--address", "127.0.0.1:9"],
        ["--space", "space.yaml", "--set", "environment.id=CartPol-v1"],
        ["--space", "space.yaml", "--resume"],
        ["--space", "space.yaml", "--tracking-uri", "http://127.0.0.1:9"],  # MLflow's own client asks
    ]
    code = f"""if True:
        import contextlib, sys
        from study.__main__ import main
        for words in {calls!r}:
            sys.argv = ['run_study.py', *words]
            with contextlib.suppress(SystemExit):
                main('run')
            print('ENGINES', *[m for m in ('ray', 'torch', 'mlflow') if m in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=place, env=environment(), capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("ENGINES")]
    assert found == ["ENGINES"] * len(calls), done.stdout + done.stderr
    assert "MLflow http://127.0.0.1:9: " in done.stderr


def test_any_encoding_serves(place):
    (place / "space.yaml").write_text(f"# Größe 中文\n{SPACE}", encoding="utf-8")
    plain = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "study", "run", "--dry-run", "--space", "space.yaml"]
    done = subprocess.run(words, cwd=place, env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_shell_sees_the_message_and_exit_code_2_and_no_traceback(place):
    done = run(command("--space", "nowhere.yaml"), place, codes=(2,))
    assert done.stdout == ""
    assert done.stderr.startswith("nowhere.yaml: 1 problem\n  --space: no such file")
    assert "Traceback" not in done.stderr
