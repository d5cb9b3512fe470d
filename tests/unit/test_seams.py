"""The seams: all hold with the installed engines, one that breaks says so, and nothing private is used beside them."""

import ast
import errno
import importlib
import inspect
import json
import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray._private.utils
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from typer.testing import CliRunner

from study.cli.commands import app
from study.errors import EngineError
from study.seams.base import ENGINES, Seam, has, mentions, parameters_of, require, seams_of, uses
from study.seams.mlflow import _new_database, create_database

ROOT = Path(__file__).resolve().parents[2]
SEAMS = seams_of(*ENGINES)
ENGINE_MODULES = ("ray", "torch", "optuna", "mlflow", "tensorboardX", "gymnasium", "numpy")
ALLOWED = {
    ("study/driver/signals.py", "_exit"): "os._exit, which Python documents",
    ("study/adopted/finding.py", "_exit"): "os._exit, which Python documents",
    ("study/mirrors/tracking_uri.py", "_replace"): "of a named tuple, which Python documents",
}
"""Underscores that belong to no engine: (file, attribute) -> reason."""


def test_all_seams_hold_in_the_versions_that_are_tested():
    assert [(seam.name, missing) for seam in SEAMS if (missing := seam.missing())] == []
    assert [seam.name for seam in SEAMS if not seam.is_tested or not seam.needs] == []
    assert len({seam.name for seam in SEAMS}) == len(SEAMS), "a name is the code of a message"


def test_checks_at_start_up_are_cheap():
    require("ray", "rllib")  # imports the engines
    took = []
    for _ in range(5):
        began = time.process_time()
        require("rllib")
        took.append(time.process_time() - began)
    assert min(took) < 0.1  # 0.015 s on a quiet machine


@pytest.mark.parametrize(
    ("engine", "change", "code"),
    [
        ("ray", (ray._private.utils, "set_sigterm_handler", None), "ray-signal-handlers"),
        ("ray", (ray._private.utils, "set_sigterm_handler", lambda handler, extra: None), "ray-signal-handlers"),
        ("rllib", (EnvRunnerGroup, "__init__", lambda self: None), "rllib-actors"),
        ("rllib", (SingleAgentEnvRunner, "_increase_sampled_metrics", lambda self: None), "rllib-batched-runner"),
    ],
    ids=["gone", "function takes more", "attribute no longer set", "method takes less"],
)
def test_an_engine_that_has_changed_ends_the_start(engine, change, code, monkeypatch):
    owner, name, stand_in = change
    if stand_in is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, stand_in)
    with pytest.raises(EngineError) as caught:
        require(engine)
    assert caught.value.code == code
    assert caught.value.where.startswith("ray 2.")
    assert caught.value.fix == "Install a tested release: pip install 'ray==2.60.*'."


def test_needs_name_what_is_missing():
    assert has("study.seams.base:Seam.nothing")().startswith("study.seams.base:Seam.nothing is gone")
    assert has("study.no_such_module:x")().startswith("study.no_such_module:x is gone")
    assert has("study.seams.base:require", "engine")() == (
        "study.seams.base:require must take (engine), it takes (engines)"
    )
    assert uses("study.seams.base:Seam", "needs", "_other")() == "study.seams.base:Seam no longer has _other"
    assert mentions("study", "errors.py", "class StudyError", "no such words")() == (
        "study/errors.py no longer reads no such words"
    )
    assert mentions("study", "nothing.py", "x")() == "study/nothing.py is gone"


def test_an_engine_that_is_not_installed_breaks_its_seams():
    absent = Seam(name="x", distribution="no-such-package", versions=">=1", does="do", why="So.", needs=(lambda: "",))
    assert (absent.version, absent.missing()) == ("", ["the package no-such-package is not installed"])


def test_the_command_prints_every_seam_and_fails_where_one_breaks(monkeypatch):
    result = CliRunner().invoke(app, ["seams"])
    assert result.exit_code == 0
    assert all(seam.name in result.output for seam in SEAMS)
    monkeypatch.delattr(ray._private.utils, "set_sigterm_handler")
    result = CliRunner().invoke(app, ["seams", "--json"])
    assert result.exit_code == 1
    broken = [each["seam"] for each in json.loads(result.output) if not each["holds"]]
    assert broken == ["ray-signal-handlers"]


# --- nothing private is used beside the seams ----------------------------------------------------------------------


def modules():
    for file in sorted((ROOT / "study").rglob("*.py")):
        if "seams" not in file.relative_to(ROOT / "study").parts[:1]:
            yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def test_private_names_are_used_in_the_seams_alone():
    found = []
    for name, module in modules():
        own = {
            node.name
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        }
        own |= {
            node.attr
            for node in ast.walk(module)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and private(node.attr):
                # What a class derived from an engine's reads of itself is registered with `uses`: see the next test.
                of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                of_base = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
                if not of_itself and not of_base and node.attr not in own and (name, node.attr) not in ALLOWED:
                    found.append(f"{name}:{node.lineno} {ast.unparse(node)}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ENGINE_MODULES:
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                found += [f"{name}:{node.lineno} import {part}" for part in parts if private(part)]
            if isinstance(node, ast.Import):
                parts = [part for alias in node.names for part in alias.name.split(".")]
                found += [f"{name}:{node.lineno} import {part}" for part in parts if private(part)]
    assert found == []


def private(name):
    return name.startswith("_") and not name.startswith("__")


def test_what_our_classes_take_or_replace_of_an_engines_is_registered():
    """No method of ours may replace one of an engine by accident, as a newer release could bring about."""
    registered = {name for seam in SEAMS for name in names_in(seam)}
    found = []
    for ours in classes_of_ours():
        engines = [
            base for base in ours.__mro__ if base.__module__.split(".")[0] in ("ray", "torch", "optuna", "mlflow")
        ]
        theirs = {name for base in engines for name in vars(base) if private(name)}
        for name, member in vars(ours).items():
            if name in theirs and callable(function := getattr(member, "fget", None) or getattr(ours, name)):
                seam = getattr(function, "__seam__", None)
                if seam is None:
                    found.append(f"{ours.__qualname__}.{name} replaces a private method")
                elif same := [base for base in engines if name in vars(base)]:
                    assert parameters_of(function) == parameters_of(getattr(same[0], name)), ours
        known = {name for base in engines for name in private_names(base)} | theirs
        for name in private_names(ours) & known:
            if name not in registered and not any(name in vars(each) for each in ours.__mro__ if of_ours(each)):
                found.append(f"{ours.__qualname__} uses {name}")
    assert found == []


def names_in(seam):
    for need in seam.needs:
        for cell in need.__closure__ or ():
            texts = cell.cell_contents if isinstance(cell.cell_contents, tuple) else (cell.cell_contents,)
            for text in texts:
                if isinstance(text, str):
                    yield from (part for part in text.replace(":", ".").split(".") if private(part))


def of_ours(kind):
    return kind.__module__.split(".")[0] == "study"


def classes_of_ours():
    """Yield every class of the program that is derived from an engine's."""
    for package in ("trial", "driver", "mirrors", "designs"):
        for file in sorted((ROOT / "study" / package).rglob("*.py")):
            if "class " not in (text := file.read_text()) or file.stem == "__main__":
                continue
            if "import jax\n" in text and find_spec("jax") is None:  # an extra
                continue
            module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            for kind in vars(module).values():
                if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                    continue
                if any(base.__module__.split(".")[0] in ENGINE_MODULES[:4] for base in kind.__mro__):
                    yield kind


def private_names(kind):
    """Return the private names that the methods of a class mention."""
    names = set()
    for member in vars(kind).values():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        names |= {name for name in code.co_names if private(name)} if code else set()
    return names


def test_a_killed_start_leaves_no_half_made_database(tmp_path, monkeypatch):
    from mlflow.store.db import utils

    path, initialize = tmp_path / "mlflow.db", utils._initialize_tables

    def killed(engine):
        initialize(engine)
        raise KeyboardInterrupt

    _new_database.cache_clear()
    monkeypatch.setattr(utils, "_initialize_tables", killed)
    with pytest.raises(KeyboardInterrupt):
        create_database(path)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    create_database(path)
    assert utils._all_tables_exist(utils.create_sqlalchemy_engine(f"sqlite:///{path}"))
    made = path.stat()
    create_database(path)
    assert [path] == list(tmp_path.iterdir())
    assert path.stat().st_mtime_ns == made.st_mtime_ns


def test_a_full_disk_leaves_no_half_made_database(tmp_path, monkeypatch):
    path, write = tmp_path / "mlflow.db", Path.write_bytes

    def write_a_part(self, content):
        write(self, content[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_a_part)
    with pytest.raises(OSError, match="No space left"):
        create_database(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", [None, b"of another process"])
def test_a_database_gets_its_place_where_files_have_no_links(other, tmp_path, monkeypatch):
    path = tmp_path / "mlflow.db"

    def link(*_):
        if other is not None:
            path.write_bytes(other)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    create_database(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == other or other is None
