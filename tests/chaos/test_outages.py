"""An MLflow that is away or hidden by a cut network, and a node that the network loses: what a study notices of it."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

from study.records.folder import StudyFolder
from study.records.records import Iteration, read_lines
from tests import postgresql
from tests.chaos.network import Proxy, Wire
from tests.e2e import test_mlflow_outage as mlflow_outage
from tests.e2e.clusters import Cluster
from tests.e2e.drivers import Driver, lasting
from tests.integration.mlflow_tools import Server

AROUND_S = 20.0
"""Seconds of training before an outage and after it."""
Tell = Callable[..., None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "server") as server:
        yield server


def iterations(driver: Driver) -> list[tuple[float, Iteration]]:
    lines = read_lines(StudyFolder(driver.folder).records)
    return [(line.time, line.record) for line in lines if isinstance(line.record, Iteration)]


def env_steps_per_s(driver: Driver, begin: float, end: float) -> float:
    """Return the steps that the study trained on in each second between two moments, whatever else it did."""
    seen = [(moment, record) for moment, record in iterations(driver) if begin <= moment <= end]
    steps = sum(record.metrics["train_batch_size_actual"] or 0 for _, record in seen[1:])
    return steps / (seen[-1][0] - seen[0][0])


def away(
    driver: Driver, database: str, uri: str, seconds: float, cut: Callable[[], None], mend: Callable[[], None], *options
):
    """Run one long trial, hide a store in its middle; return the steps a second then, and before and after."""
    driver.start("--tracking-uri", uri, *options, *lasting(seconds + 2 * AROUND_S + 10))
    driver.wait_for("iteration", 3)
    began = time.time()
    time.sleep(AROUND_S)
    cut()
    hidden = time.time()
    time.sleep(seconds)
    mend()
    back = time.time()
    assert driver.end(seconds + 300) == 0, driver.said
    last = iterations(driver)[-1][0]
    there = (env_steps_per_s(driver, began, hidden), env_steps_per_s(driver, back, last))
    assert "Traceback" not in driver.said
    assert "catch up with" not in driver.said
    driver.assert_whole(1)
    mlflow_outage.assert_complete(driver, database)
    return env_steps_per_s(driver, hidden, back) if seconds else None, there


def figures(during: float | None, there: tuple[float, float]) -> dict[str, object]:
    """Return what to tell: steps a second before, after and during the outage, and the share of the usual ones."""
    usual = sum(there) / 2
    share = None if during is None else round(during / usual, 3)
    return {"env_steps_per_s": [round(rate) for rate in there], "during": during and round(during), "share": share}


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [0, 20, 60])
def test_postgresql_is_away(driver: Driver, tell: Tell, seconds: float) -> None:
    """MLflow's tables and Optuna's are both in it; it ends as in a crash and starts again."""
    with postgresql.running() as database:
        driver.uri, storage = database.create("mlflow"), database.create("optuna")
        found = away(
            driver, driver.uri, driver.uri, seconds, database.stop, database.start, "--optuna-storage", storage
        )
        trials = optuna.load_study(
            study_name=f"{driver.folder.name}-{StudyFolder(driver.folder).identity().study_id}", storage=storage
        ).trials
        assert [trial.state.name for trial in trials] == ["COMPLETE"]
    tell(chaos="PostgreSQL away", seconds=seconds, **figures(*found))


@pytest.mark.heavy
def test_a_network_that_swallows_what_is_sent_to_mlflow(driver: Driver, server: Server, tell: Tell) -> None:
    """No refusal, no end: connections stay open and nothing comes through."""
    driver.uri = server.uri
    with Proxy(server.port) as proxy:
        found = away(driver, server.database, proxy.uri, 40, proxy.cut, proxy.mend)
    tell(chaos="MLflow swallowed", seconds=40, **figures(*found))


needs_root = pytest.mark.skipif(os.getuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")


@pytest.mark.heavy
@needs_root
@pytest.mark.parametrize("seconds", [8, 60])
def test_a_node_that_the_network_loses(driver: Driver, cluster: Cluster, tell: Tell, seconds: float) -> None:
    """Shorter than Ray's patience nothing happens to the trial; longer, and it runs again elsewhere, once."""
    driver.settings = cluster.settings
    with Wire() as wire:
        cluster.start_head(host=wire.outside)
        cluster.add_node(2, wire.inside, within=wire.within)
        driver.start("--address", cluster.address, *lasting(30 if seconds < 10 else 20))
        driver.wait_for("iteration", 2)
        wire.cut()
        time.sleep(seconds)
        wire.mend()
        cluster.add_node(2, "127.0.0.2")
        assert driver.end() == 0, driver.said
        driver.assert_whole(1)
        lost = [each.reason for each in driver.attempts("interrupted")]
        tell(chaos="node cut off", seconds=seconds, lost=lost)
        assert len(lost) == (0 if seconds < 10 else 1)
        state = cluster.state(60)
        assert state["free"] == state["total"]
        assert not state["groups"]
        assert not state["actors"]
