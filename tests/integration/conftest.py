"""One private local Ray for all integration tests; logical CPUs only, since the tests share two cores."""

import secrets
from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_TOKEN", secrets.token_urlsafe(32))  # else Ray writes one into the home of this account
        ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
