"""Which Ray a study joins, the shape of a private one, and the watch over its servers."""

import re
import socket
import threading

import pytest

from study.designs.registry import private_shape
from study.errors import ClusterError
from study.machine import cluster
from study.machine.cluster import check_address, resolve_address, watching_ray
from study.machine.host import this_node
from tests.spaces import spec

UNREACHABLE = {
    "nonsense": "must be auto, local or host:port",
    ":1": "must be auto, local or host:port",
    "10.0.0.1:²": "must be auto, local or host:port",
    "http://127.0.0.1:8265": "must be auto, local or host:port",  # of a dashboard, as `ray job submit` wants it
    "ray://127.0.0.1:10001": "must be auto, local or host:port",
    ".:6379": "no answer within 3 s",
    "x" * 70 + ":1": "no answer within 3 s",
    "127.0.0.1:9": "no answer within 3 s",
}


@pytest.mark.parametrize("given", UNREACHABLE)
def test_an_address_that_cannot_be_reached_is_an_ordinary_error(given):
    with pytest.raises(ClusterError, match=f"^--address {re.escape(given)}: {UNREACHABLE[given]}"):
        check_address(given)


def test_an_address_of_ipv6_stands_in_brackets():
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        check_address(f"[::1]:{server.getsockname()[1]}")


def test_a_server_that_is_no_ray_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(cluster, "HANDSHAKE_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ClusterError, match="must be a Ray cluster"):
        resolve_address(address_of(server))


def test_without_an_address_ray_is_private(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert resolve_address(None) is None
    assert resolve_address("local") is None
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS 127\.0\.0\.1:9"):
        resolve_address(None)


def test_a_private_ray_hands_out_the_cores_and_no_less_than_the_largest_trial_reserves():
    here = this_node()
    assert here.num_cpus == here.physical_cpus
    many = {"parameters__num_env_runners": [1, 300], "parameters__num_envs_per_env_runner": 1}
    (real,) = private_shape(spec(**many, execution="real", parameters__train_batch_size=300)).nodes
    assert (real.num_cpus, real.physical_cpus) == (301, here.physical_cpus)
    (emulated,) = private_shape(spec(**many, execution="emulated", parameters__train_batch_size=300)).nodes
    assert emulated.num_cpus == here.physical_cpus


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(cluster, "PERIOD_S", 0.05)
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.5)


def address_of(server):
    return "{}:{}".format(*server.getsockname())


def test_a_server_that_goes_away_is_reported_once_and_by_name(soon):
    said, reported = [], threading.Event()

    def on_lost(why):
        said.append(why)
        reported.set()

    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as server:
        place = address_of(server)
        with watching_ray({"the other": address_of(other), "the head": place}, on_lost):
            assert not reported.wait(1.5)  # three times its patience, and both are there
            server.close()
            assert reported.wait(30)
            reported.clear()
            assert not reported.wait(1)
    assert said == [f"the head ({place}) has not answered for 0.5 s"]
