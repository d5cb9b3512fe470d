"""One study under watch, for all tests of what it opens and what it tells."""

import secrets
from dataclasses import dataclass

import pytest

from tests.integration.mlflow_tools import Server
from tests.security.watching import Watched, watch


@dataclass(frozen=True)
class Run:
    """A watched study, and the secrets that were planted in it."""

    watched: Watched
    planted: dict[str, str]


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Run:
    place = tmp_path_factory.mktemp("watched")
    planted = {name: f"PLANTED-{name}-{secrets.token_hex(8)}" for name in ("password", "bearer", "credentials")}
    with Server(place / "server") as server:
        uri = server.uri.replace("://", f"://someone:{planted['password']}@")
        surroundings = {
            "MLFLOW_TRACKING_TOKEN": planted["bearer"],
            "RAY_OUR_CREDENTIALS": planted["credentials"],
            "TUNE_OUR_SETTINGS": f'{{"password": "{planted["credentials"]}"}}',
        }
        watched = watch(place, "--tracking-uri", uri, secret_environment=surroundings)
    return Run(watched, planted)
