"""Nothing is unpickled or run that came with a folder: not in one's own, and a stranger's is not even resumed."""

import ast
import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study.cli.commands import app
from study.errors import RecordError, SpaceError, StudyError
from study.records.files import check_own
from study.trial.engine.envs.probing import probe
from tests.e2e.commands import ROOT
from tests.e2e.commands import run as run_command
from tests.security.bombs import bomb, plant
from tests.spaces import spec

STRANGER = 65534
"""User id of `nobody`."""
EXAMPLE = ROOT / "analysis" / "example_study"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="files of another user can only be made by root")

LOADERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
ALLOWED = {
    "study/trial/engine/envs/probing.py": {"pickle"},  # what a process of its own says of its environment
    "study/driver/searcher.py": {"cloudpickle"},  # the error of a trial, from the driver's own temporary folder
    "study/trial/policy.py": {"load", "allow_pickle"},  # arrays, with allow_pickle=False
    "study/adopted/finding.py": {"compile", "exec", "pickle"},  # runs the script that a person names, and answers
    "study/adopted/loading.py": {"pickle"},  # reads that answer, from a private folder of its own
    "study/adopted/describing.py": {"cloudpickle"},  # tries which part of a configuration cannot be pickled
    "study/trial/experiment.py": {"cloudpickle"},  # the configuration that such a script made
    "study/trial/engine/sampling/runner.py": {"pickle", "cloudpickle"},  # copies of episodes of this process
}
"""Module -> what it may do of what could run a file's content, each with its reason."""
CALLS = {"from_checkpoint", "restore_from_path", "read_pickle", "load_model"}
"""Names of functions that run what a file says, whoever they belong to; `load` is looked at by its owner."""


def test_no_module_of_ours_imports_or_calls_what_would_run_the_content_of_a_file():
    found = []
    for package in ("study", "analysis"):
        for file in sorted((ROOT / package).rglob("*.py")):
            loaders = _loaders(ast.parse(file.read_text()))
            name = file.relative_to(ROOT).as_posix()
            found += [f"{name}:{line}: {what}" for line, what in loaders if what not in ALLOWED.get(name, ())]
    assert found == []


def _loaders(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names if each.name.partition(".")[0] in LOADERS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LOADERS:
            yield node.lineno, node.module
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, each.name) for each in node.names if each.name in LOADERS)
        elif isinstance(node, ast.Call):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            of_torch_or_numpy = isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy")
            built_in = owner is None and name in ("eval", "exec", "compile")
            if built_in or name in CALLS or (name == "load" and of_torch_or_numpy):
                yield node.lineno, name
            if any(word.arg == "allow_pickle" for word in node.keywords):
                yield node.lineno, "allow_pickle"


def test_the_bombs_of_these_tests_go_off(tmp_path):
    import pickle

    mark = tmp_path / "mark"
    pickle.loads(bomb(mark)).close()
    assert mark.exists()


@pytest.fixture
def published(tmp_path) -> Path:
    """A published study with bombs in it, of another user where that is possible."""
    folder = tmp_path / "published"
    shutil.copytree(EXAMPLE, folder)
    plant(folder, tmp_path / "mark")
    if os.getuid() == 0:
        give_away(folder)
    return folder


def give_away(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, STRANGER, STRANGER, follow_symlinks=False)


@pytest.mark.parametrize("words", [["certificate", "verify"], ["export", "--scale", "46"], ["report"], ["status"]])
def test_commands_on_a_stranger_s_study_unpickle_nothing(published, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words, str(published)])
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("program", [["-P", "-m", "study"], ["-P", str(ROOT / "run_study.py")]], ids=["study", "run"])
def test_a_received_folder_that_is_called_study_is_read_and_not_run(tmp_path, program):
    shutil.copytree(EXAMPLE, tmp_path / "study")
    for name in ("__main__", "__init__", "errors"):
        (tmp_path / "study" / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    words = ["status", "study"] if program[1] == "-m" else ["--help"]
    done = run_command([sys.executable, *program, *words], tmp_path)
    assert (done.returncode, done.stderr, (tmp_path / "mark").exists()) == (0, "", False)


@pytest.fixture
def own(tmp_path) -> Path:
    """A study of this user's."""
    folder = tmp_path / "studies" / "mine"
    folder.mkdir(parents=True, mode=0o700)
    for name in ("study.json", "records.jsonl", "optuna.journal"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(("name", "mode"), [("", 0o777), ("optuna.journal", 0o666)])
def test_a_study_that_others_can_change_is_not_trusted(own, name, mode):
    check_own(own)
    (own / name).chmod(mode)
    with pytest.raises(RecordError, match=r"must not be writable by others\. Fix: Run `chmod go-w"):
        check_own(own)


@needs_root
@pytest.mark.parametrize("name", ["", "optuna.journal"])
def test_what_another_user_owns_is_not_trusted(own, tmp_path, name):
    os.chown(own / name, STRANGER, -1)
    (tmp_path / "studies" / "link").symlink_to(own)
    for place in (own, tmp_path / "studies" / "link"):
        with pytest.raises(RecordError, match=r"must belong to you.*Fix: Copy the"):
            check_own(place)


@needs_root
def test_what_a_group_may_write_is_trusted_only_where_the_group_is_the_user_s_own(own):
    own.chmod(0o770)
    os.chown(own, -1, 0)  # the group `root` of the user `root`
    check_own(own)
    os.chown(own, -1, STRANGER)
    with pytest.raises(RecordError, match="must not be writable by others"):
        check_own(own)


def refused(*words: object) -> str:
    """Return the error of a command, run in this process."""
    result = CliRunner().invoke(app, list(map(str, words)))
    assert isinstance(result.exception, StudyError), result.output
    return str(result.exception)


@needs_root
def test_a_stranger_s_study_is_not_resumed_and_its_bombs_stay_cold(tmp_path, monkeypatch):
    place, mark = tmp_path / "place", tmp_path / "mark"
    folder = place / "studies" / "space"
    shutil.copytree(EXAMPLE, folder)
    plant(folder, mark)
    give_away(folder)
    shutil.copy(folder / "space.yaml", place / "space.yaml")
    monkeypatch.chdir(place)
    assert "must belong to you" in refused("run", "space.yaml", "--resume")
    assert not mark.exists()


def test_a_policy_that_is_a_bomb_is_refused_in_one_s_own_folder_too(tmp_path):
    folder, mark = tmp_path / "published", tmp_path / "mark"
    shutil.copytree(EXAMPLE, folder)
    plant(folder, mark)
    assert "must hold the numbers of a policy" in refused("evaluate", folder, "--trial", 0)
    assert not mark.exists()


@needs_root
def test_a_stranger_s_policy_is_not_even_opened(published, tmp_path):
    assert "must belong to you" in refused("evaluate", published, "--trial", 0)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("maker", ["os:system", "subprocess:Popen", "builtins:open", "pathlib:Path"])
def test_a_space_calls_nothing_but_classes_of_environments(tmp_path, maker):
    mark = tmp_path / "mark"
    arguments = {"command": f"touch {mark}", "args": ["touch", str(mark)], "file": str(mark), "mode": "w"}
    wanted = {"os:system": ["command"], "subprocess:Popen": ["args"], "builtins:open": ["file", "mode"]}.get(maker, [])
    changes = {"environment__id": maker, "environment__kwargs": {name: arguments[name] for name in wanted}}
    with pytest.raises(SpaceError, match=r"must make a gymnasium\.Env"):
        probe(spec(**changes).environment, "space.yaml")
    assert not mark.exists()
