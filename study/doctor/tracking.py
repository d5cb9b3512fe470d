"""Whether MLflow will take a study's results: address, a real question to its API, versions, file system.

Nothing is written: a server is asked as a client asks; of a database only the schema is looked at, since MLflow's own
client would make or fill its tables. Imports MLflow inside functions.
"""

import logging
import re
from importlib import metadata
from urllib.parse import quote

from packaging.version import InvalidVersion, Version

from study.cluster.connection import environment
from study.doctor.finding import Check, Verdict, fail, ok, warn
from study.doctor.limits import is_network
from study.doctor.storage import nearest
from study.doctor.surroundings import Surroundings
from study.errors import TrackingError
from study.harmless import mask_credentials
from study.hosts.probe import filesystem_of
from study.mirrors.tracking_uri import CLIENT_SETTINGS, absolute_uri, check_tracking_uri, sqlite_path

TIMEOUT_S = 10.0


def address(around: Surroundings) -> Verdict:
    """Whether something that speaks MLflow's API is at the address, and lets us in by this host name."""
    uri = check_tracking_uri(around.tracking_uri)  # raises what is then said
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        return ok(f"{path} will be made by the first study")
    return ok(f"{mask_credentials(uri)} can be used")


def _usable(uri: str) -> str | None:
    """Return the absolute address; None where `address` has said already why there is none."""
    try:
        return check_tracking_uri(uri)
    except TrackingError:
        return None


def api(around: Surroundings) -> Verdict | None:
    """Whether MLflow's own client gets an answer to a real question; `/health` says nothing about that."""
    uri = _usable(around.tracking_uri)
    if uri is None:
        return None
    if not uri.startswith("http"):
        return _database(uri)
    with environment(CLIENT_SETTINGS):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            found = MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except MlflowException as error:
            return fail(f"search_experiments was refused: {_short(error)}", _way_out(str(error)))
    return ok("search_experiments was answered" + (", no experiment yet" if not found else ""))


def _way_out(message: str) -> str:
    if "Host header" in message:
        return "Start the server with `mlflow server --allowed-hosts <host:port>`, or use its IP address."
    if re.search(r"\b(401|403|[Aa]uthenticat|PERMISSION_DENIED)", message):
        return "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
    return "Look at the server's log, and at proxies in between (http_proxy, no_proxy)."


def _database(uri: str) -> Verdict | None:
    """Look whether a database is MLflow's, and of this version."""
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        return None
    import sqlalchemy
    from mlflow.store.db import utils

    logging.getLogger("alembic").setLevel(logging.WARNING)
    readable = uri if path is None else f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true"
    try:
        engine = sqlalchemy.create_engine(readable)
    except ImportError as error:
        return fail(f"its database driver is missing: {error}", "pip install it beside MLflow.")
    try:
        tables = set(sqlalchemy.inspect(engine).get_table_names())
        if not tables:
            return ok("an empty database; the first study makes MLflow's tables")
        if "experiments" not in tables:
            return fail(
                f"this database is not MLflow's, got tables {', '.join(sorted(tables)[:4])}",
                "Name another one with --tracking-uri.",
            )
        schema, expected = utils._get_schema_version(engine), utils._get_latest_schema_revision()
        with engine.connect() as connection:
            count = connection.execute(sqlalchemy.text("select count(*) from experiments")).scalar()
    except sqlalchemy.exc.SQLAlchemyError as error:
        fix = "Check that the database runs, its address, user and password."
        return fail(f"the database does not answer: {_short(error)}", fix if path is None else "Restore or remove it.")
    finally:
        engine.dispose()
    if schema != expected:
        return fail(
            f"its tables are of another MLflow (schema {schema}; {metadata.version('mlflow')} needs {expected})",
            "Back it up, then run `mlflow db upgrade <uri>`; or use the newer MLflow.",
        )
    return ok(f"the tables answer, {count} experiments")


def _short(error: Exception) -> str:
    return mask_credentials(" ".join(str(error).split()))[:220]


def server_version(around: Surroundings) -> Verdict | None:
    """Whether server and client understand each other, and whether the server has known holes."""
    uri = _usable(around.tracking_uri)
    if uri is None or not uri.startswith("http"):
        return None
    with environment(CLIENT_SETTINGS):
        from mlflow.exceptions import MlflowException
        from mlflow.tracking._tracking_service.utils import get_default_host_creds
        from mlflow.utils.rest_utils import http_request

        try:
            answer = http_request(get_default_host_creds(uri), "/version", "GET", timeout=TIMEOUT_S, max_retries=0)
        except MlflowException as error:
            return warn(f"the server does not tell its version: {_short(error)}", "Look at it by hand.")
    if answer.status_code != 200:
        return warn(f"the server does not tell its version: HTTP {answer.status_code}", "Look at it by hand.")
    return compare_versions(answer.text.strip(), metadata.version("mlflow"))


def compare_versions(server: str, client: str) -> Verdict:
    """Judge the versions of a server and of the client."""
    from study.doctor.packages import FLOORS

    try:
        theirs, ours = Version(server), Version(client)
    except InvalidVersion:
        return warn(f"the server calls its version {server[:40]!r}", "Look at it by hand.")
    floor, hole = FLOORS["mlflow"]
    if theirs < Version(floor):
        return warn(f"server {server} has known holes ({hole})", f"Upgrade it to {floor} or later.")
    if theirs.major != ours.major:
        return fail(
            f"server {server}, client {client}: the major versions differ", "Install the same one on both sides."
        )
    return ok(f"server {server}, client {client}")


def filesystem(around: Surroundings) -> Verdict | None:
    """Whether an SQLite database is where its locks work."""
    path = sqlite_path(absolute_uri(around.tracking_uri))
    if path is None:
        return None
    kind = filesystem_of(nearest(path))
    if is_network(kind):
        return warn(
            f"{path} is an SQLite database on {kind}, whose locks it cannot rely on: two writers corrupt it",
            "Keep it on a local disk (--tracking-uri sqlite:////tmp/…), or use an MLflow server or PostgreSQL.",
        )
    return ok(f"the SQLite database is on a local disk ({kind or 'unknown'})")


CHECKS = (
    Check("mlflow", "address", address),
    Check("mlflow", "API", api),
    Check("mlflow", "versions", server_version),
    Check("mlflow", "file system", filesystem),
)
