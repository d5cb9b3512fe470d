"""The import directions of the README's picture."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"ray", "torch", "mlflow", "optuna", "tensorboardX"}

LOADS = [
    ("import study", ENGINES | {"pandas", "gymnasium"}),
    ("import study.cli.commands, study.planning.plan, study.space.reference", ENGINES | {"pandas", "gymnasium"}),
    (
        "import study.planning.needs, study.records.timing, study.hosts.machine, study.cluster.address",
        ENGINES | {"pandas", "gymnasium"},
    ),
    (
        "import study.driver.run, study.cluster.connection, study.cli.display, study.driver.conductor",
        {"ray", "torch", "mlflow"},
    ),
    ("import study.trial.engine.envs.environments", ENGINES),
    ("import study.doctor, study.cli.doctor", ENGINES | {"pandas", "gymnasium"}),
    ("import study.records.records, study.records.ledger, study.records.folder", ENGINES),
    ("import study.mirrors.process, study.mirrors.tracking_uri, study.records.provenance", ENGINES),
    ("import study.cli.evaluate, study.evaluating.film", ENGINES | {"pandas", "gymnasium"}),
    ("import study.evaluating.playing, study.trial.weights", ENGINES),
    ("import study.designs.holdup.certificate.making, study.designs.holdup.certificate.page", ENGINES),
    ("import analysis, analysis.load, analysis.report", ENGINES),
]


@pytest.mark.parametrize(("statement", "forbidden"), LOADS, ids=[statement for statement, _ in LOADS])
def test_a_module_does_not_load_engines_that_it_has_no_use_for(statement, forbidden):
    code = f"import sys; {statement}; print(*[name for name in {sorted(forbidden)} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


HOMES = {
    "ray": {
        *("study/cluster", "study/driver/run.py", "study/trial", "study/driver/searcher.py"),
        *("study/adopted/finding.py", "study/adopted/interception.py", "study/adopted/describing.py"),
        "study/adopted/playing.py",
        *("study/doctor/asking.py", "study/seams/ray.py", "study/seams/rllib.py"),
    },
    "torch": {
        "study/trial",
        "study/seams/torch.py",
        "study/designs/search/proposals.py",
    },  # the Gaussian process of Optuna's GPSampler
    "mlflow": {"study/mirrors", "study/seams/mlflow.py", "analysis/load/mlflow_client.py", "study/doctor/tracking.py"},
    "optuna": {"study/designs/search", "study/mirrors"},
    "tensorboardX": {"study/seams/tensorboardx.py"},
}


@pytest.mark.parametrize("engine", sorted(HOMES))
def test_an_engine_is_imported_only_at_home(engine):
    for file in [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py")]:
        place = file.relative_to(ROOT).as_posix()
        if any(place == home or place.startswith(f"{home}/") for home in HOMES[engine]):
            continue
        assert not [name for name in imported(file) if name.split(".")[0] == engine], place


def test_analysis_reads_records_and_never_the_trial():
    for file in ROOT.glob("analysis/**/*.py"):
        assert not [name for name in imported(file) if name.startswith("study.trial")], file


def test_every_file_says_first_why_it_exists():
    for file in [*ROOT.glob("study/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run_study.py"]:
        if file.name == "__init__.py" and not file.read_text():
            continue
        assert ast.get_docstring(ast.parse(file.read_text())), file


def test_what_the_package_offers_exists():
    import study

    assert study.__all__ == sorted(study.__all__)
    for name in study.__all__:
        assert getattr(study, name) is not None
