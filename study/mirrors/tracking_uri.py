"""Addresses of MLflow and of Optuna's storage, checked before anything starts. Imports MLflow only to ask a server."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from study.errors import TrackingError
from study.harmless import mask_credentials

DEFAULT_TRACKING_URI = "sqlite:///mlflow.db"
VARIABLE = "MLFLOW_TRACKING_URI"
"""Variable in which MLflow's users name their server."""
CLIENT_SETTINGS = {
    # MLflow's own defaults wait four minutes for a server that is away. Here a failure shows at once.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A redirect takes the person's credentials, some kinds of which travel in other headers, to an unnamed host.
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
}
"""Environment of MLflow's client; what the person has set wins."""
_LOGIN = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
_LOG = "See the server's log; often its database is away, or needs `mlflow db upgrade`."
_HOST = "Correct host and port, and the path prefix if the server has one."
_REFUSALS = (
    (r"Host header", "the server must accept this host name", "Start it with `--allowed-hosts NAME:PORT`."),
    (r"error code 40[13]\b|UNAUTHENTICATED|PERMISSION_DENIED", "you must be allowed to read experiments", _LOGIN),
    (r"error code 3\d\d\b", "must be the server itself, got a redirect, which is not followed", "Name where it leads."),
    (r"error code 5(?!01)\d\d|INTERNAL_ERROR|too many \d+ error", "the server must be healthy", _LOG),
    (r"error code \d+|valid JSON|ENDPOINT_NOT_FOUND|RESOURCE_DOES_NOT_EXIST", "must be an MLflow server", _HOST),
    (r"", "a server must answer", "Start it with `mlflow server`, or correct host and port."),
)
"""What MLflow's client says of a server -> the rule that is broken, and what to do. The first that fits counts."""
_DRIVERS = {
    "postgresql": "pip install 'runner-scaling-study[postgresql]'",
    "mysql": "pip install PyMySQL, and begin the URI with mysql+pymysql",
    "mariadb": "pip install PyMySQL, and begin the URI with mariadb+pymysql",
    "mssql": "pip install pyodbc, and Microsoft's ODBC driver",
}
"""How to get a driver, by the name of the database in a URI."""
_SERVERS = ("http", "https")
_DATABASES = ("postgresql", "mysql", "mssql")
_OPTUNA_DATABASES = ("postgresql", "mysql", "mariadb")
_TIME_LIMITS = {
    "connect_timeout": "10",  # seconds, like the next two
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # milliseconds
}
"""libpq's, for a mirror that should notice an outage."""


def set_client_defaults() -> None:
    """Give MLflow's client its settings; to be called before MLflow is imported."""
    for name, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)


def asked_uri(given: str | None) -> str | None:
    """Return the MLflow that the person named: on the command line, else in the environment, else None."""
    return given or os.environ.get(VARIABLE) or None


def check_asked_uri(given: str | None) -> str:
    """Return the absolute form of the MLflow that the person named, or of the default, after a check.

    Raises:
        TrackingError: Nothing usable is there; says why and what to do.
    """
    try:
        return check_tracking_uri(asked_uri(given) or DEFAULT_TRACKING_URI)
    except TrackingError as error:
        if given is None and asked_uri(None) is not None:
            where = f"{VARIABLE} (environment), {error.where}"
            raise TrackingError(where=where, rule=error.rule, got=error.got, fix=error.fix) from error
        raise


def check_tracking_uri(uri: str) -> str:
    """Return the absolute form of `uri` after a test whether MLflow can be there.

    A relative SQLite path is taken from the working directory. MLflow's client asks a server one question, which reads
    its database: `/health` answers while that is gone. Databases other than SQLite are not contacted.

    Raises:
        TrackingError: Nothing usable is there; says why and what to do.
    """
    scheme = _scheme(uri)
    if scheme == "sqlite":
        return _check_sqlite(uri)
    if scheme in _SERVERS:
        _ask_server(absolute_uri(uri))
    elif scheme not in _DATABASES:
        rule, got = f"must begin with one of {', '.join(('sqlite', *_SERVERS, *_DATABASES))}", mask_credentials(uri)
        if scheme in ("", "file"):
            rule, got = "must be a database or a server", f"the folder {uri}: no file store"
        fix = "Use sqlite:///mlflow.db or the http:// address of an MLflow server."
        raise TrackingError(where="tracking URI", rule=rule, got=got, fix=fix)
    return absolute_uri(uri)


def absolute_uri(uri: str) -> str:
    """Return the form of `uri` that does not depend on the working directory, without looking whether it works."""
    if (path := sqlite_path(uri)) is not None:
        scheme, _, rest = uri.partition(":///")
        _, mark, options = rest.partition("?")
        return f"{scheme}:///{path.absolute()}{mark}{options}"
    return uri.rstrip("/") if _scheme(uri) in _SERVERS else uri


def _scheme(uri: str, place: str = "tracking URI") -> str:
    try:
        return urlsplit(uri).scheme.split("+")[0].lower()
    except ValueError as error:
        got = f"{mask_credentials(uri)!r} ({error})"
        raise TrackingError(where=place, rule="must be a URI", got=got, fix="Check brackets.") from error


def is_uri(address: str) -> bool:
    """Return whether an address is a URI, and not the path of a file or folder, which may hold colons too."""
    return "://" in address


def is_probed(uri: str) -> bool:
    """Return whether `check_tracking_uri` has looked at the place itself, and not only at the form of `uri`."""
    return _scheme(uri) in ("sqlite", *_SERVERS)


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of an SQLite URI, or None for any other URI."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(\?.*)?", uri)
    return Path(match[1]) if match and match[1] != ":memory:" else None


def check_optuna_storage(uri: str) -> str:
    """Return the absolute form of a database that Optuna can use; a server is not contacted.

    Raises:
        TrackingError: It is not one; says what to do.
    """
    scheme = _scheme(uri, "Optuna storage")
    if scheme == "sqlite":
        return _check_sqlite(uri, "Optuna storage")
    if scheme in _OPTUNA_DATABASES:
        return uri
    rule, got = f"must be a database, one of sqlite, {', '.join(_OPTUNA_DATABASES)}", mask_credentials(uri)
    fix = "Use postgresql://user@host/database; without the option trials are in optuna.journal in the study's folder."
    raise TrackingError(where="Optuna storage", rule=rule, got=repr(got), fix=fix)


def is_database_server(uri: str) -> bool:
    """Return whether `uri` is that of a database on a server, without an MLflow server in front of it."""
    return _scheme(uri) in (*_DATABASES, *_OPTUNA_DATABASES)


def with_time_limits(uri: str) -> str:
    """Return a PostgreSQL URI that gives a lost connection up after half a minute; any other one as it is.

    Without limits of its own a client waits for a host that was cut off as long as TCP does, up to two hours.
    """
    if not re.match(r"postgresql(\+psycopg2?)?://", uri):
        return uri
    given = parse_qs(urlsplit(uri).query)
    added = urlencode({name: value for name, value in _TIME_LIMITS.items() if name not in given})
    return f"{uri}{'&' if '?' in uri else '?'}{added}" if added else uri


def reach(uri: str, place: str) -> None:
    """Connect to a database once, if `uri` is that of a server; `place` is what the message calls it.

    MLflow would try for two minutes, without a word, before it says why it cannot; and neither MLflow nor Optuna says
    what is wrong where Python lacks the driver or the database an encoding.

    Raises:
        TrackingError: `uri` cannot be read, Python has no driver for the database, or it is not encoded in UTF8.
        SQLAlchemyError: It does not answer, or knows neither user nor database.
    """
    if not is_database_server(uri):
        return
    import sqlalchemy

    where, kind = f"{place} {mask_credentials(uri)}", _scheme(uri)
    try:
        with sqlalchemy.create_engine(with_time_limits(uri), poolclass=sqlalchemy.pool.NullPool).connect():
            pass
    except (ImportError, sqlalchemy.exc.NoSuchModuleError) as error:
        rule, got, fix = "Python must have the database's driver", f"none ({error})", f"{_DRIVERS[kind]}."
        raise TrackingError(where=where, rule=rule, got=got, fix=fix) from None
    except (ValueError, sqlalchemy.exc.ArgumentError):  # they may quote the password
        got, fix = "one that cannot be read", f"Write {kind}://HOST:PORT/NAME, the port as a number."
        raise TrackingError(where=where, rule="must be a URI", got=got, fix=fix) from None
    except TypeError:  # psycopg gives bytes for the texts of a database whose encoding is SQL_ASCII
        rule, fix = "the database must be encoded in UTF8", "Create it anew with `createdb -E UTF8 -T template0`."
        raise TrackingError(where=where, rule=rule, got="another one", fix=fix) from None


def _check_sqlite(uri: str, place: str = "tracking URI") -> str:
    path, fix = sqlite_path(uri), "Name a database file, such as sqlite:///mlflow.db."
    if path is None:
        raise TrackingError(where=place, rule="SQLite must keep its data in a file", got=repr(uri), fix=fix)
    absolute = path.absolute()
    if absolute.is_dir():
        raise TrackingError(where=place, rule="must name a file", got=f"the folder {absolute}", fix=fix)
    if not (parent := absolute.parent).is_dir():
        raise TrackingError(where=place, rule="the database's folder must exist", got=parent, fix="Create it.")
    for each in (parent, *([absolute] if absolute.exists() else [])):
        if not os.access(each, os.W_OK):  # SQLite writes its journal beside the database
            fix = "chmod it, or choose another place."
            raise TrackingError(where=place, rule="must be writable", got=each, fix=fix)
    return absolute_uri(uri)


def _ask_server(uri: str) -> None:
    """Let MLflow's client ask for one experiment; that there is none is an answer too."""
    with _client_settings():
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except (MlflowException, OSError, ValueError) as error:
            said = " ".join(str(error).split())
            rule, fix = next((rule, fix) for words, rule, fix in _REFUSALS if re.search(words, said))
            where, got = (
                f"tracking URI {mask_credentials(uri)}",
                mask_credentials(said).rpartition("Caused by ")[2][-200:],
            )
            raise TrackingError(where=where, rule=rule, got=got, fix=fix) from None


@contextlib.contextmanager
def _client_settings() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in CLIENT_SETTINGS}
    set_client_defaults()
    try:
        yield
    finally:
        for name in (name for name, value in before.items() if value is None):
            os.environ.pop(name, None)
