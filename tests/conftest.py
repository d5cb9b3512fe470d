"""What no test may take from, or leave in, the account that runs it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

LONG_FOLDERS = ("chaos", "e2e")
"""Their tests take long; `quick` marks those that the default run has all the same."""

# How long an example takes depends on what else the machine does.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key of the signatures in a folder of the tests, and forget which MLflow this account uses."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name in [name for name in os.environ if name.startswith("MLFLOW_TRACKING_")]:
            patched.delenv(name)
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


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with MLflow's tables: making them takes longer than most tests."""
    from tests.synthetic import make_folder, sync_mlflow

    place = tmp_path_factory.mktemp("empty")
    sync_mlflow(make_folder(place / "demo", f"sqlite:///{place}/mlflow.db", name="empty"))
    return (place / "mlflow.db").read_bytes()
