"""Seams of MLflow."""

import functools
from typing import Any

from study.seams.base import Seam, has

_seam = functools.partial(Seam, distribution="mlflow", versions=">=3.17,<4")

SCHEMA = _seam(
    name="mlflow-schema",
    does="compare the tables of a database with those of the installed MLflow",
    why="MLflow has a command that changes the tables, and no public function that only looks at them.",
    needs=(
        has("mlflow.store.db.utils:_get_schema_version", "engine"),
        has("mlflow.store.db.utils:_get_latest_schema_revision"),
    ),
)
CREDENTIALS = _seam(
    name="mlflow-credentials",
    does="ask a server for its version with the user's credentials",
    why="The client has no call for the version.",
    needs=(
        has("mlflow.tracking._tracking_service.utils:get_default_host_creds", "store_uri"),
        has("mlflow.utils.rest_utils:http_request"),
    ),
)


def schemas(engine: Any) -> tuple[Any, Any]:
    """Return the schema of a database, and the one that the installed MLflow needs."""
    from mlflow.store.db import utils

    return utils._get_schema_version(engine), utils._get_latest_schema_revision()


def server_answer(uri: str, path: str, *, timeout_s: float) -> Any:
    """Return the answer of a tracking server to a GET request with the user's credentials.

    Raises:
        MlflowException: The server does not answer.
    """
    from mlflow.tracking._tracking_service.utils import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    return http_request(get_default_host_creds(uri), path, "GET", timeout=timeout_s, max_retries=0)
