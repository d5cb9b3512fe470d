import pytest

from study.cluster import _siblings, check_address, machine, resolve_address
from study.errors import ClusterError


def test_hyper_threads_of_one_core_are_one_core(tmp_path):
    for cpu, siblings in enumerate(["0,8", "1,9"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert _siblings(0, tmp_path) == "0,8"
    assert len({_siblings(0, tmp_path), _siblings(0, tmp_path), _siblings(1, tmp_path)}) == 2
    assert _siblings(7, tmp_path) == "7"


def test_the_machine_has_a_core_and_some_memory():
    cores, memory_mb = machine()
    assert cores >= 1
    assert memory_mb > 100


UNREACHABLE = ["nonsense", ".:6379", "x" * 70 + ":1", "127.0.0.1:9", "ray://127.0.0.1:10001", ":1"]


@pytest.mark.parametrize("address", UNREACHABLE)
def test_an_address_that_cannot_be_reached_is_an_ordinary_error(address):
    with pytest.raises(ClusterError, match="--address"):
        check_address(address)


def test_without_an_address_ray_is_private(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert resolve_address(None) is None
    assert resolve_address("local") is None
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9"):
        resolve_address(None)
