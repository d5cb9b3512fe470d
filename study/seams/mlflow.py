"""Seams of MLflow."""

import functools
import os
import tempfile
from pathlib import Path
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
TABLES = _seam(
    name="mlflow-tables",
    does="put a new SQLite database in its place whole",
    why="MLflow makes its tables in place, for seconds; a database that a kill leaves half-made it never opens again.",
    needs=(
        has("mlflow.store.db.utils:create_sqlalchemy_engine", "db_uri"),
        has("mlflow.store.db.utils:_initialize_tables", "engine"),
    ),
)


def create_database(path: Path) -> None:
    """Create MLflow's SQLite database at `path`, whole or not at all; one that is there stays as it is."""
    if path.exists():
        return
    content = _new_database()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        _link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@functools.cache
def _new_database() -> bytes:
    """Return a database with MLflow's tables; its steps from version to version take seconds."""
    from mlflow.store.db import utils

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "mlflow.db"
        engine = utils.create_sqlalchemy_engine(f"sqlite:///{made}")
        utils._initialize_tables(engine)
        engine.dispose()
        return made.read_bytes()


def _link(draft: Path, path: Path) -> None:
    """Give a whole file its name; one that another process has put there meanwhile stays."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            draft.replace(path)


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
