"""The layers of the program: what imports what, which engine where, what stays fast to import, and who prints."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("harmless", "text", "metrics"),
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

OF_ANALYSIS = {
    "statistics",
    "space",
    "planning",
    "records",
    "metrics",
    "engine",
    "errors",
    "harmless",
    "text",
    "mirrors",
}
"""What `analysis` may import of `study`."""

STILL: Mapping[tuple[str, str], str] = {
    ("analysis.estimates.settings", "study.designs.holdup.certificate"): "analysis",
}
"""Imports that break a rule -> the package that will end them; an entry that breaks none any more must go."""


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Return file, as its path in the checkout -> its tree, of every module of the program."""
    files = [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run_study.py"]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in files}


@functools.cache
def modules() -> Mapping[str, ast.Module]:
    """Return the same by dotted names."""
    return {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree
        for name, tree in trees().items()
        if "/" in name
    }


def imported(tree: ast.AST, *, for_types: bool = True) -> Iterator[tuple[str, str]]:
    """Yield module and name, or module and nothing, of every import, now or when it is used."""
    typing = {
        inner
        for node in ast.walk(tree)
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in typing:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import) and node not in typing:
            yield from ((alias.name, "") for alias in node.names)


def package(module: str) -> str:
    """Return the package of a module, as `LAYERS` calls it."""
    first, _, rest = module.partition(".")
    return "analysis" if first == "analysis" else rest.partition(".")[0] or "__init__"


@functools.cache
def arrows() -> set[tuple[str, str]]:
    """Return every import of a module of the program by another as a pair; those for types alone do not count."""
    found = set[tuple[str, str]]()
    for module, tree in modules().items():
        for other, name in imported(tree, for_types=False):
            lower = f"{other}.{name}" if f"{other}.{name}" in modules() else other
            if lower in modules() and lower != module:
                found.add((module, lower))
    return found


def circles(arrows: set[tuple[str, str]]) -> list[list[str]]:
    """Return the groups that import each other, directly or through others."""
    below: dict[str, set[str]] = {}
    for upper, lower in arrows:
        below.setdefault(upper, set()).add(lower)

    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            for lower in below.get(left.pop(), ()):
                if lower not in found:
                    found.add(lower)
                    left.append(lower)
        return found

    reach = {each: reached(each) for each in below}
    groups = {tuple(sorted(other for other in reach[each] if each in reach.get(other, ()))) for each in reach}
    return sorted(list(group) for group in groups if group)


def breaks_a_rule(upper: str, lower: str) -> bool:
    """Return whether one module must not import another."""
    above, below = package(upper), package(lower)
    if above == below:
        return False
    if "analysis" in (above, below):
        return below not in OF_ANALYSIS if above == "analysis" else above not in ("cli", "evaluating", "__init__")
    floor = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    return floor[below] >= floor[above]


def test_a_package_imports_only_what_stands_below_it() -> None:
    broken = {pair for pair in arrows() if breaks_a_rule(*pair)}
    assert broken == STILL.keys()


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(arrows()) == []


# --- engines ----------------------------------------------------------------------------------------------------------

HOMES = {
    "ray": {
        *("study/machine/cluster.py", "study/driver/run.py", "study/trial", "study/driver/searcher.py"),
        *(f"study/adopted/{name}.py" for name in ("finding", "describing")),
        *("study/doctor/asking.py", "study/ray_private.py"),
    },
    "torch": {
        "study/trial",
        "study/designs/proposals.py",
    },  # the Gaussian process of Optuna's GPSampler
    "mlflow": {"study/mirrors", "analysis/load/mlflow.py"},
    "optuna": {"study/designs/proposals.py", "study/mirrors"},
    "tensorboardX": {"study/mirrors/boards.py"},
    "jax": {"study/jax_private.py", "study/trial", "study/adopted/describing.py", "study/driver/run.py"},
}


@pytest.mark.parametrize("engine", sorted(HOMES))
def test_an_engine_is_imported_only_at_home(engine: str) -> None:
    for place, tree in trees().items():
        if not any(place == home or place.startswith(f"{home}/") for home in HOMES[engine]):
            names = [f"{module}.{name}" for module, name in imported(tree)]
            own = [name for name in names if name.startswith((f"{engine}.", f"study.{engine}_private"))]
            assert own == [], place


ENGINES = {"ray", "torch", "mlflow", "optuna", "tensorboardX"}

LIBRARIES = ENGINES | {"pandas", "gymnasium"}
MODELS = " ".join(f"analysis.models.{file.stem}" for file in ROOT.glob("analysis/models/[!_]*.py"))

LOADS = {
    "reading and planning": {
        "study study.cli.commands study.planning study.space.reference": LIBRARIES,
        "study.records.timing study.machine.host study.machine.cluster study.doctor": LIBRARIES,
        "study.ray_private study.jax_private": LIBRARIES,
    },
    "records and certificate": {
        "study.records.records study.records.ledger study.records.folder study.records.provenance": ENGINES,
        "study.mirrors.process study.mirrors.tracking_uri study.mirrors.mlflow_mirror study.mirrors.boards": ENGINES,
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


# --- the terminal -----------------------------------------------------------------------------------------------------

ALLOWED = {
    "study/console.py": "the place",
    "study/driver/signals.py": "runs inside a signal handler, where rich's locks may be held",
    "study/launch/node.py": "standard output is its protocol",
    "study/__main__.py": "says that the packages are missing, of which the console is one",
}
"""File -> why it writes by itself."""


def test_nothing_else_prints() -> None:
    ways = ("print", "typer.echo", "click.echo", "Console", "SteadyConsole", "rich.print")
    streams = tuple(f"sys.{name}.{how}" for name in ("stdout", "stderr") for how in ("write", "buffer"))
    called = {
        (place, ast.unparse(node.func))
        for place, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert {place for place, call in called if call in ways or call.startswith(streams)} == set(ALLOWED)
