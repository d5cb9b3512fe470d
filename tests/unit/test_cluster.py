import pytest

from study.cluster.address import check_address, resolve_address
from study.cluster.connection import local_shape, private_shape
from study.errors import ClusterError
from tests.spaces import spec

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


def test_a_private_ray_hands_out_the_cores_and_no_less_than_the_largest_trial_reserves():
    (here,) = local_shape().nodes
    assert here.num_cpus == here.physical_cpus
    many = {"parameters__num_env_runners": [1, 300], "parameters__num_envs_per_env_runner": 1}
    (real,) = private_shape(spec(**many, execution="real", parameters__train_batch_size=300)).nodes
    assert (real.num_cpus, real.physical_cpus) == (301, here.physical_cpus)
    (emulated,) = private_shape(spec(**many, execution="emulated", parameters__train_batch_size=300)).nodes
    assert emulated.num_cpus == here.physical_cpus
