"""Addresses of MLflow and of Optuna's storage: their form, one question to a server, and what its refusal means.

Whether a place takes a study is seen when its mirror opens it, before Ray starts: `refusal` puts what MLflow, a
database or a proxy raises into one line with what to do. Imports MLflow only to ask.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from study.errors import StudyError, TrackingError
from study.harmless import mask_credentials

DEFAULT_TRACKING_URI = "sqlite:///mlflow.db"
VARIABLE = "MLFLOW_TRACKING_URI"
"""Variable in which MLflow's users name their server."""
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
_LOGIN = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
_LOG = "See the server's log; often its database is away, or needs `mlflow db upgrade`."
_HOST = "Correct host and port, and the path prefix if the server has one."
_OF_SERVERS: Sequence[tuple[str, str, str]] = (
    (r"Host header", "the server must accept this host name", "Start it with `--allowed-hosts NAME:PORT`."),
    (r"error code 40[13]\b|UNAUTHENTICATED|PERMISSION_DENIED", "you must be allowed to use experiments", _LOGIN),
    (r"error code 3\d\d\b", "must be the server itself, got a redirect, which is not followed", "Name where it leads."),
    (r"error code 5(?!01)\d\d|INTERNAL_ERROR|too many \d+ error", "the server must be healthy", _LOG),
    (r"error code \d+|valid JSON|ENDPOINT_NOT_FOUND", "must be an MLflow server", _HOST),
    (r"", "a server must answer", "Start it with `mlflow server`, or correct host and port."),
)
"""What MLflow's client says of a server -> the rule that is broken, and what to do. The first that fits counts."""
_OF_DATABASES: Sequence[tuple[str, str, str]] = (
    (
        r"out-of-date database schema|locate revision",
        "the database must have this MLflow's tables",
        "Back it up, then run `mlflow db upgrade {uri}`; or use the MLflow that made it.",
    ),
    (r"", "{name} must take the study's records", "Start or correct it, or give another {option}; then try again."),
)
_DRIVER = (
    "For PostgreSQL pip install 'runner-scaling-study[postgresql]'; for another one the package of its driver, which "
    "the URI then names, as in mysql+pymysql."
)
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
_LONGEST_REASON = 300
"""Characters."""


# --- what a person named ---------------------------------------------------------------------------------------------


def asked_uri(given: str | None) -> str | None:
    """Return the MLflow that the person named: on the command line, else in the environment, else None."""
    return given or os.environ.get(VARIABLE) or None


def check_asked_uri(given: str | None) -> str:
    """Return the absolute form of the MLflow that the person named, or of the default.

    Raises:
        TrackingError: It cannot be one; says why and what to do.
    """
    try:
        return check_tracking_uri(asked_uri(given) or DEFAULT_TRACKING_URI)
    except TrackingError as error:
        if given is None and asked_uri(None) is not None:
            where = f"{VARIABLE} (environment), {error.where}"
            raise TrackingError(where=where, rule=error.rule, got=error.got, fix=error.fix) from error
        raise


def check_tracking_uri(uri: str) -> str:
    """Return the absolute form of `uri` if MLflow can be there; nothing but the file system is asked.

    Raises:
        TrackingError: It cannot; says why and what to do.
    """
    fix = "Use sqlite:///mlflow.db or the http:// address of an MLflow server; a folder is no store."
    return _checked(uri, "tracking URI", ("sqlite", *_SERVERS, *_DATABASES), fix)


def check_optuna_storage(uri: str) -> str:
    """Return the absolute form of a database that Optuna can use; a server is not contacted.

    Raises:
        TrackingError: It is not one; says what to do.
    """
    fix = "Use postgresql://user@host/database; without the option trials are in optuna.journal in the study's folder."
    return _checked(uri, "Optuna storage", ("sqlite", *_OPTUNA_DATABASES), fix)


def absolute_uri(uri: str) -> str:
    """Return the form of `uri` that does not depend on the working directory, without looking whether it works."""
    if (path := sqlite_path(uri)) is not None:
        scheme, _, rest = uri.partition(":///")
        _, mark, options = rest.partition("?")
        return f"{scheme}:///{path.absolute()}{mark}{options}"
    return uri.rstrip("/") if _scheme(uri) in _SERVERS else uri


def is_uri(address: str) -> bool:
    """Return whether an address is a URI, and not the path of a file or folder, which may hold colons too."""
    return "://" in address


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of an SQLite URI, or None for any other URI."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(\?.*)?", uri)
    return Path(match[1]) if match and match[1] != ":memory:" else None


def is_database_server(uri: str) -> bool:
    """Return whether `uri` is that of a database on a server, without an MLflow server in front of it."""
    return _scheme(uri) in (*_DATABASES, *_OPTUNA_DATABASES)


def _scheme(uri: str, place: str = "tracking URI") -> str:
    try:
        return urlsplit(uri).scheme.split("+")[0].lower()
    except ValueError as error:
        got = f"{mask_credentials(uri)!r} ({error})"
        raise TrackingError(where=place, rule="must be a URI", got=got, fix="Check brackets.") from error


def _checked(uri: str, place: str, schemes: Sequence[str], fix: str) -> str:
    """Return the absolute form of a URI of these schemes, an SQLite database of which can be written."""
    scheme, rule, got = _scheme(uri, place), "", mask_credentials(uri)
    if scheme not in schemes:
        rule = f"must begin with one of {', '.join(schemes)}"
    elif scheme == "sqlite":
        fix = "Name a database file in a folder that exists and that you may write, such as sqlite:///mlflow.db."
        path = sqlite_path(uri)
        if path is None or path.is_dir():
            rule = "SQLite must keep its data in a file"
        elif not path.absolute().parent.is_dir():
            rule, got = "the database's folder must exist", str(path.absolute().parent)
        else:  # SQLite writes its journal beside the database
            places = [place for place in (path.absolute(), path.absolute().parent) if place.exists()]
            closed = [str(place) for place in places if not os.access(place, os.W_OK)]
            rule, got = ("must be writable", closed[0]) if closed else ("", "")
    if rule:
        raise TrackingError(where=place, rule=rule, got=repr(got), fix=fix)
    return absolute_uri(uri)


# --- a question, and what the answer means ---------------------------------------------------------------------------


def set_client_defaults() -> None:
    """Give MLflow's client its settings; to be called before MLflow is imported."""
    for name, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)


def ask_mlflow(uri: str) -> None:
    """Let MLflow's client ask a server for one experiment, which reads its database; no other place is contacted.

    That there is no experiment is an answer too. `/health` would answer while the database is gone.

    Raises:
        TrackingError: The server refuses or does not answer; says why and what to do.
    """
    if _scheme(uri) not in _SERVERS:
        return
    before = {name: os.environ.get(name) for name in CLIENT_SETTINGS}
    set_client_defaults()
    try:
        with answering(uri):
            from mlflow import MlflowClient

            MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    finally:
        for name in (name for name, value in before.items() if value is None):
            os.environ.pop(name, None)


@contextlib.contextmanager
def answering(uri: str) -> Iterator[None]:
    """Raise as a `TrackingError` whatever MLflow, its databases, proxies and artifact stores raise inside."""
    try:
        yield
    except StudyError:
        raise
    except Exception as error:
        raise refusal(error, uri) from error


def refusal(
    error: Exception, uri: str, *, place: str = "tracking URI", name: str = "MLflow", option: str = "--tracking-uri"
) -> StudyError:
    """Return in one line what an error at an address means, and what to do; one of this project as it is.

    Args:
        error: What was raised there.
        uri: The address.
        place: What the address is called, for people.
        name: Of what is there.
        option: Names another address on the command line.
    """
    if isinstance(error, StudyError):
        return error
    shown, said, got = mask_credentials(uri), " ".join(str(error).split()), reason_of(error)
    table = _OF_DATABASES
    if name == "MLflow" and _scheme(uri) in _SERVERS:
        table, got = _OF_SERVERS, mask_credentials(said).rpartition("Caused by ")[2][-200:]
    rule, fix = next((rule, fix) for words, rule, fix in table if re.search(words, said))
    rule, fix = rule.replace("{name}", name), fix.replace("{option}", option).replace("{uri}", f"'{shown}'")
    return TrackingError(where=f"{place} {shown}", rule=rule, got=got, fix=fix)


def reason_of(error: Exception) -> str:
    """Return one line that says what went wrong at the root, without credentials."""
    root: BaseException = error
    seen = {id(root)}  # chains that libraries build may be closed
    while (deeper := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        if id(deeper) in seen:
            break
        seen.add(id(deeper))
        root = deeper
    if isinstance(root, StudyError):  # written for people
        return mask_credentials(str(root))
    lines = str(root).strip().splitlines() or str(error).strip().splitlines() or [""]
    return mask_credentials(f"{type(root).__name__}: {lines[0]}")[:_LONGEST_REASON]


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

    kind = _scheme(uri)
    try:
        with sqlalchemy.create_engine(with_time_limits(uri), poolclass=sqlalchemy.pool.NullPool).connect():
            return
    except (ImportError, sqlalchemy.exc.NoSuchModuleError) as error:
        rule, got, fix = "Python must have the database's driver", f"none ({error})", _DRIVER
    except (ValueError, sqlalchemy.exc.ArgumentError):  # they may quote the password
        rule, got, fix = "must be a URI", "one that cannot be read", f"Write {kind}://HOST:PORT/NAME, a number as port."
    except TypeError:  # psycopg gives bytes for the texts of a database whose encoding is SQL_ASCII
        rule, got = "the database must be encoded in UTF8", "another one"
        fix = "Create it anew with `createdb -E UTF8 -T template0`."
    raise TrackingError(where=f"{place} {mask_credentials(uri)}", rule=rule, got=got, fix=fix)
