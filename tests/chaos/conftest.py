"""A driver and a cluster, which are gone after the test whatever became of it, and a way to tell figures."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import Cluster
from tests.e2e.drivers import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Print a line of JSON that pytest does not swallow."""

    def tell(**figures: object) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{json.dumps(figures)}\n")

    return tell
