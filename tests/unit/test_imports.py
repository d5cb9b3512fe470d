"""Which packages may import Ray, torch, Optuna and MLflow, and what stays fast to import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"ray", "torch", "mlflow", "optuna", "tensorboardX"}

LIBRARIES = ENGINES | {"pandas", "gymnasium"}
MODELS = " ".join(f"analysis.models.{file.stem}" for file in ROOT.glob("analysis/models/[!_]*.py"))

LOADS = {
    "reading and planning": {
        "study study.cli.commands study.planning.plan study.space.reference study.planning.needs": LIBRARIES,
        "study.records.timing study.machine.host study.machine.cluster study.doctor study.cli.doctor": LIBRARIES,
        "study.cli.evaluate study.evaluating.film study.ray_private study.jax_private": LIBRARIES,
    },
    "records and certificate": {
        "study.records.records study.records.ledger study.records.folder study.records.provenance": ENGINES,
        "study.mirrors.process study.mirrors.tracking_uri study.mirrors.mlflow_mirror": ENGINES,
        "study.mirrors.optuna_storage study.mirrors.tensorboard": ENGINES,
        "study.trial.engine.envs.environments study.evaluating.playing study.trial.weights": ENGINES,
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
def test_a_module_does_not_load_what_it_has_no_use_for(subject):
    code = IMPORTS.format(loads=LOADS[subject])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


HOMES = {
    "ray": {
        *("study/machine/cluster.py", "study/driver/run.py", "study/trial", "study/driver/searcher.py"),
        "study/driver/losses.py",
        *(f"study/adopted/{name}.py" for name in ("finding", "describing")),
        *("study/doctor/asking.py", "study/ray_private.py"),
    },
    "torch": {
        "study/trial",
        "study/designs/search/proposals.py",
    },  # the Gaussian process of Optuna's GPSampler
    "mlflow": {"study/mirrors", "analysis/load/mlflow.py"},
    "optuna": {"study/designs/search", "study/mirrors"},
    "tensorboardX": {"study/mirrors/tensorboard.py"},
    "jax": {"study/jax_private.py", "study/trial", "study/adopted/describing.py", "study/driver/run.py"},
}


@pytest.mark.parametrize("engine", sorted(HOMES))
def test_an_engine_is_imported_only_at_home(engine):
    for file in [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py")]:
        place = file.relative_to(ROOT).as_posix()
        if any(place == home or place.startswith(f"{home}/") for home in HOMES[engine]):
            continue
        names = [
            name for name in imported(file) if name.partition(".")[0] == engine or name == f"study.{engine}_private"
        ]
        assert names == [], place
