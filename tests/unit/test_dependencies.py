"""What the program imports is declared, and the tested set of versions is one that pyproject.toml allows."""

import ast
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRA = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items()}
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)
OPTIONAL = {"imageio_ffmpeg", "psycopg"}
"""Modules that only an extra brings; what imports them says so where they are missing."""


def imported():
    files = [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run_study.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], file) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0], file


def test_every_import_is_declared():
    declared = {canonicalize_name(each.name) for each in NEEDED}
    optional = {canonicalize_name(each.name) for texts in EXTRA.values() for each in texts}
    homes, undeclared = metadata.packages_distributions(), {}
    for module, file in imported():
        if module in sys.stdlib_module_names or module in ("study", "analysis"):
            continue
        allowed = declared | (optional if module in OPTIONAL else set())
        brought_by = {canonicalize_name(name) for name in homes.get(module, [module])}
        if not brought_by & allowed:
            undeclared[module] = file.name
    assert undeclared == {}


@pytest.mark.parametrize("requirement", [*NEEDED, *EXTRA["test"]], ids=str)
def test_the_tested_set_satisfies_the_project(requirement):
    version = PINNED[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True)
