import socket
import threading

import pytest

from study.cluster import connection as ray_watch
from study.cluster.connection import RayWatch


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(ray_watch, "PERIOD_S", 0.05)
    monkeypatch.setattr(ray_watch, "PATIENCE_S", 0.5)


def address_of(server):
    return "{}:{}".format(*server.getsockname())


def test_a_server_that_goes_away_is_told_of_once_and_by_name():
    said, told = [], threading.Event()

    def on_lost(why):
        said.append(why)
        told.set()

    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as server:
        address = address_of(server)
        with RayWatch({"the other": address_of(other), "the head": address}, on_lost):
            assert not told.wait(1.5)  # three times its patience, and both are there
            server.close()
            assert told.wait(30)
            told.clear()
            assert not told.wait(1)
    assert said == [f"the head ({address}) has not answered for 0.5 s"]


def test_a_server_that_comes_back_in_time_was_never_gone(monkeypatch):
    monkeypatch.setattr(ray_watch, "PATIENCE_S", 30)
    told = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with RayWatch({"the head": f"{address[0]}:{address[1]}"}, lambda why: told.set()):
        assert not told.wait(0.5)
        with socket.create_server(address):
            assert not told.wait(0.5)


def test_a_watch_that_has_ended_tells_nothing():
    told = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address_of(server)
    with RayWatch({"the head": address}, lambda why: told.set()):
        pass
    assert not told.wait(1)
