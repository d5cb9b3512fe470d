"""Whether MLflow will take a study's results: address, a real question to its API, file system.

Nothing is written: a server and an SQLite database are asked as a client asks, the latter without the right to write;
of another database only the tables are looked at, since MLflow's own client would make or change them. Imports MLflow
inside functions.
"""

import logging
import re
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from study.cluster.environment import environment
from study.doctor.results import CheckResult, fail, ok, warn
from study.doctor.storage import nearest
from study.doctor.surroundings import Surroundings
from study.harmless import mask_credentials
from study.hosts.mounts import mount_of
from study.mirrors.tracking_uri import CLIENT_SETTINGS, check_tracking_uri, sqlite_path


def answers(around: Surroundings) -> CheckResult:
    """Whether MLflow's own client gets an answer to a real question; a server's `/health` says nothing about that."""
    uri = check_tracking_uri(around.tracking_uri)  # its errors become the result
    path = sqlite_path(uri)
    if uri.startswith("http"):
        return _server(uri)
    return _database(uri, path) if path is None or path.exists() else ok(f"{path} will be made by the first study")


def _server(uri: str) -> CheckResult:
    if (refusal := _refusal(uri)) is not None:
        return fail(f"search_experiments was refused: {refusal}", _way_out(refusal))
    return ok(f"search_experiments was answered; the client is of version {metadata.version('mlflow')}")


def _refusal(uri: str) -> str | None:
    """Return why MLflow's own client gets no answer to a real question; None where it does."""
    with environment(CLIENT_SETTINGS):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # it prints tracebacks of what is said below
        try:
            MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except MlflowException as error:
            return _short(error)
    return None


def _way_out(message: str) -> str:
    if "Host header" in message:
        return "Start the server with `mlflow server --allowed-hosts <host:port>`, or use its IP address."
    if re.search(r"\b(401|403|[Aa]uthenticat|PERMISSION_DENIED)", message):
        return "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
    return "Look at the server's log, and at proxies in between (http_proxy, no_proxy)."


def _database(uri: str, path: Path | None) -> CheckResult:
    """Judge whether a database is MLflow's, and of this version."""
    import sqlalchemy

    readable = uri if path is None else f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true"
    try:
        engine = sqlalchemy.create_engine(readable)
    except ImportError as error:
        return fail(f"its database driver is missing: {error}", "Install it beside MLflow with pip.")
    try:
        tables = set(sqlalchemy.inspect(engine).get_table_names())
    except sqlalchemy.exc.SQLAlchemyError as error:
        fix = "Check that the database runs, its address, user and password."
        return fail(f"the database does not answer: {_short(error)}", fix if path is None else "Restore or remove it.")
    finally:
        engine.dispose()
    if not tables:
        return ok("an empty database; the first study makes MLflow's tables")
    if "experiments" not in tables:
        return fail(
            f"this database is not MLflow's, got tables {', '.join(sorted(tables)[:4])}",
            "Name another one with --tracking-uri.",
        )
    if path is not None and (refusal := _refusal(readable)) is not None:
        return fail(
            f"MLflow {metadata.version('mlflow')} cannot use its tables: {refusal}",
            "Where they are of another version: back it up, then run `mlflow db upgrade <uri>`.",
        )
    return ok("MLflow's tables answer")


def _short(error: Exception) -> str:
    return mask_credentials(" ".join(str(error).split()))[:220]


def filesystem(around: Surroundings) -> CheckResult | None:
    """Whether an SQLite database is where its locks work."""
    path = sqlite_path(around.tracking_uri)
    if path is None:
        return None
    mount = mount_of(nearest(path))
    if mount.is_network:
        return warn(
            f"{path} is an SQLite database on {mount.kind}, whose locks it cannot rely on: two writers corrupt it",
            "Keep it on a local disk (--tracking-uri sqlite:////tmp/…), or use an MLflow server or PostgreSQL.",
        )
    return ok(f"the SQLite database is on a local disk ({mount.kind or 'unknown'})")
