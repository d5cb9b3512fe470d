"""What no test may take from, or leave in, the account that runs it."""

import functools
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from study.mirrors.tracking_uri import CLIENT_SETTINGS

LONG_FOLDERS = ("chaos", "e2e")
"""Their tests take long; `quick` marks those that the default run has all the same."""

MOST_WORKERS = 4
"""The tests that share one Ray follow one another, for as long as all others take on so many cores."""

SURROUNDINGS = (
    *("MLFLOW_TRACKING_", "RAY_", "TUNE_", "GIT_"),
    *("SLURM_", "OAR_", "PBS_", "KUBERNETES_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("COLUMNS", "FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS"),
)
"""How the variables begin that lead to an MLflow, a Ray, a checkout, a batch job, a pod, a proxy or a terminal."""

# Compiling takes most of the time of a test that learns: a program of a few rows needs no fast machine code.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()

# How long an example takes depends on what else the machine does.
settings.register_profile("any machine", deadline=None, derandomize=True)
settings.register_profile("many", deadline=None, max_examples=20_000)
settings.load_profile("any machine")


def frames_alone(context: int = 1) -> list[inspect.FrameInfo]:
    """Return `inspect.stack()` without the lines of each file."""
    outer: FrameType | None = sys._getframe(1)
    found = []
    while outer is not None:
        code = outer.f_code
        found.append(inspect.FrameInfo(outer, code.co_filename, outer.f_lineno, code.co_name, None, None))
        outer = outer.f_back
    return found


# Each connector of RLlib asks who made it, and looks at no line: 36 of 540 CPU-seconds, below pytest's many frames.
inspect.stack = frames_alone


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> Iterator[None]:
    """Forget what `SURROUNDINGS` name, and give MLflow's client its settings.

    They stay for all tests: a variable that is added again and again moves the environment, which a thread of Ray's
    may read at that moment.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.upper().startswith(SURROUNDINGS)]:
            patched.delenv(name)
        for name, value in CLIENT_SETTINGS.items():
            patched.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def tracking_environment() -> Iterator[None]:
    """Take back what a test left in the environment for MLflow: `mlflow.set_tracking_uri` writes it there too."""
    before = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    yield
    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name not in before]:
        del os.environ[name]
    os.environ.update(before)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave long tests to `pytest -m minutes`."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in LONG_FOLDERS and item.get_closest_marker("quick") is None:
            item.add_marker("minutes")


class ByFile(LoadFileScheduling):
    """The tests of a file go to one worker, those of all files that share the Ray of `tests/integration` too."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "Ray" if file in self.files_with_ray else file

    @functools.cached_property
    def files_with_ray(self) -> set[str]:
        files = Path(__file__).parent.glob("integration/test_*.py")
        return {str(file.relative_to(self.config.rootpath)) for file in files if "local_ray" in file.read_text()}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use a worker a core for whole folders; files and tests by name, and long tests, run in pytest's own process."""
    folders = all(Path(argument).is_dir() for argument in config.args)
    short = "not minutes" in config.getoption("markexpr")
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS) if folders and short else 0


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with MLflow's tables: making them takes longer than most tests."""
    from mlflow import MlflowClient

    place = tmp_path_factory.mktemp("empty")
    MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db").search_experiments()
    return (place / "mlflow.db").read_bytes()
