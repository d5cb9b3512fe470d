"""What imports what, which engine where, what stays fast to import, who prints, what must be installed, errors."""

import ast
import functools
import graphlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

LAYERS = (
    ("text", "metrics"),
    ("errors", "engine"),
    ("console", "statistics", "ray_private", "jax_private"),
    ("space",),
    ("machine",),
    ("records",),
    ("planning",),
    ("exporting",),
    ("designs",),
    ("mirrors", "trial"),
    ("adopted",),
    ("driver",),
    ("analysis",),
    ("options",),
    ("evaluating", "doctor", "launch"),
    ("cli",),
    ("__main__", "__init__"),
)
"""From the bottom; those of one layer do not import each other. `study.x` is called x."""
FLOOR = {name: number for number, layer in enumerate(LAYERS) for name in layer}


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Return file, as its path in the checkout -> its tree, of every module of the program."""
    files = [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run_study.py"]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in files}


def imported(tree: ast.AST, *, for_types: bool = True) -> Iterator[str]:
    """Yield what is imported, now or when it is used, as `module` or `module.name`."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    typing = set() if for_types else {inner for block in blocks for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in typing:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import) and node not in typing:
            yield from (alias.name for alias in node.names)


@functools.cache
def arrows() -> Mapping[str, set[str]]:
    """Return each module of the program -> those that it imports; imports for types alone do not count."""
    named = {each.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): each for each in trees()}
    found = {name: set(imported(trees()[file], for_types=False)) for name, file in named.items()}
    lower = {name: {each if each in named else each.rpartition(".")[0] for each in of} for name, of in found.items()}
    return {name: (of & named.keys()) - {name} for name, of in lower.items()}


def layer_of(module: str) -> str:
    """Return what `LAYERS` call the package that a module is in, or the module itself."""
    top, *inner = module.split(".")
    return "analysis" if top == "analysis" else (inner or ["__init__"])[0]


def test_a_package_imports_only_what_stands_below_it() -> None:
    arrows_ = ((upper, lower) for upper, of in arrows().items() if upper != "run_study" for lower in of)
    between = {(layer_of(upper), layer_of(lower)) for upper, lower in arrows_}
    assert {(above, below) for above, below in between if above != below and FLOOR[below] >= FLOOR[above]} == set()


def test_no_files_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(arrows()).prepare()  # raises where they do


# --- engines ----------------------------------------------------------------------------------------------------------

PURE = ("study/space/", "study/designs/", "study/records/", "study/statistics/", "study/planning", "analysis/")
"""What needs no engine, not even when it is called."""
ENGINES = {"ray", "torch", "mlflow", "optuna", "tensorboardX", "jax"}
THERE = {"study/designs/proposals.py": {"optuna"}, "analysis/load/mlflow.py": {"mlflow"}}
"""The one module that proposes, and the one that reads MLflow."""


def test_what_decides_and_estimates_imports_no_engine() -> None:
    for place, tree in trees().items():
        if place.startswith(PURE):
            found = {name.partition(".")[0] for name in imported(tree)} & ENGINES
            assert found == THERE.get(place, set()), place


LIBRARIES = ENGINES | {"pandas", "gymnasium"}
MODELS = " ".join(f"analysis.models.{file.stem}" for file in ROOT.glob("analysis/models/[!_]*.py"))

LOADS = {
    "reading and planning": {
        "study study.cli.commands study.planning study.space.parsing": LIBRARIES,
        "study.records.ledger study.machine.host study.machine.cluster study.doctor": LIBRARIES,
        "study.ray_private study.jax_private": LIBRARIES,
        "analysis.status study.cli.display": LIBRARIES | {"scipy"},
    },
    "records and certificate": {
        "study.records.records study.records.ledger study.records.folder": ENGINES,
        "study.mirrors.process study.mirrors.tracking_uri study.mirrors.mlflow_mirror study.mirrors.mirror": ENGINES,
        "study.trial.engine.envs.environments study.evaluating.playing study.trial.policy": ENGINES,
        "study.designs.holdup.certificate study.designs.holdup.page": ENGINES,
    },
    "analysis": {
        "analysis": ENGINES | {"pandas", "scipy", "matplotlib"},
        MODELS: ENGINES | {"seaborn", "matplotlib.pyplot"},
        "analysis.figures": ENGINES | {"seaborn", "matplotlib.pyplot"},
        "analysis.load analysis.report": ENGINES,
    },
    "driver": {
        "study.driver.run study.machine.cluster study.cli.display": {"ray", "torch", "mlflow"},
        "study.driver.conductor": {"ray", "torch", "mlflow"},
        "study.trial.trainable": {"ray.rllib", "torch", "mlflow"},
    },
}
"""What must not be loaded after each module; one interpreter imports those of a subject one after another."""

IMPORTS = """
import importlib, sys
for names, forbidden in {loads}.items():
    for name in names.split():
        importlib.import_module(name)
        if found := forbidden & sys.modules.keys():
            sys.exit(f"{{name}} loads {{found}}")
"""


@pytest.mark.parametrize("subject", LOADS)
def test_a_module_does_not_load_what_it_has_no_use_for(subject: str) -> None:
    code = IMPORTS.format(loads=LOADS[subject])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- the terminal, and what must be installed ------------------------------------------------------------------------

WRITES_ITSELF = {
    "study/driver/signals.py": "runs inside a signal handler, where locks of a stream may be held",
    "study/launch/node.py": "standard output is its protocol",
    "study/__main__.py": "says that the packages are missing",
}
"""File -> why it does not leave that to `study.console`."""


def test_nothing_else_prints() -> None:
    ways = ("print(", "typer.echo(", "sys.stdout.write(", "sys.stderr.write(", "sys.stdout.buf", "sys.stderr.buf")
    calls = {
        (place, ast.unparse(node))
        for place, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and place != "study/console.py"
    }
    assert {place for place, call in calls if call.startswith(ways)} == set(WRITES_ITSELF)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items()}
NEEDED = [Requirement(text) for text in PROJECT["dependencies"]]
OPTIONAL = {"imageio_ffmpeg", "psycopg"}
"""Modules that only an extra brings; what imports them says so where they are missing."""


def test_every_import_is_declared() -> None:
    declared = {canonicalize_name(each.name) for each in NEEDED}
    optional = {canonicalize_name(each.name) for extra in EXTRAS.values() for each in extra}
    homes = metadata.packages_distributions()
    modules = {name.partition(".")[0] for tree in trees().values() for name in imported(tree)}
    for module in modules - sys.stdlib_module_names - {"study", "analysis"}:
        brought_by = {canonicalize_name(name) for name in homes.get(module, [module])}
        assert brought_by & (declared | optional if module in OPTIONAL else declared), module


def test_the_tested_set_satisfies_the_project() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    for each in (*NEEDED, *EXTRAS["test"]):
        assert each.specifier.contains(pinned[canonicalize_name(each.name)], prereleases=True), each


# --- errors -----------------------------------------------------------------------------------------------------------

ENDS_WITH_A_FIX = "study/trial/run.py"
"""File with one error without a fix of its own: `got` is what a runner said, which ends with its own."""


def test_every_error_that_names_a_place_has_a_rule_and_a_fix() -> None:
    seen, wrong = 0, []
    calls = [(place, node) for place, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for place, node in calls:
        given, name = {each.arg: ast.unparse(each.value) for each in node.keywords}, ast.unparse(node.func)
        if "where" not in given or None in given or name == "replace":
            continue  # the parts of another error
        if given.keys() & {"rule", "got"} or name.endswith(("Error", "Fault")):
            seen += 1
            if {given.get("rule", "''"), given.get("fix", "''")} & {"''", "' '"}:
                wrong.append((place, "got" in given))
    assert seen > 150, "the sources are read"
    assert wrong == [(ENDS_WITH_A_FIX, True)]
