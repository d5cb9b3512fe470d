"""Addresses of MLflow: their form, one question to a server, and what its refusal means."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import ClusterError, StudyError
from study.text import mask_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_TRACKING_URI = "sqlite:///mlflow.db"
CLIENT_SETTINGS = {
    # MLflow's own defaults wait four minutes for a server that is away. Here a failure shows at once.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "60",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A redirect takes the person's credentials, some kinds of which travel in other headers, to an unnamed host.
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
}
"""Environment of MLflow's client; what the person has set wins."""
_FIXES = {
    r"Host header": "Start the server with `--allowed-hosts NAME:PORT`.",
    r"error code 40[13]\b|UNAUTHENTICATED|PERMISSION_DENIED": (
        "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
    ),
    r"error code 3\d\d\b": "It is a redirect, which is not followed: name where it leads.",
    r"out-of-date database schema|locate revision": "Back the database up, then run `mlflow db upgrade URI`.",
    r"must be in the 'active' state": "Restore it with `mlflow experiments restore`, then run `python -m study sync`.",
    r"ModuleNotFoundError|Can't load plugin": "For PostgreSQL pip install 'runner-scaling-study[postgresql]'.",
}
"""What an error that does not pass by itself says -> what to do."""
_SERVERS, _DATABASES = ("http", "https"), ("sqlite", "postgresql", "mysql", "mariadb", "mssql")


def asked_uri(given: str | None) -> str | None:
    """Return the MLflow that the person named: on the command line, else in the environment, else None."""
    return given or os.environ.get("MLFLOW_TRACKING_URI") or None


def check_tracking_uri(uri: str) -> str:
    """Return the form of `uri` that does not depend on the working directory, if a store can be there, else raise.

    Nothing but the file system is asked.
    """
    scheme, path, rule = _scheme(uri), sqlite_path(uri), ""
    if scheme not in (*_DATABASES, *_SERVERS):
        rule = f"must begin with one of {', '.join((*_DATABASES, *_SERVERS))}"
        fix = "Use sqlite:///FILE, or the address of a server."
    elif scheme == "sqlite":  # which writes its journal beside the database
        places = [] if path is None else [path.absolute().parent, *([path] if path.exists() else [])]
        if path is None or path.is_dir() or not all(os.access(each, os.W_OK) for each in places):
            rule, fix = "must name a file that you can write, in a folder that exists", "Name another file."
    if rule:
        raise ClusterError(where="tracking URI", rule=rule, got=repr(mask_credentials(uri)), fix=fix)
    if path is not None:
        before, _, rest = uri.partition(":///")
        return f"{before}:///{path.absolute()}{''.join(rest.partition('?')[1:])}"
    return uri.rstrip("/") if scheme in _SERVERS else uri


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of an SQLite URI, or None for any other URI."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(\?.*)?", uri)
    return Path(match[1]) if match and match[1] != ":memory:" else None


def _scheme(uri: str) -> str:
    return uri.partition("://")[0].partition("+")[0].lower()


def ask_mlflow(uri: str) -> None:
    """Let MLflow's client ask a server for one experiment, or connect once to a database's server; leave files alone.

    That there is no experiment is an answer too. `/health` would answer while the database is gone.
    """
    with answering(uri):
        if _scheme(uri) in _SERVERS:
            mlflow_client(uri).search_experiments(max_results=1)
        elif _scheme(uri) != "sqlite":  # MLflow itself would try for two minutes
            import sqlalchemy

            os.environ.setdefault("PGCONNECT_TIMEOUT", "10")  # seconds; libpq's own is none
            sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool).connect().close()


def mlflow_client(uri: str) -> "MlflowClient":
    """Return MLflow's client, imported with the settings that it needs."""
    for name, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


# --- what a refusal means ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(uri: str) -> Iterator[None]:
    """Raise as a `ClusterError` whatever MLflow, its databases, proxies and artifact stores raise inside."""
    try:
        yield
    except Exception as error:
        raise refusal(error, f"MLflow {uri}") from error


AWAY = "Start or correct it, or give another address."
"""What to do about an error that may pass by itself."""


def refusal(error: Exception, place: str) -> StudyError:
    """Return in one line what an error at a place, its name and address, means; one of this project as it is."""
    if isinstance(error, StudyError):
        return error
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    fix = next((fix for words, fix in _FIXES.items() if re.search(words, said)), AWAY)
    rule, got = "must take the study's records", reason_of(error)
    return ClusterError(where=mask_credentials(place), rule=rule, got=got, fix=fix)


def reason_of(error: Exception) -> str:
    """Return one line that says what went wrong at the root, without credentials."""
    root: BaseException = error
    for _ in range(20):  # chains that libraries build may be closed
        root = root.__cause__ or (None if root.__suppress_context__ else root.__context__) or root
    line = next(iter((str(root).strip() or str(error).strip()).splitlines()), "")
    return mask_credentials(f"{type(root).__name__}: {line}")[:300]
